"""The dashboard and the alerts: they name what a server shows, and promtool finds nothing wrong with them."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from web.http_wire import client, http_serving
from wire import ROOT, write_skill

DEPLOY = ROOT / "deploy"
ALERTS, DASHBOARD = DEPLOY / "alerts.yaml", DEPLOY / "grafana-dashboard.json"
METRIC = re.compile(r"\b((?:mcp|skills|process|python)_\w+|up)\b(?:\{([^}]*)\})?")
GROUPING = re.compile(r"\bby \(([^)]*)\)")
OF_PROMETHEUS = {"up", "job", "instance", "le"}
"""What Prometheus itself adds."""


def dashboard() -> dict[str, Any]:
    return json.loads(DASHBOARD.read_text(encoding="utf-8"))


def expressions() -> Iterator[str]:
    for group in yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]:
        yield from (rule["expr"] for rule in group["rules"])
    for panel in dashboard()["panels"]:
        yield from (target["expr"] for target in panel["targets"])


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What a server shows."""
    root = tmp_path_factory.mktemp("skills")
    write_skill(root / "a")
    with http_serving(
        root, "--metrics", "--audit-log", root.with_name("audit"), "--redis", "redis://127.0.0.1:1"
    ) as server:
        with client(server, "modern") as one:
            one.read("skill://a/SKILL.md")
        return server.send("GET", "/metrics").body.decode()


def test_every_metric_and_label_that_they_name_is_shown(shown: str) -> None:
    names = set(re.findall(r"^([a-z_]+)[{ ]", shown, re.MULTILINE)) | OF_PROMETHEUS
    families = set(re.findall(r"^# TYPE (\w+)", shown, re.MULTILINE))  # those without a value yet have no line
    labels = set(re.findall(r'(\w+)="', shown)) | OF_PROMETHEUS
    asked = [*expressions()]
    for expression in asked:
        plain = GROUPING.sub("", expression)
        for name, matchers in METRIC.findall(re.sub(r'"[^"]*"', '""', plain)):
            if name not in labels:
                assert {name, re.sub("_(count|bucket|sum)$", "", name)} & (names | families), (name, expression)
            for label in re.findall(r"(\w+)\s*[=!]", matchers):
                assert label in labels, (label, expression)
    assert len(asked) > 20


@pytest.mark.needs_program("promtool")
def test_promtool_finds_the_alerts_right_and_each_fires_when_it_should() -> None:
    for words in (["check", "rules", str(ALERTS)], ["test", "rules", str(DEPLOY / "alerts-test.yaml")]):
        done = subprocess.run(["promtool", *words], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    tested = yaml.safe_load((DEPLOY / "alerts-test.yaml").read_text(encoding="utf-8"))["tests"]
    firing = {case["alertname"] for each in tested for case in each["alert_rule_test"] if case.get("exp_alerts")}
    quiet = {case["alertname"] for each in tested for case in each["alert_rule_test"] if not case.get("exp_alerts")}
    (group,) = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    assert firing == quiet == {rule["alert"] for rule in group["rules"]}


@pytest.mark.needs_program("promtool")
def test_promtool_can_read_every_question_of_the_dashboard(tmp_path: Path) -> None:
    rules = [
        {"record": f"x:{number}", "expr": re.sub(r"\$__(rate_interval|range)", "5m", target["expr"])}
        for number, target in enumerate(target for panel in dashboard()["panels"] for target in panel["targets"])
    ]
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "x", "rules": rules}]}), encoding="utf-8")
    done = subprocess.run(["promtool", "check", "rules", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_panels_do_not_overlap_and_have_ids_of_their_own() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not taken & cells and at["x"] + at["w"] <= 24, panel["title"]
        taken |= cells
