"""Paths as text: what lies below a directory, and which directories cover the others."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from mcp_skills_server.catalog.path_map import PathMap, outermost


def indexed(*directories: str) -> PathMap[Any]:
    out = PathMap[Any]()
    out.replace((), dict.fromkeys(directories))
    return out


PATHS = st.lists(st.lists(st.sampled_from(("a", "b", "a-", "a0", "ab")), max_size=4).map("/".join), max_size=8)


def inside(location: str, part: str) -> bool:
    return not part or location == part or location.startswith(part + "/")


@given(PATHS)
def test_the_outermost_directories_cover_all_and_none_lies_in_another(parts: list[str]) -> None:
    out = outermost(parts)
    assert set(out) <= set(parts)
    assert all(any(inside(part, cover) for cover in out) for part in parts)
    assert all(one is other or not inside(one, other) for one in out for other in out)


@given(PATHS, st.lists(st.sampled_from(("a", "b", "a-")), max_size=3).map("/".join))
def test_an_index_finds_what_lies_below_a_directory(directories: list[str], part: str) -> None:
    mine = indexed(*directories)
    assert list(mine.below(part)) == sorted(each for each in set(directories) if inside(each, part))
    mine.replace(directories[:1], {"z": None})
    assert list(mine.below("")) == sorted({*directories[1:], "z"} - set(directories[:1]))
