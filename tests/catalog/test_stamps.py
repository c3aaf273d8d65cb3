"""A stamp changes with whatever a scan would find otherwise, and is none where that cannot be known."""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mcp_skills_server.catalog import disk
from mcp_skills_server.catalog import stamps as module
from mcp_skills_server.catalog.stamps import OUTSIDE, YOUNG, Stamps, stamps, stamps_again
from wire import write_skill


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three skills of which one lies deeper; what is written a moment ago counts as old."""
    monkeypatch.setattr(disk, "_SETTLED_NS", 0)
    for name in ("one", "two", "team/three"):
        (write_skill(tmp_path / name) / "more").mkdir()
        (tmp_path / name / "more" / "notes.md").write_text("notes")
    (tmp_path / "README.md").write_text("read me")
    return tmp_path


def seen(root: Path, *, hidden: bool = False) -> dict[str, str]:
    looked = stamps(str(root), hidden=hidden)
    assert looked is not None
    return dict(looked.found)


def test_there_is_one_for_each_skill_and_it_stays(root: Path) -> None:
    found = seen(root)
    assert found.keys() == {"one", "two", "team/three", OUTSIDE} and len(set(found.values())) == 4
    assert seen(root) == found


def renamed(root: Path) -> None:
    (root / "one" / "more" / "notes.md").rename(root / "one" / "more" / "other.md")


def swapped(root: Path) -> None:
    """The same size and time of modification, as tools do that copy trees."""
    place = root / "one" / "more" / "notes.md"
    before = place.stat()
    (root / "one" / "fresh").write_text("setoN")
    os.replace(root / "one" / "fresh", place)
    os.utime(place, ns=(before.st_atime_ns, before.st_mtime_ns))


def nested(root: Path) -> None:
    write_skill(root / "one" / "within")


CHANGES: list[Callable[[Path], object]] = [
    lambda root: (root / "one" / "SKILL.md").write_text("more"),
    lambda root: (root / "one" / "more" / "new.md").touch(),
    lambda root: (root / "one" / "more" / "notes.md").unlink(),
    lambda root: (root / "one" / "more" / "empty").mkdir(),
    lambda root: (root / "one" / "more" / "notes.md").chmod(0o755),
    renamed,
    swapped,
    nested,
]


def looked(root: Path) -> Stamps:
    found = stamps(str(root), hidden=False)
    assert found is not None
    return found


def again(root: Path, before: Stamps) -> Stamps | None:
    return stamps_again(str(root), hidden=False, before=before)


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The directories that are listed."""
    look, out = module._Walk.look, []

    def noted(walk: module._Walk, handle: int, path: str, *rest: object) -> bool:
        out.append(path)
        return look(walk, handle, path, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(module._Walk, "look", noted)
    return out


def test_a_second_look_lists_nothing_where_nothing_changed(root: Path, listed: list[str]) -> None:
    before = looked(root)
    listed.clear()
    assert again(root, before) == before and not listed


@pytest.mark.parametrize("change", CHANGES)
def test_a_second_look_lists_what_changed_alone(
    root: Path, change: Callable[[Path], object], listed: list[str]
) -> None:
    before = looked(root)
    change(root)
    fresh = looked(root)
    listed.clear()
    second = again(root, before)
    assert second == fresh and second.found != before.found
    assert listed and all(each.split("/")[0] == "one" for each in listed)
    listed.clear()
    assert again(root, second) == second and not listed


OTHERS: list[Callable[[Path], object]] = [
    lambda root: write_skill(root / "four"),
    lambda root: write_skill(root / "team" / "four"),
    lambda root: shutil.rmtree(root / "one"),
    lambda root: (root / "one").rename(root / "first"),
    lambda root: (root / "one" / "SKILL.md").unlink(),
    lambda root: (root / "README.md").write_text("more"),
    lambda root: (root / "new.md").touch(),
    lambda root: (root / "link").symlink_to("one"),
    lambda root: (root / "one" / "link.md").symlink_to("SKILL.md"),
    lambda root: ((root / "one").rename(root.parent / "away"), (root / "one").symlink_to(root.parent / "away")),
    lambda root: ((root / "one" / "more").rename(root.parent / "away"), (root / "one" / "more").symlink_to("..")),
    lambda root: (root / "one" / "hard.md").hardlink_to(root / "one" / "SKILL.md"),
    lambda root: os.link(root / "one" / "SKILL.md", root.parent / "hard.md"),
    lambda root: (root / ".team").mkdir(),
]


@pytest.mark.parametrize("change", OTHERS)
def test_a_second_look_finds_what_a_first_one_finds(
    tmp_path: Path, root: Path, change: Callable[[Path], object]
) -> None:
    below = tmp_path / "below"
    below.mkdir()
    for each in ("one", "two", "team", "README.md"):
        (root / each).rename(below / each)
    before = looked(below)
    change(below)
    assert again(below, before) == stamps(str(below), hidden=False)
    assert again(below / "gone", before) is None


def test_a_second_look_after_any_changes_finds_what_a_first_one_finds(root: Path) -> None:
    dice = random.Random(29)
    before = looked(root)
    for _ in range(60):
        for _ in range(dice.choice([0, 1, 1, 3])):
            place = dice.choice([each for each in root.rglob("*") if each.is_dir()] + [root])
            match dice.randrange(5):
                case 0:
                    (place / f"f{dice.randrange(3)}.md").write_text(str(dice.random()))
                case 1:
                    (place / f"d{dice.randrange(3)}").mkdir(exist_ok=True)
                case 2:
                    write_skill(place)
                case 3:
                    for each in place.glob("*.md"):
                        each.unlink()
                case _:
                    fresh = place.parent / f"r{dice.randrange(3)}"
                    if place != root and not fresh.exists():
                        place.rename(fresh)
        fresh_look = looked(root)
        second = again(root, before)
        assert second is not None and second.found == fresh_look.found
        before = second


def test_young_directories_and_other_file_systems_are_listed_again(
    root: Path, listed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "timed_device", lambda _: None)
    before = looked(root)
    assert not before.names and not before.marks
    listed.clear()
    assert again(root, before) == before and listed
    monkeypatch.undo()
    (root / "README.md").unlink()
    assert not looked(root).names  # all of it was made in the last two seconds


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_in_a_skill_changes_its_stamp_alone(root: Path, change: Callable[[Path], object]) -> None:
    before = seen(root)
    change(root)
    after = seen(root)
    assert {each for each in before if before[each] != after[each]} == {"one"}


def test_what_no_scan_looks_at_changes_nothing(root: Path) -> None:
    (root / "one" / ".git").mkdir()
    before = seen(root)
    (root / "one" / ".git" / "HEAD").write_text("x")
    assert seen(root) == before


def test_a_folder_that_becomes_a_skill_is_seen(root: Path) -> None:
    before = seen(root)
    write_skill(root / "team" / "four")
    assert seen(root).keys() - before.keys() == {"team/four"}
    (root / "team" / "skill.md").write_text("x")
    assert "team" in seen(root) and "team/three" not in seen(root)


def test_what_lies_in_no_skill_has_a_stamp_too(root: Path) -> None:
    before = seen(root)
    (root / "README.md").write_text("read me again")
    after = seen(root)
    assert {each for each in before if before[each] != after[each]} == {OUTSIDE}


@pytest.mark.parametrize(
    "doubt",
    [
        lambda place: (place / "link.md").symlink_to("SKILL.md"),
        lambda place: (place / "hard.md").hardlink_to(place / "SKILL.md"),
        lambda place: os.mkfifo(place / "pipe"),
        lambda place: open(os.fsencode(place) + b"/\xff", "wb").close(),
    ],
)
def test_a_doubt_gives_a_skill_no_stamp_and_its_neighbours_theirs(root: Path, doubt: Callable[[Path], object]) -> None:
    before = seen(root)
    doubt(root / "one")
    assert seen(root) == before | {"one": ""}


def test_a_young_file_gives_none_to_rely_on(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "README.md").unlink()
    monkeypatch.setattr(disk, "_SETTLED_NS", 3_600_000_000_000)
    found = seen(root)
    assert {each for each, stamp in found.items() if stamp != YOUNG} == {OUTSIDE}


def test_a_doubt_outside_of_skills_is_one_about_all(root: Path) -> None:
    (root / "link").symlink_to("one")
    assert stamps(str(root), hidden=False) is None


def test_dot_folders_outside_of_skills_are_entered_or_a_doubt(root: Path) -> None:
    write_skill(root / ".team" / "four")
    assert stamps(str(root), hidden=False) is None
    assert ".team/four" in seen(root, hidden=True)


def test_a_root_that_is_a_skill_and_one_that_is_gone(root: Path) -> None:
    assert seen(root / "one").keys() == {"", OUTSIDE}
    assert stamps(str(root / "none"), hidden=False) is None


@pytest.mark.parametrize("jump_s", [-31_536_000, -60, 60, 31_536_000])
def test_an_edit_shows_whatever_the_clock_says(jump_s: int, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = time.time_ns
    before = looked(root)
    monkeypatch.setattr(time, "time_ns", lambda: real() + jump_s * 10**9)
    (root / "README.md").unlink()  # with a clock that is behind it is young
    (root / "one" / "SKILL.md").write_text("other")
    for after in (stamps(str(root), hidden=False), again(root, before)):
        assert after is not None and (after.found["one"] == YOUNG or after.found["one"] != before.found["one"])
