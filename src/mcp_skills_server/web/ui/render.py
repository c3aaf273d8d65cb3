"""Render Markdown of a skill as inert HTML: no raw markup, and only allowed addresses.

A link leads to http, https or mail, or to a file of the same skill; a picture is a raster file of
the same skill. Other links and pictures become text.
"""

from __future__ import annotations

import posixpath
import re
import sys
from collections.abc import Collection, Iterator, Sequence
from typing import Final
from urllib.parse import unquote, urlsplit

from anyio import CapacityLimiter, to_thread
from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup, escape

from mcp_skills_server.errors import clipped
from mcp_skills_server.format import hidden
from mcp_skills_server.web.ui.addresses import file_address

_MAX_HIDDEN: Final = 2_000
"""Hidden characters marked in one text; later ones are shown without a mark."""
_RASTER_NAMES: Final = (".png", ".jpg", ".jpeg", ".gif", ".webp")
MAX_PICTURE_BYTES: Final = 4 << 20
MAX_RENDERED: Final = 100_000
"""Characters of the longest text that is rendered; a longer one is shown raw only."""
_MAX_MARKS: Final = 8_000
"""Brackets, asterisks and the like; a text with more takes long to parse."""
_MARKS: Final = re.compile(r"[\[\]*_`<>|~]")
_MAX_LINES: Final = 6_000
_MAX_CELLS: Final = 10_000
"""Cells of all tables. Rows are padded to the head's width: a short text may have millions."""
_PARAGRAPH: Final = re.compile(r"\n[ \t]*\n")
_ONE_AT_A_TIME: Final = CapacityLimiter(1)
"""Rendering holds the GIL: with this limit, other requests wait for one text at most."""
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_PARENT_HEADING: Final = 2
"""Level of the heading above a rendered text."""
_DEEPEST_HEADING: Final = 6
_TAGS: Final = frozenset((
    "p", "h1", "h2", "h3", "h4", "h5", "h6", "ul", "ol", "li", "blockquote", "em", "strong", "s",
    "table", "thead", "tbody", "tr", "th", "td",
))  # fmt: skip


def marked(text: str) -> Markup:
    """Return the text, escaped, with its hidden characters made visible."""
    parts: list[Markup] = []
    for number, (before, code) in enumerate(_pieces(text)):
        parts.append(escape(before))
        if code and number < _MAX_HIDDEN:
            parts.append(Markup('<span class="hidden">{}</span>').format(code))
        else:
            parts.append(escape(code))
    return Markup("").join(parts)


def plain(text: object, most: int = sys.maxsize) -> str:
    """Return a name as plain text, for a title or an option; hidden characters as `[U+202E]`."""
    pieces = _pieces(clipped(str(text), most))
    return "".join(f"{before}[{code}]" if code else before for before, code in pieces)


def visible(text: object, most: int = sys.maxsize) -> Markup:
    """Return a line as `marked` does, cut beyond `most` characters, in a bidi isolate."""
    return Markup(f"<bdi>{marked(clipped(str(text), most))}</bdi>")  # noqa: S704 - `marked` has escaped it


def _pieces(text: str) -> Iterator[tuple[str, str]]:
    """Yield each part of a text, and the code of the hidden character after it, "" at the end."""
    # YAML can write a lone surrogate, which UTF-8 cannot encode.
    text = text.encode("utf-8", "replace").decode()
    end = 0
    for start, character in hidden.find(text):
        yield text[end:start], f"U+{ord(character[0]):04X}"
        end = start + len(character)
    yield text[end:], ""


def is_raster_name(path: str) -> bool:
    """Return whether a file name has the extension of a raster picture."""
    return path.lower().endswith(_RASTER_NAMES)


def raster_type(raw: bytes) -> str | None:
    """Return the media type of a raster picture by its first bytes, or None."""
    if raw.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if raw.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if raw.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    if raw[:4] == b"RIFF" and raw[8:12] == b"WEBP":
        return "image/webp"
    return None


async def rendered(text: str, skill: str, files: Collection[str], file: str) -> Markup | None:
    """Run `render` in a thread, one text at a time."""
    return await to_thread.run_sync(render, text, skill, files, file, limiter=_ONE_AT_A_TIME)


