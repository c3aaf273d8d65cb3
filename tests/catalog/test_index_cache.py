"""The index that one process leaves to the next: it saves work, and changes nothing that anybody sees."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from catalog.following import serves
from catalog.forest import DEADLINE, LONG_AGO, Told, loaded, plant, skill_md, skills, together, view
from catalog.unsafe_files import a_link, folder_writable_by_others, writable_by_others
from mcp_skills_server.catalog import disk, scan
from mcp_skills_server.catalog.index_files import IndexFiles
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.roots import Limits
from mcp_skills_server.catalog.stored_root import StoredRoot, encode
from mcp_skills_server.catalog.watch import Watcher
from mcp_skills_server.errors import StaleFileError

FILES = {
    **skills("one", "group/two", "outer", "outer/inner"),
    "broken/SKILL.md": "---\nname: [\n---\n",
    "lenient/SKILL.md": skill_md("other-name", "flag: true", "list: [1, 2.5, null, ü]", body="# Über\n\n## Und mehr"),
    "one/notes.md": "notes",
    "outer/inner/deep/data.bin": b"\x00\xff",
    "empty/SKILL.md": "",
}


@pytest.fixture
def top(tmp_path: Path) -> Path:
    """A root whose files are old enough for their stat signatures to count."""
    return settle(plant(tmp_path / "root", FILES))


@pytest.fixture
def files(tmp_path: Path) -> IndexFiles:
    """Where the indexes of a test lie."""
    return IndexFiles(tmp_path / "cache" / "index", least=1)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The places of all files that are opened to be read."""
    opened: list[str] = []
    real = disk.read

    def note(root_path: str, file: Any) -> bytes:
        opened.append(file.location)
        return real(root_path, file)

    monkeypatch.setattr(disk, "read", note)
    return opened


@pytest.fixture(autouse=True)
def settled_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ctime of what a test writes cannot be set; so every file is old enough the moment it is written."""
    monkeypatch.setattr(disk, "_SETTLED_NS", 0)


def settle(top: Path) -> Path:
    for path in top.rglob("*"):
        os.utime(path, (LONG_AGO, LONG_AGO))
    return top


def start(top: Path, files: IndexFiles, *, prove: bool = True, limits: Limits | None = None) -> Registry:
    """What a process does: load, compute the digests, leave the index."""
    registry = Registry([top], limits, quiet_s=0, index_files=files)
    registry.load()
    if prove:
        for skill in registry.snapshot.skills.values():
            registry.hash_files(skill)
    registry.keep_index(lambda: False)
    return registry


def digests(registry: Registry) -> dict[str, str | None]:
    return {
        f"{path}:{name}": file.digest
        for path, skill in registry.snapshot.skills.items()
        for name, file in skill.files.items()
    }


def test_a_restart_over_an_unchanged_tree_opens_no_file_and_shows_the_same(
    top: Path, files: IndexFiles, read: list[str]
) -> None:
    first = start(top, files)
    assert read
    read.clear()
    again = Registry([top], quiet_s=0, index_files=files)
    again.load()
    assert read == []
    assert view(again) == view(first) == view(loaded(top))
    usable = {key for key, value in digests(first).items() if value}
    assert {key: digests(again)[key] for key in usable} == {key: digests(first)[key] for key in usable}
    known, stored = ([skill.reading for skill in each.snapshot.skills.values()] for each in (first, again))
    assert any(each.opening_text for each in known) and any(each.headings for each in known)
    assert [each.headings for each in stored] == [each.headings for each in known]
    assert [each.opening_text for each in stored] == [each.opening_text for each in known]


def test_only_what_changed_meanwhile_is_read(top: Path, files: IndexFiles, read: list[str]) -> None:
    start(top, files)
    plant(top, {"one/SKILL.md": skill_md("one", "version: 2"), "new/SKILL.md": skill_md("new")})
    shutil.rmtree(top / "group")
    read.clear()
    again = Registry([top], quiet_s=0, index_files=files)
    again.load()
    assert sorted(read) == ["new/SKILL.md", "one/SKILL.md"]
    assert view(again) == view(loaded(top))


def test_a_rewrite_that_keeps_size_and_time_is_read(top: Path, files: IndexFiles) -> None:
    start(top, files)
    place = top / "one" / "notes.md"
    place.write_bytes(b"other")
    os.utime(place, (LONG_AGO, LONG_AGO))
    again = start(top, files)
    assert again.digest(again.snapshot.skills["one"].files["notes.md"]) == disk.digest_of(b"other")


def test_files_too_young_for_their_signature_are_not_kept(
    top: Path, files: IndexFiles, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "_SETTLED_NS", 10**18)
    start(top, files)
    read.clear()
    start(top, files, prove=False)
    assert "one/SKILL.md" in read


def test_a_clock_that_was_set_back_makes_files_young_again(
    top: Path, files: IndexFiles, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    start(top, files)
    monkeypatch.setattr(disk, "_SETTLED_NS", 10**18)
    read.clear()
    start(top, files, prove=False)
    assert "one/SKILL.md" in read


def rewrite(path: Path, change: Callable[[bytes], bytes], *, honest: bool) -> None:
    """Change what an index holds; `honest` also puts the checksum right."""
    head, _, body = path.read_bytes().partition(b"\n")
    body = change(body)
    if honest:
        head = json.dumps({**json.loads(head), "sha256": hashlib.sha256(body).hexdigest()}).encode()
    path.write_bytes(head + b"\n" + body)


def test_a_false_digest_serves_no_byte_and_is_put_right(top: Path, files: IndexFiles) -> None:
    """Whoever can write the user's files made a digest up, checksum and all."""
    true = disk.digest_of(b"notes")
    false = "sha256:" + "0" * 64
    start(top, files)
    rewrite(files.path(str(top)), lambda body: body.replace(true.encode(), false.encode()), honest=True)
    again = Registry([top], quiet_s=0, index_files=files)
    again.load()
    file = again.snapshot.skills["one"].files["notes.md"]
    assert file.digest == false
    with pytest.raises(StaleFileError) as stale:
        again.read(file)
    again.rescan(stale.value)
    file = again.snapshot.skills["one"].files["notes.md"]
    assert (again.read(file), again.digest(file)) == (b"notes", true)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def change_a_byte(path: Path) -> None:
    rewrite(path, lambda body: body.replace(b"notes", b"motes"), honest=False)


