"""Over a real connection: one quiet burst is one notification of each kind."""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path
from queue import Empty
from typing import Any

import pytest

from catalog.following import edit, version, watching
from catalog.forest import DEADLINE, plant, skills
from mcp_skills_server.catalog import watch
from mcp_skills_server.catalog.burst import Burst
from wire import Era, Wire, serving, write_skill

QUIET = 1.0
"""Seconds without a notification after which no more is expected."""
KINDS = {"skills/list_changed", "resources/list_changed", "tools/list_changed", "prompts/list_changed"}


def git(top: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=Somebody", "-c", "user.email=somebody@example.org"]
    subprocess.run(["git", "-C", str(top), *identity, *arguments], check=True, capture_output=True)


def write(top: Path, text: str) -> None:
    """20 skills of 10 files."""
    for number in range(20):
        files = {f"references__{each}_md": f"{text} {number} {each}\n" * 20 for each in range(9)}
        write_skill(top / f"skill-{number}", description=f"The {text} of {number}.", **files)


def heard(wire: Wire) -> dict[str, int]:
    """How many notifications of each kind came until it was quiet."""
    out: Counter[str] = Counter()
    while True:
        try:
            out[wire.notification(QUIET)["method"].removeprefix("notifications/")] += 1
        except Empty:
            return dict(out)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with two branches, of which all 200 files differ."""
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


def test_an_edit_that_follows_closely_on_a_report_waits_for_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many slow edits are the first one, at once, and the rest together."""
    lone: list[bool] = []

    class Seen(Burst):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            lone.append(options["lone"])
            super().__init__(*arguments, **options)

    monkeypatch.setattr(watch, "Burst", Seen)
    monkeypatch.setattr(watch, "_CALM_S", DEADLINE)
    plant(tmp_path, skills("one"))
    with watching(tmp_path) as (_, told):
        for number in (2, 3):
            edit(tmp_path, "one", number)
            told.until(version("one", number))
    assert lone == [True, False]
