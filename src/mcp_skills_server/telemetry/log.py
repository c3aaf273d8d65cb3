"""Request log: a line for each request of a server."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

from mcp_skills_server.errors import listed
from mcp_skills_server.telemetry.events import CATALOGUE, Event, Events

logger = logging.getLogger(__name__)

Logged = Literal["all", "errors", "off"]
"""Which requests have a line."""


def log_requests(
    events: Events, level: int = logging.DEBUG, logged: Logged = "all"
) -> Callable[[], None]:
    """Log requests of a server at this level; return a function that stops the logging.

    `catalog/report.py` logs changes of the catalogue, with their reasons.
    """
    if logged == "off":
        return lambda: None
    return events.subscribe(partial(_log, level, logged == "errors"))


def _log(level: int, only_errors: bool, event: Event) -> None:
    if event.protocol == CATALOGUE or not logger.isEnabledFor(level):
        return
    if only_errors and event.outcome not in {"refused", "failed"}:
        return
    # `logger.log` would look up the caller, which takes half of its time.
    record = logging.LogRecord(logger.name, level, __file__, 0, RequestLine(event), None, None)
    if event.reason:  # refused before any protocol: such clients could flood the log
        record.repeats = True
    logger.handle(record)


class RequestLine:
    """The message of a log record about a request, formatted by the thread that writes it."""

    def __init__(self, event: Event) -> None:
        self._event = event

    def __str__(self) -> str:
        event = self._event
        about = why = ""
        if event.skills:
            about = f" of {listed(event.skills)}"
        if event.reason:
            why = f" ({event.reason})"
        known = [event.principal or event.address, event.host]
        who = "".join(f", {name}" for name in known if name)
        took = f"{event.milliseconds:.1f} ms"
        return f"{event.method}{about}: {event.outcome}{why} in {took} ({event.protocol}{who})"

    @property
    def fields(self) -> dict[str, Any]:
        """Details for a log of JSON objects."""
        event = self._event
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
        return {key: value for key, value in fields.items() if value}
