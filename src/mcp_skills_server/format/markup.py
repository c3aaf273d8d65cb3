"""The tags that skills travel in when a model reads them.

Text inside stays as the author wrote it, Markdown and all; only what would open or close a tag of
ours is made harmless, so that a skill can neither pretend to be what stands around it nor to be
another one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Final

from mcp_skills_server.format.hidden import INVISIBLE

FRAMES: Final = (
    "skill",
    "skill_files",
    "skill_problems",
    "active_skills",
    "available_skills",
    "stdout",
    "stderr",
)
"""The names of every element that we put around foreign text. Inside of it none of them may begin
or end."""


def escaped(text: str) -> str:
    """Return the text with the characters written out that mean something in XML."""
    for character, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
        text = text.replace(character, entity)
    return text


def element(tag: str, attributes: Mapping[str, str], content: str) -> str:
    """Return an element around foreign content, verbatim but for tags of ours.

    `<tag a="b">`, the content on lines of its own, `</tag>`. The tag must be one of ours.
    """
    return around(tag, attributes, [contained(content)])


def around(tag: str, attributes: Mapping[str, str], parts: Sequence[str]) -> str:
    """Return an element around what we made ourselves, such as other elements; one line or more for
    each.

    Raises:
        ValueError: content could forge the tag, because it is not among those that are made
            harmless.
    """
    if tag not in FRAMES:
        raise ValueError(f"no tag of ours: {tag}")
    written = "".join(f' {key}="{_attribute(value)}"' for key, value in attributes.items())
    return "\n".join((f"<{tag}{written}>", *parts, f"</{tag}>"))


def contained(content: str) -> str:
    """Return the content with the `<` of each tag of ours in it written out, opening or closing."""
    if "<" not in content:
        return content
    return _tag().sub(_written, content)


@cache  # takes milliseconds to compile, and a handshake does without
def _tag() -> re.Pattern[str]:
    # With blanks, capital letters or invisible characters in it a tag still reads as one. A longer
    # name is another tag: <skill-dir> is how many authors write a place to fill in.
    blank = rf"[\s{INVISIBLE}]*+"
    return re.compile(rf"<(?={blank}(?:/{blank})?([\w.:{INVISIBLE}-]*+))")


def _written(found: re.Match[str]) -> str:
    name = re.sub(f"[{INVISIBLE}]++", "", found[1])
    if name.casefold() in FRAMES:
        return "&lt;"
    return "<"


def _attribute(value: str) -> str:
    return " ".join(f"{escaped(value)}\n".replace('"', "&quot;").splitlines())
