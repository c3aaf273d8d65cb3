"""Record the outcome of each test, so that `make requirements` can distinguish skipped from passed tests."""

from __future__ import annotations

import pytest
from _pytest.terminal import TerminalReporter

_KEY = "outcomes"


def pytest_terminal_summary(terminalreporter: TerminalReporter, config: pytest.Config) -> None:
    """Record the outcomes of this run. Tests that did not run keep their last outcome."""
    cache = getattr(config, "cache", None)  # absent with `-p no:cacheprovider`
    if cache is None:
        return
    known: dict[str, str] = cache.get(_KEY, {})
    for outcome in ("skipped", "passed", "failed", "error"):
        for report in terminalreporter.stats.get(outcome, ()):
            known[report.nodeid] = outcome
    cache.set(_KEY, known)
