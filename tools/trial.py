"""A copy of the tree in which source is patched and tests run, for `mutants` and `threats`."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
import venv
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Final, cast

ROOT: Final = Path(__file__).resolve().parent.parent
SOURCE: Final = Path("src") / "mcp_skills_server"
# Without xdist, so that the order is the same each time.
OPTIONS: Final = ("-q", "-x", "-p", "no:cacheprovider", "-p", "no:randomly", "--hypothesis-seed=0")
"""Arguments of pytest in a copy."""
_PRELOADED: Final = ("_pytest.config", "hypothesis", "anyio", "mcp.server.lowlevel", "starlette.requests", "uvicorn")
"""Libraries that most tests import."""
_SKIPPED: Final = {
    *(".git", ".venv", "__pycache__", ".pytest_cache", ".ruff_cache", ".hypothesis", ".interop", ".hosts"),
    *(".site", ".coverage.d"),
}


class Bench:
    """A copy of the tree to patch, with a virtual environment that imports from the copy first."""

    def __init__(self, place: Path) -> None:
        self.tree = place / "tree"
        shutil.copytree(ROOT, self.tree, symlinks=True, ignore=lambda _, names: _SKIPPED.intersection(names))
        venv.create(self.tree / ".venv", symlinks=True, with_pip=False)
        folders = self.tree / "src", sysconfig.get_path("purelib")
        own = next((self.tree / ".venv").glob("lib/python*/site-packages"))
        (own / "first.pth").write_text("".join(f"{folder}\n" for folder in folders))
        self.python = self.tree / ".venv" / "bin" / "python"
        script = self.python.with_name("mcp-skills-server")
        script.write_text(f"#!{self.python}\nfrom mcp_skills_server.__main__ import main\nmain()\n")
        script.chmod(0o755)

    @contextmanager
    def changed(self, path: str, change: Callable[[bytes], bytes]) -> Generator[None]:
        """Replace the content of a file by its changed content, until the context ends.

        Args:
            path: the file, from the root of the project.
            change: returns the changed content.
        """
        file = self.tree / path
        source = file.read_bytes()
        try:
            _write(file, change(source))
            yield
        finally:
            _write(file, source)


def _write(module: Path, source: bytes) -> None:
    module.write_bytes(source)
    for compiled in (module.parent / "__pycache__").glob(f"{module.stem}.*.pyc"):
        compiled.unlink()  # otherwise valid for a source of the same size and second


class Runner:
    """A runner of tests in a copy of the tree. Each run is a fork of a process that has imported the libraries."""

    def __init__(self, place: Path) -> None:
        self.bench = Bench(place)
        self._reports = place / "reports.json"
        self._process = subprocess.Popen(
            [self.bench.python, "-c", "from tools.trial import serve; serve()"],
            cwd=self.bench.tree,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, tests: Sequence[str], seconds: float, *options: str) -> list[Sequence[str]] | None:
        """Run these tests and return their reports, or None after a timeout."""
        self._reports.unlink(missing_ok=True)
        job = {"arguments": [*OPTIONS, *options, *tests], "reports": str(self._reports), "seconds": seconds}
        into, out = cast("IO[str]", self._process.stdin), cast("IO[str]", self._process.stdout)
        print(json.dumps(job), file=into, flush=True)
        if out.readline().strip() == "overdue":
            return None
        return json.loads(self._reports.read_text()) if self._reports.exists() else []

    def close(self) -> None:
        self._process.communicate()


class _Reports:
    """Plugin of pytest that collects the outcome of each test."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, str, str]] = []

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Record the call phase of a test; of setup and teardown only failures and skips."""
        if report.when != "call" and report.outcome == "passed":
            return
        crash = getattr(report.longrepr, "reprcrash", None)
        words = crash.message if crash is not None else report.longrepr[2] if report.outcome == "skipped" else ""
        self.rows.append((report.nodeid, report.outcome, words.partition("\n")[0][:200]))


def serve() -> None:
    """Fork a run of pytest for each line of stdin, and print its reports on stdout. For `Runner`."""
    for name in _PRELOADED:
        __import__(name)
    for line in sys.stdin:
        job = json.loads(line)
        child = os.fork()
        if child == 0:
            try:
                _pytest(job["arguments"], job["reports"])
            finally:
                os._exit(0)  # never return into this loop; without reports no test counts as passed
        timer = threading.Timer(job["seconds"], _kill, [child])
        timer.start()
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
        is_overdue = not timer.is_alive()
        timer.cancel()
        _kill(child)  # and the processes that it started
        os.waitpid(child, 0)
        print("overdue" if is_overdue else "done", flush=True)


def _kill(group: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def _pytest(arguments: Sequence[str], reports: str) -> None:
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(nothing, descriptor)
    import pytest

    kept = _Reports()
    # Some preloaded modules are plugins, whose asserts pytest would rewrite.
    pytest.main([*arguments, "-W", "ignore::pytest.PytestAssertRewriteWarning"], plugins=[kept])
    Path(reports).write_text(json.dumps(kept.rows))
