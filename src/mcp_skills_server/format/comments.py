"""HTML comments in Markdown: a rendered page does not show them, and a model reads them.

One in code is an example that every reader sees, so code does not count. Blocks are found by a CommonMark parser;
code inside of a line by its backticks, each looked at a bounded number of times.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from markdown_it import MarkdownIt

_OPENS: Final = "<!--"
_CLOSES: Final = "-->"
_READ: Final = 262_144
"""Characters that are parsed. Behind them a comment counts wherever it stands."""
_TICKS: Final = re.compile(r"(?<!`)`+")


def find(markdown: str) -> Iterator[tuple[int, str]]:
    """Yield each comment outside of code with its 0-based line and its content, in order."""
    if _OPENS not in markdown:
        return
    for block in _parser().parse(markdown[:_READ]):
        if block.type in ("inline", "html_block") and _OPENS in block.content:
            line = block.map[0] if block.map else 0
            text = _without_code(block.content) if block.type == "inline" else block.content
            yield from _placed(text, line)
    if len(markdown) > _READ:
        yield from _placed(markdown[_READ:], markdown.count("\n", 0, _READ))


def in_text(text: str) -> Iterator[tuple[int, str]]:
    """Yield each HTML comment of a text with its offset and its content, whether or not it stands in code.

    One that is never closed goes to the end of the text, as a browser takes it.
    """
    at = text.find(_OPENS)
    while at >= 0:
        begin = at + len(_OPENS)
        end = text.find(_CLOSES, begin)
        yield at, text[begin : end if end >= 0 else len(text)].strip()
        at = text.find(_OPENS, end) if end >= 0 else -1


def _placed(text: str, line: int) -> Iterator[tuple[int, str]]:
    read = 0
    for at, content in in_text(text):
        line += text.count("\n", read, at)
        read = at
        yield line, content


def _without_code(text: str) -> str:
    """Return the text with blanks in place of its code spans; line ends stay. A comment that opens first holds no
    code.
    """
    runs = [found.span() for found in _TICKS.finditer(text)]
    ends: dict[int, list[int]] = {}
    for start, end in runs:
        ends.setdefault(end - start, []).append(start)
    parts: list[str] = []
    read = 0
    for start, end in runs:
        if start < read:
            continue
        opened = text.rfind(_OPENS, read, start)
        if opened >= 0:
            closed = text.find(_CLOSES, opened)
            closed = len(text) if closed < 0 else closed
            if closed > start:
                parts.append(text[read:closed])
                read = closed
                continue
        same = ends[end - start]
        position = bisect_right(same, start)
        if position < len(same):
            close = same[position] + end - start
            parts += [text[read:start], re.sub(r"[^\n]", " ", text[start:close])]
            read = close
    return "".join((*parts, text[read:]))


@cache
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark").disable("inline")
