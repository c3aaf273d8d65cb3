"""The measurements. Each takes a Bench, alternates ours and the floor, and yields rows.

Nothing here asserts a time or a size: a busy machine is no failure.
"""

from __future__ import annotations

import gc
import json
import shutil
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter, sleep
from typing import Any, Final

from bench.bare import bare_scan
from bench.client import ERAS, BenchError, Client, Era, floor, ours
from bench.generate import generate, questions, skill_name
from bench.report import Row
from mcp_skills_server.catalog.index import Index
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.model import Standing

LIST_CHANGED: Final = "notifications/skills/list_changed"
_QUIET_S: Final = 0.25
_YOUNG_S: Final = 2.5
"""No index keeps the signature of a file that is younger at its scan."""
_MS: Final = 1e3
_KB: Final = 1e3
_MB: Final = 1e6
_ROUND: Final = 25
"""Requests to one side before the other has its turn."""


@dataclass(frozen=True, slots=True)
class _First:
    """What one first full listing told."""

    seconds: float
    floor_seconds: float
    rss: int
    empty_rss: int
    floor_rss: int


@dataclass
class Bench:
    """One size to measure at, with the folders for it.

    Attributes:
        size: how many skills.
        quick: fewer repeats.
        scratch: a temporary directory.
    """

    size: int
    quick: bool
    scratch: Path
    _first: list[_First] = field(default_factory=list[_First])

    def __post_init__(self) -> None:
        self.scratch = self.scratch.resolve()
        self.root = self.scratch / f"skills-{self.size}"
        self.empty = self.scratch / "empty"
        self.empty.mkdir(exist_ok=True)
        generate(self.root, self.size)

    def close(self) -> None:
        """Remove the folder of skills."""
        shutil.rmtree(self.root)

    def some(self, usual: int, quick: int) -> int:
        """How often to repeat."""
        return quick if self.quick else usual

    def firsts(self) -> list[_First]:
        """First full listings, measured once and told in two places: time and memory."""
        if not self._first:
            self._first = [self._first_listing() for _ in range(self.some(3, 1))]
        return self._first

    def constants(self, answers: dict[str, Any]) -> Path:
        """A file with constants for the floor."""
        path = self.scratch / "constants.json"
        path.write_text(json.dumps(answers), encoding="utf-8")
        return path

    def _first_listing(self) -> _First:
        with ours(self.empty, "legacy") as client:
            client.shake_hands()
            client.say_initialized()
            client.ask("skills/list", {})
            empty_rss = client.rss()
        with ours(self.root, "legacy") as client:
            client.shake_hands()
            seconds, first, pages = list_all(client, self.size)
            rss = client.rss()
        with floor("legacy", self.constants({"skills/list": {**first, "nextCursor": "x"}})) as client:
            client.shake_hands()
            floor_seconds, _, _ = list_all(client, None, pages)
            floor_rss = client.rss()
        return _First(seconds, floor_seconds, rss, empty_rss, floor_rss)


def list_all(
    client: Client, size: int | None, pages: int = -1, method: str = "skills/list"
) -> tuple[float, dict[str, Any], int]:
    """Every page, or so many of them: seconds, the first page and how many there were."""
    start = perf_counter()
    client.say_initialized()
    lines: list[bytes] = []
    cursor: dict[str, Any] = {}
    while True:
        lines.append(client.time(client.prepare(method, cursor))[1])
        # Only the end of a page is looked at while the clock runs.
        found = lines[-1].rfind(b'"nextCursor":"')
        if found < 0 or len(lines) == pages:
            break
        cursor = {"cursor": lines[-1][found + 14 : lines[-1].index(b'"', found + 14)].decode()}
    seconds = perf_counter() - start
    if size is not None:
        reported = sum(len(json.loads(line)["result"]["skills"]) for line in lines)
        if reported != size:
            raise BenchError(f"{reported} skills were listed, {size} are there")
    return seconds, json.loads(lines[0])["result"], len(lines)


def cold_start(bench: Bench) -> Iterator[Row]:
    """From the start of the process to the answer of the first request."""
    runs = bench.some(7, 2)
    for era in ERAS:
        mine: list[float] = []
        bare: list[float] = []
        for _ in range(runs):
            mine.append(_handshake(ours(bench.root, era)))
            bare.append(_handshake(floor(era)))
        first = "initialize" if era == "legacy" else "server/discover"
        yield Row(f"cold start to {first}", bench.size, runs, median(mine) * _MS, median(bare) * _MS, "ms", 1.2)


