"""Syntax colours of program files, and marks of the words that differ between two lines.

The scanner knows comments, strings, numbers and keywords, not grammars. Every pattern matches in
linear time, since the files are foreign; a library of grammars gives no such promise.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import islice, takewhile
from typing import Final

from markupsafe import Markup

from mcp_skills_server.provenance.difference import common_length
from mcp_skills_server.web.ui.render import marked

_STRING: Final = r"""(?P<string>"(?:[^"\\\n]|\\.)*+"?|'(?:[^'\\\n]|\\.)*+'?)"""
_WORDS: Final = (
    r"(?P<number>\b\d[\w.]*+)|(?P<keyword>\b(?:and|as|async|await|break|case|catch|class|const|"
    r"continue|def|do|done|elif|else|except|export|false|False|fi|finally|fn|for|from|func|function|"
    r"if|import|in|is|let|new|None|not|null|or|raise|return|then|throw|true|True|try|var|while|with)\b)"
)
_HASH: Final = re.compile(rf"{_STRING}|(?P<comment>(?<![\w$&])#.*+)|{_WORDS}")
_SLASHES: Final = re.compile(rf"{_STRING}|(?P<comment>//.*+|/\*.*+)|{_WORDS}")
_SCANNERS: Final = {
    **dict.fromkeys(("py", "sh", "bash", "rb", "toml", "yaml", "yml"), _HASH),
    **dict.fromkeys(("js", "mjs", "ts", "tsx", "json", "go", "rs", "c", "java", "css"), _SLASHES),
}
"""Scanners of a line by the extension of the file; other files have no colours."""
_MAX_COLOURED: Final = 100_000
"""Characters of the longest text with colours."""
_WORD: Final = re.compile(r"\w+|\s+|[^\w\s]")


def coloured_lines(text: str, path: str) -> list[Markup]:
    """Return the lines of a text, escaped, with the colours of the language of its file."""
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    scanner = _SCANNERS.get(path.rpartition(".")[2].lower())
    if scanner is None or len(text) > _MAX_COLOURED:
        return [marked(line) for line in lines]
    return [Markup("").join(_coloured(line, scanner)) for line in lines]


def _coloured(line: str, scanner: re.Pattern[str]) -> Iterator[Markup]:
    end = 0
    for match in scanner.finditer(line):
        yield marked(line[end : match.start()])
        yield Markup('<span class="{}">{}</span>').format(f"t-{match.lastgroup}", marked(match[0]))
        end = match.end()
    yield marked(line[end:])


def changed_words(old: str, new: str) -> tuple[Markup, Markup]:
    """Mark what differs between two lines: the words between their common begin and end."""
    before, after = _WORD.findall(old), _WORD.findall(new)
    start = common_length(before, after)
    end = common_length(before[start:][::-1], after[start:][::-1])
    if start + end == 0:
        return marked(old), marked(new)  # nothing in common: the whole line is another
    return _with_mark(before, start, end), _with_mark(after, start, end)


def _with_mark(words: Sequence[str], start: int, end: int) -> Markup:
    stop = len(words) - end
    first, last = marked("".join(words[:start])), marked("".join(words[stop:]))
    if start == stop:
        return first + last
    return first + Markup("<b>{}</b>").format(marked("".join(words[start:stop]))) + last


def diff_lines(lines: Sequence[str]) -> Iterator[tuple[str, Markup]]:
    """Yield the sign and the text of each line of a unified diff, with changed words marked.

    The removed lines of a block are compared with the added ones after them, in their order.
    """
    at = 0
    while at < len(lines):
        removed = _block(lines, at, "-")
        added = _block(lines, at + len(removed), "+")
        left, right = [marked(line[1:]) for line in removed], [marked(line[1:]) for line in added]
        for number, (old, new) in enumerate(zip(removed, added, strict=False)):
            if not old.startswith("---"):  # the names of the file
                left[number], right[number] = changed_words(old[1:], new[1:])
        yield from (("-", line) for line in left)
        yield from (("+", line) for line in right)
        at += len(left) + len(right)
        if not left and not right:
            yield "", marked(lines[at])
            at += 1


def _block(lines: Sequence[str], at: int, sign: str) -> Sequence[str]:
    return [*takewhile(lambda line: line.startswith(sign), islice(lines, at, None))]
