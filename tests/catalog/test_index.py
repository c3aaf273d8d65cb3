"""Persistent index: it saves work between processes, and never changes what is served."""

from __future__ import annotations

import json
import logging
import os
import shutil
import sqlite3
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Final
from unittest.mock import Mock

import pytest

from catalog.forest import (
    DEADLINE,
    ChangeListener,
    Log,
    Patch,
    hook_reads,
    load_registry,
    run_concurrently,
    skill_md,
    skills,
    visible_state,
    write_files,
)
from catalog.watched import serves
from mcp_skills_server.catalog import disk, scan
from mcp_skills_server.catalog.index import Index
from mcp_skills_server.catalog.recalls import Advisory, Recalls
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.roots import Limits
from mcp_skills_server.catalog.switches import switch
from mcp_skills_server.catalog.watch import Watcher
from mcp_skills_server.errors import StaleFileError
from mcp_skills_server.model import Skill
from mcp_skills_server.model.digests import digest_of

FILES = {
    **skills("one", "group/two", "outer", "outer/inner"),
    "broken/SKILL.md": "---\nname: [\n---\n",
    "lenient/SKILL.md": skill_md("other-name", "flag: true", "list: [1, 2.5, null, ü]", body="# Über\n\n## Und mehr"),
    "outer/inner/deep/data.bin": b"\x00\xff",
    "empty/SKILL.md": "",
    **dict.fromkeys(("one/notes.md", "one/more/notes.md"), "notes"),
    "one/more/deep/data.bin": b"\x00\xff",
    "lenient/empty/.keep": "",
}


@pytest.fixture
def top(tmp_path: Path) -> Path:
    return write_files(tmp_path / "root", FILES)


@pytest.fixture
def index(tmp_path: Path) -> Index:
    return Index(tmp_path / "cache" / "index", least=1)


@pytest.fixture
def read(monkeypatch: Patch) -> list[str]:
    """Locations of the files that scans read."""
    locations: list[str] = []
    hook_reads(monkeypatch, locations.append)
    return locations


@pytest.fixture(autouse=True)
def settled_at_once(monkeypatch: Patch) -> None:
    """Treat every file as settled: a test cannot set its change time."""
    monkeypatch.setattr(disk, "_SETTLED_NS", 0)


def start(*roots: Path, index: Index, limits: Limits | None = None) -> Registry:
    """Load a registry and save the index, as one process does."""
    registry = load_registry(*roots, limits=limits, index=index)
    registry.save_index()
    return registry


def state_of(registry: Registry) -> list[Any]:
    """Return all that a registry shows or keeps, as values that can be compared."""
    known = registry.snapshot.skills.values()
    files = [file for each in known for file in each.files.values()]
    return [
        visible_state(registry),
        [(each.path, each.empty, each.origin, each.findings, list(each.files)) for each in known],
        [(file.location, file.digest, file.executable) for file in files],
        [(each.reading.headings, each.reading.opening, each.reading.problems) for each in known],
    ]


def indexed(index: Index, registry: Registry) -> dict[str, Skill]:
    """Return the skills of the first root that the index holds, by directory."""
    found = index.skills(registry.roots[0], registry.limits)
    assert found is not None
    return {**found.skills}


def test_restart_with_an_unchanged_tree_opens_no_file(top: Path, index: Index, read: list[str]) -> None:
    first = start(top, index=index)
    assert read
    assert "Und mehr" in str(state_of(first))
    read.clear()
    again = load_registry(top, index=index)
    assert read == []
    assert state_of(again) == state_of(first) == state_of(load_registry(top))


def test_restart_reads_only_changed_skills_and_deletes_rows_of_unserved_ones(
    top: Path, index: Index, read: list[str]
) -> None:
    start(top, index=index)
    write_files(top, {"one/SKILL.md": skill_md("one", "version: 2"), "new/SKILL.md": skill_md("new")})
    write_files(top, {"skills-off.txt": "outer/inner\n"})
    shutil.rmtree(top / "group")
    read.clear()
    again = start(top, index=index)
    assert sorted(read) == ["new/SKILL.md", "one/SKILL.md"]
    assert visible_state(again) == visible_state(load_registry(top))
    stored = indexed(index, again)
    assert not {"group/two", "outer/inner"} & stored.keys()
    assert "outer" in stored


def test_files_too_young_at_either_of_two_starts_are_read(
    top: Path, index: Index, read: list[str], monkeypatch: Patch
) -> None:
    for ages in ((10**18, 0), (0, 10**18)):
        for settled_ns in ages:
            monkeypatch.setattr(disk, "_SETTLED_NS", settled_ns)
            read.clear()
            start(top, index=index)
        assert "one/SKILL.md" in read


