"""File access below a root: verified reads, no link followed, no descriptor leaked."""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest

from catalog.forest import Patch, consume_walk, load_registry, problem_codes, skill_md, skills, write_files
from mcp_skills_server.catalog import disk, tree
from mcp_skills_server.errors import StaleFileError
from tables import each_row


def file_at(top: Path, location: str) -> disk.WalkedFile:
    return disk.file_from(os.lstat(top / location), location, time.time_ns())


@pytest.mark.requirement("X-5")
def test_open_directory_follows_no_link_in_the_path(tmp_path: Path) -> None:
    write_files(tmp_path, {"outside/b/file.md": "x", "root/real/b/file.md": "x"})
    (tmp_path / "root/a").symlink_to(tmp_path / "outside")
    for path in ("a", "a/b"):
        with pytest.raises(OSError, match="Not a directory"), disk.open_directory(str(tmp_path / "root"), path):
            pass
    with disk.open_directory(str(tmp_path / "root"), "real/b") as handle:
        assert os.listdir(handle) == ["file.md"]


def test_read_continues_after_a_short_read(tmp_path: Path, monkeypatch: Patch) -> None:
    write_files(tmp_path, {"file": "hello"})
    real_read = os.read
    monkeypatch.setattr(os, "read", lambda descriptor, size: real_read(descriptor, min(size, 2)))
    assert disk.read(str(tmp_path / "file"), 5)[0] == b"hello"


def test_file_that_grows_while_read_has_the_digest_of_the_read_bytes(tmp_path: Path, monkeypatch: Patch) -> None:
    write_files(tmp_path, {"file": "hello"})
    file, real_read = file_at(tmp_path, "file"), os.read

    def read(descriptor: int, size: int) -> bytes:
        write_files(tmp_path, {"file": "hello and more"})
        return real_read(descriptor, size)

    monkeypatch.setattr(os, "read", read)
    raw, read_file = disk.ingest(str(tmp_path), "file", file, 100)
    assert (raw, read_file.size, read_file.is_settled) == (b"hello", 5, False)


def test_file_is_stale_if_the_disk_fails_and_the_reason_is_named(tmp_path: Path, monkeypatch: Patch) -> None:
    registry = load_registry(write_files(tmp_path, skills("a")))
    monkeypatch.setattr(os, "read", Mock(side_effect=OSError(errno.EIO, "Input/output error")))
    with pytest.raises(StaleFileError, match="Input/output error"):
        registry.read(registry.snapshot.skills["a"].files["SKILL.md"])


def replace(path: Path, create: Callable[[Path], object]) -> None:
    path.rename(path.with_name("before"))
    create(path)


def save_as_new_file(path: Path) -> None:
    """Replace a file as an editor does, by one of the same size and modification time."""
    found, new = path.stat(), path.with_name("new")
    new.write_text("other")
    os.utime(new, ns=(found.st_atime_ns, found.st_mtime_ns))
    new.rename(path)


# `change` is made to the file after the scan; a new scan then ingests these bytes, or nothing.
@pytest.mark.requirement("X-5")
@each_row(("change", "ingested"), [
    (Path.unlink, None),
    (lambda file: file.write_text("longer than before"), b"longer than before"),
    (lambda file: shutil.rmtree(file.parent), None),
    (save_as_new_file, b"other"),
    (lambda file: replace(file, lambda path: path.symlink_to("../../../secret")), None),
    (lambda file: replace(file.parent, lambda path: path.symlink_to("../../outside")), None),
    (lambda file: replace(file, os.mkfifo), None),
    (lambda file: replace(file, os.mkdir), None),
])  # fmt: skip
def test_changed_or_replaced_file_is_stale(
    tmp_path: Path, change: Callable[[Path], None], ingested: bytes | None
) -> None:
    """No foreign file is read, not even one of the same size behind a link; a FIFO does not block."""
    write_files(tmp_path, {"outside/file": "alien", "secret": "alien", "root/a/SKILL.md": skill_md("a")})
    root = write_files(tmp_path / "root/a", {"d/file": "hello"})
    registry, walked = load_registry(tmp_path / "root"), file_at(root, "d/file")
    file = registry.snapshot.skills["a"].files["d/file"]
    assert registry.read(file) == b"hello"
    change(root / "d/file")
    with pytest.raises(StaleFileError):
        registry.read(file)
    if ingested is None:
        with pytest.raises(OSError, match=r"keeps changing|too large|Not a directory"):
            disk.ingest(str(root), "d/file", walked, 100)
    else:
        raw, read_file = disk.ingest(str(root), "d/file", walked, 100)
        assert (raw, read_file.size, read_file.is_settled) == (ingested, len(ingested), False)


def test_file_is_settled_two_seconds_after_its_last_change(tmp_path: Path) -> None:
    """A writer can set the modification time back or ahead, but not the change time."""
    file = write_files(tmp_path, {"file": "hello"}) / "file"
    for modified_ns in (file.stat().st_mtime_ns, 10**9, time.time_ns() + 60 * 10**9):
        os.utime(file, ns=(0, modified_ns))
        found = file.stat()
        settled = max(found.st_mtime_ns, found.st_ctime_ns) + 2_000_000_001
        assert not disk.file_from(found, "file", settled - 1).is_settled
        assert disk.file_from(found, "file", settled).is_settled


