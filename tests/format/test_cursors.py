"""Pages of a list: cursors as a client may send them back, and how much one answer holds."""

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
from mcp_skills_server.format.cursors import MOST_BYTES, entry_bytes, first_page
from tables import each_row


def coded(raw: bytes) -> str:
    return urlsafe_b64encode(raw).decode().rstrip("=")


JSON = st.recursive(st.none(), st.lists).map(lambda value: coded(json.dumps(value).encode()))


@pytest.mark.requirement("MCP-21")
@given(st.text(max_size=40), st.text(max_size=40))
def test_a_key_comes_back_for_its_own_list_alone(kind: str, key: str) -> None:
    cursor = cursors.encode(kind, key)
    assert cursors.decode(cursor) == (kind, key) and cursors.start_key({"cursor": cursor}, kind) == key
    with pytest.raises(RequestError, match="belongs to another list"):
        cursors.start_key({"cursor": cursor}, kind + "x")
    assert cursors.start_key({}, kind) is None and cursors.encode(kind, None) is None


@pytest.mark.requirement("MCP-21")
@each_row("cursor", [
    *map(coded, (b"[" * 12_000, b'{"a":' * 2_000, b'["kind","key"] ', b"[1,2]", b"\xff", b"9" * 9_000)), None, 5, ["a"],
])  # fmt: skip
def test_what_is_none_of_ours_is_refused_in_one_line(cursor: object) -> None:
    with pytest.raises(RequestError, match="Invalid cursor: ") as caught:
        cursors.decode(cursor)
    assert len(str(caught.value)) < 200


@pytest.mark.requirement("MCP-21")
def test_a_cursor_has_65536_characters_at_most() -> None:
    longest = "x" * (65_536 * 3 // 4 - len('["k",""]'))
    assert cursors.decode(cursors.encode("k", longest)) == ("k", longest)
    with pytest.raises(RequestError, match="Invalid cursor: "):
        cursors.decode(cursors.encode("k", f"{longest}x"))


@pytest.mark.requirement("MCP-21")
@given(st.text() | st.binary().map(coded) | JSON)
def test_wild_cursors_raise_nothing_else(cursor: str) -> None:
    with pytest.raises(RequestError):
        cursors.decode(cursor)


@given(st.lists(st.integers(0, MOST_BYTES), max_size=8))
def test_a_portion_is_the_first_entries_that_fit_and_one_at_least(sizes: list[int]):
    kept = first_page(sizes, lambda size: size)
    assert kept == sizes[: len(kept)] and bool(kept) is bool(sizes)
    assert [len(first_page([1 << 21, (1 << 21) + more], lambda size: size)) for more in (0, 1)] == [2, 1]
    assert sum(kept) <= MOST_BYTES or len(kept) == 1
    assert len(kept) == len(sizes) or sum(sizes[: len(kept) + 1]) > MOST_BYTES


@given(st.text(max_size=2000), st.lists(st.text("a/\u00e9b", min_size=1, max_size=200), max_size=40))
@example("", [each * 199 for each in "abcdefgh"])
def test_a_skill_weighs_about_what_its_entry_takes(description: str, files: list[str]):
    one = skill(f"acme/{'refunds' * 10}", files, description=description)
    size = len(json.dumps(sep2640.entry(one)))
    assert size - 400 <= entry_bytes(one) * 2 and entry_bytes(one) <= 3 * size + 400
