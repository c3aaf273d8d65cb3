"""File watcher: arming, notifications, lost events, missing roots, start and stop."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import anyio
import pytest

from catalog.forest import DEADLINE, ChangeListener, Patch, skill_md, skills, write_files
from catalog.watched import LogQueue, ScriptedEvents, edit_and_wait, has_version, serves, watching, write_version
from mcp_skills_server.catalog import disk
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.scan import Scan
from mcp_skills_server.catalog.watch import Watcher, events
from mcp_skills_server.catalog.watch import watcher as module
from mcp_skills_server.catalog.watch.events import DirectoryEvents
from mcp_skills_server.errors import StaleFileError


@pytest.fixture(params=["directories", "trees"])
def event_source(request: pytest.FixtureRequest, monkeypatch: Patch) -> str:
    """Watch single directories, as on Linux, or whole trees, as elsewhere."""
    if request.param == "trees":
        monkeypatch.setattr(events, "_WATCHES_TREES", True)
    return request.param


@pytest.mark.usefixtures("event_source")
@pytest.mark.parametrize("moment", ["before", "after", "read"])
def test_edit_while_the_watch_is_armed_is_noticed(tmp_path: Path, monkeypatch: Patch, moment: str) -> None:
    """The edit comes before the directory is watched, before it is listed, or after the file was read."""
    write_files(tmp_path, skills("one"))
    real_enter, real_ingest, done = DirectoryEvents.enter, disk.ingest, list[str]()

    def edit(now: str) -> None:
        if now == moment and not done:
            done.append(now)
            write_version(tmp_path, "one", 2)

    def enter(events: DirectoryEvents, top: str, location: str) -> None:
        if location == "one":
            edit("before")
        real_enter(events, top, location)
        if location == "one":
            edit("after")

    def ingest(*arguments: Any) -> Any:
        read = real_ingest(*arguments)
        edit("read")
        return read

    monkeypatch.setattr(DirectoryEvents, "enter", enter)
    monkeypatch.setattr(disk, "ingest", ingest)
    registry = Registry([tmp_path])
    listener = ChangeListener(registry)
    with Watcher(registry):
        listener.until(has_version("one", 2))
    assert done == [moment]


@pytest.mark.usefixtures("event_source")
def test_edits_and_new_moved_or_deleted_directories_are_noticed(tmp_path: Path) -> None:
    root = write_files(tmp_path / "root", skills("one", "deep/down/five"))
    write_files(tmp_path / "outside", skills("two/three"))
    with watching(root) as (_, listener):
        edit_and_wait(listener, root, "deep/down/five", 2)
        edit_and_wait(listener, root, "deep/down/five", 3)
        shutil.rmtree(root / "deep")
        listener.until(serves("one"))
        write_files(root, {"one/.SKILL.md.tmp": skill_md("one", "version: 2")})
        (root / "one/.SKILL.md.tmp").rename(root / "one/SKILL.md")
        listener.until(has_version("one", 2))
        write_files(root, skills("acme/new") | {f"acme/new/a/b/c/{number}": "x" for number in range(200)})
        listener.until(lambda found: len(getattr(found.snapshot.skills.get("acme/new"), "files", ())) == 201)
        assert len(listener.all) < 12, "a burst of writes causes few notifications"
        shutil.rmtree(root / "acme")
        listener.until(serves("one"))
        (tmp_path / "outside/two").rename(root / "two")
        listener.until(serves("one", "two/three"))
        (root / "two").rename(root / "four")
        listener.until(serves("four/three", "one"))
        edit_and_wait(listener, root, "four/three", 2)
        (root / "four").rename(tmp_path / "outside/four")
        listener.until(serves("one"))


@pytest.mark.usefixtures("event_source")
def test_root_that_is_recreated_at_once_stays_watched(tmp_path: Path) -> None:
    """The new directory may have the inode of the old one, but the old watch reports nothing of it."""
    root = write_files(tmp_path / "root", skills("one"))
    with watching(root) as (_, listener):
        shutil.rmtree(root)
        write_files(root, skills("two"))
        listener.until(serves("two"))
        edit_and_wait(listener, root, "two", 2)
        edit_and_wait(listener, root, "two", 3)


@pytest.mark.usefixtures("event_source")
def test_missing_root_is_logged_and_watched_again_once_it_is_back(tmp_path: Path, log: LogQueue) -> None:
    root = write_files(tmp_path / "root", skills("one"))
    write_files(tmp_path / "other", skills("two"))
    with watching(root, tmp_path / "other") as (registry, listener):
        root.rename(tmp_path / "away")
        assert "the root cannot be read" in log.next()
        assert serves("one", "two")(registry)
        edit_and_wait(listener, tmp_path / "other", "two", 2)
        write_version(tmp_path / "away", "one", 2)
        (tmp_path / "away").rename(root)
        listener.until(has_version("one", 2))
        edit_and_wait(listener, root, "one", 3)


@pytest.mark.usefixtures("event_source")
def test_root_that_is_missing_at_start_is_served_once_it_appears(tmp_path: Path) -> None:
    root = write_files(tmp_path / "root", skills("one"))
    registry = Registry([root])
    Watcher(registry).stop()  # may come before the start
    root.rename(tmp_path / "away")
    listener = ChangeListener(registry)
    with Watcher(registry):
        assert [problem.code for problem in registry.snapshot.problems] == ["root-missing"]
        (tmp_path / "away").rename(root)
        listener.until(serves("one"))


def test_polling_reports_edits_and_changes_that_a_read_found(tmp_path: Path) -> None:
    with watching(write_files(tmp_path, skills("one")), poll=True) as (registry, listener):
        with registry._lock:  # otherwise the poll may find the edit first
            write_version(tmp_path, "one", 2)
            with pytest.raises(StaleFileError) as stale:
                registry.read(registry.snapshot.skills["one"].files["SKILL.md"])
            registry.rescan(stale.value.path)
        assert listener.next().after.keys() == {"one"}
        write_files(tmp_path, skills("two"))
        listener.until(serves("one", "two"))


def test_failed_watch_is_logged_once_and_armed_again(tmp_path: Path, monkeypatch: Patch, log: LogQueue) -> None:
    broken = threading.Event()
    broken.set()

    def open_events(*arguments: Any, **options: Any) -> Any:
        if broken.is_set():
            raise RuntimeError("unexpected")
        return DirectoryEvents(*arguments, **options)

    monkeypatch.setattr(module, "DirectoryEvents", open_events)
    with watching(write_files(tmp_path, skills("one"))) as (_, listener):
        assert "arming it again" in log.next()
        edit_and_wait(listener, tmp_path, "one", 2)
        broken.clear()
        assert "file events work again" in log.next()
        edit_and_wait(listener, tmp_path, "one", 3)
    assert log.empty()


@pytest.mark.parametrize("means", ["events", "polling", "polling for want of events"])
def test_folder_is_followed_again_after_scans_failed(
    tmp_path: Path, monkeypatch: Patch, log: LogQueue, means: str
) -> None:
    """An upgrade takes a module away that a scan imports late, for a moment."""
    if means == "polling for want of events":
        monkeypatch.setattr(module, "DirectoryEvents", Mock(side_effect=events.CannotWatchError("no events")))
    real_run, failed, is_away = Scan.run, threading.Semaphore(0), threading.Event()

    def run(scan: Scan, subtree: str) -> None:
        if is_away.is_set():
            failed.release()
            raise ModuleNotFoundError("No module named 'rules'")
        real_run(scan, subtree)

    monkeypatch.setattr(Scan, "run", run)
    with watching(write_files(tmp_path, skills("one")), poll=means == "polling") as (_, listener):
        is_away.set()
        write_version(tmp_path, "one", 2)
        for _ in range(4):
            assert failed.acquire(timeout=DEADLINE)
        while "arming it again" not in log.next():
            continue
        is_away.clear()
        listener.until(has_version("one", 2))
        edit_and_wait(listener, tmp_path, "one", 3)


def test_changes_of_non_utf8_names_are_not_logged(tmp_path: Path, log: LogQueue) -> None:
    with watching(write_files(tmp_path, skills("one"))) as (registry, listener):
        for number in (2, 3):
            Path(os.fsdecode(os.fsencode(tmp_path) + b"/one/\xff.md")).write_text(str(number))
            Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xfe%d" % number)).mkdir()
            edit_and_wait(listener, tmp_path, "one", number)
        assert [problem.code for problem in registry.snapshot.skills["one"].findings] == ["file-name"]
    assert log.empty()


def test_root_with_a_non_utf8_path_is_polled_and_logged_once(tmp_path: Path, log: LogQueue) -> None:
    root = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xfe"))
    write_files(root, skills("one"))
    with watching(root) as (_, listener):
        assert "need a path in UTF-8" in log.next()
        edit_and_wait(listener, root, "one", 2)
    assert log.empty()


def test_reconcile_finds_a_change_without_an_event(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(module, "DirectoryEvents", ScriptedEvents)
    with watching(write_files(tmp_path, skills("one")), reconcile=0.05) as (_, listener):
        edit_and_wait(listener, tmp_path, "one", 2)


@pytest.mark.skipif(sys.platform != "linux", reason="the queue of inotify")
def test_edit_is_found_after_an_inotify_queue_overflow(tmp_path: Path, monkeypatch: Patch) -> None:
    most = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    write_files(tmp_path, skills("one", "two"))
    real_run, scans = Scan.run, list[str]()

    def run(scan: Scan, subtree: str) -> None:
        real_run(scan, subtree)
        scans.append(subtree)
        if len(scans) == 1:
            for _ in range(most // 2 + 10):
                os.utime(tmp_path / "one/SKILL.md")
                os.utime(tmp_path / "two/SKILL.md")
            write_files(tmp_path, skills("three/four"))

    monkeypatch.setattr(Scan, "run", run)
    with watching(tmp_path) as (_, listener):
        listener.until(serves("one", "three/four", "two"))
        edit_and_wait(listener, tmp_path, "three/four", 2)


@pytest.mark.usefixtures("event_source")
def test_root_in_an_ignored_directory_of_another_root_is_watched(tmp_path: Path) -> None:
    write_files(tmp_path, skills("one", ".agents/skills/two"))
    with watching(tmp_path, tmp_path / ".agents/skills") as (_, listener):
        write_version(tmp_path, ".agents/skills/two", 2)
        listener.until(has_version("two", 2))


@pytest.mark.anyio
@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_async_start_does_not_block_the_event_loop_and_can_be_cancelled(
    tmp_path: Path, monkeypatch: Patch, is_cancelled: bool
) -> None:
    """The first scan waits for an event that only the event loop sets."""
    registry = Registry([write_files(tmp_path, skills("one"))])
    go_on, real_load = threading.Event(), registry.load
    monkeypatch.setattr(registry, "load", lambda *arguments: go_on.wait(DEADLINE) and real_load(*arguments))
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


UNSTOPPED = """
import sys
from mcp_skills_server import Registry, Watcher
registry = Registry(sys.argv[1:])
Watcher(registry).start()
assert registry.loaded.wait(20)
print("ends")
"""


def test_watcher_may_be_stopped_while_it_starts(tmp_path: Path, monkeypatch: Patch) -> None:
    watcher, start = Watcher(Registry([tmp_path])), threading.Thread.start

    def stop_first(thread: threading.Thread) -> None:
        watcher.stop()
        start(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", stop_first)
        watcher.start()
    watcher.stop(DEADLINE)


def test_unstopped_watcher_does_not_keep_its_process_alive(tmp_path: Path) -> None:
    command = [sys.executable, "-c", UNSTOPPED, str(write_files(tmp_path, skills("one")))]
    assert subprocess.run(command, capture_output=True, timeout=DEADLINE, check=True).stdout == b"ends\n"


@pytest.mark.usefixtures("event_source")
def test_root_that_is_a_link_is_followed_to_its_new_target(tmp_path: Path) -> None:
    """git-sync and Kubernetes publish a folder by an atomic replace of one link."""
    for name in ("first", "second"):
        write_files(tmp_path / name, skills(f"from-{name}"))
        (tmp_path / f"to-{name}").symlink_to(name)
    with watching(tmp_path / "to-first") as (_, listener):
        (tmp_path / "to-second").replace(tmp_path / "to-first")
        changes = listener.next()
        assert (changes.before.keys(), changes.after.keys()) == ({"from-first"}, {"from-second"})
        write_version(tmp_path, "second/from-second", 2)
        listener.until(has_version("from-second", 2))
