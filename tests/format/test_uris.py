"""`skill://` URIs to skill path and file path, and back."""

from __future__ import annotations

import re
from collections.abc import Callable
from urllib.parse import quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mcp_skills_server.format.uris import LONGEST, SCHEME, canonical, segments, uri
from mcp_skills_server.model import DEEPEST_PATH, LONGEST_PATH
from steps import growth
from tables import each_row


@pytest.mark.requirement("S40-6", "S40-8")
@each_row(
    ("skill", "file", "expected"),
    [
        ("refunds", "SKILL.md", "skill://refunds/SKILL.md"),
        ("acme/billing/refunds", "references/a.md", "skill://acme/billing/refunds/references/a.md"),
        ("refunds", "", "skill://refunds"),
        ("acme/refunds", "", "skill://acme/refunds"),
        ("a", "Grüße und Anreden.md", "skill://a/Gr%C3%BC%C3%9Fe%20und%20Anreden.md"),
        ("a", "日本語.md", "skill://a/%E6%97%A5%E6%9C%AC%E8%AA%9E.md"),
        ("a", "100%.md", "skill://a/100%25.md"),
        ("a", "50%25.md", "skill://a/50%2525.md"),
        ("a", "what?.md", "skill://a/what%3F.md"),
        ("a", "c#.md", "skill://a/c%23.md"),
        ("a", "back\\slash", "skill://a/back%5Cslash"),
        ("a", "user@host:1", "skill://a/user@host:1"),
        ("a@b:1", "x", "skill://a%40b%3A1/x"),
        ("a", "!$&'()*+,;=-._~", "skill://a/!$&'()*+,;=-._~"),
    ],
)
def test_a_uri_escapes_what_rfc_3986_reserves(skill: str, file: str, expected: str):
    assert uri(skill, file) == expected


@pytest.mark.requirement("S40-6", "MCP-55")
@each_row(
    ("text", "expected"),
    [
        ("skill://refunds/SKILL.md", ("refunds", "SKILL.md")),
        ("SKILL://refunds/SKILL.md", ("refunds", "SKILL.md")),
        ("skill://a", ("a",)),
        ("skill://a/%41.md", ("a", "A.md")),
        ("skill://a/ü.md", ("a", "ü.md")),
        ("skill://a/ü%20b.md", ("a", "ü b.md")),
        ("skill://a/100%25.md", ("a", "100%.md")),
        ("skill://a/%2541.md", ("a", "%41.md")),
        ("skill://a/100%.md", ("a", "100%.md")),
        ("skill://a/%zz", ("a", "%zz")),
        ("skill://a/...", ("a", "...")),
        ("skill://a/..b", ("a", "..b")),
        ("skill://a/%252e%252e/b", ("a", "%2e%2e", "b")),
        ("skill://a/%252Fb", ("a", "%2Fb")),
        ("skill://a/back%5Cslash", ("a", "back\\slash")),
    ],
)
def test_a_uri_is_split_first_and_decoded_once(text: str, expected: tuple[str, ...]):
    assert segments(text) == expected


@pytest.mark.requirement("MCP-55", "S40-30")
@each_row("text", [
    "", "skill:", "skill://", "skill:/a/b", "skill:///a/b", "file:///etc/passwd", "https://a/SKILL.md",
    " skill://a/b", "skill://a/", "skill://a//b", "skill://a/b/", "skill://a/.", "skill://a/./b", "skill://a/..",
    "skill://a/../b", "skill://../a", "skill://a/%2e", "skill://a/%2e%2e/b", "skill://a/%2E./b",
    "skill://a/.%2e/b", "skill://a/..%2fb", "skill://a/%2fetc%2fpasswd", "skill://a%2fb/c", "skill://a/b%00.md",
    "skill://a/b\0", "skill://a/b?c", "skill://a/b#c", "skill://a\\b", "skill://a/..\\b", "skill://a/%ff",
    "skill://a/%c3%28", "skill://a/%c0%ae%c0%ae/b", "skill://a/%ed%a0%80", "skill://a/\ud800%20",
])  # fmt: skip
def test_what_can_name_nothing_that_is_served_is_refused(text: str):
    assert segments(text) is None


