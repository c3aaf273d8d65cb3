"""The first look: what it finds by the names of directories, and where it ends."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from mcp_skills_server.catalog import disk
from mcp_skills_server.catalog import outline as module
from mcp_skills_server.catalog.index import Index
from mcp_skills_server.catalog.outline import Outline, outline
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.roots import Limits
from mcp_skills_server.format import frontmatter
from mcp_skills_server.model import Skill, Standing

from .forest import loaded, plant, skill_md, skills

PLENTY = 100_000


class Clock:
    """Goes on by a step whenever it is asked."""

    def __init__(self, step: float) -> None:
        self._now = 0.0
        self._step = step

    def __call__(self) -> float:
        self._now += self._step
        return self._now


def as_they_come(found: Sequence[Skill]) -> Iterable[Skill]:
    """The order of paths."""
    return found


def look(*roots: Path, limits: Limits | None = None, characters: int = PLENTY, step: float = 0.0) -> Outline:
    """What a first look finds; each question to the clock takes `step` seconds."""
    registry = Registry(roots, limits)
    return outline(registry.roots, registry.limits, as_they_come, characters, now=Clock(step))


def test_it_finds_what_the_scan_finds_but_for_skills_in_skills(tmp_path: Path) -> None:
    plant(tmp_path / "one", skills("a", "acme/billing/refunds", "kit", "kit/sub") | {"kit/x/y": "", "no/skill.txt": ""})
    plant(tmp_path / "two", skills("b", "acme/other", "kit/below", "a") | {".git/x/SKILL.md": skill_md("x")})
    plant(tmp_path / "three", {"SKILL.md": skill_md("three")} | skills("inner"))
    roots = [tmp_path / name for name in ("one", "two", "three")]
    found, scanned = look(*roots), loaded(*roots).snapshot
    assert not found.cut
    assert scanned.skills.keys() - found.snapshot.skills.keys() == {"kit/sub", "three/inner"}
    assert found.snapshot.skills.keys() == found.read <= scanned.skills.keys()
    for path, skill in found.snapshot.skills.items():
        there = scanned.skills[path]
        assert (skill.root, skill.directory, skill.name) == (there.root, there.directory, there.name)
        assert skill.frontmatter == there.frontmatter


def test_skills_that_lie_too_deep_are_not_seen_and_nothing_ignored_is_entered(tmp_path: Path) -> None:
    plant(tmp_path, skills("a/b", "a/b2/c", "node_modules/x", ".hidden/x", "__pycache__/y"))
    assert list(look(tmp_path, limits=Limits(depth=2)).snapshot.skills) == ["a/b"]


def test_links_are_not_followed(tmp_path: Path) -> None:
    plant(tmp_path / "root", skills("a"))
    plant(tmp_path / "other", skills("secret") | {"SKILL.md": skill_md("private-name")})
    os.symlink(tmp_path / "other", tmp_path / "root" / "link")
    (tmp_path / "root" / "b").mkdir()
    os.symlink(tmp_path / "other" / "SKILL.md", tmp_path / "root" / "b" / "SKILL.md")
    found = look(tmp_path / "root")
    assert sorted(found.snapshot.skills) == ["a", "b"] and found.read == {"a"}
    assert "private-name" not in [skill.name for skill in found.snapshot.skills.values()]


def test_only_as_many_are_read_as_a_text_can_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(tmp_path, skills(*(f"skill-{number:03}" for number in range(300))))
    read: list[str] = []
    real = frontmatter.parse

    def parse(raw: bytes) -> frontmatter.Document:
        found = real(raw)
        read.append(str((found.frontmatter or {})["name"]))
        return found

    monkeypatch.setattr(frontmatter, "parse", parse)
    found = look(tmp_path, characters=100)
    assert len(found.snapshot.skills) == 300
    assert found.read == {*read} == {f"skill-{number:03}" for number in range(10)}


def test_what_cannot_be_read_is_no_skill(tmp_path: Path) -> None:
    plant(
        tmp_path,
        skills("a") | {"broken/SKILL.md": "no frontmatter", "large/SKILL.md": skill_md("large", body="x" * 999)},
    )
    found = look(tmp_path, limits=Limits(skill_md=500))
    standing = {path: skill.standing for path, skill in found.snapshot.skills.items()}
    assert standing == {"a": Standing.LENIENT, "broken": Standing.UNUSABLE, "large": Standing.UNUSABLE}


def test_the_time_bounds_the_walk_and_says_so(tmp_path: Path) -> None:
    plant(tmp_path, skills(*(f"group-{number}/skill-{number}" for number in range(50))))
    # Each directory that is entered costs one question: the root and four groups.
    found = look(tmp_path, step=module.WALK_S / 6)
    assert found.cut and 3 <= len(found.snapshot.skills) <= 5
    assert not look(tmp_path, step=module.WALK_S / 60).cut


@pytest.mark.parametrize(("step", "read"), [(module.READ_S * 2, module.LEAST_READ), (module.READ_S / 80.5, 80)])
def test_the_time_bounds_the_reading_but_some_are_read_on_the_busiest_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: float, read: int
) -> None:
    monkeypatch.setattr(module, "WALK_S", 1_000.0)
    plant(tmp_path, skills(*(f"skill-{number:03}" for number in range(120))))
    found = look(tmp_path, step=step)
    assert not found.cut and len(found.snapshot.skills) == 120
    assert len(found.read) == read


def test_a_skill_costs_one_question_to_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(tmp_path, skills(*(f"skill-{number:04}" for number in range(301))))
    opened: list[object] = []
    real = os.scandir

    def scandir(place: Any) -> Any:
        opened.append(place)
        return real(place)

    monkeypatch.setattr(os, "scandir", scandir)
    registry = Registry([tmp_path])
    opened.clear()
    assert len(outline(registry.roots, registry.limits, as_they_come, 0, now=Clock(0)).snapshot.skills) == 301
    assert len(opened) == 1


def remembered(top: Path, cache: Path) -> Registry:
    """A registry over what another left of this root."""
    first = loaded(top, index=Index(cache, least=1))
    for skill in first.snapshot.skills.values():
        first.hash_files(skill)
    first.keep_index(lambda: False)
    return Registry([top], index=Index(cache, least=1))


def test_what_an_earlier_process_knew_stands_for_what_the_time_does_not_suffice_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And for the reading of what has not changed. Nothing is named that no scan would look for now."""
    monkeypatch.setattr(disk, "_SETTLED_NS", 0)
    top = plant(tmp_path / "root", skills("a", "b", "c/d", ".hidden/e"))
    cache = tmp_path / "cache"
    loaded_hidden = loaded(top, limits=Limits(hidden=True), index=Index(cache, least=1))
    loaded_hidden.keep_index(lambda: False)
    registry = Registry([top], index=Index(cache, least=1))
    monkeypatch.setattr(disk, "read", lambda *_: pytest.fail("a file was read"))
    for step in (0.0, 1.0):  # in time, and out of it at once
        found = outline(registry.roots, registry.limits, as_they_come, PLENTY, now=Clock(step), index=registry.index)
        assert (sorted(found.snapshot.skills), sorted(found.read), found.cut) == ([*"ab", "c/d"], [*"ab", "c/d"], False)


