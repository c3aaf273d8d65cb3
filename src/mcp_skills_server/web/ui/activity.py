"""What is going on: the latest runs of scripts and the clients that asked something. A reader of events.

It keeps a bounded number of each in memory, and only where there is a page to show them. Nothing of what was said or
answered is in an event, so nothing of it is here.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Final, NamedTuple, TypeVar

from mcp_skills_server.telemetry.events import CATALOGUE, Event, Events

_K = TypeVar("_K", bound=Hashable)
_V = TypeVar("_V")

MOST_RUNS: Final = 500
MOST_CLIENTS: Final = 500
UNFINISHED: Final = "begun"
"""The outcome of a run that goes on."""


class RunFile(NamedTuple):
    """What was started.

    Attributes:
        skill: the skill path, "" for what came with a call.
        file: its path in the skill.
        digest: over all files that were laid out for it.
    """

    skill: str
    file: str
    digest: str


class ScriptRun(NamedTuple):
    """A script that was started.

    Attributes:
        time: when, in seconds since 1970.
        started: what.
        protocol: by a request of which protocol.
        principal: who asked, None where nobody has to prove anything.
        address: from where, None for a pipe.
        host: what the client calls itself, None where it does not say.
        outcome: how the request ended that asked for it.
        milliseconds: how long that took, None while it goes on.
    """

    time: float
    started: RunFile
    protocol: str
    principal: str | None
    address: str | None
    host: str | None
    outcome: str = UNFINISHED
    milliseconds: float | None = None


class Who(NamedTuple):
    """What distinguishes clients."""

    principal: str | None
    address: str | None
    host: str | None
    protocol: str
    era: str | None


class ActiveClient(NamedTuple):
    """Somebody who asked something.

    Attributes:
        who: who, how and from where.
        first: when first, in seconds since 1970.
        last: when last.
        requests: how many requests.
        refused: how many of them were refused or failed.
        method: the last one.
    """

    who: Who
    first: float
    last: float
    requests: int
    refused: int
    method: str


class Activity:
    """The latest runs and clients. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: OrderedDict[tuple[object, ...], ScriptRun] = OrderedDict()
        self._clients: OrderedDict[Who, ActiveClient] = OrderedDict()

    def start(self, events: Events) -> Callable[[], None]:
        """Take every event of a server from now on. Returns a function that ends that."""
        return events.subscribe(self.take)

    def take(self, event: Event) -> None:
        """Keep what an event tells."""
        if event.protocol == CATALOGUE:
            return
        with self._lock:
            for use in event.uses:
                if use.action == "run":
                    self._note_run(event, RunFile(*use[1:]))
            if event.outcome != UNFINISHED:
                self._note_client(event)

    def runs(self) -> list[ScriptRun]:
        """Return the latest runs, the last one first."""
        with self._lock:
            return [*reversed(self._runs.values())]

    def clients(self) -> list[ActiveClient]:
        """Return the latest clients, the one that asked last first."""
        with self._lock:
            return [*reversed(self._clients.values())]

    def _note_run(self, event: Event, started: RunFile) -> None:
        # A request has two events, when it starts a run and at its end; both say when it began.
        request = event.time, event.protocol, event.method, event.principal, event.address, started
        known = self._runs.get(request)
        if known is None:
            known = ScriptRun(event.time, started, event.protocol, event.principal, event.address, event.host)
            _keep(self._runs, request, known, MOST_RUNS)
        if event.outcome != UNFINISHED:
            self._runs[request] = known._replace(outcome=event.outcome, milliseconds=event.milliseconds)

    def _note_client(self, event: Event) -> None:
        who = Who(event.principal, event.address, event.host, event.protocol, event.era)
        went_well = event.outcome in {"ok", "cancelled"}
        known = self._clients.get(who)
        now = ActiveClient(
            who,
            first=event.time if known is None else known.first,
            last=event.time,
            requests=1 + (0 if known is None else known.requests),
            refused=int(not went_well) + (0 if known is None else known.refused),
            method=event.method,
        )
        _keep(self._clients, who, now, MOST_CLIENTS)


def _keep(among: OrderedDict[_K, _V], key: _K, value: _V, most: int) -> None:
    """Put a value last; beyond `most` the first one goes."""
    among[key] = value
    among.move_to_end(key)
    if len(among) > most:
        among.popitem(last=False)
