"""What the program says without arguments, and `serve` without a root."""

from __future__ import annotations

from pathlib import Path

from commands.calls import run, terminal
from wire import write_skill


def said(home: Path, *words: str) -> tuple[int, str]:
    """The exit code and stderr of the program in an empty project of a user with this home folder."""
    (home / "project").mkdir(exist_ok=True)
    done = run(*words, cwd=home / "project", HOME=str(home), USERPROFILE=str(home))
    assert done.stdout == ""  # a host that gives no arguments wants a protocol there
    return done.returncode, done.stderr


def test_without_arguments_it_says_what_it_does_and_which_skills_there_are(tmp_path: Path) -> None:
    write_skill(tmp_path / ".claude" / "skills" / "one")
    write_skill(tmp_path / ".claude" / "skills" / "two")
    write_skill(tmp_path / "project" / ".github" / "skills" / "three")
    (tmp_path / ".codex" / "skills" / "empty").mkdir(parents=True)
    (tmp_path / ".agents").mkdir()
    (tmp_path / ".agents" / "skills").symlink_to(tmp_path / ".claude" / "skills")
    code, text = said(tmp_path)
    assert code == 2 and "serve DIR" in text and "install claude-desktop DIR" in text
    rows = [line.split() for line in text.splitlines() if "install HOST" in line]
    assert sorted((row[0], Path(row[-1]).parent.parent.name) for row in rows) == [
        ("1", "project"),
        ("2", tmp_path.name),  # once, though two folders lead to it
    ]


def test_a_machine_without_skills_is_told_how_to_begin(tmp_path: Path) -> None:
    code, text = said(tmp_path)
    assert code == 2 and "mcp-skills-server new my-skill" in text


def test_serve_without_a_root_offers_the_folders_to_a_person(tmp_path: Path) -> None:
    write_skill(tmp_path / ".claude" / "skills" / "one")
    with terminal("serve", environment={"HOME": str(tmp_path)}) as person:
        assert person.end() == 2
    assert "there is nothing to serve" in person.seen and ".claude/skills" in person.seen
    code, text = said(tmp_path, "serve")
    assert code == 2 and ".claude/skills" not in text
