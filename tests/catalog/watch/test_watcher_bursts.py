"""Debounced bursts of file events: one notification of each kind."""

from __future__ import annotations

import subprocess
import threading
from collections import Counter
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest

from catalog.forest import DEADLINE, Patch, skills, write_files
from catalog.watched import ScriptedEvents
from dispatching import dispatching
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.watch import watcher as module
from mcp_skills_server.catalog.watch.watcher import Burst
from mcp_skills_server.model import Changes
from tables import each_row
from wire import NotifiedClient, WireError, write_skill

QUIET = 1.0
"""Seconds without a notification after which no more is expected."""
KINDS = {"skills/list_changed", "resources/list_changed", "tools/list_changed", "prompts/list_changed"}


def git(top: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=A User", "-c", "user.email=user@example.org"]
    subprocess.run(["git", "-C", str(top), *identity, *arguments], check=True, capture_output=True)


def notifications(wire: NotifiedClient) -> dict[str, int]:
    """Count the notifications by kind, until none comes for a while."""
    counts: Counter[str] = Counter()
    while True:
        try:
            counts[wire.notification(QUIET)["method"].removeprefix("notifications/")] += 1
        except Empty:
            return dict(counts)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Git repository with 20 skills of 10 files, which all differ between its two branches."""
    git(tmp_path, "init", "--quiet", "--initial-branch", "one")
    for branch in ("one", "two"):
        for number in range(20):
            files = {f"references__{each}_md": f"{branch} {number} {each}\n" for each in range(9)}
            write_skill(tmp_path / f"skill-{number}", description=f"Skill {number} of {branch}.", **files)
        git(tmp_path, "checkout", "-q", "-B", branch)
        git(tmp_path, "add", ".")
        git(tmp_path, "commit", "-q", "-m", branch)
    return tmp_path


def test_checkout_of_200_files_causes_one_notification_of_each_kind(repository: Path) -> None:
    with dispatching(repository, watch=True) as wire:
        wire.request("skills/list")
        notifications(wire)
        for branch in ("one", "two"):
            git(repository, "checkout", "-q", branch)
            assert notifications(wire) == dict.fromkeys(KINDS, 1)


def test_client_that_reads_during_a_burst_is_notified_once(repository: Path) -> None:
    """A read of a changed file causes a rescan, which must not cause a notification of its own."""
    with dispatching(repository, watch=True) as wire:
        wire.request("skills/list")
        notifications(wire)
        done = threading.Event()

        def read() -> None:
            while not done.is_set():
                for number in range(20):
                    with suppress(WireError):
                        wire.request("resources/read", {"uri": f"skill://skill-{number}/SKILL.md"})

        reader = threading.Thread(target=read)
        reader.start()
        try:
            git(repository, "checkout", "-q", "one")
            assert notifications(wire) == dict.fromkeys(KINDS, 1)
        finally:
            done.set()
            reader.join(DEADLINE)


def test_burst_with_pauses_causes_one_refresh_and_a_later_edit_another(tmp_path: Path, monkeypatch: Patch) -> None:
    script = [(5.0, "a/x"), (5.01, "b/x"), (5.1, "c/x"), (5.3, "d/x"), (5.5, "e/x"), (8.0, "a/x")]
    monkeypatch.setattr(ScriptedEvents, "script", script)
    monkeypatch.setattr(ScriptedEvents, "now", 0.0)
    monkeypatch.setattr(module, "DirectoryEvents", ScriptedEvents)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: ScriptedEvents.now))
    registry, refreshes = Registry([write_files(tmp_path, skills("a"))]), SimpleQueue[tuple[float, int]]()
    real_refresh = registry.refresh

    def refresh(paths: Any = None, **options: Any) -> Changes:
        if paths is not None:
            refreshes.put((round(ScriptedEvents.now, 2), len(paths)))
        return real_refresh(paths, **options)

    monkeypatch.setattr(registry, "refresh", refresh)
    with module.Watcher(registry):
        assert [refreshes.get(timeout=DEADLINE) for _ in range(2)] == [(5.75, 5), (8.04, 1)]


LONE_S, BURST_S, MAX_S = 0.04, 0.25, 3.0
"""Debounce after a lone edit and after a burst, and the longest burst."""


def wait_of(burst: Burst) -> float:
    """Return the seconds from the first event of a burst to its deadline."""
    return round(burst.deadline() - 100.0, 6)


@each_row(("wait", "paths"), [
    (LONE_S, ["one/SKILL.md"]),
    (LONE_S, ["one/SKILL.md", "one/SKILL.md.tmp", "one/SKILL.md.bak"]),
    (LONE_S, ["one", "one/SKILL.md", "one/references", "one/references/a.md"]),
    (LONE_S, ["old", "new"]),  # a rename
    (LONE_S, ["one", *(f"one/{number}.md" for number in range(7))]),  # 8 paths at most
    (BURST_S, ["one", *(f"one/{number}.md" for number in range(8))]),
    (BURST_S, ["one/SKILL.md", "two/SKILL.md"]),
    (BURST_S, ["one/SKILL.md", "../q/one/SKILL.md"]),
    (BURST_S, [f"one/{number}.md" for number in range(4)]),  # 3 in one directory at most
])  # fmt: skip
def test_burst_debounce_is_short_for_one_save_small_skill_or_rename(wait: float, paths: list[str]) -> None:
    paths = [f"/r/{path}" for path in paths]
    assert wait_of(Burst(paths, 100.0)) == wait
    assert wait_of(Burst(paths, 100.0, lone=False)) == BURST_S


def test_burst_deadline_moves_with_each_event_up_to_the_longest_burst() -> None:
    burst = Burst(["/r/one/SKILL.md"], 100.0)
    for paths, now, wait in (
        ([], 100.03, LONE_S),
        (["/r/one/SKILL.md"], 100.03, 0.03 + LONE_S),
        (["/r/two/SKILL.md"], 100.05, 0.05 + BURST_S),
        (["/r"], 100.06, 0.06 + BURST_S),  # alone, it would look like one new directory
    ):
        burst.add(paths, now)
        assert wait_of(burst) == pytest.approx(wait)
    now = 100.0
    while burst.deadline() > now and now < 200.0:
        now += 0.01
        burst.add(["/r/one/SKILL.md", "/r/two/SKILL.md"], now)
    assert now == pytest.approx(100.0 + MAX_S, abs=0.02)