def other_version(path: Path) -> None:
    head, _, body = path.read_bytes().partition(b"\n")
    path.write_bytes(json.dumps({**json.loads(head), "code": "older"}).encode() + b"\n" + body)


def other_root(path: Path) -> None:
    head, _, body = path.read_bytes().partition(b"\n")
    path.write_bytes(json.dumps({**json.loads(head), "root": "/elsewhere"}).encode() + b"\n" + body)


def no_text(path: Path) -> None:
    path.write_bytes(b"\xff" * 99)


def no_object(path: Path) -> None:
    path.write_bytes(b"[]\n[]")


def empty(path: Path) -> None:
    path.write_bytes(b"")


def nested(path: Path) -> None:
    path.write_bytes(b"[" * 200_000)


def lines_of_another_shape(path: Path) -> None:
    def change(body: bytes) -> bytes:
        *lines, directories, end = body.split(b"\n")
        return b"\n".join([*(b'["no", {"reading": 1}]' for _ in lines), directories, end])

    rewrite(path, change, honest=True)


def a_line_too_few(path: Path) -> None:
    rewrite(path, lambda body: body.partition(b"\n")[2], honest=True)


def a_line_too_many(path: Path) -> None:
    rewrite(path, lambda body: b"[{},null]\t\n" + body, honest=True)


@pytest.mark.parametrize(
    "spoil",
    [
        cut, change_a_byte, other_version, other_root, no_text, no_object, empty, nested, lines_of_another_shape,
        a_line_too_few, a_line_too_many, writable_by_others, folder_writable_by_others, a_link,
    ],
)  # fmt: skip
def test_an_index_that_must_not_be_used_is_passed_over_with_one_line(
    top: Path, files: IndexFiles, read: list[str], caplog: pytest.LogCaptureFixture, spoil: Callable[[Path], None]
) -> None:
    start(top, files)
    path = files.path(str(top))
    spoil(path)
    read.clear()
    with caplog.at_level(logging.INFO):
        again = start(top, files)
    assert len([line for line in caplog.messages if "index of an earlier start" in line]) == 1
    assert "one/SKILL.md" in read
    assert view(again) == view(loaded(top))
    if spoil is not folder_writable_by_others:  # only its owner can say that it is his alone
        read.clear()
        start(top, files, prove=False)
        assert read == []


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give a file away")
def test_an_index_of_another_user_is_not_used(top: Path, files: IndexFiles, read: list[str]) -> None:
    start(top, files)
    os.chown(files.path(str(top)), 65534, 65534)
    read.clear()
    start(top, files, prove=False)
    assert "one/SKILL.md" in read


def test_what_is_written_is_the_users_alone(top: Path, files: IndexFiles) -> None:
    start(top, files)
    path = files.path(str(top))
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_what_a_killed_process_left_of_its_writing_goes_away(top: Path, files: IndexFiles) -> None:
    start(top, files)
    path = files.path(str(top))
    left, being_written = path.with_suffix(".1-1"), path.with_suffix(".2-2")
    left.touch()
    os.utime(left, (LONG_AGO, LONG_AGO))
    being_written.touch()
    plant(top, {"one/SKILL.md": skill_md("one", "version: 2")})
    start(top, files)
    assert sorted(path.parent.iterdir()) == sorted([path, being_written])


def test_without_a_place_to_write_all_goes_on(top: Path, tmp_path: Path) -> None:
    plant(tmp_path, {"file": ""})
    registry = start(top, IndexFiles(tmp_path / "file" / "index", least=1))
    assert view(registry) == view(loaded(top))


