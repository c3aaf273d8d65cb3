"""A restart lists no folder of an unchanged skill, looks at what it knows, and shows what a scan would find."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalog.forest import loaded, plant, skill_md, skills, view
from mcp_skills_server.catalog import disk, root_index, tree, unchanged
from mcp_skills_server.catalog.index_files import IndexFiles
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.roots import Limits
from mcp_skills_server.catalog.unchanged import FolderMarks, Moment

FILES: Final = {
    **skills("one", "group/two", "outer", "outer/inner"),
    "one/more/notes.md": "notes",
    "one/more/deep/data.bin": b"\x00\xff",
    "lenient/SKILL.md": skill_md("other-name"),
    "lenient/empty/.keep": "",
    "README.md": "of no skill",
}
PLAIN: Final = {"one", "one/more", "one/more/deep", "group/two", "lenient", "lenient/empty"}
"""The directories of skills that need no scan as long as nothing changes."""


@pytest.fixture(autouse=True)
def settled_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file is old enough the moment it is written, and names leave a mark wherever the tests run."""
    monkeypatch.setattr(disk, "_SETTLED_NS", -(10**9))
    on_devices(monkeypatch, lambda path: os.stat(path).st_dev)


def on_devices(monkeypatch: pytest.MonkeyPatch, device: Callable[[str], int | None]) -> None:
    for module in (root_index, unchanged):
        monkeypatch.setattr(module, "timed_device", device)


@pytest.fixture
def top(tmp_path: Path) -> Path:
    return plant(tmp_path / "root", FILES)


