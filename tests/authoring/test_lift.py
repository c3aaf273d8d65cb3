"""`evaluate --outputs`: what a skill changes in outputs, by a scripted judge with known effects."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from commands.calls import invoke, json_of, refusal
from mcp_skills_server.authoring.lift import compare_shares, read_evals, wilson
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.errors import UsageError
from mcp_skills_server.proposals.store import Proposal, ProposalStore
from tables import each_row
from wire import COMMAND, ROOT, write_skill

EVALS = [
    {"id": 7, "name": "minutes", "prompt": "Write the minutes.", "expectations": ["always", "word:decided"],
     "assertions": ["word:owner", "word:date"]},
    {"id": 8, "prompt": "Read it.", "files": ["evals/files/a.bin"], "assertions": [{"text": "always"}]},
    {"id": 9, "prompt": "Without an assertion."},
]  # fmt: skip
CASE = {"id": 1, "prompt": "a", "expectations": ["x"]}
JUDGE = """
import json, sys
question = json.load(sys.stdin)
with open({log!r}, "a") as file:
    file.write(json.dumps(question) + "\\n")
skill = question["skill"]
text = "".join(each["text"] for each in skill) if skill else ""
graded = [
    {{"text": each, "passed": each == "always" or each.removeprefix("word:") in text, "evidence": "seen"}}
    for each in question["expectations"]
]
timing = {{"total_tokens": 30 if skill else 10, "total_duration_seconds": 2.5}}
print(json.dumps({{"expectations": graded, "timing": timing, "cost_usd": 0.5, "model": "scripted"}}))
"""


class Bench:
    """A root with one skill that has evals, and a judge that logs the questions it was asked."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "skills"
        self.log = folder / "log"
        self.judge = folder / "judge.py"
        self.judge.write_text(JUDGE.format(log=str(self.log)))
        self.write("decided owner date")
        self.evals = self.root / "minutes/evals/evals.json"
        (self.evals.parent / "files").mkdir(parents=True)
        (self.evals.parent / "files/a.bin").write_bytes(b"\xff\0")
        self.evals.write_text(json.dumps({"skill_name": "minutes", "evals": EVALS}))
        self.judging = ("--outputs", "--judge", f"{sys.executable} {self.judge}")
        self.words = ("evaluate", self.root, *self.judging, "--cache-dir", folder / "cache")

    def write(self, body: str) -> None:
        write_skill(self.root / "minutes", body=body)

    def questions(self) -> list[dict[str, Any]]:
        if not self.log.exists():
            return []
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def commit(self) -> None:
        who = ("-c", "user.name=A", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false")
        for words in (["init", "--quiet"], ["add", "--all"], [*who, "commit", "--quiet", "-m", "x"]):
            subprocess.run(["git", "-C", str(self.root), *words], check=True)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@each_row(("passed", "total", "low", "high"), [
    (81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718),
    (29, 29, 0.8830, 1.0),
])  # fmt: skip
def test_interval_of_a_share_is_wilsons(passed: int, total: int, low: float, high: float) -> None:
    """Newcombe, Statistics in Medicine 17 (1998), 857-872, Table I, method 3; the last row is the mirror of 0 of 29."""
    assert wilson(passed, total) == pytest.approx((low, high), abs=6e-5)


@each_row(("one", "other", "low", "high", "verdict"), [
    ((56, 70), (48, 80), 0.0524, 0.3339, "helps"), ((48, 80), (56, 70), -0.3339, -0.0524, "harms"),
    ((9, 10), (3, 10), 0.1705, 0.8090, "helps"), ((6, 7), (2, 7), 0.0582, 0.8062, "helps"),
    ((5, 56), (0, 29), -0.0381, 0.1926, "not shown"), ((0, 10), (0, 20), -0.1611, 0.2775, "not shown"),
    ((10, 10), (0, 20), 0.6791, 1.0, "helps"), ((0, 10), (10, 10), -1.0, -0.6075, "harms"),
])  # fmt: skip
def test_interval_of_a_difference_is_newcombes(
    one: tuple[int, int], other: tuple[int, int], low: float, high: float, verdict: str
) -> None:
    """Newcombe, Statistics in Medicine 17 (1998), 873-890, Table II, method 10."""
    found = compare_shares(one, other)
    assert (found.low, found.high) == pytest.approx((low, high), abs=6e-5)
    assert found.verdict == verdict


@each_row(("one", "other", "share", "difference"), [
    ((9, 15), (2, 7), (0.357468301206, 0.801755038587), (-0.115942300431, 0.600843662758)),
    ((40, 40), (599, 1000), (0.912378398803, 1.0), (0.308403877544, 0.431699256213)),
])  # fmt: skip
def test_intervals_have_the_exact_quantile(
    one: tuple[int, int], other: tuple[int, int], share: tuple[float, float], difference: tuple[float, float]
) -> None:
    """Figures of SciPy 1.17.1 (`proportion_ci`) and statsmodels 0.15.0 (`confint_proportions_2indep`)."""
    found = compare_shares(one, other)
    assert wilson(*one) == pytest.approx(share, abs=1e-9)
    assert (found.low, found.high) == pytest.approx(difference, abs=1e-9)


def test_known_effect_is_measured_and_nothing_runs_twice(bench: Bench) -> None:
    found = json_of(*bench.words)
    (report,) = found["benchmarks"]
    assert (found["judge_runs"], found["cost_usd"]) == (12, 6.0)
    assert len(bench.questions()) == 12
    compared = report["lift"]["comparisons"]["without_skill"]
    assert compared["difference"] == pytest.approx(0.6) and compared["verdict"] == "helps"
    # 15 of 15 with the skill, 6 of 15 without
    assert report["lift"]["intervals"]["with_skill"] == pytest.approx([0.7961, 1.0], abs=1e-4)
    assert report["lift"]["intervals"]["without_skill"] == pytest.approx([0.1982, 0.6426], abs=1e-4)
    assert json_of(*bench.words)["judge_runs"] == 0 and len(bench.questions()) == 12
    # The runs without the skill hold for its next version, too.
    bench.write("decided owner")
    assert json_of(*bench.words)["judge_runs"] == 6
    bench.judge.write_text(bench.judge.read_text() + "# another one\n")
    assert json_of(*bench.words)["judge_runs"] == 12


def test_benchmark_has_the_form_of_skill_creator(bench: Bench, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in bench.root.rglob("*") if path.is_file()}
    assert invoke(*bench.words, "--runs", 2, "--benchmark", tmp_path / "out").return_value == 0
    report = json.loads((tmp_path / "out/minutes/benchmark.json").read_text())
    assert {path: path.read_bytes() for path in bench.root.rglob("*") if path.is_file()} == before
    about = report["metadata"]
    assert (about["skill_name"], about["executor_model"]) == ("minutes", "scripted")
    assert (about["evals_run"], about["runs_per_configuration"]) == ([7, 8], 2)
    assert [*report["run_summary"]] == ["with_skill", "without_skill", "delta"]
    assert report["run_summary"]["delta"] == {"pass_rate": "+0.38", "time_seconds": "+0.0", "tokens": "+20"}
    assert report["run_summary"]["without_skill"] == {
        "pass_rate": {"mean": 0.625, "stddev": 0.433, "min": 0.25, "max": 1.0},
        "time_seconds": {"mean": 2.5, "stddev": 0.0, "min": 2.5, "max": 2.5},
        "tokens": {"mean": 10, "stddev": 0.0, "min": 10, "max": 10},
    }
    run = next(run for run in report["runs"] if run["configuration"] == "without_skill")
    assert (run["eval_id"], run["eval_name"], run["run_number"]) == (7, "minutes", 1)
    assert run["result"].items() >= {"pass_rate": 0.25, "passed": 1, "failed": 3, "total": 4, "tokens": 10}.items()
    assert {"text": "always", "passed": True, "evidence": "seen"} in run["expectations"]


def test_judge_gets_inputs_but_no_evals_as_files_of_the_skill(bench: Bench) -> None:
    invoke(*bench.words, "--runs", 1)
    with_skill, without = (
        [each for each in bench.questions() if bool(each["skill"]) == given] for given in (True, False)
    )
    assert len(with_skill) == len(without) == 2
    assert {file["path"] for each in with_skill for file in each["skill"]} == {"SKILL.md"}
    assert sorted(str(each["inputs"]) for each in without) == [
        "[]", "[{'path': 'evals/files/a.bin', 'blob': '/wA='}]"
    ]  # fmt: skip


@pytest.mark.needs_program("git")
def test_last_version_is_the_newest_in_git_that_differs(bench: Bench) -> None:
    bench.write("decided owner")
    bench.commit()
    bench.write("decided owner date")
    (report,) = json_of(*bench.words)["benchmarks"]  # what is not committed yet is compared with HEAD
    assert report["lift"]["comparisons"]["old_skill"]["difference"] == pytest.approx(3 / 15)
    bench.commit()
    bench.evals.write_text(bench.evals.read_text() + "\n")  # evals are no version
    bench.commit()
    found = json_of(*bench.words)
    assert (found["judge_runs"], found["benchmarks"][0]["lift"]) == (0, report["lift"])


@pytest.mark.needs_program("git")
def test_folder_before_it_had_a_skill_is_no_last_version(bench: Bench) -> None:
    manifest = bench.root / "minutes/SKILL.md"
    text = manifest.read_text()
    manifest.unlink()
    (bench.root / "minutes/notes.md").write_text("Notes.\n")
    bench.commit()
    manifest.write_text(text)
    bench.commit()
    (report,) = json_of(*bench.words)["benchmarks"]
    assert [*report["lift"]["comparisons"]] == ["without_skill"]


def test_harm_against_a_named_version_fails(bench: Bench, tmp_path: Path) -> None:
    bench.write("nothing")
    write_skill(tmp_path / "old/minutes", body="decided owner date")
    done = invoke(*bench.words, "--against", tmp_path / "old")
    assert done.return_value == 1
    assert done.stdout.splitlines() == [
        "minutes: not shown: 6 of 15 assertions, 6 of 15 with no skill, +0.00 (95 % -0.32 to +0.32)",
        "minutes: harms: 6 of 15 assertions, 15 of 15 with the last version, -0.60 (95 % -0.80 to -0.28)",
    ]


def test_too_many_runs_are_refused_before_the_first(bench: Bench) -> None:
    message = refusal(*bench.words, "--max-calls", 11)
    assert "12 runs are more than --max-calls 11" in message and bench.questions() == []
    json_of(*bench.words, "--max-calls", 4, "--runs", 1)
    assert json_of(*bench.words, "--max-calls", 8)["judge_runs"] == 8  # those of the first run are known


@each_row(("output", "message"), [
    ("{}", "Write the minutes.: the judge did not say whether this passed: word:owner"),
    ("no", "the judge printed invalid JSON"), ("", "invalid JSON (Expecting value: line 1 column 1 (char 0)): nothing"),
    ('{"expectations": [{"text": "always", "passed": 1}]}', "did not say whether this passed: word:owner"),
    ('{"expectations": [3, {"text": "always", "passed": true}], "cost_usd": -1}', "did not say whether this passed"),
])  # fmt: skip
def test_incomplete_grading_is_refused(bench: Bench, output: str, message: str) -> None:
    bench.judge.write_text(f"print({output!r})")
    assert message in refusal(*bench.words)


def test_odd_values_of_a_grading_are_written_as_the_viewer_reads_them(bench: Bench, tmp_path: Path) -> None:
    bench.evals.write_text(json.dumps({"evals": [CASE, CASE | {"id": "\ud800", "prompt": "b"}]}))
    odd = {"expectations": [{"text": "x", "passed": True, "evidence": {"a": 1}}], "model": "\ud800"}
    odd["timing"] = {"total_duration_seconds": True, "total_tokens": "3"}
    bench.judge.write_text(f"print({json.dumps(odd)!r})")
    assert invoke(*bench.words, "--benchmark", tmp_path / "out").return_value == 0
    report = json.loads((tmp_path / "out/minutes/benchmark.json").read_text())
    assert report["metadata"]["evals_run"] == [1, "?"] and report["metadata"]["executor_model"] == "\\u{d800}"
    run = report["runs"][0]
    assert run["expectations"] == [{"text": "x", "passed": True, "evidence": "{'a': 1}"}]
    assert (str(run["result"]["time_seconds"]), run["result"]["tokens"]) == ("1.0", 0)


def test_answers_that_cannot_be_cached_are_counted(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full/index").write_text("")  # a file in place of the folder refuses writes, as a full disk does
    done = invoke("evaluate", bench.root, *bench.judging, "--cache-dir", tmp_path / "full")
    assert done.return_value == 0
    assert "12 answers could not be cached, and are asked for again next time" in done.stderr
    assert "could not be cached" not in invoke(*bench.words).stderr


def test_full_disk_for_the_question_is_named(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "TemporaryFile", partial(open, "/dev/full", "r+b", buffering=0))
    assert "could not be started (No space left on device)" in refusal(*bench.words)


def test_interrupted_run_loses_no_answer(bench: Bench) -> None:
    """The third run of the judge interrupts its parent, as Ctrl-C does, and answers nevertheless."""
    third = f"if len(open({str(bench.log)!r}).readlines()) == 3:\n    os.kill(os.getppid(), signal.SIGINT)\n"
    bench.judge.write_text(f"import os, signal\n{bench.judge.read_text()}{third}")
    command = [*COMMAND, *map(str, (*bench.words, "--concurrency", 1))]
    first = subprocess.run(command, capture_output=True, cwd=ROOT, check=False)
    assert first.returncode == 130 and b"runs of the judge, " in first.stderr
    begun = len(bench.questions())
    assert 3 <= begun < 12
    assert json_of(*bench.words)["judge_runs"] == 12 - begun and len(bench.questions()) == 12


@each_row(("text", "message"), [
    ("[", "cannot be read as JSON"), ("[]", "is a trigger set"), ('{"evals": [3]}', "is not a list of objects"),
    ('{"evals": [{"prompt": "a", "assertions": [3]}]}', "evals[0]: 'assertions' is no list of texts"),
    ('{"evals": [{"prompt": "a", "expectations": {"a": 1}}]}', "evals[0]: 'expectations' is no list of texts"),
    ("{}", 'or {"evals": [...]}'), (json.dumps({"evals": [CASE, CASE | {"prompt": "b"}]}), "evals[1] repeats an id"),
    (json.dumps({"evals": [CASE, CASE | {"id": 2, "name": "b"}]}), "evals[1] repeats an id or a question"),
    (json.dumps({"evals": [CASE | {"files": ["../a.bin"]}]}), "evals[0] needs the file ../a.bin, which is not in"),
])  # fmt: skip
def test_malformed_evals_are_refused_with_their_file(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_evals(text.encode(), "evals.json", ["a.bin"])
    assert str(caught.value).startswith("evals.json") and message in str(caught.value)


def test_odd_fields_of_an_eval_are_read_leniently() -> None:
    odd = {"id": [1], "name": {}, "prompt": "a", "assertions": None, "expectations": "x", "files": None}
    (found,) = read_evals(json.dumps({"evals": [odd]}).encode(), "evals.json", [])
    assert found.named == {"eval_id": 1, "eval_name": "eval-1"} and found.question["expectations"] == ["x"]


def test_missing_parts_are_named(bench: Bench, tmp_path: Path) -> None:
    assert "give --judge COMMAND" in refusal("evaluate", bench.root, "--outputs")
    assert "leave out --cases" in refusal(*bench.words, "--cases", "x.json")
    assert "lies in a root of skills" in refusal(*bench.words, "--benchmark", bench.root / "minutes/out")
    of_skill = ("evaluate", bench.root / "minutes", *bench.judging, "--benchmark", bench.root)
    assert "minutes/benchmark.json: lies in a root of skills" in refusal(*of_skill)
    (bench.root / "minutes/evals/files/a.bin").unlink()
    assert "evals[1] needs the file evals/files/a.bin, which is not in the skill" in refusal(*bench.words)
    bench.evals.unlink()
    assert "no skill has an evals/evals.json with assertions" in refusal(*bench.words)


def test_proposal_shows_what_was_measured_of_it(bench: Bench, tmp_path: Path) -> None:
    write_skill(tmp_path / "tried/minutes", body="decided owner date")
    shutil.copytree(bench.evals.parent, tmp_path / "tried/minutes/evals")
    bench.write("decided")
    store = ProposalStore(tmp_path / "proposals")
    with Registry([bench.root]) as registry:
        base = registry.digest_over(registry.snapshot.skills["minutes"])
        proposal = Proposal(
            id="", name="minutes", principal="local", reason="better", base="sha256:0", base_files=base,
            root=str(bench.root), place=str(bench.root / "minutes"),
        )  # fmt: skip
        proposal = store.add(proposal, {"SKILL.md": (tmp_path / "tried/minutes/SKILL.md").read_bytes()})
    words = ("proposals", "show", proposal.id, "--proposals", tmp_path / "proposals")
    assert "lift:" not in invoke(*words).stdout
    invoke("evaluate", tmp_path / "tried", *bench.judging)  # cached where a reviewer looks
    asked = len(bench.questions())
    assert "lift: helps: 15 of 15 assertions, 6 of 15 with no skill, +0.60" in invoke(*words).stdout
    (note,) = json_of(*words)["lift"]
    assert re.search(r"\+0\.60 \(95 % \+0\.28 to \+0\.80\); measured 20\d\d-\d\d-\d\d with scripted$", note)
    assert len(bench.questions()) == asked  # a review runs no judge


def test_documented_trial_on_the_example_skills_needs_no_model(tmp_path: Path) -> None:
    shutil.copytree("fixtures/skills", tmp_path / "skills")  # outside git, so without a last version
    judge = f"{sys.executable} examples/judges/scripted.py"
    words = ("--outputs", "--runs", 1, "--judge", judge, "--cache-dir", tmp_path / "cache")
    (line,) = invoke("evaluate", tmp_path / "skills", *words).stdout.splitlines()
    assert line in Path("docs/lift.md").read_text()
    skill = tmp_path / "skills/commit-messages/SKILL.md"
    skill.write_text(skill.read_text().replace("in the imperative", "shortly"))
    assert "commit-messages: helps: 11 of 15 assertions" in invoke("evaluate", tmp_path / "skills", *words).stdout
