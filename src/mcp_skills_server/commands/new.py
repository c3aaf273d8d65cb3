"""`new`: a skill to start from. It passes every rule, and `validate` names what its author still has to write.

The bundle is made beside its place and then renamed, so that a server which watches the folder never sees half of it.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path
from typing import Final

import click
import yaml

from mcp_skills_server.commands.fields import Options, option, takes
from mcp_skills_server.commands.printing import remark
from mcp_skills_server.durable import write_folder
from mcp_skills_server.errors import UsageError
from mcp_skills_server.format import frontmatter
from mcp_skills_server.model import SKILL_MD, printable
from mcp_skills_server.validation import rules
from mcp_skills_server.validation.template import DESCRIPTION, DETAILS, REFERENCE, SKILL

_PLAIN: Final = re.compile(r"[A-Za-z](?:[A-Za-z0-9 ,.;()/_-]*[A-Za-z0-9,.;()/_-])?")


class NewOptions(Options):
    """All options of `new`."""

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
      mcp-skills-server new refunds --directory ~/skills --description "Handles refunds. Use when money goes back."
    """
    files = bundle(name, options.description)
    place = Path(options.directory, name)
    _create(place, files)
    shown = printable(str(place))
    check = f"mcp-skills-server validate {shlex.quote(shown)} --strict"
    remark(f"made {shown} with {' and '.join(files)}")
    remark(f"next, fill in {SKILL_MD} there and run: {check}")


def bundle(name: str, description: str) -> dict[str, str]:
    """Return the files of a new skill by their paths.

    Raises:
        UsageError: the name or the description breaks a rule of the format.
    """
    title = name.replace("-", " ").capitalize()
    values = {"name": name, "description": description}
    files: dict[str, str] = {}
    # Plain as far as YAML allows, and in quotes where a reader of YAML would take it for something else.
    for scalar in (_plain_if_harmless, _quoted):
        files = {
            SKILL_MD: SKILL.format(title=title, **{key: scalar(value) for key, value in values.items()}),
            DETAILS: REFERENCE.format(title=title),
        }
        document = frontmatter.parse(files[SKILL_MD].encode("utf-8", "surrogatepass"))
        found = (*document.problems, *rules.check(document, name))
        problems = [each for each in found if each.code != "placeholder"]
        if not problems:
            break
    else:
        first = problems[0]
        raise UsageError(f"{first.text} [{first.code}]")
    return files


def _plain_if_harmless(text: str) -> str:
    if _PLAIN.fullmatch(text):
        return text
    return _quoted(text)


def _quoted(text: str) -> str:
    return yaml.dump(text, default_style='"', allow_unicode=True, width=sys.maxsize).rstrip("\n")


def _create(place: Path, files: dict[str, str]) -> None:
    shown = printable(str(place))
    if os.path.lexists(place):
        raise UsageError(f"{shown} exists already and stays as it is; choose another name or --directory")
    try:
        write_folder(place, {path: (text.encode(), False) for path, text in files.items()})
    except OSError as error:
        raise UsageError(f"{shown} cannot be made: {error.strerror or error}") from None
