"""`evaluate`, `try`, `overlap` and `context`: trigger sets in the formats of the field, and what a model is shown."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commands.calls import invoke, refusal, seen
from mcp_skills_server.authoring.context import HOSTS
from mcp_skills_server.authoring.evaluation import TriggerCase, evaluate, read_cases, summary
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.errors import UsageError
from tables import each_row
from wire import FIXTURES, ROOT, serving, write_skill

REFUNDS = "Issue refunds to customers. Use when money is to be paid back."
NOTES = "Write minutes of meetings. Use when somebody asks what was decided."


@pytest.fixture
def skills(tmp_path: Path) -> Path:
    write_skill(tmp_path / "skills/refunds", description=REFUNDS)
    return write_skill(tmp_path / "skills/minutes", description=NOTES).parent


def trigger_set(place: Path, *cases: tuple[str, bool], **more: Any) -> Path:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(json.dumps([{"query": query, "should_trigger": should, **more} for query, should in cases]))
    return place


def test_the_sets_of_the_skills_themselves_are_judged(skills: Path) -> None:
    trigger_set(skills / "refunds/evals/queries.json", ("pay the money back to the customer", True), ("a poem", False))
    evals = {"skill_name": "minutes", "evals": [{"id": 1, "prompt": "minutes of our meeting", "assertions": ["x"]}]}
    (skills / "minutes/evals").mkdir()
    (skills / "minutes/evals/evals.json").write_text(json.dumps(evals))
    (skills / "minutes/evals/other.json").write_text("{}")
    done = invoke("evaluate", skills, "--format", "json")
    found = json.loads(done.stdout)
    assert [(each["path"], each["query"], each["pass"]) for each in found["results"]] == [
        ("minutes", "minutes of our meeting", True),
        ("refunds", "pay the money back to the customer", True),
        ("refunds", "a poem", True),
    ]
    assert found["summary"] == {
        "total": 3, "passed": 3, "failed": 0, "hit_at_1": 1.0, "hit_at_5": 1.0, "false_triggers": 0
    }  # fmt: skip
    assert done.return_value == 0 and "other.json: has no trigger set" in done.stderr


def test_the_fields_are_those_of_the_runner_that_the_format_comes_from(skills: Path) -> None:
    file = trigger_set(skills.parent / "refunds.json", ("minutes of a meeting", True))
    (result,) = seen("evaluate", skills, "--cases", file)["results"]
    wanted = {"query": "minutes of a meeting", "should_trigger": True, "trigger_rate": 0.0, "triggers": 0, "runs": 1}
    assert result.items() >= (wanted | {"pass": False, "winner": "minutes"}).items()


def test_a_miss_names_the_winner_and_the_words_that_decided(skills: Path) -> None:
    file = trigger_set(skills.parent / "refunds.json", ("minutes of a meeting", True), ("refunds please", False))
    done = invoke("evaluate", skills, "--cases", file)
    assert "should trigger: 'minutes of a meeting': minutes comes first by the words minutes, meeting" in done.stdout
    assert "should not trigger: 'refunds please': it triggers the skill and should not" in done.stdout
    assert "0 of 2 cases passed; hit@1 0%, hit@5 0%; 1 false triggers" in done.stdout


def test_a_share_of_the_cases_may_be_enough(skills: Path) -> None:
    file = trigger_set(skills.parent / "refunds.json", ("refunds", True), ("minutes", True))
    assert invoke("evaluate", skills, "--cases", file, "--min-pass", "0.5").return_value == 0
    assert invoke("evaluate", skills, "--cases", file, "--min-pass", "0.6").return_value == 1


class EveryOtherRun:
    """A judge that chooses both skills in the first of two runs, in this order, and none in the other."""

    runs, concurrency, ranks = 2, 1, False

    def choose(self, query: str, run: int) -> list[str]:
        return [] if run else ["minutes", "refunds"]


@each_row("threshold, passes", [(0.5, True), (0.51, False)])
def test_the_share_of_runs_that_triggers_is_enough_from_the_threshold_on(
    skills: Path, threshold: float, passes: bool
) -> None:
    with Registry([skills]) as registry:
        snapshot = registry.snapshot
        cases = [(snapshot.skills["refunds"], TriggerCase("money", should_trigger=True))]
        (found,) = evaluate(cases, EveryOtherRun(), snapshot, threshold)
    assert (found.passed, found.triggers, found.rank, found.winner) == (passes, 1, 2, "minutes")
    assert (summary([found]).hit_at_1, summary([found]).hit_at_5) == (0, 1)


def test_junit_has_a_suite_for_each_skill(skills: Path) -> None:
    for name in ("refunds", "minutes"):
        trigger_set(skills.parent / f"sets/{name}.json", ("refunds", True))
    done = invoke("evaluate", skills, "--cases", skills.parent / "sets/*.json", "--format", "junit")
    suites = ElementTree.fromstring(done.stdout)
    assert [(each.get("name"), each.get("failures")) for each in suites] == [("minutes", "1"), ("refunds", "0")]


@each_row(
    ("place", "more"), [("refunds.json", {}), ("any.json", {"skill": "refunds"}), ("skills/refunds/sets/any.json", {})]
)
def test_a_file_says_which_skill_it_is_about(skills: Path, place: str, more: dict[str, str]) -> None:
    file = trigger_set(skills.parent / place, ("refunds", True), **more)
    assert invoke("evaluate", skills, "--cases", file).return_value == 0


def test_the_sets_of_the_fixtures_are_judged_as_well_as_they_were() -> None:
    """272 of 340 prompts passed when they were written."""
    sets = ROOT / "fixtures/triggers"
    assert len(list(sets.glob("*.json"))) == 17
    assert invoke("evaluate", FIXTURES, "--cases", sets / "*.json", "--min-pass", "0.78").return_value == 0


def test_what_is_wrong_with_a_set_is_one_line(skills: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = trigger_set(skills.parent / "any.json", ("refunds", True))
    assert "nothing says which skill it is" in refusal("evaluate", skills, "--cases", file)
    assert "no such file" in refusal("evaluate", skills, "--cases", skills / "none.json").lower()
    assert "there is no trigger set" in refusal("evaluate", skills)
    monkeypatch.setattr("mcp_skills_server.commands.evaluate._MOST_BYTES", 9)
    assert "any.json: has more than 9 bytes; split it" in refusal("evaluate", skills, "--cases", file)


@each_row(("text", "message"), [
    ("[", "cannot be read as JSON"), ("3", "has no trigger set"), ("[3]", "is not a list of objects"),
    ('[{"query": "a"}]', "does not say whether it should trigger"),
    ('[{"query": " ", "should_trigger": true}]', "has no text 'query'"),
    ('{"evals": [{"id": 1}]}', "evals[0] has no text 'prompt'"), ('{"evals": 1}', "is not a list of objects"),
    (json.dumps([{"query": "x" * 10_001, "should_trigger": True}]), "10,001 characters"),
    ("[" * 100_000, "cannot be read as JSON"),
])  # fmt: skip
def test_a_set_of_another_shape_is_refused_with_its_place(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_cases(text.encode(), "a.json")
    assert str(caught.value).startswith("a.json")
    assert message in str(caught.value)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(raw: bytes) -> None:
    with suppress(UsageError):
        read_cases(raw, "a.json")


JUDGE = """
import json, os, sys
asked = json.load(sys.stdin)
with open("{asked}", "a") as file:
    file.write(asked["query"] + "\\n")
