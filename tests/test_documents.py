"""The pages for people: what they show can be pasted."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/**/*.md"), *ROOT.glob("deploy/**/*.md")]
PROGRAMS = ("mcp-skills-server ", "make ", "npx ", "curl ", "git ", "pip ", "python ", "docker ", "oras ")
BLOCK = re.compile(r"^```(?:sh|bash|console)?\n(.*?)^```", re.DOTALL | re.MULTILINE)
GRAMMAR = re.compile(r"\.\.\.|…|\[[A-Z]|\bHOST\b|<[a-z]")
"""What stands for something else, and is no word of a command."""


def commands(text: str) -> list[str]:
    """Return the lines of a page that a reader may paste into a shell, those with a backslash at their end in one."""
    found = (line for block in BLOCK.findall(text) for line in re.sub(r"\\\n *", " ", block).splitlines())
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
