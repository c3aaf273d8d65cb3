"""Take each defence away, one at a time, and see that the test which shows it fails.

`python -m tools.threats` reads `threats.toml`: by the name of a threat a patch that removes its defence, and a test. In
two copies of the tree every test passes first; then each patch is made alone, and its test must fail. A test that still
passes, a patch that fits no more and a patch that only breaks its module are a line each, and exit code 1. A test that
is skipped for want of a program shows nothing, which is said.

`docs/security.md` has the same threats in words; `tests/test_threats.py` compares the two.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, cast

from tools.trial import OPTIONS, ROOT, SOURCE, Bench

TABLE: Final = Path(__file__).with_suffix(".toml")
BOUNDARIES: Final = ("author", "source", "operator", "client", "model", "script", "network", "redis")
_AT_ONCE: Final = 2
_ALL_S: Final = 600
_ONE_S: Final = 60
_PRELOADED: Final = ("_pytest.config", "hypothesis", "anyio", "mcp.server.lowlevel", "starlette.requests", "uvicorn")
"""What most tests import and no patch touches."""
_BROKEN: Final = ("NameError", "UnboundLocalError", "SyntaxError", "IndentationError", "ImportError")


@dataclass(frozen=True, slots=True)
class Threat:
    """One row of the table.

    Attributes:
        name: by which docs/security.md has it.
        boundary: whom the defence is against; one of `BOUNDARIES`.
        module: where the defence is, below the package.
        before, after: the patch that removes it: a text that stands in the module once, and what replaces it.
        test: the node ID of the test that fails then, without parameters.
    """

    name: str
    boundary: str
    module: str
    before: str
    after: str
    test: str

    @property
    def path(self) -> str:
        """The module, from the root of the project."""
        return (SOURCE / self.module).as_posix()

    def misfit(self, source: str) -> str:
        """Why the patch cannot be made in this text, "" where it can."""
        times = source.count(self.before)
        if times != 1:
            return f"its patch does not apply: {self.module} has its text {times} times"
        try:
            compile(self.patched(source.encode()), self.module, "exec", dont_inherit=True)
        except SyntaxError as error:
            return f"its patch leaves {self.module} no Python ({error})"
        return ""

    def patched(self, source: bytes) -> bytes:
        """The module's text without the defence."""
        return source.replace(self.before.encode(), self.after.encode())


def read_table(file: Path = TABLE) -> list[Threat]:
    """The rows of the table, in its order."""
    with file.open("rb") as opened:
        return [Threat(name, **fields) for name, fields in tomllib.load(opened).items()]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a test ended, over all its parameters.

    Attributes:
        kind: "passed", "failed", "skipped", or "absent" where it was not run at all.
        why: the last line of what it said.
    """

    kind: str
    why: str = ""


def outcome(test: str, reports: Iterable[Sequence[str]]) -> Outcome:
    """What the reports of a run, (node ID, outcome, words), say of one test."""
    found = [Outcome(kind, why) for node, kind, why in reports if node.partition("[")[0] == test]
    for kind in ("failed", "passed", "skipped"):
        for each in found:
            if each.kind == kind:
                return each
    return Outcome("absent")


def verdict(found: Outcome | None) -> str:
    """What is wrong with how a test ended without its defence; "" where it failed, as it should."""
    if found is None:
        return f"its test does not end within {_ONE_S} s"
    if found.kind != "failed":
        return f"its test is {found.kind} without the defence"
    return f"its patch breaks the module: {found.why}" if found.why.startswith(_BROKEN) else ""


class Runner:
    """Runs tests in a copy of the tree. Each run is a fork of a process that has the libraries loaded already."""

    def __init__(self, place: Path) -> None:
        self.bench = Bench(place)
        self._reports = place / "reports.json"
        self._process = subprocess.Popen(
            [self.bench.python, "-c", "from tools.threats import serve; serve()"],
            cwd=self.bench.tree,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, tests: Sequence[str], seconds: float, *options: str) -> list[Sequence[str]] | None:
        """The reports of these tests, None where they do not end in time."""
        self._reports.unlink(missing_ok=True)
        asked = {"arguments": [*OPTIONS, *options, *tests], "reports": str(self._reports), "seconds": seconds}
        into, out = cast("IO[str]", self._process.stdin), cast("IO[str]", self._process.stdout)
        print(json.dumps(asked), file=into, flush=True)
        if out.readline().strip() == "overdue":
            return None
        return json.loads(self._reports.read_text()) if self._reports.exists() else []

    def without(self, threat: Threat) -> str:
        """What is wrong with a threat's patch or test, "" where the test fails without the defence."""
        with self.bench.changed(threat.path, threat.patched):
            reports = self.run([threat.test], _ONE_S)
        return verdict(None if reports is None else outcome(threat.test, reports))

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


class _Reports:
    """Plugin of pytest: keeps how each test ended."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, str, str]] = []

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Note one phase of a test; of those that only prepare it or clean up, what went wrong."""
        if report.when != "call" and report.outcome == "passed":
            return
        crash = getattr(report.longrepr, "reprcrash", None)
        words = crash.message if crash is not None else report.longrepr[2] if report.outcome == "skipped" else ""
        self.rows.append((report.nodeid, report.outcome, words.partition("\n")[0][:200]))


