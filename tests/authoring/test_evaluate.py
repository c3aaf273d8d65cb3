"""`evaluate`, `try`, `overlap` and `context`: trigger sets in the formats of the field, and what a model is shown."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from pathlib import Path
from threading import Barrier
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commands.calls import invoke, refusal, seen
from mcp_skills_server.authoring.context import HOSTS
from mcp_skills_server.authoring.evaluation import (
    CaseResult,
    TriggerCase,
    encode_cases,
    evaluate,
    failure_reason,
    own_cases,
    read_cases,
    summary,
)
from mcp_skills_server.authoring.tokens import token_counter
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.errors import UsageError
from tables import each_row
from wire import DEADLINE, FIXTURES, ROOT, serving, write_skill

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
    (skills / "minutes/evals/deep").mkdir(parents=True)
    (skills / "minutes/evals/evals.json").write_text(json.dumps(evals))
    for name in ("top.json", "evals/other.json", "evals/deep/a.json", "evals/notes.md"):
        (skills / "minutes" / name).write_text("{}")
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
    assert [(each["path"], each["summary"]["total"]) for each in found["skills"]] == [("minutes", 1), ("refunds", 2)]
    (line,) = done.stderr.splitlines()
    assert done.return_value == 0 and "passed over: " in line and "other.json: has no trigger set" in line


def test_a_set_that_cannot_be_read_is_passed_over(skills: Path) -> None:
    trigger_set(skills / "refunds/evals/a.json")
    with Registry([skills]) as registry:
        (skills / "refunds/evals/a.json").unlink()
        found = own_cases(registry.read, registry.snapshot.skills["refunds"], str)
    assert found == ([], ["refunds/evals/a.json: cannot be read (it keeps changing)"])


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


class Chosen:
    """A judge that chooses these skills in its runs, the next ones in each run."""

    def __init__(self, *chosen: list[str], ranks: bool = False, at_once: int = 1) -> None:
        self.runs, self.concurrency, self.ranks = len(chosen), at_once, ranks
        self._chosen, self._begun = chosen, Barrier(at_once)

    def choose(self, query: str, run: int) -> list[str]:
        self._begun.wait(DEADLINE)
        return self._chosen[run]


BOTH = ["minutes", "refunds"]


@each_row(("judge", "threshold", "passed", "triggers", "rank", "winner", "words"), [
    (Chosen(BOTH, []), 0.5, True, 1, 2, "minutes", ["decided"]),
    (Chosen(BOTH, []), 0.51, False, 1, 2, "minutes", ["decided"]),
    (Chosen(BOTH, ranks=True), 0.5, False, 0, 2, "minutes", ["decided"]),
    (Chosen(BOTH[::-1], ranks=True), 0.5, True, 1, 1, "", ["money"]),
    (Chosen(["gone"]), 0.5, False, 0, None, "gone", []), (Chosen([], BOTH), 0.5, True, 1, None, "", []),
])  # fmt: skip
def test_the_share_of_runs_that_triggers_is_enough_from_the_threshold_on(
    skills: Path, judge: Chosen, threshold: float, **wanted: Any
) -> None:
    with Registry([skills]) as registry:
        snapshot = registry.snapshot
        cases = [(snapshot.skills["refunds"], TriggerCase("decided money", should_trigger=True))]
        (found,) = evaluate(cases, judge, snapshot, threshold)
        twice = [*evaluate(cases * 2, Chosen([], at_once=2), snapshot)]
    assert found._asdict().items() >= wanted.items() and len(twice) == 2


def test_totals_and_reasons(skills: Path) -> None:
    with Registry([skills]) as registry:
        skill = registry.snapshot.skills["refunds"]

    def result(should: bool, rank: int | None = None, **more: Any) -> CaseResult:
        return CaseResult(skill, TriggerCase("q", should), 0, 1, False, rank, "", ())._replace(**more)

    refused = [result(False), result(False, 1), result(False, passed=True)]
    wanted = [result(True, rank, passed=rank == 1) for rank in (1, 5, 6, None, None, None)]
    totals = {"total": 9, "passed": 2, "failed": 7, "hit_at_1": 0.1667, "hit_at_5": 0.3333, "false_triggers": 2}
    assert summary(wanted + refused).as_json() == totals and summary(refused).hit_at_5 is None
    for failed, reason in (
        (result(False, 1, words=("a", "b")), "it triggers the skill and should not by the words a, b"),
        (result(True, runs=2, triggers=1), "chosen in 1 of 2 runs"),
        (result(True, 2, winner="other"), "other comes first; the skill is in place 2"),
        (result(True, winner="other"), "other comes first; the skill is not among those chosen"),
        (result(True), "no skill is chosen"),
    ):
        assert failure_reason(failed) == reason


def test_a_set_that_is_written_is_read_again() -> None:
    raw = encode_cases([TriggerCase("Größe", should_trigger=True)])
    assert raw.decode() == '[\n  {\n    "query": "Größe",\n    "should_trigger": true\n  }\n]\n'
    assert read_cases(raw, "a.json") == [TriggerCase("Größe", should_trigger=True)]


def test_junit_has_a_suite_for_each_skill(skills: Path) -> None:
    for name in ("refunds", "minutes"):
        trigger_set(skills.parent / f"sets/{name}.json", ("refunds", True))
    done = invoke("evaluate", skills, "--cases", skills.parent / "sets/*.json", "--format", "junit")
    assert done.stdout.startswith("<?xml ") and done.stdout.splitlines()[1:] == [
        '<testsuites name="trigger evaluation">', '  <testsuite name="minutes" tests="1" failures="1">',
        '    <testcase classname="minutes" name="refunds">',
        '      <failure message="refunds comes first by the words refunds; the skill is not among those chosen" />',
        "    </testcase>", "  </testsuite>", '  <testsuite name="refunds" tests="1" failures="0">',
        '    <testcase classname="refunds" name="refunds" />', "  </testsuite>", "</testsuites>",
    ]  # fmt: skip


@each_row(("place", "more"), [
    ("refunds.json", {}), ("any.json", {"skill": "refunds"}), ("any.json", {"skill_name": "refunds"}),
    ("skills/refunds/sets/any.json", {}),
])  # fmt: skip
def test_a_file_says_which_skill_it_is_about(skills: Path, place: str, more: dict[str, str]) -> None:
    file = trigger_set(skills.parent / place, ("refunds", True), **more)
    assert invoke("evaluate", skills, "--cases", file).return_value == 0


def test_the_sets_of_the_fixtures_are_judged_as_well_as_they_were() -> None:
    """272 of 340 prompts passed when they were written."""
    sets = ROOT / "fixtures/triggers"
    assert len(list(sets.glob("*.json"))) == 17
    assert invoke("evaluate", FIXTURES, "--cases", sets / "*.json", "--min-pass", "0.78").return_value == 0


def test_what_is_wrong_with_a_set_is_one_line(skills: Path) -> None:
    file = trigger_set(skills.parent / "any.json", ("refunds", True))
    assert "nothing says which skill it is" in refusal("evaluate", skills, "--cases", file)
    assert "no such file" in refusal("evaluate", skills, "--cases", skills / "none.json").lower()
    assert "there is no trigger set" in refusal("evaluate", skills)
    whole = trigger_set(skills.parent / "refunds.json", ("refunds", True)).read_bytes().ljust(16 << 20)
    (skills.parent / "refunds.json").write_bytes(whole)
    assert invoke("evaluate", skills, "--cases", skills.parent / "refunds.json").return_value == 0
    file.write_bytes(whole + b" ")
    assert "any.json: has more than 16,777,216 bytes; split it" in refusal("evaluate", skills, "--cases", file)


@each_row(("text", "message"), [
    ("[", "cannot be read as JSON"), ("3", "has no trigger set"), ("[3]", "is not a list of objects"),
    ('[{"query": "a"}]', "does not say whether it should trigger"),
    ('[{"query": " ", "should_trigger": true}]', "has no text 'query'"),
    ('{"evals": [{"id": 1}]}', "evals[0] has no text 'prompt'"), ('{"evals": 1}', "is not a list of objects"),
    ("[" * 100_000, "cannot be read as JSON"),
])  # fmt: skip
def test_a_set_of_another_shape_is_refused_with_its_place(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_cases(text.encode(), "a.json")
    assert str(caught.value).startswith("a.json")
    assert message in str(caught.value)


@each_row(("count", "length", "said"), [
    (10_000, 1, None), (10_001, 1, "has 10,001 cases, at most 10,000"),
    (1, 10_000, None), (1, 10_001, "'query' has 10,001 characters, at most 10,000"),
])  # fmt: skip
def test_a_set_is_read_up_to_its_limits(count: int, length: int, said: str | None) -> None:
    raw = json.dumps([{"query": "x" * length, "should_trigger": True}] * count).encode()
    if said is None:
        assert len(read_cases(raw, "a.json")) == count
        return
    with pytest.raises(UsageError, match=said):
        read_cases(raw, "a.json")


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
named += ["nobody"] if named else []
print({answer})
"""


