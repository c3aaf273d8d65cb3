"""The latest runs of scripts and the clients that asked something. A reader of events.

It keeps a bounded number of each in memory, and only where there is a page to show them. No event has anything of what
was said or answered.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Final, NamedTuple, TypeVar

from mcp_skills_server.telemetry.events import CATALOGUE, Event, Events, Use

_K = TypeVar("_K", bound=Hashable)
_V = TypeVar("_V")

MOST_RUNS: Final = 500
MOST_CLIENTS: Final = 500
UNFINISHED: Final = "begun"
"""The outcome of a run that goes on."""


class ScriptRun(NamedTuple):
    """A script that was started.

    Attributes:
        event: the request for it, at its end if it has ended.
        started: which file of which skill; the skill is "" for code that came with a call.
    """

    event: Event
    started: Use


class ActiveClient(NamedTuple):
    """A client that asked something.

    Attributes:
        event: its last request.
        first: time of the first one, in seconds since 1970.
        requests: how many requests.
        refused: how many of them were refused or failed.
    """

    event: Event
    first: float
    requests: int
    refused: int


class Activity:
    """The latest runs and clients. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: OrderedDict[tuple[object, ...], ScriptRun] = OrderedDict()
        self._clients: OrderedDict[tuple[str | None, ...], ActiveClient] = OrderedDict()

    def start(self, events: Events) -> Callable[[], None]:
        """Take every event of a server from now on. Returns a function that ends that."""
        return events.subscribe(self.take)

    def take(self, event: Event) -> None:
        """Keep what an event tells."""
        if event.protocol == CATALOGUE:
            return
        kept = event._replace(uses=(), question="")
        with self._lock:
            for use in event.uses:
                if use.action == "run":
                    self._note_run(kept, use)
            if event.outcome != UNFINISHED:
                self._note_client(kept)

    def runs(self) -> list[ScriptRun]:
        """Return the latest runs, the last one first."""
        with self._lock:
            return [*reversed(self._runs.values())]

    def clients(self) -> list[ActiveClient]:
        """Return the latest clients, the one that asked last first."""
        with self._lock:
            return [*reversed(self._clients.values())]

    def _note_run(self, event: Event, started: Use) -> None:
        # A request has two events, when it starts a run and at its end; both say when it began.
        request = event.time, event.protocol, event.method, event.principal, event.address, started
        if request not in self._runs:
            _keep(self._runs, request, ScriptRun(event, started), MOST_RUNS)
        elif event.outcome != UNFINISHED:
            self._runs[request] = ScriptRun(event, started)

    def _note_client(self, event: Event) -> None:
        who = event.principal, event.address, event.host, event.protocol, event.era
        known = self._clients.get(who) or ActiveClient(event, event.time, 0, 0)
        refused = known.refused + (event.outcome not in {"ok", "cancelled"})
        _keep(self._clients, who, ActiveClient(event, known.first, known.requests + 1, refused), MOST_CLIENTS)


def _keep(among: OrderedDict[_K, _V], key: _K, value: _V, most: int) -> None:
    """Put a value last; beyond `most` the first one goes."""
    among[key] = value
    among.move_to_end(key)
    if len(among) > most:
        among.popitem(last=False)
