"""Detection and removal of hidden text: invisible Unicode characters that a model reads.

Invisible characters with a function are kept: a joiner between letters of a joining script, a
variation selector after its base, a direction mark in right-to-left text. The sets follow Unicode's
Default_Ignorable_Code_Point and Bidi_Control, plus control characters. The pattern examines one
character and its two neighbours, so it takes time linear in the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Final

from mcp_skills_server.model import Json

_SELECTORS: Final = "\ufe00-\ufe0f"
_IDEOGRAPHS: Final = "\u3400-\u9fff\uf900-\ufaff\U00020000-\U000323af"
_RIGHT_TO_LEFT: Final = (
    "\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc\U00010800-\U00010fff\U0001e800-\U0001efff"
)
_MONGOLIAN: Final = "\u1820-\u18aa"
_ALWAYS: Final = (
    # controls except tab, line feed, form feed and carriage return
    "\x00-\x08\x0b\x0e-\x1f\x7f-\x9f"
    "\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180e\u200b\u2028\u2029\u2060-\u206f\u3164\uffa0\ufff0-\ufffb"
    "\u202a-\u202e"  # direction overrides
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e00ff\U000e01f0-\U000e0fff"  # tag characters: a whole hidden alphabet
)
INVISIBLE: Final = (
    f"{_ALWAYS}{_SELECTORS}\u061c\u180b-\u180d\u180f\u200c-\u200f\u2800\ufeff\U000e0100-\U000e01ef"
)
"""Body of a regular expression's character class: every character that may be invisible."""
_FLAG: Final = (
    "\U0001f3f4\U000e0067\U000e0062(?:\U000e0065\U000e006e\U000e0067"
    "|\U000e0073\U000e0063\U000e0074|\U000e0077\U000e006c\U000e0073)\U000e007f"
)
"""The flag of England, Scotland or Wales, the only emoji with tag characters."""
_HIDDEN_IN_ASCII: Final = re.compile(r"[\x00-\x08\x0b\x0e-\x1f\x7f]")


@cache  # compiling both patterns takes 15 ms, and a start with ASCII names needs neither
def _any() -> re.Pattern[str]:
    return re.compile(f"{_FLAG}|[{INVISIBLE}]")


@cache
def _hidden() -> re.Pattern[str]:
    return re.compile(
        f"[{_ALWAYS}]"
        # a selector may follow the base of a keycap emoji
        f"|(?<=[\x00-\x7f{INVISIBLE}])(?<![0-9#*])[{_SELECTORS}]"
        f"|(?<![{_IDEOGRAPHS}])[\U000e0100-\U000e01ef]"
        f"|(?<![{_MONGOLIAN}])[\u180b-\u180d\u180f]"
        f"|(?<![{_RIGHT_TO_LEFT}])[\u061c\u200e\u200f](?![{_RIGHT_TO_LEFT}])"
        # A joiner joins two characters of a script that has joins, or two emoji; a selector may
        # stand before it.
        f"|[\u200c\u200d](?=[\x00-\x7f{INVISIBLE}]|\\Z)|(?<=[\x00-\x7f])[\u200c\u200d]"
        f"|(?<=[{INVISIBLE}])(?<![{_SELECTORS}])[\u200c\u200d]"
        f"|\\A[{_SELECTORS}\u200c\u200d]"
        "|(?<![\u2801-\u28ff])\u2800(?![\u2801-\u28ff])"  # the blank between words in braille
        "|(?<!\\A)\ufeff"
    )


def find(text: str) -> Iterator[tuple[int, str]]:
    """Yield each hidden character with its offset, in order."""
    if text.isascii():
        yield from ((match.start(), match[0]) for match in _HIDDEN_IN_ASCII.finditer(text))
        return
    for match in _any().finditer(text):
        # The long pattern is tried only where it may fit.
        if len(match[0]) == 1 and _hidden().match(text, match.start()):
            yield match.start(), match[0]


def count(text: str) -> int:
    """Return how many hidden characters the text has."""
    return sum(1 for _ in find(text))


def count_in_name(name: str) -> int:
    """Return `count` of a name or a line; a byte order mark at its start is hidden, too."""
    return count(f"/{name}")


def strip(text: str) -> str:
    """Return the text without its hidden characters."""
    if text.isascii():
        return _HIDDEN_IN_ASCII.sub("", text)
    unseen = {offset for offset, _ in find(text)}
    if not unseen:
        return text
    return "".join(character for offset, character in enumerate(text) if offset not in unseen)


def hidden_warning(*texts: str) -> str:
    """Return a warning that counts the hidden characters of these texts, or "" for none."""
    characters = sum(map(count, texts))
    if characters:
        return f"{characters:,} hidden characters, which are invisible to people"
    return ""


def texts(value: Json) -> Iterator[str]:
    """Yield every string in a value, keys of mappings included, recursing as deep as the value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from texts(item)
