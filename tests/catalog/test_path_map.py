"""Sorted map by path, and the outermost of some paths."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mcp_skills_server.catalog.path_map import PathMap, outermost

PATHS = st.lists(st.lists(st.sampled_from(("a", "b", "a-", "a0", "ab")), max_size=4).map("/".join), max_size=8)


def is_within(location: str, directory: str) -> bool:
    return not directory or location == directory or location.startswith(directory + "/")


@given(PATHS)
def test_outermost_paths_cover_all_paths_and_not_each_other(paths: list[str]) -> None:
    found = outermost(paths)
    assert set(found) <= set(paths)
    assert all(any(is_within(path, each) for each in found) for path in paths)
    assert all(one is other or not is_within(one, other) for one in found for other in found)


@given(PATHS, st.lists(st.sampled_from(("a", "b", "a-")), max_size=3).map("/".join))
def test_path_map_finds_all_paths_below_a_directory(directories: list[str], subtree: str) -> None:
    paths = PathMap[None]()
    paths.replace((), dict.fromkeys(directories))
    assert list(paths.below(subtree)) == sorted(each for each in set(directories) if is_within(each, subtree))
    paths.replace(directories[:1], {"z": None})
    assert list(paths.below("")) == sorted({*directories[1:], "z"} - set(directories[:1]))
