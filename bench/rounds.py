"""Rounds of visits: in each round every server is started, measured and stopped once, in rotating order."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, Final

from bench import costs, wrk
from bench.client import ERAS, BenchError, Client, Era, HttpClient, StdioClient, result_of
from bench.generate import generate, questions, skill_name
from bench.subjects import OURS, STDIO_ONLY, Start, Subject, with_recorder

TRANSPORTS: Final = ("stdio", "HTTP")
WALK: Final = "stat-walk"
"""The key of the floor without a server: one walk that stats every file."""
_BUDGET_S: Final = 2.0
"""Seconds after which a visit sends no more requests of one kind, to bound slow servers."""
_EDITS: Final = 5
_RECORDS: Final = 10
_QUIET_S: Final = 0.25
_MS: Final = 1e3
_MB: Final = 1e6


@dataclass(frozen=True, slots=True)
class Series:
    """The visits to a server in one era, over one transport, with one size of catalogue.

    Attributes:
        subject: its key.
        visits: the figures by key, one mapping for each round.
        failure: the error of a failed visit, if any.
    """

    subject: str
    era: Era
    transport: str
    size: int
    visits: list[dict[str, float]] = field(default_factory=list[dict[str, float]])
    failure: list[str] = field(default_factory=list[str])

    def figure(self, key: str) -> float | None:
        """Return the median over the rounds, or None if this server has no such figure."""
        found = [visit[key] for visit in self.visits if key in visit]
        return median(found) if found else None


class Skills:
    """A folder of skills and the floor's constants for it. Leaving the context removes it."""

    def __init__(self, size: int, ours: Subject) -> None:
        self.size = size
        self._scratch = Path(tempfile.mkdtemp(prefix="skills-bench-")).resolve()
        self.root = self._scratch / "skills"
        say(f"{size:,} skills: writing them")
        generate(self.root, size)
        for era in ERAS:
            self._record(ours, era)

    def __enter__(self) -> Skills:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._scratch)

    def client(self, subject: Subject, era: Era, transport: str) -> Client:
        """Start a server with the kept cache or an empty one."""
        cache = self._scratch / "kept" if subject.keeps_cache else Path(tempfile.mkdtemp(dir=self._scratch))
        homes = {name: str(cache) for name in ("XDG_CACHE_HOME", "XDG_STATE_HOME")}
        environment = {**os.environ, **homes, "PYTHONDONTWRITEBYTECODE": ""}
        constants = self._scratch / f"{era}.json"
        if transport == "stdio":
            return StdioClient(subject.command(Start(self.root, constants)), era, environment)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        return HttpClient(subject.command(Start(self.root, constants, port)), era, port, environment)

    def record(self, subject: Subject, era: Era) -> dict[str, float]:
        """Return how many modules of this server, and how many of its ASGI layers, answer a `skills/get`."""
        file = self._scratch / "recorded.json"
        request = questions(self.size, 1)["get"][0]
        with self.client(with_recorder(subject, file), era, "HTTP") as client:
            assert isinstance(client, HttpClient)
            client.open()
            list_all(client, self.size, None)
            for _ in range(_RECORDS):
                client.signal(signal.SIGUSR1)
                for _ in range(3):  # a record may lack what follows the last response
                    client.request(*request)
                client.signal(signal.SIGUSR2)
                client.request(*request)
        recorded = json.loads(file.read_bytes())
        return {key: len(names) for key, names in recorded.items()}

    def walk(self) -> float:
        start = perf_counter()
        folders = [str(self.root)]
        while folders:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                    else:
                        entry.stat(follow_symlinks=False)
        return (perf_counter() - start) * _MS

    def _record(self, ours: Subject, era: Era) -> None:
        with self.client(ours, era, "stdio") as client:
            client.open()
            requested = {each[0][0]: each[0][1] for each in questions(self.size, 1).values()}
            answers = {method: client.request(method, params) for method, params in requested.items()}
        answers["skills/list"]["nextCursor"] = "x"
        (self._scratch / f"{era}.json").write_text(json.dumps(answers), encoding="utf-8")


