"""`evaluate`, `try` and `overlap`: trigger sets in the formats of the field, judged by the ranking and by programs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from mcp_skills_server.authoring.evaluation import read_cases
from mcp_skills_server.cli import cli
from mcp_skills_server.errors import UsageError
from tables import each_row
from wire import FIXTURES, ROOT, write_skill

REFUNDS = "Issue refunds to customers. Use when money is to be paid back."
NOTES = "Write minutes of meetings. Use when somebody asks what was decided."


@pytest.fixture
def skills(tmp_path: Path) -> Path:
    root = tmp_path / "skills"
    write_skill(root / "refunds", description=REFUNDS)
    write_skill(root / "minutes", description=NOTES)
    return root


def command(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [*map(str, arguments)], standalone_mode=False)


def refusal(*arguments: object) -> str:
    done = command(*arguments)
    assert isinstance(done.exception, UsageError)
    return str(done.exception)


def trigger_set(place: Path, *cases: tuple[str, bool], **more: Any) -> Path:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(json.dumps([{"query": query, "should_trigger": should, **more} for query, should in cases]))
    return place


def test_the_sets_of_the_skills_themselves_are_judged(skills: Path) -> None:
    trigger_set(skills / "refunds/evals/queries.json", ("pay the money back to the customer", True), ("a poem", False))
    evals = {"skill_name": "minutes", "evals": [{"id": 1, "prompt": "minutes of our meeting", "assertions": ["x"]}]}
    place = skills / "minutes/evals/evals.json"
    place.parent.mkdir()
    place.write_text(json.dumps(evals))
    (skills / "minutes/evals/other.json").write_text("{}")

    done = command("evaluate", skills, "--format", "json")

    assert done.return_value == 0
    found = json.loads(done.stdout)
    assert [(each["path"], each["query"], each["pass"]) for each in found["results"]] == [
        ("minutes", "minutes of our meeting", True),
        ("refunds", "pay the money back to the customer", True),
        ("refunds", "a poem", True),
    ]
    assert found["summary"] == {
        "total": 3, "passed": 3, "failed": 0, "hit_at_1": 1.0, "hit_at_5": 1.0, "false_triggers": 0
    }  # fmt: skip
    assert "other.json: has no trigger set" in done.stderr


def test_the_fields_are_those_of_the_runner_that_the_format_comes_from(skills: Path) -> None:
    file = trigger_set(skills.parent / "refunds.json", ("minutes of a meeting", True))
    done = command("evaluate", skills, "--cases", file, "--format", "json")
    (result,) = json.loads(done.stdout)["results"]
    wanted = {"query": "minutes of a meeting", "should_trigger": True, "trigger_rate": 0.0, "triggers": 0, "runs": 1}
    assert result.items() >= (wanted | {"pass": False, "winner": "minutes"}).items()
    assert done.return_value == 1


def test_a_miss_names_the_winner_and_the_words_that_decided(skills: Path) -> None:
    file = trigger_set(skills.parent / "refunds.json", ("minutes of a meeting", True), ("refunds please", False))
    done = command("evaluate", skills, "--cases", file)
    assert "should trigger: 'minutes of a meeting': minutes comes first by the words minutes, meeting" in done.stdout
    assert "should not trigger: 'refunds please': it triggers the skill and should not" in done.stdout
    assert "0 of 2 cases passed; hit@1 0%, hit@5 0%; 1 false triggers" in done.stdout


def test_a_share_of_the_cases_may_be_enough(skills: Path) -> None:
    file = trigger_set(skills.parent / "refunds.json", ("refunds", True), ("minutes", True))
    assert command("evaluate", skills, "--cases", file, "--min-pass", "0.5").return_value == 0
    assert command("evaluate", skills, "--cases", file, "--min-pass", "0.6").return_value == 1


def test_junit_has_a_suite_for_each_skill(skills: Path) -> None:
    for name in ("refunds", "minutes"):
        trigger_set(skills.parent / f"sets/{name}.json", ("refunds", True))
    done = command("evaluate", skills, "--cases", skills.parent / "sets/*.json", "--format", "junit")
    suites = ElementTree.fromstring(done.stdout)
    assert [(each.get("name"), each.get("failures")) for each in suites] == [("minutes", "1"), ("refunds", "0")]


@pytest.mark.parametrize("how", ["name", "field", "place"])
def test_a_file_says_which_skill_it_is_about(skills: Path, how: str) -> None:
    places = {"name": "refunds.json", "field": "any.json", "place": "skills/refunds/sets/any.json"}
    more = {"skill": "refunds"} if how == "field" else {}
    file = trigger_set(skills.parent / places[how], ("refunds", True), **more)
    assert command("evaluate", skills, "--cases", file).return_value == 0


def test_the_sets_of_the_fixtures_are_judged_as_well_as_they_were() -> None:
    """272 of 340 prompts passed when they were written."""
    sets = ROOT / "fixtures/triggers"
    assert len(list(sets.glob("*.json"))) == 17
    assert command("evaluate", FIXTURES, "--cases", sets / "*.json", "--min-pass", "0.78").return_value == 0


def test_what_is_wrong_with_a_set_is_one_line(skills: Path) -> None:
    file = trigger_set(skills.parent / "any.json", ("refunds", True))
    assert "nothing says which skill it is" in refusal("evaluate", skills, "--cases", file)
    assert "no such file" in refusal("evaluate", skills, "--cases", skills / "none.json").lower()
    assert "there is no trigger set" in refusal("evaluate", skills)


@each_row(
    ("text", "message"),
    [
        ("[", "cannot be read as JSON"),
        ("3", "has no trigger set"),
        ("[3]", "is not a list of objects"),
        ('[{"query": "a"}]', "does not say whether it should trigger"),
        ('[{"query": " ", "should_trigger": true}]', "has no text 'query'"),
        ('{"evals": [{"id": 1}]}', "evals[0] has no text 'prompt'"),
        ('{"evals": 1}', "is not a list of objects"),
        (json.dumps([{"query": "x" * 10_001, "should_trigger": True}]), "10,001 characters"),
        ("[" * 100_000, "cannot be read as JSON"),
    ],
)
def test_a_set_of_another_shape_is_refused_with_its_place(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_cases(text.encode(), "a.json")
    assert str(caught.value).startswith("a.json")
    assert message in str(caught.value)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(raw: bytes) -> None:
    try:
        read_cases(raw, "a.json")
    except UsageError:
        return


JUDGE = """
import json, os, sys
asked = json.load(sys.stdin)
with open(os.environ["ASKED"], "a") as file:
    file.write(asked["query"] + "\\n")
