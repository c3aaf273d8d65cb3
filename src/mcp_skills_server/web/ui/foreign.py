"""Foreign text as HTML: nothing of it is markup, and what nobody would see in it is written out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from markupsafe import Markup, escape

from mcp_skills_server.format import hidden

_MOST: Final = 2_000
"""Hidden characters that are marked in one text; from there on they are shown without a mark."""


def marked(text: str) -> Markup:
    """The text, escaped, with its hidden characters visible."""
    parts: list[Markup] = []
    for number, (before, code) in enumerate(_pieces(text)):
        parts.append(escape(before))
        if code:
            parts.append(Markup('<span class="hidden">{}</span>').format(code) if number < _MOST else escape(code))
    return parts[0] if len(parts) == 1 else Markup("").join(parts)


def plain(text: object, most: int = 0) -> str:
    """A name where no markup can be, such as in a title or an option: its hidden characters as `[U+202E]`."""
    return "".join(f"{before}[{code}]" if code else before for before, code in _pieces(_cut(str(text), most)))


def visible(text: object, most: int = 0) -> Markup:
    """A name or a line: as `marked`, cut where it has more than `most` characters, and with a direction of its own."""
    return Markup(f"<bdi>{marked(_cut(str(text), most))}</bdi>")  # noqa: S704 - `marked` has escaped it


def _cut(text: str, most: int) -> str:
    return text if not most or len(text) <= most else f"{text[: most - 3]}..."


def _pieces(text: str) -> Iterator[tuple[str, str]]:
    """Each part of a text with the code of the hidden character behind it; "" behind the last."""
    # Half a character of UTF-16, which YAML can write, is in no UTF-8.
    text = text if text.isascii() else text.encode("utf-8", "replace").decode()
    end = 0
    for start, character in hidden.find(text):
        yield text[end:start], f"U+{ord(character[0]):04X}"
        end = start + len(character)
    yield text[end:], ""
