"""Output files of untrusted scripts: path traversal, symlinks, races and size limits."""

from __future__ import annotations

import errno
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalog.forest import write_files
from mcp_skills_server.catalog import disk
from mcp_skills_server.errors import RequestError
from mcp_skills_server.runtime.scripts import output_files
from mcp_skills_server.runtime.scripts.output_files import OutputFile, files_since, read

POSIX = pytest.mark.skipif(sys.platform == "win32", reason="links and pipes of POSIX")
PARTS = ["..", ".", "", "a", "out", "loop", "file", "up", "\0", "\\", "é", "\n", "/etc/passwd"]


@pytest.fixture(params=[pytest.param("descriptors", marks=POSIX), "paths"])
def access(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Access relative to descriptors, and by full paths, as on Windows."""
    monkeypatch.setattr(disk, "_BY_DESCRIPTOR", request.param == "descriptors")
    return request.param


@pytest.fixture
def top(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_text("secret")
    return write_files(tmp_path / "run", {"a/b/file": "inside", "plain": "plain"})


def error_of(top: Path, path: str, most: int = 100) -> str:
    """Return the one-line message of a refused read."""
    with pytest.raises(RequestError) as caught:
        read(str(top), path, most)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.usefixtures("access")
def test_output_file_is_read_by_relative_path(top: Path) -> None:
    open_files = len(os.listdir("/proc/self/fd"))
    assert read(str(top), "plain", 5) == b"plain"
    assert len(os.listdir("/proc/self/fd")) == open_files, "a descriptor stays open"
    assert read(str(top), "a/b/file", 100) == b"inside"
    assert "has 5 bytes, and at most 4 are read" in error_of(top, "plain", 4)
    for path in ("none", "a/none", "none/file", "plain/file", "a/b/c/d"):
        assert "has no file" in error_of(top, path)
    assert "is a directory" in error_of(top, "a")
    write_files(top, {"d/" * 32 + "x": "deep"})
    assert read(str(top), "d/" * 32 + "x", 4) == b"deep" and "has no file" in error_of(top, "x" * 4096)
    for path in ("", ".", "..", "../secret", "a/../plain", "a//b/file", "/etc/passwd", "a\\..\\b", "d/" * 33 + "x",
                 "x" * 4097):  # fmt: skip
        assert "is not a file path in the work directory" in error_of(top, path)


@POSIX
@pytest.mark.usefixtures("access")
def test_symlinks_and_hard_links_and_pipes_are_refused(top: Path) -> None:
    (top / "link").symlink_to(top.parent / "secret")
    (top / "up").symlink_to("..")
    (top / "a" / "etc").symlink_to("/etc")
    os.link(top.parent / "secret", top / "second")
    os.mkfifo(top / "pipe")
    for path in ("link", "second", "pipe"):
        assert "link or a special file" in error_of(top, path)
    for path in ("up/secret", "a/etc/passwd", "up/run/plain"):
        assert "has no file" in error_of(top, path)
    assert files_since(str(top), 0, 50)[0] == (OutputFile("a/b/file", 6), OutputFile("plain", 5))
    (top.parent / "other").symlink_to(top)
    assert files_since(str(top.parent / "other"), 0, 50) == ((), 0)
    assert "has no file" in error_of(top.parent / "other", "plain")


@POSIX
def test_directory_swapped_for_symlink_is_not_followed(top: Path) -> None:
    """A race: a directory and a symlink to the outside take turns at the same path."""
    write_files(top.parent, {"outside/file": "secret", "run/real/file": "inside"})
    (top / "link").symlink_to(top.parent / "outside")
    done = threading.Event()

    def swap() -> None:
        while not done.is_set():
            for name in ("real", "link"):
                os.rename(top / name, top / "now")
                os.rename(top / "now", top / name)

    thread = threading.Thread(target=swap)
    thread.start()
    contents: set[bytes] = set()
    try:
        for _ in range(3000):
            for name in ("now/file", "real/file", "link/file"):
                with suppress(RequestError):
                    contents.add(read(str(top), name, 100))
    finally:
        done.set()
        thread.join()
    assert contents <= {b"inside"}


@given(st.lists(st.sampled_from(PARTS), max_size=6).map("/".join))
def test_any_path_reads_only_files_inside(tmp_path_factory: pytest.TempPathFactory, path: str) -> None:
    top = tmp_path_factory.getbasetemp() / "any-path"
    if not top.exists():
        write_files(top, {"file": "inside", "a/file": "inside"})
        if sys.platform != "win32":
            for name, target in (("out", "/"), ("up", ".."), ("loop", "loop")):
                (top / name).symlink_to(target)
    with suppress(RequestError):
        assert read(str(top), path, 100) == b"inside"


@POSIX
@pytest.mark.usefixtures("access")
def test_changed_files_are_listed_and_unprintable_names_counted(top: Path) -> None:
    since = os.stat(top / "plain").st_ctime_ns
    assert files_since(str(top), since + 10**15, 50) == ((), 0)
    for name in (b"\xff", b"a\nb", "a\u202eb".encode(), b"back\\slash"):
        Path(os.fsdecode(os.fsencode(top) + b"/" + name)).write_text("x")
    files, more = files_since(str(top), 0, 50)
    assert [each.path for each in files] == ["a/b/file", "plain"] and more == 4
    for number in range(60):
        (top / f"n{number:02}").write_text("x")
    assert OutputFile("plain", 5) in files_since(str(top), since, 99)[0]
    files, more = files_since(str(top), 0, 50)
    assert (len(files), more) == (50, 62 + 4 - 50) and list(files) == sorted(files, key=lambda file: file.path)


@pytest.mark.usefixtures("access")
def test_scan_of_output_files_is_limited_in_depth_and_entries(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for depth in range(1, 41):
        write_files(top, {"d/" * depth + "x": "x"})
    assert len(files_since(str(top), 0, 1000)[0]) == 2 + 32
    names: list[str] = []
    lstat: Callable[..., object] = disk.lstat
    monkeypatch.setattr(disk, "lstat", lambda handle, name: names.append(name) or lstat(handle, name))
    monkeypatch.setattr(output_files, "_MAX_ENTRIES", 10)
    files_since(str(top), 0, 1000)
    assert len(names) == 10


@pytest.mark.usefixtures("access")
@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
@pytest.mark.parametrize("refuse_from", [0, 1, 2, 3])
def test_lack_of_file_descriptors_is_reported_as_temporary(
    top: Path, monkeypatch: pytest.MonkeyPatch, number: int, refuse_from: int
) -> None:
    calls = 0
    original = os.open

    def failing_open(*args: Any, **options: Any) -> int:
        nonlocal calls
        calls += 1
        if calls > refuse_from:
            raise OSError(number, os.strerror(number))
        return original(*args, **options)

    monkeypatch.setattr(os, "open", failing_open)
    if refuse_from >= (4 if disk._BY_DESCRIPTOR else 1):  # the calls of `os.open` for this file
        assert read(str(top), "a/b/file", 100) == b"inside"
    else:
        assert f"cannot be read now ({os.strerror(number)}); try again" in error_of(top, "a/b/file")
