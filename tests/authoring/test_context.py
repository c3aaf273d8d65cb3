"""`context`: what the model of a host is shown, unasked and on load."""

from __future__ import annotations

from pathlib import Path

from commands.calls import invoke, refusal, seen
from mcp_skills_server.authoring.context import HOSTS
from tables import each_row
from wire import FIXTURES, serving, write_skill


def test_the_instructions_are_those_that_a_server_sends() -> None:
    with serving(FIXTURES, opened=False) as wire:
        assert seen("context", FIXTURES)["unasked"][0]["text"] == wire.open()["instructions"]


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
