"""What is going on: the latest runs of scripts and the clients that asked something. A reader of events.

It keeps a bounded number of each in memory, and only where there is a page to show them. Nothing of what was said or
answered is in an event, so nothing of it is here.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from mcp_skills_server.telemetry.events import CATALOGUE, Event, subscribe

MOST_RUNS: Final = 500
MOST_CLIENTS: Final = 500
UNFINISHED: Final = "begun"
"""The outcome of a run that goes on, or of which nobody says how it ended."""


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


@dataclass(frozen=True, slots=True)
class Run:
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


@dataclass(frozen=True, slots=True)
class Client:
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
        self._runs: OrderedDict[tuple[object, ...], Run] = OrderedDict()
        self._clients: OrderedDict[Who, Client] = OrderedDict()

    def start(self) -> Callable[[], None]:
        """Take every event from now on. Returns what ends that."""
        return subscribe(self.take)

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

    def runs(self) -> list[Run]:
        """The runs, the last one first."""
        with self._lock:
            return [*reversed(self._runs.values())]

    def clients(self) -> list[Client]:
        """The clients, the one that asked last first."""
        with self._lock:
            return [*reversed(self._clients.values())]

    def _note_run(self, event: Event, started: RunFile) -> None:
        # A request has two events, when it starts a run and at its end; both say when it began.
        request = event.time, event.protocol, event.method, event.principal, event.address, started
        known = self._runs.get(request)
        if known is None:
            self._runs[request] = Run(event.time, started, event.protocol, event.principal, event.address, event.host)
            if len(self._runs) > MOST_RUNS:
                self._runs.popitem(last=False)
        if event.outcome != UNFINISHED and request in self._runs:
            self._runs[request] = replace(self._runs[request], outcome=event.outcome, milliseconds=event.milliseconds)

    def _note_client(self, event: Event) -> None:
        who = Who(event.principal, event.address, event.host, event.protocol, event.era)
        known = self._clients.pop(who, None) or Client(who, event.time, event.time, 0, 0, "")
        went_well = event.outcome in {"ok", "cancelled"}
        self._clients[who] = Client(
            who,
            known.first,
            max(known.last, event.time),
            known.requests + 1,
            known.refused + (not went_well),
            event.method,
        )
        if len(self._clients) > MOST_CLIENTS:
            self._clients.popitem(last=False)
