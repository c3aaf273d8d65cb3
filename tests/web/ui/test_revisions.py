"""What is remembered of changes: differences within a bound, names of files beyond it, and nothing of other skills."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.web.ui.pages import history
from mcp_skills_server.web.ui.pages.history import Revisions, SkillRevision
from web.http_wire import until
from wire import write_skill


def wait(found: Revisions, path: str, count: int) -> list[SkillRevision]:
    """The changes of a skill, once there are so many."""
    until(lambda: len(found.of(path)) >= count)
    return found.of(path)


@contextmanager
def remembering(folder: Path, path: str | None) -> Iterator[tuple[Registry, Revisions]]:
    """A registry of a folder, and what is remembered of its changes once the skill of this path is read."""
    with Registry([folder], quiet_s=0) as registry:
        found = Revisions(registry)
        found.start()
        if path is not None:
            until(lambda: path in found._kept)
        yield registry, found


def test_each_change_is_one_difference_the_newest_first(tmp_path: Path) -> None:
    write_skill(tmp_path / "a", body="one\n")
    with remembering(tmp_path, "a") as (registry, found):
        write_skill(tmp_path / "a", body="two\n", scripts__run_sh="#!/bin/sh\n")
        registry.refresh()
        (first,) = wait(found, "a", 1)
        assert first.kind == "changed" and "script new: scripts/run.sh" in first.first
        assert "-one" in first.lines and "+two" in first.lines
        shutil.rmtree(tmp_path / "a")
        registry.refresh()
        assert [each.kind for each in wait(found, "a", 2)] == ["removed", "changed"]
        write_skill(tmp_path / "a", body="three\n")
        registry.refresh()
        assert wait(found, "a", 3)[0].kind == "added"
        assert found.of("b") == []


def test_what_was_not_kept_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "_MOST_KEPT", 0)
    write_skill(tmp_path / "a", body="one\n", old_md="x")
    write_skill(tmp_path / "a" / "inner")
    with remembering(tmp_path, None) as (registry, found):
        write_skill(tmp_path / "a", body="two\n", new_md="x")
        (tmp_path / "a" / "old.md").unlink()
        write_skill(tmp_path / "a" / "inner", body="other\n")
        registry.refresh()
        (only,) = wait(found, "a", 1)
    assert {*only.lines} == {"file added: new.md", "file removed: old.md", "file changed: SKILL.md"}


def test_a_skill_inside_of_another_is_no_part_of_its_history(tmp_path: Path) -> None:
    write_skill(tmp_path / "outer", body="one\n")
    write_skill(tmp_path / "outer" / "inner", body="secret one\n", notes_md="secret\n")
    with remembering(tmp_path, "outer/inner") as (registry, found):
        write_skill(tmp_path / "outer", body="two\n")
        write_skill(tmp_path / "outer" / "inner", body="secret two\n", notes_md="secret too\n")
        registry.refresh()
        wait(found, "outer/inner", 1)
        (outer,) = wait(found, "outer", 1)
    assert "+two" in outer.lines and not any("secret" in each for each in outer.lines)


def test_only_so_many_changes_are_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "_MOST_REVISIONS", 2)
    write_skill(tmp_path / "a", body="0\n")
    with remembering(tmp_path, "a") as (registry, found):
        for number in range(1, 5):
            write_skill(tmp_path / "a", body=f"{number}\n" * number)
            registry.refresh()
            until(lambda line=f"+{number}": found.of("a") and line in found.of("a")[0].lines)
        assert len(found.of("a")) == 2


def test_nor_is_one_whose_manifest_is_no_file_any_more(tmp_path: Path) -> None:
    write_skill(tmp_path / "a", body="one\n")
    inner = write_skill(tmp_path / "a" / "inner", secret_md="kept from whom reads a alone")
    with remembering(tmp_path, "a") as (registry, found):
        (inner / "SKILL.md").unlink()
        (inner / "SKILL.md").mkdir()
        write_skill(tmp_path / "a", body="two\n")
        registry.refresh()
        (made,) = wait(found, "a", 1)
        assert "inner" not in repr(made) and "kept from" not in repr(made)
