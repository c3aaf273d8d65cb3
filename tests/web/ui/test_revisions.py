"""What is remembered of changes: differences within a bound, names of files beyond it, and nothing of other skills."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.web.ui.pages import history
from mcp_skills_server.web.ui.pages.history import Revisions, SkillRevision
from web.http_wire import until
from wire import write_skill


@contextmanager
def remembering(folder: Path, path: str = "") -> Iterator[tuple[Registry, Callable[[str, int], list[SkillRevision]]]]:
    """A registry of a folder, and the changes of a skill once there are so many, with the files of `path` kept."""

    def changes(of: str, count: int) -> list[SkillRevision]:
        registry.refresh()
        until(lambda: len(found.of(of)) >= count)
        return found.of(of)

    with Registry([folder], quiet_s=0) as registry:
        found = Revisions(registry)
        found.start()
        until(lambda: not path or path in found._kept)
        yield registry, changes


def test_each_change_is_one_difference_the_newest_first_and_only_so_many_are_kept(
    skills: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "_MOST_REVISIONS", 3)
    write_skill(skills / "a", body="one\n")
    with remembering(skills, "a") as (_, changes):
        write_skill(skills / "a", body="two\n", scripts__run_sh="#!/bin/sh\n")
        (first,) = changes("a", 1)
        assert first.kind == "changed" and "script new: scripts/run.sh" in first.first
        assert "-one" in first.lines and "+two" in first.lines
        shutil.rmtree(skills / "a")
        assert [each.kind for each in changes("a", 2)] == ["removed", "changed"]
        write_skill(skills / "a", body="three\n")
        assert changes("a", 3)[0].kind == "added" and changes("refunds", 0) == []
        write_skill(skills / "a", body="fourth\n")
        until(lambda: "+fourth" in changes("a", 3)[0].lines)
        assert [each.kind for each in changes("a", 3)] == ["changed", "added", "removed"]


def test_what_was_not_kept_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "_MOST_KEPT", 0)
    write_skill(tmp_path / "a", body="one\n", old_md="x")
    write_skill(tmp_path / "a" / "inner")
    with remembering(tmp_path) as (_, changes):
        write_skill(tmp_path / "a", body="two\n", new_md="x")
        (tmp_path / "a" / "old.md").unlink()
        write_skill(tmp_path / "a" / "inner", body="other\n")
        (only,) = changes("a", 1)
    assert {*only.lines} == {"file added: new.md", "file removed: old.md", "file changed: SKILL.md"}


def test_a_skill_inside_of_another_is_no_part_of_its_history(tmp_path: Path) -> None:
    """Nor is one whose manifest is no file any more."""
    inner = write_skill(tmp_path / "outer" / "inner", body="secret one\n", notes_md="secret\n")
    write_skill(tmp_path / "outer", body="one\n")
    with remembering(tmp_path, "outer/inner") as (_, changes):
        write_skill(tmp_path / "outer", body="two\n")
        write_skill(inner, body="secret two\n", notes_md="secret too\n")
        changes("outer/inner", 1)
        (first,) = changes("outer", 1)
        (inner / "SKILL.md").unlink()
        (inner / "SKILL.md").mkdir()
        write_skill(tmp_path / "outer", body="three\n")
        second = changes("outer", 2)[0]
    assert "+two" in first.lines and "+three" in second.lines
    assert "secret" not in repr((first, second)) and "inner" not in repr((first, second))
