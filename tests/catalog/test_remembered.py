"""What an earlier process saw is shown until the first scan is done, as far as a scan would look for it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from catalog.forest import plant, skill_md
from mcp_skills_server.catalog import disk
from mcp_skills_server.catalog.index import Index
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.roots import Limits
from mcp_skills_server.model import Standing


@pytest.fixture(autouse=True)
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files count as old enough for their stat signatures to prove their bytes."""
    monkeypatch.setattr(disk, "_SETTLED_NS", 0)


def kept(index: Index, root: Path, limits: Limits | None = None) -> Registry:
    """A registry whose skills the index has from now on."""
    registry = Registry([root], limits, index=index)
    registry.load()
    registry.keep_index()
    return registry


def test_it_is_what_the_scan_found(tmp_path: Path) -> None:
    files = {f"{name}/SKILL.md": skill_md(name.rpartition("/")[2]) for name in ("a", "team/b", "team/deep/c")}
    root, index = plant(tmp_path / "skills", files | {"odd/SKILL.md": "no frontmatter"}), Index(tmp_path / "index", 1)
    registry = kept(index, root)
    found = registry.remembered()
    assert found is not None
    assert {path: (each.name, each.standing) for path, each in found.skills.items()} == {
        path: (each.name, each.standing) for path, each in registry.snapshot.skills.items()
    }
    assert found.skills["odd"].standing is Standing.UNUSABLE
    shutil.rmtree(root / "a")
    assert registry.remembered() is not None, "the disk is not asked"


def test_nothing_of_other_limits_is_shown(tmp_path: Path) -> None:
    root, index = plant(tmp_path / "skills", {".claude/skills/c/SKILL.md": skill_md("c")}), Index(tmp_path / "index", 1)
    assert len(kept(index, root, Limits(hidden=True)).snapshot.skills) == 1
    assert Registry([root], index=index).remembered() is None


def test_a_root_that_was_never_seen_makes_it_unknown(tmp_path: Path) -> None:
    one, other = (plant(tmp_path / name, {"a/SKILL.md": skill_md("a")}) for name in ("one", "other"))
    index = Index(tmp_path / "index", 1)
    kept(index, one)
    assert Registry([one, other], index=index).remembered() is None
    assert Registry([one]).remembered() is None
