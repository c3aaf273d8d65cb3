"""Grace period of skills whose SKILL.md has become worse, in a registry that a watcher follows."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from catalog.forest import (
    ChangeListener,
    FakeClock,
    Patch,
    assert_served,
    load_registry,
    problem_codes,
    skill_md,
    skills,
    valid_paths,
    write_files,
)
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.scan import QUIET_S
from mcp_skills_server.model import SKILL_MD
from tables import each_row


@pytest.fixture
def clock(monkeypatch: Patch) -> FakeClock:
    return FakeClock(monkeypatch)


def followed(root: Path) -> Registry:
    """Return a loaded registry that defers changes, as under a watcher."""
    registry = load_registry(root)
    registry.follow()
    return registry


def test_grace_period_starts_anew_with_each_state_of_skill_md(tmp_path: Path, clock: FakeClock) -> None:
    registry = followed(write_files(tmp_path, skills("a")))
    for text in ("", "---\n"):
        write_files(tmp_path, {"a/SKILL.md": text})
        assert not registry.refresh()
        clock.now += QUIET_S * 0.9
        registry.settle()
        assert valid_paths(registry) == ["a"]
    clock.now += QUIET_S * 0.2
    registry.settle()
    assert valid_paths(registry) == []


def test_folder_deleted_during_the_grace_period_removes_its_skill(tmp_path: Path, clock: FakeClock) -> None:
    registry = followed(write_files(tmp_path, skills("a", "b")))
    (tmp_path / "a/SKILL.md").unlink()
    assert not registry.refresh()
    shutil.rmtree(tmp_path / "a")
    assert registry.refresh([str(tmp_path / "a")]).before.keys() == {"a"}
    clock.now += QUIET_S
    registry.settle()
    assert valid_paths(registry) == ["b"]


@each_row("torn", ["", "---\nname: a\n", "---\nname: a\ndescription: [\n---\n", "---\nname: b\n---\n", None])
def test_skill_with_torn_or_deleted_skill_md_has_a_grace_period(
    tmp_path: Path, torn: str | None, monkeypatch: Patch
) -> None:
    clock, registry = FakeClock(monkeypatch), followed(write_files(tmp_path, skills("a", "a/inner", "b")))
    before = registry.snapshot.skills["a"]
    if torn is None:
        (tmp_path / "a/SKILL.md").unlink()
    else:
        write_files(tmp_path, {"a/SKILL.md": torn})
    for paths in (None, [str(tmp_path / "a/SKILL.md")]):
        assert not registry.refresh(paths)
    assert registry.snapshot.skills["a"] is before
    assert problem_codes(registry) == []
    clock.now += QUIET_S
    registry.settle()
    assert valid_paths(registry) == ["a/inner", "b"]


def test_registry_without_a_watcher_has_a_grace_period_for_rescans_only(tmp_path: Path) -> None:
    registry = load_registry(write_files(tmp_path, skills("a")))
    (tmp_path / "a/SKILL.md").unlink()
    assert not registry.rescan(str(tmp_path / "a/SKILL.md")), "an editor may be writing it"
    assert registry.refresh().before.keys() == {"a"}


def test_skill_repaired_within_the_grace_period_causes_one_change(tmp_path: Path, clock: FakeClock) -> None:
    registry = followed(write_files(tmp_path, skills("a")))
    listener = ChangeListener(registry)
    for text in ("", "---\n", skill_md("a", "version: 2")):
        write_files(tmp_path, {"a/SKILL.md": text})
        registry.refresh([str(tmp_path / "a/SKILL.md")])
        assert valid_paths(registry) == ["a"]
    clock.now += QUIET_S
    registry.settle()
    (changes,) = listener.all
    assert registry.snapshot.skills["a"].frontmatter["version"] == 2
    assert changes.files == {("a", SKILL_MD)}


def test_root_skill_keeps_its_name_and_nested_paths_during_the_grace_period(tmp_path: Path) -> None:
    registry = followed(write_files(tmp_path / "r", {"SKILL.md": skill_md("top")} | skills("in")))
    (tmp_path / "r/SKILL.md").unlink()
    assert not registry.refresh()
    assert list(registry.snapshot.skills) == ["top", "top/in"]


def test_deleted_folders_and_broken_skills_have_no_grace_period(tmp_path: Path) -> None:
    registry = followed(write_files(tmp_path, skills("a", "b") | {"c/SKILL.md": "x"}))
    shutil.rmtree(tmp_path / "a")
    write_files(tmp_path, {"c/SKILL.md": "y\0"})
    registry.refresh([str(tmp_path / "a"), str(tmp_path / "c")])
    assert_served(registry, ["b"], problems=["nul-byte"])
