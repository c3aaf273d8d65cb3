"""Tags around untrusted text for a model, with escaping against tag injection.

Content stays verbatim, Markdown included. Only tags named in `FRAMES` are escaped in it, so that a
skill can neither end its element nor imitate another skill.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Final

from mcp_skills_server.format.hidden import INVISIBLE

FRAMES: Final = (
    "skill", "skill_files", "skill_problems", "active_skills", "available_skills", "stdout",
    "stderr",
)  # fmt: skip
"""Names of the elements around untrusted text, in which their tags are escaped."""


def escaped(text: str) -> str:
    """Return the text with `&`, `<` and `>` escaped as in XML."""
    for character, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
        text = text.replace(character, entity)
    return text


def element(tag: str, attributes: Mapping[str, str], content: str) -> str:
    """Return an element around untrusted content, in which tags named in `FRAMES` are escaped.

    The result is `<tag a="b">`, the content on its own lines, and `</tag>`.
    """
    return wrap(tag, attributes, [contained(content)])


def wrap(tag: str, attributes: Mapping[str, str], parts: Sequence[str]) -> str:
    """Return an element around trusted parts, such as other elements, each on its own lines.

    Raises:
        ValueError: `tag` is not in `FRAMES`, so untrusted content could forge it.
    """
    if tag not in FRAMES:
        raise ValueError(f"no tag of ours: {tag}")
    written = "".join(f' {key}="{_attribute(value)}"' for key, value in attributes.items())
    return "\n".join((f"<{tag}{written}>", *parts, f"</{tag}>"))


def contained(content: str) -> str:
    """Return the content with the `<` of each opening or closing tag of `FRAMES` escaped."""
    if "<" not in content:
        return content
    return _tag().sub(_written, content)


@cache  # compiling takes milliseconds, and a handshake does not need the pattern
def _tag() -> re.Pattern[str]:
    # A model reads a tag despite blanks, capital letters or invisible characters in it. A longer
    # name is another tag: many authors write placeholders such as <skill-dir>.
    blank = rf"[\s{INVISIBLE}]*+"
    return re.compile(rf"<(?={blank}(?:/{blank})?([\w.:{INVISIBLE}-]*+))")


def _written(match: re.Match[str]) -> str:
    name = re.sub(f"[{INVISIBLE}]++", "", match[1])
    if name.casefold() in FRAMES:
        return "&lt;"
    return "<"


def _attribute(value: str) -> str:
    """Return a value between double quotes, with blanks for line breaks, the last one, too."""
    return " ".join(f"{escaped(value)}\n".replace('"', "&quot;").splitlines())
