"""`skill://` URIs: encoding, decoding and refusal of path traversal."""

from __future__ import annotations

import re
from collections.abc import Callable
from urllib.parse import quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mcp_skills_server.format.uris import MAX_LENGTH, SCHEME, canonical, redact, segments, uri
from mcp_skills_server.model import DEEPEST_PATH, MAX_PATH
from steps import step_growth
from tables import each_row


@pytest.mark.requirement("S40-6", "S40-8")
@each_row(("skill", "file", "expected"), [
    ("refunds", "SKILL.md", "refunds/SKILL.md"), ("refunds", "", "refunds"), ("acme/refunds", "", "acme/refunds"),
    ("acme/billing/refunds", "references/a.md", "acme/billing/refunds/references/a.md"),
    ("a", "Grüße und Anreden.md", "a/Gr%C3%BC%C3%9Fe%20und%20Anreden.md"),
    ("a", "日本語.md", "a/%E6%97%A5%E6%9C%AC%E8%AA%9E.md"), ("a", "100%.md", "a/100%25.md"),
    ("a", "50%25.md", "a/50%2525.md"), ("a", "what?.md", "a/what%3F.md"), ("a", "c#.md", "a/c%23.md"),
    ("a", "back\\slash", "a/back%5Cslash"), ("a", "user@host:1", "a/user@host:1"), ("a@b:1", "x", "a%40b%3A1/x"),
    ("a:1", "x:1", "a%3A1/x:1"), ("a@b", "x@y", "a%40b/x@y"),
    ("a", "!$&'()*+,;=-._~", "a/!$&'()*+,;=-._~"),
])  # fmt: skip
def test_uri_escapes_the_reserved_characters_of_rfc_3986(skill: str, file: str, expected: str):
    assert uri(skill, file) == SCHEME + expected


@pytest.mark.requirement("S40-6", "MCP-55")
@each_row(("text", "expected", "canonical_form"), [
    ("skill://refunds/SKILL.md", ("refunds", "SKILL.md"), "skill://refunds/SKILL.md"),
    ("SKILL://refunds/SKILL.md", ("refunds", "SKILL.md"), "skill://refunds/SKILL.md"),
    ("skill://a", ("a",), "skill://a"), ("skill://a/%41.md", ("a", "A.md"), "skill://a/A.md"),
    ("skill://a/ü.md", ("a", "ü.md"), "skill://a/%C3%BC.md"),
    ("skill://%61/ü%20b.md", ("a", "ü b.md"), "skill://a/%C3%BC%20b.md"),
    ("skill://a/100%25.md", ("a", "100%.md"), "skill://a/100%25.md"),
    ("skill://a/%2541.md", ("a", "%41.md"), "skill://a/%2541.md"),
    ("skill://a/100%.md", ("a", "100%.md"), "skill://a/100%25.md"), ("skill://a/%zz", ("a", "%zz"), "skill://a/%25zz"),
    ("skill://a/...", ("a", "..."), "skill://a/..."), ("skill://a/..b", ("a", "..b"), "skill://a/..b"),
    ("skill://a/%252e%252e/b", ("a", "%2e%2e", "b"), "skill://a/%252e%252e/b"),
    ("skill://a/%252Fb", ("a", "%2Fb"), "skill://a/%252Fb"),
    ("skill://a/back%5Cslash", ("a", "back\\slash"), "skill://a/back%5Cslash"),
])  # fmt: skip
def test_uri_is_split_before_it_is_decoded_once(text: str, expected: tuple[str, ...], canonical_form: str):
    assert (segments(text), canonical(text)) == (expected, canonical_form)


@pytest.mark.requirement("MCP-55", "S40-30")
@each_row("text", [
    "", "skill:", "skill://", "skill:/a/b", "skill:///a/b", "file:///etc/passwd", "https://a/SKILL.md",
    " skill://a/b", "skill://a/", "skill://a//b", "skill://a/b/", "skill://a/.", "skill://a/./b", "skill://a/..",
    "skill://a/../b", "skill://../a", "skill://a/%2e", "skill://a/%2e%2e/b", "skill://a/%2E./b",
    "skill://a/.%2e/b", "skill://a/..%2fb", "skill://a/%2fetc%2fpasswd", "skill://a%2fb/c", "skill://a/b%00.md",
    "skill://a/b\0", "skill://a/b?c", "skill://a/b#c", "skill://a\\b", "skill://a/..\\b", "skill://a/%ff",
    "skill://a/%c3%28", "skill://a/%c0%ae%c0%ae/b", "skill://a/%ed%a0%80", "skill://a/\ud800%20",
    *(SCHEME + "a/" + it * (MAX_LENGTH // len(it) + 1) for it in ("a", "%41", "\u20ac", "%E2%82%AC", "/a", "%2e")),
    SCHEME + "a" + "/a" * DEEPEST_PATH,
])  # fmt: skip
def test_uri_of_no_possible_file_is_refused(text: str):
    assert (segments(text), canonical(text)) == (None, text)


_NAME = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="/\0"), min_size=1, max_size=12).filter(
    lambda name: name not in {".", ".."}
)
_PATH = st.lists(_NAME, min_size=1, max_size=4).map("/".join)


