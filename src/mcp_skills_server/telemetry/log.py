"""A line in the log for each request, written a moment after its answer and in the order of the answers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from mcp_skills_server.errors import REPEATS, listed
from mcp_skills_server.telemetry import later
from mcp_skills_server.telemetry.events import CATALOGUE, Event
from mcp_skills_server.telemetry.later import BATCHED

logger = logging.getLogger(__name__)


def log_requests(level: int = logging.DEBUG) -> Callable[[], None] | None:
    """Log each request at this level from now on; nothing where the log has no such lines.

    Differences of the catalogue are logged with their reasons by `catalog/report.py`. Returns what ends it.
    """
    return later.subscribe(lambda events: _log(events, level)) if logs_requests(level) else None


def logs_requests(level: int) -> bool:
    """Whether the log has lines of requests at this level now."""
    return logger.isEnabledFor(level)


def _log(events: Sequence[Event], level: int) -> None:
    if not logger.isEnabledFor(level):
        return
    for event in events:
        if event.protocol != CATALOGUE:
            logger.handle(_record(event, level))
    for handler in _handlers():
        handler.flush()


def _record(event: Event, level: int) -> logging.LogRecord:
    """The record of a request. To find out who logs, as `logger.log` does, takes longer than all else."""
    about = f" of {listed(event.skills)}" if event.skills else ""
    who = "".join(f", {each}" for each in (event.principal or event.address, event.host) if each)
    why = f" ({event.reason})" if event.reason else ""
    given = event.method, about, event.outcome, why, event.milliseconds, event.protocol, who
    line = "%s%s: %s%s in %.1f ms (%s%s)"
    record = logger.makeRecord(logger.name, level, __file__, 0, line, given, None, extra=_extra(event))
    record.created = event.time + event.milliseconds / 1000
    return record


def _extra(event: Event) -> dict[str, Any]:
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
    return {
        BATCHED: True,
        "fields": {key: value for key, value in fields.items() if value},
        **(REPEATS if event.reason else {}),  # a stranger, who would fill the disk
    }


def _handlers() -> Iterator[logging.Handler]:
    """All that get our records."""
    at: logging.Logger | None = logger
    while at is not None:
        yield from at.handlers
        at = at.parent if at.propagate else None
