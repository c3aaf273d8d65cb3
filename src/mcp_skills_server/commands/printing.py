"""What a command prints for people and programs. Skills are foreign text: nothing of them may steer a terminal.

Every command prints through here. JSON is escaped further than the standard asks, which changes no value.
"""

from __future__ import annotations

import json
from typing import Any, Final

import click

from mcp_skills_server.model import printable

_PROGRAM: Final = "mcp-skills-server"


def say(text: str, *, err: bool = False) -> None:
    """Print one line; what is not printable in it is written out."""
    click.echo(printable(text), err=err)


def say_lines(text: str) -> None:
    """Print text of several lines; tabs stay."""
    for line in text.split("\n"):
        click.echo("\t".join(printable(part) for part in line.split("\t")))


def remark(text: str) -> None:
    """Print one line about the command itself, on stderr and under the program's name."""
    say(f"{_PROGRAM}: {text}", err=True)


def say_json(value: Any) -> None:
    """Print a value as JSON. Readable characters stay as they are; control and direction characters are escaped."""
    written = json.dumps(value, indent=2, ensure_ascii=False)
    if not written.isascii() or "\x7f" in written:
        written = "".join(each if each.isprintable() or each == "\n" else json.dumps(each)[1:-1] for each in written)
    click.echo(written)
