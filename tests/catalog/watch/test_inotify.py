"""A watch for each directory that is scanned and for no other, and the right path for every event."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import pytest

from catalog.forest import DEADLINE, plant, skills, whole
from mcp_skills_server.catalog import disk, tree
from mcp_skills_server.catalog.watch.events import WatchLostError

if sys.platform != "linux":
    pytest.skip("inotify is of Linux", allow_module_level=True)

from mcp_skills_server.catalog.watch.inotify import DirectoryEvents, _Place


@contextmanager
def armed(*tops: Path, reach: int = 12, hidden: bool = False) -> Iterator[DirectoryEvents]:
    """Events of these directories, armed by a scan of each."""
    paths = list(dict.fromkeys(map(str, tops)))
    with closing(DirectoryEvents(paths, reach, threading.Event(), hidden=hidden)) as events:
        for top in paths:
            scan(events, top, reach, hidden=hidden)
        yield events


def scan(events: DirectoryEvents, top: str, reach: int = 12, *, hidden: bool = False) -> None:
    """Walk a root, each directory of which is watched before it is looked into."""
    events.enter(top, "")
    entering = partial(events.enter, top)
    with disk.open_directory(top, "") as handle:
        whole(tree.walk(handle, "", 0, depth=reach, most_files=512, hidden=hidden, entering=entering))
    events.check()


def watches(events: DirectoryEvents) -> int:
    """The watches that the kernel keeps for it."""
    return Path(f"/proc/self/fdinfo/{events._notify.fileno()}").read_text().count("inotify wd:")


def paths(events: DirectoryEvents) -> set[str]:
    """The paths that its watches stand for."""
    return {place.path() for watch in events._places for place in events._at(watch)}


def until(events: DirectoryEvents, *wanted: Path) -> set[str]:
    """All that changed up to the last of these."""
    missing, seen = {str(path) for path in wanted}, set[str]()
    end = time.monotonic() + DEADLINE
    while not missing <= seen:
        assert time.monotonic() < end, f"not heard of: {missing - seen}"
        seen |= events.wait(1.0)
    return seen


def test_to_watch_starts_no_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To find the C library `ctypes.util` has another program print where it is."""
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("a program was started"))
    with armed(plant(tmp_path, skills("a"))) as events:
        assert paths(events) == {str(tmp_path), str(tmp_path / "a")}


def test_a_directory_that_is_seen_twice_is_heard_of_by_both_names_until_one_is_forgotten(tmp_path: Path) -> None:
    plant(tmp_path, skills("kit/a"))
    with armed(tmp_path, tmp_path / "kit") as events:
        assert watches(events) == len(events._places) == 3
        seen = {place.path(): place for watch in events._places for place in events._at(watch)}
        inner = next(place for watch in events._places for place in events._at(watch) if place.name == "a")
        both = [*events._at(inner.watch)]
        assert len(both) == 2 and seen.keys() == {str(tmp_path), str(tmp_path / "kit"), str(tmp_path / "kit" / "a")}
        events._forget(both[0])
        assert [*events._at(both[1].watch)] == [both[1]] and watches(events) == 3
        events._forget(both[1])
        assert watches(events) == len(events._places) == 2


def test_links_to_directories_ignored_ones_and_too_deep_ones_cost_nothing(tmp_path: Path) -> None:
    big = plant(tmp_path / "big", {f"{number}/file": "x" for number in range(100)})
    root = plant(tmp_path / "root", skills("one", "deep/er/and/deeper"))
    plant(root, {".git/objects/x": "x", "node_modules/a/b": "x", "one/__pycache__/x": "x", "one/.cache/x": "x"})
    for place, target in {"big": big, "self": root, ".claude": root / "one", "one/loop": root}.items():
        (root / place).symlink_to(target)
    with armed(root, reach=3) as events:
        expected = {"", "one", "deep", "deep/er", "deep/er/and"}
        assert paths(events) == {os.path.join(root, path).rstrip("/") for path in expected}
        assert watches(events) == len(expected)


def test_dot_folders_are_watched_where_they_are_scanned(tmp_path: Path) -> None:
    plant(tmp_path, skills(".curated/one", ".git/two", "node_modules/three"))
    with armed(tmp_path, hidden=True) as events:
        assert paths(events) == {str(tmp_path / path) for path in ("", ".curated", ".curated/one")}
        plant(tmp_path, skills(".later/four", ".venv/five"))
        until(events, tmp_path / ".later")
        assert str(tmp_path / ".later/four") in paths(events)
        assert not [path for path in paths(events) if ".venv" in path]


def test_a_directory_below_two_roots_is_watched_once_and_heard_of_once(tmp_path: Path) -> None:
    plant(tmp_path, skills("inner/one"))
    with armed(tmp_path, tmp_path / "inner", tmp_path) as events:
        assert watches(events) == 3
        (tmp_path / "inner/one/SKILL.md").write_text("x")
        assert events.wait(DEADLINE) == {str(tmp_path / "inner/one/SKILL.md")}


def test_a_new_tree_is_armed_and_what_is_in_it_is_heard_of(tmp_path: Path) -> None:
    with armed(tmp_path) as events:
        plant(tmp_path, skills("a/b/c"))
        until(events, tmp_path / "a")
        while str(tmp_path / "a/b/c") not in paths(events):
            assert events.wait(DEADLINE)
        (tmp_path / "a/b/c/later.md").write_text("x")
        until(events, tmp_path / "a/b/c/later.md")


