"""Extraction of file references and headings from the Markdown body of a skill.

A CommonMark parser finds links, reference links, images and code spans. A code span counts if one
of its words names a bundled file, because authors point to scripts that way. Headings are found
line by line, without the parser. The list of the bundle's files decides which targets exist, not
the disk.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from functools import cache
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple
from urllib.parse import unquote

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.rules_inline import StateInline
    from markdown_it.token import Token

# The parser has escaped braces and angle brackets by then.
_ELSEWHERE: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:|//|#|/|\{|%7B|\$|<|%3C")
_MAY_LINK: Final = re.compile(r"\]\([ <]*+(?!https?:|#)|\]:")
_MAX_READ: Final = 262_144
"""Characters at the start of a body that are searched for references."""
_MAX_PIECE: Final = 16_384
_MAX_BRACKETS: Final = 2_000
"""With `_MAX_PIECE`, a bound on parsing: at each opening bracket it may scan a whole piece.

None of 911 real bodies comes near either bound. References beyond a bound are not found.
"""
_MAX_HEADING: Final = 1_024
_MAX_HEADINGS_SEARCHED: Final = 65_536
_MAX_HEADINGS: Final = 40
_MAX_HEADINGS_LENGTH: Final = 2_000
# A heading, a comment, a fence or a setext underline. It begins with the line end, because
# searching for one literal character is fast.
_MARKED_LINE: Final = re.compile(
    r"\n(?: {0,3}(#{1,3})[ \t]| {0,3}(<!--)|[ \t]*```|[ \t]*~~~|=|--)[^\n]*"
)
_FENCE: Final = re.compile(r"`{3,}|~{3,}")
_UNDERLINE: Final = re.compile(r"\n(?:=+|-+)[ \t]*\Z")
_NO_PARAGRAPH: Final = ("#", "|", ">", "- ", "* ", "+ ", "    ", "```", "~~~")
_SIGN_OF_MARKUP: Final = re.compile(r"[\[*`\\~#]")
_SIGN_OF_INLINE: Final = re.compile(r"[\\`*_\[\]<>&!#~]")
# Inline markup: only the text of a link or an image remains. Marks of emphasis and code, and those
# that close a heading, are removed.
_MARKUP: Final = re.compile(
    r"!?\[([^\[\]\n]*)\](?:\([^()\n]*\)|\[[^\[\]\n]*\])?|[*`\\]|~~|(?<![^ \t\n])#+[ \t]*(?![^\n])"
)


class Reference(NamedTuple):
    """A reference from a body to a file.

    Attributes:
        target: the path from the skill's root, percent-decoded once, without query or fragment.
        text: the link text or the image's alternative text; "" for a code span.
        line: 0-based line, counted from the body's first line.
        kind: "code" is a reference only if it names a file of the bundle. "outside" is a link or an
            image to a path outside of the skill's folder, with the target as written.
    """

    target: str
    text: str
    line: int
    kind: Literal["link", "image", "code", "outside"]


def may_link(body: str) -> bool:
    """Tell whether a body may have a link to a file, without parsing it."""
    return _MAY_LINK.search(body) is not None


def references(body: str, folder: str = "") -> list[Reference]:
    """Return all possible references of a body to bundled files, in order of appearance.

    `folder` is the one of the body's file in the skill, to which its links are relative.
    """
    refs: list[Reference] = []
    known: dict[str, Any] = {}  # the parser puts the definitions of reference links here
    left = _MAX_BRACKETS
    for block in _parser().parse(body[:_MAX_READ], known):
        if block.type != "inline":
            continue
        for line, piece in _pieces(block.content, block.map[0] if block.map else 0):
            left -= piece.count("[")
            if left < 0:
                return refs
            if "[" in piece or "`" in piece:
                refs += _inline(_parsed(piece, known), line, folder)
    return refs


def _pieces(content: str, line: int) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of a block; of a long one each line, but those over `_MAX_PIECE`."""
    if len(content) <= _MAX_PIECE:
        yield line, content
        return
    for number, text in enumerate(content.split("\n"), line):
        if len(text) <= _MAX_PIECE:
            yield number, text


def _parsed(text: str, known: dict[str, Any]) -> list[Token]:
    """Return the inline tokens of a block; `known` holds the definitions of reference links.

    The parser tells no lines. The map of a token that it pushes is the line on which it begins.
    """
    state = _state()(text, _parser(), known, [])
    inline = _parser().inline
    inline.tokenize(state)
    for rule in inline.ruler2.getRules(""):
        rule(state)
    return state.tokens


@cache
def _state() -> type[StateInline]:
    from markdown_it.rules_inline import StateInline

    class PlacedState(StateInline):
        def push(self, ttype: str, tag: str, nesting: Literal[-1, 0, 1]) -> Token:
            token = super().push(ttype, tag, nesting)
            line = self.src.count("\n", 0, self.pos)
            token.map = [line, line]
            return token

    return PlacedState


