"""Prometheus metrics of events, and the bound of their labels."""

from __future__ import annotations

import re
from typing import Any

from mcp_skills_server.telemetry import events
from mcp_skills_server.telemetry.events import Event, Events, Outcome, Use
from mcp_skills_server.telemetry.gauge import Gauge
from mcp_skills_server.telemetry.metrics import Metrics


def event(outcome: Outcome, *actions: Any, method: str = "tools/call", **more: Any) -> Event:
    uses = tuple(Use(action, "a", "SKILL.md", "") for action in actions)
    return Event(**{"time": 0.0, "protocol": "mcp", "method": method, "outcome": outcome, "uses": uses, **more})


def nonzero_samples(metrics: Metrics) -> dict[str, float]:
    """Return our samples other than 0, without buckets and creation times."""
    lines = re.findall(r"^((?:mcp|skills)_\S+) (\S+)$", metrics.render("")[0].decode(), re.MULTILINE)
    return {name: float(number) for name, number in lines if float(number) and not re.search("_(bucket|created)", name)}


def test_each_kind_of_event_is_counted(publisher: Events) -> None:
    gauges = {"skills_one": Gauge("One.", 1), "skills_two": Gauge("Two.", {"x": 2.0}, "by")}
    metrics = Metrics(lambda: gauges, ("tools/call",))
    publisher.subscribe(metrics.record)
    for emitted in (
        event("ok", "", "load", "read", "dropped", "run", "propose", milliseconds=2_000.0, bytes=5, found=3),
        event("refused", "load", "approve", found=0),
        event("begun", "run", "load"),
        event("ok", "load", "approve", protocol=events.PAGE, found=1, bytes=7),
        event("ok", method="none", protocol="discovery"),
        event("refused", "load", reason="token"),
        event("appeared", "", protocol=events.CATALOGUE),
    ):
        publisher.emit(emitted)
    seconds, others = "mcp_server_operation_duration_seconds", "skills_operation_duration_seconds_count"
    assert nonzero_samples(metrics) == {
        "skills_one": 1, 'skills_two{by="x"}': 2,
        f'{seconds}_count{{error_type="",mcp_method_name="tools/call"}}': 1,
        f'{seconds}_sum{{error_type="",mcp_method_name="tools/call"}}': 2,
        f'{seconds}_count{{error_type="refused",mcp_method_name="tools/call"}}': 1,
        f'{others}{{error_type="",method="tools/call",protocol="page"}}': 1,
        f'{others}{{error_type="",method="_OTHER",protocol="discovery"}}': 1,
        **{f'skills_uses_total{{action="{action}",skill="a"}}': 1 for action in ("load", "read", "dropped", "run")},
        'skills_searches_total{result="found"}': 1, 'skills_searches_total{result="nothing"}': 1,
        "skills_read_bytes_total": 5, 'skills_refused_requests_total{reason="token"}': 1,
        'skills_catalogue_changes_total{change="appeared"}': 1,
        'skills_proposals_total{action="propose"}': 1, 'skills_proposals_total{action="approve"}': 1,
    }  # fmt: skip
    text = metrics.render("")[0].decode()
    conventions = "0.01 0.02 0.05 0.1 0.2 0.5 1.0 2.0 5.0 10.0 30.0 60.0 120.0 300.0"
    assert {*conventions.split()} <= {*re.findall(r'le="(\S+?)"', text)}
    names = {*re.findall(r"^\w+", text, re.MULTILINE)}
    assert {"process_start_time_seconds", "python_info", "python_gc_collections_total"} <= names


def test_files_that_a_failed_run_read_are_counted() -> None:
    metrics = Metrics(dict, ())
    for outcome in ("begun", "refused"):
        metrics.record(event(outcome, "read", "run"))
    counts = {name: value for name, value in nonzero_samples(metrics).items() if "uses" in name}
    assert counts == {f'skills_uses_total{{action="{action}",skill="a"}}': 1 for action in ("read", "run")}


def test_skill_labels_are_bounded_and_search_counters_start_at_zero() -> None:
    metrics = Metrics(dict, ())
    assert 'skills_searches_total{result="nothing"} 0.0' in metrics.render("")[0].decode()
    for number in (*range(1_002), 0):
        metrics.record(event("ok")._replace(uses=(Use("load", f"s{number}", "SKILL.md", ""),)))
    uses = {name: value for name, value in nonzero_samples(metrics).items() if "uses" in name}
    assert len(uses) == 1_001
    assert uses['skills_uses_total{action="load",skill="_OTHER"}'] == 2
    assert uses['skills_uses_total{action="load",skill="s0"}'] == 2


def test_malformed_accept_header_gets_the_default_format() -> None:
    metrics = Metrics(dict, ())
    for accept in ("text/plain; version=\xff", "application/openmetrics-text; version=x", "a;;,=", "x" * 9_000):
        body, content_type = metrics.render(accept)
        assert body.startswith(b"# HELP") and content_type.startswith("text/plain; version=0.0.4"), accept