@pytest.mark.requirement("X-5")
# A link to `target` resolves to the file at `location`, or to nothing.
@each_row(("target", "location"), [
    ("file", "s/file"), ("sub/deep", "s/sub/deep"), ("../other/file", "other/file"), ("again", "s/file"),
    ("through/deep", "s/sub/deep"),
    *((each, None) for each in ("nowhere", "link", "round", "sub", ".", "..", "fifo", ".hidden")),
    *((each, None) for each in ("../node_modules/file", "../../root-evil/file", "/etc/passwd", b"sub/\xff")),
])  # fmt: skip
def test_link_resolves_only_to_a_regular_file_in_the_root(
    tmp_path: Path, target: str | bytes, location: str | None
) -> None:
    names = ("s/file", "s/sub/deep", "other/file", "s/.hidden", "node_modules/file", "../root-evil/file")
    root = write_files(tmp_path / "root", dict.fromkeys(names, "x"))
    os.mkfifo(root / "s/fifo")
    for name, other in (("again", "file"), ("through", "sub"), ("round", "link")):
        (root / "s" / name).symlink_to(other)
    Path(os.fsdecode(os.fsencode(root) + b"/s/sub/\xff")).write_text("x")
    (root / "s/link").symlink_to(os.fsdecode(target))
    resolved = disk.resolve_link(str(root), "s", "link")
    if location is None:
        assert resolved is None
    else:
        assert resolved is not None
        assert resolved.location == location


def test_paths_replace_descriptors_on_platforms_without_dir_fd(tmp_path: Path, monkeypatch: Patch) -> None:
    """Windows is such a platform."""
    write_files(tmp_path, {"root/a/b/file.md": "x", "outside/file.md": "x"})
    (tmp_path / "root/link").symlink_to("a/b/file.md")
    (tmp_path / "root/away").symlink_to(tmp_path / "outside")
    monkeypatch.setattr(disk, "_BY_DESCRIPTOR", False)
    root = str(tmp_path / "root")
    with disk.open_directory(root, "") as handle:
        found = consume_walk(tree.Walk(9).read_directory(handle, "", 6))
    file = found.directories[0].directories[0].files["file.md"]
    assert disk.read(f"{root}/{file.location}", file.size)[0] == b"x"
    linked = disk.resolve_link(root, "", "link")
    assert linked is not None and linked.signature == file.signature
    with pytest.raises(NotADirectoryError), disk.open_directory(root, "away"):
        pass


AS_ROOT = pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs root")


@AS_ROOT
@each_row(("name", "code"), [("SKILL.md", "skill-md-irregular"), ("notes.md", "hard-link")])
def test_hard_link_to_a_file_of_another_user_is_not_served(tmp_path: Path, name: str, code: str) -> None:
    """The owner of the folder made the hard link; a symlink to it is not served either."""
    secret, root = write_files(tmp_path, {"secret": skill_md("a")}) / "secret", tmp_path / "root"
    link = write_files(root, skills("a")) / "a" / name
    link.unlink(missing_ok=True)
    os.link(secret, link)
    (root / "a/other.md").symlink_to(name)
    for each in (root, root / "a"):
        os.chown(each, 65534, 65534)
    registry = load_registry(root)
    skill = registry.snapshot.skills["a"]
    assert not {name, "other.md"} & skill.files.keys()
    assert code in problem_codes(skill)
    assert disk.lstat_below(str(root), f"a/{name}") is None
    os.chown(secret, 65534, 65534)
    registry.refresh()
    assert {name, "other.md"} <= registry.snapshot.skills["a"].files.keys()


@AS_ROOT
def test_foreign_single_link_files_and_own_hard_links_are_served(tmp_path: Path) -> None:
    """Package stores and backups have such files."""
    root = (
        write_files(tmp_path, {"store": "x"} | {f"root/{path}": text for path, text in skills("a", "b").items()})
        / "root"
    )
    write_files(root, {"a/notes.md": "notes"})
    os.chown(root / "a", 65534, 65534)
    os.link(tmp_path / "store", root / "b/notes.md")
    for name in "ab":
        (root / name / "other.md").symlink_to("notes.md")
    for skill in load_registry(root).snapshot.skills.values():
        assert {"notes.md", "other.md"} <= skill.files.keys()
        assert not skill.problems


def test_walk_and_failed_reads_leak_no_descriptor(tmp_path: Path) -> None:
    write_files(tmp_path, {"a/b/c/file.md": "x"})
    before = len(os.listdir("/proc/self/fd"))
    with disk.open_directory(str(tmp_path), "") as handle:
        consume_walk(tree.Walk(512).read_directory(handle, "", 6))
    with pytest.raises(OSError, match="No such file"), disk.open_directory(str(tmp_path), "a/nowhere/c"):
        pass
    with pytest.raises(OSError, match="too large"):
        disk.read(str(tmp_path / "a/b/c/file.md"), 0)
    assert len(os.listdir("/proc/self/fd")) == before


def test_ignored_names_are_listed_except_inside_ignored_folders_and_nested_skills(tmp_path: Path) -> None:
    names = ("a/.env", "a/.git/config", "a/b/c.swp", "a/b/d.md", "a/n/SKILL.md", "a/n/.hidden")
    write_files(tmp_path, dict.fromkeys(names, "x"))
    assert tree.ignored_in(str(tmp_path), "a") == [".env", ".git/", "b/c.swp"]