@pytest.mark.parametrize(
    "answer",
    ["json.dumps(named)", "json.dumps(dict(skills=named, **(dict(cost_usd=1) if named else {})))", '"\\n".join(named)'],
)
def test_a_program_can_judge_in_three_shapes(skills: Path, answer: str, tmp_path: Path) -> None:
    file = trigger_set(tmp_path / "refunds.json", ("refunds and minutes", True), ("hello", False))
    judge, asked = tmp_path / "judge.py", tmp_path / "asked"
    judge.write_text(JUDGE.format(asked=asked, answer=answer))
    words = ("evaluate", skills, "--cases", file, "--cache-dir", tmp_path / "cache")
    words += ("--judge", f"{sys.executable} {judge}")
    found = seen(*words)
    assert [(each["trigger_rate"], each["runs"], each["pass"]) for each in found["results"]] == [
        (1.0, 3, True), (0.0, 3, True)
    ]  # fmt: skip
    assert (found["judge_runs"], found["cost_usd"]) == (6, 3.0 if "cost_usd" in answer else 0)
    assert sorted(asked.read_text().splitlines()) == ["hello"] * 3 + ["refunds and minutes"] * 3
    again = invoke(*words)  # the answers are kept
    assert again.return_value == 0 and "0 runs of the judge" in again.stderr
    write_skill(skills / "refunds", description=NOTES)
    assert "6 runs of the judge" in invoke(*words).stderr  # for another catalogue they are not
    judge.write_text(judge.read_text() + "# another one\n")
    assert "6 runs of the judge" in invoke(*words).stderr
    trigger_set(file, ("hello", True))
    assert "should trigger: 'hello': chosen in 0 of 3 runs" in invoke(*words).stdout


