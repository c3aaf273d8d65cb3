"""Cursors as a client may send them back."""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_skills_server.errors import RequestError
from mcp_skills_server.format import cursors
from tables import each_row


def coded(raw: bytes) -> str:
    return urlsafe_b64encode(raw).decode().rstrip("=")


@pytest.mark.requirement("MCP-21")
@given(st.text(max_size=40), st.text(max_size=40))
def test_a_key_comes_back_for_its_own_list_alone(kind: str, key: str) -> None:
    cursor = cursors.encode(kind, key)
    assert cursors.decode(cursor) == (kind, key) and cursors.key_of({"cursor": cursor}, kind) == key
    with pytest.raises(RequestError, match="belongs to another list"):
        cursors.key_of({"cursor": cursor}, kind + "x")
    assert cursors.key_of({}, kind) is None and cursors.encode(kind, None) is None


@pytest.mark.requirement("MCP-21")
@each_row("raw", [b"[" * 12_000, b'{"a":' * 2_000, b'["kind","key"] ', b"[1,2]", b"\xff", b"9" * 9_000])
def test_what_is_none_of_ours_is_refused_in_one_line(raw: bytes) -> None:
    with pytest.raises(RequestError, match="Invalid cursor: ") as caught:
        cursors.decode(coded(raw))
    assert len(str(caught.value)) < 200


@pytest.mark.requirement("MCP-21")
@given(
    st.text()
    | st.binary().map(coded)
    | st.recursive(st.none(), st.lists).map(lambda value: coded(json.dumps(value).encode()))
)
def test_wild_cursors_raise_nothing_else(cursor: str) -> None:
    with pytest.raises(RequestError):
        cursors.decode(cursor)
