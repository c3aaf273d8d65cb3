"""Remove each defence, one at a time, and check that the test which proves it fails.

`docs/threats.md` names each threat with its defence; `threats.toml` has the module of the defence, a test, and the
patch that removes it. In two copies of the tree every test must pass first; then each patch is applied alone, and its
test must fail. A test that still passes, a patch that no longer applies and a patch that breaks its module are
reported, and the exit code is 1. A test that is skipped because a program is absent proves nothing, and is named.
"""

from __future__ import annotations

import argparse
import os
import queue
import re
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tools.trial import ROOT, SOURCE, Runner

PATCHES: Final = Path(__file__).with_suffix(".toml")
PAGE: Final = ROOT / "docs" / "threats.md"
_AT_ONCE: Final = 2
_ALL_S: Final = 600
_ONE_S: Final = 60
_DEADLINE_S: Final = 6
"""`DEADLINE` of the tests, short because most tests wait for it when the defence is gone."""
_BROKEN: Final = re.compile(
    r"(?:^|rows fail: )(?:NameError|UnboundLocalError|SyntaxError|IndentationError|ImportError)\b"
)


_ROW: Final = re.compile(r"^\| ((?:`[a-z0-9-]+`(?:, )?)+) \| [^|]+ \| [^|]+ \|$", re.MULTILINE)
"""A row of the page: one or more names, the threat, the defence."""


@dataclass(frozen=True, slots=True)
class Threat:
    """A threat of the page with its entry of threats.toml.

    Attributes:
        module: where the defence is, below the package.
        test: the node ID of the test that fails without it, without parameters.
        before, after: the patch: a text that the module has once, and its replacement.
    """

    name: str
    module: str
    test: str
    before: str
    after: str

    @property
    def path(self) -> str:
        return (SOURCE / self.module).as_posix()

    def misfit(self, source: str) -> str:
        """Return why the patch does not apply to this source, "" if it does."""
        times = source.count(self.before)
        if times != 1:
            return f"its patch does not apply: {self.module} has its text {times} times"
        if not self.module.endswith(".py"):
            return ""
        try:
            compile(self.patched(source.encode()), self.module, "exec", dont_inherit=True)
        except SyntaxError as error:
            return f"its patch leaves {self.module} no Python ({error})"
        return ""

    def patched(self, source: bytes) -> bytes:
        return source.replace(self.before.encode(), self.after.encode())


def read_table() -> list[Threat]:
    """Return the threats of the page, in its order.

    Raises:
        ValueError: the page and the patches have different threats, or a row has another form.
    """
    patches = tomllib.loads(PATCHES.read_text(encoding="utf-8"))
    page = PAGE.read_text(encoding="utf-8")
    rows = _ROW.findall(page)
    names = [name.strip("`") for row in rows for name in row.split(", ")]
    if len(rows) != page.count("\n| `") or sorted(names) != sorted(patches):
        raise ValueError(f"docs/threats.md and threats.toml differ: {set(names) ^ set(patches)}")
    return [Threat(name, **patches[name]) for name in names]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The worst outcome of a test over all its parameters.

    Attributes:
        kind: "passed", "failed", "skipped", or "absent" if it did not run.
        why: the last line of its report.
    """

    kind: str
    why: str = ""


def outcome(test: str, reports: Iterable[Sequence[str]]) -> Outcome:
    """Return the outcome of a test from the reports of a run: (node ID, outcome, message)."""
    found = [Outcome(kind, why) for node, kind, why in reports if node.partition("[")[0] == test]
    for kind in ("failed", "passed", "skipped"):
        for each in found:
            if each.kind == kind:
                return each
    return Outcome("absent")


def verdict(found: Outcome | None) -> str:
    """Return why the outcome of a test without its defence proves nothing, "" if it failed as it should."""
    if found is None:
        return f"its test does not end within {_ONE_S} s"
    if found.kind != "failed":
        return f"its test is {found.kind} without the defence"
    return f"its patch breaks the module: {found.why}" if _BROKEN.search(found.why) else ""


def fault_without_defence(runner: Runner, threat: Threat) -> str:
    """Return what is wrong with a threat's patch or test, "" if the test fails without the defence."""
    with runner.bench.changed(threat.path, threat.patched):
        reports = runner.run([threat.test], _ONE_S)
    return verdict(None if reports is None else outcome(threat.test, reports))


def judge(threats: Sequence[Threat], runners: Sequence[Runner]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the unproved and the skipped threats by name, with the reasons; all others are proved."""
    wrong: dict[str, str] = {}
    skipped: dict[str, str] = {}
    todo: queue.SimpleQueue[Threat] = queue.SimpleQueue()

    def run_unpatched(runner: Runner, rows: Sequence[Threat]) -> None:
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

    def run_patched(runner: Runner) -> None:
        with suppress(queue.Empty):
            while True:
                row = todo.get_nowait()
                began = time.monotonic()
                found = fault_without_defence(runner, row)
                if found:
                    wrong[row.name] = found
                print(f"{'WRONG' if found else 'shown':8}  {row.name}  {time.monotonic() - began:.1f} s", flush=True)

    # Tests of one file share fixtures, so they run together.
    ordered = sorted(threats, key=lambda row: row.test)
    shares = [
        ordered[len(ordered) * n // len(runners) : len(ordered) * (n + 1) // len(runners)] for n in range(len(runners))
    ]
    with ThreadPoolExecutor(len(runners)) as pool:
        list(pool.map(run_unpatched, runners, shares))
        list(pool.map(run_patched, runners))
    return wrong, skipped


def misfits(threats: Iterable[Threat]) -> Mapping[str, str]:
    found = {row.name: row.misfit((ROOT / row.path).read_text()) for row in threats}
    return {name: why for name, why in found.items() if why}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--list", action="store_true", help="only print the threats")
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
        print("\n".join(f"{row.name:32}  {row.module:36}  {row.test}" for row in threats))
        return 0
    began = time.monotonic()
    os.environ["TEST_DEADLINE_S"] = str(_DEADLINE_S)
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
