"""The bundled files that a body refers to, in order, with their link text; and the body's headings.

The Markdown is read by a CommonMark parser, except where only a search wants to know. Links,
reference links and images count, and code spans in which a word names a file of the bundle, because
that is how authors point to scripts. Nothing here touches a disk: whether a target exists is asked
of the bundle's list of files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple
from urllib.parse import unquote

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

# The parser has escaped braces and angle brackets by then.
_ELSEWHERE: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:|//|#|/|\{|%7B|\$|<|%3C")
_PLAIN_HEADING: Final = re.compile(
    r" {0,3}#[ \t]++(?!\s)([^\\`*_\[\]<>&!#~\n\r\v\f\x1c-\x1e\x85\u2028\u2029]++)(?:\n|\Z)"
)
_LINK_TARGET: Final = re.compile(
    r"\]\([ \t\n]*+(?!\)|[/#]|[A-Za-z][A-Za-z0-9+.-]*+:)(?:(?P<path>[A-Za-z0-9_./-]++)(?=[)#? "
    r"\t\n]))?"
)
"""What stands behind a link text and leads to no other place for certain; a path only where every
parser reads this."""
_MAYBE_HEADING: Final = re.compile(r"^ {0,3}(?:#[ \t]|=+[ \t]*$)", re.MULTILINE)
_READ: Final = 262_144
"""Characters of a body in which references are looked for."""
_PIECE: Final = 16_384
_MOST_BRACKETS: Final = 2_000
"""The parser may look ahead to the end of a piece from each opening bracket: both together bound
what a body costs.

No body of 911 real ones comes near either. What lies behind the bound counts as text.
"""
_HEADING_SEARCH: Final = 16_384
_HEADING_LINE: Final = 1_024
_HEADINGS_SEARCH: Final = 65_536
_HEADINGS_MOST: Final = 40
_HEADINGS_LENGTH: Final = 2_000
# A heading, a fence, or a line under a title. The line end comes first, because to look for one
# character is quick.
_MARKED_LINE: Final = re.compile(r"\n(?:#{1,3}[ \t]|[ \t]*```|[ \t]*~~~|==|--)[^\n]*")
_FENCE: Final = re.compile(r"`{3,}|~{3,}")
_UNDERLINE: Final = re.compile(r"\n(?:=+|-+)[ \t]*\Z")
_NO_PARAGRAPH: Final = ("#", "|", ">", "- ", "* ", "+ ", "    ", "```", "~~~")
_SIGN_OF_MARKUP: Final = re.compile(r"[\[*`\\~#]")
# A link or an image has its text left, a mark of emphasis or code nothing, nor the marks that close
# a heading.
_MARKUP: Final = re.compile(
    r"!?\[([^\[\]\n]*)\](?:\([^()\n]*\)|\[[^\[\]\n]*\])?|[*`\\]|~~|(?<![^ \t\n])#+[ \t]*(?![^\n])"
)


class Reference(NamedTuple):
    """One place where a body points at something.

    Attributes:
        target: the path that is meant, from the skill's root, without query or fragment, decoded
            once.
        text: the link text or the image's alternative text; "" for a code span.
        line: 0-based line of the block, counted from the body's first line.
        kind: a code span is a reference only if it names a file; a link or an image whose target
            lies outside of the skill's folder is "outside", with the target as it is written; the
            others always are references.
    """

    target: str
    text: str
    line: int
    kind: Literal["link", "image", "code", "outside"]


def references(body: str) -> list[Reference]:
    """Return everything in the body that may point at a bundled file, in order of appearance."""
    found: list[Reference] = []
    known: dict[str, Any] = {}
    left = _MOST_BRACKETS
    for block in _parser().parse(body[:_READ], known):
        if block.type != "inline":
            continue
        for line, piece in _pieces(block.content, block.map[0] if block.map else 0):
            left -= piece.count("[")
            if left < 0:
                return found
            if "[" in piece or "`" in piece:
                found += _inline(_parsed(piece, known), line)
    return found


def may_lead_elsewhere(body: str, is_known: Callable[[str], bool]) -> bool:
    """Tell whether a link or an image may lead to a path for which `is_known` is false. False is
    certain.

    Nothing is parsed: `references` takes a hundred times as long.
    """
    for found in _LINK_TARGET.finditer(body):
        target = ""
        if found["path"]:
            target = _normal(found["path"])
        if target == "" or (target is not None and not is_known(target)):
            return True
    return "]:" in body  # may define the target of a link


def _pieces(content: str, line: int) -> Iterator[tuple[int, str]]:
    """Yield a block's text with its line; that of a long block, such as a table, line by line."""
    if len(content) <= _PIECE:
        yield line, content
        return
    for number, each in enumerate(content.split("\n"), line):
        if len(each) <= _PIECE:
            yield number, each


def _parsed(text: str, known: dict[str, Any]) -> list[Token]:
    """Return what stands inside of a block. `known` holds the definitions of reference links."""
    tokens: list[Token] = []
    _parser().inline.parse(text, _parser(), known, tokens)
    return tokens