def execute(path: Path, *statements: str, values: tuple[object, ...] = ()) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        for statement in statements:
            connection.execute(statement, values)


def test_forged_digest_is_detected_by_the_read_and_corrected(top: Path, index: Index) -> None:
    """Another program of this user wrote the digest."""
    true, false = digest_of(b"notes"), "sha256:" + "0" * 64
    start(top, index=index)
    execute(index.path, "UPDATE skill SET record = replace(record, ?, ?)", values=(true, false))
    again = load_registry(top, index=index)
    file = again.snapshot.skills["one"].files["notes.md"]
    assert file.digest == false
    with pytest.raises(StaleFileError) as stale:
        again.read(file)
    again.rescan(stale.value.path)
    file = again.snapshot.skills["one"].files["notes.md"]
    assert (again.read(file), file.digest) == (b"notes", true)


def replace_by_other_database(path: Path) -> None:
    path.unlink()
    execute(path, "CREATE TABLE other (x)")


def replace_by_link(path: Path) -> None:
    path.rename(path.with_name("real"))
    path.symlink_to("real")


def replace_wal_by_link(path: Path) -> None:
    Path(f"{path}-wal").unlink(missing_ok=True)
    Path(f"{path}-wal").symlink_to("/dev/null")


DAMAGE: Final[dict[str, Callable[[Path], object]]] = {
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-5000]),
    "no database": lambda path: path.write_bytes(b"\xff" * 9999),
    "text that is not UTF-8": lambda path: execute(path, "UPDATE skill SET record = CAST(x'5bff' AS TEXT)"),
    "another version": lambda path: execute(path, "PRAGMA user_version = 99"),
    "another database": replace_by_other_database,
    "no table": lambda path: execute(path, "DROP TABLE skill"),
    "other columns": lambda path: execute(path, "DROP TABLE skill", "CREATE TABLE skill (x)"),
    "a link as write-ahead log": replace_wal_by_link,
    "a link": replace_by_link,
    "writable by others": lambda path: path.chmod(0o666),
    "folder writable by others": lambda path: path.parent.chmod(0o777),
    "of another user": lambda path: os.chown(path, 65534, 65534),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_or_untrusted_index_is_rebuilt_with_one_line(
    top: Path, index: Index, read: list[str], caplog: Log, damage: str
) -> None:
    if damage == "of another user" and os.geteuid() != 0:
        pytest.skip("needs root")
    start(top, index=index)
    DAMAGE[damage](index.path)
    read.clear()
    with caplog.at_level(logging.INFO):
        again = start(top, index=Index(index.path.parent, least=1))
    lines = [line for line in caplog.messages if "index of an earlier start" in line]
    assert "one/SKILL.md" in read
    assert visible_state(again) == visible_state(load_registry(top))
    if damage == "folder writable by others":  # no index is built before the folder is repaired
        assert lines
    else:
        assert len(lines) == 1
        read.clear()
        start(top, index=Index(index.path.parent, least=1))
        assert read == []


@pytest.mark.parametrize("suffix", ["", "-wal"])
def test_folder_in_place_of_the_index_is_logged_and_kept(top: Path, index: Index, caplog: Log, suffix: str) -> None:
    start(top, index=index)
    folder = index.path.with_name(f"{index.path.name}{suffix}")
    folder.unlink(missing_ok=True)
    folder.mkdir()
    with caplog.at_level(logging.INFO):
        again = start(top, index=Index(index.path.parent, least=1))
    assert visible_state(again) == visible_state(load_registry(top))
    (line,) = [line for line in caplog.messages if "index of an earlier start" in line]
    assert line.endswith("remove it")


def test_rows_of_other_code_or_another_root_are_not_used(top: Path, index: Index, read: list[str]) -> None:
    for statement in ("UPDATE root SET code = 'older'", "UPDATE root SET path = '/elsewhere'", "DELETE FROM skill"):
        start(top, index=index)
        execute(index.path, statement)
        read.clear()
        assert visible_state(start(top, index=index)) == visible_state(load_registry(top))
        assert "one/SKILL.md" in read


def test_root_unused_for_a_month_is_evicted_with_its_skills(top: Path, tmp_path: Path, index: Index) -> None:
    found = start(top, index=index).snapshot.skills
    for days, left in ((30, len(found)), (1, 0)):
        execute(index.path, f"UPDATE root SET used = used - {days} WHERE id = 1")
        start(write_files(tmp_path / "other", skills(str(days))), index=index)
        with closing(sqlite3.connect(index.path)) as connection:
            (known,) = connection.execute("SELECT count() FROM skill WHERE root = 1")
        assert known == (left,)