@pytest.mark.requirement("S40-6", "S40-8", "S40-17", "MCP-55")
@given(_PATH, _PATH)
@example("%2e%2e/a", "..%2f..")
@example("a", "\\")
@example("a?b", "c#d")
def test_uri_is_decoded_to_its_paths_and_is_below_its_skill(skill: str, file: str):
    encoded = uri(skill, file)
    assert encoded.startswith(uri(skill) + "/")
    assert segments(encoded) == (*skill.split("/"), *file.split("/"))
    assert re.fullmatch(
        r"skill://(?:[A-Za-z0-9!$&'()*+,;=._~-]|%[0-9A-F]{2})+(?:/[A-Za-z0-9!$&'()*+,;=._~:@%-]+)+", encoded
    )


def _encoded(dots: str) -> st.SearchStrategy[str]:
    """Return a strategy for these characters, each plain or percent-encoded in either case."""
    each = [st.sampled_from([dot, f"%{ord(dot):02x}", f"%{ord(dot):02X}"]) for dot in dots]
    return st.tuples(*each).map("".join)


_OTHER_PIECES = ["a", "%00", "%c0%ae", "\u2024\u2024", "\uff0e\uff0e", "\u2215", "/", "//", ";", "%", "SKILL.md"]
_TWICE = _encoded("..").map(lambda text: quote(text, safe=""))
_TRAVERSAL = st.one_of(*map(_encoded, (".", "..", "../", "..\\", "/")), _TWICE, st.sampled_from(_OTHER_PIECES))
_HOSTILE = st.lists(_TRAVERSAL, max_size=8).map("".join)


@pytest.mark.requirement("MCP-55", "S40-30")
@given(_HOSTILE | st.text(max_size=30))
def test_no_encoding_of_a_path_traversal_is_accepted(text: str):
    found = segments("skill://a/" + text)
    if found is not None:
        assert not {"", ".", ".."} & set(found)
        assert not any("/" in segment or "\0" in segment for segment in found)


def test_uri_of_the_longest_path_is_decoded():
    longest = "\u20ac" * (MAX_PATH // 3 - 1)  # three bytes per character
    assert segments(uri("a", longest)) == ("a", longest)
    longest = "x" * (3 * MAX_PATH - 2)
    assert segments(f"{SCHEME}a/{longest}") == ("a", longest)
    assert segments(f"{SCHEME}a/{longest}x") is None
    assert segments(SCHEME + "a" + "/a" * (DEEPEST_PATH - 1)) == ("a",) * DEEPEST_PATH


@each_row("shape", ["/a", "a", "%41", "%", "%e2%82%ac", "/%41", "/..", "\u20ac"])
def test_decoding_a_uri_takes_linear_time(shape: str):
    def call(times: int) -> Callable[[], object]:
        text = SCHEME + "a/" + shape.lstrip("/") + shape * times
        return lambda: segments(text)

    assert step_growth(call, DEEPEST_PATH // 4 - 2) <= 5


@each_row(("text", "redacted"), [
    ("https://me:secret@h/a", "https://h/a"),
    ("no 'https://secret@h', nor ftp://a:b@c", "no 'https://h', nor ftp://c"),
    ("ssh://me:secr@secret@h/a", "ssh://me@h/a"),
    ("git+ssh://git@h/a@main", "git+ssh://git@h/a@main"),
    ("oci://h:5000/a@sha256:0a", "oci://h:5000/a@sha256:0a"),
    ("https://h/a@b?c=d@e#f@g", "https://h/a@b?c=d@e#f@g"),
])  # fmt: skip
def test_users_and_passwords_of_urls_are_redacted(text: str, redacted: str) -> None:
    assert redact(text) == redacted
