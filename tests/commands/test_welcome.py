"""First steps: the program without arguments, `serve` without a root, `new` and `completion`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commands.calls import invoke, refusal, run, terminal
from mcp_skills_server.cli import COMMANDS
from mcp_skills_server.commands.welcome import bundle
from mcp_skills_server.errors import UsageError
from mcp_skills_server.format import frontmatter
from mcp_skills_server.validation import rules
from tables import each_row
from wire import DEADLINE, write_skill


def run_in_project(home: Path, *words: str) -> tuple[int, str]:
    """Run the program in an empty project of this user; return the exit code and stderr."""
    (home / "project").mkdir(exist_ok=True)
    done = run(*words, cwd=home / "project", HOME=str(home), USERPROFILE=str(home))
    assert done.stdout == ""  # a host without arguments expects the protocol on stdout
    return done.returncode, done.stderr


def test_program_without_arguments_lists_skill_folders_or_suggests_new(tmp_path: Path) -> None:
    code, text = run_in_project(tmp_path)
    assert code == 2 and "mcp-skills-server new my-skill" in text
    write_skill(tmp_path / ".claude" / "skills" / "one")
    write_skill(tmp_path / ".claude" / "skills" / "two")
    write_skill(tmp_path / "project" / ".github" / "skills" / "three")
    (tmp_path / ".codex" / "skills" / "empty").mkdir(parents=True)
    (tmp_path / ".agents").mkdir()
    (tmp_path / ".cursor").mkdir()
    (tmp_path / ".cursor" / "skills").touch()
    (tmp_path / ".agents" / "skills").symlink_to(tmp_path / ".claude" / "skills")
    code, text = run_in_project(tmp_path)
    assert code == 2 and "serve DIR" in text and "install claude-desktop DIR" in text
    assert "\nSkills on this machine:\n" in text
    rows = [line.split() for line in text.splitlines() if "install HOST" in line]
    assert sorted((row[0], Path(row[-1]).parent.parent.name) for row in rows) == [
        ("1", "project"),
        ("2", tmp_path.name),  # listed once, although .agents/skills is a link to it
    ]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no user without a home folder")
def test_user_without_a_home_folder_sees_the_folders_of_the_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container with an arbitrary user has neither HOME nor an entry in /etc/passwd."""
    import pwd

    def missing(number: int) -> None:
        raise KeyError(number)

    monkeypatch.setattr(pwd, "getpwuid", missing)
    monkeypatch.delenv("HOME")
    monkeypatch.chdir(tmp_path)
    write_skill(tmp_path / ".claude" / "skills" / "one")
    done = invoke()
    assert done.exception is None and "install HOST" in done.stderr


def test_serve_without_a_root_lists_folders_only_at_a_terminal(tmp_path: Path) -> None:
    write_skill(tmp_path / ".claude" / "skills" / "one")
    with terminal("serve", environment={"HOME": str(tmp_path)}) as screen:
        assert screen.end() == 2
    assert "there is nothing to serve" in screen.seen and ".claude/skills" in screen.seen
    code, text = run_in_project(tmp_path, "serve")
    assert code == 2 and ".claude/skills" not in text


@each_row("name", ["refunds", "a", "x" * 64, "yes", "null", "123", "1e3", "0755", "on", "csv-2-json"])
def test_new_skill_is_valid_except_for_its_placeholders(tmp_path: Path, name: str) -> None:
    skill = tmp_path / "my skills" / name
    done = invoke("new", name, "--directory", tmp_path / "my skills")
    created, hint = done.stderr.splitlines()
    assert done.stdout == ""
    assert created.startswith("mcp-skills-server: made ") and "references/details.md" in created
    assert f"mcp-skills-server validate '{skill}' --strict" in hint
    files = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    if os.name == "posix":
        assert not any(os.access(tmp_path / path, os.X_OK) for path in files)
    assert files == {f"my skills/{name}/SKILL.md", f"my skills/{name}/references/details.md"}
    checked = invoke("validate", skill, "--strict", "--format", "json")
    found = json.loads(checked.stdout)["problems"]
    assert {(each["code"], each["severity"]) for each in found} == {("placeholder", "warning")}
    assert [each["line"] for each in found] == [3, 10] and checked.return_value == 1


