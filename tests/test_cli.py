"""The commands, as a person or a script runs them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mcp_skills_server.commands.serve import serve
from wire import COMMAND, DEADLINE, FIXTURES, ROOT, write_skill


def run(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=DEADLINE,
        cwd=ROOT,
        check=False,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **environment},
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["serve", "no/such/folder"], "no/such/folder: no such folder"),
        (["serve", "README.md"], "README.md: not a folder"),
        (["serve"], "ROOT"),
        (["serve", "fixtures/skills", "--dialect", "esperanto"], "esperanto"),
        (["serve", "fixtures/skills", "--page-size", "0"], "0"),
        (["list", "no/such/folder"], "no such folder"),
        (["show", "fixtures/skills"], "name of a skill"),
        (["show", "fixtures/skills", "nothing"], "nothing"),
        (["validate", "no/such/folder"], "no such folder"),
        (["validate"], "PATH"),
        (["serve", "fixtures/skills", "--interpreter", ".py=python3"], "--allow-scripts"),
        (["serve", "fixtures/skills", "--script-folder", "."], "--allow-scripts"),
        (["serve", "fixtures/skills", "--script-secret", "PATH"], "--allow-scripts"),
        (["serve", "fixtures/skills", "--allow-code"], "--allow-scripts"),
        (["serve", "fixtures/skills", "--transport", "http", "--publish-only", "--no-publish"], "leave nothing"),
        (["list", "https://127.0.0.1:1"], "there is no copy of it"),
        (["install"], "HOST"),
        (["install", "cursor", "no/such/folder"], "no such folder"),
        (["install", "emacs", "fixtures/skills"], "emacs"),
        (["new", "Bad Name"], "name-characters"),
        (["dance"], "dance"),
        (["--dance"], "--dance"),
    ],
)
def test_wrong_usage_is_one_line_and_2(arguments: list[str], said: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("mcp-skills-server: ") and said in done.stderr


def test_help_shows_examples() -> None:
    for command in ([], ["serve"], ["list"], ["show"], ["validate"], ["install"], ["new"]):
        done = run(*command, "--help")
        assert done.returncode == 0 and "Examples:" in done.stdout
    assert run("--version").stdout.startswith("mcp-skills-server, version ")
    assert run().returncode == 2


def test_every_option_of_serve_has_an_environment_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"page_size": "7", "watch": "false", "max_files": "3", "host": "::1", "roots": "a:b"}
    with serve.make_context("serve", [], resilient_parsing=True, default_map={}) as unset:
        assert unset.auto_envvar_prefix == "MCP_SKILLS"
    for name, value in given.items():
        monkeypatch.setenv(f"MCP_SKILLS_{name.upper()}", value)
    with serve.make_context("serve", []) as context:
        taken = context.params
    assert (taken["page_size"], taken["watch"], taken["max_files"], taken["host"]) == (7, False, 3, "::1")
    assert taken["roots"] == ("a", "b")


def test_options_are_taken_from_the_environment() -> None:
    done = run("serve", MCP_SKILLS_ROOTS="no/such/folder")
    assert done.returncode == 2 and "no/such/folder" in done.stderr
    first = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    request = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": first}) + "\n"
    environment = {**os.environ, "MCP_SKILLS_ROOTS": str(FIXTURES), "MCP_SKILLS_DIALECT": "sep-2640"}
    served = subprocess.run(
        [*COMMAND, "serve"],
        input=request,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        env=environment,
        check=False,
    )
    assert "skills" not in json.loads(served.stdout)["result"]["capabilities"]


def test_list_shows_every_skill_as_table_and_json() -> None:
    done = run("list", "fixtures/skills")
    assert done.returncode == 0
    assert done.stdout.splitlines()[0].split() == ["PATH", "VERSION", "FILES", "BYTES", "PROBLEMS", "DESCRIPTION"]
    told = json.loads(run("list", "fixtures/skills", "--format", "json").stdout)["skills"]
    assert len(told) == len(done.stdout.splitlines()) - 1 == len(list(FIXTURES.rglob("SKILL.md")))
    wanted = {"name", "path", "uri", "title", "description", "version", "files", "bytes", "problems"}
    for each in told:
        assert wanted <= each.keys()
        bundle = [path for path in (FIXTURES / each["path"]).rglob("*") if path.is_file()]
        assert each["files"] == len(bundle) and each["bytes"] == sum(path.stat().st_size for path in bundle)


def test_list_tells_of_what_is_not_served(tmp_path: Path) -> None:
    write_skill(tmp_path / "good")
    write_skill(tmp_path / "torn").joinpath("SKILL.md").write_text("nothing")
    told = {each["path"]: each for each in json.loads(run("list", tmp_path, "--format", "json").stdout)["skills"]}
    assert (told["good"]["served"], told["good"]["problems"]) == (True, 0)
    assert (told["torn"]["served"], told["torn"]["problems"]) == (False, 1)
    assert "(not served)" in run("list", tmp_path).stdout


def test_show_tells_one_skill_whole() -> None:
    done = run("show", "fixtures/skills", "csv-profiling")
    assert done.returncode == 0 and "scripts/profile_csv.py" in done.stdout
    told = json.loads(run("show", "fixtures/skills", "acme/billing/refunds", "--format", "json").stdout)
    assert told["frontmatter"]["name"] == told["name"] == "refunds"
    assert told["instructions"].startswith("# ")
    assert {each["path"] for each in told["files"]} >= {"SKILL.md"}
    assert all(each["digest"].startswith("sha256:") for each in told["files"])


def test_show_tells_what_is_wrong_with_a_skill_that_cannot_be_read(tmp_path: Path) -> None:
    write_skill(tmp_path / "torn").joinpath("SKILL.md").write_text("nothing")
    done = run("show", tmp_path, "torn")
    assert done.returncode == 0 and "frontmatter-missing" in done.stdout


def test_the_fixtures_are_clean_even_strictly() -> None:
    done = run("validate", "fixtures/skills", "--strict")
    assert done.returncode == 0, done.stdout
    assert done.stdout.endswith("skills, 0 errors, 0 warnings\n")


def test_validate_names_path_line_code_and_mend(tmp_path: Path) -> None:
    skill = write_skill(tmp_path / "bad", description="", body="# T\n")
    done = run("validate", skill)
    assert done.returncode == 1
    assert f"{skill}/SKILL.md:3: error: the description is" in done.stdout
    assert "[description-missing]" in done.stdout and "; add 'description:'" in done.stdout
    for given in (skill, skill / "SKILL.md", tmp_path):
        told = json.loads(run("validate", given, "--format", "json").stdout)
        assert (told["ok"], told["skills"]) == (False, 1)
        (problem,) = told["problems"]
        assert problem.keys() == {"path", "skill", "severity", "code", "message", "line"}
        assert (problem["severity"], problem["code"], problem["line"]) == ("error", "description-missing", 3)
        assert os.path.samefile(problem["path"], skill / "SKILL.md")


def test_validate_annotates_for_github(tmp_path: Path) -> None:
    skill = write_skill(tmp_path / "bad,%name", name="bad")
    done = run("validate", skill, "--format", "github")
    assert done.returncode == 1
    (line,) = done.stdout.splitlines()
    assert line.startswith(f"::error file={tmp_path}/bad%2C%25name/SKILL.md,line=2,title=name-mismatch::the name is")


def test_warnings_fail_only_when_strict(tmp_path: Path) -> None:
    skill = write_skill(tmp_path / "linked", body="# T\n\nSee [more](references/more.md).\n")
    assert run("validate", skill).returncode == 0
    done = run("validate", skill, "--strict")
    assert done.returncode == 1 and "[reference-missing]" in done.stdout


def test_validate_says_when_there_is_nothing(tmp_path: Path) -> None:
    done = run("validate", tmp_path)
    assert done.returncode == 0 and "no skill at" in done.stderr


def test_limits_are_options(tmp_path: Path) -> None:
    skill = write_skill(tmp_path / "some", a_md="a", b_md="b")
    for option, value, code in (
        ("--max-files", 2, "too-many-files"),
        ("--max-bytes", 50, "too-many-bytes"),
        ("--max-skill-md", 20, "skill-md-too-large"),
    ):
        assert code in run("validate", skill, option, str(value)).stdout
    write_skill(tmp_path / "a" / "b" / "c")
    assert "[too-deep]" in run("validate", tmp_path, "--max-depth", "2").stdout


def test_a_reader_that_has_seen_enough_is_no_error(tmp_path: Path) -> None:
    for number in range(300):
        write_skill(tmp_path / f"skill-{number}", description="d" * 900)
    script = f"{sys.executable} -m mcp_skills_server list {tmp_path} --format json | head -1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", script], capture_output=True, text=True, timeout=DEADLINE, check=False
    )
    assert done.stderr == "" and done.stdout


def test_the_command_line_imports_lazily() -> None:
    heavy = ("mcp", "anyio", "yaml", "watchfiles", "inotify_simple", "markdown_it", "pydantic")
    code = f"import sys, mcp_skills_server.cli; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=DEADLINE, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("variable", ["MCP_SKILLS_TOKENS", "MCP_SKILLS_TOKEN_FILE"])
def test_an_empty_value_for_tokens_does_not_open_the_server(variable: str) -> None:
    done = run("serve", FIXTURES, "--transport", "http", "--port", "0", **{variable: ""})
    assert done.returncode == 2
    assert (
        done.stderr
        == f"mcp-skills-server: {variable} is set but empty; give tokens, or unset it for a server without\n"
    )
    for option in ("--tokens", "--token-file"):
        done = run("serve", FIXTURES, "--transport", "http", "--port", "0", option, "")
        assert done.returncode == 2 and len(done.stderr.splitlines()) == 1


def test_a_folder_without_skills_is_told_so(tmp_path: Path) -> None:
    for command in ("list", "validate"):
        done = run(command, tmp_path)
        assert done.returncode == 0
        assert done.stderr.startswith("mcp-skills-server: no skill") and len(done.stderr.splitlines()) == 1


def test_counts_are_told_in_words(tmp_path: Path) -> None:
    write_skill(tmp_path / "one")
    assert run("validate", tmp_path).stdout == "1 skill, 0 errors, 0 warnings\n"
