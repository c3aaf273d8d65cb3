"""inotify watches of the directories that a scan enters, and the paths of their events."""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest

from catalog.forest import DEADLINE, Patch, consume_walk, skills, write_files
from mcp_skills_server.catalog import disk, tree
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
        scan(events)
        yield events


def scan(events: DirectoryEvents) -> None:
    """Enter all directories, until all of them are watched."""
    new = set(events._tops)
    while new:
        for top in events._tops:
            events.enter(top, "")
            entering = partial(events.enter, top)
            with disk.open_directory(top, "") as handle:
                consume_walk(tree.Walk(512, entering=entering).read_directory(handle, "", 12))
        new = events.arm()


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
    """Wait for events of these paths, and scan after each as a watcher does."""
    missing = {str(path) for path in paths}
    end = time.monotonic() + DEADLINE
    while missing:
        assert time.monotonic() < end, f"no event: {missing}"
        missing -= events.wait(1.0)
        scan(events)


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


@each_row("remove", [shutil.rmtree, lambda path: path.rename(path.parent.with_name(f"away-{time.monotonic_ns()}"))])
def test_replaced_directory_is_watched_again_with_those_below(tmp_path: Path, remove: Callable[[Path], object]) -> None:
    root = write_files(tmp_path / "root", skills("one/deep"))
    with armed(root) as events:
        for number in range(5):
            remove(root / "one")
            write_files(root, skills("one/deep"))
            await_events(events, root / "one")
            (root / f"one/deep/{number}.md").write_text("x")
            await_events(events, root / f"one/deep/{number}.md")
        assert len(events._groups) <= 2
    assert_watch_count(0)


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
