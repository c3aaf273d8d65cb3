"""Keeps how each test ended, so that `make requirements` counts what was skipped apart from what was proved."""

from __future__ import annotations

import pytest
from _pytest.terminal import TerminalReporter

_KEY = "outcomes"


def pytest_terminal_summary(terminalreporter: TerminalReporter, config: pytest.Config) -> None:
    """Remember the outcomes of this run; those of tests that did not run stay as they were."""
    cache = getattr(config, "cache", None)  # not there with `-p no:cacheprovider`
    if cache is None:
        return
    known: dict[str, str] = cache.get(_KEY, {})
    for outcome in ("skipped", "passed", "failed", "error"):
        for report in terminalreporter.stats.get(outcome, ()):
            known[report.nodeid] = outcome
    cache.set(_KEY, known)