def serve() -> None:
    """Fork a run of pytest for each line of stdin, and say on stdout how it ended. For `Runner`."""
    for name in _PRELOADED:
        __import__(name)
    for line in sys.stdin:
        asked = json.loads(line)
        child = os.fork()
        if child == 0:
            try:
                _pytest(asked["arguments"], asked["reports"])
            finally:
                os._exit(0)  # never back into this loop; without reports nothing passes
        timer = threading.Timer(asked["seconds"], _kill, [child])
        timer.start()
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
        is_overdue = not timer.is_alive()
        timer.cancel()
        _kill(child)  # with what it left running
        os.waitpid(child, 0)
        print("overdue" if is_overdue else "done", flush=True)


def _kill(group: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def _pytest(arguments: Sequence[str], reports: str) -> None:
    """Be a run of pytest, in a process of its own."""
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(nothing, descriptor)
    import pytest

    kept = _Reports()
    # Some of what is preloaded are plugins, of which pytest would rewrite the asserts.
    pytest.main([*arguments, "-W", "ignore::pytest.PytestAssertRewriteWarning"], plugins=[kept])
    Path(reports).write_text(json.dumps(kept.rows))


def judge(threats: Sequence[Threat], runners: Sequence[Runner]) -> tuple[dict[str, str], dict[str, str]]:
    """What is wrong, and what was skipped, by the name of the threat with the reason; all else is shown."""
    wrong: dict[str, str] = {}
    skipped: dict[str, str] = {}
    todo: queue.SimpleQueue[Threat] = queue.SimpleQueue()

    def pass_first(runner: Runner, rows: Sequence[Threat]) -> None:
        tests = [*dict.fromkeys(row.test for row in rows)]
        reports = runner.run(tests, _ALL_S, "--maxfail=0") if tests else []
        for row in rows:
            found = Outcome("absent", f"not done within {_ALL_S} s") if reports is None else outcome(row.test, reports)
            if found.kind == "passed":
                todo.put(row)
            elif found.kind == "skipped":
                skipped[row.name] = found.why
                print(f"{'skipped':8}  {row.name}: {found.why}", flush=True)
            else:
                wrong[row.name] = f"its test does not pass as things are: {found.kind}, {found.why}"

    def take_away(runner: Runner) -> None:
        with suppress(queue.Empty):
            while True:
                row = todo.get_nowait()
                began = time.monotonic()
                found = runner.without(row)
                if found:
                    wrong[row.name] = found
                print(f"{'WRONG' if found else 'shown':8}  {row.name}  {time.monotonic() - began:.1f} s", flush=True)

    # Tests of one file together, for what they share.
    ordered = sorted(threats, key=lambda row: row.test)
    shares = [
        ordered[len(ordered) * n // len(runners) : len(ordered) * (n + 1) // len(runners)] for n in range(len(runners))
    ]
    with ThreadPoolExecutor(len(runners)) as pool:
        list(pool.map(pass_first, runners, shares))
        list(pool.map(take_away, runners))
    return wrong, skipped


def misfits(threats: Iterable[Threat]) -> Mapping[str, str]:
    """The patches that cannot be made, by the name of the threat, with the reason."""
    found = {row.name: row.misfit((ROOT / row.path).read_text()) for row in threats}
    return {name: why for name, why in found.items() if why}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what came of each threat, then what is wrong; 1 where something is."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--list", action="store_true", help="print the threats and try none")
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME", help="this threat alone; may be repeated"
    )
    options = parser.parse_args(arguments)
    threats = read_table()
    unknown = {*options.only} - {row.name for row in threats}
    if unknown:
        parser.error(f"no such threat: {', '.join(sorted(unknown))}; --list has them")
    threats = [row for row in threats if not options.only or row.name in options.only]
    if options.list:
        print("\n".join(f"{row.boundary:8}  {row.name:32}  {row.module:36}  {row.test}" for row in threats))
        return 0
    began = time.monotonic()
    wrong, skipped = {**misfits(threats)}, {}
    todo = [row for row in threats if row.name not in wrong]
    with tempfile.TemporaryDirectory(prefix="threats-") as place:
        os.chmod(place, 0o755)  # tests start programs as other users
        runners: list[Runner] = []
        try:
            for number in range(min(_AT_ONCE, len(todo))):
                folder = Path(place, str(number))
                folder.mkdir()
                runners.append(Runner(folder))
            if runners:
                found, skipped = judge(todo, runners)
                wrong |= found
        finally:
            for runner in runners:
                runner.close()
    for name, why in wrong.items():
        print(f"error: {name}: {why}", file=sys.stderr)
    spent = f"{time.monotonic() - began:.0f} s, {sum(os.times()[:4]):.0f} s of processors"
    print(f"{len(threats)} threats: {len(wrong)} wrong, {len(skipped)} skipped, all others shown; {spent}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
