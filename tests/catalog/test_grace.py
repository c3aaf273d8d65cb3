"""What was whole stands for a moment while a folder is followed: skills whose SKILL.md has become worse."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from catalog.following import watching
from catalog.forest import Clock, Patch, Told, codes, loaded, plant, served, skill_md, skills
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.scan import QUIET_S
from mcp_skills_server.model import SKILL_MD
from tables import each_row


@pytest.fixture
def clock(monkeypatch: Patch) -> Clock:
    return Clock(monkeypatch)


def followed(top: Path) -> Registry:
    registry = loaded(top)
    registry.followed = True
    return registry


def test_a_state_counts_when_it_has_lasted(tmp_path: Path, clock: Clock) -> None:
    registry = followed(plant(tmp_path, skills("a")))
    for text in ("", "---\n"):  # it is still being written
        plant(tmp_path, {"a/SKILL.md": text})
        assert not registry.refresh()
        clock.now += QUIET_S * 0.9
        registry.settle()
        assert served(registry) == ["a"]
    clock.now += QUIET_S * 0.2
    registry.settle()
    assert served(registry) == []


def test_a_folder_that_goes_while_its_skill_is_kept_takes_it_along(tmp_path: Path, clock: Clock) -> None:
    registry = followed(plant(tmp_path, skills("a", "b")))
    (tmp_path / "a/SKILL.md").unlink()
    assert not registry.refresh()
    shutil.rmtree(tmp_path / "a")
    assert registry.refresh([str(tmp_path / "a")]).before.keys() == {"a"}
    clock.now += QUIET_S
    registry.settle()
    assert served(registry) == ["b"]


@each_row("torn", ["", "---\nname: a\n", "---\nname: a\ndescription: [\n---\n", "---\nname: b\n---\n", None])
def test_a_skill_stands_while_its_skill_md_is_torn_and_falls_when_it_stays_so(tmp_path: Path, torn: str | None) -> None:
    with watching(plant(tmp_path, skills("a", "a/inner", "b"))) as (registry, seen):
        before = registry.snapshot.skills["a"]
        if torn is None:
            (tmp_path / "a/SKILL.md").unlink()
        else:
            plant(tmp_path, {"a/SKILL.md": torn})
        assert not registry.refresh() and not registry.refresh([str(tmp_path / "a/SKILL.md")])
        assert registry.snapshot.skills["a"] is before and codes(registry) == []
        assert dict(seen.next().before)["a"] is before
        assert served(registry) == ["a/inner", "b"]


def test_without_a_watcher_each_look_shows_what_is_there(tmp_path: Path) -> None:
    registry = loaded(plant(tmp_path, skills("a")))
    (tmp_path / "a/SKILL.md").unlink()
    assert not registry.rescan(str(tmp_path / "a/SKILL.md")), "a reader may come while an editor writes"
    assert registry.refresh().before.keys() == {"a"}


def test_a_skill_that_is_whole_again_was_never_gone(tmp_path: Path, clock: Clock) -> None:
    registry = followed(plant(tmp_path, skills("a")))
    seen = Told(registry)
    for text in ("", "---\n", skill_md("a", "version: 2")):
        plant(tmp_path, {"a/SKILL.md": text})
        registry.refresh([str(tmp_path / "a/SKILL.md")])
        assert served(registry) == ["a"]
    clock.now += QUIET_S
    registry.settle()
    (changes,) = seen.all
    assert registry.snapshot.skills["a"].frontmatter["version"] == 2
    assert changes.files == {("a", SKILL_MD)}


def test_a_root_that_is_a_skill_keeps_its_name_and_the_paths_below(tmp_path: Path) -> None:
    registry = followed(plant(tmp_path / "r", {"SKILL.md": skill_md("top")} | skills("in")))
    (tmp_path / "r/SKILL.md").unlink()
    assert not registry.refresh()
    assert list(registry.snapshot.skills) == ["top", "top/in"]


def test_a_folder_that_is_gone_takes_its_skill_along_and_what_was_broken_before_is_not_held(tmp_path: Path) -> None:
    registry = followed(plant(tmp_path, skills("a", "b") | {"c/SKILL.md": "x"}))
    shutil.rmtree(tmp_path / "a")
    plant(tmp_path, {"c/SKILL.md": "y\0"})
    registry.refresh([str(tmp_path / "a"), str(tmp_path / "c")])
    assert served(registry) == ["b"] and codes(registry) == ["nul-byte"]