named = [each["name"] for each in asked["skills"] if each["name"] in asked["query"]]
print({answer})
"""


@pytest.mark.parametrize(
    "answer", ["json.dumps(named)", "json.dumps(dict(skills=named, cost_usd=0.5))", '"\\n".join(named)']
)
def test_a_program_can_judge_in_three_shapes(skills: Path, answer: str, tmp_path: Path) -> None:
    file = trigger_set(tmp_path / "refunds.json", ("about refunds", True), ("hello", False))
    judge, asked = tmp_path / "judge.py", tmp_path / "asked"
    judge.write_text(JUDGE.format(asked=asked, answer=answer))
    words = ("evaluate", skills, "--cases", file, "--cache-dir", tmp_path / "cache")
    words += ("--judge", f"{sys.executable} {judge}")
    found = seen(*words)
    assert [(each["trigger_rate"], each["runs"], each["pass"]) for each in found["results"]] == [
        (1.0, 3, True), (0.0, 3, True)
    ]  # fmt: skip
    assert (found["judge_runs"], found["cost_usd"]) == (6, 3.0 if "cost_usd" in answer else 0)
    assert sorted(asked.read_text().splitlines()) == ["about refunds"] * 3 + ["hello"] * 3
    again = invoke(*words)  # the answers are kept
    assert again.return_value == 0 and "0 runs of the judge" in again.stderr
    write_skill(skills / "refunds", description=NOTES)
    assert "6 runs of the judge" in invoke(*words).stderr  # for another catalogue they are not
    trigger_set(file, ("hello", True))
    assert "should trigger: 'hello': chosen in 0 of 3 runs" in invoke(*words).stdout


@each_row(
    ("line", "message"),
    [
        ("no-such-program", "there is no such program"),
        ("'open", "close the quotation mark"),
        (f"{sys.executable} -c 'import sys; sys.exit(\"no key\")'", "ended with 1: no key"),
        (f"{sys.executable} -c 'print(\"{{\")'", "invalid JSON"),
        (f"{sys.executable} -c 'print(\"[1]\")'", "did not print a list of names"),
        (f"{sys.executable} -c 'import signal; signal.pause()'", "did not answer within 2 s"),
    ],
)
def test_a_judge_that_fails_is_one_line(skills: Path, line: str, message: str) -> None:
    file = trigger_set(skills.parent / "refunds.json", ("refunds", True))
    limits = ("--runs", 1, "--judge-timeout", 2)
    assert message in refusal("evaluate", skills, "--cases", file, "--judge", line, *limits)


def test_a_prompt_is_tried_by_itself(skills: Path) -> None:
    done = invoke("try", skills, "pay money back")
    assert done.return_value == 0 and "refunds" in done.stdout.splitlines()[1] and "money" in done.stdout
    assert seen("try", skills, "refunds")["places"][0]["path"] == "refunds"
    assert invoke("try", skills, "xyzzy").return_value == 1
    assert "try takes one or more roots and then a prompt" in refusal("try", "xyzzy")


def test_pairs_that_overlap_are_listed(skills: Path) -> None:
    assert invoke("overlap", skills).return_value == 0
    write_skill(skills / "repayments", description=REFUNDS)
    done = invoke("overlap", skills)
    assert done.return_value == 1 and "repayments" in done.stdout
    (pair,) = seen("overlap", skills)["pairs"]
    assert pair["skills"] == ["refunds", "repayments"] and pair["share"] > 0.7 and "customers" in pair["words"]


def test_the_instructions_are_those_that_a_server_sends() -> None:
    with serving(FIXTURES, opened=False) as wire:
        first, *others = seen("context", FIXTURES)["unasked"]
        assert first["text"] == wire.open()["instructions"]
    assert "Tool skills_load" in {each["title"] for each in others}


def test_claude_code_is_shown_the_names_of_tools_and_a_bounded_text() -> None:
    texts = {each["title"]: each["text"] for each in seen("context", FIXTURES, "--host", "claude-code")["unasked"]}
    assert set(texts) == {"Instructions of the server", "Names of the tools"}
    assert "skills_load" in texts["Names of the tools"].splitlines()
    assert len(texts["Instructions of the server"]) <= (HOSTS["claude-code"].text_characters or 0)


def test_codex_is_shown_one_line(tmp_path: Path) -> None:
    write_skill(tmp_path / "refunds")
    found = seen("context", tmp_path, "--host", "codex")
    (text,) = found["unasked"]
    assert "\n" not in text["text"] and text["cut_characters"]
    assert found["skills"] == {"whole": [], "shortened": [], "absent": ["refunds"]}


def test_what_stands_whole_and_what_does_not_is_counted(tmp_path: Path) -> None:
    for number in range(300):
        write_skill(tmp_path / f"skill-{number}", description=f"Thing {number}. " + "Many words of no use. " * 30)
    skills = seen("context", tmp_path, "--host", "gemini-cli")["skills"]
    assert sum(map(len, skills.values())) == 300 and not skills["whole"]


@each_row("host", HOSTS)
def test_loading_a_skill_brings_its_body(tmp_path: Path, host: str) -> None:
    write_skill(tmp_path / "a", body="Knock three times.\n")
    (text,) = seen("context", tmp_path, "--host", host, "--skill", "a")["loaded"]
    assert "Knock three times." in text["text"]
    assert "'list' shows what there is" in refusal("context", tmp_path, "--host", host, "--skill", "xyz")


def test_a_budget_decides_the_exit_code(tmp_path: Path) -> None:
    write_skill(tmp_path / "a")
    assert invoke("context", tmp_path, "--budget", "100000").return_value == 0
    done = invoke("context", tmp_path, "--budget", "10")
    assert done.return_value == 1 and "more than the budget of 10" in done.stderr