print({answer})
"""


@pytest.fixture
def judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a judge that prints an expression over `asked`, as a command line; `asked()` has its questions."""
    monkeypatch.setenv("ASKED", str(tmp_path / "asked"))

    def made(answer: str) -> str:
        (tmp_path / "judge.py").write_text(JUDGE.replace("{answer}", answer))
        return f"{sys.executable} {tmp_path / 'judge.py'}"

    made.asked = lambda: (tmp_path / "asked").read_text().splitlines()  # type: ignore[attr-defined]
    return made


NAMED = '[each["name"] for each in asked["skills"] if each["name"] in asked["query"]]'


@pytest.mark.parametrize(
    "answer", [f"json.dumps({NAMED})", f"json.dumps(dict(skills={NAMED}, cost_usd=0.5))", f'"\\n".join({NAMED})']
)
def test_a_program_can_judge_in_three_shapes(skills: Path, judge: Any, answer: str, tmp_path: Path) -> None:
    file = trigger_set(tmp_path / "refunds.json", ("about refunds", True), ("hello", False))
    line = judge(answer)
    arguments = ("evaluate", skills, "--cases", file, "--judge", line, "--cache-dir", tmp_path / "cache")
    done = command(*arguments, "--format", "json")
    found = json.loads(done.stdout)
    assert [(each["trigger_rate"], each["runs"], each["pass"]) for each in found["results"]] == [
        (1.0, 3, True), (0.0, 3, True)
    ]  # fmt: skip
    assert found["judge_runs"] == 6
    assert found["cost_usd"] == (3.0 if "cost_usd" in answer else 0)
    assert sorted(judge.asked()) == ["about refunds"] * 3 + ["hello"] * 3

    again = command(*arguments)  # the answers are kept
    assert again.return_value == 0 and "0 runs of the judge" in again.stderr
    (skills / "refunds/SKILL.md").write_text(f"---\nname: refunds\ndescription: {NOTES}\n---\n\nx\n")
    assert "6 runs of the judge" in command(*arguments).stderr  # for another catalogue they are not


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("no-such-program", "there is no such program"),
        ("'open", "close the quotation mark"),
        (f"{sys.executable} -c 'import sys; sys.exit(\"no key\")'", "ended with 1: no key"),
        (f"{sys.executable} -c 'print(\"{{\")'", "invalid JSON"),
        (f"{sys.executable} -c 'print(\"[1]\")'", "did not print a list of names"),
    ],
)
def test_a_judge_that_fails_is_one_line(skills: Path, line: str, message: str, tmp_path: Path) -> None:
    file = trigger_set(tmp_path / "refunds.json", ("refunds", True))
    assert message in refusal("evaluate", skills, "--cases", file, "--judge", line, "--runs", 1)


def test_a_judge_has_a_time_limit(skills: Path, tmp_path: Path) -> None:
    file = trigger_set(tmp_path / "refunds.json", ("refunds", True))
    line = f"{sys.executable} -c 'import signal; signal.pause()'"
    said = refusal("evaluate", skills, "--cases", file, "--judge", line, "--runs", 1, "--judge-timeout", "0.2")
    assert "did not answer within 0.2 s" in said


def test_a_prompt_is_tried_by_itself(skills: Path) -> None:
    done = command("try", skills, "pay money back")
    assert done.return_value == 0
    assert "refunds" in done.stdout.splitlines()[1] and "money" in done.stdout
    assert json.loads(command("try", skills, "refunds", "--format", "json").stdout)["places"][0]["path"] == "refunds"
    assert command("try", skills, "xyzzy").return_value == 1
    assert "try takes one or more roots and then a prompt" in refusal("try", "xyzzy")


def test_pairs_that_overlap_are_listed(skills: Path) -> None:
    assert command("overlap", skills).return_value == 0
    write_skill(skills / "repayments", description=REFUNDS)
    done = command("overlap", skills, "--format", "json")
    assert done.return_value == 1
    (pair,) = json.loads(done.stdout)["pairs"]
    assert pair["skills"] == ["refunds", "repayments"] and pair["share"] > 0.7 and "customers" in pair["words"]
    assert "repayments" in command("overlap", skills).stdout