@pytest.fixture
def files(tmp_path: Path) -> IndexFiles:
    return IndexFiles(tmp_path / "cache" / "index", least=1)


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the directories below a root that are opened to be listed."""
    opened: list[str] = []
    real = tree.enter

    def note(parent: disk.Handle | None, name: str, *, follow: bool = False) -> disk.Handle:
        opened.append(name)
        return real(parent, name, follow=follow)

    monkeypatch.setattr(tree, "enter", note)
    return opened


def start(top: Path, files: IndexFiles, limits: Limits | None = None) -> Registry:
    """A start that leaves an index behind."""
    registry = Registry([top], limits, quiet_s=0, index_files=files)
    registry.load()
    for skill in registry.snapshot.skills.values():
        registry.hash_files(skill)
    registry.keep_index(lambda: False)
    return registry


def all_of(registry: Registry) -> list[Any]:
    """What a registry shows, with what no listing has."""
    known = registry.snapshot.skills.values()
    return [
        view(registry),
        [(each.path, each.empty, each.origin, each.findings, list(each.files)) for each in known],
        [(file.location, file.executable, file.mtime_reliable) for each in known for file in each.files.values()],
        [(each.reading.headings, each.reading.opening_text, each.reading.problems) for each in known],
    ]


def test_no_directory_of_an_unchanged_skill_is_listed_and_all_is_the_same(
    top: Path, files: IndexFiles, listed: list[str]
) -> None:
    first = start(top, files)
    listed.clear()
    again = loaded(top, index_files=files)
    assert sorted(listed) == ["group", "inner", "outer"], "in an outer skill another lies"
    assert all_of(again) == all_of(first) == all_of(loaded(top))
    known = [file.digest for skill in again.snapshot.skills.values() for file in skill.files.values()]
    assert None not in known


def test_nothing_is_written_anew_while_nothing_changes(top: Path, files: IndexFiles) -> None:
    start(top, files)
    written = files.path(str(top)).stat().st_ino
    start(top, files)
    assert files.path(str(top)).stat().st_ino == written


def as_it_was(place: Path, change: Callable[[], object]) -> None:
    """Make a change and set the times of modification back, as tools do that copy trees."""
    before = [(each, each.stat()) for each in (place, place.parent)]
    change()
    for each, found in before:
        if each.exists():
            os.utime(each, ns=(found.st_atime_ns, found.st_mtime_ns))


def rewrite(top: Path) -> None:
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
    rewrite, add, remove, rename, recreate, link_to_a_directory, link_to_a_skill, link_to_a_file, hard_link,
    replace_by_a_directory, directory_by_a_file, empty_directory, fill_what_was_empty, nest, manifest, no_manifest,
    executable, move, swap, skill_above, skill_at_the_root, record, gone,
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_between_two_starts_is_found(top: Path, files: IndexFiles, change: Callable[[Path], None]) -> None:
    start(top, files)
    change(top)
    again = start(top, files)
    assert all_of(again) == all_of(loaded(top))
    assert all_of(loaded(top, index_files=files)) == all_of(loaded(top))


@given(st.lists(st.sampled_from(CHANGES), max_size=4, unique=True), st.integers(0, 4))
def test_so_are_changes_one_after_the_other_with_starts_in_between(
    tmp_path_factory: pytest.TempPathFactory, changes: list[Callable[[Path], None]], starts: int
) -> None:
    base = tmp_path_factory.mktemp("changes")
    top, files = plant(base / "root", FILES), IndexFiles(base / "index", least=1)
    start(top, files)
    for number, change in enumerate(changes):
        try:
            change(top)
        except OSError:  # what it would change is gone already
            continue
        if number < starts:
            start(top, files)
    assert all_of(loaded(top, index_files=files)) == all_of(loaded(top))
    shutil.rmtree(base)


@pytest.mark.parametrize("at", ["first", "second"])
def test_what_is_young_is_listed(
    top: Path, files: IndexFiles, listed: list[str], monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """Names may come and go under the same signature: at the start that leaves the index, or, if the clock was set
    back, at the next."""
    with monkeypatch.context() as young:
        if at == "first":
            young.setattr(disk, "_SETTLED_NS", 10**18)
        start(top, files)
    if at == "second":
        monkeypatch.setattr(disk, "_SETTLED_NS", 10**18)
    listed.clear()
    loaded(top, index_files=files)
    assert {"one", "more", "deep"} <= set(listed)


def test_a_directory_alone_that_is_young_is_listed(top: Path, files: IndexFiles, listed: list[str]) -> None:
    """Its files are old, and a name may still come without a trace."""
    later = 4_000_000_000
    os.utime(top / "one/more", (later, later))
    start(top, files)
    listed.clear()
    loaded(top, index_files=files)
    assert {"one", "more", "deep"} <= set(listed) and "two" not in listed


def test_where_names_leave_no_mark_all_is_listed(
    top: Path, files: IndexFiles, listed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    start(top, files)
    on_devices(monkeypatch, lambda _: None)
    listed.clear()
    loaded(top, index_files=files)
    assert {"one", "more", "deep"} <= set(listed)


def test_so_it_is_on_another_file_system_below(
    top: Path, files: IndexFiles, listed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    start(top, files)
    on_devices(monkeypatch, lambda path: os.stat(path).st_dev + 1)
    listed.clear()
    start(top, files)
    listed.clear()
    loaded(top, index_files=files)
    assert {"one", "more", "deep"} <= set(listed)


def test_each_directory_is_watched_before_it_is_looked_at(top: Path, files: IndexFiles) -> None:
    entered: list[list[str]] = []
    for edit in (None, "one", "one/more", "one/more/deep"):
        registry = Registry([top], quiet_s=0, index_files=files)
        places: list[str] = []

        def arm(_: str, place: str, places: list[str] = places, edit: str | None = edit) -> None:
            if place == edit and place not in places:
                (top / place / f"{len(entered)}.md").write_text("written as soon as the watch began")
            places.append(place)

        registry.load(arm)
        assert all_of(registry) == all_of(loaded(top))
        entered.append(places)
        start(top, files)
    first, *later = entered
    assert set(first) >= PLAIN
    for places in later:
        assert set(places) == set(first)
        assert all(places.index(each) > places.index(os.path.dirname(each)) for each in places if "/" in each)


def test_limits_hold_whatever_the_index_says(top: Path, files: IndexFiles) -> None:
    start(top, files)
    for limits in (Limits(files=2), Limits(bytes=200), Limits(depth=1), Limits(skill_md=8), Limits(hidden=True)):
        assert all_of(loaded(top, index_files=files, limits=limits)) == all_of(loaded(top, limits=limits))


def test_an_index_that_lost_its_marks_gets_them_back(top: Path, files: IndexFiles, listed: list[str]) -> None:
    """A program left a folder that is ignored in every skill: the skills are the same, their directories are not."""
    start(top, files)
    for place in ("one", "group/two", "lenient"):
        (top / place / "__pycache__").mkdir()
    start(top, files)
    listed.clear()
    loaded(top, index_files=files)
    assert sorted(listed) == ["group", "inner", "outer"]


def made_up(path: Path, change: Callable[[list[Any]], object]) -> None:
    """Change the record of the skill `one` and put the checksum right."""
    head, *lines = path.read_bytes().split(b"\n")
    at = json.loads(lines[-2]).index("one")
    record, _, opening = lines[at].partition(b"\t")
    value = json.loads(record)
    change(value)
    lines[at] = json.dumps(value, separators=(",", ":")).encode() + b"\t" + opening
    body = b"\n".join(lines)
    head = json.dumps({**json.loads(head), "sha256": hashlib.sha256(body).hexdigest()}).encode()
    path.write_bytes(head + b"\n" + body)


FALSE_PATHS: Final = [
    "../secret.md", "more/../../secret.md", "../root/../secret.md", "more//notes.md", "./SKILL.md", "more/.env",
    "/etc/passwd", "nowhere/x", "", "more", "more/\0", "more/\udcff", "more/notes.md/x", "link.md", "linked/x.md",
]  # fmt: skip


@pytest.mark.parametrize("path", FALSE_PATHS)
def test_no_path_of_an_index_that_is_made_up_is_followed(
    top: Path, files: IndexFiles, path: str, listed: list[str]
) -> None:
    """Whoever can write the user's files gives a skill another file, with its right signature and digest."""
    plant(top.parent, {"secret.md": "secret", "root/one/more/.env": "secret", "root/linked/x.md": "x"})
    (top / "one/link.md").symlink_to("more/notes.md")
    start(top, files)
    (top / "one/link.md").unlink()
    start(top, files)
    (top / "one/link.md").symlink_to("../../secret.md")
    (top / "one/linked").symlink_to("../linked")
    place = top / "one" / path.replace("\0", "")
    real = place if os.path.lexists(place) and "\udcff" not in path else top / "one/SKILL.md"
    said = [disk.digest_of(b"secret"), disk.signature(os.stat(real))]
    mark = {each: disk.signature(os.stat(top / "one" / each)) for each in ("", "more", "more/deep")}

    def change(record: list[Any]) -> None:
        record[0][f"one/{path}"] = said
        record[2][0] = unchanged._mark([f"{signature} {each}" for each, signature in mark.items()]).hex()

    made_up(files.path(str(top)), change)
    listed.clear()
    again = loaded(top, index_files=files)
    assert all_of(again) == all_of(loaded(top))
    assert "one" in listed


