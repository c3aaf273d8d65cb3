"""CI integrations: the GitHub action, the example workflow, pre-commit hooks and example judges."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from sources.publishers import Publisher, ReceivedRequest, respond_with
from tables import each_row
from wire import DEADLINE, ROOT, write_skill

GIT = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}


def run(*words: object, cwd: Path, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(each) for each in words],
        cwd=cwd,
        env={**os.environ, **GIT, **environment},
        input=stdin,
        capture_output=True,
        text=True,
        timeout=10 * DEADLINE,
        check=False,
    )


def test_action_and_workflow_match_the_github_schemas() -> None:
    for schema, file in (("github-actions", "action.yml"), ("github-workflows", "examples/ci/skills.yml")):
        checker = Path(sys.executable).with_name("check-jsonschema")
        done = run(checker, "--builtin-schema", f"vendor.{schema}", file, cwd=ROOT)
        assert done.returncode == 0, done.stdout


@each_row(("description", "expected"), [("Does a thing when asked.", 0), ("When asked. " + "x" * 1025, 1)])
def test_action_steps_annotate_and_write_sarif(tmp_path: Path, description: str, expected: int) -> None:
    """This environment takes the place of the first step, which installs the program."""
    write_skill(tmp_path / "work/skills/a", description=description)
    (tmp_path / "runner/skills").mkdir(parents=True)
    (tmp_path / "runner/skills/bin").symlink_to(Path(sys.executable).parent)
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    inputs = {name: each["default"] for name, each in action["inputs"].items()} | {"path": "skills"}
    codes: list[int] = []
    output = ""
    for step in action["runs"]["steps"][1:]:
        if step.get("if") == "inputs.evaluate == 'true'":
            continue
        environment = {
            name: re.sub(r"\$\{\{ inputs\.([\w-]+) \}\}", lambda found: inputs[found[1]], value)
            for name, value in step["env"].items()
        }
        environment["RUNNER_TEMP"] = str(tmp_path / "runner")
        done = run("bash", "-e", "-c", step["run"], cwd=tmp_path / "work", **environment)
        codes.append(done.returncode)
        output += done.stdout
    assert codes == [0, expected]
    assert ("::error file=skills/a/SKILL.md,line=3,title=description-length" in output) is bool(expected)
    log = json.loads((tmp_path / "work/skills.sarif").read_text())
    assert len(log["runs"][0]["results"]) == expected


@each_row(("name", "expected"), [("a", 0), ("b", 1)])
def test_pre_commit_runs_the_hook(tmp_path: Path, name: str, expected: int) -> None:
    """The hook runs in this environment, since an install needs a network and half a minute."""
    hooks = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert [each["id"] for each in hooks] == ["validate-skills", "evaluate-skills"]
    work = tmp_path / "work"
    write_skill(work / "a", name=name)
    for each in hooks:
        each["language"] = "system"
        each["entry"] = f"{Path(sys.executable).parent}/{each['entry']}"
    (work / ".pre-commit-config.yaml").write_text(yaml.safe_dump({"repos": [{"repo": "local", "hooks": hooks[:1]}]}))
    for words in (("init", "-q"), ("add", ".")):
        assert run("git", *words, cwd=work).returncode == 0
    done = run(sys.executable, "-m", "pre_commit", "run", "--all-files", cwd=work, PRE_COMMIT_HOME=f"{tmp_path}/home")
    assert done.returncode == expected, done.stdout + done.stderr
    assert ("name-mismatch" in done.stdout) is bool(expected)


QUESTION = {"query": "refund it", "catalogue": "refunds: Issue refunds.", "skills": [{"name": "refunds"}]}


class Model(Publisher):
    """A model that always chooses one skill, and finds each expectation fulfilled."""

    def _route(self, _: ReceivedRequest) -> bytes:
        graded = [{"text": "x", "passed": True, "evidence": "it is there"}]
        message = {"content": json.dumps({"skills": ["refunds"], "expectations": graded})}
        usage = {"prompt_tokens": 1000, "completion_tokens": 100}
        return respond_with(json.dumps({"choices": [{"message": message}], "usage": usage}).encode())

    def systems(self) -> list[str]:
        """Return the system message of each request."""
        return [json.loads(request.body)["messages"][0]["content"] for request in self.requests]


@pytest.fixture
def model() -> Iterator[Model]:
    with Model() as serving:
        yield serving


def run_judge(judge: str, agent: str, cwd: Path, **environment: str) -> Any:
    program = ROOT / "examples" / "judges" / judge
    question = json.dumps(QUESTION)
    done = run(sys.executable, program, agent, cwd=cwd, stdin=question, **environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_openai_judge_sends_the_catalogue_and_reports_the_cost(tmp_path: Path, model: Model) -> None:
    url = f"{model.url}/v1"
    prices = {"PRICE_IN": "1", "PRICE_OUT": "10"}
    verdict = run_judge("openai.py", "m", tmp_path, OPENAI_BASE_URL=url, OPENAI_API_KEY="k", **prices)
    assert verdict == {"skills": ["refunds"], "cost_usd": 0.002}
    (system,) = model.systems()
    assert QUESTION["catalogue"] in system
    asked = json.loads(model.requests[0].body)
    assert (asked["model"], asked["messages"][1]["content"]) == ("m", "refund it")


def test_openai_judge_grades_outputs_with_the_skill(tmp_path: Path, model: Model) -> None:
    write_skill(tmp_path / "skills/minutes", body="Name an owner.")
    evals = {"evals": [{"prompt": "Write them.", "expectations": ["x"]}]}
    (tmp_path / "skills/minutes/evals").mkdir()
    (tmp_path / "skills/minutes/evals/evals.json").write_text(json.dumps(evals))
    judge = f"{sys.executable} {ROOT / 'examples/judges/openai.py'} m"
    words = ("evaluate", "skills", "--outputs", "--judge", judge, "--cache-dir", "cache", "--concurrency", "1")
    url = f"{model.url}/v1"
    command = [sys.executable, "-m", "mcp_skills_server", *words]
    done = run(*command, cwd=tmp_path, OPENAI_BASE_URL=url, OPENAI_API_KEY="k", PRICE_IN="1")
    assert done.returncode == 0 and "6 runs of the judge, 0.0120 USD" in done.stderr
    assert ["Name an owner." in system for system in model.systems()[::2]] == [True] * 3 + [False] * 3


AGENT = """#!{python}
import json, sys
answer = 'I would load {{"skills": ["refunds"]}}.'
print(json.dumps({{"result": answer, "total_cost_usd": 0.25}}) if "--output-format" in sys.argv else answer)
sys.exit("refund it" not in sys.argv[-1])
"""


@each_row(("agent", "cost"), [("claude", 0.25), ("codex", 0.0), ("opencode", 0.0)])
def test_agent_judge_reads_the_last_json_object_of_an_answer(tmp_path: Path, agent: str, cost: float) -> None:
    program = tmp_path / "bin" / agent
    program.parent.mkdir()
    program.write_text(AGENT.format(python=sys.executable))
    program.chmod(0o755)
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    found = run_judge("program.py", agent, tmp_path, PATH=path)
    assert found == {"skills": ["refunds"], "cost_usd": cost}
