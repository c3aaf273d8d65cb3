"""Request log: a line for each request of a server."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from mcp_skills_server.errors import REPEATS, listed
from mcp_skills_server.telemetry.events import CATALOGUE, Event, Events

logger = logging.getLogger(__name__)


def log_requests(events: Events, level: int = logging.DEBUG) -> Callable[[], None]:
    """Log each request of a server at this level; return a function that stops the logging.

    `catalog/report.py` logs changes of the catalogue, with their reasons.
    """
    return events.subscribe(partial(_log, level))


def _log(level: int, event: Event) -> None:
    if event.protocol == CATALOGUE or not logger.isEnabledFor(level):
        return
    about = why = ""
    if event.skills:
        about = f" of {listed(event.skills)}"
    if event.reason:
        why = f" ({event.reason})"
    who = "".join(f", {each}" for each in (event.principal or event.address, event.host) if each)
    given = event.method, about, event.outcome, why, event.milliseconds, event.protocol, who
    line = "%s%s: %s%s in %.1f ms (%s%s)"
    fields = {
        "protocol": event.protocol,
        "method": event.method,
        "principal": event.principal,
        "address": event.address,
        "host": event.host,
        "skills": [*event.skills],
        "outcome": event.outcome,
        "reason": event.reason,
        "milliseconds": round(event.milliseconds, 3),
        "request": event.request,
    }
    extra: dict[str, Any] = {"fields": {key: value for key, value in fields.items() if value}}
    if event.reason:  # refused before any protocol: such clients could flood the log
        extra |= REPEATS
    logger.log(level, line, *given, extra=extra)
