"""`evaluate`, `try` and `context`: trigger sets, judges, and texts that models see."""

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

from commands.calls import invoke, json_of, refusal, run
from dispatching import dispatching
from mcp_skills_server.authoring.context import CONTEXTS
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
from wire import DEADLINE, FIXTURES, ROOT, write_skill

REFUNDS = "Issue refunds to customers. Use when money is to be paid back."
NOTES = "Write minutes of meetings. Use when somebody asks what was decided."


@pytest.fixture
def skills(tmp_path: Path) -> Path:
    write_skill(tmp_path / "skills/refunds", description=REFUNDS)
    return write_skill(tmp_path / "skills/minutes", description=NOTES).parent


def write_trigger_set(path: Path, *cases: tuple[str, bool], **fields: str) -> Path:
    """Write cases of a query and whether it should trigger, each with further fields."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([{"query": query, "should_trigger": should, **fields} for query, should in cases]))
    return path


def test_trigger_sets_in_skills_are_evaluated(skills: Path) -> None:
    write_trigger_set(
        skills / "refunds/evals/queries.json", ("pay the money back to the customer", True), ("a poem", False)
    )
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
    assert done.return_value == 0
    assert "passed over: " in line and "other.json: has no trigger set" in line


def test_unreadable_trigger_set_is_skipped(skills: Path) -> None:
    write_trigger_set(skills / "refunds/evals/a.json")
    with Registry([skills]) as registry:
        (skills / "refunds/evals/a.json").unlink()
        found = own_cases(registry.read, registry.snapshot.skills["refunds"], str)
    assert found[0] == [] and [*map(str, found[1])] == ["refunds/evals/a.json: cannot be read (it keeps changing)"]


def test_malformed_trigger_set_of_a_skill_is_an_error(skills: Path) -> None:
    """Although another skill has a valid one, whose cases pass."""
    write_trigger_set(skills / "refunds/evals/queries.json", ("pay the money back to the customer", True))
    file = write_trigger_set(skills / "minutes/evals/trigger_queries.json")
    file.write_text('[{"query": "x"}]', encoding="utf-8")
    message = refusal("evaluate", skills)
    assert message.startswith(str(file)) and "entry 0 does not say whether it should trigger" in message
    assert run("evaluate", skills).returncode == 2


def test_failed_case_names_the_winner_and_the_deciding_words(skills: Path) -> None:
    file = write_trigger_set(skills.parent / "refunds.json", ("minutes of a meeting", True), ("refunds please", False))
    done = invoke("evaluate", skills, "--cases", file)
    assert "should trigger: 'minutes of a meeting': minutes comes first by the words minutes, meeting" in done.stdout
    assert "should not trigger: 'refunds please': it triggers the skill and should not" in done.stdout
    assert "0 of 2 cases passed; hit@1 0%, hit@5 0%; 1 false triggers" in done.stdout
    result = json_of("evaluate", skills, "--cases", file)["results"][0]
    # The fields of the runner that the format comes from, and the winner.
    expected = {"query": "minutes of a meeting", "should_trigger": True, "trigger_rate": 0.0, "triggers": 0, "runs": 1}
    assert result.items() >= (expected | {"pass": False, "winner": "minutes"}).items()


def test_min_pass_sets_the_required_share_of_cases(skills: Path) -> None:
    file = write_trigger_set(skills.parent / "refunds.json", ("refunds", True), ("minutes", True))
    assert invoke("evaluate", skills, "--cases", file, "--min-pass", "0.5").return_value == 0
    assert invoke("evaluate", skills, "--cases", file, "--min-pass", "0.6").return_value == 1


class ScriptedJudge:
    """A judge that chooses given skills in each run; it waits for `concurrency` calls at once."""

    def __init__(self, *chosen: list[str], ranks: bool = False, concurrency: int = 1) -> None:
        self.runs = len(chosen)
        self.ranks = ranks
        self.concurrency = concurrency
        self._chosen = chosen
        self._barrier = Barrier(concurrency)

    def choose(self, query: str, run: int) -> list[str]:
        self._barrier.wait(DEADLINE)
        return self._chosen[run]


BOTH = ["minutes", "refunds"]


@each_row(("judge", "threshold", "passed", "triggers", "rank", "winner", "words"), [
    (ScriptedJudge(BOTH, []), 0.5, True, 1, 2, "minutes", ["decided"]),
    (ScriptedJudge(BOTH, []), 0.51, False, 1, 2, "minutes", ["decided"]),
    (ScriptedJudge(BOTH, ranks=True), 0.5, False, 0, 2, "minutes", ["decided"]),
    (ScriptedJudge(BOTH[::-1], ranks=True), 0.5, True, 1, 1, "", ["money"]),
    (ScriptedJudge(["gone"]), 0.5, False, 0, None, "gone", []), (ScriptedJudge([], BOTH), 0.5, True, 1, None, "", []),
])  # fmt: skip
def test_case_passes_from_the_threshold_of_triggering_runs(
    skills: Path, judge: ScriptedJudge, threshold: float, **expected: Any
) -> None:
    with Registry([skills]) as registry:
        snapshot = registry.snapshot
        cases = [(snapshot.skills["refunds"], TriggerCase("decided money", should_trigger=True))]
        (result,) = evaluate(cases, judge, snapshot, threshold)
        concurrent = [*evaluate(cases * 2, ScriptedJudge([], concurrency=2), snapshot)]
    assert expected.items() <= result._asdict().items()
    assert len(concurrent) == 2


def test_summary_and_failure_reasons(skills: Path) -> None:
    with Registry([skills]) as registry:
        skill = registry.snapshot.skills["refunds"]

    def result(should: bool, rank: int | None = None, **fields: Any) -> CaseResult:
        return CaseResult(skill, TriggerCase("q", should), 0, 1, False, rank, "", ())._replace(**fields)

    negative = [result(False), result(False, 1), result(False, passed=True)]
    positive = [result(True, rank, passed=rank == 1) for rank in (1, 5, 6, None, None, None)]
    totals = {"total": 9, "passed": 2, "failed": 7, "hit_at_1": 0.1667, "hit_at_5": 0.3333, "false_triggers": 2}
    assert summary(positive + negative).as_json() == totals
    assert summary(negative).hit_at_5 is None
    for failed, reason in (
        (result(False, 1, words=("a", "b")), "it triggers the skill and should not by the words a, b"),
        (result(True, runs=2, triggers=1), "chosen in 1 of 2 runs"),
        (result(True, 2, winner="other"), "other comes first; the skill is in place 2"),
        (result(True, winner="other"), "other comes first; the skill is not among those chosen"),
        (result(True), "no skill is chosen"),
    ):
        assert failure_reason(failed) == reason


def test_trigger_set_round_trips() -> None:
    raw = encode_cases([TriggerCase("Größe", should_trigger=True)])
    assert raw.decode() == '[\n  {\n    "query": "Größe",\n    "should_trigger": true\n  }\n]\n'
    assert read_cases(raw, "a.json") == [TriggerCase("Größe", should_trigger=True)]


def test_junit_has_a_suite_for_each_skill(skills: Path) -> None:
    for name in ("refunds", "minutes"):
        write_trigger_set(skills.parent / f"sets/{name}.json", ("refunds", True))
    done = invoke("evaluate", skills, "--cases", skills.parent / "sets/*.json", "--format", "junit")
    assert done.stdout.startswith("<?xml ") and done.stdout.splitlines()[1:] == [
        '<testsuites name="trigger evaluation">', '  <testsuite name="minutes" tests="1" failures="1">',
        '    <testcase classname="minutes" name="refunds">',
        '      <failure message="refunds comes first by the words refunds; the skill is not among those chosen" />',
        "    </testcase>", "  </testsuite>", '  <testsuite name="refunds" tests="1" failures="0">',
        '    <testcase classname="refunds" name="refunds" />', "  </testsuite>", "</testsuites>",
    ]  # fmt: skip


@each_row(("path", "fields"), [
    ("refunds.json", {}), ("any.json", {"skill": "refunds"}), ("any.json", {"skill_name": "refunds"}),
    ("skills/refunds/sets/any.json", {}),
])  # fmt: skip
def test_trigger_set_is_assigned_to_its_skill(skills: Path, path: str, fields: dict[str, str]) -> None:
    file = write_trigger_set(skills.parent / path, ("refunds", True), **fields)
    assert invoke("evaluate", skills, "--cases", file).return_value == 0


def test_trigger_set_in_a_nested_skill_is_about_the_inner_one(skills: Path) -> None:
    inner = write_skill(skills / "refunds/chargebacks", description="Handles chargebacks. Use when a bank asks.")
    file = write_trigger_set(inner / "evals/a.json", ("the bank asks about a chargeback", True))
    for options in ([], ["--cases", file]):
        (result,) = json_of("evaluate", skills, *options)["results"]
        assert (result["path"], result["pass"]) == ("refunds/chargebacks", True)


def test_pass_rate_of_the_fixtures_does_not_drop() -> None:
    """272 of 340 prompts passed when they were written."""
    sets = ROOT / "fixtures/triggers"
    assert len(list(sets.glob("*.json"))) == 17
    assert invoke("evaluate", FIXTURES, "--cases", sets / "*.json", "--min-pass", "0.78").return_value == 0


def test_invalid_trigger_set_is_reported_in_one_line(skills: Path) -> None:
    file = write_trigger_set(skills.parent / "any.json", ("refunds", True))
    assert "nothing says which skill it is" in refusal("evaluate", skills, "--cases", file)
    assert "no such file" in refusal("evaluate", skills, "--cases", skills / "none.json").lower()
    assert "there is no trigger set" in refusal("evaluate", skills)
    largest = write_trigger_set(skills.parent / "refunds.json", ("refunds", True))
    raw = largest.read_bytes().ljust(16 << 20)
    largest.write_bytes(raw)
    assert invoke("evaluate", skills, "--cases", largest).return_value == 0
    file.write_bytes(raw + b" ")
    assert "any.json: cannot be read (it has more than 16,777,216 " in refusal("evaluate", skills, "--cases", file)


def trigger_set(count: int, length: int) -> str:
    return json.dumps([{"query": "x" * length, "should_trigger": True}] * count)


@each_row(("text", "message"), [
    ('[{"query": "x"', "cannot be read as JSON (Expecting ',' delimiter: line 1 column 15 "),
    ("3", "has no trigger set"), ("[3]", "is not a list of objects"),
    ('[{"query": "a"}]', "entry 0 does not say whether it should trigger"),
    ('[{"quary": "x", "should_trigger": true}]', "entry 0 has no text 'query'"),
    ('[{"query": " ", "should_trigger": true}]', "has no text 'query'"),
    ('{"evals": [{"id": 1}]}', "evals[0] has no text 'prompt'"), ('{"evals": 1}', "is not a list of objects"),
    ("[" * 100_000, "cannot be read as JSON"),
    (trigger_set(10_001, 1), "has 10,001 cases, at most 10,000"),
    (trigger_set(1, 10_001), "'query' has 10,001 characters, at most 10,000"),
])  # fmt: skip
def test_malformed_or_too_long_trigger_set_is_refused_with_its_file(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_cases(text.encode(), "a.json")
    assert str(caught.value).startswith("a.json")
    assert message in str(caught.value)
    for count, length in ((10_000, 1), (1, 10_000)):
        assert len(read_cases(trigger_set(count, length).encode(), "a.json")) == count


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(raw: bytes) -> None:
    with suppress(UsageError):
        read_cases(raw, "a.json")


JUDGE = """
import json, sys
question = json.load(sys.stdin)
with open("{log}", "a") as file:
    file.write(question["query"] + "\\n")
