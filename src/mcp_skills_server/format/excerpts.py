"""Short one-line excerpts of untrusted text for messages."""

from __future__ import annotations

from typing import Final

from mcp_skills_server.model import printable

_LONGEST: Final = 60


def excerpt(text: str) -> str:
    """Clip the text to 60 characters on one line, with U+FFFD for what cannot be printed."""
    line = " ".join(text.split())
    return _cut("".join(each if each.isprintable() else "\ufffd" for each in line))


def literal(text: str, longest: int = _LONGEST) -> str:
    """Clip the text to `longest` characters, as a Python literal with quotes and escapes."""
    return repr(_cut(text, longest))


def quoted(text: str) -> str:
    """Clip the text to 60 characters in quotes, with control characters written out."""
    return f"'{_cut(printable(text[: _LONGEST + 1]))}'"


def _cut(text: str, longest: int = _LONGEST) -> str:
    if len(text) <= longest:
        return text
    return text[: longest - 3] + "..."