@each_row(("line", "message"), [
    ("no-such-program", "there is no such program"), ("'open", "close the quotation mark"),
    ("", "there is no such program"), ("{place}/no.exe", "could not be started (Exec format error)"),
    (f"{sys.executable} -c 'import sys; sys.exit(\"it began\\nno key\")'", "ended with 1: no key"),
    (f"{sys.executable} -c 'print(\"{{\")'", "invalid JSON"),
    (f"{sys.executable} -c 'print(\"[1]\")'", "did not print a list of names"),
    (f"{sys.executable} -c 'import signal; signal.pause()'", "did not answer within 2 s"),
])  # fmt: skip
def test_a_judge_that_fails_is_one_line(skills: Path, line: str, message: str) -> None:
    file = trigger_set(skills.parent / "refunds.json", ("refunds", True))
    limits = ("--runs", 1, "--judge-timeout", 2)
    (skills.parent / "no.exe").write_bytes(b"\0")
    (skills.parent / "no.exe").chmod(0o755)
    line = line.replace("{place}", str(skills.parent))
    assert message in refusal("evaluate", skills, "--cases", file, "--judge", line, *limits)


def test_a_prompt_is_tried_by_itself(skills: Path) -> None:
    done = invoke("try", skills, "pay money back")
    assert done.return_value == 0 and "refunds" in done.stdout.splitlines()[1] and "money" in done.stdout
    assert seen("try", skills, "refunds")["places"][0]["path"] == "refunds"
    for more in ([], ["--format", "json"]):
        assert invoke("try", skills, "xyzzy", *more).return_value == 1
        assert invoke("try", skills, "refunds", *more).return_value == 0
    assert invoke("try", skills, "refunds").stdout.splitlines()[1].split()[:3] == ["1", "refunds", "name"]
    assert invoke("try", skills, "xyzzy").stdout == "no skill fits 'xyzzy'\n"
    assert "try takes one or more roots and then a prompt" in refusal("try", "xyzzy")


def test_pairs_that_overlap_are_listed(skills: Path) -> None:
    done = invoke("overlap", skills)
    assert (done.return_value, done.stdout) == (0, "no two skills have 50% of their words in common\n")
    write_skill(skills / "repayments", description=REFUNDS)
    done = invoke("overlap", skills)
    assert done.return_value == 1 and "repayments" in done.stdout
    assert "refunds  repayments  " in done.stdout
    (pair,) = seen("overlap", skills)["pairs"]
    assert pair["skills"] == ["refunds", "repayments"] and pair["share"] > 0.7 and "customers" in pair["words"]


