"""Tests that need a program which a machine may lack say so by one mark, and the end of a run says what that left out.

`@pytest.mark.needs_program("bwrap")` skips a test where the program is on no folder of `PATH`. Only its absence does:
a program that is there and does not work fails the test. With `--skipped` a run has those tests alone that the last one
skipped, so that what two runs of which one has the program prove is the whole suite, each test once. The hooks are for
`conftest.py` to import.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

MARK = "needs_program"
_KEY = "skipped-for-a-program"
_CHOSEN = pytest.StashKey[frozenset[str]]()
LOOSE = (
    ("--sandbox", "off")
    if not hasattr(os, "geteuid") or os.geteuid()
    else ("--sandbox", "required", "--script-network")
)
"""Options for scripts that must reach this machine: without a sandbox, which root is refused, or with its network."""
loose = pytest.mark.needs_program(*(["bwrap"] if LOOSE[1] == "required" else []))
"""For tests that give these options."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Make the option known."""
    parser.addoption("--skipped", action="store_true", help="only what the last run skipped for want of a program")


def pytest_configure(config: pytest.Config) -> None:
    """Make the mark known, and read which tests are asked for."""
    config.addinivalue_line("markers", f"{MARK}(name, ...): skipped where one of these programs is not installed")
    if config.getoption("--skipped"):
        cache = getattr(config, "cache", None)  # not there with `-p no:cacheprovider`
        config.stash[_CHOSEN] = frozenset(cache.get(_KEY, []) if cache is not None else [])


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Open no file that has none of them."""
    chosen = config.stash.get(_CHOSEN, None)
    if chosen is None or collection_path.is_dir():
        return None
    files = {node.partition("::")[0] for node in chosen}
    return collection_path.relative_to(config.rootpath).as_posix() not in files or None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep those that are asked for."""
    chosen = config.stash.get(_CHOSEN, None)
    if chosen is not None:
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in chosen])
        items[:] = [item for item in items if item.nodeid in chosen]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs a program that is not there, before any fixture is made."""
    needed = {name: None for mark in item.iter_markers(MARK) for name in mark.args}
    item.user_properties.extend((MARK, name) for name in needed)
    absent = [name for name in needed if shutil.which(name) is None]
    if absent:
        pytest.skip(f"{' and '.join(absent)}: not installed")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: Any) -> Generator[None, object, object]:
    """Say, below everything else, which programs were absent and how many tests that left out."""
    result = yield
    skipped: Counter[str] = Counter()
    nodes: list[str] = []
    for report in terminalreporter.stats.get("skipped", []):
        absent = [name for key, name in report.user_properties if key == MARK and shutil.which(name) is None]
        skipped.update(absent)
        nodes += [report.nodeid] if absent else []
    cache = getattr(terminalreporter.config, "cache", None)
    if cache is not None:
        cache.set(_KEY, nodes)
    for name, count in sorted(skipped.items()):
        tests = f"all {count} tests that need it were" if count > 1 else "the one test that needs it was"
        terminalreporter.write_line(f"{name} is not installed: {tests} skipped", yellow=True)
    return result
