"""The program without arguments, which shows the folders with skills on this machine, and `completion`."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click
from click.shell_completion import get_completion_class

from mcp_skills_server.commands.printing import say, say_lines
from mcp_skills_server.errors import plural
from mcp_skills_server.hosts.table import HOSTS
from mcp_skills_server.model import SKILL_MD

_OTHERS: Final = ("skills", ".agent/skills", ".kiro/skills", ".goose/skills", ".roo/skills", ".qwen/skills")
"""Further folders that are usual, below the home folder or a project, beside those of the hosts' table."""
_MOST_LOOKED_AT: Final = 10_000
_PROGRAM: Final = "mcp-skills-server"


def skill_folders(places: Sequence[Path]) -> dict[Path, int]:
    """Return the usual folders of skills below these places that have any, and how many lie directly in each."""
    usual = dict.fromkeys([*(native for host in HOSTS.values() for native in host.native), *_OTHERS])
    found: dict[Path, int] = {}
    seen: set[str] = set()
    for place in dict.fromkeys(places):
        for name in usual:
            folder = place / name
            count = _count(folder)
            if count and (real := os.path.realpath(folder)) not in seen:
                seen.add(real)
                found[folder] = count
    return found


def say_folders() -> None:
    """Print on stderr the folders of skills on this machine, each with the command that has a host serve it."""
    folders = skill_folders((Path.home(), Path.cwd()))
    if not folders:
        say(f"No skills in the usual folders. Begin with one: {_PROGRAM} new my-skill", err=True)
        return
    say("Skills on this machine:", err=True)
    for folder, count in folders.items():
        say(f"  {plural(count, 'skill'):>12}  {_PROGRAM} install HOST {shlex.quote(str(folder))}", err=True)


def welcome() -> None:
    """Print what a person needs for a beginning, on stderr: a host that gives no arguments wants a protocol."""
    say(f"{_PROGRAM} serves folders of Agent Skills (directories with a {SKILL_MD}) to every MCP host.", err=True)
    say("", err=True)
    say_lines(
        f"  {_PROGRAM} install claude-desktop DIR    have a host start it (--help names the hosts)\n"
        f"  {_PROGRAM} serve DIR                     speak MCP on stdin and stdout; --transport http\n"
        f"  {_PROGRAM} ui DIR                        look at the skills in a browser\n"
        f"  {_PROGRAM} validate DIR                  what is wrong, and how to fix it\n"
        f"  {_PROGRAM} --help                        everything else",
        err=True,
    )
    say("", err=True)
    say_folders()


def _count(folder: Path) -> int:
    try:
        with os.scandir(folder) as entries:
            names = [entry.path for _, entry in zip(range(_MOST_LOOKED_AT), entries, strict=False)]
    except OSError:
        return 0
    return sum(os.path.isfile(f"{name}/{SKILL_MD}") for name in names)


_VARIABLE = "_MCP_SKILLS_SERVER_COMPLETE"
"""Click looks for this variable of the name of the program."""


@click.command()
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print what SHELL reads to complete commands and options of this program.

    \b
    Examples:
      mcp-skills-server completion bash > ~/.local/share/bash-completion/completions/mcp-skills-server
      mcp-skills-server completion zsh > ~/.zfunc/_mcp-skills-server
      mcp-skills-server completion fish > ~/.config/fish/completions/mcp-skills-server.fish
    """
    root = context.find_root()
    complete = get_completion_class(shell)
    if complete is not None:
        say_lines(complete(root.command, {}, root.info_name or "mcp-skills-server", _VARIABLE).source())
