"""The tags that skills travel in when a model reads them.

Text inside stays as the author wrote it, Markdown and all; only what would end its own tag early is made harmless,
so that a skill cannot pretend to be what stands around it (S40-48).
"""

from __future__ import annotations

import re
from collections.abc import Mapping


def escaped(text: str) -> str:
    """The text with the characters written out that mean something in XML."""
    for character, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
        text = text.replace(character, entity)
    return text


def element(tag: str, attributes: Mapping[str, str], content: str) -> str:
    """An element around verbatim content: `<tag a="b">`, the content on lines of its own, `</tag>` (ASG-27)."""
    said = "".join(f' {key}="{_attribute(value)}"' for key, value in attributes.items())
    return f"<{tag}{said}>\n{contained(content, tag)}\n</{tag}>"


def contained(content: str, tag: str) -> str:
    """The content with each closing tag of this name made harmless."""
    return re.sub(rf"<(?=\s*+/\s*+{re.escape(tag)}\b)", "&lt;", content, flags=re.IGNORECASE)


def _attribute(value: str) -> str:
    return escaped(value).replace('"', "&quot;").replace("\n", " ")