def test_of_what_an_earlier_process_knew_only_that_is_said_which_is_still_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "_SETTLED_NS", 0)
    top = plant(tmp_path / "root", skills("a", "b"))
    registry = remembered(top, tmp_path / "cache")
    plant(top, {"b/SKILL.md": skill_md("b", "version: 2"), **skills("new")})
    (top / "a" / "SKILL.md").unlink()
    found = outline(registry.roots, registry.limits, as_they_come, PLENTY, now=Clock(0), index=registry.index)
    assert sorted(found.read) == ["b", "new"]
    assert found.snapshot.skills["b"].frontmatter["version"] == 2


def test_a_root_that_went_is_an_empty_one(tmp_path: Path) -> None:
    plant(tmp_path / "root", skills("a"))
    registry = Registry([tmp_path / "root"])
    (tmp_path / "root").rename(tmp_path / "gone")
    assert not outline(registry.roots, registry.limits, as_they_come, PLENTY).snapshot.skills


def test_one_directory_of_very_many_takes_no_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """10.11: the time was looked at between directories alone; 60,000 folders in one took 1.3 s of an allowed 0.15."""
    for number in range(500):
        (tmp_path / f"d{number}").mkdir()
    looked: list[object] = []
    real = os.stat
    monkeypatch.setattr(os, "stat", lambda path, **more: looked.append(path) or real(path, **more))
    assert look(tmp_path, step=module.WALK_S / 3.5).cut
    assert len([path for path in looked if str(path).endswith("/SKILL.md")]) <= 4 * 50
