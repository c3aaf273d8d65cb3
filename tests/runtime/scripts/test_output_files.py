"""Reading what an enemy left: nothing is followed, nothing without a bound is read."""

from __future__ import annotations

import errno
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_skills_server.errors import RequestError
from mcp_skills_server.runtime.scripts import output_files
from mcp_skills_server.runtime.scripts.output_files import OutputFile, files_since, open_directory, read

POSIX = pytest.mark.skipif(sys.platform == "win32", reason="links and pipes of POSIX")
ODD = ["..", ".", "", "a", "out", "loop", "file", "up", "\0", "\\", "é", "\n", "/etc/passwd"]


@pytest.fixture(params=[pytest.param("descriptors", marks=POSIX), "paths"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways; on Windows there is the second alone (11.E: it used what is not there)."""
    monkeypatch.setattr(output_files, "BY_DESCRIPTOR", request.param == "descriptors")
    return request.param


@pytest.fixture
def top(tmp_path: Path) -> Path:
    inner = tmp_path / "work"
    (inner / "a" / "b").mkdir(parents=True)
    (inner / "a" / "b" / "file").write_text("inside")
    (inner / "plain").write_text("plain")
    (tmp_path / "secret").write_text("secret")
    return inner


def refused(top: Path, path: str) -> str:
    with pytest.raises(RequestError) as caught:
        read(str(top), path, 100)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.usefixtures("way")
def test_a_file_is_read_by_its_path(top: Path) -> None:
    assert read(str(top), "plain", 5) == b"plain"
    assert read(str(top), "a/b/file", 100) == b"inside"
    assert "has 5 bytes, and at most 4 are read" in refused_at(top, "plain", 4)
    for path in ("none", "a/none", "none/file", "plain/file", "a/b/c/d"):
        assert "has no file" in refused(top, path)
    assert "is a directory" in refused(top, "a")


def refused_at(top: Path, path: str, most: int) -> str:
    with pytest.raises(RequestError) as caught:
        read(str(top), path, most)
    return str(caught.value)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize(
    "path", ["", ".", "..", "../secret", "a/../plain", "a//b/file", "/etc/passwd", "a\\..\\b", "x/" * 40]
)
def test_a_path_that_is_none_is_refused(top: Path, path: str) -> None:
    assert "is not a file path in the work directory" in refused(top, path)


@POSIX
@pytest.mark.usefixtures("way")
def test_no_link_is_followed_and_no_second_name_read(top: Path) -> None:
    (top / "link").symlink_to(top.parent / "secret")
    (top / "up").symlink_to("..")
    (top / "a" / "etc").symlink_to("/etc")
    os.link(top.parent / "secret", top / "second")
    os.mkfifo(top / "pipe")
    for path in ("link", "second", "pipe"):
        assert "link or a special file" in refused(top, path)
    for path in ("up/secret", "a/etc/passwd", "up/work/plain"):
        assert "has no file" in refused(top, path)
    assert files_since(str(top), 0, 50)[0] == (OutputFile("a/b/file", 6), OutputFile("plain", 5))
    (top.parent / "other").symlink_to(top)
    assert open_directory(str(top.parent / "other")) is None


@POSIX
def test_a_directory_that_is_swapped_for_a_link_meanwhile_leads_nowhere(top: Path) -> None:
    """A race: the last name is a directory in one moment and a link to a place outside in the next."""
    outside = top.parent / "outside"
    outside.mkdir()
    (outside / "file").write_text("secret")
    (top / "real").mkdir()
    (top / "real" / "file").write_text("inside")
    (top / "link").symlink_to(outside)
    ended = threading.Event()

    def swap() -> None:
        while not ended.is_set():
            for name in ("real", "link"):
                os.rename(top / name, top / "now")
                os.rename(top / "now", top / name)

    thread = threading.Thread(target=swap)
    thread.start()
    seen: set[bytes] = set()
    try:
        for _ in range(3000):
            for name in ("now/file", "real/file", "link/file"):
                try:
                    seen.add(read(str(top), name, 100))
                except RequestError:
                    continue
    finally:
        ended.set()
        thread.join()
    assert seen <= {b"inside"}


@given(st.lists(st.sampled_from(ODD), max_size=6).map("/".join))
def test_whatever_is_asked_for_nothing_outside_is_read(tmp_path_factory: pytest.TempPathFactory, path: str) -> None:
    top = tmp_path_factory.getbasetemp() / "asked"
    if not top.exists():
        (top / "a").mkdir(parents=True)
        (top / "file").write_text("inside")
        (top / "a" / "file").write_text("inside")
        if sys.platform != "win32":
            (top / "out").symlink_to("/")
            (top / "up").symlink_to("..")
            (top / "loop").symlink_to("loop")
    try:
        raw = read(str(top), path, 100)
    except RequestError:
        return
    assert raw == b"inside"


@pytest.mark.usefixtures("way")
def test_new_and_changed_files_are_named_and_others_counted(top: Path) -> None:
    since = os.stat(top / "plain").st_ctime_ns
    assert files_since(str(top), since + 10**15, 50) == ((), 0)
    for number in range(60):
        (top / f"n{number:02}").write_text("x")
    files, more = files_since(str(top), since, 50)
    assert len(files) == 50 and more >= 11 and list(files) == sorted(files, key=lambda made: made.path)


@POSIX
@pytest.mark.usefixtures("way")
def test_names_that_a_result_cannot_carry_are_counted_only(top: Path) -> None:
    for name in (b"\xff", b"a\nb", "a\u202eb".encode(), b"back\\slash"):
        (Path(os.fsdecode(os.fsencode(top) + b"/" + name))).write_text("x")
    files, more = files_since(str(top), 0, 50)
    assert [each.path for each in files] == ["a/b/file", "plain"] and more == 4


@pytest.mark.usefixtures("way")
def test_a_deep_or_large_tree_is_looked_at_up_to_a_bound(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = top
    for _ in range(40):
        here /= "d"
        here.mkdir()
        (here / "x").write_text("x")
    assert len(files_since(str(top), 0, 1000)[0]) == 2 + 32
    looked: list[str] = []
    usual: Callable[..., object] = output_files.OutputDirectory.lstat
    monkeypatch.setattr(
        output_files.OutputDirectory, "lstat", lambda self, name: looked.append(name) or usual(self, name)
    )
    monkeypatch.setattr(output_files, "_MAX_ENTRIES", 10)
    files_since(str(top), 0, 1000)
    assert len(looked) == 10


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
@pytest.mark.parametrize("refuse_from", [0, 1, 2, 3])
def test_without_a_descriptor_a_file_is_not_absent_but_cannot_be_read_now(
    top: Path, monkeypatch: pytest.MonkeyPatch, number: int, refuse_from: int
) -> None:
    opened = 0
    usual = os.open

    def limited(*args: Any, **options: Any) -> int:
        nonlocal opened
        opened += 1
        if opened > refuse_from:
            raise OSError(number, os.strerror(number))
        return usual(*args, **options)

    monkeypatch.setattr(os, "open", limited)
    if refuse_from >= (4 if output_files.BY_DESCRIPTOR else 1):
        assert read(str(top), "a/b/file", 100) == b"inside"
    else:
        assert f"cannot be read now ({os.strerror(number)}); try again" in refused(top, "a/b/file")
