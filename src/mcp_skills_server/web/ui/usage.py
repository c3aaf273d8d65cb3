"""Usage reports of the served roots, cached for a moment."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Final

from mcp_skills_server.errors import REPEATS, UsageError
from mcp_skills_server.telemetry.usage import By, Report, UsageStore

logger = logging.getLogger(__name__)

DAYS: Final = 30
_CACHE_S: Final = 5.0
"""Cache lifetime of a report in seconds."""


class UsageReports:
    """Usage reports of the served roots, cached for `_CACHE_S` seconds."""

    def __init__(self, counts: UsageStore | None, roots: Sequence[str]) -> None:
        self._counts = counts
        self._roots = roots
        self._made: dict[By, tuple[float, Report | None]] = {}

    @property
    def is_enabled(self) -> bool:
        """Return whether usage is counted."""
        return self._counts is not None

    def read(self, by: By = "skill") -> Report | None:
        """Return a report, or None. Reads a file unless it is cached."""
        if self._counts is None:
            return None
        made, report = self._made.get(by, (-_CACHE_S, None))
        if time.monotonic() - made >= _CACHE_S:
            report = None
            try:
                report = self._counts.report(by, DAYS, self._roots)
            except UsageError as error:
                logger.warning("%s", error, extra=REPEATS)
            self._made[by] = time.monotonic(), report
        return report