def _inline(tokens: list[Token], line: int) -> Iterator[Reference]:
    for position, token in enumerate(tokens):
        if token.type == "link_open":
            yield from _reference(
                str(token.attrs.get("href", "")),
                _text(_until_close(tokens, position)),
                line,
                "link",
            )
        elif token.type == "image":
            yield from _reference(str(token.attrs.get("src", "")), token.content, line, "image")
        elif token.type == "code_inline":
            for word in dict.fromkeys((token.content, *token.content.split())):
                target = _normal(word.strip("\"'"))
                if target and len(target) <= 255:
                    yield Reference(target, "", line, "code")


def _reference(
    written: str, text: str, line: int, kind: Literal["link", "image"]
) -> Iterator[Reference]:
    if not written or _ELSEWHERE.match(written):
        return
    path = unquote(re.split(r"[?#]", written, maxsplit=1)[0])
    target = _normal(path)
    if target:
        yield Reference(target, text, line, kind)
    elif path.startswith("../") or "/../" in path:
        yield Reference(path, text, line, "outside")


def _until_close(tokens: list[Token], start: int) -> list[Token]:
    depth = 0
    for position in range(start, len(tokens)):
        depth += (
            tokens[position].nesting if tokens[position].type in {"link_open", "link_close"} else 0
        )
        if depth == 0:
            return tokens[start + 1 : position]
    return tokens[start + 1 :]


def _text(tokens: list[Token]) -> str:
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


def linked_files(found: list[Reference], files: Collection[str], skip: str) -> dict[str, str]:
    """Return the files that these references name, in order of first appearance, each with its
    first link text.

    `skip` names the file that never counts (SKILL.md itself). A link to a directory counts for no
    file.
    """
    out: dict[str, str] = {}
    for reference in found:
        if reference.target in files and reference.target != skip and not out.get(reference.target):
            out[reference.target] = reference.text or out.get(reference.target, "")
    return out


def heading(body: str) -> str | None:
    """Return the first level-1 heading as plain text, ATX or setext, or None."""
    plain = _PLAIN_HEADING.match(body)
    if plain:  # nearly always: the parser takes 50 ms to import
        return " ".join(plain[1].split())
    read = 0
    for candidate in _MAYBE_HEADING.finditer(body):
        if candidate.start() < read:
            continue
        if candidate.start() > _HEADING_SEARCH:
            break
        # Twice as much as the last time at least, or a code block full of comments would be read
        # again for each.
        least = max(candidate.end(), 2 * read)
        end = body.find("\n", least, least + _HEADING_LINE)
        if end >= 0:
            read = end
        else:
            read = least + _HEADING_LINE
        known: dict[str, Any] = {}
        tokens = _parser().parse(body[:read], known)
        for position, token in enumerate(tokens):
            if token.type == "heading_open" and token.tag == "h1" and token.level == 0:
                written = tokens[position + 1].content[:_HEADING_LINE]
                return _text(_parsed(written, known)) or None
    return None


def headings(body: str) -> tuple[str, ...]:
    """Return the headings of levels 1 to 3 in order, as plain text: at most 40 of them, and 2,000
    characters in all.

    Every scan asks for them and only a search uses them, so lines are looked at and nothing is
    parsed. A heading that is indented or stands in a quote or a list is none; of a heading of
    several lines the last one counts.
    """
    written = "\n".join(islice(_heading_lines("\n" + body[:_HEADINGS_SEARCH]), _HEADINGS_MOST))
    out: list[str] = []
    left = _HEADINGS_LENGTH
    if _SIGN_OF_MARKUP.search(written):
        written = _MARKUP.sub(r"\1", written)
    for line in written.split("\n"):
        text = " ".join(line.split())[:left]
        if text:
            out.append(text)
            left -= len(text)
    return tuple(out)


def _heading_lines(body: str) -> Iterator[str]:
    """Yield the text of each heading as it is written; the body begins with a line end."""
    fence = ""
    for found in _MARKED_LINE.finditer(body):
        line = found[0]
        if line[1] == "#":
            if not fence:
                yield line.lstrip("\n#")[:_HEADING_LINE]
            continue
        text = line.strip()
        ticks = _FENCE.match(text)
        if fence:
            if text.startswith(fence) and ticks and ticks[0] == text:
                fence = ""
        elif ticks:
            fence = ticks[0]
        elif _UNDERLINE.match(line):
            before = body[body.rfind("\n", 0, found.start()) + 1 : found.start()][:_HEADING_LINE]
            if not before.startswith(_NO_PARAGRAPH):
                yield before


@cache
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt

    # Blocks alone: what stands inside of one is read where it is asked for. Inline HTML hides no
    # link that counts, and looking for the end of each tag that has none would take the square of
    # the text.
    return MarkdownIt("commonmark").disable(["inline", "html_inline"])
