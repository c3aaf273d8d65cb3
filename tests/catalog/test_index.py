"""The index that one process leaves to the next: it saves work, and changes nothing that anybody sees."""

from __future__ import annotations

import json
import logging
import os
import shutil
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Final
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalog.following import serves
from catalog.forest import DEADLINE, Log, Patch, Told, loaded, plant, skill_md, skills, together, view
from mcp_skills_server.catalog import disk, scan
from mcp_skills_server.catalog.index import Index, encode
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.roots import Limits
from mcp_skills_server.catalog.watch import Watcher
from mcp_skills_server.errors import StaleFileError

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
    return plant(tmp_path / "root", FILES)


@pytest.fixture
def index(tmp_path: Path) -> Index:
    return Index(tmp_path / "cache" / "index", least=1)


@pytest.fixture
def read(monkeypatch: Patch) -> list[str]:
    opened, real = list[str](), disk.ingest
    monkeypatch.setattr(disk, "ingest", lambda *given: opened.append(given[2].location) or real(*given))
    return opened


@pytest.fixture(autouse=True)
def settled_at_once(monkeypatch: Patch) -> None:
    """The ctime of what a test writes cannot be set; so every file is old enough the moment it is written."""
    monkeypatch.setattr(disk, "_SETTLED_NS", 0)


def start(*roots: Path, index: Index, limits: Limits | None = None) -> Registry:
    registry = loaded(*roots, limits=limits, index=index)
    registry.save_index()
    return registry


def all_of(registry: Registry) -> list[Any]:
    """What a registry shows, with what no listing has."""
    known = registry.snapshot.skills.values()
    files = [file for each in known for file in each.files.values()]
    return [
        view(registry),
        [(each.path, each.empty, each.origin, each.findings, list(each.files)) for each in known],
        [(file.location, file.digest, file.executable, file.mtime_reliable) for file in files],
        [(each.reading.headings, each.reading.opening, each.reading.problems) for each in known],
    ]


def test_a_restart_over_an_unchanged_tree_opens_no_file_and_shows_all(top: Path, index: Index, read: list[str]) -> None:
    first = start(top, index=index)
    assert read and "Und mehr" in str(all_of(first))
    read.clear()
    again = loaded(top, index=index)
    assert read == []
    assert all_of(again) == all_of(first) == all_of(loaded(top))


def test_only_what_changed_is_read_and_what_is_gone_leaves_no_row(top: Path, index: Index, read: list[str]) -> None:
    start(top, index=index)
    plant(top, {"one/SKILL.md": skill_md("one", "version: 2"), "new/SKILL.md": skill_md("new")})
    shutil.rmtree(top / "group")
    read.clear()
    again = start(top, index=index)
    assert sorted(read) == ["new/SKILL.md", "one/SKILL.md"]
    assert view(again) == view(loaded(top))
    stored = index.skills(again.roots[0], again.limits)
    assert stored is not None and "group/two" not in stored and "outer" in stored


def test_a_skill_that_is_switched_off_between_two_starts_is_off_and_leaves_its_row(top: Path, index: Index) -> None:
    start(top, index=index)
    plant(top, {"skills-off.txt": "one\n"})
    again = start(top, index=index)
    stored = index.skills(again.roots[0], again.limits)
    assert "one" not in again.snapshot.skills and stored is not None and "one" not in stored


def test_files_that_are_young_or_that_a_clock_set_back_makes_young_again_are_read(
    top: Path, index: Index, read: list[str], monkeypatch: Patch
) -> None:
    for settled in ((10**18, 0), (0, 10**18)):
        for each in settled:
            monkeypatch.setattr(disk, "_SETTLED_NS", each)
            read.clear()
            start(top, index=index)
        assert "one/SKILL.md" in read


def rewrite(path: Path, *statements: str, values: tuple[object, ...] = ()) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        for statement in statements:
            connection.execute(statement, values)


def test_a_false_digest_serves_no_byte_and_is_put_right(top: Path, index: Index) -> None:
    """Whoever can write the user's files made a digest up."""
    true, false = disk.digest_of(b"notes"), "sha256:" + "0" * 64
    start(top, index=index)
    rewrite(index.path, "UPDATE skill SET record = replace(record, ?, ?)", values=(true, false))
    again = loaded(top, index=index)
    file = again.snapshot.skills["one"].files["notes.md"]
    assert file.digest == false
    with pytest.raises(StaleFileError) as stale:
        again.read(file)
    again.rescan(stale.value.path)
    file = again.snapshot.skills["one"].files["notes.md"]
    assert (again.read(file), file.digest) == (b"notes", true)


