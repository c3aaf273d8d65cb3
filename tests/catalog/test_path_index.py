"""Which skills a change touches, on plain values."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from mcp_skills_server.catalog.path_index import PathIndex, outermost, touched
from tables import each_row


def shelf(*directories: str) -> PathIndex:
    out = PathIndex()
    blank: Any = None
    out.replace((), dict.fromkeys(directories, blank))
    return out


@each_row(
    ("location", "is_directory", "part"),
    [
        ("", True, ""),
        ("", False, ""),
        ("a", True, "a"),
        ("a", False, "a"),
        ("a/x.md", False, "a"),
        ("a/b/SKILL.md", False, "a"),
        ("ab/x.md", False, None),
        ("new", True, "new"),
        ("new.md", False, None),
        ("new/SKILL.md", False, "new"),
        ("new/SKILL.md", True, "new"),
        ("new/skill.MD", False, "new"),
        ("SKILL.md", False, ""),
        ("d", False, "d"),
        ("d/e", False, "d/e"),
        ("d/e/f/x.md", False, "d/e/f"),
        ("gone", False, None),
    ],
)
def test_what_an_event_touches(location: str, is_directory: bool, part: str | None) -> None:
    assert touched(location, shelf("a", "a/b", "d/e/f"), is_directory) == part


def test_below_a_root_that_is_a_skill_everything_touches_the_root() -> None:
    assert touched("x/y.md", shelf("", "x"), False) == ""
    assert touched("", shelf("", "x"), True) == ""


@each_row(
    ("parts", "out"),
    [
        ([], []),
        (["a", "a/b", "ab", "a-b", "c/d"], ["a", "a-b", "ab", "c/d"]),
        (["", "a"], [""]),
        (["a/b", "a-", "a"], ["a", "a-"]),
    ],
)
def test_the_outermost_directories(parts: list[str], out: list[str]) -> None:
    assert outermost(parts) == out


PATHS = st.lists(st.lists(st.sampled_from(("a", "b", "a-", "a0", "ab")), max_size=4).map("/".join), max_size=8)


def inside(location: str, part: str) -> bool:
    return not part or location == part or location.startswith(part + "/")


@given(PATHS)
def test_the_outermost_directories_cover_all_and_none_lies_in_another(parts: list[str]) -> None:
    out = outermost(parts)
    assert set(out) <= set(parts)
    assert all(any(inside(part, cover) for cover in out) for part in parts)
    assert all(one == other or not inside(one, other) for one in out for other in out)


@given(PATHS, st.lists(st.sampled_from(("a", "b", "a-")), max_size=3).map("/".join))
def test_a_shelf_finds_what_lies_below_a_directory(directories: list[str], part: str) -> None:
    mine = shelf(*directories)
    assert list(mine.below(part)) == sorted(each for each in set(directories) if inside(each, part))
    blank: Any = None
    mine.replace(directories[:1], {"z": blank})
    assert list(mine.below("")) == sorted({*directories[1:], "z"} - set(directories[:1]))
