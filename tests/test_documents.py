"""The pages for people: what they show can be pasted."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from wire import DEADLINE

ROOT = Path(__file__).parent.parent
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/**/*.md"), *ROOT.glob("deploy/**/*.md")]
PROGRAMS = ("mcp-skills-server ", "make ", "npx ", "curl ", "git ", "pip ", "python ", "docker ", "oras ")
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
SHELLS = ("", "sh", "bash", "console")
GRAMMAR = re.compile(r"\.\.\.|…|\[[A-Z]|\bHOST\b|<[a-z]")
"""What stands for something else, and is no word of a command."""


def commands(text: str) -> list[str]:
    """Return the lines of a page that a reader may paste into a shell, those with a backslash at their end in one."""
    blocks = (block for language, block in BLOCK.findall(text) if language in SHELLS)
    found = (line for block in blocks for line in re.sub(r"\\\n *", " ", block).splitlines())
    return [line for line in found if line.startswith(PROGRAMS)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_command_of_a_block_can_be_pasted(page: Path) -> None:
    for line in commands(page.read_text(encoding="utf-8")):
        if "$(" in line or "<<" in line or line.count("'") % 2:
            continue
        command = " ".join(shlex.split(line, comments=True))
        bare = re.sub(r"#.*", "", line).rstrip()
        assert not GRAMMAR.search(command), line
        assert not re.search(r"\S {3,}\S", bare), f"words without a '#' before them: {line}"


def test_the_commands_of_the_tutorial_work_one_after_the_other(tmp_path: Path) -> None:
    ran: list[str] = []
    for line in commands((ROOT / "docs/tutorial.md").read_text(encoding="utf-8")):
        program, command, *rest = shlex.split(line)
        if program == "mcp-skills-server" and command != "ui":  # which goes on until somebody ends it
            words = [each.replace("~", str(tmp_path)) for each in rest]
            (tmp_path / "skills").mkdir(exist_ok=True)
            done = subprocess.run(
                [sys.executable, "-m", "mcp_skills_server", command, *words],
                cwd=tmp_path / "skills",
                env={**os.environ, "HOME": str(tmp_path)},
                timeout=DEADLINE,
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, (line, done.stderr)
            ran.append(command)
    assert ran == ["new", "validate", "show", "install", "install"]
    assert '"serve"' in "".join(path.read_text() for path in tmp_path.rglob("claude_desktop_config.json"))
