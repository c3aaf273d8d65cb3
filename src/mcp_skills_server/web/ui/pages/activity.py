"""The latest runs of scripts and the clients that asked something, from events, for administrators.

A bounded number of each is kept in memory, and only where there is a page to show them. No event has anything of what
was said or answered.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any, Final, NamedTuple

from anyio import to_thread
from starlette.requests import Request
from starlette.responses import Response

from mcp_skills_server.telemetry.events import CATALOGUE, Event, Use
from mcp_skills_server.web.ui.look import Look

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
    """A client that asked something: its last request, the time of the first, and how many there were."""

    event: Event
    first: float
    requests: int
    refused: int


class Activity:
    """The latest runs and clients. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: OrderedDict[Any, ScriptRun] = OrderedDict()
        self._clients: OrderedDict[Any, ActiveClient] = OrderedDict()

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
        if request not in self._runs or event.outcome != UNFINISHED:
            self._runs[request] = ScriptRun(event, started)
        if len(self._runs) > MOST_RUNS:
            self._runs.popitem(last=False)

    def _note_client(self, event: Event) -> None:
        who = event.principal, event.address, event.host, event.protocol, event.era
        known = self._clients.pop(who, ActiveClient(event, event.time, 0, 0))
        refused = known.refused + (event.outcome not in {"ok", "cancelled"})
        self._clients[who] = ActiveClient(event, known.first, known.requests + 1, refused)
        if len(self._clients) > MOST_CLIENTS:
            self._clients.popitem(last=False)


async def runs(_: Request, look: Look) -> Response:
    """Return the latest runs. A skill that the viewer may not read is not named."""
    found = await to_thread.run_sync(look.site.activity.runs)
    skills = {each.started.skill for each in found}
    readable = {each for each in skills if not each or look.may_read(each)}
    return look.page("runs.html", runs=found, readable=readable)


async def clients(_: Request, look: Look) -> Response:
    """Return the latest clients."""
    return look.page("clients.html", clients=await to_thread.run_sync(look.site.activity.clients))
