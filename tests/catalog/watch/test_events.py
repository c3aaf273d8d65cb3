"""A watch for each directory that is scanned and for no other, and the right path for every event."""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest
from watchfiles._rust_notify import RustNotify

from catalog.forest import DEADLINE, Patch, plant, skills, whole
from mcp_skills_server.catalog import disk, tree
from mcp_skills_server.catalog.watch import events as module
from mcp_skills_server.catalog.watch.events import CannotWatchError, DirectoryEvents, WatchLostError
from mcp_skills_server.format.ignored import is_entered
from tables import each_row

if sys.platform != "linux":
    pytest.skip("elsewhere the system watches whole trees", allow_module_level=True)


@contextmanager
def armed(*tops: Path) -> Iterator[DirectoryEvents]:
    paths = list(map(str, tops))

    def enters(path: str) -> bool:
        names = [path.removeprefix(top).split(os.sep) for top in paths if f"{path}/".startswith(f"{top}/")]
        return any(all(is_entered(name, hidden=False) for name in each if name) for each in names)

    with closing(DirectoryEvents(paths, threading.Event(), enters)) as events:
        for top in paths:
            events.enter(top, "")
            entering = partial(events.enter, top)
            with disk.open_directory(top, "") as handle:
                whole(tree.Walk(0, 512, entering=entering).read_directory(handle, "", 12))
        assert events.arm() and not events.arm()
        yield events


def watches() -> int:
    count = 0
    for entry in os.listdir("/proc/self/fdinfo"):
        try:
            count += Path(f"/proc/self/fdinfo/{entry}").read_text().count("inotify wd:")
        except OSError:
            continue
    return count


def keeps(count: int) -> bool:
    """Whether the kernel comes to keep so many watches; watchfiles gives them back in a thread of its own."""
    end = time.monotonic() + DEADLINE
    while watches() != count and time.monotonic() < end:
        threading.Event().wait(0.01)
    return watches() == count


def watched(events: DirectoryEvents) -> set[str]:
    return {path for directories, _ in events._groups for path in directories if os.path.isdir(path)}


def until(events: DirectoryEvents, *wanted: Path) -> set[str]:
    missing, seen = {str(path) for path in wanted}, set[str]()
    end = time.monotonic() + DEADLINE
    while not missing <= seen:
        assert time.monotonic() < end, f"not heard of: {missing - seen}"
        seen |= events.wait(1.0)
    return seen


def test_links_to_directories_and_ignored_ones_cost_nothing(tmp_path: Path) -> None:
    big = plant(tmp_path / "big", {f"{number}/file": "x" for number in range(100)})
    root = plant(tmp_path / "root", skills("one", "deep/er/and/deeper"))
    plant(root, {".git/objects/x": "x", "node_modules/a/b": "x", "one/__pycache__/x": "x", "one/.cache/x": "x"})
    for place, target in {"big": big, "self": root, ".claude": root / "one", "one/loop": root}.items():
        (root / place).symlink_to(target)
    with armed(root) as events:
        expected = {"", "one", "deep", "deep/er", "deep/er/and", "deep/er/and/deeper"}
        assert watched(events) == {os.path.join(root, path).rstrip("/") for path in expected}
        assert keeps(len(expected))
        (root / "later").symlink_to(big)
        until(events, root / "later")
        assert keeps(len(expected))


def test_a_directory_below_two_roots_is_watched_once_and_heard_of_once(tmp_path: Path) -> None:
    plant(tmp_path, skills("inner/one"))
    with armed(tmp_path, tmp_path / "inner", tmp_path) as events:
        assert keeps(3)
        (tmp_path / "inner/one/SKILL.md").write_text("x")
        assert events.wait(DEADLINE) == {str(tmp_path / "inner/one/SKILL.md")}


def test_what_appears_while_a_new_directory_is_armed_is_armed_too(tmp_path: Path, monkeypatch: Patch) -> None:
    """It came after the listing and before the watch: no event tells of it."""
    real = module._opened

    def slow(directories: set[str]) -> tuple[set[str], RustNotify]:
        if str(tmp_path / "new") in directories and not (tmp_path / "new/late").exists():
            plant(tmp_path / "new/late", {"SKILL.md": "x"})
        return real(directories)

    with armed(tmp_path) as events:
        monkeypatch.setattr(module, "_opened", slow)
        (tmp_path / "new").mkdir()
        until(events, tmp_path / "new")
        assert str(tmp_path / "new/late") in watched(events)


def test_a_directory_that_is_replaced_is_watched_anew(tmp_path: Path) -> None:
    plant(tmp_path, skills("one"))
    with armed(tmp_path) as events:
        for number in range(5):
            shutil.rmtree(tmp_path / "one")
            plant(tmp_path, skills("one"))
            until(events, tmp_path / "one")
            (tmp_path / f"one/{number}.md").write_text("x")
            until(events, tmp_path / f"one/{number}.md")
        assert len(events._groups) <= 2
    assert keeps(0)


def test_groups_are_few_and_lose_no_event_when_they_are_joined(tmp_path: Path) -> None:
    with armed(tmp_path) as events:
        for number in range(64):
            plant(tmp_path, {f"s{number}/SKILL.md": "x"})
            until(events, tmp_path / f"s{number}")
            assert len(events._groups) <= 8
        for number in range(64):
            (tmp_path / f"s{number}/SKILL.md").write_text("y")
        until(events, *(tmp_path / f"s{number}/SKILL.md" for number in range(64)))


def test_an_edit_lists_nothing_and_a_new_directory_only_itself(tmp_path: Path, monkeypatch: Patch) -> None:
    plant(tmp_path, skills(*(f"s{number}" for number in range(100))))
    real, listed = os.scandir, list[str]()
    with armed(tmp_path) as events:
        monkeypatch.setattr(os, "scandir", lambda path: listed.append(str(path)) or real(path))
        (tmp_path / "s1/SKILL.md").write_text("x")
        (tmp_path / "later").mkdir()
        until(events, tmp_path / "s1/SKILL.md", tmp_path / "later")
        assert set(listed) == {str(tmp_path / "later")}


@each_row(("refused", "error", "words"), [
    (FileNotFoundError(), WatchLostError, "come and go faster"),  # they never hold still
    (OSError("Too many open files (os error 24)"), CannotWatchError, "no inotify instance is left"),
])  # fmt: skip
def test_what_the_system_refuses_is_said_in_one_line(
    tmp_path: Path, monkeypatch: Patch, refused: OSError, error: type[Exception], words: str
) -> None:
    monkeypatch.setattr("watchfiles._rust_notify.RustNotify", Mock(side_effect=refused))
    with pytest.raises(error, match=words), armed(plant(tmp_path, skills("one"))):
        pass


def test_a_directory_that_is_gone_when_it_is_to_be_watched_is_followed_when_it_is_back(tmp_path: Path) -> None:
    with armed(tmp_path) as events:
        events.enter(str(tmp_path), "a")
        assert not events.arm()
        (tmp_path / "a").mkdir()
        until(events, tmp_path / "a")
        (tmp_path / "a" / "SKILL.md").write_text("x")
        until(events, tmp_path / "a" / "SKILL.md")
