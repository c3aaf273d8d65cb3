"""Foreign text as HTML: nothing of it is markup, and what nobody would see in it is written out."""

from __future__ import annotations

from typing import Final

from markupsafe import Markup, escape

from mcp_skills_server.format import hidden

_MOST: Final = 2_000
"""Hidden characters that are marked in one text; from there on they are shown without a mark."""


def marked(text: str) -> Markup:
    """The text, escaped, with its hidden characters visible."""
    # Half a character of UTF-16, which YAML can write, is in no UTF-8.
    text = text.encode("utf-8", "replace").decode() if not text.isascii() else text
    parts: list[Markup] = []
    end = 0
    for number, (start, character) in enumerate(hidden.find(text)):
        parts.append(escape(text[end:start]))
        end = start + len(character)
        code = f"U+{ord(character[0]):04X}"
        parts.append(Markup('<span class="hidden">{}</span>').format(code) if number < _MOST else escape(code))
    if not parts:
        return escape(text)
    parts.append(escape(text[end:]))
    return Markup("").join(parts)


def visible(text: object, most: int = 0) -> Markup:
    """A name or a line: as `marked`, cut where it has more than `most` characters, and with a direction of its own."""
    whole = str(text)
    cut = whole if not most or len(whole) <= most else f"{whole[: most - 3]}..."
    return Markup("<bdi>{}</bdi>").format(marked(cut))
