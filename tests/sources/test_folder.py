"""The folder and its records: whole skills or none, and what somebody else put there stays."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from mcp_skills_server.errors import UsageError
from mcp_skills_server.format.archive import Files
from mcp_skills_server.sources.folder import ConflictError, FetchedFolder, SkillState
from mcp_skills_server.sources.records import SkillRecord, read_records
from tables import each_row

SOURCE = "https://example.com/.well-known/agent-skills/index.json"
FILES: Files = {
    "SKILL.md": (b"---\nname: a\ndescription: Does a.\n---\n", False),
    "scripts/deep/run.sh": (b"#!/bin/sh\n", True),
    ".env.example": (b"A=1\n", False),
}
MORE: Files = {"SKILL.md": (b"---\nname: a\ndescription: Does more.\n---\n", False)}


def record(digest: str = "sha256:1", source: str = SOURCE, name: str = "a") -> SkillRecord:
    return SkillRecord(name, source, "https://example.com/a.zip", digest, {})


def put(place: Path, files: Files = FILES, *, force: bool = False, **more: str) -> bool:
    with FetchedFolder.opened(place) as store:
        staged = store.stage(record(**more), files, force=force)
        for error in store.commit([staged]).values() if staged else ():
            raise error
        return staged is not None


def state(place: Path, name: str = "a") -> SkillState:
    with FetchedFolder.opened(place) as store:
        return store.look(name)[0]


def test_the_very_same_files_are_not_written_again(tmp_path: Path) -> None:
    put(tmp_path)
    before = (tmp_path / "a").stat().st_ino
    assert not put(tmp_path, digest="sha256:2")
    assert (tmp_path / "a").stat().st_ino == before
    assert read_records(tmp_path)[0].digest == "sha256:2"
    ours = tmp_path / ".mcp-skills"
    places = ours / "skills" / "a.json", ours / "skills", ours / "sources", tmp_path / "a" / "scripts/deep/run.sh"
    assert [place.stat().st_mode & 0o777 for place in places] == [0o600, 0o700, 0o700, 0o755]


def link_scripts(skill: Path) -> None:
    (skill / "scripts").rename(skill.parent / "moved")
    (skill / "scripts").symlink_to(skill.parent / "moved")


def replace_by_a_file(skill: Path) -> None:
    skill.rename(skill.parent / "moved")
    skill.write_bytes(b"mine")


@each_row("edit", [
    lambda skill: (skill / "SKILL.md").write_bytes(b"mine"),
    lambda skill: (skill / "scripts" / "mine.py").write_bytes(b"mine"),
    lambda skill: (skill / "scripts" / "deep" / "run.sh").unlink(),
    lambda skill: (skill / "mine").symlink_to("/etc/passwd"), link_scripts, replace_by_a_file,
])  # fmt: skip
def test_an_edited_skill_stays_unless_forced(tmp_path: Path, edit: Callable[[Path], object]) -> None:
    put(tmp_path)
    edit(tmp_path / "a")
    assert state(tmp_path) is SkillState.EDITED
    with pytest.raises(ConflictError, match="it was edited there"):
        put(tmp_path, MORE)
    assert state(tmp_path) is SkillState.EDITED
    assert put(tmp_path, MORE, force=True)
    assert os.listdir(tmp_path / "a") == ["SKILL.md"] and state(tmp_path) is SkillState.KEPT


def test_what_systems_leave_behind_is_no_edit(tmp_path: Path) -> None:
    put(tmp_path)
    (tmp_path / "a" / "scripts" / "__pycache__").mkdir()
    (tmp_path / "a" / "scripts" / "__pycache__" / "x.pyc").write_bytes(b"x")
    (tmp_path / "a" / ".DS_Store").write_bytes(b"x")
    assert state(tmp_path) is SkillState.KEPT


@each_row("place_it", [
    Path.mkdir, lambda here: here.write_bytes(b"mine"), lambda here: here.symlink_to(here.parent.parent),
    lambda here: here.symlink_to("nowhere"),
])  # fmt: skip
def test_what_was_not_fetched_is_never_touched(tmp_path: Path, place_it: Callable[[Path], object]) -> None:
    place = tmp_path / "skills"
    place.mkdir()
    place_it(place / "a")
    before = (place / "a").lstat()
    for force in (False, True):
        with pytest.raises(ConflictError, match="not fetched"):
            put(place, force=force)
    with FetchedFolder.opened(place) as store, pytest.raises(ConflictError):
        store.remove("a", force=True)
    assert (place / "a").lstat() == before


# What a killed process leaves


def test_a_failed_rename_puts_the_old_one_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path)
    rename = os.rename

    def failing(source: Path, target: Path) -> None:
        if Path(source).name.startswith("new-"):
            raise OSError(28, "No space left on device")
        rename(source, target)

    monkeypatch.setattr(os, "rename", failing)
    with pytest.raises(OSError, match="No space left"):
        put(tmp_path, MORE)
    assert state(tmp_path) is SkillState.FORMER
    assert not os.listdir(tmp_path / ".mcp-skills" / "stage")


@pytest.mark.parametrize(("dying_at", "records"), [((Path, "unlink"), 1), ((FetchedFolder, "_discard"), 0)])
def test_what_is_removed_has_a_record_for_as_long_as_it_has_a_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dying_at: tuple[type, str], records: int
) -> None:
    """A process that is killed leaves nothing that would count as somebody else's."""

    def die(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    put(tmp_path)
    with monkeypatch.context() as dying:
        dying.setattr(*dying_at, die)
        with FetchedFolder.opened(tmp_path) as store, pytest.raises(KeyboardInterrupt):
            store.remove("a")
    assert state(tmp_path) is SkillState.ABSENT and len(read_records(tmp_path)) == records


def test_what_a_killed_process_took_away_is_put_back_unless_one_is_at_work(tmp_path: Path) -> None:
    FetchedFolder.recover(tmp_path / "none")
    assert not (tmp_path / "none").exists()
    put(tmp_path)
    staged = tmp_path / ".mcp-skills" / "stage" / "old-a"
    with FetchedFolder.opened(tmp_path):
        os.rename(tmp_path / "a", staged)
        FetchedFolder.recover(tmp_path)
        assert not (tmp_path / "a").exists()
        os.rename(staged, tmp_path / "aside")
    os.rename(tmp_path / "aside", staged)
    FetchedFolder.recover(tmp_path)
    assert state(tmp_path) is SkillState.KEPT


def test_what_fails_of_several_costs_itself(tmp_path: Path) -> None:
    """One was edited after it was looked at, and the place of another was taken."""
    put(tmp_path)
    with FetchedFolder.opened(tmp_path) as store:
        made = [store.stage(record(name=name), MORE) for name in ("a", "b", "c")]
        (tmp_path / "a" / "SKILL.md").write_bytes(b"edited")
        (tmp_path / "b").mkdir()
        failed = store.commit([each for each in made if each is not None])
        assert failed.keys() == {"a", "b"} and all(isinstance(each, ConflictError) for each in failed.values())
        assert "edited meanwhile" in str(failed["a"]) and "appeared meanwhile" in str(failed["b"])
        assert store.look("a")[0] is SkillState.EDITED and store.look("c")[0] is SkillState.KEPT
        assert not os.listdir(tmp_path / ".mcp-skills" / "stage")
    assert (tmp_path / "a" / "SKILL.md").read_bytes() == b"edited" and not os.listdir(tmp_path / "b")


def test_what_cannot_be_deleted_holds_up_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError

    put(tmp_path)
    monkeypatch.setattr(os, "rmdir", refuse)
    assert put(tmp_path, MORE) and state(tmp_path) is SkillState.KEPT
    assert os.listdir(tmp_path / ".mcp-skills" / "stage") == ["old-a"]  # which the next process tries again


# The folder itself


def test_a_folder_that_cannot_be_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UsageError, match="cannot be written"), FetchedFolder.opened(tmp_path / "file"):
        pass
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / ".mcp-skills").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="is no folder"), FetchedFolder.opened(tmp_path / "linked"):
        pass
    assert not os.listdir(tmp_path / "elsewhere")


GOOD_RECORD = {"name": "a", "source": "s", "url": "u", "digest": "", "files": {}, "former": None}


@each_row("raw", [
    *(b"", b"{", b"[]", b"null", b'{"name": "a"}', b"\xff"),
    json.dumps(GOOD_RECORD | {"name": "../../outside"}).encode(), json.dumps(GOOD_RECORD | {"name": "b"}).encode(),
    json.dumps(GOOD_RECORD | {"files": {"../../outside/precious": "0" * 64}}).encode(),
])  # fmt: skip
def test_a_record_that_cannot_be_read_or_names_another_place_is_none(tmp_path: Path, raw: bytes) -> None:
    put(tmp_path)
    (tmp_path / ".mcp-skills" / "skills" / "a.json").write_text(json.dumps(GOOD_RECORD))
    assert [record.source for record in read_records(tmp_path)] == ["s"]
    (tmp_path / ".mcp-skills" / "skills" / "a.json").write_bytes(raw)
    assert read_records(tmp_path) == [] and state(tmp_path) is SkillState.FOREIGN
