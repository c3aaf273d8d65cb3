"""A line in the log for each request, at the level debug."""

from __future__ import annotations

import logging
from collections.abc import Callable

from mcp_skills_server.telemetry.events import CATALOGUE, Event, subscribe

logger = logging.getLogger(__name__)


def log_requests() -> Callable[[], None] | None:
    """Log each request from now on; nothing where the log has no such lines.

    Differences of the catalogue are logged with their reasons by `catalog/report.py`. Returns what ends it.
    """
    return subscribe(_log) if logger.isEnabledFor(logging.DEBUG) else None


def _log(event: Event) -> None:
    if event.protocol != CATALOGUE:
        about = f" of {', '.join(event.skills)}" if event.skills else ""
        who = "".join(f", {each}" for each in (event.principal, event.host) if each)
        logger.debug(
            "%s%s: %s in %.1f ms (%s%s)",
            event.method,
            about,
            event.outcome,
            event.milliseconds,
            event.protocol,
            who,
        )
