"""Finds the tags in foreign text that read as one of ours."""

from __future__ import annotations

import re
from typing import Final

from mcp_skills_server.format.invisible import INVISIBLE
from mcp_skills_server.format.markup import FRAMES

_BLANK: Final = rf"[\s{INVISIBLE}]*+"
# With blanks, capital letters or invisible characters in it a tag still reads as one. A longer name is another tag:
# <skill-dir> is how many authors write a place to fill in.
_TAG: Final = re.compile(rf"<(?={_BLANK}(?:/{_BLANK})?([\w.:{INVISIBLE}-]*+))")
_UNSEEN: Final = re.compile(f"[{INVISIBLE}]++")
_FRAME: Final = re.compile("|".join(map(re.escape, FRAMES)), re.IGNORECASE)


def harmless(text: str) -> str:
    """Return the text with the `<` of each of our tags written out."""
    return _TAG.sub(_written, text)


def _written(found: re.Match[str]) -> str:
    return "&lt;" if _FRAME.fullmatch(_UNSEEN.sub("", found[1])) else "<"
