"""Jumps of the wall clock: no wait depends on it, and no edit is missed."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from catalog.forest import load_registry, skill_md, skills, write_files
from tables import each_row

YEAR_NS = 365 * 86_400 * 10**9


@each_row("jump", [-YEAR_NS, -60 * 10**9, 60 * 10**9, YEAR_NS])
def test_edit_is_found_after_clock_jump(jump: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = load_registry(write_files(tmp_path, skills("a")))
    real = time.time_ns
    for number in (2, 3):
        monkeypatch.setattr(time, "time_ns", lambda: real() + jump)
        write_files(tmp_path, {"a/SKILL.md": skill_md("a", f"version: {number}")})
        assert registry.refresh()
        assert registry.snapshot.skills["a"].frontmatter["version"] == number
        monkeypatch.undo()
        assert not registry.refresh()