def test_what_appears_while_a_new_directory_is_armed_is_armed_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory is watched first and listed second; the other way round this one would be heard of by nobody."""
    real, add = DirectoryEvents._add, list[str]()

    def slow(self: DirectoryEvents, place: object, path: str) -> None:
        real(self, place, path)  # type: ignore[arg-type]
        if path.endswith("new") and not add:
            add.append(path)
            plant(tmp_path / "new/late", {"SKILL.md": "x"})

    with armed(tmp_path) as events:
        monkeypatch.setattr(DirectoryEvents, "_add", slow)
        (tmp_path / "new").mkdir()
        until(events, tmp_path / "new")
        assert str(tmp_path / "new/late") in paths(events)


def test_what_moves_is_heard_of_under_its_new_name_only(tmp_path: Path) -> None:
    root, outside = plant(tmp_path / "root", skills("one/deep", "two")), tmp_path / "outside"
    with armed(root) as events:
        (root / "one").rename(root / "three")
        until(events, root / "one", root / "three")
        assert paths(events) == {str(root / path) for path in ("", "three", "three/deep", "two")}
        (root / "three/deep/SKILL.md").write_text("x")
        assert until(events, root / "three/deep/SKILL.md") == {str(root / "three/deep/SKILL.md")}
        (root / "three").rename(outside)
        until(events, root / "three")
        assert watches(events) == 2
        (outside / "deep/SKILL.md").write_text("y")
        (root / "two/SKILL.md").write_text("y")
        assert until(events, root / "two/SKILL.md") == {str(root / "two/SKILL.md")}


def test_a_directory_that_is_replaced_is_watched_anew(tmp_path: Path) -> None:
    plant(tmp_path, skills("one"))
    with armed(tmp_path) as events:
        for number in range(5):
            shutil.rmtree(tmp_path / "one")
            plant(tmp_path, skills("one"))
            until(events, tmp_path / "one")
            while str(tmp_path / "one") not in paths(events):
                assert events.wait(DEADLINE)
            (tmp_path / f"one/{number}.md").write_text("x")
            until(events, tmp_path / f"one/{number}.md")
        while events.wait(0.1):
            pass
        assert watches(events) == len(events._places) == 2


def test_an_event_costs_the_same_however_many_directories_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted in calls to the kernel and in listings."""

    def calls(number: int) -> list[str]:
        root, out = plant(tmp_path / str(number), skills(*(f"s{each}" for each in range(number)))), list[str]()
        with armed(root) as events:
            real_add, real_scandir = events._notify.add, os.scandir
            monkeypatch.setattr(events._notify, "add", lambda *a: out.append("watch") or real_add(*a))
            monkeypatch.setattr(os, "scandir", lambda *a: out.append("list") or real_scandir(*a))
            (root / "s1/SKILL.md").write_text("x")
            (root / "later").mkdir()
            (root / "s2").rename(root / "moved")
            until(events, root / "s1/SKILL.md", root / "later", root / "moved")
            monkeypatch.undo()
        return out

    assert calls(10) == calls(400) == ["watch", "list"] * 2


def test_more_events_than_the_system_keeps_are_said_to_be_lost(tmp_path: Path) -> None:
    plant(tmp_path, {"one/a": "x", "one/b": "x"})
    most = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    with armed(tmp_path) as events:
        for _ in range(most // 2 + 10):
            os.utime(tmp_path / "one/a")
            os.utime(tmp_path / "one/b")
        with pytest.raises(WatchLostError):
            events.wait(DEADLINE)


def test_a_root_that_goes_or_moves_is_said_to_be_lost(tmp_path: Path) -> None:
    root = plant(tmp_path / "root", skills("one"))
    for end in (lambda: root.rename(tmp_path / "away"), lambda: shutil.rmtree(tmp_path / "away")):
        with armed(root if root.exists() else tmp_path / "away") as events:
            end()
            with pytest.raises(WatchLostError):
                until(events, tmp_path / "nothing")


def test_roots_that_are_absent_are_passed_over_and_the_stop_ends_a_wait(tmp_path: Path) -> None:
    stop = threading.Event()
    with closing(DirectoryEvents([str(tmp_path / "absent")], 12, stop, hidden=False)) as events:
        events.enter(str(tmp_path / "absent"), "")
        events.check()
        assert watches(events) == 0
        stop.set()
        assert events.wait(DEADLINE * 10) == set()


@pytest.mark.parametrize("count", [1, 3, 9])
def test_the_places_in_a_directory_are_found_by_name_however_many_there_are(count: int) -> None:
    above = _Place("/top", None)
    places = [_Place(f"d{number}", above) for number in range(count)]
    for place in places:
        above.put(place)
    assert [above.child(place.name) for place in places] == above.children() == places
    again = _Place("d0", above)
    above.put(again)
    assert above.child("d0") is again and len(above.children()) == count
    above.drop(places[0])
    assert above.child("d0") is again, "another one has its name by now"
    for place in (again, *places[1:]):
        above.drop(place)
    assert above.children() == [] and above.child("d0") is None
