"""A lone edit is over soon, a burst when it has been quiet for a while: one notification of each kind."""

from __future__ import annotations

import subprocess
import threading
from collections import Counter
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from catalog.following import Scripted, edit, version, watching
from catalog.forest import DEADLINE, Patch, plant, skills
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.watch import watcher as module
from mcp_skills_server.catalog.watch.watcher import Burst
from mcp_skills_server.errors import StaleFileError
from mcp_skills_server.model import Changes
from tables import each_row
from wire import Era, Wire, WireError, serving, write_skill

QUIET = 1.0
"""Seconds without a notification after which no more is expected."""
KINDS = {"skills/list_changed", "resources/list_changed", "tools/list_changed", "prompts/list_changed"}


def git(top: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=Somebody", "-c", "user.email=somebody@example.org"]
    subprocess.run(["git", "-C", str(top), *identity, *arguments], check=True, capture_output=True)


def write(top: Path, text: str) -> None:
    for number in range(20):
        files = {f"references__{each}_md": f"{text} {number} {each}\n" * 20 for each in range(9)}
        write_skill(top / f"skill-{number}", description=f"The {text} of {number}.", **files)


def heard(wire: Wire) -> dict[str, int]:
    out: Counter[str] = Counter()
    while True:
        try:
            out[wire.notification(QUIET)["method"].removeprefix("notifications/")] += 1
        except Empty:
            return dict(out)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git(tmp_path, "init", "--quiet", "--initial-branch", "one")
    for branch in ("one", "two"):
        write(tmp_path, branch)
        git(tmp_path, "checkout", "-q", "-B", branch)
        git(tmp_path, "add", ".")
        git(tmp_path, "commit", "-q", "-m", branch)
    return tmp_path


def test_a_checkout_of_200_files_is_one_notification_of_each_kind(repository: Path, era: Era) -> None:
    with serving(repository, era=era) as wire:
        wire.request("skills/list")
        kinds = KINDS
        if era == "modern":
            wire.listen(skillsListChanged=True, resourcesListChanged=True, toolsListChanged=True)
            kinds = KINDS - {"prompts/list_changed"}
        heard(wire)
        for branch in ("one", "two"):
            git(repository, "checkout", "-q", branch)
            assert heard(wire) == dict.fromkeys(kinds, 1)


def test_a_client_that_reads_during_a_burst_hears_of_it_once_all_the_same(repository: Path) -> None:
    """Each read of a file that has changed makes the server look again; that is no reason to tell of it by itself."""
    with serving(repository) as wire:
        wire.request("skills/list")
        heard(wire)
        over = threading.Event()

        def read() -> None:
            while not over.is_set():
                for number in range(20):
                    with suppress(WireError):
                        wire.request("resources/read", {"uri": f"skill://skill-{number}/SKILL.md"})

        reader = threading.Thread(target=read)
        reader.start()
        try:
            git(repository, "checkout", "-q", "one")
            assert heard(wire) == dict.fromkeys(KINDS, 1)
        finally:
            over.set()
            reader.join(DEADLINE)


def test_what_a_reader_found_is_told_though_no_event_tells_of_it(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(module, "DirectoryEvents", Scripted)
    plant(tmp_path, skills("one"))
    with watching(tmp_path) as (registry, seen):
        edit(tmp_path, "one", 2)
        with pytest.raises(StaleFileError) as stale:
            registry.read(registry.snapshot.skills["one"].files["SKILL.md"])
        registry.rescan(stale.value.path)
        assert registry.snapshot.skills["one"].frontmatter["version"] == 2
        assert seen.next().after.keys() == {"one"}


def test_a_burst_with_pauses_is_one_look_and_a_lone_edit_after_it_another(tmp_path: Path, monkeypatch: Patch) -> None:
    script = [(5.0, "a/x"), (5.01, "b/x"), (5.1, "c/x"), (5.3, "d/x"), (5.5, "e/x"), (8.0, "a/x")]
    monkeypatch.setattr(Scripted, "script", script)
    monkeypatch.setattr(Scripted, "now", 0.0)
    monkeypatch.setattr(module, "DirectoryEvents", Scripted)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: Scripted.now))
    registry, looks = Registry([plant(tmp_path, skills("a"))]), SimpleQueue[tuple[float, int]]()
    real = registry.refresh

    def refresh(paths: Any = None, **options: Any) -> Changes:
        if paths is not None:
            looks.put((round(Scripted.now, 2), len(paths)))
        return real(paths, **options)

    monkeypatch.setattr(registry, "refresh", refresh)
    with module.Watcher(registry):
        assert [looks.get(timeout=DEADLINE) for _ in range(2)] == [(5.75, 5), (8.04, 1)]


def test_an_edit_that_follows_closely_on_a_report_waits_for_more(tmp_path: Path, monkeypatch: Patch) -> None:
    """Many slow edits are the first one, at once, and the rest together."""
    made = Mock(wraps=Burst)
    monkeypatch.setattr(module, "Burst", made)
    monkeypatch.setattr(module, "_CALM_S", DEADLINE)
    with watching(plant(tmp_path, skills("one"))) as (_, seen):
        for number in (2, 3):
            edit(tmp_path, "one", number)
            seen.until(version("one", number))
    assert [each.kwargs["lone"] for each in made.call_args_list] == [True, False]


STEP, QUIET_STEP, LONGEST = 0.04, 0.25, 3.0


def due(burst: Burst) -> float:
    return round(burst.deadline() - 100.0, 6)


@each_row(("wait", "paths"), [
    (STEP, ["one/SKILL.md"]), (STEP, ["one/SKILL.md", "one/SKILL.md.tmp", "one/SKILL.md.bak"]),
    (STEP, ["one", "one/SKILL.md", "one/references", "one/references/a.md"]), (STEP, ["old", "new"]),
    (STEP, ["one", *(f"one/{number}.md" for number in range(7))]), (QUIET_STEP, ["one/SKILL.md", "two/SKILL.md"]),
    (QUIET_STEP, ["one/SKILL.md", "../q/one/SKILL.md"]), (QUIET_STEP, [f"one/{number}.md" for number in range(4)]),
    (QUIET_STEP, ["one", *(f"one/{number}.md" for number in range(8))]),
])  # fmt: skip
def test_a_save_a_small_skill_or_a_rename_is_lone_and_more_waits_for_quiet(wait: float, paths: list[str]) -> None:
    assert due(Burst([f"/r/{path}" for path in paths], 100.0)) == wait
    assert due(Burst([f"/r/{path}" for path in paths], 100.0, lone=False)) == QUIET_STEP, "closely on a report"


def test_each_event_begins_the_quiet_anew_and_a_burst_stays_one_and_is_cut() -> None:
    burst = Burst(["/r/one/SKILL.md"], 100.0)
    for paths, now, over in (
        ([], 100.03, STEP),
        (["/r/one/SKILL.md"], 100.03, 0.03 + STEP),
        (["/r/two/SKILL.md"], 100.05, 0.05 + QUIET_STEP),
        (["/r"], 100.06, 0.06 + QUIET_STEP),  # its top directory, with which all of it would look like one directory
    ):
        burst.add(paths, now)
        assert due(burst) == pytest.approx(over)
    now = 100.0
    while burst.deadline() > now and now < 200.0:
        now += 0.01
        burst.add(["/r/one/SKILL.md", "/r/two/SKILL.md"], now)
    assert now == pytest.approx(100.0 + LONGEST, abs=0.02)
