"""What the program says without arguments, and `serve` without a root."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from wire import DEADLINE, write_skill


def run(home: Path, *arguments: str, on_terminal: bool = False) -> tuple[int, str]:
    """The exit code and all output of the program in an empty project of a user with this home folder."""
    project = home / "project"
    project.mkdir(exist_ok=True)
    words = [sys.executable, "-m", "mcp_skills_server", *arguments]
    environment = os.environ | {"HOME": str(home), "USERPROFILE": str(home)}
    if not on_terminal:
        done = subprocess.run(
            words, cwd=project, env=environment, capture_output=True, text=True, timeout=DEADLINE, check=False
        )
        assert done.stdout == ""  # a host that gives no arguments wants a protocol there
        return done.returncode, done.stderr
    terminal, end = os.openpty()
    with subprocess.Popen(words, cwd=project, env=environment, stdin=end, stdout=end, stderr=end) as process:
        os.close(end)
        said = b""
        try:
            while piece := os.read(terminal, 4096):
                said += piece
        except OSError:  # the process has ended
            pass
        os.close(terminal)
    return process.returncode, said.decode()


def test_without_arguments_it_says_what_it_does_and_which_skills_there_are(tmp_path: Path) -> None:
    write_skill(tmp_path / ".claude" / "skills" / "one")
    write_skill(tmp_path / ".claude" / "skills" / "two")
    write_skill(tmp_path / "project" / ".github" / "skills" / "three")
    (tmp_path / ".codex" / "skills" / "empty").mkdir(parents=True)
    (tmp_path / ".agents").mkdir()
    (tmp_path / ".agents" / "skills").symlink_to(tmp_path / ".claude" / "skills")
    code, said = run(tmp_path)
    assert code == 2 and "serve DIR" in said and "install claude-desktop DIR" in said
    rows = [line.split() for line in said.splitlines() if "install HOST" in line]
    assert sorted((row[0], Path(row[-1]).parent.parent.name) for row in rows) == [
        ("1", "project"),
        ("2", tmp_path.name),  # once, though two folders lead to it
    ]


def test_a_machine_without_skills_is_told_how_to_begin(tmp_path: Path) -> None:
    code, said = run(tmp_path)
    assert code == 2 and "mcp-skills-server new my-skill" in said


def test_serve_without_a_root_offers_the_folders_to_a_person(tmp_path: Path) -> None:
    write_skill(tmp_path / ".claude" / "skills" / "one")
    code, said = run(tmp_path, "serve", on_terminal=True)
    assert code == 2 and "there is nothing to serve" in said and ".claude/skills" in said
    code, said = run(tmp_path, "serve")
    assert code == 2 and ".claude/skills" not in said
