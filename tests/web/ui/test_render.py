"""Rendering of Markdown and untrusted text as safe HTML."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from mcp_skills_server.authoring.tokens import estimated_tokens
from mcp_skills_server.web.ui.render import is_raster_name, marked, plain, raster_type, render, visible
from tables import each_row
from web.ui.corpus import MARKDOWN, MARKUP

FILES = {"SKILL.md", "references/a.md", "b c.md", "p.png", "x.svg", "scripts/run.py"}
BARE = "p br hr h3 h4 h5 h6 ul li blockquote table thead tbody tr th td em strong s code"
ALLOWED: dict[str, set[str]] = {tag: set[str]() for tag in BARE.split()} | {
    "a": {"href", "rel"}, "img": {"src", "alt", "loading"}, "span": {"class"}, "pre": {"tabindex"}, "ol": {"start"},
}  # fmt: skip
"""Allowed attributes by element."""


class ElementParser(HTMLParser):
    def __init__(self, text: str, file: str = "SKILL.md") -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.feed(str(render(text, "acme/x", FILES, file)))
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))


def safe_elements(text: str) -> list[tuple[str, dict[str, str | None]]]:
    """Render a text, assert that its elements and URLs are safe, and return the elements."""
    elements = ElementParser(text).elements
    for tag, attributes in elements:
        assert attributes.keys() <= ALLOWED[tag], (tag, attributes)
        for value in (attributes.get("href"), attributes.get("src")):
            assert value is None or re.match(r"https?://[^/]|mailto:|/ui/(files|raw)/acme/x\?file=", value), value
        assert "src" not in attributes or (attributes["src"] or "").startswith("/ui/raw/")
    return elements


@each_row("text", [*MARKUP, *MARKDOWN])
def test_hostile_markdown_renders_without_unsafe_elements(text: str) -> None:
    safe_elements(text)
    safe_elements(f"- > # {text}\n\n| {text} |\n|---|\n| {text} |\n")


_WORDS = """[ ]( ) ![ < > ` ``` | --- * _ ~~ \\ & ; : javascript: JaVa script data: http://a.b //c.d .. / %2e ? # "
' onerror= = x p.png references/a.md &#106; &colon; <script>"""
_GAPS = ["\n", "\n\n", "# ", "- ", "1. ", "> ", "\u200b", "\u202e", "\t", "    ", "[x]: "]
_PIECES = st.sampled_from([*_WORDS.split(), *_GAPS])


@given(st.lists(_PIECES, max_size=40).map("".join))
def test_any_markdown_renders_without_unsafe_elements(text: str) -> None:
    safe_elements(text)


def test_links_resolve_to_files_of_the_skill_or_safe_urls() -> None:
    def urls(text: str, file: str = "SKILL.md") -> list[str | None]:
        links = [attributes for tag, attributes in ElementParser(text, file).elements if tag in {"a", "img"}]
        return [attributes.get("href") or attributes.get("src") for attributes in links]

    assert urls("[x](references/a.md#part)") == ["/ui/files/acme/x?file=references/a.md"]
    assert urls("[x](./b%20c.md?x=1)") == ["/ui/files/acme/x?file=b%20c.md"]
    assert urls("[x](../p.png) ![x](../p.png) ![y](../x.svg)", "references/a.md") == [
        "/ui/files/acme/x?file=p.png", "/ui/raw/acme/x?file=p.png", "/ui/files/acme/x?file=x.svg",
    ]  # fmt: skip
    assert urls("[x](../SKILL.md) [x](missing.md) [x](/ui/sign-out) [x](#y) [x](ftp://a.b/c) [x](http:///x)") == []
    assert urls("<mailto:a@b.c> <https://a.b/c?d=e&f>") == ["mailto:a@b.c", "https://a.b/c?d=e&f"]
    assert f"({'x' * 197}...)" in str(render(f"[x]({'x' * 201})", "a", (), "SKILL.md"))
    assert f"({'x' * 200})" in str(render(f"[x]({'x' * 200})", "a", (), "SKILL.md"))


def test_heading_levels_have_no_gaps() -> None:
    for text, levels in (("#### A\n# B\n###### C\n## D\n", "3344"), ("# A\n## B\n### C\n#### D\n##### E\n", "34566")):
        assert [tag[1] for tag, _ in safe_elements(text) if tag[0] == "h"] == [*levels]


def grid(width: int, height: int) -> str:
    """Return a Markdown table, most of whose cells the parser has to add."""
    return "\n".join(["|a" * (width - 2) + "|", "|-" * (width - 2) + "|", *["b"] * (height - 2)])


@each_row(("most", "over"), [
    ("x" * 100_000, "x" * 100_001), ("|" * 8_000, "|" * 8_001), ("a\n" * 6_000, "a\n" * 6_001),
    (grid(100, 100), grid(73, 137)), (grid(50, 100) + "\n\n" + grid(50, 100), (grid(50, 51) + "\n\n") * 4),
    ("a", "[" * 10_000), ("b", "<" * 10_000),
    (grid(100, 100).replace("\n", "\r"), grid(73, 137).replace("\n", "\r")), ("a\r" * 6_000, "a\r" * 6_001),
])  # fmt: skip
def test_markdown_that_expands_too_much_is_not_rendered(most: str, over: str) -> None:
    assert render(most, "x", (), "SKILL.md") is not None
    assert render(over, "x", (), "SKILL.md") is None


def test_hidden_characters_are_made_visible() -> None:
    mark = '<span class="hidden">U+200B</span>'
    assert str(marked("a\u200b<\u202e")) == f"a{mark}&lt;{mark.replace('200B', '202E')}"
    assert visible("x" * 11, 10) == "<bdi>xxxxxxx...</bdi>" and visible("x" * 10, 10) == "<bdi>xxxxxxxxxx</bdi>"
    assert visible("<b>\u200b") == f"<bdi>&lt;b&gt;{mark}</bdi>"
    assert "\ud800" not in str(marked("a\ud800"))
    assert str(marked("\u200b" * 3_000)).count("<span") == 2_000
    for text, shown in (("rtl\u202ecod.exe", "rtl[U+202E]cod.exe"), ("\ud800", "?"), ("<b>&", "<b>&")):
        assert plain(text) == shown
    assert plain("a" * 50, 10) == "aaaaaaa..." and plain("👩\u200d👩\u200d👧") == "👩\u200d👩\u200d👧"


def test_raster_images_are_detected_by_content() -> None:
    for raw, kind in (
        (b"\x89PNG\r\n\x1a\n", "png"), (b"GIF89a", "gif"), (b"\xff\xd8\xff\xe0", "jpeg"), (b"RIFF1234WEBPVP8 ", "webp"),
    ):  # fmt: skip
        assert raster_type(raw) == f"image/{kind}"
    assert raster_type(b"<svg") is None and raster_type(b"") is None
    assert is_raster_name("a/B.PNG") and not is_raster_name("a.svg") and not is_raster_name("png")


def test_estimated_tokens_are_a_quarter_of_utf8_bytes() -> None:
    assert [*map(estimated_tokens, ("", "a", "abcd", "abcde", "\u00e4\u00f6", b"12345"))] == [0, 1, 1, 2, 1, 2]
