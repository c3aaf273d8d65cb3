"""tools/interop/: the evaluation of a referee's results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from tools.interop.__main__ import Run, summary
from tools.interop.referees import (
    MAY_SKIP,
    SCENARIOS,
    inspector_checks,
    libraries,
    not_run,
    required_scenarios,
    scenario_of,
    too_few,
)
from tools.interop.setup import HERE, PYTHON_PACKAGES, SKILLS, TOOLS, bundles, server_checks
from tools.interop.verdicts import Check, all_there, judge, parse_checks, read_baseline

from mcp_skills_server.dialects import runtime
from tables import each_row


def check(status: str, identifier: str = "one", scenario: str = "tools-list") -> Check:
    return Check(scenario, identifier, status)


BASELINE = {
    ("base", "tools-list", "one"): "there are no tools here",
    ("base", "ping", "pong"): "there is no ping here",
    ("other", "tools-list", "two"): "another suite",
}


def test_checks_are_parsed() -> None:
    raw = [{"id": "one", "status": "SUCCESS"}, {"id": "two", "status": "FAILURE", "errorMessage": "no"}]
    assert parse_checks("tools-list", raw) == [
        Check("tools-list", "one", "SUCCESS", ""),
        Check("tools-list", "two", "FAILURE", "no"),
    ]


@each_row("raw", [[], {}, None, ["one"], [{"id": "one"}], [{"status": "SUCCESS", "id": 1}]])
def test_result_without_checks_is_invalid(raw: object) -> None:
    with pytest.raises(ValueError, match="tools-list"):
        parse_checks("tools-list", raw)


@each_row(
    ("directory", "scenario"),
    [
        ("server-tools-list-2026-11-20T11-22-36-213Z", "tools-list"),
        ("server-server-initialize-2026-11-20T11-22-39-282Z", "server-initialize"),
        ("server-json-schema-2020-12-2026-11-20T11-22-41-021Z", "json-schema-2020-12"),
        ("client-tools-list-2026-11-20T11-22-36-213Z", None),
        ("server-tools-list", None),
    ],
)
def test_scenario_is_parsed_from_directory_name(directory: str, scenario: str | None) -> None:
    assert scenario_of(directory) == scenario


def test_unscored_scenarios_are_required() -> None:
    others = [{"scenario": "tasks", "leg": "server"}, {"scenario": "auth", "leg": "client"}]
    raw = {"server": ["ping"], "client": ["initialize"], "not_scored": others}
    assert required_scenarios(raw) == {"ping", "tasks"}
    assert required_scenarios({"server": ["ping"]}) == {"ping"}


def test_scenario_without_result_is_a_failure() -> None:
    seen = [check("SUCCESS", "one"), check("SUCCESS", "one"), check("SKIPPED", "two")]
    assert too_few(seen, "tools-list", 2) == []
    (short,) = too_few(seen, "tools-list", 3)
    assert (short.status, short.message) == ("FAILURE", "2 of 3 checks")
    (missing,) = not_run({"ping", "tools-list"}, [check("SUCCESS")])
    assert (missing.scenario, missing.status) == ("ping", "FAILURE")


@each_row("status", ["FAILURE", "WARNING", "SKIPPED", "SOMETHING-NEW"])
def test_failed_check_needs_an_expectation_of_its_scenario(status: str) -> None:
    two, one, ping = check(status, "two"), check(status, "one"), check(status, "one", "ping")
    assert judge("base", [two, one, ping], BASELINE).unexpected == [two, ping]
    assert judge("other", [one], BASELINE).unexpected == [one]


def test_expectation_of_a_passed_check_is_reported_as_stale() -> None:
    verdict = judge("unknown", [check("SUCCESS"), check("INFO", "two")], BASELINE)
    assert (verdict.unexpected, verdict.expected, verdict.stale) == ([], 0, [])
    assert verdict.counts == {"SUCCESS": 1, "INFO": 1}
    for passed in (check("SUCCESS", "one"), check("SUCCESS", "three")):
        assert judge("base", [passed], BASELINE).stale == [("tools-list", "one")]
    for failed in (check("FAILURE", "ran"), check("FAILURE", "one")):  # not run, or still needed
        assert judge("base", [failed], BASELINE).stale == []


def test_passed_check_hides_no_failed_one_of_the_same_id() -> None:
    verdict = judge("base", [check("SUCCESS", "two"), check("FAILURE", "two"), check("SUCCESS", "two")], {})
    assert len(verdict.unexpected) == 1
    verdict = judge("base", [check("SUCCESS"), check("FAILURE"), check("FAILURE")], BASELINE)
    assert (verdict.expected, verdict.stale) == (2, [])


def test_only_listed_checks_may_be_skipped() -> None:
    may_skip = frozenset({"one"})
    assert judge("skills", [check("SKIPPED", "one")], {}, may_skip).unexpected == []
    assert judge("skills", [check("SKIPPED", "two")], {}, may_skip).unexpected != []
    assert judge("skills", [check("FAILURE", "one")], {}, may_skip).unexpected != []
    names = {f"sep-2640-skills-{method}-cache-attributes" for method in ("list", "get")}
    assert not MAY_SKIP["modern"] and MAY_SKIP["legacy"] == names


def test_every_expectation_has_a_reason() -> None:
    group = {"reason": "there are no tools here", "suites": {"base": {"tools-list": ["one"]}}}
    assert read_baseline([group]) == {("base", "tools-list", "one"): "there are no tools here"}
    for reason in ("", None, "no tools"):
        with pytest.raises(ValueError, match="say in a sentence"):
            read_baseline([{**group, "reason": reason}])
    with pytest.raises(ValueError, match="stands twice"):
        read_baseline([group, group])
    with pytest.raises(ValueError, match="list"):
        read_baseline({"reason": "there are no tools here"})


def test_baseline_is_valid_and_has_no_expectation_for_skills() -> None:
    text = (HERE / "expected-failures.yaml").read_text(encoding="utf-8")
    baseline = read_baseline(yaml.safe_load(text))
    assert not [suite for suite, _, _ in baseline if suite.startswith("skills ") or suite in {"inspector", "server"}]
    assert not [scenario for _, scenario, _ in baseline if scenario in SCENARIOS]


REPORT = {
    "uri": "skill://a/SKILL.md", "conformance": [], "frontmatter": [], "ok": True, "outcome": "verified",
    "files": [{"uri": "skill://a/SKILL.md", "status": "verified"}],
}  # fmt: skip


def test_verified_skill_passes_with_its_files() -> None:
    checks = inspector_checks("modern", json.dumps(REPORT))
    names = ["skill skill://a/SKILL.md", "file skill://a/SKILL.md skill://a/SKILL.md"]
    assert [(each.id, each.status) for each in checks] == [(name, "SUCCESS") for name in names]
    with pytest.raises(ValueError, match="no report"):
        inspector_checks("modern", "")


@each_row("fault", [
    {"ok": False}, {"outcome": "unverifiable"}, {"conformance": ["something"]}, {"frontmatter": [{"field": "name"}]},
    {"files": [{"uri": "skill://a/SKILL.md", "status": "digest-mismatch"}]},
])  # fmt: skip
def test_skill_with_any_fault_fails(fault: dict[str, Any]) -> None:
    checks = inspector_checks("modern", json.dumps(REPORT | fault))
    assert [each.status for each in checks].count("FAILURE") == 1


def test_missing_skill_or_file_fails() -> None:
    checks = inspector_checks("modern", json.dumps(REPORT))
    assert all_there("modern", checks, {"skill": 1, "file": 1}).good
    short = all_there("modern", checks, {"skill": 2, "file": 1})
    assert (short.status, short.message) == ("FAILURE", "1 x skill, 1 x file; there is 2 x skill, 1 x file")
    none = all_there("modern", [check("SUCCESS", "tools/list")], {"tool": 1})
    assert none.message == "0 x tool; there is 1 x tool"


def test_expected_tools_are_those_without_scripts() -> None:
    overview = runtime.Overview([runtime.Offer("alpha", "Does alpha.")])
    defined = runtime.definitions(overview, 4000, scripts=False, handles=True)
    assert [each["name"] for each in defined] == list(TOOLS)


def test_expected_counts_are_read_from_disk() -> None:
    counts = bundles()
    assert counts["skill"] == counts["use"] == counts["prompt"] == len(list(SKILLS.rglob("SKILL.md")))
    assert counts["file"] > counts["skill"]


def test_clients_that_are_not_installed_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tools.interop.referees.CACHE", tmp_path)
    assert [each.suite for each in libraries({})] == ["sdk", "ext-skills", "ours ext-skills", "ours typescript-sdk"]
    some = {each.suite: each for each in libraries({"langchain": Path("python")})}
    assert some["langchain"].eras == ("legacy",) and some["langchain"].kinds == {"tool", "use"}
    every = list(libraries(dict.fromkeys(PYTHON_PACKAGES, Path("python"))))
    ours = {"ours ext-skills", "ours typescript-sdk", "ours fastmcp"}
    assert {each.suite for each in every} == {"sdk", "ext-skills", "crewai-adapter", *PYTHON_PACKAGES, *ours}
    assert {each.suite for each in every if each.starts_often} == {"crewai", "llama-index"}


def test_server_must_exit_with_0_and_log_no_error() -> None:
    assert all(each.good for each in server_checks(["INFO: serving", "exit code 0"]))
    assert [each.good for each in server_checks(["x: ERROR: boom", "exit code 0"])] == [False, True]
    assert [each.good for each in server_checks(["INFO: serving", "exit code -9"])] == [True, False]


def test_table_counts_unexpected_results_as_failed() -> None:
    run = Run("referee", "1", "modern", "http", "base", list)
    checks = [check("SUCCESS"), check("FAILURE", "two"), check("ODD", "three"), check("SKIPPED", "four")]
    head, _, row = summary([(run, judge("base", checks, {}))]).replace("|", " ").splitlines()
    assert head.split()[4:] == ["passed", "failed", "warned", "skipped", "expected", "UNEXPECTED"]
    assert row.split()[4:] == ["1", "2", "0", "1", "0", "3"]
