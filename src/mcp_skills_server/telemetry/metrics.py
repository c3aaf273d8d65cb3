"""Counts and times for Prometheus: a reader of events, and a look at the catalogue when somebody asks.

Names and labels are those of OpenTelemetry's conventions for MCP (GenAI conventions 1.42, in development) where they
have one, in Prometheus' spelling, and `skills_` for the rest. A label has few values: what clients make up is "_OTHER".
"""

from __future__ import annotations

import logging
import os
import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Histogram, start_http_server, values
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.gc_collector import GCCollector
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from mcp_skills_server.errors import REPEATS
from mcp_skills_server.telemetry import later
from mcp_skills_server.telemetry.events import CATALOGUE, PAGE, Event, subscribe

logger = logging.getLogger(__name__)

_OTHER: Final = "_OTHER"
_MOST_SKILLS: Final = 1000
"""Skills that have a line of their own; what is done with further ones is counted together."""
_PID: Final = ".pid"
"""Ends the name of the file that says which process has a name now."""
_SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300)
"""What the conventions advise, and below it what a server that answers in a tenth of a millisecond needs."""

_MEANS_NOTHING: Final = (OSError, ValueError, TypeError, AttributeError, RuntimeError, struct.error)
"""What the library raises where a file of counts is not whole."""

Gauges = Callable[[], Mapping[str, tuple[str, float]]]
"""By name what it is, in words, and its value now."""


class Part(NamedTuple):
    """Which part of the counts of several processes is that of this one.

    Attributes:
        folder: where each process keeps its counts, in files.
        name: what its files are named after. Whoever has the name later goes on from there, so that no count that was
            shown ever becomes less.
        follows: whether it counts what happens to the catalogue, which all of them see.
    """

    folder: str
    name: str
    follows: bool


class Metrics:
    """All metrics of one process, or of several.

    Args:
        gauges: what is looked at when somebody asks.
        methods: the methods that have a line of their own.
        part: of several processes, what is this one's. What is shown then is the sum of all, and what the system says
            of each.

    Attributes:
        registry: what is shown.
    """

    def __init__(self, gauges: Gauges, methods: Collection[str], part: Part | None = None) -> None:
        self._methods = frozenset(methods)
        self._is_part = part is not None
        self._follows = part is None or part.follows
        self.registry = CollectorRegistry()
        self.registry.register(_Now(gauges))
        counts = self.registry
        if part is None:
            for collector in (ProcessCollector, PlatformCollector, GCCollector):
                collector(registry=self.registry)
        else:
            _keep_in_files(part)
            counts = CollectorRegistry()
            self.registry.register(_Counts(part.folder))
            self.registry.register(_Processes(part.folder))
        self._operations = Histogram(
            "mcp_server_operation_duration_seconds",
            "Seconds from a request of MCP to its answer.",
            ("mcp_method_name", "error_type"),
            buckets=_SECONDS,
            registry=counts,
        )
        self._others = Histogram(
            "skills_operation_duration_seconds",
            "Seconds from a request of another protocol to its answer.",
            ("protocol", "method", "error_type"),
            buckets=_SECONDS,
            registry=counts,
        )
        self._uses = Counter(
            "skills_uses",
            "How often a skill was loaded, a file of it read, a script of it run, or it was dropped unused.",
            ("action", "skill"),
            registry=counts,
        )
        self._searches = Counter(
            "skills_searches",
            "Searches for skills, and those that found none.",
            ("result",),
            registry=counts,
        )
        for result in ("found", "nothing"):
            self._searches.labels(result)
        self._bytes = Counter("skills_read_bytes", "Bytes of skill files that were read.", registry=counts)
        self._refused = Counter(
            "skills_refused_requests",
            "Requests that were refused before any protocol.",
            ("reason",),
            registry=counts,
        )
        self._changes = Counter(
            "skills_catalogue_changes",
            "Skills that appeared, changed or vanished.",
            ("change",),
            registry=counts,
        )
        self._skills: set[str] = set()

    def start(self) -> Callable[[], None]:
        """Count every event from now on. Returns what ends that."""
        if self._is_part:  # another process shows it, and cannot have this one count what waits
            return subscribe(self.take)
        return later.subscribe(self.take_all)

    def take_all(self, events: Iterable[Event]) -> None:
        """Count events."""
        for event in events:
            self.take(event)

    def take(self, event: Event) -> None:
        """Count an event."""
        if event.protocol == CATALOGUE:
            if self._follows:
                self._changes.labels(event.outcome).inc()
            return
        if event.reason:
            self._refused.labels(event.reason).inc()
            return
        if event.outcome == "begun":
            for use in event.uses:
                if use.action == "run":  # the rest is counted at the end
                    self._uses.labels(use.action, self._known(use.skill)).inc()
            return
        error = "" if event.outcome == "ok" else event.outcome
        method = event.method if event.method in self._methods else _OTHER
        seconds = event.milliseconds / 1000
        if event.protocol == "mcp":
            self._operations.labels(method, error).observe(seconds)
        else:
            self._others.labels(event.protocol, method, error).observe(seconds)
        if event.protocol == PAGE:
            return
        for use in event.uses:
            if use.action not in ("", "run") and event.outcome == "ok":
                self._uses.labels(use.action, self._known(use.skill)).inc()
        if event.found is not None:
            self._searches.labels("found" if event.found else "nothing").inc()
        if event.bytes:
            self._bytes.inc(event.bytes)

    def written(self, accept: str) -> tuple[bytes, str]:
        """What Prometheus scrapes, and its Content-Type, as an Accept header wants it. Blocks for milliseconds."""
        encoder, content_type = choose_encoder(accept)
        return encoder(self.registry), content_type

    def _known(self, skill: str) -> str:
        if skill not in self._skills:
            if len(self._skills) >= _MOST_SKILLS:
                return _OTHER
            self._skills.add(skill)
        return skill


