"""First steps: the program without arguments, `new` and `completion`.

Without arguments the program lists the folders of skills on this machine. `new` makes a skill that
passes every rule, and `validate` names what its author still has to write. The folder is renamed
into its place, so that a server that watches the folder never sees half of it.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Final

import click
import yaml
from click.shell_completion import get_completion_class

from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.commands.fields import Options, option, takes
from mcp_skills_server.commands.printing import remark, say, say_lines, writing
from mcp_skills_server.durable import write_folder
from mcp_skills_server.errors import PROGRAM, UsageError, plural
from mcp_skills_server.format import frontmatter
from mcp_skills_server.hosts.table import HOSTS
from mcp_skills_server.installation import shell_command
from mcp_skills_server.model import SKILL_MD, printable
from mcp_skills_server.validation import rules
from mcp_skills_server.validation.template import DESCRIPTION, DETAILS, REFERENCE, SKILL

_OTHERS: Final = ("skills", ".agent/skills", ".goose/skills", ".roo/skills")
"""Further usual folders of skills, below the home folder or a project, beside `Host.native`."""
_PLAIN: Final = re.compile(r"[A-Za-z](?:[A-Za-z0-9 ,.;()/_-]*[A-Za-z0-9,.;()/_-])?")


def skill_folders() -> dict[Path, int]:
    """Return the usual skill folders of the user and the project, with their numbers of skills."""
    usual = dict.fromkeys(
        [*(native for host in HOSTS.values() for native in host.native), *_OTHERS]
    )
    folders: dict[Path, int] = {}
    seen: set[str] = set()
    for parent in dict.fromkeys((Path(os.path.expanduser("~")), Path.cwd())):
        for name in usual:
            folder = parent / name
            real = os.path.realpath(folder)
            if os.path.isdir(real) and real not in seen and (count := _count(folder)):
                seen.add(real)
                folders[folder] = count
    return folders


def say_folders() -> None:
    """Print on stderr the skill folders of this machine, each with the command to install it."""
    folders = skill_folders()
    if not folders:
        say(f"No skills in the usual folders. Begin with one: {PROGRAM} new my-skill", err=True)
        return
    say("Skills on this machine:", err=True)
    for folder, count in folders.items():
        command = shell_command([PROGRAM, "install", "HOST", str(folder)])
        say(f"  {plural(count, 'skill'):>12}  {command}", err=True)


def usual_roots() -> tuple[str, ...]:
    """Return the usual skill folders, for a command without a ROOT, and name them on stderr.

    Raises:
        UsageError: none of them has a skill.
    """
    folders = skill_folders()
    if not folders:
        hint = "give a ROOT, a folder of skills, or begin one with 'new'"
        raise UsageError(f"there are no skills in the usual folders; {hint}")
    counted = [f"{folder} ({plural(count, 'skill')})" for folder, count in folders.items()]
    remark(f"no ROOT is given; taking the usual folders: {printable(', '.join(counted))}")
    return tuple(map(str, folders))


_WELCOME: Final = f"""\
{PROGRAM} serves folders of Agent Skills (directories with a {SKILL_MD}) to every MCP host.

  {PROGRAM} install claude-desktop DIR    have a host start it (--help names the hosts)
  {PROGRAM} serve DIR                     speak MCP on stdin and stdout; --transport http
  {PROGRAM} ui DIR                        look at the skills in a browser
  {PROGRAM} validate DIR                  what is wrong, and how to fix it
  {PROGRAM} --help                        everything else
"""


def welcome() -> None:
    """Print the first steps on stderr: a host may give no arguments and expect MCP on stdout."""
    say_lines(_WELCOME, err=True)
    say_folders()


def _count(folder: Path) -> int:
    """Return the number of skills that `list` shows of a folder."""
    try:
        with Registry([str(folder)]) as registry:
            return len(registry.snapshot.skills)
    except UsageError:
        return 0


class NewOptions(Options):
    directory: str = option(".", "The folder of the skill.", type=click.Path(), metavar="DIR")
    description: str = option(DESCRIPTION, "What the skill does and when to use it.")


@click.command()
@click.argument("name")
@takes(NewOptions)
def new(options: NewOptions, name: str) -> None:
    """Begin a skill: DIR/NAME with a SKILL.md to fill in and a file that it refers to.

    NAME has 1 to 64 of a-z, 0-9 and single hyphens.

    \b
    Examples:
      mcp-skills-server new refunds
      mcp-skills-server new refunds --description "Handles refunds. Use when money goes back."
    """
    files = bundle(name, options.description)
    folder = Path(options.directory, name)
    shown = printable(str(folder))
    if os.path.lexists(folder):
        raise UsageError(f"{shown} exists already; choose another name or --directory")
    with writing(shown, "choose another --directory"):
        write_folder(folder, {path: (text.encode(), False) for path, text in files.items()})
    check = shell_command([PROGRAM, "validate", shown, "--strict"])
    remark(f"made {shown} with {' and '.join(files)}")
    remark(f"next, fill in {SKILL_MD} there and run: {check}")


def bundle(name: str, description: str) -> dict[str, str]:
    """Return the files of a new skill by path.

    Raises:
        UsageError: the name or the description breaks a rule of the format.
    """
    title = name.replace("-", " ").capitalize()
    values = {"name": name, "description": description}
    fields = {key: _scalar(value) for key, value in values.items()}
    skill_md = SKILL.format(title=title, **fields)
    document = frontmatter.parse(skill_md.encode("utf-8", "surrogatepass"))
    for problem in (*document.problems, *rules.check(document, name)):
        if problem.code != "placeholder":
            raise UsageError(f"{problem.text} [{problem.code}]")
    return {SKILL_MD: skill_md, DETAILS: REFERENCE.format(title=title)}


def _scalar(text: str) -> str:
    """Return a text as a YAML scalar, quoted unless it is harmless and no value such as `yes`."""
    if _PLAIN.fullmatch(text) and yaml.safe_load(text) == text:
        return text
    return yaml.dump(text, default_style='"', allow_unicode=True, width=sys.maxsize).rstrip("\n")


_VARIABLE = "_MCP_SKILLS_SERVER_COMPLETE"
"""The variable that click derives from the program's name for completion."""


@click.command()
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the completion script of this program for SHELL.

    \b
    Examples:
      mcp-skills-server completion bash >> ~/.bash_completion
      mcp-skills-server completion zsh >> ~/.zshrc
      mcp-skills-server completion fish > ~/.config/fish/completions/mcp-skills-server.fish
    """
    root, complete = context.find_root(), get_completion_class(shell)
    if complete is not None:
        say_lines(complete(root.command, {}, root.info_name or PROGRAM, _VARIABLE).source())