def _handshake(client: Client) -> float:
    with client:
        client.shake_hands()
        return perf_counter() - client.started


def first_listing(bench: Bench) -> Iterator[Row]:
    """From `initialize` answered to the last page; the floor answers as many pages with one constant."""
    firsts = bench.firsts()
    mine = median(each.seconds for each in firsts) * _MS
    bare = median(each.floor_seconds for each in firsts) * _MS
    yield Row("first full listing", bench.size, len(firsts), mine, bare, "ms")


def requests(bench: Bench) -> Iterator[Row]:
    """Warm requests in both eras, beside the floor answering the very same bytes."""
    for era in ERAS:
        with ours(bench.root, era) as mine:
            mine.shake_hands()
            list_all(mine, bench.size)
            asked = questions(bench.size)
            constants = {key: mine.ask(*request) for key, request in asked.items()}
            with floor(era, bench.constants(constants)) as bare:
                bare.shake_hands()
                bare.say_initialized()
                for key, what, count in (
                    ("skills/list", "skills/list, a page", bench.some(200, 50)),
                    ("skills/get name", "skills/get by name", bench.some(600, 100)),
                    ("skills/get uri", "skills/get by uri", bench.some(600, 100)),
                    ("resources/read", "resources/read", bench.some(600, 100)),
                ):
                    prepared = [mine.prepare(*asked[key])]
                    yield from _pair(bench, (mine, bare), f"{what}, {era}", prepared, count=count, tail=era == "legacy")
                if era == "legacy":
                    names = [skill_name((bench.size // 2 + number) % bench.size) for number in range(bench.size)]
                    each = [mine.prepare("skills/get", {"name": name}) for name in names]
                    what = "skills/get by name, another each time, legacy"
                    yield from _pair(bench, (mine, bare), what, each, count=bench.some(600, 100), tail=False)


def _pair(
    bench: Bench, sides: tuple[Client, Client], what: str, asked: list[bytes], *, count: int, tail: bool
) -> Iterator[Row]:
    """Requests to one side and the other in turn; their middle and, with `tail`, the slowest hundredth."""
    mine, bare = sides
    for _ in range(20):
        if len(mine.time(asked[0])[1]) - len(bare.time(asked[0])[1]) not in range(-64, 64):
            raise BenchError(f"{what}: the floor's answer is not of the same size")
    times: tuple[list[float], list[float]] = ([], [])
    while len(times[0]) < count:
        for _ in range(_ROUND):
            times[0].append(mine.time(asked[len(times[0]) % len(asked)])[0])
        times[1].extend(bare.time(asked[0])[0] for _ in range(_ROUND))
    count = len(times[0])
    middle = [median(each) * _MS for each in times]
    # A skill that nobody has asked for is read and parsed first: work that the floor has no like of, so no goal.
    goal = 1.3 if len(asked) == 1 else None
    yield Row(f"{what}, p50", bench.size, count, middle[0], middle[1], "ms", goal)
    if tail:
        slow = [sorted(each)[round(0.99 * (count - 1))] * _MS for each in times]
        yield Row(f"{what}, p99", bench.size, count, slow[0], slow[1], "ms", 1.3)


def memory(bench: Bench) -> Iterator[Row]:
    """What our server holds after its first full listing."""
    firsts = bench.firsts()
    n = len(firsts)
    rss = median(each.rss for each in firsts)
    per_skill = median(each.rss - each.empty_rss for each in firsts) / bench.size / _KB
    bare = median(each.floor_rss for each in firsts)
    yield Row("memory after the listing (RSS)", bench.size, n, rss / _MB, bare / _MB, "MB")
    # A few pages more or less say nothing about a skill when there are ten of them.
    yield Row("memory for each skill", bench.size, n, per_skill, None, "kB", most=10 if bench.size >= 500 else None)


def scan(bench: Bench) -> Iterator[Row]:
    """The first scan in this process, beside a bare walk."""
    runs = bench.some(5, 3)
    bare_scan(str(bench.root))
    mine: list[float] = []
    bare: list[float] = []
    for _ in range(runs):
        registry = Registry([bench.root])
        gc.collect()
        mine.append(_timed(registry.load))
        if len(registry.snapshot.skills) != bench.size:
            raise BenchError("the scan found too few skills")
        del registry
        bare.append(_timed(lambda: bare_scan(str(bench.root))))
    goal = 3.0 if bench.size >= 10_000 else None
    yield Row("first scan", bench.size, runs, median(mine) * _MS, median(bare) * _MS, "ms", goal)


def index(bench: Bench) -> Iterator[Row]:
    """All that a listing wants of the disk: cold beside a walk that hashes, with an index beside one that stats."""
    sleep(_YOUNG_S)
    runs = bench.some(5, 3)
    root, files = str(bench.root), Index(bench.scratch / f"index-{bench.size}", least=1)
    times: tuple[list[float], list[float], list[float], list[float]] = ([], [], [], [])
    for _ in range(runs):
        cold, warm = Registry([bench.root], index=files), Registry([bench.root], index=files)
        files.path(cold.roots[0].path).unlink(missing_ok=True)
        gc.collect()
        times[0].append(_timed(cold.load) + _timed(partial(_hash_all, cold)))
        times[1].append(_timed(partial(bare_scan, root, None, hashes=True)))
        cold.keep_index(lambda: False)
        del cold
        gc.collect()
        times[2].append(_timed(warm.load))
        times[3].append(_timed(partial(bare_scan, root, ())))
        if len(warm.snapshot.skills) != bench.size:
            raise BenchError("the scan found too few skills")
        del warm
    mine, hashing, again, walking = (median(each) * _MS for each in times)
    yield Row("first scan and every digest", bench.size, runs, mine, hashing, "ms", 1.5)
    yield Row("first scan over an index", bench.size, runs, again, walking, "ms", 1.5)


def _hash_all(registry: Registry) -> None:
    for skill in registry.snapshot.skills.values():
        registry.hash_files(skill)


def refresh(bench: Bench) -> Iterator[Row]:
    """One edited skill, beside the same in a folder of ten."""
    runs = bench.some(100, 30)
    small = bench.scratch / "ten"
    generate(small, 10)
    try:
        registries = [(Registry([root]), str(root / skill_name(5) / "SKILL.md")) for root in (bench.root, small)]
        for registry, _ in registries:
            registry.load()
            registry.snapshot.paths(Standing.VALID)  # as in a server that has listed them
        times: tuple[list[float], list[float]] = ([], [])
        for _ in range(runs):
            for (registry, path), mine in zip(registries, times, strict=True):
                with open(path, "a", encoding="utf-8") as file:
                    file.write("One line more.\n")
                start = perf_counter()
                changes = registry.refresh([path])
                mine.append(perf_counter() - start)
                if not changes:
                    raise BenchError("the edit was not seen")
    finally:
        shutil.rmtree(small)
    both = [median(each) * _MS for each in times]
    yield Row("refresh of one edited skill", bench.size, runs, both[0], both[1], "ms", 2.0)


def notification(bench: Bench) -> Iterator[Row]:
    """From the end of a write to the notification in the client's hands."""
    runs = bench.some(20, 4)
    for era in ERAS:
        times: list[float] = []
        with _following(bench.root, era) as client:
            for number in range(runs):
                path = bench.root / skill_name(number * 7 % bench.size) / "SKILL.md"
                with open(path, "a", encoding="utf-8") as file:
                    file.write("One line more.\n")
                start = perf_counter()
                times.append(client.wait_for(LIST_CHANGED) - start)
                client.drain(_QUIET_S)
        yield Row(f"change to notification, {era}, p50", bench.size, runs, median(times) * _MS, None, "ms", most=150)
        yield Row(f"change to notification, {era}, max", bench.size, runs, max(times) * _MS, None, "ms")


@contextmanager
def _following(root: Path, era: Era) -> Generator[Client]:
    """A client that has listed everything, follows changes and has heard nothing for a while."""
    with ours(root, era) as client:
        client.shake_hands()
        list_all(client, None)
        if era == "modern":
            client.send(client.prepare("subscriptions/listen", {"notifications": {"skillsListChanged": True}}))
            client.wait_for("notifications/subscriptions/acknowledged")
        sleep(_QUIET_S)
        client.drain(_QUIET_S)
        yield client


def _timed(work: Callable[[], object]) -> float:
    start = perf_counter()
    work()
    return perf_counter() - start


ALL: Final[dict[str, Callable[[Bench], Iterator[Row]]]] = {
    "cold": cold_start,
    "listing": first_listing,
    "requests": requests,
    "memory": memory,
    "scan": scan,
    "index": index,
    "refresh": refresh,
    "notification": notification,
}
