"""The mark of tests that need an optional program, and the summary of those that were skipped.

`@pytest.mark.needs_program("bwrap")` skips a test if the program is not on `PATH`. A program that is present but does
not work fails the test. `make test` runs all other tests, `make test-programs` those
with the mark. The hooks are for `conftest.py` to import.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Generator
from typing import Any

import pytest

MARK = "needs_program"
WITH_NETWORK = (
    ("--sandbox", "off")
    if not hasattr(os, "geteuid") or os.geteuid()
    else ("--sandbox", "required", "--script-network")
)
"""Options for scripts that connect to this machine: no sandbox, or a sandbox with network for root, who needs one."""
needs_script_network = pytest.mark.needs_program(*(["bwrap"] if WITH_NETWORK[1] == "required" else []))
"""The mark of tests that use `WITH_NETWORK`."""


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark."""
    config.addinivalue_line("markers", f"{MARK}(name, ...): skipped where one of these programs is not installed")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose program is absent, before its fixtures are set up."""
    needed = {name: None for mark in item.iter_markers(MARK) for name in mark.args}
    item.user_properties.extend((MARK, name) for name in needed)
    absent = [name for name in needed if shutil.which(name) is None]
    if absent:
        pytest.skip(f"{' and '.join(absent)}: not installed")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: Any) -> Generator[None, object, object]:
    """Print last which programs were absent and how many tests were skipped for each."""
    result = yield
    skipped: Counter[str] = Counter()
    for report in terminalreporter.stats.get("skipped", []):
        skipped.update(name for key, name in report.user_properties if key == MARK and shutil.which(name) is None)
    for name, count in sorted(skipped.items()):
        tests = f"all {count} tests that need it were" if count > 1 else "the one test that needs it was"
        terminalreporter.write_line(f"{name} is not installed: {tests} skipped", yellow=True)
    return result
