"""`list` and `validate`: what they print where there is nothing to list, and of links."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner

from mcp_skills_server.cli import cli
from mcp_skills_server.errors import UsageError
from tables import each_row
from wire import FIXTURES, write_skill


@pytest.mark.parametrize("command", ["list", "validate"])
def test_no_skill_anywhere_names_each_folder(tmp_path: Path, command: str) -> None:
    roots = [tmp_path / name for name in ("one", "two")]
    for root in roots:
        root.mkdir()
    done = CliRunner().invoke(cli, [command, *map(str, roots)])
    assert done.stderr.splitlines() == [
        f"mcp-skills-server: no skill at {root}: no folder there has a SKILL.md; give the folder that holds your "
        "skills, or begin one with 'new'"
        for root in roots
    ]


@each_row(
    ("target", "hint"),
    [
        (".", "remove the link, since the folder it leads to is part of this root"),
        ("../root-of-others", "serve the folder it leads to as a root of its own"),
        ("..", "serve the folder it leads to as a root of its own"),
    ],
)
def test_a_link_to_a_folder_has_a_hint_that_helps(tmp_path: Path, target: str, hint: str) -> None:
    root = tmp_path / "root"
    write_skill(root / "thing")
    (tmp_path / "root-of-others").mkdir()
    (root / "link").symlink_to(target)
    line = next(each for each in CliRunner().invoke(cli, ["list", str(root)]).stderr.splitlines() if "/link" in each)
    assert line.endswith(f"; {hint} [link-outside]")


def test_the_list_and_the_page_of_a_skill_count_what_shows_among_several(tmp_path: Path) -> None:
    for path in ("a/dup", "b/dup", "c/other"):
        write_skill(tmp_path / path)
    lines = CliRunner().invoke(cli, ["list", str(tmp_path)]).stdout.splitlines()[1:]
    assert {line.split()[0]: line.split()[3] for line in lines} == {"a/dup": "1", "b/dup": "1", "c/other": "0"}
    seen = json.loads(CliRunner().invoke(cli, ["list", str(tmp_path), "--format", "json"]).stdout)
    assert [each["problems"] for each in seen["skills"]] == [1, 1, 0]
    shown = json.loads(CliRunner().invoke(cli, ["show", str(tmp_path), "a/dup", "--format", "json"]).stdout)
    validated = json.loads(CliRunner().invoke(cli, ["validate", str(tmp_path), "--format", "json"]).stdout)
    assert shown["problems"] == [each for each in validated["problems"] if each["skill"] == "a/dup"]
    assert [each["code"] for each in shown["problems"]] == ["name-shared"]


def test_list_install_show_and_validate_have_one_list_of_problems(tmp_path: Path) -> None:
    """Of skills that break every rule there is: `list` counted 45 of 61 problems, and `install` none."""
    broken = str(FIXTURES.parent / "broken")
    validated = json.loads(CliRunner().invoke(cli, ["validate", broken, "--format", "json"]).stdout)["problems"]
    assert {"pipe-to-shell", "shell-injection", "hidden-characters"} < {each["code"] for each in validated}
    listed = json.loads(CliRunner().invoke(cli, ["list", broken, "--format", "json"]).stdout)
    assert listed["problems"] == validated
    counts = Counter(each["skill"] for each in validated)
    assert {each["path"]: each["problems"] for each in listed["skills"]} == {
        each["path"]: counts[each["path"]] for each in listed["skills"]
    }
    shown = json.loads(CliRunner().invoke(cli, ["show", broken, "pipe-to-shell", "--format", "json"]).stdout)
    assert shown["problems"] == [each for each in validated if each["skill"] == "pipe-to-shell"]
    table = CliRunner().invoke(cli, ["list", broken]).stderr.splitlines()[-1]
    errors = sum(each["severity"] == "error" for each in validated)
    assert f": {errors} errors, {len(validated) - errors} warnings: " in table and "shell-injection" in table
    config = ["--config", str(tmp_path / "mcp.json")]
    installed = CliRunner().invoke(cli, ["install", "cursor", broken, *config]).stderr.splitlines()[-1]
    assert installed == table and installed.endswith(f"'mcp-skills-server validate {broken}' shows each")


@each_row(
    ("asked", "said"),
    [
        ("dup", "Several skills are named 'dup'; ask for one of: a/dup, b/dup"),
        ("dupp", "Unknown skill: 'dupp'; did you mean b/dup or a/dup?"),  # and not the name that both have
        ("refund", "Unknown skill: 'refund'; did you mean refunds?"),
        ("xyz", "Unknown skill: 'xyz'; 'list' shows what there is"),
        ("/", "Unknown skill: '/'; this is a folder; write the name of a skill behind the folders"),
    ],
)
def test_show_hints_at_what_can_be_asked_for(tmp_path: Path, asked: str, said: str) -> None:
    for path in ("a/dup", "b/dup", "refunds"):
        write_skill(tmp_path / path)
    done = CliRunner().invoke(cli, ["show", str(tmp_path), asked])
    assert isinstance(done.exception, UsageError) and str(done.exception) == said


def test_show_says_how_much_of_a_skill_models_are_shown_unasked(tmp_path: Path) -> None:
    for number in range(60):
        write_skill(tmp_path / f"s{number}", description=f"{'Does much. ' * 40}Use when {number} is there.")
    write_skill(tmp_path / "own", description="Does it.\ndisable-model-invocation: true")
    listed = {
        each: json.loads(CliRunner().invoke(cli, ["show", str(tmp_path), each, "--format", "json"]).stdout)["listed"]
        for each in ("own", *(f"s{number}" for number in range(0, 60, 6)))
    }
    assert listed.pop("own") is None
    assert {"by name alone"} < {*listed.values()}
    cut = next(each for each, words in listed.items() if words != "by name alone")
    lines = CliRunner().invoke(cli, ["show", str(tmp_path), cut]).stdout.splitlines()
    (line,) = (each for each in lines if each.startswith("listed:"))
    assert " characters of its description: Use when " in line


def test_every_command_obeys_the_rules_of_a_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("shown", "hidden"):
        write_skill(tmp_path / "skills" / name)
    (tmp_path / "c.toml").write_text('[[source]]\nfrom = "skills"\nexclude = ["hidden"]\n', encoding="utf-8")
    for command, said in (
        ("list", "shown "),
        ("validate", "1 skill, "),
        ("publish --output site", "published 1 skill "),
    ):
        done = CliRunner().invoke(cli, [*command.split(), "--config", "c.toml"])
        assert done.exit_code == 0 and said in done.output and "hidden " not in done.stdout, done.output
    index = json.loads((tmp_path / "site/.well-known/agent-skills/index.json").read_text(encoding="utf-8"))
    assert [each["name"] for each in index["skills"]] == ["shown"]
