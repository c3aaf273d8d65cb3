"""Pieces of a text file, as readers see them: prose, comments, and code with its language. Pure.

Rules search the text and then ask for the piece at an offset, so that only files with a match are
parsed. A shell command is split into words, in which quoted text is no syntax.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

if TYPE_CHECKING:
    from markdown_it import MarkdownIt

_MAX_PARSED: Final = 262_144
"""Characters of Markdown that are parsed; those after them are prose."""
_MAX_STATEMENT: Final = 2_000
"""Characters of a statement before and after an offset."""
_LANGUAGES: Final = {
    **dict.fromkeys(("sh", "bash", "zsh", "ksh", "fish", "shell", "console", "terminal"), "sh"),
    **dict.fromkeys(("", "text", "txt", "shellsession", "dockerfile", "makefile"), "sh"),
    **dict.fromkeys(("ps1", "powershell", "pwsh", "bat", "cmd"), "sh"),
    **dict.fromkeys(("py", "python", "python3"), "python"),
    **dict.fromkeys(("js", "mjs", "cjs", "ts", "tsx", "jsx", "node"), "javascript"),
    **dict.fromkeys(("javascript", "typescript"), "javascript"),
}
"""Languages by the label of a fence or the extension of a file; others have none of these rules."""
_PROSE_FILES: Final = ("", "md", "markdown", "mdx", "txt", "rst")
_SHEBANG: Final = re.compile(r"#![^\n]*?\b(bash|sh|zsh|python|node)")
_TICKS_OR_COMMENT: Final = re.compile(r"`+|<!--")
_OPENS: Final = "<!--"
_CLOSES: Final = "-->"
_PART: Final = re.compile(
    r"(?P<blank>[ \t]++|\\\n)|(?P<end>\n|&&|\|\||[;&])|(?P<pipe>\|)|'(?P<single>[^']*+)'?"
    r'|"(?P<double>(?:[^"\\]|\\.)*+)"?|\\?(?P<plain>[^\s|;&\'"\\]++|.)',
    re.DOTALL,
)


class Piece(NamedTuple):
    """A part of a text; `heading` is the last one before it."""

    start: int
    end: int
    kind: Literal["prose", "comment", "code", "span"]
    language: str = ""
    heading: str = ""


class Pieces:
    """The pieces of a text file, in order and without gaps.

    Args:
        text: the whole file.
        path: its path in the skill, which tells its language.
        body_line: the 1-based line on which Markdown begins, after frontmatter.
    """

    def __init__(self, text: str, path: str, body_line: int = 1) -> None:
        self.text = text
        self._breaks = [match.start() for match in re.finditer("\n", text)]
        suffix = path.rpartition("/")[2].rpartition(".")[2].lower() if "." in path else ""
        shebang = _SHEBANG.match(text)
        self.is_prose = suffix in _PROSE_FILES and shebang is None
        if shebang is not None:
            suffix = shebang[1]
        self._pieces = [Piece(0, len(text), "code", _LANGUAGES.get(suffix, "other"))]
        if self.is_prose:
            self._pieces = [Piece(0, len(text), "prose")]
            if suffix not in ("txt", "rst"):
                self._pieces += _markdown(text, self._offset(body_line))
        self._starts = [piece.start for piece in self._pieces]

    def at(self, offset: int) -> Piece:
        """Return the piece at an offset."""
        return self._pieces[bisect_right(self._starts, offset) - 1]

    def comments(self) -> Iterator[tuple[int, str]]:
        """Yield (offset, content) of each HTML comment outside of code."""
        for piece in self._pieces:
            if piece.kind == "comment":
                content = self.text[piece.start + len(_OPENS) : piece.end]
                yield piece.start, content.removesuffix(_CLOSES).strip()

    def line(self, offset: int) -> int:
        """Return the 1-based line of an offset."""
        return bisect_right(self._breaks, offset - 1) + 1

    def text_of_line(self, number: int) -> str:
        """Return the line with this 0-based number."""
        return self.text[self._offset(number + 1) : self._offset(number + 2)]

    def _offset(self, line: int) -> int:
        """Return the offset of the beginning of a 1-based line."""
        if line <= 1:
            return 0
        return self._breaks[line - 2] + 1 if line - 2 < len(self._breaks) else len(self.text)

    def statement(self, offset: int) -> tuple[int, int]:
        """Return the (start, end) of the line at an offset within its piece.

        A shell command goes on after a backslash or a pipe at the end of its line. Of a longer
        statement the part around the offset is returned.
        """
        piece = self.at(offset)
        earliest = max(piece.start, offset - _MAX_STATEMENT)
        latest = min(piece.end, offset + _MAX_STATEMENT)
        start = max(earliest, self.text.rfind("\n", earliest, offset) + 1)
        end = self.text.find("\n", offset, latest)
        while piece.kind == "code" and start > earliest and _goes_on(self.text, start - 1):
            start = max(earliest, self.text.rfind("\n", earliest, start - 1) + 1)
        while piece.kind == "code" and end >= 0 and _goes_on(self.text, end):
            end = self.text.find("\n", end + 1, latest)
        return start, latest if end < 0 else end


def _goes_on(text: str, end: int) -> bool:
    """Tell whether the line that ends here goes on below."""
    return text[end - 1 : end] in ("\\", "|") and text[end - 2 : end] != "||"


def _markdown(text: str, begin: int) -> Iterator[Piece]:
    """Yield the pieces of the Markdown from an offset on; those between blocks are prose."""
    body = text[begin : begin + _MAX_PARSED]
    starts = [begin, *(begin + match.end() for match in re.finditer("\n", body)), begin + len(body)]
    heading, is_heading = "", False
    for token in _parser().parse(body):
        if token.map is None:
            continue
        start, end = (starts[min(line, len(starts) - 1)] for line in token.map)
        if token.type in ("fence", "code_block"):
            words = token.info.split()
            label = words[0].lower().lstrip("{.").rstrip("}") if words else ""
            if token.type == "fence":
                start = starts[min(token.map[0] + 1, len(starts) - 1)]
            yield Piece(start, end, "code", _LANGUAGES.get(label, "other"), heading)
            yield Piece(end, len(text), "prose", "", heading)
        elif token.type == "heading_open":
            is_heading = True
        elif token.type in ("inline", "html_block"):
            if is_heading:
                heading, is_heading = token.content, False
            yield from _inline(text, start, end, heading, has_code=token.type == "inline")
    parsed_end = begin + len(body)
    if parsed_end < len(text):
        yield from _inline(text, parsed_end, len(text), heading, has_code=False)


def _inline(text: str, start: int, end: int, heading: str, *, has_code: bool) -> Iterator[Piece]:
    """Yield the code spans and comments of a block, and the prose between them."""
    yield Piece(start, end, "prose", "", heading)
    marks = [match.span() for match in _TICKS_OR_COMMENT.finditer(text, start, end)]
    by_length: dict[int, list[int]] = {}  # a span ends with as many ticks as it begins with
    for begin, stop in marks:
        by_length.setdefault(stop - begin, []).append(begin)
    read = start
    for begin, stop in marks:
        if begin < read:
            continue
        if text[begin] == "<":
            close = text.find(_CLOSES, stop, end)
            read = end if close < 0 else close + len(_CLOSES)
            yield Piece(begin, read, "comment", "", heading)
        elif has_code:
            same = by_length[stop - begin]
            position = bisect_right(same, begin)
            while position < len(same) and text[same[position]] == "<":  # as long as four ticks
                position += 1
            if position == len(same):
                continue
            closing = same[position]
            read = closing + stop - begin
            yield Piece(stop, closing, "span", "sh", heading)
            yield Piece(closing, read, "prose", "", heading)
        else:
            continue
        yield Piece(read, end, "prose", "", heading)


@cache
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark").disable("inline")


def pipelines(command: str) -> list[list[list[str]]]:
    """Return the pipelines of a shell text, each a list of commands, each a list of its words.

    A comment ends the line; a quote that is not closed extends to the end.
    """
    done: list[list[list[str]]] = []
    pipeline: list[list[str]] = [[]]
    is_new_word = True
    comment_end = -1
    for part in _PART.finditer(command):
        if part.start() < comment_end:
            continue
        kind = part.lastgroup
        if kind in ("blank", "end", "pipe"):
            is_new_word = True
            if kind == "pipe":
                pipeline.append([])
            elif kind == "end":
                done.append(pipeline)
                pipeline = [[]]
            continue
        word = part[str(kind)]
        if is_new_word and kind == "plain" and word.startswith("#"):
            comment_end = command.find("\n", part.start())
            comment_end = len(command) if comment_end < 0 else comment_end
            continue
        if is_new_word:
            pipeline[-1].append(word)
        else:
            pipeline[-1][-1] += word
        is_new_word = False
    return [*done, pipeline]