def test_the_texts_are_those_that_a_server_sends() -> None:
    with serving(FIXTURES, opened=False) as wire:
        first, *others = seen("context", FIXTURES)["unasked"]
        assert first["text"] == wire.open()["instructions"]
        tools = wire.request("tools/list")["tools"]
    sent = [{key: each[key] for key in ("name", "description", "inputSchema")} for each in tools]
    assert [each["text"] for each in others] == [json.dumps(each, ensure_ascii=False) for each in sent]
    assert "Tool skills_load" in {each["title"] for each in others}
    assert {each["cut_characters"] for each in (first, *others)} == {0}


def test_claude_code_is_shown_the_names_of_tools() -> None:
    texts = {each["title"]: each["text"] for each in seen("context", FIXTURES, "--host", "claude-code")["unasked"]}
    assert set(texts) == {"Instructions of the server", "Names of the tools"}
    assert "skills_load" in texts["Names of the tools"].splitlines()


def test_codex_is_shown_one_line(tmp_path: Path) -> None:
    write_skill(tmp_path / "refunds")
    whole = seen("context", tmp_path, "--host", "gemini-cli")["unasked"][0]["text"]
    line = whole.partition("\n")[0]
    size, left, tokens = len(line), len(whole) - len(line), f"{-(-len(line) // 4)} tokens"
    assert invoke("context", tmp_path, "--host", "codex").stdout.splitlines() == [
        f"=== Instructions of the server: {size} characters, {tokens}; the host leaves out {left} characters",
        *(line, ""),
        f"codex: {tokens} unasked (an estimate: one token for 4 bytes of UTF-8)",
        "of the skills 0 have their description there, 0 less, 1 are absent",
    ]


def test_what_stands_whole_and_what_does_not_is_counted(tmp_path: Path) -> None:
    assert all(seen("context", tmp_path, "--host", host)["unasked"] == [] for host in HOSTS)
    write_skill(tmp_path / "skill-0")
    assert seen("context", tmp_path)["skills"] == {"whole": ["skill-0"], "shortened": [], "absent": []}
    for number in range(300):
        write_skill(tmp_path / f"skill-{number}", description=f"Thing {number}. " + "Many words of no use. " * 30)
    skills = seen("context", tmp_path, "--host", "gemini-cli")["skills"]
    assert sum(map(len, skills.values())) == 300 and skills["shortened"] and not skills["whole"]


@each_row("host", HOSTS)
def test_loading_a_skill_brings_its_body(tmp_path: Path, host: str) -> None:
    write_skill(tmp_path / "a", body="Knöck three times.\n")
    write_skill(tmp_path / "mine", description="Does it.\ndisable-model-invocation: true")
    text, refused = seen("context", tmp_path, "--host", host, "--skill", "a", "--skill", "mine")["loaded"]
    assert "Knöck three times." in text["text"] and "mine" in refused["text"]
    assert "'list' shows what there is" in refusal("context", tmp_path, "--host", host, "--skill", "xyz")


def test_a_long_result_is_cut_where_hosts_cut_it(tmp_path: Path) -> None:
    def loaded(padding: int) -> dict[str, Any]:
        write_skill(tmp_path / "a", body='"' * 18_500 + "x" * padding)
        return seen("context", tmp_path, "--host", "codex", "--skill", "a")["loaded"][0]

    fits = 40_000 - len(loaded(0)["text"])
    whole, cut = loaded(fits), loaded(fits + 1)
    assert (len(whole["text"]), whole["cut_characters"], cut["cut_characters"]) == (40_000, 0, 1)
    assert cut["text"].endswith("… [truncated]") and len(cut["text"]) == 40_000 + len("… [truncated]")


def test_a_budget_decides_the_exit_code(tmp_path: Path) -> None:
    write_skill(tmp_path / "a")
    found = seen("context", tmp_path)
    assert found["tokens"] == sum(each["tokens"] for each in found["unasked"]) > 0 and found["ok"]
    assert invoke("context", tmp_path, "--budget", found["tokens"]).return_value == 0
    done = invoke("context", tmp_path, "--budget", found["tokens"] - 1)
    assert done.return_value == 1 and f"more than the budget of {found['tokens'] - 1:,}" in done.stderr
    done = invoke("context", tmp_path, "--budget", "0", "--format", "json")
    assert done.return_value == 1 and not json.loads(done.stdout)["ok"]
    assert "is not in the range" in str(invoke("context", tmp_path, "--budget", "-1").exception)


def test_tokens_are_counted_by_tiktoken_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    encoding = SimpleNamespace(encode=lambda text, **_: text.split())
    monkeypatch.setitem(sys.modules, "tiktoken", SimpleNamespace(get_encoding=lambda _: encoding))
    count, method = token_counter.__wrapped__()
    assert count("one two three") == 3 and method.startswith("counted by tiktoken")