def _inline(tokens: list[Token], line: int, folder: str) -> Iterator[Reference]:
    first = line
    for position, token in enumerate(tokens):
        line = first + (token.map[0] if token.map else 0)
        if token.type == "link_open":
            # Links are not nested.
            inside = takewhile(lambda inner: inner.type != "link_close", tokens[position + 1 :])
            yield from _reference(token.attrs.get("href"), folder, _text(inside), line, "link")
        elif token.type == "image":
            yield from _reference(token.attrs.get("src"), folder, token.content, line, "image")
        elif token.type == "code_inline":
            for word in dict.fromkeys((token.content, *token.content.split())):
                target = _normal(word.strip("\"'"))
                if target and len(target) <= 255:
                    yield Reference(target, "", line, "code")


def _reference(
    written: object, folder: str, text: str, line: int, kind: Literal["link", "image"]
) -> Iterator[Reference]:
    if not isinstance(written, str) or not written or _ELSEWHERE.match(written):
        return
    path = unquote(re.split(r"[?#]", written, maxsplit=1)[0])
    target = _normal(f"{folder}/{path}")
    if target:
        yield Reference(target, text, line, kind)
    elif path.startswith("../") or "/../" in path:
        yield Reference(path, text, line, "outside")


def _text(tokens: Iterable[Token]) -> str:
    out: list[str] = []
    for token in tokens:
        if token.type in {"text", "text_special", "code_inline", "image"}:
            out.append(token.content)
        elif token.type in {"softbreak", "hardbreak"}:
            out.append(" ")
    return " ".join("".join(out).split())


def _normal(path: str) -> str | None:
    parts: list[str] = []
    for part in path.split("/"):
        if part == ".." and not parts:
            return None
        if part == "..":
            parts.pop()
        elif part not in {"", "."}:
            parts.append(part)
    return "/".join(parts) or None


def linked_files(refs: list[Reference], files: Collection[str], skip: str) -> dict[str, str]:
    """Return the referenced files in order of first appearance, each with its first link text.

    The file `skip` (SKILL.md itself) is ignored, as are directories.
    """
    out: dict[str, str] = {}
    for reference in refs:
        if reference.target in files and reference.target != skip and not out.get(reference.target):
            out[reference.target] = reference.text or out.get(reference.target, "")
    return out


def heading(body: str) -> str | None:
    """Return the first level-1 heading as plain text, ATX or setext, or None."""
    for level, written in _heading_lines(body):
        if level > 1:
            continue
        if not _SIGN_OF_INLINE.search(written):  # spares importing the parser (50 ms)
            return " ".join(written.split()) or None
        known: dict[str, Any] = {}
        _, content, _ = _parser().parse(f"# {written}", known)
        return _text(_parsed(content.content, known)) or None
    return None


def headings(body: str) -> tuple[str, ...]:
    """Return the headings of levels 1 to 3 as plain text: at most 40, and 2,000 characters in all.

    Every scan calls this and only a search uses the result, so markup is removed without a parser.
    """
    lines = islice(_heading_lines(body), _MAX_HEADINGS)
    written = "\n".join(line for _, line in lines)
    out: list[str] = []
    left = _MAX_HEADINGS_LENGTH
    if _SIGN_OF_MARKUP.search(written):
        written = _MARKUP.sub(r"\1", written)
    for line in written.split("\n"):
        text = " ".join(line.split())[:left]
        if text:
            out.append(text)
            left -= len(text)
    return tuple(out)


def _heading_lines(body: str) -> Iterator[tuple[int, str]]:
    """Yield (level, text as written) of each heading at the beginning of a body, without a parser.

    Headings that are quoted or in a list are skipped. A setext heading of several lines is reduced
    to its last line.
    """
    body = "\n" + body[:_MAX_HEADINGS_SEARCHED]
    fence, comment_end = "", 0
    for match in _MARKED_LINE.finditer(body):
        if match.start() < comment_end:
            continue
        if match[1]:
            if not fence:
                yield len(match[1]), body[match.end(1) : match.end()].strip()[:_MAX_HEADING]
            continue
        if match[2]:
            if not fence:
                comment_end = body.find("-->", match.start())
                if comment_end < 0:
                    return  # the rest is a comment
            continue
        line = match[0]
        text = line.strip()
        ticks = _FENCE.match(text)
        if fence:
            if text.startswith(fence) and ticks and ticks[0] == text:
                fence = ""
        elif ticks:
            fence = ticks[0]
        elif _UNDERLINE.match(line):
            before = body[body.rfind("\n", 0, match.start()) + 1 : match.start()][:_MAX_HEADING]
            if before and not before.startswith(_NO_PARAGRAPH):
                yield 1 if text[0] == "=" else 2, before


@cache
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt

    # Blocks only: `_parsed` parses their inline content. Inline HTML hides no relevant link, and
    # searching for the end of each unclosed tag would take quadratic time.
    return MarkdownIt("commonmark").disable(["inline", "html_inline"])