def render(text: str, skill: str, files: Collection[str], file: str) -> Markup | None:
    """Return Markdown as HTML, or None if it is too much to render.

    `file` is the path of the Markdown file in the skill.
    """
    lines = text.splitlines()
    if len(text) > MAX_RENDERED or len(lines) > _MAX_LINES:
        return None
    if _cells("\n".join(lines)) > _MAX_CELLS:
        return None
    if sum(1 for _ in _MARKS.finditer(text)) > _MAX_MARKS:
        return None
    parser = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
    parser.validateLink = lambda _: True  # type: ignore[method-assign] # `_Writer` checks links
    return Markup(_Writer(skill, files, file).write(parser.parse(text)))  # noqa: S704 - made of escaped parts only


def _cells(text: str) -> int:
    """Return a bound on the table cells of a text: per paragraph, lines times longest row."""
    cells = 0
    for paragraph in _PARAGRAPH.split(text):
        lines = paragraph.split("\n")
        most = max(line.count("|") for line in lines)
        if most:
            cells += (most + 1) * len(lines)
    return cells


class _Writer:
    """HTML writer of one text. It copies no attributes of tokens."""

    def __init__(self, skill: str, files: Collection[str], file: str) -> None:
        self._skill, self._files, self._folder = skill, files, posixpath.dirname(file)
        self._closing: list[str] = []
        self._level = _PARENT_HEADING

    def write(self, tokens: Sequence[Token]) -> str:
        """Return the tokens as HTML."""
        return "".join(map(self._one, tokens))

    def _one(self, token: Token) -> str:
        if token.hidden:
            return ""
        match token.type:
            case "inline":
                return self.write(token.children or ())
            case "softbreak":
                return "\n"
            case "hardbreak":
                return "<br>\n"
            case "hr":
                return "<hr>\n"
            case "code_inline":
                return f"<code>{marked(token.content)}</code>"
            case "code_block" | "fence":
                return f'<pre tabindex="0"><code>{marked(token.content)}</code></pre>\n'
            case "link_open":
                return self._open_link(str(token.attrGet("href") or ""))
            case "link_close":
                return self._closing.pop()
            case "image":
                return self._image(str(token.attrGet("src") or ""), token.content)
            case _ if token.tag in _TAGS:
                return self._tag(token)
            case _:
                return str(marked(token.content))

    def _tag(self, token: Token) -> str:
        tag = token.tag
        # no heading level is skipped, for screen readers
        if token.type == "heading_open":
            self._level = min(int(tag[1]) + _PARENT_HEADING, self._level + 1, _DEEPEST_HEADING)
        if token.type.startswith("heading"):
            tag = f"h{self._level}"
        if token.nesting < 0:
            return f"</{tag}>\n" if token.block else f"</{tag}>"
        start = str(token.attrGet("start") or "")
        if tag == "ol" and start.isdecimal():
            return f'<ol start="{int(start)}">'
        return f"<{tag}>"

    def _open_link(self, href: str) -> str:
        file = self._file(href)
        if file is not None:
            self._closing.append("</a>")
            return f'<a href="{escape(file_address(self._skill, file))}">'
        if _is_external_link(href):
            self._closing.append("</a>")
            return f'<a href="{escape(href)}" rel="noopener noreferrer nofollow">'
        self._closing.append(f'</span> <span class="note">({_shown(href)})</span>')
        return '<span class="dead">'

    def _image(self, src: str, words: str) -> str:
        file = self._file(src)
        if file is None:
            return f'<span class="note">[picture: {marked(words)} ({_shown(src)})]</span>'
        if is_raster_name(file):
            address = escape(file_address(self._skill, file, "raw"))
            return f'<img src="{address}" alt="{escape(words)}" loading="lazy">'
        return f'<a href="{escape(file_address(self._skill, file))}">{marked(words or file)}</a>'

    def _file(self, target: str) -> str | None:
        """Return the file of the skill that a link means, or None."""
        if _SCHEME.match(target) or target.startswith(("/", "#", "\\")):
            return None
        path = unquote(re.split(r"[?#]", target, maxsplit=1)[0])
        normal = posixpath.normpath(posixpath.join(self._folder, path))
        if normal in self._files:
            return normal
        return None


def _is_external_link(href: str) -> bool:
    if not href.isascii() or not href.isprintable():
        return False
    try:
        parts = urlsplit(href)
    except ValueError:
        return False
    return parts.scheme == "mailto" or (parts.scheme in {"http", "https"} and bool(parts.netloc))


def _shown(address: str) -> Markup:
    return marked(clipped(address))