def foreign_database(path: Path) -> None:
    path.unlink()
    rewrite(path, "CREATE TABLE other (x)")


def link_to_it(path: Path) -> None:
    path.rename(path.with_name("real"))
    path.symlink_to("real")


def link_beside_it(path: Path) -> None:
    Path(f"{path}-wal").unlink(missing_ok=True)
    Path(f"{path}-wal").symlink_to("/dev/null")


UNUSABLE: Final[dict[str, Callable[[Path], object]]] = {
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-5000]),
    "no database": lambda path: path.write_bytes(b"\xff" * 9999),
    "text that is not UTF-8": lambda path: rewrite(path, "UPDATE skill SET record = CAST(x'5bff' AS TEXT)"),
    "another format": lambda path: rewrite(path, "PRAGMA user_version = 99"),
    "a foreign database": foreign_database,
    "no table": lambda path: rewrite(path, "DROP TABLE skill"),
    "other columns": lambda path: rewrite(path, "DROP TABLE skill", "CREATE TABLE skill (x)"),
    "a link beside it": link_beside_it,
    "a link": link_to_it,
    "writable by others": lambda path: path.chmod(0o666),
    "folder writable by others": lambda path: path.parent.chmod(0o777),
    "another user's": lambda path: os.chown(path, 65534, 65534),
}


@pytest.mark.parametrize("spoil", UNUSABLE)
def test_an_index_that_must_not_be_used_is_built_anew_with_one_line(
    top: Path, index: Index, read: list[str], caplog: Log, spoil: str
) -> None:
    if spoil == "another user's" and os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    start(top, index=index)
    index.close()
    UNUSABLE[spoil](index.path)
    read.clear()
    with caplog.at_level(logging.INFO):
        again = start(top, index=Index(index.path.parent, least=1))
    said = [line for line in caplog.messages if "index of an earlier start" in line]
    assert len(said) == 1 or (spoil.startswith("folder") and said)
    assert "one/SKILL.md" in read
    assert view(again) == view(loaded(top))
    if not spoil.startswith("folder"):  # only its owner can say that it is his alone
        read.clear()
        start(top, index=Index(index.path.parent, least=1))
        assert read == []


@pytest.mark.parametrize("suffix", ["", "-wal"])
def test_a_folder_in_place_of_an_index_is_said_once_and_left(top: Path, index: Index, caplog: Log, suffix: str) -> None:
    start(top, index=index)
    index.close()
    place = index.path.with_name(f"{index.path.name}{suffix}")
    place.unlink(missing_ok=True)
    place.mkdir()
    with caplog.at_level(logging.INFO):
        again = start(top, index=Index(index.path.parent, least=1))
    assert view(again) == view(loaded(top))
    assert [line.endswith("remove it") for line in caplog.messages if "index of an earlier start" in line] == [True]


def test_rows_of_other_code_or_of_another_root_are_not_used(top: Path, index: Index, read: list[str]) -> None:
    for statement in ("UPDATE root SET code = 'older'", "UPDATE root SET path = '/elsewhere'", "DELETE FROM skill"):
        start(top, index=index)
        rewrite(index.path, statement)
        read.clear()
        assert view(start(top, index=index)) == view(loaded(top)) and "one/SKILL.md" in read


def test_a_root_that_nobody_served_for_a_month_goes_with_its_skills(top: Path, tmp_path: Path, index: Index) -> None:
    found = start(top, index=index).snapshot.skills
    for days, left in ((30, len(found)), (1, 0)):
        rewrite(index.path, f"UPDATE root SET used = used - {days} WHERE id = 1")
        start(plant(tmp_path / "other", skills(str(days))), index=index)
        with closing(sqlite3.connect(index.path)) as connection:
            (known,) = connection.execute("SELECT count() FROM skill WHERE root = 1")
        assert known == (left,)


def test_what_is_written_is_the_users_alone(top: Path, index: Index) -> None:
    start(top, index=index)
    assert index.path.parent.stat().st_mode & 0o777 == 0o700
    assert {each.stat().st_mode & 0o777 for each in index.path.parent.iterdir()} == {0o600}


