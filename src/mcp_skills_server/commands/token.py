"""`token`: make bearer tokens that `serve --token-file` accepts."""

from __future__ import annotations

import os
from pathlib import Path

import click

from mcp_skills_server.commands.fields import Options, file, many, takes, text
from mcp_skills_server.commands.printing import remark, say, writing


class NewTokenOptions(Options):
    token_file: str | None = file(
        "Add the line to this file, which is created if it does not exist. A running server "
        "reloads it by itself."
    )
    expires: str | None = text(
        "When it expires: a day such as 2027-01-31, or as in RFC 3339.", "DAY"
    )
    group: tuple[str, ...] = many("A group of the bearer.", "NAME")


@click.group()
def token() -> None:
    """Make the tokens that `serve --token-file` accepts.

    \b
    Examples:
      mcp-skills-server token new laptop --token-file tokens
    """


@token.command()
@click.argument("name")
@takes(NewTokenOptions)
def new(options: NewTokenOptions, name: str) -> None:
    """Print a new token for NAME on stdout, and make its line NAME=sha256:... of a token file.

    Only the hash is kept, so the token cannot be shown again. A name may occur twice: add its new
    token, hand it to the user of the old one, and remove the old line.

    \b
    Examples:
      mcp-skills-server token new laptop --token-file tokens
      mcp-skills-server token new ann --token-file tokens --expires 2027-01-31 --group finance
    """
    from mcp_skills_server.access.tokens import hashed_line, new_token

    made = new_token()
    line = hashed_line(name, made, expires=options.expires, groups=options.group)
    if options.token_file is None:
        remark(f"accept it with this line of a token file: {line}")
    else:
        _append(Path(os.path.realpath(options.token_file)), line)
    say(made)


def _append(file: Path, line: str) -> None:
    """Append a line to a token file, without losing lines that another process appends."""
    from mcp_skills_server.access.tokens import read_token_text, read_tokens

    text = read_token_text(str(file))[0] if os.path.exists(file) else ""
    read_tokens(f"{text}\n{line}", str(file)).require_valid()
    with writing(str(file), "give another --token-file"):
        descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with open(descriptor, "wb") as out:
            start = "\n" if text and not text.endswith("\n") else ""
            out.write(f"{start}{line}\n".encode())
            out.flush()
            os.fsync(descriptor)
