"""`new`: the beginning of a skill, which `validate --strict` accepts before its author has written a word.

The bundle is made beside its place and then renamed, so that a server which watches the folder never sees half of it.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shlex
import shutil
from pathlib import Path
from typing import Final

import click

from mcp_skills_server.commands.printing import remark
from mcp_skills_server.errors import UsageError
from mcp_skills_server.model import SKILL_MD, printable

_PLAIN: Final = re.compile(r"[A-Za-z](?:[A-Za-z0-9 ,.;()/_-]*[A-Za-z0-9,.;()/_-])?")
_DESCRIPTION: Final = (
    "Replace this with one or two sentences that say what the skill does. Use when somebody asks for it "
    "in the words that you list here."
)
_DETAILS: Final = "references/details.md"

_SKILL: Final = f"""\
---
name: {{name}}
description: {{description}}
metadata:
  version: "0.1.0"
---

# {{title}}

Write here what the reader of this skill must know to do the work. The reader is a language model that has read the
description and nothing else. Say what to do, step by step, and how to tell that it was done well.

## Steps

1. Say what to look at first.
2. Say what to do with it, and in which order.
3. Say what the result looks like.

## Example

Show one request as a user would type it, and the answer that you want.

## When something is missing

Say what to ask the user, and what never to guess.

Keep this file below 500 lines. What is needed only now and then belongs into files of its own, such as
[the details]({_DETAILS}), which are read when the work calls for them.
"""

_REFERENCE: Final = """\
# Details of {title}

Move tables, long examples and rare cases here, and link to this file from SKILL.md where they are needed. Delete the
file and its link if there is nothing to say.
"""


@click.command()
@click.argument("name")
@click.option(
    "--directory", type=click.Path(), default=".", show_default=True, metavar="DIR", help="The folder of the skill."
)
@click.option("--description", default=_DESCRIPTION, help="What the skill does and when to use it.")
def new(name: str, directory: str, description: str) -> None:
    """Begin a skill: DIR/NAME with a SKILL.md to fill in and a file that it refers to.

    NAME has 1 to 64 of a-z, 0-9 and single hyphens.

    \b
    Examples:
      mcp-skills-server new refunds
      mcp-skills-server new refunds --directory ~/skills --description "Handles refunds. Use when money goes back."
    """
    files = bundle(name, description)
    place = Path(directory, name)
    _create(place, files)
    shown = printable(str(place))
    check = f"mcp-skills-server validate {shlex.quote(shown)} --strict"
    remark(f"made {shown} with {' and '.join(files)}")
    remark(f"next, fill in {SKILL_MD} there and run: {check}")


def bundle(name: str, description: str) -> dict[str, str]:
    """The files of a new skill by their paths.

    Raises:
        UsageError: the name or the description breaks a rule of the format.
    """
    from mcp_skills_server.format import frontmatter, rules

    title = name.replace("-", " ").capitalize()
    said = {"name": name, "description": description}
    files: dict[str, str] = {}
    # Plain as far as YAML allows, and in quotes where a reader of YAML would take it for something else.
    for scalar in (_plain_if_harmless, _quoted):
        files = {
            SKILL_MD: _SKILL.format(title=title, **{key: scalar(value) for key, value in said.items()}),
            _DETAILS: _REFERENCE.format(title=title),
        }
        document = frontmatter.parse(files[SKILL_MD].encode("utf-8", "surrogatepass"))
        problems = [*document.problems, *rules.check(document, name)]
        if not problems:
            break
    else:
        first = problems[0]
        raise UsageError(f"{first.text} [{first.code}]")
    return files


def _plain_if_harmless(text: str) -> str:
    return text if _PLAIN.fullmatch(text) else _quoted(text)


def _quoted(text: str) -> str:
    # A string of JSON is one of YAML, but for characters that YAML wants escaped.
    return "".join(
        each if each.isprintable() else f"\\u{ord(each):04x}" if ord(each) < 0x10000 else f"\\U{ord(each):08x}"
        for each in json.dumps(text, ensure_ascii=False)
    )


def _create(place: Path, files: dict[str, str]) -> None:
    from mcp_skills_server.hosts import disk

    shown = printable(str(place))
    taken = UsageError(f"{shown} is there already, and stays; choose another name or --directory")
    if os.path.lexists(place):
        raise taken
    making = place.with_name(f".{place.name}.{secrets.token_hex(6)}")
    try:
        for path, text in files.items():
            file = making / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8", newline="")
        for each in (*making.rglob("*"), making):
            disk.settle(each)  # so that no power cut leaves the skill with empty files
        if os.path.lexists(place):
            raise taken
        making.rename(place)
        disk.settle(place.parent)
    except OSError as error:
        raise UsageError(f"{shown} cannot be made: {error.strerror or error}") from None
    finally:
        shutil.rmtree(making, ignore_errors=True)
