"""What a change touches in a root, and what stands of a root that cannot be read."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from catalog.forest import codes, loaded, plant, served, skills


def test_an_event_in_an_ignored_place_brings_no_skill(tmp_path: Path) -> None:
    registry = loaded(plant(tmp_path, skills("one", "node_modules/two", ".git/three", "docs/.cache/four")))
    for path in ("node_modules/two/SKILL.md", ".git/three", "docs/.cache/four/SKILL.md"):
        assert not registry.refresh([str(tmp_path / path)])
    assert list(registry.snapshot.skills) == ["one"]


def test_a_path_outside_every_root_is_nobodys(tmp_path: Path) -> None:
    plant(tmp_path, skills("root/one", "root-evil/two"))
    registry = loaded(tmp_path / "root")
    assert not registry.refresh([str(tmp_path / "root-evil/two/SKILL.md"), str(tmp_path), "/"])
    assert served(registry) == ["one"]


def test_a_missing_root_is_told_and_its_skills_stay_until_it_is_back(tmp_path: Path) -> None:
    plant(tmp_path, skills("one/a", "one/b", "two/c"))
    registry = loaded(tmp_path / "one", tmp_path / "two")
    kept = dict(registry.snapshot.skills)
    (tmp_path / "one").rename(tmp_path / "away")
    for paths in (None, [str(tmp_path / "one")], [str(tmp_path / "one/a")], [str(tmp_path / "one/a/SKILL.md")]):
        assert not registry.refresh(paths)
        assert codes(registry) == ["root-missing"]
    assert dict(registry.snapshot.skills) == kept
    plant(tmp_path, skills("two/d"))
    assert registry.refresh([str(tmp_path / "two/d")])
    assert served(registry) == ["a", "b", "c", "d"]
    shutil.rmtree(tmp_path / "away/b")
    (tmp_path / "away").rename(tmp_path / "one")
    registry.refresh([str(tmp_path / "one/a")])
    assert served(registry) == ["a", "c", "d"] and codes(registry) == []


def test_a_root_that_becomes_a_file_is_missing(tmp_path: Path) -> None:
    registry = loaded(plant(tmp_path / "root", skills("a")))
    shutil.rmtree(tmp_path / "root")
    (tmp_path / "root").write_text("x")
    assert not registry.refresh()
    assert codes(registry) == ["root-missing"] and served(registry) == ["a"]


def test_a_want_of_descriptors_takes_no_skill_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = loaded(plant(tmp_path, skills("a", "b/c")))
    real = os.open

    def refuse(path: Any, *arguments: Any, **options: Any) -> int:
        if path in {"a", "c"}:
            raise OSError(errno.EMFILE, "Too many open files")
        return real(path, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        for paths in ([str(tmp_path / "a/SKILL.md")], None):
            assert not registry.refresh(paths)
            assert served(registry) == ["a", "b/c"] and codes(registry) == ["root-missing"]
    assert not registry.refresh([str(tmp_path / "a/SKILL.md")])
    assert codes(registry) == []