named = [each["name"] for each in question["skills"] if each["name"] in question["query"]]
if named:
    named.append("unknown")
print({answer})
"""


@pytest.mark.parametrize("answer", [
    "json.dumps(named)", "json.dumps(dict(skills=named, **(dict(cost_usd=1) if named else {})))", '"\\n".join(named)',
])  # fmt: skip
def test_judge_program_may_answer_in_three_formats(skills: Path, answer: str, tmp_path: Path) -> None:
    file = write_trigger_set(tmp_path / "refunds.json", ("refunds and minutes", True), ("hello", False))
    judge = tmp_path / "judge.py"
    log = tmp_path / "log"
    judge.write_text(JUDGE.format(log=log, answer=answer))
    words = ("evaluate", skills, "--cases", file, "--cache-dir", tmp_path / "cache")
    words += ("--judge", f"{sys.executable} {judge}")
    found = json_of(*words)
    assert [(each["trigger_rate"], each["runs"], each["pass"]) for each in found["results"]] == [
        (1.0, 3, True), (0.0, 3, True)
    ]  # fmt: skip
    assert (found["judge_runs"], found["cost_usd"]) == (6, 3.0 if "cost_usd" in answer else 0)
    assert sorted(log.read_text().splitlines()) == ["hello"] * 3 + ["refunds and minutes"] * 3
    cached = invoke(*words)
    assert cached.return_value == 0 and "0 runs of the judge" in cached.stderr
    # Another catalogue or another judge invalidates the cache.
    write_skill(skills / "refunds", description=NOTES)
    assert "6 runs of the judge" in invoke(*words).stderr
    judge.write_text(judge.read_text() + "# another one\n")
    assert "6 runs of the judge" in invoke(*words).stderr
    write_trigger_set(file, ("hello", True))
    assert "should trigger: 'hello': chosen in 0 of 3 runs" in invoke(*words).stdout


@each_row(("line", "message"), [
    ("no-such-program", "there is no such program"), ("'open", "close the quotation mark"),
    ("", "there is no such program"), ("{place}/no.exe", "could not be started (Exec format error)"),
    (f"{sys.executable} -c 'import sys; sys.exit(\"it began\\nno key\")'", "ended with 1: no key"),
    (f"{sys.executable} -c 'print(\"{{\")'", "invalid JSON"),
    (f"{sys.executable} -c 'print(\"[1]\")'", "did not print a list of names"),
    (f"{sys.executable} -c 'import signal; signal.pause()'", "did not answer within 0.5 s"),
    ("sh -c 'exec >&- 2>&-; sleep 60'", "did not answer within 0.5 s"),
    ("sh -c 'sleep 60 & echo []'", "did not answer within 0.5 s"),  # its child holds the pipe
    *((f"sh -c 'yes >&{number}; exit 0'", "wrote more than 4,194,304 bytes") for number in (1, 2)),
    *((f"echo '{{\"skills\": [], \"cost_usd\": {cost}}}'", f"invalid JSON (JSON has no {cost})")
      for cost in ("NaN", "Infinity", "-Infinity", "1e999")),
    *((f"echo '{{\"skills\": [], \"cost_usd\": {cost}}}'", "cost_usd is no number from 0 to 1,000,000")
      for cost in ("-1", "1" + "0" * 400)),
])  # fmt: skip
def test_failed_judge_is_reported_in_one_line(skills: Path, line: str, message: str) -> None:
    file = write_trigger_set(skills.parent / "refunds.json", ("refunds", True))
    limits = ("--runs", 1, "--judge-timeout", 0.5 if message.endswith("within 0.5 s") else 60)
    (skills.parent / "no.exe").write_bytes(b"\0")
    (skills.parent / "no.exe").chmod(0o755)
    line = line.replace("{place}", str(skills.parent))
    assert message in refusal("evaluate", skills, "--cases", file, "--judge", line, *limits)


def test_prompt_ranks_skills(skills: Path) -> None:
    done = invoke("evaluate", skills, "--prompt", "pay money back")
    assert done.return_value == 0
    assert "refunds" in done.stdout.splitlines()[1] and "money" in done.stdout
    assert json_of("evaluate", skills, "--prompt", "refunds")["places"][0]["path"] == "refunds"
    for options in ([], ["--format", "json"]):
        assert invoke("evaluate", skills, "--prompt", "xyzzy", *options).return_value == 1
        assert invoke("evaluate", skills, "--prompt", "refunds", *options).return_value == 0
    named = invoke("evaluate", skills, "--prompt", "refunds").stdout.splitlines()
    assert named[1].split()[:3] == ["1", "refunds", "name"]
    assert invoke("evaluate", skills, "--prompt", "xyzzy").stdout == "no skill fits 'xyzzy'\n"
    for words in (["--outputs"], ["--judge", "true"], ["--cases", "x"], ["--format", "junit"]):
        assert "--prompt shows how skills rank" in refusal("evaluate", skills, "--prompt", "x", *words)


def test_context_equals_the_texts_that_a_server_sends() -> None:
    with dispatching(FIXTURES, opened=False) as wire:
        first, *others = json_of("context", FIXTURES)["unasked"]
        assert first["text"] == wire.open()["instructions"]
        tools = wire.request("tools/list")["tools"]
    sent = [{key: each[key] for key in ("name", "description", "inputSchema")} for each in tools]
    assert [each["text"] for each in others] == [json.dumps(each, ensure_ascii=False) for each in sent]
    assert "Tool skills_load" in {each["title"] for each in others}
    assert {each["cut_characters"] for each in (first, *others)} == {0}


def test_context_of_claude_code_has_only_tool_names() -> None:
    texts = {each["title"]: each["text"] for each in json_of("context", FIXTURES, "--host", "claude-code")["unasked"]}
    assert set(texts) == {"Instructions of the server", "Names of the tools"}
    assert "skills_load" in texts["Names of the tools"].splitlines()


def test_context_of_codex_has_only_the_first_line(tmp_path: Path) -> None:
    write_skill(tmp_path / "refunds")
    text = json_of("context", tmp_path, "--host", "gemini-cli")["unasked"][0]["text"]
    line = text.partition("\n")[0]
    left_out = len(text) - len(line)
    tokens = f"{-(-len(line) // 4)} tokens"
    assert invoke("context", tmp_path, "--host", "codex").stdout.splitlines() == [
        f"=== Instructions of the server: {len(line)} characters, {tokens}; the host cuts {left_out} characters",
        line,
        "",
        f"codex: {tokens} unasked (an estimate: one token for 4 bytes of UTF-8)",
        "of the skills 0 have their description there, 0 less, 1 are absent",
        "FIGURE             VALUE       BASIS",
        "instructions       first line  measured",
        "tools              none        measured",
        "text_characters    no cut      measured",
        "result_characters  40,000      measured",
    ]


def test_context_counts_whole_shortened_and_absent_descriptions(tmp_path: Path) -> None:
    assert all(json_of("context", tmp_path, "--host", host)["unasked"] == [] for host in CONTEXTS)
    write_skill(tmp_path / "skill-0")
    assert json_of("context", tmp_path)["skills"] == {"whole": ["skill-0"], "shortened": [], "absent": []}
    for number in range(300):
        write_skill(tmp_path / f"skill-{number}", description=f"Thing {number}. " + "Many words of no use. " * 30)
    skills = json_of("context", tmp_path, "--host", "gemini-cli")["skills"]
    assert sum(map(len, skills.values())) == 300
    assert skills["shortened"] and not skills["whole"]


@each_row("host", CONTEXTS)
def test_context_of_a_loaded_skill_has_its_body(tmp_path: Path, host: str) -> None:
    write_skill(tmp_path / "a", body="Knöck three times.\n")
    write_skill(tmp_path / "mine", description="Does it.\ndisable-model-invocation: true")
    text, refused = json_of("context", tmp_path, "--host", host, "--skill", "a", "--skill", "mine")["loaded"]
    assert "Knöck three times." in text["text"] and "mine" in refused["text"]
    assert "'list' shows what there is" in refusal("context", tmp_path, "--host", host, "--skill", "xyz")


def test_long_result_is_cut_at_the_limit_of_the_host(tmp_path: Path) -> None:
    def load(padding: int) -> dict[str, Any]:
        write_skill(tmp_path / "a", body='"' * 18_500 + "x" * padding)
        return json_of("context", tmp_path, "--host", "codex", "--skill", "a")["loaded"][0]

    padding = 40_000 - len(load(0)["text"])
    whole = load(padding)
    assert (len(whole["text"]), whole["cut_characters"]) == (40_000, 0)
    cut = load(padding + 1)
    assert cut["cut_characters"] == 1
    assert cut["text"].endswith("… [truncated]")
    assert len(cut["text"]) == 40_000 + len("… [truncated]")


def test_context_over_budget_exits_with_1(tmp_path: Path) -> None:
    write_skill(tmp_path / "a")
    found = json_of("context", tmp_path)
    assert found["tokens"] == sum(each["tokens"] for each in found["unasked"]) > 0 and found["ok"]
    assert invoke("context", tmp_path, "--budget", found["tokens"]).return_value == 0
    done = invoke("context", tmp_path, "--budget", found["tokens"] - 1)
    assert done.return_value == 1 and f"more than the budget of {found['tokens'] - 1:,}" in done.stderr
    done = invoke("context", tmp_path, "--budget", "0", "--format", "json")
    assert done.return_value == 1 and not json.loads(done.stdout)["ok"]
    assert "is not in the range" in str(invoke("context", tmp_path, "--budget", "-1").exception)


def test_tokens_are_counted_with_tiktoken_if_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    encoding = SimpleNamespace(encode=lambda text, **_: text.split())
    monkeypatch.setitem(sys.modules, "tiktoken", SimpleNamespace(get_encoding=lambda _: encoding))
    count, method = token_counter.__wrapped__()
    assert count("one two three") == 3 and method.startswith("counted by tiktoken")
