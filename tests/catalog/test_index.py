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

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalog.following import serves
from catalog.forest import DEADLINE, LONG_AGO, Told, loaded, plant, skill_md, skills, together, view
from catalog.unsafe_files import a_link, folder_writable_by_others, writable_by_others
from mcp_skills_server.catalog import disk, reading
from mcp_skills_server.catalog.index import Index, encode
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.roots import Limits
from mcp_skills_server.catalog.watch import Watcher
from mcp_skills_server.errors import StaleFileError
from tables import each_row

FILES = {
    **skills("one", "group/two", "outer", "outer/inner"),
    "broken/SKILL.md": "---\nname: [\n---\n",
    "lenient/SKILL.md": skill_md("other-name", "flag: true", "list: [1, 2.5, null, ü]", body="# Über\n\n## Und mehr"),
    "one/notes.md": "notes",
    "outer/inner/deep/data.bin": b"\x00\xff",
    "empty/SKILL.md": "",
    "one/more/notes.md": "notes",
    "one/more/deep/data.bin": b"\x00\xff",
    "lenient/empty/.keep": "",
}


@pytest.fixture
def top(tmp_path: Path) -> Path:
    """A root whose files are old enough for their stat signatures to count."""
    return settle(plant(tmp_path / "root", FILES))


@pytest.fixture
def index(tmp_path: Path) -> Index:
    """Where the indexes of a test lie."""
    return Index(tmp_path / "cache" / "index", least=1)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The places of all files that are opened to be read."""
    opened: list[str] = []
    real = disk.ingest

    def note(root_path: str, location: str, file: Any, most_bytes: int) -> bytes:
        opened.append(file.location)
        return real(root_path, location, file, most_bytes)

    monkeypatch.setattr(disk, "ingest", note)
    return opened


@pytest.fixture(autouse=True)
def settled_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ctime of what a test writes cannot be set; so every file is old enough the moment it is written."""
    monkeypatch.setattr(disk, "_SETTLED_NS", 0)


def settle(top: Path) -> Path:
    for path in top.rglob("*"):
        os.utime(path, (LONG_AGO, LONG_AGO))
    return top


def start(top: Path, index: Index, *, limits: Limits | None = None) -> Registry:
    """What a process does: load, leave the index."""
    registry = Registry([top], limits, quiet_s=0, index=index)
    registry.load()
    registry.keep_index()
    return registry


def digests(registry: Registry) -> dict[str, str | None]:
    return {
        f"{path}:{name}": file.digest
        for path, skill in registry.snapshot.skills.items()
        for name, file in skill.files.items()
    }


def test_a_restart_over_an_unchanged_tree_opens_no_file_and_shows_the_same(
    top: Path, index: Index, read: list[str]
) -> None:
    first = start(top, index)
    assert read
    read.clear()
    again = Registry([top], quiet_s=0, index=index)
    again.load()
    assert read == []
    assert view(again) == view(first) == view(loaded(top))
    usable = {key for key, value in digests(first).items() if value}
    assert {key: digests(again)[key] for key in usable} == {key: digests(first)[key] for key in usable}
    known, stored = ([skill.reading for skill in each.snapshot.skills.values()] for each in (first, again))
    assert any(each.opening for each in known) and any(each.headings for each in known)
    assert [each.headings for each in stored] == [each.headings for each in known]
    assert [each.opening for each in stored] == [each.opening for each in known]


def test_only_what_changed_meanwhile_is_read(top: Path, index: Index, read: list[str]) -> None:
    start(top, index)
    plant(top, {"one/SKILL.md": skill_md("one", "version: 2"), "new/SKILL.md": skill_md("new")})
    shutil.rmtree(top / "group")
    read.clear()
    again = Registry([top], quiet_s=0, index=index)
    again.load()
    assert sorted(read) == ["new/SKILL.md", "one/SKILL.md"]
    assert view(again) == view(loaded(top))