def show_at(metrics: Metrics, host: str, port: int) -> None:
    """Show them at an address of their own, from a thread, until the process ends.

    Raises:
        OSError: the address cannot be listened on.
    """
    start_http_server(port, host, metrics.registry)


def _keep_in_files(part: Part) -> None:
    """Have every count that is made from now on be kept in a file that other processes read."""
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = part.folder  # where the library looks, and nowhere else
    library: Any = values  # without types
    library.ValueClass = library.MultiProcessValue(lambda: part.name)
    for file in _unreadable(Path(part.folder).glob(f"*_{part.name}.db")):  # which no process could begin with
        file.unlink()
    Path(part.folder, part.name + _PID).write_text(str(os.getpid()), encoding="ascii")


def _merged(files: Iterable[Path]) -> Iterable[Metric]:
    library: Any = MultiProcessCollector  # without types
    return library.merge(files)


def _unreadable(files: Iterable[Path]) -> set[Path]:
    """Those of these files of counts that say nothing: of a process that is making one, or that ended meanwhile."""
    found: set[Path] = set()
    for each in files:
        try:
            _merged([each])
        except _MEANS_NOTHING:
            found.add(each)
    return found


class _Counts(Collector):
    """What all processes have counted that keep it in a folder."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    def collect(self) -> Iterable[Metric]:
        """The sums of all files that can be read: one that cannot costs its own counts alone."""
        files = sorted(self._folder.glob("*.db"))
        try:
            return _merged(files)
        except _MEANS_NOTHING:
            unreadable = _unreadable(files)
            logger.warning("counts cannot be read and are left out: %s", len(unreadable), extra=REPEATS)
            return _merged([each for each in files if each not in unreadable])


class _Processes(Collector):
    """What the system says of each process that keeps counts in a folder."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    def collect(self) -> Iterator[Metric]:
        """The families of `ProcessCollector`, with a label for the process."""
        families: dict[str, Metric] = {}
        for file in sorted(self._folder.glob("*" + _PID)):
            pid = file.read_text("ascii")
            if not pid:  # it is being written just now
                continue
            for family in ProcessCollector(pid=partial(str, pid), registry=None).collect():
                into = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                for sample in family.samples:
                    into.add_sample(sample.name, {**sample.labels, "process": file.stem}, sample.value)
        yield from families.values()


class _Now(Collector):
    """What is looked at when somebody asks."""

    def __init__(self, gauges: Gauges) -> None:
        self._gauges = gauges

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """One family for each. What has happened is counted first: this is asked before the counts are."""
        later.drain()
        for name, (text, value) in self._gauges().items():
            yield GaugeMetricFamily(name, text, value=value)
