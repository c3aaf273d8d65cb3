"""What a read proves, what is kept of it, and that a file that has not changed stays the object that it was."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

import pytest

from catalog.forest import Patch, loaded, plant, skill_md, skills, together
from mcp_skills_server.catalog import disk
from mcp_skills_server.catalog.disk import digest_of
from mcp_skills_server.catalog.roots import Limits
from mcp_skills_server.errors import StaleFileError
from mcp_skills_server.model import SkillFile, Standing
from tables import each_row


@pytest.mark.requirement("S40-18", "X-1", "X-3")
@each_row("raw", [b"", b"a\r\nb\r\n", b"\xef\xbb\xbf# hi", bytes(range(256)), b"x" * 3_000_001])
def test_read_gives_the_exact_bytes_and_the_digest_is_theirs(tmp_path: Path, raw: bytes) -> None:
    registry = loaded(plant(tmp_path, skills("a") | {"a/file": raw}))
    file = registry.snapshot.skills["a"].files["file"]
    assert registry.read(file) == raw
    assert file.digest == digest_of(raw) and file.size == len(raw)


def test_of_a_skill_over_a_limit_no_more_is_read_than_the_limit(tmp_path: Path, monkeypatch: Patch) -> None:
    files = {"a/model.bin": "x" * 1000} | {f"a/{number}": "y" * 100 for number in range(9)}
    real, sizes = disk.ingest, list[int]()
    monkeypatch.setattr(disk, "ingest", lambda *given: sizes.append(given[2].size) or real(*given))
    loaded(plant(tmp_path, skills("a") | files), limits=Limits(bytes=500))
    assert 0 < sum(sizes) <= 500


@pytest.mark.requirement("S76-7")
def test_a_body_is_lf_text_with_the_files_that_it_links_to(tmp_path: Path) -> None:
    text = skill_md("a", body="See [the guide](ref.md), `run.sh` and [nothing](none.md).").replace("\n", "\r\n")
    registry = loaded(plant(tmp_path, {"a/SKILL.md": text, "a/ref.md": "x", "a/run.sh": "x"}))
    skill = registry.snapshot.skills["a"]
    body = registry.body(skill)
    assert body.text == "See [the guide](ref.md), `run.sh` and [nothing](none.md)."
    assert dict(body.linked) == {"ref.md": "the guide", "run.sh": ""}
    assert registry.body(skill) is body
    plant(tmp_path, {"a/SKILL.md": "other"})
    with pytest.raises(StaleFileError):
        registry.body(skill)


@pytest.mark.requirement("S40-18", "X-1")
def test_what_read_returns_always_has_the_digest_of_its_entry(tmp_path: Path) -> None:
    """A writer rewrites the file in place, at the same size, as fast as it can."""
    place = plant(tmp_path, skills("a") | {"a/ref.md": "0" * 4096}) / "a/ref.md"
    registry, done = loaded(tmp_path), threading.Event()

    def write() -> None:
        number = 0
        while not done.is_set():
            number += 1
            place.write_bytes(b"%d" % (number % 10) * 4096)

    def read() -> None:
        try:
            for _ in range(400):
                file = registry.snapshot.skills["a"].files["ref.md"]
                try:
                    raw = registry.read(file)
                except StaleFileError as stale:
                    registry.rescan(stale.path)
                else:
                    assert digest_of(raw) == file.digest and len(raw) == file.size
        finally:
            done.set()

    together(write, read, read)
    registry.refresh()
    assert registry.read(registry.snapshot.skills["a"].files["ref.md"]) == place.read_bytes()


@pytest.mark.requirement("X-5")
@each_row("step", ["root", "root/a", "root/a/refs"])
def test_a_file_is_stale_when_a_directory_above_it_is_swapped(tmp_path: Path, step: str) -> None:
    registry = loaded(plant(tmp_path / "root", skills("a") | {"a/refs/ref.md": "hello"}))
    file = registry.snapshot.skills["a"].files["refs/ref.md"]
    assert registry.read(file) == registry.read(file) == b"hello"
    place, scanned = tmp_path / step, (tmp_path / "root/a/refs/ref.md").stat()
    shutil.copytree(place, tmp_path / "outside")
    (foreign,) = (tmp_path / "outside").rglob("ref.md")
    foreign.write_text("other")
    os.utime(foreign, ns=(scanned.st_atime_ns, scanned.st_mtime_ns))
    place.rename(tmp_path / "away")
    place.symlink_to(tmp_path / "outside")
    with pytest.raises(StaleFileError):
        registry.read(file)


# Files that have not changed


def test_a_touch_is_silent(tmp_path: Path) -> None:
    registry = loaded(plant(tmp_path, skills("a") | {"a/ref.md": "x"}))
    kept = registry.snapshot.skills["a"]
    for path in ("a/ref.md", "a/SKILL.md"):
        os.utime(tmp_path / path, (1, 1))
        assert not registry.refresh([str(tmp_path / path)])
    (tmp_path / "a/new").write_text("x")
    (tmp_path / "a/new").rename(tmp_path / "a/ref.md")
    assert not registry.refresh()
    assert registry.snapshot.skills["a"] is kept
    assert registry.read(kept.files["ref.md"]) == b"x"


def test_a_file_and_the_links_to_it_are_one_and_stay_so(tmp_path: Path) -> None:
    plant(tmp_path, {"one/README.md": skill_md("one"), "one/z/ref.md": "x"})
    (tmp_path / "one/SKILL.md").symlink_to("README.md")
    (tmp_path / "one/a.md").symlink_to("z/ref.md")
    registry = loaded(tmp_path)
    one = registry.snapshot.skills["one"]
    assert one.standing is Standing.VALID
    assert one.files["SKILL.md"] is one.files["README.md"] and one.files["a.md"] is one.files["z/ref.md"]
    assert not registry.refresh()
    plant(tmp_path, {"one/z/ref.md": "other"})
    assert registry.refresh([str(tmp_path / "one/z/ref.md")]).files == {("one", "a.md"), ("one", "z/ref.md")}
    assert not registry.refresh()


def test_a_settled_tree_is_scanned_again_without_opening_a_file(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(disk, "_SETTLED_NS", -1_000_000_000_000)
    registry = loaded(plant(tmp_path, skills("one", "one/two") | {"one/ref.md": "x"}))
    monkeypatch.setattr(disk, "ingest", None)
    assert not registry.refresh()


def same_signature_rewrite(place: Path, file: SkillFile, raw: bytes) -> None:
    """What two writes within one tick of the clock leave: other bytes under the signature of the scan."""
    place.write_bytes(raw)
    file.signature = disk.signature(os.lstat(place))


def test_a_rewrite_under_the_same_signature_of_a_young_file_is_caught_by_the_next_scan(tmp_path: Path) -> None:
    registry = loaded(plant(tmp_path, skills("a") | {"a/ref.md": "hello"}))
    file = registry.snapshot.skills["a"].files["ref.md"]
    same_signature_rewrite(tmp_path / "a/ref.md", file, b"other")
    assert not file.mtime_reliable
    assert registry.refresh().files == {("a", "ref.md")}


def test_a_rewrite_under_the_same_signature_is_caught_by_the_read_and_recovered_from(tmp_path: Path) -> None:
    registry = loaded(plant(tmp_path, skills("a") | {"a/ref.md": "hello"}))
    file = registry.snapshot.skills["a"].files["ref.md"]
    same_signature_rewrite(tmp_path / "a/ref.md", file, b"other")
    with pytest.raises(StaleFileError) as raised:
        registry.read(file)
    assert registry.rescan(raised.value.path).files == {("a", "ref.md")}
    assert registry.read(registry.snapshot.skills["a"].files["ref.md"]) == b"other"
