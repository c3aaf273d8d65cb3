"""The watch: armed beside the first scan, quiet when nothing changed, and alive whatever happens to its roots."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from catalog.following import Heard, Scripted, edit, hearing, serves, version, watching
from catalog.forest import DEADLINE, Patch, Told, plant, skill_md, skills
from mcp_skills_server.catalog import disk
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.roots import Limits
from mcp_skills_server.catalog.scan import Scan
from mcp_skills_server.catalog.watch import Watcher, events
from mcp_skills_server.catalog.watch import watcher as module
from mcp_skills_server.catalog.watch.events import DirectoryEvents
from mcp_skills_server.errors import StaleFileError


@pytest.fixture
def heard() -> Iterator[Heard]:
    with hearing() as handler:
        yield handler


@pytest.fixture(params=["directories", "trees"])
def source(request: pytest.FixtureRequest, monkeypatch: Patch) -> str:
    """Where events come from: the watch of this system, and that of the others, which works on Linux too."""
    if request.param == "trees":
        monkeypatch.setattr(events, "_WATCHES_TREES", True)
    return request.param


@pytest.mark.usefixtures("source")
@pytest.mark.parametrize("moment", ["before", "after", "read"])
def test_an_edit_while_the_watch_is_armed_is_not_lost(tmp_path: Path, monkeypatch: Patch, moment: str) -> None:
    """One just before the directory is watched, one before it is looked into, one after its file was read."""
    plant(tmp_path, skills("one"))
    enter, read, done = DirectoryEvents.enter, disk.ingest, list[str]()

    def write(now: str) -> None:
        if now == moment and not done:
            done.append(now)
            edit(tmp_path, "one", 2)

    def entered(events: DirectoryEvents, top: str, location: str) -> None:
        write("before" if location == "one" else "")
        enter(events, top, location)
        write("after" if location == "one" else "")

    monkeypatch.setattr(DirectoryEvents, "enter", entered)
    monkeypatch.setattr(disk, "ingest", lambda *given: (read(*given), write("read"))[0])
    registry = Registry([tmp_path])
    told = Told(registry)
    with Watcher(registry):
        told.until(version("one", 2))
    assert done == [moment]


@pytest.mark.usefixtures("source")
def test_edits_and_directories_that_come_move_and_go_show(tmp_path: Path) -> None:
    root = plant(tmp_path / "root", skills("one", "deep/down/five"))
    plant(tmp_path / "outside", skills("two/three"))
    with watching(root) as (_, seen):
        edit(root, "deep/down/five", 2)
        seen.until(version("deep/down/five", 2))
        edit(root, "deep/down/five", 3)
        seen.until(version("deep/down/five", 3))
        shutil.rmtree(root / "deep")
        seen.until(serves("one"))
        plant(root, {"one/.SKILL.md.tmp": skill_md("one", "version: 2")})
        (root / "one/.SKILL.md.tmp").rename(root / "one/SKILL.md")
        seen.until(version("one", 2))
        plant(root, skills("acme/new") | {f"acme/new/a/b/c/{number}": "x" for number in range(200)})
        seen.until(lambda found: len(getattr(found.snapshot.skills.get("acme/new"), "files", ())) == 201)
        assert len(seen.all) < 12, "a burst of writes is told in few words"
        shutil.rmtree(root / "acme")
        seen.until(serves("one"))
        (tmp_path / "outside/two").rename(root / "two")
        seen.until(serves("one", "two/three"))
        (root / "two").rename(root / "four")
        seen.until(serves("four/three", "one"))
        edit(root, "four/three", 2)
        seen.until(version("four/three", 2))
        (root / "four").rename(tmp_path / "outside/four")
        seen.until(serves("one"))


def test_touches_and_ignored_files_are_not_told(tmp_path: Path) -> None:
    plant(tmp_path, {"last/SKILL.md": skill_md("last")})
    with watching(tmp_path) as (registry, seen):
        plant(tmp_path, skills("one") | {"one/ref.md": "x"})
        seen.until(serves("last", "one"))
        while registry.snapshot.skills["one"].files.get("ref.md") is None:
            seen.next()
        so_far, one = len(seen.all), registry.snapshot.skills["one"]
        os.utime(tmp_path / "one/SKILL.md")
        os.utime(tmp_path / "one/ref.md")
        os.utime(tmp_path / "one")
        plant(tmp_path, {"one/.SKILL.md.swp": "x", "one/node_modules/x/SKILL.md": "x", ".git/HEAD": "x", "a~": "x"})
        plant(tmp_path, {"one/ref.md": "x", "loose.md": "x", "docs/README.md": "x"})
        edit(tmp_path, "last", 2)
        seen.until(version("last", 2))
        assert {path for changes in seen.all[so_far:] for path in changes.after} == {"last"}
        assert registry.snapshot.skills["one"] is one


@pytest.mark.usefixtures("source")
def test_a_root_that_is_deleted_and_made_anew_at_once_is_followed_on(tmp_path: Path) -> None:
    """The new directory may have the inode of the old one, and a watch on the old one hears nothing."""
    root = plant(tmp_path / "root", skills("one"))
    with watching(root) as (_, seen):
        shutil.rmtree(root)
        plant(root, skills("two"))
        seen.until(serves("two"))
        edit(root, "two", 2)
        seen.until(version("two", 2))
        edit(root, "two", 3)
        seen.until(version("two", 3))


@pytest.mark.usefixtures("source")
def test_a_root_that_is_away_for_a_while_is_told_and_followed_on(tmp_path: Path, heard: Heard) -> None:
    root = plant(tmp_path / "root", skills("one"))
    plant(tmp_path / "other", skills("two"))
    with watching(root, tmp_path / "other") as (registry, seen):
        root.rename(tmp_path / "away")
        assert "the root cannot be read" in heard.next()
        assert serves("one", "two")(registry)
        edit(tmp_path / "other", "two", 2)
        seen.until(version("two", 2))
        edit(tmp_path / "away", "one", 2)
        (tmp_path / "away").rename(root)
        seen.until(version("one", 2))
        edit(root, "one", 3)
        seen.until(version("one", 3))


@pytest.mark.usefixtures("source")
def test_a_root_that_is_gone_at_the_start_is_waited_for(tmp_path: Path) -> None:
    root = plant(tmp_path / "root", skills("one"))
    registry = Registry([root])
    root.rename(tmp_path / "away")
    seen = Told(registry)
    with Watcher(registry):
        assert [problem.code for problem in registry.snapshot.problems] == ["root-missing"]
        (tmp_path / "away").rename(root)
        seen.until(serves("one"))


def test_polling_tells_the_same_and_what_a_reader_found(tmp_path: Path) -> None:
    with watching(plant(tmp_path, skills("one")), poll=True) as (registry, seen):
        with registry._lock:  # or the poll may find it first
            edit(tmp_path, "one", 2)
            with pytest.raises(StaleFileError) as stale:
                registry.read(registry.snapshot.skills["one"].files["SKILL.md"])
            registry.rescan(stale.value.path)
        assert seen.next().after.keys() == {"one"}
        plant(tmp_path, skills("two"))
        seen.until(serves("one", "two"))


def test_a_watch_that_breaks_is_armed_again_and_told_once_and_the_folder_is_followed_meanwhile(
    tmp_path: Path, monkeypatch: Patch, heard: Heard
) -> None:
    broken = threading.Event()
    broken.set()

    def opened(*arguments: Any, **options: Any) -> Any:
        if broken.is_set():
            raise RuntimeError("not what anybody expects")
        return DirectoryEvents(*arguments, **options)

    monkeypatch.setattr(module, "DirectoryEvents", opened)
    with watching(plant(tmp_path, skills("one"))) as (_, seen):
        assert "arming it again" in heard.next()
        edit(tmp_path, "one", 2)
        seen.until(version("one", 2))
        broken.clear()
        assert "file events work again" in heard.next()
        edit(tmp_path, "one", 3)
        seen.until(version("one", 3))
    assert heard.records.empty()


def test_names_that_are_not_utf_8_may_change_and_nothing_is_logged(tmp_path: Path, heard: Heard) -> None:
    with watching(plant(tmp_path, skills("one"))) as (registry, seen):
        for number in (2, 3):
            Path(os.fsdecode(os.fsencode(tmp_path) + b"/one/\xff.md")).write_text(str(number))
            Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xfe%d" % number)).mkdir()
            edit(tmp_path, "one", number)
            seen.until(version("one", number))
        assert [problem.code for problem in registry.snapshot.skills["one"].findings] == ["file-name"]
    assert heard.records.empty()


def test_a_root_whose_path_is_not_utf_8_is_looked_at_every_so_often_and_said_once(tmp_path: Path, heard: Heard) -> None:
    root = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xfe"))
    plant(root, skills("one"))
    with watching(root) as (_, seen):
        assert "need a path in UTF-8" in heard.next()
        edit(root, "one", 2)
        seen.until(version("one", 2))
    assert heard.records.empty()


def test_what_no_event_told_of_is_found_by_the_reconcile(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(module, "DirectoryEvents", Scripted)
    with watching(plant(tmp_path, skills("one")), reconcile=0.05) as (_, seen):
        edit(tmp_path, "one", 2)
        seen.until(version("one", 2))


@pytest.mark.skipif(sys.platform != "linux", reason="the queue of inotify")
def test_an_edit_whose_event_was_dropped_because_too_many_came_is_found(tmp_path: Path, monkeypatch: Patch) -> None:
    most = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    plant(tmp_path, skills("one", "two"))
    real, tries = Scan.run, iter(range(100))

    def run(scan: Scan, part: str) -> None:
        real(scan, part)
        if next(tries) == 0:
            for _ in range(most // 2 + 10):
                os.utime(tmp_path / "one/SKILL.md")
                os.utime(tmp_path / "two/SKILL.md")
            plant(tmp_path, skills("three/four"))

    monkeypatch.setattr(Scan, "run", run)
    with watching(tmp_path) as (_, seen):
        seen.until(serves("one", "three/four", "two"))
        edit(tmp_path, "three/four", 2)
        seen.until(version("three/four", 2))


@pytest.mark.usefixtures("source")
def test_a_root_in_an_ignored_directory_of_another_root_is_followed(tmp_path: Path) -> None:
    plant(tmp_path, skills("one", ".agents/skills/two"))
    with watching(tmp_path, tmp_path / ".agents/skills") as (_, seen):
        edit(tmp_path, ".agents/skills/two", 2)
        seen.until(version("two", 2))


def test_a_watcher_follows_from_where_it_is_entered_to_the_end_and_may_be_stopped_at_any_time(tmp_path: Path) -> None:
    registry = Registry([plant(tmp_path, skills("one"))])
    Watcher(registry).stop()
    seen = Told(registry)
    with Watcher(registry) as watcher:
        assert serves("one")(registry)
        plant(tmp_path, skills("two"))
        seen.until(serves("one", "two"))
    watcher.stop(DEADLINE)
    assert watcher._thread is not None and not watcher._thread.is_alive()


@pytest.mark.anyio
@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_a_watcher_holds_no_event_loop_up_and_ends_when_its_start_is_cancelled(
    tmp_path: Path, monkeypatch: Patch, is_cancelled: bool
) -> None:
    """The first scan waits for something that only the event loop does."""
    registry = Registry([plant(tmp_path, skills("one"))])
    go_on, load = threading.Event(), registry.load
    monkeypatch.setattr(registry, "load", lambda *given: go_on.wait(DEADLINE) and load(*given))
    watcher = Watcher(registry)
    if is_cancelled:
        with anyio.move_on_after(0) as scope:
            await watcher.__aenter__()
        assert scope.cancelled_caught
        go_on.set()
    else:
        asyncio.get_running_loop().call_soon(go_on.set)
        async with watcher:
            assert serves("one")(registry)
    assert watcher._thread is not None
    watcher._thread.join(DEADLINE)
    assert not watcher._thread.is_alive()


STAYS = """
import sys
from mcp_skills_server import Registry, Watcher
registry = Registry(sys.argv[1:])
Watcher(registry).start()
assert registry.loaded.wait(20)
print("ends")
"""


def test_a_watcher_that_nobody_stops_keeps_no_process_alive(tmp_path: Path) -> None:
    command = [sys.executable, "-c", STAYS, str(plant(tmp_path, skills("one")))]
    assert subprocess.run(command, capture_output=True, timeout=DEADLINE, check=True).stdout == b"ends\n"


@pytest.mark.usefixtures("source")
def test_a_root_that_is_a_link_is_followed_to_where_it_leads_now(tmp_path: Path) -> None:
    """As git-sync and Kubernetes publish a folder: whole, by moving one link."""
    for name in ("first", "second"):
        plant(tmp_path / name, skills(f"from-{name}"))
        (tmp_path / f"to-{name}").symlink_to(name)
    with watching(tmp_path / "to-first") as (_, seen):
        (tmp_path / "to-second").replace(tmp_path / "to-first")
        changes = seen.next()
        assert (changes.before.keys(), changes.after.keys()) == ({"from-first"}, {"from-second"})
        edit(tmp_path, "second/from-second", 2)
        seen.until(version("from-second", 2))


@pytest.mark.usefixtures("source")
def test_edits_in_dot_folders_show_where_they_are_served(tmp_path: Path) -> None:
    """With `--hidden` the watch looks where the scan looks."""
    plant(tmp_path, {".curated/one/SKILL.md": skill_md("one")})
    with watching(tmp_path, limits=Limits(hidden=True)) as (_, seen):
        plant(tmp_path, {".curated/two/SKILL.md": skill_md("two")})
        seen.until(serves(".curated/one", ".curated/two"))