def test_small_roots_have_none_unless_asked_for(top: Path, tmp_path: Path) -> None:
    start(top, IndexFiles(tmp_path / "index"))
    assert not (tmp_path / "index").exists()


def test_limits_are_kept_whatever_the_index_says(top: Path, files: IndexFiles) -> None:
    start(top, files)
    limits = Limits(skill_md=8)
    again = start(top, files, limits=limits)
    assert view(again) == view(loaded(top, limits=limits))
    assert view(start(top, files)) == view(loaded(top))


def test_two_processes_leave_a_whole_index(top: Path, files: IndexFiles, read: list[str]) -> None:
    """Both write while both read; whatever is found there in the end is whole."""
    together(*(lambda: [start(top, files) for _ in range(5)] and None for _ in range(2)))
    read.clear()
    start(top, files, prove=False)
    assert read == []


def test_an_edit_writes_no_index_until_a_share_of_the_skills_changed(tmp_path: Path, files: IndexFiles) -> None:
    top = plant(tmp_path / "root", skills(*(f"s{number:02}" for number in range(60))))
    registry = start(top, files)
    written = files.path(str(top)).stat().st_ino
    for number in range(4):
        edited = plant(top / f"s{number:02}", {"SKILL.md": skill_md(f"s{number:02}", "version: 2")})
        registry.refresh([str(edited)])
        registry.keep_index(lambda: False)
        assert (files.path(str(top)).stat().st_ino == written) == (number < 3)


def test_a_pause_that_says_stop_leaves_what_was_there(top: Path, files: IndexFiles) -> None:
    registry = Registry([top], index_files=files)
    registry.load()
    registry.keep_index(lambda: True)
    assert not files.path(str(top)).exists()


def test_a_watcher_leaves_the_index_and_the_next_one_begins_with_it(
    top: Path, files: IndexFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[bytes] = []
    written = threading.Event()
    save = files.save
    monkeypatch.setattr(files, "save", lambda *arguments: save(*arguments) and written.set())
    with Watcher(Registry([top], index_files=files)):
        assert written.wait(DEADLINE)
    real = scan.read_skill_md
    monkeypatch.setattr(scan, "read_skill_md", lambda raw, name: parsed.append(raw) or real(raw, name))
    again = Registry([top], index_files=files)
    told = Told(again)
    with Watcher(again):
        told.until(serves("group/two", "one", "outer", "outer/inner"))
        assert parsed == []


@pytest.mark.parametrize("line", [b"", b"{}", b"[1]", b"[[],null]", b'[{"a":1},[[1],{},null,9,[],[]]]', b"\xff", b"1"])
def test_a_line_that_means_nothing_is_as_good_as_none(line: bytes) -> None:
    said: list[int] = []
    raw = (line + b"\n") * 2
    stored = StoredRoot(raw, 0, len(raw), ["one", "two"], complain=lambda: said.append(1))
    assert stored.skill("one").reading is stored.skill("two").reading is None
    assert said == [1]


@pytest.mark.parametrize("directories", [[], ["one"], ["one", "two", "three"]])
def test_there_must_be_one_line_for_each_directory(directories: list[str]) -> None:
    raw = b"[{},null]\t\n" * 2
    with pytest.raises(ValueError, match=r"lines|not found"):
        StoredRoot(raw, 0, len(raw), directories, complain=lambda: None)


def test_the_opening_of_a_body_is_read_when_it_is_asked_for_though_the_index_is_written_anew(
    top: Path, files: IndexFiles
) -> None:
    start(top, files)
    again = Registry([top], quiet_s=0, index_files=files)
    again.load()
    skills, openings = again.snapshot.skills, [each.reading.opening for each in again.snapshot.skills.values()]
    plant(top, {"more/SKILL.md": skill_md("more"), "more/notes.md": "x"})
    start(settle(top), files)
    fresh = loaded(top).snapshot.skills
    assert any(map(callable, openings)) and not any(isinstance(each, str) and each for each in openings)
    assert all(fresh[path].reading.opening_text == skill.reading.opening_text for path, skill in skills.items())


def test_an_index_that_is_overwritten_in_its_place_costs_a_search_the_openings_alone(
    top: Path, files: IndexFiles
) -> None:
    start(top, files)
    again = Registry([top], quiet_s=0, index_files=files)
    again.load()
    path = files.path(str(top))
    usable = [skill for skill in again.snapshot.skills.values() if skill.reading.opening]
    for raw in (b"\xff" * path.stat().st_size, b""):
        path.write_bytes(raw)
        assert {skill.reading.opening_text for skill in usable} == {""}
        assert [encode(skill) for skill in usable] == [None] * len(usable), "the next process reads them anew"


def test_a_number_that_json_cannot_hold_leaves_its_skill_out(top: Path) -> None:
    plant(top, {"one/SKILL.md": skill_md("one", f"huge: {'9' * 5000}")})
    for skill in loaded(top).snapshot.skills.values():
        line = encode(skill)
        assert line is None or json.loads(line.partition(b"\t")[0])
