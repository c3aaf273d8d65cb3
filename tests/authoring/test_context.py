"""`context`: what the model of a host is shown, unasked and on load."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from mcp_skills_server.authoring.context import HOSTS
from mcp_skills_server.cli import cli
from mcp_skills_server.errors import UsageError
from tables import each_row
from wire import FIXTURES, serving, write_skill


def shown(*arguments: object) -> dict[str, list[dict[str, object]]]:
    done = CliRunner().invoke(cli, ["context", *map(str, arguments), "--format", "json"])
    return json.loads(done.stdout)


def test_the_instructions_are_those_that_a_server_sends() -> None:
    with serving(FIXTURES, opened=False) as wire:
        sent = wire.open()["instructions"]
    assert shown(FIXTURES)["unasked"][0]["text"] == sent


def test_claude_code_is_shown_the_names_of_tools_and_a_bounded_text(tmp_path: Path) -> None:
    texts = {each["title"]: str(each["text"]) for each in shown(FIXTURES, "--host", "claude-code")["unasked"]}
    assert set(texts) == {"Instructions of the server", "Names of the tools"}
    assert "skills_load" in texts["Names of the tools"].splitlines()
    most = HOSTS["claude-code"].text_characters
    assert most is not None and len(texts["Instructions of the server"]) <= most


def test_codex_is_shown_one_line(tmp_path: Path) -> None:
    write_skill(tmp_path / "refunds")
    found = shown(tmp_path, "--host", "codex")
    (text,) = found["unasked"]
    assert "\n" not in str(text["text"]) and text["cut_characters"]
    assert found["skills"] == {"whole": [], "shortened": [], "absent": ["refunds"]}


def test_what_stands_whole_and_what_does_not_is_counted(tmp_path: Path) -> None:
    for number in range(300):
        write_skill(tmp_path / f"skill-{number}", description=f"Thing {number}. " + "Many words of no use. " * 30)
    skills = shown(tmp_path, "--host", "gemini-cli")["skills"]
    assert isinstance(skills, dict)
    assert sum(map(len, skills.values())) == 300 and not skills["whole"]


@each_row("host", HOSTS)
def test_loading_a_skill_brings_its_body(tmp_path: Path, host: str) -> None:
    write_skill(tmp_path / "a", body="Knock three times.\n")
    (text,) = shown(tmp_path, "--host", host, "--skill", "a")["loaded"]
    assert "Knock three times." in str(text["text"])


def test_a_budget_decides_the_exit_code(tmp_path: Path) -> None:
    write_skill(tmp_path / "a")
    assert (
        CliRunner().invoke(cli, ["context", str(tmp_path), "--budget", "100000"], standalone_mode=False).return_value
        == 0
    )
    done = CliRunner().invoke(cli, ["context", str(tmp_path), "--budget", "10"], standalone_mode=False)
    assert done.return_value == 1
    assert "more than the budget of 10" in done.stderr


def test_a_skill_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    write_skill(tmp_path / "a")
    done = CliRunner().invoke(cli, ["context", str(tmp_path), "--skill", "b"], standalone_mode=False)
    assert isinstance(done.exception, UsageError)