def visit(skills: Skills, subject: Subject, era: Era, transport: str, requests: int) -> dict[str, float]:
    """Start a server, measure and stop it; return the figures by key (see `report.MEASURES`).

    Raises:
        BenchError, TimeoutError: the server did not answer as it should.
    """
    with skills.client(subject, era, transport) as client:
        cold = client.open()
        pages = -(-skills.size // 50) if subject.is_constant else None
        figures = {"cold": cold * _MS, "catalogue": (cold + list_all(client, skills.size, pages)) * _MS}
        figures["resident"] = client.resident() / _MB
        requested = {
            key: [client.prepare(*each) for each in rows] for key, rows in questions(skills.size, requests).items()
        }
        for key, prepared in requested.items():
            result_of(client.time(prepared[-1])[1])  # raise for an error, which would be fast
            turns = prepared * (requests // len(prepared) + 1)
            times = _times(client, turns[:requests])
            figures[key], figures[f"{key} p99"] = median(times) * _MS, times[round(0.99 * (len(times) - 1))] * _MS
            if key == "page":
                continue
            count = max(1, min(20 * requests, int(_BUDGET_S / median(times))))
            if isinstance(client, StdioClient):
                figures[f"{key}s"] = client.rate(prepared, count)
            elif isinstance(client, HttpClient):
                load = client.load(prepared, count)
                figures[f"{key}s"], figures[f"{key} processor"] = load.rate, load.processor * _MS
                if wrk.is_installed():
                    figures[f"{key}s wrk"] = wrk.rate(client, prepared, _BUDGET_S if requests > 50 else 1)
        if subject.notifies and isinstance(client, StdioClient):
            figures["notice"] = median(_notices(client, skills.root)) * _MS
        if subject.key == OURS and isinstance(client, HttpClient):
            figures |= costs.measure(client, skills.size, requests)
    if subject.key == OURS and transport == "HTTP":
        figures |= skills.record(subject, era)
    return figures


def list_all(client: Client, size: int, pages: int | None) -> float:
    """Return the seconds for all pages; for constants, the one page as many times."""
    seconds, seen, number, cursor = 0.0, 0, 0, dict[str, Any]()
    while True:
        took, answer = client.time(client.prepare("skills/list", cursor))
        page = result_of(answer)
        seconds, seen, number = seconds + took, seen + len(page["skills"]), number + 1
        if number == pages if pages else "nextCursor" not in page:
            break
        cursor = {} if pages else {"cursor": page["nextCursor"]}
    if not pages and seen != size:
        raise BenchError(f"{seen} skills were listed, {size} are there")
    return seconds


def _times(client: Client, prepared: Sequence[bytes]) -> list[float]:
    start = perf_counter()
    times: list[float] = []
    for each in prepared:
        times.append(client.time(each)[0])
        if perf_counter() - start > _BUDGET_S:
            break
    return sorted(times)


def _notices(client: StdioClient, root: Path) -> Iterator[float]:
    """Edit a skill a few times; yield the seconds from each write to its notification."""
    if client.era == "modern":
        client.send(client.prepare("subscriptions/listen", {"notifications": {"skillsListChanged": True}}))
        client.wait_for("notifications/subscriptions/acknowledged")
    for _ in range(_EDITS):
        client.drain(_QUIET_S)
        with (root / skill_name(0) / "SKILL.md").open("a", encoding="utf-8") as file:
            file.write("One line more.\n")
        start = perf_counter()
        yield client.wait_for("notifications/skills/list_changed") - start


def run(
    skills: Skills, subjects: Sequence[Subject], *, transports: Sequence[str], rounds: int, requests: int
) -> list[Series]:
    """Visit every subject in each of its eras once a round; those of `STDIO_ONLY` not over HTTP."""
    turns: list[tuple[Series, Callable[[], dict[str, float]]]] = []
    for transport in transports:
        for era in ERAS:
            for each in subjects:
                if era in each.eras and not (each.key in STDIO_ONLY and transport == "HTTP"):
                    series = Series(each.key, era, transport, skills.size)
                    requested = (skills, each, era, transport, requests)
                    turns.append((series, lambda requested=requested: visit(*requested)))
    turns += [(Series(WALK, era, "stdio", skills.size), lambda: {"catalogue": skills.walk()}) for era in ERAS]
    for number in range(rounds):
        shift = number * len(turns) // rounds
        for series, turn in turns[shift:] + turns[:shift]:
            if series.failure:
                continue
            where = f"{series.subject}, {series.transport}, {series.era}"
            say(f"{skills.size:,} skills, round {number + 1} of {rounds}: {where}")
            try:
                series.visits.append(turn())
            except (BenchError, TimeoutError, OSError, ValueError, KeyError) as error:
                if series.subject == OURS:
                    raise
                series.failure.append(" ".join(f"{type(error).__name__}: {error}".split())[:300])
    return [series for series, _ in turns]


def say(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)
