"""The Grafana dashboard and the Prometheus alerts: metrics, syntax, and layout."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from web.http_wire import client
from web.in_process import app_serving
from wire import ROOT, write_skill

DEPLOY = ROOT / "deploy"
ALERTS, DASHBOARD = DEPLOY / "alerts.yaml", DEPLOY / "grafana-dashboard.json"
METRIC = re.compile(r"\b((?:mcp|skills|process|python)_\w+|up)\b(?:\{([^}]*)\})?")
GROUPING = re.compile(r"\bby \(([^)]*)\)")
OF_PROMETHEUS = {"up", "job", "instance", "le"}
"""Metrics and labels that Prometheus itself adds."""


def dashboard() -> dict[str, Any]:
    return json.loads(DASHBOARD.read_text(encoding="utf-8"))


def expressions() -> Iterator[str]:
    for group in yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]:
        yield from (rule["expr"] for rule in group["rules"])
    for panel in dashboard()["panels"]:
        yield from (target["expr"] for target in panel["targets"])
    yield scaling_query()


def scaling_query() -> str:
    scaled = yaml.safe_load((DEPLOY / "kubernetes" / "keda" / "scaledobject.yaml").read_text())
    return next(each for each in scaled["spec"]["triggers"] if each["type"] == "prometheus")["metadata"]["query"]


@pytest.fixture(scope="module")
def exposed(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("skills")
    write_skill(root / "a")
    options = ("--metrics", "--audit-log", root.with_name("audit"), "--redis", "redis://127.0.0.1:1")
    with app_serving(root, *options) as server:
        with client(server, "modern") as reader:
            reader.read("skill://a/SKILL.md")
        return server.send("GET", "/metrics").body.decode()


def test_metrics_and_labels_of_expressions_exist(exposed: str) -> None:
    names = set(re.findall(r"^([a-z_]+)[{ ]", exposed, re.MULTILINE)) | OF_PROMETHEUS
    names |= set(re.findall(r"^# TYPE (\w+)", exposed, re.MULTILINE))  # also those without a value
    labels = set(re.findall(r'(\w+)="', exposed)) | OF_PROMETHEUS
    queries = [*expressions()]
    for expression in queries:
        plain = GROUPING.sub("", expression)
        for name, matchers in METRIC.findall(re.sub(r'"[^"]*"', '""', plain)):
            if name not in labels:
                family = re.sub("_(count|bucket|sum)$", "", name)
                assert {name, family} & names, (name, expression)
            for label in re.findall(r"(\w+)\s*[=!]", matchers):
                assert label in labels, (label, expression)
    assert len(queries) > 20
    scaled = re.search(r'resource=~"([^"]*)"', scaling_query())
    assert scaled and all(f'skills_resource_used{{resource="{name}"}}' in exposed for name in scaled[1].split("|"))


@pytest.mark.needs_program("promtool")
def test_alerts_are_valid_and_fire_as_tested() -> None:
    for words in (["check", "rules", str(ALERTS)], ["test", "rules", str(DEPLOY / "alerts-test.yaml")]):
        done = subprocess.run(["promtool", *words], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    tested = yaml.safe_load((DEPLOY / "alerts-test.yaml").read_text(encoding="utf-8"))["tests"]
    cases = [case for each in tested for case in each["alert_rule_test"]]
    firing = {case["alertname"] for case in cases if case.get("exp_alerts")}
    quiet = {case["alertname"] for case in cases if not case.get("exp_alerts")}
    (group,) = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    assert firing == quiet == {rule["alert"] for rule in group["rules"]}


@pytest.mark.needs_program("promtool")
def test_expressions_of_dashboard_are_valid(tmp_path: Path) -> None:
    rules: list[dict[str, str]] = []
    for panel in dashboard()["panels"]:
        for target in panel["targets"]:
            expression = re.sub(r"\$__(rate_interval|range)", "5m", target["expr"])
            rules.append({"record": f"x:{len(rules)}", "expr": expression})
    rules.append({"record": "x:scaling", "expr": scaling_query()})
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "x", "rules": rules}]}), encoding="utf-8")
    command = ["promtool", "check", "rules", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_panels_have_unique_ids_and_do_not_overlap() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        columns = range(at["x"], at["x"] + at["w"])
        cells = {(x, y) for x in columns for y in range(at["y"], at["y"] + at["h"])}
        assert not taken & cells, panel["title"]
        assert columns.stop <= 24, panel["title"]
        taken |= cells
