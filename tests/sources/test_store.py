"""Trees by content: whole or not there, and a root that moves from one to the next."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mcp_skills_server.format.archive import Files
from mcp_skills_server.sources import store as module
from mcp_skills_server.sources.store import Store

ONE: Files = {"a/SKILL.md": (b"one", False), "a/scripts/run.sh": (b"#!/bin/sh\n", True)}
TWO: Files = {"a/SKILL.md": (b"two", False)}


def test_a_tree_is_kept_under_its_digest_and_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path / "trees")
    tree = store.put("1" * 64, ONE)
    assert tree.name == "1" * 64 and (tree / "a/SKILL.md").read_bytes() == b"one"
    assert (tree / "a/scripts/run.sh").stat().st_mode & 0o100
    monkeypatch.setattr(module, "write_tree", None)
    assert store.put("1" * 64, ONE) == tree


def test_the_root_moves_and_the_former_tree_goes(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.serve(store.put("1", ONE))
    assert (store.root / "a/SKILL.md").read_bytes() == b"one"
    store.serve(store.put("2", TWO))
    assert (store.root / "a/SKILL.md").read_bytes() == b"two" and not (store.root / "a/scripts").exists()
    assert sorted(os.listdir(tmp_path)) == ["2", "skills"]
    store.close()
    assert (store.root / "a/SKILL.md").read_bytes() == b"two"  # it was given the folder


def test_a_tree_that_fails_half_way_is_never_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    store.serve(store.put("1", ONE))
    rename = os.rename
    monkeypatch.setattr(os, "rename", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space left"):
        store.put("2", TWO)
    assert (store.root / "a/SKILL.md").read_bytes() == b"one" and not (tmp_path / "2").exists()
    monkeypatch.setattr(os, "rename", rename)
    store.serve(store.put("2", TWO))
    assert sorted(os.listdir(tmp_path)) == ["2", "skills"]


def test_a_system_without_links_has_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(1314, "a required privilege is not held")

    monkeypatch.setattr(Path, "symlink_to", refuse)
    store = Store(tmp_path)
    for digest, files in (("1", ONE), ("2", TWO)):
        store.serve(store.put(digest, files))
        assert (store.root / "a/SKILL.md").read_bytes() == files["a/SKILL.md"][0]
        assert not store.root.is_symlink()


def test_a_private_store_is_made_when_it_is_used_and_removed() -> None:
    Store().close()
    store = Store()
    store.serve(store.put("1", ONE))
    place = store.directory
    assert store.root.is_dir()
    store.close()
    assert not place.exists()
