"""A line in the log for each request."""

from __future__ import annotations

import logging
from collections.abc import Callable

from mcp_skills_server.errors import REPEATS
from mcp_skills_server.telemetry.events import CATALOGUE, Event, subscribe

logger = logging.getLogger(__name__)


def log_requests(level: int = logging.DEBUG) -> Callable[[], None] | None:
    """Log each request at this level from now on; nothing where the log has no such lines.

    Differences of the catalogue are logged with their reasons by `catalog/report.py`. Returns what ends it.
    """
    return subscribe(lambda event: _log(event, level)) if logger.isEnabledFor(level) else None


def _log(event: Event, level: int) -> None:
    if event.protocol == CATALOGUE:
        return
    about = f" of {', '.join(event.skills)}" if event.skills else ""
    who = "".join(f", {each}" for each in (event.principal or event.address, event.host) if each)
    why = f" ({event.reason})" if event.reason else ""
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
    }
    logger.log(
        level,
        "%s%s: %s%s in %.1f ms (%s%s)",
        event.method,
        about,
        event.outcome,
        why,
        event.milliseconds,
        event.protocol,
        who,
        extra={
            "fields": {key: value for key, value in fields.items() if value},
            **(REPEATS if event.reason else {}),  # a stranger, who would fill the disk
        },
    )