def test_a_rewrite_that_keeps_size_and_time_is_read(top: Path, index: Index) -> None:
    start(top, index)
    place = top / "one" / "notes.md"
    place.write_bytes(b"other")
    os.utime(place, (LONG_AGO, LONG_AGO))
    again = start(top, index)
    assert again.snapshot.skills["one"].files["notes.md"].digest == disk.digest_of(b"other")


def test_files_too_young_for_their_signature_are_not_kept(
    top: Path, index: Index, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "_SETTLED_NS", 10**18)
    start(top, index)
    read.clear()
    start(top, index)
    assert "one/SKILL.md" in read


def test_a_clock_that_was_set_back_makes_files_young_again(
    top: Path, index: Index, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    start(top, index)
    monkeypatch.setattr(disk, "_SETTLED_NS", 10**18)
    read.clear()
    start(top, index)
    assert "one/SKILL.md" in read


def rewrite(path: Path, *statements: str, values: tuple[object, ...] = ()) -> None:
    """Change what an index holds."""
    with closing(sqlite3.connect(path)) as connection, connection:
        for statement in statements:
            connection.execute(statement, values)


def test_a_false_digest_serves_no_byte_and_is_put_right(top: Path, index: Index) -> None:
    """Whoever can write the user's files made a digest up."""
    true = disk.digest_of(b"notes")
    false = "sha256:" + "0" * 64
    start(top, index)
    rewrite(index.path, "UPDATE skill SET record = replace(record, ?, ?)", values=(true, false))
    again = Registry([top], quiet_s=0, index=index)
    again.load()
    file = again.snapshot.skills["one"].files["notes.md"]
    assert file.digest == false
    with pytest.raises(StaleFileError) as stale:
        again.read(file)
    again.rescan(stale.value.path)
    file = again.snapshot.skills["one"].files["notes.md"]
    assert (again.read(file), file.digest) == (b"notes", true)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5000])


def no_database(path: Path) -> None:
    path.write_bytes(b"\xff" * 9999)


def other_format(path: Path) -> None:
    rewrite(path, "PRAGMA user_version = 99")


def foreign_database(path: Path) -> None:
    path.unlink()
    rewrite(path, "CREATE TABLE other (x)")


def without_tables(path: Path) -> None:
    rewrite(path, "DROP TABLE skill")


def other_columns(path: Path) -> None:
    rewrite(path, "DROP TABLE skill", "CREATE TABLE skill (x)")


def link_beside_it(path: Path) -> None:
    Path(f"{path}-wal").unlink(missing_ok=True)
    Path(f"{path}-wal").symlink_to("/dev/null")


@pytest.mark.parametrize(
    "spoil",
    [
        cut, no_database, other_format, foreign_database, without_tables, other_columns, link_beside_it,
        writable_by_others, folder_writable_by_others, a_link,
    ],
)  # fmt: skip
def test_an_index_that_must_not_be_used_is_built_anew_with_one_line(
    top: Path, index: Index, read: list[str], caplog: pytest.LogCaptureFixture, spoil: Callable[[Path], None]
) -> None:
    start(top, index)
    index.close()
    spoil(index.path)
    read.clear()
    with caplog.at_level(logging.INFO):
        again = start(top, Index(index.path.parent, least=1))
    said = [line for line in caplog.messages if "index of an earlier start" in line]
    assert len(said) == 1 or (spoil is folder_writable_by_others and said)
    assert "one/SKILL.md" in read
    assert view(again) == view(loaded(top))
    if spoil is not folder_writable_by_others:  # only its owner can say that it is his alone
        read.clear()
        start(top, Index(index.path.parent, least=1))
        assert read == []


