"""inotify watches of the directories that a scan enters, and the paths of their events."""

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

from catalog.forest import DEADLINE, Patch, consume_walk, skills, write_files
from mcp_skills_server.catalog import disk, tree
from mcp_skills_server.catalog.watch import events as module
from mcp_skills_server.catalog.watch.events import CannotWatchError, DirectoryEvents, WatchLostError
from mcp_skills_server.format.ignored import is_entered
from tables import each_row

if sys.platform != "linux":
    pytest.skip("other systems watch whole trees", allow_module_level=True)


@contextmanager
def armed(*tops: Path) -> Iterator[DirectoryEvents]:
    """Yield the events below some roots once all directories that a scan enters are watched."""
    paths = list(map(str, tops))

    def enters(path: str) -> bool:
        return all(is_entered(name, hidden=False) for name in path.split(os.sep) if name)

    with closing(DirectoryEvents(paths, threading.Event(), enters)) as events:
        for top in paths:
            events.enter(top, "")
            entering = partial(events.enter, top)
            with disk.open_directory(top, "") as handle:
                consume_walk(tree.Walk(0, 512, entering=entering).read_directory(handle, "", 12))
        assert events.arm()
        assert not events.arm()
        yield events


def watch_count() -> int:
    """Count the inotify watches of this process."""
    count = 0
    for entry in os.listdir("/proc/self/fdinfo"):
        try:
            count += Path(f"/proc/self/fdinfo/{entry}").read_text().count("inotify wd:")
        except OSError:
            continue
    return count


def assert_watch_count(expected: int) -> None:
    """Wait for a number of watches: watchfiles releases them in another thread."""
    end = time.monotonic() + DEADLINE
    while watch_count() != expected:
        assert time.monotonic() < end
        time.sleep(0.01)


def watched_directories(events: DirectoryEvents) -> set[str]:
    return {path for directories, _ in events._groups for path in directories if os.path.isdir(path)}


def await_events(events: DirectoryEvents, *paths: Path) -> None:
    missing = {str(path) for path in paths}
    end = time.monotonic() + DEADLINE
    while missing:
        assert time.monotonic() < end, f"no event: {missing}"
        missing -= events.wait(1.0)


def test_linked_and_ignored_directories_are_not_watched(tmp_path: Path) -> None:
    big = write_files(tmp_path / "big", {f"{number}/file": "x" for number in range(100)})
    root = write_files(tmp_path / "root", skills("one", "deep/er/and/deeper"))
    write_files(root, {".git/objects/x": "x", "node_modules/a/b": "x", "one/__pycache__/x": "x", "one/.cache/x": "x"})
    for place, target in {"big": big, "self": root, ".claude": root / "one", "one/loop": root}.items():
        (root / place).symlink_to(target)
    with armed(root) as events:
        expected = {"", "one", "deep", "deep/er", "deep/er/and", "deep/er/and/deeper"}
        assert watched_directories(events) == {os.path.join(root, path).rstrip("/") for path in expected}
        assert_watch_count(len(expected))
        (root / "later").symlink_to(big)
        write_files(root, {"new/node_modules/x": "x"})
        await_events(events, root / "later", root / "new")
        assert_watch_count(len(expected) + 1)


def test_directory_below_two_roots_is_watched_and_reported_once(tmp_path: Path) -> None:
    write_files(tmp_path, skills("inner/one"))
    with armed(tmp_path, tmp_path / "inner", tmp_path) as events:
        assert_watch_count(3)
        (tmp_path / "inner/one/.SKILL.md.swp").write_text("ignored")
        (tmp_path / "inner/one/SKILL.md").write_text("x")
        assert events.wait(DEADLINE) == {str(tmp_path / "inner/one/SKILL.md")}


def test_directory_created_while_its_parent_is_armed_is_watched(tmp_path: Path, monkeypatch: Patch) -> None:
    """It is created after the listing and before the watch, so it causes no event."""
    real_opened = module._opened

    def create_and_open(directories: set[str]) -> tuple[set[str], RustNotify]:
        if str(tmp_path / "new") in directories and not (tmp_path / "new/late").exists():
            write_files(tmp_path / "new/late", {"SKILL.md": "x"})
        return real_opened(directories)

    with armed(tmp_path) as events:
        monkeypatch.setattr(module, "_opened", create_and_open)
        (tmp_path / "new").mkdir()
        await_events(events, tmp_path / "new")
        assert str(tmp_path / "new/late") in watched_directories(events)


def test_replaced_directory_is_watched_again(tmp_path: Path) -> None:
    write_files(tmp_path, skills("one"))
    with armed(tmp_path) as events:
        for number in range(5):
            shutil.rmtree(tmp_path / "one")
            write_files(tmp_path, skills("one"))
            await_events(events, tmp_path / "one")
            (tmp_path / f"one/{number}.md").write_text("x")
            await_events(events, tmp_path / f"one/{number}.md")
        assert len(events._groups) <= 2
    assert_watch_count(0)


def test_watch_groups_stay_few_and_lose_no_event_when_merged(tmp_path: Path) -> None:
    with armed(tmp_path) as events:
        for number in range(64):
            write_files(tmp_path, {f"s{number}/SKILL.md": "x"})
            await_events(events, tmp_path / f"s{number}")
            assert len(events._groups) <= 8
        for number in range(64):
            (tmp_path / f"s{number}/SKILL.md").write_text("y")
        await_events(events, *(tmp_path / f"s{number}/SKILL.md" for number in range(64)))


def test_edit_causes_no_directory_listing_and_a_new_directory_only_its_own(tmp_path: Path, monkeypatch: Patch) -> None:
    write_files(tmp_path, skills(*(f"s{number}" for number in range(100))))
    real_scandir, listed = os.scandir, list[str]()
    with armed(tmp_path) as events:
        monkeypatch.setattr(os, "scandir", lambda path: listed.append(str(path)) or real_scandir(path))
        (tmp_path / "s1/SKILL.md").write_text("x")
        (tmp_path / "later").mkdir()
        await_events(events, tmp_path / "s1/SKILL.md", tmp_path / "later")
        assert set(listed) == {str(tmp_path / "later")}


@each_row(("refusal", "error", "message"), [
    (FileNotFoundError(), WatchLostError, "come and go faster"),
    (OSError("Too many open files (os error 24)"), CannotWatchError, "no inotify instance is left"),
])  # fmt: skip
def test_refused_watch_is_reported_with_its_cause(
    tmp_path: Path, monkeypatch: Patch, refusal: OSError, error: type[Exception], message: str
) -> None:
    monkeypatch.setattr("watchfiles._rust_notify.RustNotify", Mock(side_effect=refusal))
    with pytest.raises(error, match=message), armed(write_files(tmp_path, skills("one"))):
        pass


def test_directory_missing_while_armed_is_watched_once_it_appears(tmp_path: Path) -> None:
    with armed(tmp_path) as events:
        events.enter(str(tmp_path), "a")
        assert not events.arm()
        (tmp_path / "a").mkdir()
        await_events(events, tmp_path / "a")
        (tmp_path / "a" / "SKILL.md").write_text("x")
        await_events(events, tmp_path / "a" / "SKILL.md")