_NAME = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="/\0"), min_size=1, max_size=12).filter(
    lambda name: name not in {".", ".."}
)
_PATH = st.lists(_NAME, min_size=1, max_size=4).map("/".join)


@pytest.mark.requirement("S40-6", "S40-8", "MCP-55")
@given(_PATH, _PATH)
@example("%2e%2e/a", "..%2f..")
@example("a", "\\")
@example("a?b", "c#d")
def test_a_uri_leads_back_to_its_names(skill: str, file: str):
    made = uri(skill, file)
    assert segments(made) == (*skill.split("/"), *file.split("/"))
    assert re.fullmatch(
        r"skill://(?:[A-Za-z0-9!$&'()*+,;=._~-]|%[0-9A-F]{2})+(?:/[A-Za-z0-9!$&'()*+,;=._~:@%-]+)+", made
    )


@pytest.mark.requirement("S40-17")
@given(_PATH, _PATH)
def test_a_file_lies_in_the_directory_of_its_skill(skill: str, file: str):
    assert uri(skill, file).startswith(uri(skill) + "/")


def _encoded(dots: str) -> st.SearchStrategy[str]:
    """The same characters, each as it is or escaped, in either case."""
    each = [st.sampled_from([dot, f"%{ord(dot):02x}", f"%{ord(dot):02X}"]) for dot in dots]
    return st.tuples(*each).map("".join)


_HOSTILE = st.lists(
    st.one_of(
        _encoded("."),
        _encoded(".."),
        _encoded("../"),
        _encoded("..\\"),
        _encoded("/"),
        _encoded("..").map(lambda text: quote(text, safe="")),
        st.sampled_from(
            ["a", "%00", "%c0%ae", "\u2024\u2024", "\uff0e\uff0e", "\u2215", "/", "//", ";", "%", "SKILL.md"]
        ),
    ),
    max_size=8,
).map("".join)


@pytest.mark.requirement("MCP-55", "S40-30")
@given(_HOSTILE | st.text(max_size=30))
def test_no_way_of_writing_it_climbs_out(text: str):
    found = segments("skill://a/" + text)
    if found is not None:
        assert not {"", ".", ".."} & set(found)
        assert not any("/" in segment or "\0" in segment for segment in found)


@each_row("character", ["a", "%41", "\u20ac", "%E2%82%AC", "/a", "%2e"])
def test_a_uri_over_the_longest_is_unknown(character: str):
    text = SCHEME + "a/" + character * (LONGEST // len(character) + 1)
    assert segments(text) is None


def test_the_longest_path_has_a_uri_that_is_read():
    longest = "\u20ac" * (LONGEST_PATH // 3 - 1)  # three bytes each
    assert segments(uri("a", longest)) == ("a", longest)
    assert segments(SCHEME + "a" + "/a" * (DEEPEST_PATH - 1)) == ("a",) * DEEPEST_PATH
    assert segments(SCHEME + "a" + "/a" * DEEPEST_PATH) is None


@each_row("shape", ["/a", "a", "%41", "%", "%e2%82%ac", "/%41", "/..", "\u20ac"])
def test_reading_a_uri_takes_steps_as_long_as_it_is(shape: str):
    def call(times: int) -> Callable[[], object]:
        text = SCHEME + "a/" + shape.lstrip("/") + shape * times
        return lambda: segments(text)

    assert growth(call, DEEPEST_PATH // 4 - 2) <= 5


@each_row(
    ("text", "expected"),
    [
        ("skill://a/%53KILL.md", "skill://a/SKILL.md"),
        ("SKILL://a/SKILL.md", "skill://a/SKILL.md"),
        ("skill://%61/b%20c.md", "skill://a/b%20c.md"),
        ("file:///x", "file:///x"),
        ("skill://a/../b", "skill://a/../b"),
    ],
)
def test_one_spelling_for_what_notifications_name(text: str, expected: str) -> None:
    assert canonical(text) == expected
