"""What is going on: the latest runs of scripts and the clients that asked something. A reader of events.

It keeps a bounded number of each in memory, and only where there is a page to show them. Nothing of what was said or
answered is in an event, so nothing of it is here. Of several processes each keeps its own where the others read it:
when one ends, its clients are gone with it, and its runs stay.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import suppress
from heapq import nlargest
from operator import attrgetter
from typing import Any, Final, Generic, NamedTuple, TypeVar

from mcp_skills_server.errors import UsageError
from mcp_skills_server.telemetry import later
from mcp_skills_server.telemetry.events import CATALOGUE, Event
from mcp_skills_server.web.workers.channel import KINDS, Post, kept_path
from mcp_skills_server.web.workers.records import Records, read_records

MOST_RUNS: Final = 500
MOST_CLIENTS: Final = 500
UNFINISHED: Final = "begun"
"""The outcome of a run that goes on."""
UNKNOWN: Final = "unknown"
"""The outcome of a run whose process ended before it did."""


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


class Run(NamedTuple):
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


class Client(NamedTuple):
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


_K = TypeVar("_K", bound=Hashable)
_V = TypeVar("_V", Run, Client)


class _Latest(Generic[_K, _V]):
    """A bounded number of values; a new one takes the slot of the one that was put longest ago.

    Args:
        most: how many.
        records: where each is written too; None for nowhere.
    """

    def __init__(self, most: int, records: Records | None) -> None:
        self._most = most
        self._records = records
        self._slots: OrderedDict[_K, tuple[int, _V]] = OrderedDict()
        self._unwritten: set[_K] = set()

    def __iter__(self) -> Iterator[_V]:
        return (value for _, value in self._slots.values())

    def get(self, key: _K) -> _V | None:
        """The value of a key; None where there is none."""
        known = self._slots.get(key)
        return None if known is None else known[1]

    def put(self, key: _K, value: _V, *, is_last: bool = True) -> None:
        """Keep a value in place of that of its key; with `is_last` as the one that was put last."""
        known = self._slots.get(key)
        if known is not None:
            slot = known[0]
        elif len(self._slots) < self._most:
            slot = len(self._slots)
        else:
            _, (slot, _) = self._slots.popitem(last=False)
        self._slots[key] = slot, value
        if is_last:
            self._slots.move_to_end(key)
        if self._records is not None:
            self._unwritten.add(key)

    def write(self) -> None:
        """Write what was put since the last time."""
        for key in self._unwritten:
            known = self._slots.get(key)
            if known is not None and self._records is not None:
                self._records.put(*known)
        self._unwritten.clear()


class Activity:
    """The latest runs and clients. Any thread may use it.

    Args:
        post: which of several processes this is; None for the only one.

    Raises:
        UsageError: there is no place for what the processes share.
    """

    def __init__(self, post: Post | None = None) -> None:
        self._lock = threading.Lock()
        self._post = post
        runs = clients = None
        left: list[Run] = []
        if post is not None:  # those of the process that was here before, whose clients went with it
            left = sorted(_runs_of(post, post.number), key=attrgetter("time"))
            runs, clients = (_emptied(kept_path(post.paths, kind, post.number)) for kind in KINDS)
        self._runs: _Latest[tuple[object, ...], Run] = _Latest(MOST_RUNS, runs)
        self._clients: _Latest[Who, Client] = _Latest(MOST_CLIENTS, clients)
        for run in left:
            self._runs.put(run, run)
        self._runs.write()

    def start(self) -> Callable[[], None]:
        """Take every event from now on, within a moment. Returns what ends that."""
        return later.subscribe(self.take)

    def take(self, events: Iterable[Event]) -> None:
        """Keep what events tell."""
        with self._lock:
            for event in events:
                if event.protocol == CATALOGUE:
                    continue
                for use in event.uses:
                    if use.action == "run":
                        self._note_run(event, RunFile(*use[1:]))
                if event.outcome != UNFINISHED:
                    self._note_client(event)
            self._runs.write()
            self._clients.write()

    def runs(self) -> list[Run]:
        """The latest runs of all processes, the last one first. Reads files where there are several."""
        later.drain()
        return nlargest(MOST_RUNS, self._all(self._runs, _runs_of), key=attrgetter("time"))

    def clients(self) -> list[Client]:
        """The clients of all processes, the one that asked last first. Reads files where there are several."""
        later.drain()
        found: dict[Who, Client] = {}
        for each in self._all(self._clients, _clients_of):
            known = found.get(each.who)
            found[each.who] = each if known is None else _merged(*sorted((known, each), key=attrgetter("last")))
        return nlargest(MOST_CLIENTS, found.values(), key=attrgetter("last"))

    def _all(self, own: _Latest[Any, _V], read: Callable[[Post, int], Iterator[_V]]) -> Iterable[_V]:
        """What this process keeps, or where there are several what each of them does."""
        post = self._post
        if post is not None:
            return (each for number in range(post.count) for each in read(post, number))
        with self._lock:
            return [*reversed([*own])]

    def _note_run(self, event: Event, started: RunFile) -> None:
        # A request has two events, when it starts a run and at its end; both say when it began.
        request = event.time, event.protocol, event.method, event.principal, event.address, started
        known = self._runs.get(request)
        if known is None:
            known = Run(event.time, started, event.protocol, event.principal, event.address, event.host)
            self._runs.put(request, known)
        if event.outcome != UNFINISHED:
            ended = known._replace(outcome=event.outcome, milliseconds=event.milliseconds)
            self._runs.put(request, ended, is_last=False)

    def _note_client(self, event: Event) -> None:
        who = Who(event.principal, event.address, event.host, event.protocol, event.era)
        went_well = event.outcome in {"ok", "cancelled"}
        now = Client(who, event.time, event.time, 1, int(not went_well), event.method)
        known = self._clients.get(who)
        self._clients.put(who, now if known is None else _merged(known, now))


def _merged(one: Client, other: Client) -> Client:
    """The same client, as two say that know a part of its requests. The other is right about the last one."""
    return Client(
        one.who,
        min(one.first, other.first),
        max(one.last, other.last),
        one.requests + other.requests,
        one.refused + other.refused,
        other.method,
    )


def _emptied(path: str) -> Records:
    """The file of a process that begins.

    Raises:
        UsageError: it cannot be made.
    """
    try:
        return Records(path)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written ({error.strerror}); make space there") from None


def _clients_of(post: Post, number: int) -> Iterator[Client]:
    for fields in read_records(kept_path(post.paths, "clients", number)):
        with suppress(TypeError, ValueError):
            who, *rest = fields
            yield Client(Who(*who), *rest)


def _runs_of(post: Post, number: int) -> Iterator[Run]:
    """What the process of this number has run, and those that had the number before it."""
    is_there = os.path.exists(kept_path(post.paths, "clients", number))
    for fields in read_records(kept_path(post.paths, "runs", number)):
        with suppress(TypeError, ValueError):
            time, started, *rest = fields
            run = Run(time, RunFile(*started), *rest)
            yield run if is_there or run.outcome != UNFINISHED else run._replace(outcome=UNKNOWN)
