"""Cursors of list pages, and the size of a page."""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dialects.build import skill
from mcp_skills_server.dialects import sep2640
from mcp_skills_server.errors import RequestError
from mcp_skills_server.format import cursors
from mcp_skills_server.format.cursors import MAX_BYTES, entry_bytes, first_page
from tables import each_row


def encoded(raw: bytes) -> str:
    return urlsafe_b64encode(raw).decode().rstrip("=")


JSON = st.recursive(st.none(), st.lists).map(lambda value: encoded(json.dumps(value).encode()))


@pytest.mark.requirement("MCP-21")
@given(st.text(max_size=40), st.text(max_size=40))
def test_cursor_is_decoded_for_its_own_list_only(kind: str, key: str) -> None:
    cursor = cursors.encode(kind, key)
    assert cursors.decode(cursor) == (kind, key)
    assert cursors.start_key({"cursor": cursor}, kind) == key
    with pytest.raises(RequestError, match="belongs to another list"):
        cursors.start_key({"cursor": cursor}, kind + "x")
    assert cursors.start_key({}, kind) is None
    assert cursors.encode(kind, None) is None


@pytest.mark.requirement("MCP-21")
@each_row("cursor", [
    *map(encoded, (b"[" * 12_000, b'{"a":' * 2_000, b'["kind","key"] ', b"[1,2]", b"\xff", b"9" * 9_000)),
    None, 5, ["a"],
])  # fmt: skip
def test_foreign_cursor_is_refused_with_one_line(cursor: object) -> None:
    with pytest.raises(RequestError, match="Invalid cursor: ") as caught:
        cursors.decode(cursor)
    assert len(str(caught.value)) < 200


@pytest.mark.requirement("MCP-21")
def test_cursor_is_limited_to_65536_characters() -> None:
    longest = "x" * (65_536 * 3 // 4 - len('["k",""]'))
    assert cursors.decode(cursors.encode("k", longest)) == ("k", longest)
    with pytest.raises(RequestError, match="Invalid cursor: "):
        cursors.decode(cursors.encode("k", f"{longest}x"))


@pytest.mark.requirement("MCP-21")
@given(st.text() | st.binary().map(encoded) | JSON)
def test_any_other_text_is_refused_as_a_cursor(cursor: str) -> None:
    with pytest.raises(RequestError):
        cursors.decode(cursor)


@given(st.lists(st.integers(0, MAX_BYTES), max_size=8))
def test_first_page_has_the_entries_that_fit_and_at_least_one(sizes: list[int]):
    page = first_page(sizes, lambda size: size)
    assert page == sizes[: len(page)] and bool(page) is bool(sizes)
    assert sum(page) <= MAX_BYTES or len(page) == 1
    assert len(page) == len(sizes) or sum(sizes[: len(page) + 1]) > MAX_BYTES


def test_first_page_is_full_to_the_byte() -> None:
    assert len(first_page([MAX_BYTES // 2, MAX_BYTES // 2], lambda size: size)) == 2
    assert len(first_page([MAX_BYTES // 2, MAX_BYTES // 2 + 1], lambda size: size)) == 1


@given(st.text(max_size=2000), st.lists(st.text("a/\u00e9b", min_size=1, max_size=200), max_size=40))
@example("", [each * 199 for each in "abcdefgh"])
def test_entry_bytes_estimate_the_size_of_an_entry(description: str, files: list[str]):
    one = skill(f"acme/{'refunds' * 10}", files, description=description)
    size = len(json.dumps(sep2640.entry(one)))
    assert size - 400 <= entry_bytes(one) * 2
    assert entry_bytes(one) <= 3 * size + 400