@pytest.mark.parametrize(
    "inner", ["..", "../root/one/more", "more/..", "linked", "", "/", "more/", ".git", "\0", 7, None]
)
def test_nor_is_a_directory(top: Path, files: IndexFiles, inner: Any) -> None:
    plant(top, {"linked/x.md": "x", "one/.git/x.md": "x"})
    (top / "one/linked").symlink_to("../linked")
    start(top, files)
    (top / "one/linked").unlink()
    start(top, files)
    (top / "one/linked").symlink_to("../linked")
    places = ["", "more", "more/deep", inner]
    lines: list[str] = []
    for each in places:
        place = top / "one" / str(each).replace("\0", "")
        lines.append(f"{disk.signature(place.stat() if place.exists() else top.stat())} {each}")

    def change(record: list[Any]) -> None:
        record[2] = [unchanged._mark(lines).hex(), places[1:], record[2][2]]
        if isinstance(inner, str) and (top / "one" / inner.replace("\0", "") / "x.md").exists():
            place = top / "one" / inner.replace("\0", "") / "x.md"
            record[0][f"one/{inner}/x.md"] = [disk.digest_of(b"x"), disk.signature(place.stat())]

    made_up(files.path(str(top)), change)
    assert all_of(loaded(top, index_files=files)) == all_of(loaded(top))


@pytest.mark.parametrize(
    "folder", [7, "x", [], ["x"], ["x", 1, []], ["x", [[]], {}], [None, None, None], {"a": 1}, ["a0", 7, []]]
)
def test_a_folder_that_means_nothing_is_listed(top: Path, files: IndexFiles, folder: Any) -> None:
    start(top, files)
    made_up(files.path(str(top)), lambda record: record.__setitem__(2, folder))
    assert all_of(loaded(top, index_files=files)) == all_of(loaded(top))


@pytest.mark.parametrize("said", [7, [], ["x"], [7, 7], [None, None], "ab", ["sha256:short", "x"]])
def test_so_is_one_whose_files_mean_nothing(top: Path, files: IndexFiles, said: Any) -> None:
    start(top, files)
    made_up(files.path(str(top)), lambda record: record[0].__setitem__("one/SKILL.md", said))
    assert all_of(loaded(top, index_files=files)) == all_of(loaded(top))


def test_a_directory_that_changed_behind_the_scan_gets_no_mark(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The names that were read are no longer those that a look at it would stand for."""
    monkeypatch.setattr(disk, "_SETTLED_NS", 5)
    skills_there = list(loaded(top).snapshot.skills.values())
    one = next(skill for skill in skills_there if skill.path == "one")
    last = max((top / each).stat().st_ctime_ns for each in ("one", "one/more", "one/more/deep"))
    since = Moment()
    since.ns, drift = last + 6, since.ns - (last + 6)
    since._monotonic_ns -= drift
    assert FolderMarks(str(top), skills_there, since).of(one)
    since.ns -= 1
    assert FolderMarks(str(top), skills_there, since).of(one) == b""


@pytest.mark.parametrize("jump_s", [-3600, -2, 2, 3600])
def test_none_gets_one_after_the_clock_was_set(top: Path, monkeypatch: pytest.MonkeyPatch, jump_s: int) -> None:
    """A change since would have the time of one before."""
    skills_there, since, real = list(loaded(top).snapshot.skills.values()), Moment(), time.time_ns
    marks = FolderMarks(str(top), skills_there, since)
    assert any(map(marks.of, skills_there))
    monkeypatch.setattr(time, "time_ns", lambda: real() + jump_s * 10**9)
    assert not any(map(marks.of, skills_there))


def test_a_scan_that_failed_is_none_that_read_the_names(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = loaded(top)
    before = registry._indexes[0].scanned_since

    def fail(*_: object, **__: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(root_index, "scan", fail)
    registry.refresh()
    assert registry._indexes[0].scanned_since is before