@pytest.mark.parametrize("suffix", ["", "-wal"])
def test_a_folder_in_the_place_of_an_index_is_said_once_and_left_alone(
    top: Path, index: Index, caplog: pytest.LogCaptureFixture, suffix: str
) -> None:
    start(top, index)
    index.close()
    for each in index.path.parent.iterdir():
        if each.name == f"{index.path.name}{suffix}":
            each.unlink()
    (index.path.parent / f"{index.path.name}{suffix}").mkdir()
    with caplog.at_level(logging.INFO):
        again = start(top, Index(index.path.parent, least=1))
    assert view(again) == view(loaded(top))
    assert [line.endswith("remove it") for line in caplog.messages if "index of an earlier start" in line] == [True]


def test_text_that_is_no_utf_8_is_damage(top: Path, index: Index, caplog: pytest.LogCaptureFixture) -> None:
    start(top, index)
    rewrite(index.path, "UPDATE skill SET record = CAST(x'5bff' AS TEXT)")
    with caplog.at_level(logging.INFO):
        again = start(top, Index(index.path.parent, least=1))
    assert view(again) == view(loaded(top)) and "it is damaged" in caplog.text


def test_rows_whose_directories_are_no_text_are_passed_over(top: Path, index: Index) -> None:
    start(top, index)
    rewrite(index.path, "UPDATE skill SET directory = CAST('x' || directory AS BLOB)")
    again = Registry([top], quiet_s=0, index=index)
    assert not index.skills(again.roots[0], again.limits)
    again.load()
    assert view(again) == view(loaded(top))


@pytest.mark.parametrize(
    "statement", ["UPDATE root SET code = 'older'", "UPDATE root SET path = '/elsewhere'", "DELETE FROM skill"]
)
def test_rows_of_other_code_or_of_another_root_are_not_used(
    top: Path, index: Index, read: list[str], statement: str
) -> None:
    start(top, index)
    rewrite(index.path, statement)
    read.clear()
    assert view(start(top, index)) == view(loaded(top)) and "one/SKILL.md" in read


def test_a_root_that_nobody_served_for_a_month_goes_with_its_skills(top: Path, tmp_path: Path, index: Index) -> None:
    start(top, index)
    rewrite(index.path, "UPDATE root SET used = used - 40")
    start(settle(plant(tmp_path / "other", skills("other"))), index)
    with closing(sqlite3.connect(index.path)) as connection:
        assert connection.execute("SELECT directory FROM skill").fetchall() == [("other",)]


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give a file away")
def test_an_index_of_another_user_is_not_used(top: Path, index: Index, read: list[str]) -> None:
    start(top, index)
    index.close()
    os.chown(index.path, 65534, 65534)
    read.clear()
    start(top, index)
    assert "one/SKILL.md" in read


def test_what_is_written_is_the_users_alone(top: Path, index: Index) -> None:
    start(top, index)
    path = index.path
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert {each.stat().st_mode & 0o777 for each in path.parent.iterdir()} == {0o600}


def test_without_a_place_to_write_all_goes_on(top: Path, tmp_path: Path) -> None:
    plant(tmp_path, {"file": ""})
    registry = start(top, Index(tmp_path / "file" / "index", least=1))
    assert view(registry) == view(loaded(top))


def test_small_roots_have_none_unless_asked_for(top: Path, tmp_path: Path) -> None:
    start(top, Index(tmp_path / "index"))
    assert not (tmp_path / "index").exists()


def test_limits_are_kept_whatever_the_index_says(top: Path, index: Index) -> None:
    start(top, index)
    limits = Limits(skill_md=8)
    again = start(top, index, limits=limits)
    assert view(again) == view(loaded(top, limits=limits))
    assert view(start(top, index)) == view(loaded(top))


def test_two_processes_leave_a_whole_index(top: Path, index: Index, read: list[str]) -> None:
    """Both write while both read; whatever is found there in the end is whole."""
    together(*(lambda: [start(top, index) for _ in range(5)] and None for _ in range(2)))
    read.clear()
    start(top, index)
    assert read == []


