"""Prometheus metrics: counters and histograms of events, and gauges that are read at each scrape.

Names and labels follow OpenTelemetry's conventions for MCP (GenAI conventions 1.42, in development)
in Prometheus' spelling; metrics without a convention begin with `skills_`. Cardinality is bounded:
unknown values from clients become "_OTHER".
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from mcp_skills_server.telemetry.events import CATALOGUE, NO_USES, PAGE, PROPOSING, Event
from mcp_skills_server.telemetry.gauge import Gauge

_OTHER: Final = "_OTHER"
_MAX_SKILLS: Final = 1000
"""Skills with their own label value; uses of further skills are counted as "_OTHER"."""
_SECONDS: Final = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300,
)  # fmt: skip
"""Histogram buckets: those of the conventions, and smaller ones for responses of 0.1 ms."""

Gauges = Callable[[], Mapping[str, Gauge]]
"""Returns the gauges by name."""


class Metrics:
    """All metrics of a server; `methods` are those that keep their names as label values."""

    def __init__(self, gauges: Gauges, methods: Collection[str]) -> None:
        self._methods = frozenset(methods)
        self.registry = CollectorRegistry()
        self.registry.register(_GaugeCollector(gauges))
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self.registry)
        histogram = partial(Histogram, buckets=_SECONDS, registry=self.registry)
        counter = partial(Counter, registry=self.registry)
        self._operations = histogram(
            "mcp_server_operation_duration_seconds",
            "Seconds from a request of MCP to its answer.",
            ("mcp_method_name", "error_type"),
        )
        self._others = histogram(
            "skills_operation_duration_seconds",
            "Seconds from a request of another protocol to its answer.",
            ("protocol", "method", "error_type"),
        )
        self._uses = counter(
            "skills_uses",
            "How often a skill was loaded, a file of it read, a script of it run, or it was "
            "dropped unused.",
            ("action", "skill"),
        )
        self._searches = counter(
            "skills_searches", "Searches for skills, and those that found none.", ("result",)
        )
        for result in ("found", "nothing"):
            self._searches.labels(result)
        self._bytes = counter("skills_read_bytes", "Bytes of skill files that were read.")
        self._refused = counter(
            "skills_refused_requests",
            "Requests that were refused before any protocol.",
            ("reason",),
        )
        self._refused.labels("overload")  # a rate shows the first one only if the series exists
        self._changes = counter(
            "skills_catalogue_changes", "Skills that appeared, changed or vanished.", ("change",)
        )
        self._proposals = counter(
            "skills_proposals", "Skills that were proposed, approved or rejected.", ("action",)
        )
        self._skills: set[str] = set()

    def record(self, event: Event) -> None:
        """Count an event."""
        if event.protocol == CATALOGUE:
            self._changes.labels(event.outcome).inc()
            return
        if event.reason:
            self._refused.labels(event.reason).inc()
            return
        for use in event.uses:
            if event.counts(use) and use.action not in NO_USES and event.protocol != PAGE:
                self._uses.labels(use.action, self._skill_label(use.skill)).inc()
        if event.outcome == "begun":
            return
        error: str = event.outcome
        method = event.method
        if error == "ok":
            error = ""
        if method not in self._methods:
            method = _OTHER
        seconds = event.milliseconds / 1000
        if event.protocol == "mcp":
            self._operations.labels(method, error).observe(seconds)
        else:
            self._others.labels(event.protocol, method, error).observe(seconds)
        for use in event.uses:
            if use.action in PROPOSING and event.outcome == "ok":
                self._proposals.labels(use.action).inc()
        if event.protocol == PAGE:
            return
        if event.found is not None:
            self._searches.labels("found" if event.found else "nothing").inc()
        if event.bytes:
            self._bytes.inc(event.bytes)

    def render(self, accept: str) -> tuple[bytes, str]:
        """Return (body, Content-Type) of a scrape in the format of an Accept header; may block."""
        try:
            encoder, content_type = choose_encoder(accept)
        except TypeError:  # a version that is not a number
            encoder, content_type = choose_encoder("")
        return encoder(self.registry), content_type

    def _skill_label(self, skill: str) -> str:
        if skill not in self._skills:
            if len(self._skills) >= _MAX_SKILLS:
                return _OTHER
            self._skills.add(skill)
        return skill


class _GaugeCollector(Collector):
    def __init__(self, gauges: Gauges) -> None:
        self._gauges = gauges

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Read the gauges at each scrape."""
        for name, gauge in self._gauges().items():
            if isinstance(gauge.value, Mapping):
                family = GaugeMetricFamily(name, gauge.help, labels=[gauge.label])
                for label, value in gauge.value.items():
                    family.add_metric([label], value)
                yield family
            else:
                yield GaugeMetricFamily(name, gauge.help, value=gauge.value)
