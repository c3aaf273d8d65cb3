"""Characters that a person does not see and a model reads all the same.

An invisible character that does work stays: a joiner between letters of a script that joins, a selector right behind
the character that it selects, a direction mark in text that runs from right to left. All others are hidden text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from mcp_skills_server.model import Json

_SHOWN: Final = b"\t\n\f\r" + bytes(range(0x20, 0x7F))
_HIDDEN_IN_ASCII: Final = re.compile(r"[\x00-\x08\x0b\x0e-\x1f\x7f]")


def find(text: str) -> Iterator[tuple[int, str]]:
    """Return each hidden character with its offset, in order."""
    if not _may_hide(text):
        return iter(())  # the same answer, ten times as quick
    return ((found.start(), found[0]) for found in _found(text))


def count(text: str) -> int:
    """Return how many hidden characters the text has."""
    if text.isascii() and text.isprintable():
        return 0  # nearly every name
    return sum(1 for _ in find(text))


def remark(*texts: str) -> str:
    """Return what to say of these texts where they are shown as they are; "" where nothing in them is hidden."""
    found = sum(map(count, texts))
    return f"{found:,} hidden characters, which no person who looked at it has seen" if found else ""


def texts(value: Json) -> Iterator[str]:
    """Yield every text in a value, the keys of mappings included. It recurses as deep as the value goes."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, each in value.items():
            yield key
            yield from texts(each)
    elif isinstance(value, list):
        for each in value:
            yield from texts(each)


def without(text: str) -> str:
    """Return the text without its hidden characters; the same object where there are none."""
    if text.isascii() and text.isprintable():
        return text
    if not _may_hide(text):
        return text
    return _pattern(text).sub("", text)


def _pattern(text: str) -> re.Pattern[str]:
    if text.isascii():
        return _HIDDEN_IN_ASCII  # the same, and much quicker
    from mcp_skills_server.format.invisible import HIDDEN  # a start among plain names does without

    return HIDDEN


def _found(text: str) -> Iterator[re.Match[str]]:
    pattern = _pattern(text)
    if text.isascii():
        return pattern.finditer(text)
    from mcp_skills_server.format.invisible import ANY

    # The long pattern is tried only where it may fit.
    return filter(None, (pattern.match(text, each.start()) for each in ANY.finditer(text)))


def _may_hide(text: str) -> bool:
    """Tell whether any character is one that is hidden somewhere."""
    # What a file is full of is taken away first, by a table of bytes: a pattern takes twice as long for each character.
    rest = text.encode("utf-8", "surrogatepass").translate(None, _SHOWN)
    if not rest or text.isascii():
        return bool(rest)
    from mcp_skills_server.format.invisible import ANY  # a start among plain names does without

    return ANY.search(rest.decode("utf-8", "surrogatepass")) is not None
