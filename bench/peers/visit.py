"""One visit: a server is started, asked everything once and ended. Rounds of visits make the figures."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from time import perf_counter, sleep
from types import TracebackType
from typing import Any, Final

from bench.client import REPOSITORY, BenchError, Client, Era, resident
from bench.generate import each_once, questions
from bench.http import Load, modern_request
from bench.measure import list_all
from bench.peers.subjects import Start, Subject

PAGE: Final = 50
PATIENCE_S: Final = 300.0
BUDGET_S: Final = 2.0
"""After so long no more requests of one kind are sent in a visit, so that a slow server does not take the day."""
_SLOW_S: Final = 0.1
"""What takes longer needs no warming, and cannot be had often."""
_WARMING: Final = 9
_CONNECTIONS: Final = 32
_MS: Final = 1e3
_MB: Final = 1e6


@dataclass(frozen=True, slots=True)
class Times:
    """Requests of one kind: how many, and their middle and slowest hundredth in ms."""

    n: int
    p50: float
    p99: float


@dataclass(frozen=True, slots=True)
class Waits:
    """The requests that the limit is compared by, as in `Visit`."""

    get: Times | None
    read: Times
    get_each: Times | None
    read_each: Times


@dataclass(frozen=True, slots=True)
class Visit:
    """The figures of one visit; None is what this server has not.

    Attributes:
        cold: ms from the start of the process to the answer of the first request.
        catalogue: ms from the start of the process to the last page of the skills.
        tools: ms from the start of the process to the answer of the first `tools/list`.
        entries: how many entries the first page has.
        page: the first page, again and again.
        get: `skills/get` of one skill.
        read: `resources/read` of one file of 2.7 kB.
        gets: `skills/get` a second: over stdio up to 64 unanswered, over HTTP on 32 connections.
        reads: `resources/read` a second, likewise.
        resident: MB in memory after the catalogue.
        get_each, read_each: the same of one skill after the other, none of them twice; over stdio alone.
        on_one: the same with server and client on one processor; over stdio alone.
    """

    cold: float
    catalogue: float | None
    tools: float | None
    entries: int | None
    page: Times | None
    get: Times | None
    read: Times
    gets: float | None
    reads: float
    resident: float
    get_each: Times | None = None
    read_each: Times | None = None
    on_one: Waits | None = None

    def as_json(self) -> dict[str, Any]:
        """For the raw figures, with four digits that mean something."""
        return json.loads(json.dumps(asdict(self)), parse_float=lambda text: float(f"{float(text):.4g}"))


@dataclass(frozen=True, slots=True)
class Setting:
    """Among what a visit takes place.

    Attributes:
        root: the folder of skills.
        size: how many skills there are.
        constants: for the floors.
        requests: how many requests of a kind at most.
        cache: the user's cache of the process.
    """

    root: Path
    size: int
    constants: Path
    requests: int
    cache: Path

    @property
    def environment(self) -> dict[str, str]:
        """The variables of the process."""
        return {**os.environ, "XDG_CACHE_HOME": str(self.cache), "PYTHONDONTWRITEBYTECODE": ""}

    @property
    def pages(self) -> int:
        """How many pages the skills take."""
        return -(-self.size // PAGE)


def over_stdio(subject: Subject, era: Era, setting: Setting) -> Visit:
    """Visit over stdin and stdout.

    Raises:
        BenchError, TimeoutError: the server did not answer as it should.
    """
    command = subject.command(Start(setting.root, setting.constants))
    with Client(command, era, setting.environment, PATIENCE_S) as client:
        client.shake_hands()
        cold = perf_counter() - client.started
        asked = questions(setting.size)
        skills = era in subject.skills
        prepared = {key: client.prepare(*request) for key, request in asked.items()}
        catalogue = entries = None
        tools = None
        if subject.tools:  # as a host asks, before anything else
            client.say_initialized()
            client.ask("tools/list", {})
            tools = (perf_counter() - client.started) * _MS
        before = perf_counter() - client.started
        if skills:
            told = (None, setting.pages) if subject.constant else (setting.size, -1)
            seconds, first, _ = list_all(client, *told)
            catalogue, entries = (before + seconds) * _MS, len(first["skills"])
        elif not subject.skills:  # its skills are resources
            catalogue = (before + list_all(client, None, method="resources/list")[0]) * _MS
        memory = client.rss() / _MB

        def times(key: str) -> Times:
            client.ask(*asked[key])  # an error would be fast
            return _times(lambda: client.time(prepared[key])[0], setting.requests)

        def times_each(key: str, half: int) -> Times:
            *others, last = each_once(key, setting.size, 2 * setting.requests + 1)
            client.ask(*last)  # an error would be fast
            lines = [client.prepare(*request) for request in others[half::2] or [last]]
            turns = iter(lines)
            return _times(lambda: client.time(next(turns))[0], len(lines), warming=0)

        def rate(key: str, each: Times) -> float:
            count = _count(each, setting.requests * 5)
            return count / client.pipeline(prepared[key], count)

        # Before anything is asked twice.
        get_each = times_each("skills/get uri", 0) if skills else None
        read_each = times_each("resources/read", 0)
        with client.on_one_processor():
            get_next, read_next = times_each("skills/get uri", 1) if skills else None, times_each("resources/read", 1)
            again = times("skills/get uri") if skills else None
            on_one = Waits(again, times("resources/read"), get_next, read_next)
        page = times("skills/list") if skills else None
        get = times("skills/get uri") if skills else None
        read = times("resources/read")
        return Visit(
            cold=cold * _MS, catalogue=catalogue, tools=tools, entries=entries, page=page, get=get, read=read,
            gets=rate("skills/get uri", get) if get else None, reads=rate("resources/read", read), resident=memory,
            get_each=get_each, read_each=read_each, on_one=on_one,
        )  # fmt: skip


def over_http(subject: Subject, setting: Setting, load: Load) -> Visit:
    """Visit over HTTP in the modern era; one process of its own asks.

    Raises:
        BenchError: the server did not answer as it should.
    """
    asked = {key: modern_request(*request) for key, request in questions(setting.size).items()}
    with _Process(subject, setting) as server:
        server.wait()
        load.ask(server, [modern_request("server/discover", {})], 1)
        cold = perf_counter() - server.started
        # What passes between this process and the load is not the server's.
        seconds, first, pages, cursor = 0.0, dict[str, Any](), 0, dict[str, Any]()
        while True:
            told = load.ask(server, [modern_request("skills/list", cursor)], 1)
            seconds, pages = seconds + told.times[0], pages + 1
            page = result_of(told.answer)
            first = first or page
            if pages == setting.pages if subject.constant else not page.get("nextCursor"):
                break
            cursor = {} if subject.constant else {"cursor": page["nextCursor"]}
        memory = server.rss() / _MB

        def times(key: str) -> Times:
            told = load.ask(server, [asked[key]], 1)
            result_of(told.answer)
            if told.times[0] < _SLOW_S:
                load.ask(server, [asked[key]], _WARMING)
            count = max(1, min(setting.requests, int(BUDGET_S / told.times[0])))
            return times_of(load.ask(server, [asked[key]], count).times)

        def rate(key: str, each: Times) -> float:
            count = _count(each, setting.requests * 5)
            load.ask(server, [asked[key]] * _CONNECTIONS, _CONNECTIONS)
            return load.ask(server, [asked[key]] * _CONNECTIONS, count).rate

        page_times, get, read = times("skills/list"), times("skills/get uri"), times("resources/read")
        return Visit(
            cold=cold * _MS, catalogue=(cold + seconds) * _MS, tools=None, entries=len(first["skills"]),
            page=page_times, get=get, read=read, gets=rate("skills/get uri", get),
            reads=rate("resources/read", read), resident=memory,
        )  # fmt: skip


def result_of(answer: bytes) -> dict[str, Any]:
    """The result in a whole HTTP response: JSON, or an event stream with one event.

    Raises:
        BenchError: there is none.
    """
    head, _, body = answer.partition(b"\r\n\r\n")
    if b"chunked" in head.lower():
        whole, rest = b"", body
        while rest:
            length, _, rest = rest.partition(b"\r\n")
            whole, rest = whole + rest[: int(length, 16)], rest[int(length, 16) + 2 :]
        body = whole
    found = re.search(rb"^(?:data: *)?(\{.*\})\s*$", body, re.MULTILINE)
    told: dict[str, Any] = json.loads(found[1]) if found else {}
    if "result" not in told:
        raise BenchError(f"no result over HTTP: {answer[:300]!r}")
    return told["result"]


def times_of(seconds: Sequence[float]) -> Times:
    """Middle and slowest hundredth, in ms, of times in seconds."""
    ordered = sorted(seconds)
    return Times(len(ordered), median(ordered) * _MS, ordered[round(0.99 * (len(ordered) - 1))] * _MS)


def _times(ask: Callable[[], float], count: int, warming: int = _WARMING + 1) -> Times:
    if warming and ask() < _SLOW_S:
        for _ in range(warming - 1):
            ask()
    start = perf_counter()
    seconds: list[float] = []
    while len(seconds) < count and (not seconds or perf_counter() - start < BUDGET_S):
        seconds.append(ask())
    return times_of(seconds)


def _count(each: Times, most: int) -> int:
    """How many requests fit into the budget, if they take as long as one after the other."""
    return max(1, min(most, int(BUDGET_S / (each.p50 / _MS))))


class _Process:
    """A server process on a port of loopback that was free. Leaving the context ends it."""

    def __init__(self, subject: Subject, setting: Setting) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115, it lives as long as the process
        command = subject.command(Start(setting.root, setting.constants, self.port))
        self.started = perf_counter()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            cwd=REPOSITORY,
            env=setting.environment,
        )

    def __enter__(self) -> _Process:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()

    def wait(self) -> None:
        """Until it takes a connection.

        Raises:
            BenchError: it ended, or takes none in time.
        """
        while perf_counter() - self.started < PATIENCE_S:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            if self._process.poll() is not None:
                self._errors.seek(0)
                raise BenchError(f"the server ended: {self._errors.read()[-1000:].decode(errors='replace')}")
            sleep(0.001)
        raise BenchError("the server takes no connection")

    def rss(self) -> int:
        """Bytes of memory that the server holds now."""
        return resident(self._process.pid)
