"""Record which tests execute which lines of the source, and find the tests of a line, for `mutants`.

The record is a run of the whole suite under coverage.py, 13 minutes on two cores. A line that runs in the process of
the tests is recorded for the test. A line that runs in a process which a test started is recorded for the test's file,
since all tests of a file may share a server.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import coverage
import pytest
from tools.trial import ROOT, SOURCE

PLACE: Final = ROOT / ".coverage.d"
_SECONDS: Final = PLACE / "seconds.json"
_SETTINGS: Final = f"""\
[run]
source_pkgs = mcp_skills_server
data_file = {PLACE / "data"}
relative_files = true
parallel = true
sigterm = true
patch = subprocess, _exit
context = ${{TEST_FILE-}}
disable_warnings = no-data-collected, module-not-imported, already-imported, module-not-measured
"""
_SETTINGS_FILE: Final = PLACE / "settings"
_END_S: Final = 10.0


def record() -> None:
    """Run the suite under coverage.py. Failures do not matter: tracing makes some tests miss a deadline."""
    PLACE.mkdir(exist_ok=True)
    for old in PLACE.iterdir():
        old.unlink()
    _SETTINGS_FILE.write_text(_SETTINGS)
    command, settings = (sys.executable, "-m", "coverage"), f"--rcfile={_SETTINGS_FILE}"
    suite = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tools.recording", "--dist", "worksteal")
    suite = (*suite, "-n", str(os.cpu_count()))
    patient = os.environ | {"TEST_DEADLINE_S": "60"}
    subprocess.run((*command, "run", settings, *suite), cwd=ROOT, env=patient, check=False)
    subprocess.run((*command, "combine", "-q", settings), cwd=ROOT, check=True)


# A plugin of pytest


def pytest_configure(config: pytest.Config) -> None:
    """Record each process that a test starts under the test's file."""
    import forkserver  # of the tests; its forks would be recorded as one process

    start, kill = subprocess.Popen.__init__, subprocess.Popen.kill

    def own() -> dict[str, str]:
        return {name: os.environ[name] for name in ("COVERAGE_PROCESS_START", "TEST_FILE") if name in os.environ}

    def recorded(self: Any, *args: Any, **options: Any) -> None:
        if options.get("env") is not None:
            options["env"] = {**own(), **options["env"]}
        start(self, *args, **options)

    def end(self: Any) -> None:
        self.terminate()  # a killed process writes no data
        with suppress(subprocess.TimeoutExpired):
            self.wait(_END_S)
        kill(self)

    subprocess.Popen.__init__, subprocess.Popen.kill = recorded, end
    forkserver._can_be_forked = lambda _: False
    if hasattr(config, "workerinput"):
        os.environ.pop("COVERAGE_PROCESS_CONFIG", None)  # it has the context of this process
        os.environ["COVERAGE_PROCESS_START"] = str(_SETTINGS_FILE)
    else:
        config.pluginmanager.register(_Seconds())


def pytest_runtest_protocol(item: pytest.Item) -> None:
    """Record the following lines for this test, and those of its processes for its file."""
    os.environ["TEST_FILE"] = item.nodeid.partition("::")[0]
    recording = coverage.Coverage.current()
    if recording is not None:
        recording.switch_context(item.nodeid)


class _Seconds:
    """Plugin of pytest that writes the duration of each test."""

    def __init__(self) -> None:
        self._seconds: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] += report.duration

    def pytest_sessionfinish(self) -> None:
        _SECONDS.write_text(json.dumps(self._seconds))


# The tests of a line


class Recording:
    """The data of `record`. `seconds` is the duration of each test.

    Raises:
        FileNotFoundError: nothing was recorded.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = json.loads(_SECONDS.read_text())
        self._data = coverage.CoverageData(str(PLACE / "data"))
        self._data.read()
        self._lines: dict[str, dict[int, set[str]]] = {}

    def tests_of(self, path: str, first: int, last: int) -> list[str]:
        """Return the tests that execute one of these lines: the module's own test file first, fast before slow.

        A line that only an import executes has the tests of the lines that name what it binds, or else of its module.
        """
        contexts = self._contexts(path, range(first, last + 1))
        if not contexts:
            names = _bound(path, first, last)
            for module in self._modules if names else ():
                text = (ROOT / module).read_text().splitlines()
                named = [number for number, line in enumerate(text, 1) if names.intersection(re.findall(r"\w+", line))]
                contexts |= self._contexts(module, named)
        if not contexts:
            contexts = self._contexts(path, range(1, 10_000))
        tests = {test for context in contexts for test in self._by_context.get(context, ())}
        stem = Path(path).stem.strip("_")

        def order(test: str) -> tuple[bool, bool, float]:
            return f"test_{stem}.py" not in test, test not in contexts, self.seconds[test]

        return sorted(tests, key=order)

    @cached_property
    def _modules(self) -> list[str]:
        return sorted(module.relative_to(ROOT).as_posix() for module in (ROOT / SOURCE).rglob("*.py"))

    @cached_property
    def _by_context(self) -> dict[str, list[str]]:
        tests: defaultdict[str, list[str]] = defaultdict(list)
        for test in self.seconds:
            tests[test].append(test)
            tests[test.partition("::")[0]].append(test)
        return tests

    def _contexts(self, path: str, lines: Sequence[int]) -> set[str]:
        kept = self._lines.get(path)
        if kept is None:
            seen = self._data.contexts_by_lineno(path)
            split = {line: {part for each in names for part in each.split("|")} for line, names in seen.items()}
            kept = self._lines[path] = {line: names - {""} for line, names in split.items()}
        return set().union(*(kept.get(line, ()) for line in lines))


def _bound(path: str, first: int, last: int) -> set[str]:
    """Return the names that an assignment at these lines binds."""
    found: set[str] = set()
    for node in ast.walk(ast.parse((ROOT / path).read_bytes())):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.lineno <= first and last <= (node.end_lineno or 0):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found.update(name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name))
    return found
