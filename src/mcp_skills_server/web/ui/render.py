"""Markdown of a skill as HTML that can do nothing: no markup of its own, no address but those that are shown here.

A link leads to http, https or mail, or to a file of the same skill; a picture is a raster file of the same skill. What
leads elsewhere stays as text.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from anyio import CapacityLimiter, to_thread
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markupsafe import Markup, escape

from mcp_skills_server.format import hidden
from mcp_skills_server.web.ui.look import base, file_address

_MOST_HIDDEN: Final = 2_000
"""Hidden characters that are marked in one text; from there on they are shown without a mark."""
_RASTER_NAMES: Final = (".png", ".jpg", ".jpeg", ".gif", ".webp")
MOST_PICTURE_BYTES: Final = 4 << 20
MOST_RENDERED: Final = 100_000
"""Characters of a body that are rendered; the raw text beside it has all of them."""
_MOST_MARKS: Final = 8_000
"""Brackets, asterisks and the like: what has more takes long to parse, and is no text for people."""
_MARKS: Final = re.compile(r"[\[\]*_`<>|~]")
_MOST_LINES: Final = 6_000
_MOST_CELLS: Final = 10_000
"""Cells of all tables. A row without cells gets as many as the head has, so a short text could ask for millions."""
_PARAGRAPH: Final = re.compile(r"\n[ \t]*\n")
_KEPT: Final = 16
"""Rendered texts that are kept."""
_ONE_AT_A_TIME: Final = CapacityLimiter(1)
"""Rendering holds the interpreter; other requests then wait for one text at most, however many are asked for."""
_ELSEWHERE: Final = ("http", "https", "mailto")
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_DEEPEST_HEADING: Final = 6
_TAGS: Final = frozenset((
    "p", "h1", "h2", "h3", "h4", "h5", "h6", "ul", "ol", "li", "blockquote", "em", "strong", "s",
    "table", "thead", "tbody", "tr", "th", "td",
))  # fmt: skip


def marked(text: str) -> Markup:
    """Return the text, escaped, with its hidden characters visible."""
    parts: list[Markup] = []
    for number, (before, code) in enumerate(_pieces(text)):
        parts.append(escape(before))
        if code:
            parts.append(
                Markup('<span class="hidden">{}</span>').format(code) if number < _MOST_HIDDEN else escape(code)
            )
    return parts[0] if len(parts) == 1 else Markup("").join(parts)


def plain(text: object, most: int = 0) -> str:
    """Return a name where no markup can be, such as in a title or an option: its hidden characters as `[U+202E]`."""
    return "".join(f"{before}[{code}]" if code else before for before, code in _pieces(_cut(str(text), most)))


def visible(text: object, most: int = 0) -> Markup:
    """Return a name or a line as `marked` does, cut beyond `most` characters, and with a direction of its own."""
    return Markup(f"<bdi>{marked(_cut(str(text), most))}</bdi>")  # noqa: S704 - `marked` has escaped it


def _cut(text: str, most: int) -> str:
    return text if not most or len(text) <= most else f"{text[: most - 3]}..."


def _pieces(text: str) -> Iterator[tuple[str, str]]:
    """Yield each part of a text with the code of the hidden character behind it; "" behind the last."""
    # Half a character of UTF-16, which YAML can write, is in no UTF-8.
    text = text if text.isascii() else text.encode("utf-8", "replace").decode()
    end = 0
    for start, character in hidden.find(text):
        yield text[end:start], f"U+{ord(character[0]):04X}"
        end = start + len(character)
    yield text[end:], ""


def is_raster_name(path: str) -> bool:
    """Tell whether a file of this name may be a raster picture."""
    return path.lower().endswith(_RASTER_NAMES)


def raster_type(raw: bytes) -> str | None:
    """Return the media type of the picture that these bytes begin, None where they are none."""
    if raw.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if raw.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if raw.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    if raw[:4] == b"RIFF" and raw[8:12] == b"WEBP":
        return "image/webp"
    return None


async def rendered(text: str, skill: str, files: Collection[str], place: str) -> Markup | None:
    """Return what `render` does, in a thread, one text at a time."""
    return await to_thread.run_sync(_kept, text, skill, frozenset(files), place, base(), limiter=_ONE_AT_A_TIME)


@lru_cache(_KEPT)
def _kept(text: str, skill: str, files: frozenset[str], place: str, _base: str) -> Markup | None:
    """Return the rendered text; its links begin with the address of the page, which is part of the key."""
    return render(text, skill, files, place)


def render(text: str, skill: str, files: Collection[str], place: str, *, below: int = 2) -> Markup | None:
    """Return the text as HTML, None where it is too much to render.

    Args:
        text: Markdown.
        skill: path of the skill that it is of.
        files: paths of the files of the skill.
        place: path of the file that the text is in.
        below: level of the heading that it stands below.
    """
    if len(text) > MOST_RENDERED or text.count("\n") > _MOST_LINES or _cells(text) > _MOST_CELLS:
        return None
    if sum(1 for _ in _MARKS.finditer(text)) > _MOST_MARKS:
        return None
    parser = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
    parser.validateLink = _anything  # type: ignore[method-assign] # what may be led to is decided below
    tokens = parser.parse(text)
    _level(tokens, below)
    renderer = _Renderer(skill, files, posixpath.dirname(place))
    return Markup(renderer.render(tokens, parser.options, {}))  # noqa: S704 - made of escaped parts only


def _cells(text: str) -> int:
    """Return a bound on the cells of the tables of a text: of each paragraph its lines by its longest row."""
    cells = 0
    for paragraph in _PARAGRAPH.split(text):
        lines = paragraph.split("\n")
        most = max(line.count("|") for line in lines)
        if most:
            cells += (most + 1) * len(lines)
    return cells


def _anything(_: str) -> bool:
    return True


def _level(tokens: Sequence[Token], below: int) -> None:
    """Have headings follow each other without a gap, so that who hears the page knows its structure."""
    last = below
    for token in tokens:
        if token.type == "heading_open":
            last = min(int(token.tag[1]) + below, last + 1, _DEEPEST_HEADING)
            token.tag = f"h{last}"
        elif token.type == "heading_close":
            token.tag = f"h{last}"


class _Renderer(RendererHTML):
    """Writes each token by itself; of a token's attributes none is taken over."""

    def __init__(self, skill: str, files: Collection[str], folder: str) -> None:
        super().__init__()
        self._skill, self._files, self._folder = skill, files, folder
        self._closing: list[str] = []

    def render(self, tokens: Sequence[Token], options: Any, env: Any) -> str:
        """Return the tokens as HTML."""
        return "".join(
            self.renderInline(token.children or [], options, env) if token.type == "inline" else self._one(token)
            for token in tokens
        )

    def renderInline(self, tokens: Sequence[Token], options: Any, env: Any) -> str:  # noqa: ARG002, N802
        """Return the tokens within a block as HTML."""
        return "".join(map(self._one, tokens))

    def _one(self, token: Token) -> str:
        kind = token.type
        if token.hidden:
            return ""
        if kind == "text":
            return str(marked(token.content))
        if kind in {"softbreak", "hardbreak"}:
            return "\n" if kind == "softbreak" else "<br>\n"
        if kind == "code_inline":
            return f"<code>{marked(token.content)}</code>"
        if kind in {"code_block", "fence"}:
            return f'<pre tabindex="0"><code>{marked(token.content)}</code></pre>\n'
        if kind == "link_open":
            return self._open_link(str(token.attrGet("href") or ""))
        if kind == "link_close":
            return self._closing.pop() if self._closing else ""
        if kind == "image":
            return self._image(str(token.attrGet("src") or ""), token.content)
        if kind == "hr":
            return "<hr>\n"
        if token.tag in _TAGS:
            return self._tag(token)
        return str(marked(token.content))

    def _tag(self, token: Token) -> str:
        if token.nesting < 0:
            return f"</{token.tag}>\n" if token.block else f"</{token.tag}>"
        start = token.attrGet("start") if token.tag == "ol" else None
        number = f' start="{int(start)}"' if start is not None and str(start).isdecimal() else ""
        return f"<{token.tag}{number}>"

    def _open_link(self, href: str) -> str:
        file = self._file(href)
        if file is not None:
            self._closing.append("</a>")
            return f'<a href="{escape(file_address(self._skill, file))}">'
        if _leads_elsewhere(href):
            self._closing.append("</a>")
            return f'<a href="{escape(href)}" rel="noopener noreferrer nofollow">'
        self._closing.append(f'</span> <span class="note">({marked(_shown(href))})</span>')
        return '<span class="dead">'

    def _image(self, src: str, words: str) -> str:
        file = self._file(src)
        if file is not None and is_raster_name(file):
            return f'<img src="{escape(file_address(self._skill, file, "raw"))}" alt="{escape(words)}" loading="lazy">'
        if file is not None:
            return f'<a href="{escape(file_address(self._skill, file))}">{marked(words or file)}</a>'
        return f'<span class="note">[picture: {marked(words)} ({marked(_shown(src))})]</span>'

    def _file(self, target: str) -> str | None:
        """Return the file of the skill that is meant, None where it is none."""
        if _SCHEME.match(target) or target.startswith(("/", "#", "\\")):
            return None
        try:
            path = unquote(re.split(r"[?#]", target, maxsplit=1)[0])
        except ValueError:
            return None
        found = posixpath.normpath(posixpath.join(self._folder, path))
        return found if found in self._files else None


def _leads_elsewhere(href: str) -> bool:
    if not href.isascii() or not href.isprintable():
        return False
    try:
        parts = urlsplit(href)
    except ValueError:
        return False
    return parts.scheme in _ELSEWHERE and (parts.scheme == "mailto" or bool(parts.netloc))


def _shown(address: str) -> str:
    return address if len(address) <= 200 else f"{address[:197]}..."