def test_index_files_are_private_to_the_user(top: Path, index: Index) -> None:
    start(top, index=index)
    assert index.path.parent.stat().st_mode & 0o777 == 0o700
    assert {each.stat().st_mode & 0o777 for each in index.path.parent.iterdir()} == {0o600}


def test_no_index_is_kept_in_unwritable_folders_or_of_small_roots(top: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for nowhere in (Index(tmp_path / "file" / "index", least=1), Index(tmp_path / "index")):
        assert visible_state(start(top, index=nowhere)) == visible_state(load_registry(top))
        assert not nowhere.path.exists()


def test_python_without_sqlite_serves_without_an_index(top: Path, index: Index, monkeypatch: Patch) -> None:
    monkeypatch.setitem(sys.modules, "sqlite3", None)
    registry = start(top, index=index)
    assert registry.snapshot.skills
    assert index.skills(registry.roots[0], registry.limits) is None


def test_limits_apply_to_indexed_skills(top: Path, index: Index) -> None:
    start(top, index=index)
    for limits in (Limits(skill_md=8), Limits()):
        assert visible_state(start(top, index=index, limits=limits)) == visible_state(load_registry(top, limits=limits))


def test_concurrent_writers_leave_a_complete_index(top: Path, index: Index, read: list[str]) -> None:
    run_concurrently(*[lambda: [start(top, index=index) for _ in range(5)]] * 2)
    read.clear()
    start(top, index=index)
    assert read == []


def test_watcher_saves_the_index_and_the_next_one_loads_it(top: Path, index: Index, monkeypatch: Patch) -> None:
    saved, real_save, parse = threading.Event(), index.save, Mock(wraps=scan.read_skill_md)
    monkeypatch.setattr(index, "save", lambda *arguments: real_save(*arguments) and saved.set())
    with Watcher(Registry([top], index=index)):
        assert saved.wait(DEADLINE)
    monkeypatch.setattr(scan, "read_skill_md", parse)
    again = Registry([top], index=index)
    listener = ChangeListener(again)
    with Watcher(again):
        listener.until(serves("group/two", "one", "outer", "outer/inner"))
        assert not parse.called


@pytest.mark.parametrize(("column", "value"), [
    *(("record", each) for each in ("", "{}", "[1]", "[[],null]", "1", "[" * 9999)),
    ("record", '["one",2,[[1]],[{},null,9,[],[],""]]'), ("directory", b"one"),
])  # fmt: skip
def test_malformed_row_is_ignored(top: Path, index: Index, column: str, value: str | bytes) -> None:
    registry = start(top, index=index)
    execute(index.path, f"UPDATE skill SET {column} = ? WHERE directory = 'one'", values=(value,))
    stored = indexed(index, registry)
    assert "one" not in stored
    assert "group/two" in stored
    assert visible_state(start(top, index=index)) == visible_state(load_registry(top))


def test_locked_index_is_skipped(top: Path, index: Index, monkeypatch: Patch, caplog: Log) -> None:
    caplog.set_level(logging.DEBUG)
    start(top, index=index)
    monkeypatch.setattr("mcp_skills_server.catalog.index._BUSY_S", 0.01)
    for number, busy in enumerate(("BEGIN IMMEDIATE", "BEGIN EXCLUSIVE"), 2):
        with closing(sqlite3.connect(index.path, isolation_level=None)) as holder:
            holder.execute(busy)
            write_files(top, {"one/SKILL.md": skill_md("one", f"version: {number}")})
            assert visible_state(start(top, index=index)) == visible_state(load_registry(top))
    lines = [line for line in caplog.messages if line.startswith("the index ")]
    assert lines
    assert all("cannot be used now" in line for line in lines)


def test_remembered_skills_come_from_the_index_without_a_scan(top: Path, index: Index) -> None:
    found = start(top, index=index).snapshot
    shutil.rmtree(top / "one")
    remembered = Registry([top], index=index).remembered()
    assert remembered is not None
    for path, skill in found.skills.items():
        if path != "empty":
            same = remembered.skills[path]
            assert (same.name, same.standing) == (skill.name, skill.standing)


def test_skill_that_was_switched_off_since_is_not_remembered(top: Path, index: Index) -> None:
    before = start(top, index=index).snapshot.skills
    for folder in ("outer", "one"):
        switch(str(top), folder, on=False)
    remembered = Registry([top], index=index).remembered()
    assert remembered is not None
    assert before.keys() - remembered.skills.keys() == {"one", "outer", "outer/inner"}


def test_skill_that_was_recalled_since_is_not_remembered(top: Path, index: Index) -> None:
    before = start(top, index=index).snapshot.skills
    recalls = Recalls([Advisory(before["one"].digests["SKILL.md"], "it is bad", "low")])
    registry = Registry([top], index=index, recalls=recalls)
    remembered = registry.remembered()
    assert remembered is not None
    assert before.keys() - remembered.skills.keys() == {"one"}
    registry.load()
    assert "one" not in registry.snapshot.skills


def test_nothing_is_remembered_for_other_limits_or_unindexed_roots(top: Path, tmp_path: Path, index: Index) -> None:
    start(top, index=index, limits=Limits(hidden=True))
    assert Registry([top], index=index).remembered() is None
    start(top, index=index)
    assert Registry([top], index=index).remembered() is not None
    assert Registry([top, write_files(tmp_path / "other", skills("a"))], index=index).remembered() is None
    assert Registry([top]).remembered() is None


def keep_mtimes(path: Path, change: Callable[[], object]) -> None:
    """Make a change and restore the modification times, as tools that copy trees do."""
    before = [(each, each.stat()) for each in (path, path.parent)]
    change()
    for each, found in before:
        if each.exists():
            os.utime(each, ns=(found.st_atime_ns, found.st_mtime_ns))


def recreate(directory: Path) -> None:
    # links as links: two changes before may have made one to the folder that it lies in
    shutil.copytree(directory, directory.with_name("copy"), symlinks=True)
    shutil.rmtree(directory)
    directory.with_name("copy").rename(directory)


def move_and_link(path: Path, target: str) -> None:
    path.rename(path.parent / target)
    path.symlink_to(target)


def make_directory(file: Path) -> None:
    file.unlink()
    file.mkdir()


def make_file(directory: Path) -> None:
    shutil.rmtree(directory)
    directory.write_text("now a file")


def swap(top: Path) -> None:
    for before, after in (("one", "x"), ("lenient", "one"), ("x", "lenient")):
        (top / before).rename(top / after)


NOTES = "one/more/notes.md"
DATA = "one/more/deep/data.bin"
ORIGIN = {".mcp-skills/skills/one.json": json.dumps({"source": "https://skills.example"})}
CHANGES: Final[dict[str, Callable[[Path], object]]] = {
    "rewrite": lambda top: keep_mtimes(top / NOTES, lambda: (top / NOTES).write_text("seton")),
    "add": lambda top: keep_mtimes(top / NOTES, (top / "one/more/other.md").touch),
    "remove": lambda top: keep_mtimes(top / DATA, (top / DATA).unlink),
    "rename": lambda top: keep_mtimes(top / NOTES, lambda: (top / NOTES).rename(top / "one/more/others.md")),
    "recreate": lambda top: recreate(top / "one/more"),
    "link to a directory": lambda top: move_and_link(top / "one/more", "../elsewhere"),
    "link to a skill": lambda top: move_and_link(top / "one", "../elsewhere"),
    "link to a file": lambda top: move_and_link(top / NOTES, "../../notes.md"),
    "hard link": lambda top: os.link(top / NOTES, top / "notes.md"),
    "file to a directory": lambda top: make_directory(top / NOTES),
    "directory to a file": lambda top: make_file(top / "one/more/deep"),
    "add an empty directory": lambda top: (top / "one/more/deep/nothing").mkdir(),
    "fill an empty directory": lambda top: (top / "lenient/empty/notes.md").write_text("notes"),
    "nest": lambda top: write_files(top, skills("one/more/inner")),
    "edit SKILL.md": lambda top: (top / "one/SKILL.md").write_text(skill_md("one", "version: 2")),
    "delete SKILL.md": lambda top: (top / "one/SKILL.md").unlink(),
    "executable": lambda top: (top / NOTES).chmod(0o755),
    "move": lambda top: (top / "one").rename(top / "moved"),
    "swap": swap,
    "skill above": lambda top: write_files(top, skills("group")),
    "skill at the root": lambda top: write_files(top, {"SKILL.md": skill_md("root")}),
    "origin": lambda top: write_files(top, ORIGIN),
    "delete": lambda top: shutil.rmtree(top / "one"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_change_between_two_starts_is_found(top: Path, index: Index, change: str) -> None:
    start(top, index=index)
    CHANGES[change](top)
    again = start(top, index=index)
    assert state_of(again) == state_of(load_registry(top))
    assert state_of(load_registry(top, index=index)) == state_of(load_registry(top))
