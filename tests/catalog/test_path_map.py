"""Sorted map by root-relative path."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mcp_skills_server.catalog.path_map import PathMap, within

PATHS = st.lists(st.sampled_from("ab-"), min_size=1, max_size=3).map("/".join)
CHANGES = st.lists(st.tuples(st.just("") | PATHS, st.dictionaries(PATHS, st.integers(0, 3), max_size=4)), max_size=8)


@given(CHANGES)
def test_paths_below_are_sorted_after_every_change(changes: list[tuple[str, dict[str, int]]]) -> None:
    found, expected = PathMap[int](), dict[str, int]()
    for subtree, came in changes:
        found.replace_below(subtree, came)
        expected = {path: value for path, value in expected.items() if not within(path, subtree)} | came
        assert found == expected
        for top in ("", "a", "a/b", "-"):
            assert found.below(top) == sorted(path for path in found if within(path, top))