def test_without_a_place_to_write_and_for_a_small_root_there_is_none_and_all_goes_on(top: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for nowhere in (Index(tmp_path / "file" / "index", least=1), Index(tmp_path / "index")):
        assert view(start(top, index=nowhere)) == view(loaded(top))
        assert not nowhere.path.exists()


def test_limits_are_kept_whatever_the_index_says(top: Path, index: Index) -> None:
    start(top, index=index)
    for limits in (Limits(skill_md=8), Limits()):
        assert view(start(top, index=index, limits=limits)) == view(loaded(top, limits=limits))


def test_two_processes_leave_a_whole_index(top: Path, index: Index, read: list[str]) -> None:
    """Both write while both read; whatever is found there in the end is whole."""
    together(*[lambda: [start(top, index=index) for _ in range(5)]] * 2)
    read.clear()
    start(top, index=index)
    assert read == []


def test_an_edit_writes_the_row_of_its_skill_alone(top: Path, index: Index, monkeypatch: Patch) -> None:
    registry = start(top, index=index)
    save = Mock(side_effect=lambda _root, _limits, changed, _gone: [each.path for each in changed] == ["one"])
    monkeypatch.setattr(index, "save", save)
    registry.save_index()
    assert not save.called
    registry.refresh([str(plant(top / "one", {"SKILL.md": skill_md("one", "version: 2")}))])
    registry.save_index()  # which is done: the index took the skill "one" alone
    registry.save_index()
    assert save.call_count == 1


def test_a_watcher_leaves_the_index_and_the_next_begins_with_it(top: Path, index: Index, monkeypatch: Patch) -> None:
    written, save, parsed = threading.Event(), index.save, Mock(wraps=scan.read_skill_md)
    monkeypatch.setattr(index, "save", lambda *arguments: save(*arguments) and written.set())
    with Watcher(Registry([top], index=index)):
        assert written.wait(DEADLINE)
    monkeypatch.setattr(scan, "read_skill_md", parsed)
    again = Registry([top], index=index)
    told = Told(again)
    with Watcher(again):
        told.until(serves("group/two", "one", "outer", "outer/inner"))
        assert not parsed.called


@pytest.mark.parametrize(("column", "value"), [
    *(("record", each) for each in ("", "{}", "[1]", "[[],null]", "1", "[" * 9999)),
    ("record", '["one",2,[[1]],[{},null,9,[],[],""]]'), ("directory", b"one"),
])  # fmt: skip
def test_a_row_that_means_nothing_is_as_good_as_none(top: Path, index: Index, column: str, value: str | bytes) -> None:
    registry = start(top, index=index)
    rewrite(index.path, f"UPDATE skill SET {column} = ? WHERE directory = 'one'", values=(value,))
    stored = index.skills(registry.roots[0], registry.limits)
    assert stored is not None and "one" not in stored and "group/two" in stored
    assert view(start(top, index=index)) == view(loaded(top))


def test_an_index_that_another_holds_is_passed_over(top: Path, index: Index, monkeypatch: Patch, caplog: Log) -> None:
    caplog.set_level(logging.DEBUG)
    start(top, index=index)
    index.close()
    monkeypatch.setattr("mcp_skills_server.catalog.index._BUSY_S", 0.01)
    for number, busy in enumerate(("BEGIN IMMEDIATE", "BEGIN EXCLUSIVE"), 2):
        with closing(sqlite3.connect(index.path, isolation_level=None)) as holder:
            holder.execute(busy)
            plant(top, {"one/SKILL.md": skill_md("one", f"version: {number}")})
            assert view(start(top, index=index)) == view(loaded(top))
    said = [line for line in caplog.messages if line.startswith("the index ")]
    assert said and all("cannot be used now" in line for line in said)


def test_a_number_that_json_cannot_hold_leaves_its_skill_out(top: Path) -> None:
    plant(top, {"one/SKILL.md": skill_md("one", f"huge: {'9' * 5000}")})
    for skill in loaded(top).snapshot.skills.values():
        row = encode(skill)
        assert row is None or json.loads(row)


# What an earlier process saw is shown until the first scan is done.


def test_what_is_remembered_is_what_the_scan_found_and_the_disk_is_not_asked(top: Path, index: Index) -> None:
    found = start(top, index=index).snapshot
    shutil.rmtree(top / "one")
    before = Registry([top], index=index).remembered()
    assert before is not None
    read = {path: skill for path, skill in found.skills.items() if skill.files["SKILL.md"].size}
    assert {path: (each.name, each.standing) for path, each in read.items()} == {
        path: (each.name, each.standing) for path, each in before.skills.items() if path in read
    }


def test_nothing_is_remembered_of_other_limits_or_of_another_root(top: Path, tmp_path: Path, index: Index) -> None:
    start(top, index=index, limits=Limits(hidden=True))
    assert Registry([top], index=index).remembered() is None
    start(top, index=index)
    assert Registry([top], index=index).remembered() is not None
    assert Registry([top, plant(tmp_path / "other", skills("a"))], index=index).remembered() is None
    assert Registry([top]).remembered() is None


# What changes between two starts


def as_it_was(place: Path, change: Callable[[], object]) -> None:
    """Make a change and set the times of modification back, as tools do that copy trees."""
    before = [(each, each.stat()) for each in (place, place.parent)]
    change()
    for each, found in before:
        if each.exists():
            os.utime(each, ns=(found.st_atime_ns, found.st_mtime_ns))


def write_again(top: Path) -> None:
    place = top / "one/more/notes.md"
    as_it_was(place, lambda: place.write_text("seton"))


def rename(top: Path) -> None:
    place = top / "one/more/notes.md"
    as_it_was(place, lambda: place.rename(place.with_name("others.md")))


def recreate(top: Path) -> None:
    shutil.copytree(top / "one/more", top / "copy")
    shutil.rmtree(top / "one/more")
    (top / "copy").rename(top / "one/more")


def replace(place: Path, target: str | Path | None) -> None:
    moved = place.parent / target if target else place.with_name("moved")
    place.rename(moved)
    if target is None:
        place.mkdir()
    else:
        place.symlink_to(target)


def swap(top: Path) -> None:
    for before, after in (("one", "x"), ("lenient", "one"), ("x", "lenient")):
        (top / before).rename(top / after)


def directory_by_a_file(top: Path) -> None:
    shutil.rmtree(top / "one/more/deep")
    (top / "one/more/deep").write_text("now a file")


ORIGIN = {".mcp-skills/skills/one.json": json.dumps({"source": "https://skills.example"})}
CHANGES: Final[dict[str, Callable[[Path], object]]] = {
    "write again": write_again,
    "add": lambda top: as_it_was(top / "one/more/notes.md", (top / "one/more/other.md").touch),
    "remove": lambda top: as_it_was(top / "one/more/deep/data.bin", (top / "one/more/deep/data.bin").unlink),
    "rename": rename,
    "recreate": recreate,
    "link to a directory": lambda top: replace(top / "one/more", "../elsewhere"),
    "link to a skill": lambda top: replace(top / "one", top.parent / "elsewhere"),
    "link to a file": lambda top: replace(top / "one/more/notes.md", "../../notes.md"),
    "hard link": lambda top: os.link(top / "one/more/notes.md", top / "notes.md"),
    "file to a directory": lambda top: replace(top / "one/more/notes.md", None),
    "directory to a file": directory_by_a_file,
    "an empty directory": lambda top: (top / "one/more/deep/nothing").mkdir(),
    "fill what was empty": lambda top: (top / "lenient/empty/notes.md").write_text("notes"),
    "nest": lambda top: plant(top, skills("one/more/inner")),
    "manifest": lambda top: (top / "one/SKILL.md").write_text(skill_md("one", "version: 2")),
    "no manifest": lambda top: (top / "one/SKILL.md").unlink(),
    "executable": lambda top: (top / "one/more/notes.md").chmod(0o755),
    "move": lambda top: (top / "one").rename(top / "moved"),
    "swap": swap,
    "skill above": lambda top: plant(top, skills("group")),
    "skill at the root": lambda top: plant(top, {"SKILL.md": skill_md("root")}),
    "origin": lambda top: plant(top, ORIGIN),
    "gone": lambda top: shutil.rmtree(top / "one"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_between_two_starts_is_found(top: Path, index: Index, change: str) -> None:
    start(top, index=index)
    CHANGES[change](top)
    again = start(top, index=index)
    assert all_of(again) == all_of(loaded(top))
    assert all_of(loaded(top, index=index)) == all_of(loaded(top))


@given(st.lists(st.sampled_from([*CHANGES.values()]), max_size=4, unique=True), st.integers(0, 4))
def test_so_are_changes_one_after_the_other_with_starts_in_between(
    tmp_path_factory: pytest.TempPathFactory, changes: list[Callable[[Path], None]], starts: int
) -> None:
    base = tmp_path_factory.mktemp("changes")
    top, index = plant(base / "root", FILES), Index(base / "index", least=1)
    start(top, index=index)
    for number, change in enumerate(changes):
        try:
            change(top)
        except OSError:  # what it would change is gone already
            continue
        if number < starts:
            start(top, index=index)
    assert all_of(loaded(top, index=index)) == all_of(loaded(top))
    shutil.rmtree(base)
