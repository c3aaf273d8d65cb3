"""Sorted map by root-relative path."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from mcp_skills_server.catalog.path_map import PathMap, within
from tables import each_row

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


@each_row("share", [1, 40])
def test_change_of_a_few_paths_does_not_sort_all(share: int) -> None:
    compared = 0

    class Path(str):
        __slots__ = ()

        def __lt__(self, other: Any) -> bool:
            nonlocal compared
            compared += 1
            return str(self) < str(other)

    found = PathMap[None]()
    found.replace((), {Path(f"{number:04}"): None for number in range(2_000)})
    found.below("")
    compared = 0
    found.replace((), {Path(f"{number:04}-"): None for number in range(share)})
    found.below("x")
    assert (compared < 50) is (share == 1)
