"""The latest script runs and clients, from events.

A bounded number of each is kept in memory, without the content of requests and responses.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any, Final, NamedTuple

from mcp_skills_server.telemetry.events import CATALOGUE, Event, Use

MAX_RUNS: Final = 500
MAX_CLIENTS: Final = 500
UNFINISHED: Final = "begun"
"""The outcome of a run that has not ended."""


class ScriptRun(NamedTuple):
    """A started script and its request. The skill is "" for code that came with a call."""

    event: Event
    started: Use


class ActiveClient(NamedTuple):
    """A client: its last request, the time of its first, and the number of requests."""

    event: Event
    first: float
    requests: int
    refused: int


class Activity:
    """The latest runs and clients. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: OrderedDict[Any, ScriptRun] = OrderedDict()
        self._clients: OrderedDict[Any, ActiveClient] = OrderedDict()

    def take(self, event: Event) -> None:
        """Record the runs and the client of an event."""
        if event.protocol == CATALOGUE:
            return
        kept = event._replace(uses=())
        with self._lock:
            for use in event.uses:
                if use.action == "run":
                    self._note_run(kept, use)
            if event.outcome != UNFINISHED:
                self._note_client(kept)

    def runs(self) -> list[ScriptRun]:
        """Return the latest runs, newest first."""
        with self._lock:
            return [*reversed(self._runs.values())]

    def clients(self) -> list[ActiveClient]:
        """Return the latest clients, most recently active first."""
        with self._lock:
            return [*reversed(self._clients.values())]

    def _note_run(self, event: Event, started: Use) -> None:
        # A request emits an event when it starts a run, and one at its end, with the same time.
        request = event.time, event.protocol, event.method, event.principal, event.address, started
        if request not in self._runs or event.outcome != UNFINISHED:
            self._runs[request] = ScriptRun(event, started)
        if len(self._runs) > MAX_RUNS:
            self._runs.popitem(last=False)

    def _note_client(self, event: Event) -> None:
        who = event.principal, event.address, event.host, event.protocol, event.era
        known = self._clients.pop(who, ActiveClient(event, event.time, 0, 0))
        refused = known.refused + (event.outcome not in {"ok", "cancelled"})
        self._clients[who] = ActiveClient(event, known.first, known.requests + 1, refused)
        if len(self._clients) > MAX_CLIENTS:
            self._clients.popitem(last=False)
