"""Who gives way, with plain values."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mcp_skills_server.web.shares import giver


@given(
    st.dictionaries(st.sampled_from("abcd"), st.integers(1, 9)),
    st.sampled_from("abcde"),
    st.sets(st.sampled_from("abcd")),
)
def test_nobody_loses_a_place_to_who_holds_as_many(held: dict[str, int], newcomer: str, able: set[str]) -> None:
    gives = giver(held, newcomer, able.__contains__)
    may = {owner for owner in able & held.keys() if owner == newcomer or held[owner] > held.get(newcomer, 0)}
    if gives is None:
        assert not may
    else:
        assert gives in may and held[gives] == max(held[owner] for owner in may)
