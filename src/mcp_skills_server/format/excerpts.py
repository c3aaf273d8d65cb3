"""Short one-line excerpts of untrusted text for messages."""

from __future__ import annotations

from typing import Final

from mcp_skills_server.errors import clipped
from mcp_skills_server.model import printable

_MAX_LENGTH: Final = 60


def excerpt(text: str) -> str:
    """Clip the text to 60 characters on one line, with U+FFFD for what cannot be printed."""
    line = " ".join(text.split())
    shown = "".join(character if character.isprintable() else "\ufffd" for character in line)
    return clipped(shown, _MAX_LENGTH)


def literal(text: str, longest: int = _MAX_LENGTH) -> str:
    """Clip the text to `longest` characters, as a Python literal with quotes and escapes."""
    return repr(clipped(text, longest))


def quoted(text: str) -> str:
    """Clip the text to 60 characters in quotes, with control characters written out."""
    return f"'{clipped(printable(text[: _MAX_LENGTH + 1]), _MAX_LENGTH)}'"