def test_an_edit_writes_the_row_of_its_skill_alone(top: Path, index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = start(top, index)
    written: list[list[str]] = []
    save = index.save
    monkeypatch.setattr(
        index,
        "save",
        lambda root, limits, changed, gone: (
            written.append([each.path for each in changed]) or save(root, limits, changed, gone)
        ),
    )
    registry.keep_index()
    edited = plant(top / "one", {"SKILL.md": skill_md("one", "version: 2")})
    registry.refresh([str(edited)])
    registry.keep_index()
    assert written == [["one"]]


def test_a_skill_that_is_gone_leaves_no_row(top: Path, index: Index) -> None:
    start(top, index)
    shutil.rmtree(top / "one")
    registry = start(top, index)
    stored = index.skills(registry.roots[0], registry.limits)
    assert stored is not None and "one" not in stored and "group/two" in stored


def test_a_watcher_leaves_the_index_and_the_next_one_begins_with_it(
    top: Path, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[bytes] = []
    written = threading.Event()
    save = index.save
    monkeypatch.setattr(index, "save", lambda *arguments: save(*arguments) and written.set())
    with Watcher(Registry([top], index=index)):
        assert written.wait(DEADLINE)
    real = reading.read_skill_md
    monkeypatch.setattr(reading, "read_skill_md", lambda raw, name: parsed.append(raw) or real(raw, name))
    again = Registry([top], index=index)
    told = Told(again)
    with Watcher(again):
        told.until(serves("group/two", "one", "outer", "outer/inner"))
        assert parsed == []


@each_row("record", ["", "{}", "[1]", "[[],null]", '["one",2,[[1]],[{},null,9,[],[],""]]', "1", "[" * 9999])
def test_a_record_that_means_nothing_is_as_good_as_none(top: Path, index: Index, record: str) -> None:
    registry = start(top, index)
    rewrite(index.path, "UPDATE skill SET record = ? WHERE directory = 'one'", values=(record,))
    stored = index.skills(registry.roots[0], registry.limits)
    assert stored is not None and "one" not in stored and "group/two" in stored
    assert view(start(top, index)) == view(loaded(top))


@pytest.mark.parametrize("busy", ["BEGIN IMMEDIATE", "BEGIN EXCLUSIVE"])
def test_an_index_that_another_process_holds_is_passed_over(
    top: Path, index: Index, monkeypatch: pytest.MonkeyPatch, busy: str
) -> None:
    start(top, index)
    index.close()
    monkeypatch.setattr("mcp_skills_server.catalog.index._BUSY_S", 0.01)
    with closing(sqlite3.connect(index.path, isolation_level=None)) as holder:
        holder.execute(busy)
        plant(top, {"one/SKILL.md": skill_md("one", "version: 2")})
        assert view(start(top, index)) == view(loaded(top))


def test_a_number_that_json_cannot_hold_leaves_its_skill_out(top: Path) -> None:
    plant(top, {"one/SKILL.md": skill_md("one", f"huge: {'9' * 5000}")})
    for skill in loaded(top).snapshot.skills.values():
        row = encode(skill)
        assert row is None or json.loads(row)


def all_of(registry: Registry) -> list[Any]:
    """What a registry shows, with what no listing has."""
    known = registry.snapshot.skills.values()
    return [
        view(registry),
        [(each.path, each.empty, each.origin, each.findings, list(each.files)) for each in known],
        [(file.location, file.executable, file.mtime_reliable) for each in known for file in each.files.values()],
        [(each.reading.headings, each.reading.opening, each.reading.problems) for each in known],
    ]


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


def add(top: Path) -> None:
    place = top / "one/more/other.md"
    as_it_was(place.parent / "notes.md", lambda: place.write_text("new"))


def remove(top: Path) -> None:
    place = top / "one/more/deep/data.bin"
    as_it_was(place, place.unlink)


def rename(top: Path) -> None:
    place = top / "one/more/notes.md"
    as_it_was(place, lambda: place.rename(place.with_name("others.md")))


def recreate(top: Path) -> None:
    """The same directory, with the same names and bytes."""
    shutil.copytree(top / "one/more", top / "copy")
    shutil.rmtree(top / "one/more")
    (top / "copy").rename(top / "one/more")


def link_to_a_directory(top: Path) -> None:
    """What is looked at through the link are the same files."""
    (top / "one/more").rename(top / "elsewhere")
    (top / "one/more").symlink_to("../elsewhere")


def link_to_a_skill(top: Path) -> None:
    (top / "one").rename(top.parent / "elsewhere")
    (top / "one").symlink_to(top.parent / "elsewhere")


def link_to_a_file(top: Path) -> None:
    (top / "one/more/notes.md").rename(top / "notes.md")
    (top / "one/more/notes.md").symlink_to("../../notes.md")


def hard_link(top: Path) -> None:
    os.link(top / "one/more/notes.md", top / "notes.md")


def replace_by_a_directory(top: Path) -> None:
    (top / "one/more/notes.md").unlink()
    (top / "one/more/notes.md").mkdir()


def directory_by_a_file(top: Path) -> None:
    shutil.rmtree(top / "one/more/deep")
    (top / "one/more/deep").write_text("now a file")


def empty_directory(top: Path) -> None:
    (top / "one/more/deep/nothing").mkdir()


def fill_what_was_empty(top: Path) -> None:
    (top / "lenient/empty/notes.md").write_text("notes")


def nest(top: Path) -> None:
    plant(top, skills("one/more/inner"))


def manifest(top: Path) -> None:
    (top / "one/SKILL.md").write_text(skill_md("one", "version: 2"))


def no_manifest(top: Path) -> None:
    (top / "one/SKILL.md").unlink()


def executable(top: Path) -> None:
    (top / "one/more/notes.md").chmod(0o755)


def move(top: Path) -> None:
    (top / "one").rename(top / "moved")


def swap(top: Path) -> None:
    for before, after in (("one", "x"), ("lenient", "one"), ("x", "lenient")):
        (top / before).rename(top / after)


def skill_above(top: Path) -> None:
    plant(top, skills("group"))


def skill_at_the_root(top: Path) -> None:
    plant(top, {"SKILL.md": skill_md("root")})


def record(top: Path) -> None:
    """The folder is what it was, and where it comes from is not."""
    plant(top, {".mcp-skills/skills/one.json": json.dumps({"source": "https://skills.example"})})


def gone(top: Path) -> None:
    shutil.rmtree(top / "one")


CHANGES: Final = [
    write_again, add, remove, rename, recreate, link_to_a_directory, link_to_a_skill, link_to_a_file, hard_link,
    replace_by_a_directory, directory_by_a_file, empty_directory, fill_what_was_empty, nest, manifest, no_manifest,
    executable, move, swap, skill_above, skill_at_the_root, record, gone,
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_between_two_starts_is_found(top: Path, index: Index, change: Callable[[Path], None]) -> None:
    start(top, index)
    change(top)
    again = start(top, index)
    assert all_of(again) == all_of(loaded(top))
    assert all_of(loaded(top, index=index)) == all_of(loaded(top))


@given(st.lists(st.sampled_from(CHANGES), max_size=4, unique=True), st.integers(0, 4))
def test_so_are_changes_one_after_the_other_with_starts_in_between(
    tmp_path_factory: pytest.TempPathFactory, changes: list[Callable[[Path], None]], starts: int
) -> None:
    base = tmp_path_factory.mktemp("changes")
    top, index = plant(base / "root", FILES), Index(base / "index", least=1)
    start(top, index)
    for number, change in enumerate(changes):
        try:
            change(top)
        except OSError:  # what it would change is gone already
            continue
        if number < starts:
            start(top, index)
    assert all_of(loaded(top, index=index)) == all_of(loaded(top))
    shutil.rmtree(base)
