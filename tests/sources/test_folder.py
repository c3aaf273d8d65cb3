"""Folder of fetched skills: conflicts, atomic replacement, recovery and records."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from mcp_skills_server.errors import UsageError
from mcp_skills_server.format.archive import Files
from mcp_skills_server.sources.folder import BusyError, ConflictError, FetchedFolder, SkillState
from mcp_skills_server.sources.records import SkillRecord, read_records
from tables import each_row

SOURCE = "https://example.com/.well-known/agent-skills/index.json"
FILES: Files = {
    "SKILL.md": (b"---\nname: a\ndescription: Does a.\n---\n", False),
    "scripts/deep/run.sh": (b"#!/bin/sh\n", True),
    ".env.example": (b"A=1\n", False),
}
OTHER_FILES: Files = {"SKILL.md": (b"---\nname: a\ndescription: Does more.\n---\n", False)}


def record(digest: str = "sha256:1", source: str = SOURCE, name: str = "a") -> SkillRecord:
    return SkillRecord(name, source, "https://example.com/a.zip", digest, {})


def store_skill(folder: Path, files: Files = FILES, *, force: bool = False, **changed: str) -> bool:
    """Store the skill `a`, and return whether any file was written."""
    with FetchedFolder.opened(folder) as store:
        staged = store.stage(record(**changed), files, force=force)
        if staged is None:
            return False
        for error in store.commit([staged]).values():
            raise error
        return True


def state_of(folder: Path, name: str = "a") -> SkillState:
    with FetchedFolder.opened(folder) as store:
        return store.state_of(name)[0]


def test_unchanged_files_are_not_rewritten(tmp_path: Path) -> None:
    store_skill(tmp_path)
    before = (tmp_path / "a").stat().st_ino
    assert not store_skill(tmp_path, digest="sha256:2")
    assert (tmp_path / "a").stat().st_ino == before
    assert read_records(tmp_path)[0].digest == "sha256:2"
    modes = {
        ".mcp-skills/skills/a.json": 0o600,
        ".mcp-skills/skills": 0o700,
        ".mcp-skills/sources": 0o700,
        "a/scripts/deep/run.sh": 0o755,
    }
    assert {path: (tmp_path / path).stat().st_mode & 0o777 for path in modes} == modes


def link_scripts(skill: Path) -> None:
    (skill / "scripts").rename(skill.parent / "moved")
    (skill / "scripts").symlink_to(skill.parent / "moved")


def replace_with_file(skill: Path) -> None:
    skill.rename(skill.parent / "moved")
    skill.write_bytes(b"mine")


@each_row("edit", [
    lambda skill: (skill / "SKILL.md").write_bytes(b"mine"),
    lambda skill: (skill / "scripts" / "mine.py").write_bytes(b"mine"),
    lambda skill: (skill / "scripts" / "deep" / "run.sh").unlink(),
    lambda skill: (skill / "mine").symlink_to("/etc/passwd"), link_scripts, replace_with_file,
])  # fmt: skip
def test_edited_skill_is_kept_unless_forced(tmp_path: Path, edit: Callable[[Path], object]) -> None:
    store_skill(tmp_path)
    edit(tmp_path / "a")
    assert state_of(tmp_path) is SkillState.EDITED
    with pytest.raises(ConflictError, match="it was edited there"):
        store_skill(tmp_path, OTHER_FILES)
    assert state_of(tmp_path) is SkillState.EDITED
    assert store_skill(tmp_path, OTHER_FILES, force=True)
    assert os.listdir(tmp_path / "a") == ["SKILL.md"]
    assert state_of(tmp_path) is SkillState.KEPT


def test_bytecode_and_finder_files_do_not_count_as_edits(tmp_path: Path) -> None:
    store_skill(tmp_path)
    (tmp_path / "a" / "scripts" / "__pycache__").mkdir()
    (tmp_path / "a" / "scripts" / "__pycache__" / "x.pyc").write_bytes(b"x")
    (tmp_path / "a" / ".DS_Store").write_bytes(b"x")
    assert state_of(tmp_path) is SkillState.KEPT


@each_row("create", [
    Path.mkdir, lambda path: path.write_bytes(b"mine"), lambda path: path.symlink_to(path.parent.parent),
    lambda path: path.symlink_to("nowhere"),
])  # fmt: skip
def test_foreign_file_is_never_replaced_or_removed(tmp_path: Path, create: Callable[[Path], object]) -> None:
    folder = tmp_path / "skills"
    folder.mkdir()
    create(folder / "a")
    before = (folder / "a").lstat()
    for force in (False, True):
        with pytest.raises(ConflictError, match="not fetched"):
            store_skill(folder, force=force)
    with FetchedFolder.opened(folder) as store, pytest.raises(ConflictError):
        store.remove("a", force=True)
    assert (folder / "a").lstat() == before


def test_failed_rename_restores_previous_skill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store_skill(tmp_path)
    rename = os.rename

    def fail_for_new_files(source: Path, target: Path) -> None:
        if Path(source).name.startswith("new-"):
            raise OSError(28, "No space left on device")
        rename(source, target)

    monkeypatch.setattr(os, "rename", fail_for_new_files)
    newest: Files = {"SKILL.md": (b"newest", False)}
    for files in (OTHER_FILES, newest):  # the record must still name the former files
        with pytest.raises(OSError, match="No space left"):
            store_skill(tmp_path, files)
        assert state_of(tmp_path) is SkillState.FORMER
    assert not os.listdir(tmp_path / ".mcp-skills" / "stage")


@pytest.mark.parametrize(("dies_in", "records"), [((Path, "unlink"), 1), ((FetchedFolder, "_discard"), 0)])
def test_record_of_removed_skill_is_deleted_after_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies_in: tuple[type, str], records: int
) -> None:
    def die(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    store_skill(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(*dies_in, die)
        with FetchedFolder.opened(tmp_path) as store, pytest.raises(KeyboardInterrupt):
            store.remove("a")
    assert state_of(tmp_path) is SkillState.ABSENT
    assert len(read_records(tmp_path)) == records


def test_recovery_restores_staged_skill_unless_folder_is_locked(tmp_path: Path) -> None:
    FetchedFolder.recover(tmp_path / "none")
    assert not (tmp_path / "none").exists()
    store_skill(tmp_path)
    staged = tmp_path / ".mcp-skills" / "stage" / "old-a"
    with FetchedFolder.opened(tmp_path):
        os.rename(tmp_path / "a", staged)
        FetchedFolder.recover(tmp_path)
        assert not (tmp_path / "a").exists()
        os.rename(staged, tmp_path / "aside")
    os.rename(tmp_path / "aside", staged)
    FetchedFolder.recover(tmp_path)
    assert state_of(tmp_path) is SkillState.KEPT


def test_commit_conflict_fails_only_its_own_skill(tmp_path: Path) -> None:
    store_skill(tmp_path)
    with FetchedFolder.opened(tmp_path) as store:
        staged = [store.stage(record(name=name), OTHER_FILES) for name in ("a", "b", "c")]
        (tmp_path / "a" / "SKILL.md").write_bytes(b"edited")
        (tmp_path / "b").mkdir()
        failed = store.commit([each for each in staged if each is not None])
        assert failed.keys() == {"a", "b"}
        assert all(isinstance(each, ConflictError) for each in failed.values())
        assert "edited meanwhile" in str(failed["a"])
        assert "appeared meanwhile" in str(failed["b"])
        assert store.state_of("a")[0] is SkillState.EDITED
        assert store.state_of("c")[0] is SkillState.KEPT
        assert not os.listdir(tmp_path / ".mcp-skills" / "stage")
    assert (tmp_path / "a" / "SKILL.md").read_bytes() == b"edited"
    assert not os.listdir(tmp_path / "b")


def test_undeletable_old_files_block_no_later_change_and_never_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError

    store_skill(tmp_path)
    monkeypatch.setattr(os, "rmdir", refuse)
    for number in range(2):
        assert store_skill(tmp_path, {"SKILL.md": (b"%d" % number, False)})
        assert state_of(tmp_path) is SkillState.KEPT
    for _ in range(2):
        with FetchedFolder.opened(tmp_path) as store:
            store.remove("a")
        assert state_of(tmp_path) is SkillState.ABSENT
        assert store_skill(tmp_path)
    monkeypatch.undo()
    assert state_of(tmp_path) is SkillState.KEPT
    assert not os.listdir(tmp_path / ".mcp-skills" / "stage")


def test_unusable_or_locked_folder_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UsageError, match="cannot be written"), FetchedFolder.opened(tmp_path / "file"):
        pass
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / ".mcp-skills").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="is no folder"), FetchedFolder.opened(tmp_path / "linked"):
        pass
    assert not os.listdir(tmp_path / "elsewhere")
    with (
        FetchedFolder.opened(tmp_path / "busy"),
        pytest.raises(BusyError, match="another process fetches into"),
        FetchedFolder.opened(tmp_path / "busy"),
    ):
        pass


VALID_RECORD = {"name": "a", "source": "s", "url": "u", "digest": "", "files": {}, "former": None}


@each_row("raw", [
    *(b"", b"{", b"[]", b"null", b'{"name": "a"}', b"\xff"),
    json.dumps(VALID_RECORD | {"name": "../../outside"}).encode(), json.dumps(VALID_RECORD | {"name": "b"}).encode(),
    json.dumps(VALID_RECORD | {"files": {"../../outside/precious": "0" * 64}}).encode(),
])  # fmt: skip
def test_malformed_or_escaping_record_counts_as_absent(tmp_path: Path, raw: bytes) -> None:
    store_skill(tmp_path)
    path = tmp_path / ".mcp-skills" / "skills" / "a.json"
    path.write_text(json.dumps(VALID_RECORD))
    assert [record.source for record in read_records(tmp_path)] == ["s"]
    path.write_bytes(raw)
    assert read_records(tmp_path) == []
    assert state_of(tmp_path) is SkillState.FOREIGN