def test_completed_skill_has_no_placeholder(tmp_path: Path) -> None:
    description = "Pays money back. Use when a buyer asks for a refund."
    invoke("new", "refunds", "--directory", tmp_path, "--description", description)
    skill = tmp_path / "refunds" / "SKILL.md"
    begun = skill.read_text(encoding="utf-8").partition("\n# ")[0]
    skill.write_text(begun + "\n# Refunds\n\nAsk for the [order](references/details.md).\n", encoding="utf-8")
    assert invoke("validate", skill, "--strict").return_value == 0


@each_row(("name", "description", "rule"), [
    ("Refunds", None, "name-characters"), ("../refunds", None, "name-characters"),
    ("/tmp/refunds", None, "name-characters"), ("ré", None, "name-characters"), ("a\nb", None, "name-markup"),
    ("a--b", None, "name-hyphens"), ("a-", None, "name-hyphens"), ("x" * 65, None, "name-length"),
    ("", None, "name-missing"), ("\udcff", None, "not-utf8"), ("refunds", "", "description-missing"),
    ("refunds", "too short", "description-vague"), ("refunds", "d" * 1025, "description-length"),
])  # fmt: skip
def test_invalid_name_or_description_is_refused_with_its_rule(
    tmp_path: Path, name: str, description: str | None, rule: str
) -> None:
    options = () if description is None else ("--description", description)
    assert f"[{rule}]" in refusal("new", "--directory", tmp_path / "skills", *options, "--", name)
    assert not list(tmp_path.iterdir())


@each_row(("name", "description", "frontmatter_head"), [
    ("refunds", "Pays money back. Use it.", "refunds\ndescription: Pays money back. Use it."),
    ("refunds", "Pays: money back. Use it.", 'refunds\ndescription: "Pays: money back. Use it."'),
    ("refunds", 'Says "no". Use it for refunds.', 'refunds\ndescription: "Says \\"no\\". Use it for refunds."'),
    ("refunds", "Größe: Use it for sizes.", 'refunds\ndescription: "Größe: Use it for sizes."'),
    ("true", "Tells what is true. Use it.", '"true"\ndescription: Tells what is true. Use it.'),
])  # fmt: skip
def test_only_values_that_need_yaml_quotes_are_quoted(name: str, description: str, frontmatter_head: str) -> None:
    text = bundle(name, description)["SKILL.md"]
    assert text.startswith(f"---\nname: {frontmatter_head}\nmetadata:\n")


def test_new_overwrites_nothing(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("nowhere")
    for name in ("folder", "file", "link"):
        assert "exists already" in refusal("new", name, "--directory", tmp_path)
    assert not list((tmp_path / "folder").iterdir()) and not (tmp_path / "file").read_bytes()
    assert "cannot be written" in refusal("new", "refunds", "--directory", tmp_path / "file")
    assert sorted(os.listdir(tmp_path)) == ["file", "folder", "link"]


@given(st.text(min_size=20, max_size=200))
def test_any_description_is_kept_or_refused(description: str) -> None:
    try:
        files = bundle("refunds", description)
    except UsageError:
        return
    document = frontmatter.parse(files["SKILL.md"].encode())
    assert document.frontmatter is not None and document.frontmatter["description"] == description
    assert not document.problems and not rules.check(document, "refunds")
    assert {each.code for each in rules.check_deeply(document, files)} - {"description-when"} == {"placeholder"}


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_completes_commands_and_options(tmp_path: Path) -> None:
    program = tmp_path / "mcp-skills-server"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m mcp_skills_server "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    script = """
        eval "$(mcp-skills-server completion bash)"
        complete() { COMPREPLY=(); COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
                     _mcp_skills_server_completion mcp-skills-server
                     echo "${COMPREPLY[*]}"; }
        complete mcp-skills-server ""
        complete mcp-skills-server serve --trans
    """
    environment = os.environ | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, timeout=DEADLINE, check=True)
    assert done.stdout.decode().split() == [*COMMANDS, "--transport"]
