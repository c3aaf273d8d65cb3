"""What a read proves, and what is kept of it."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

import pytest

from catalog.forest import codes, loaded, plant, served, skill_md, skills, together
from mcp_skills_server.catalog import disk
from mcp_skills_server.catalog.disk import digest_of
from mcp_skills_server.catalog.roots import Limits
from mcp_skills_server.errors import StaleFileError
from mcp_skills_server.model import SkillFile
from tables import each_row


@pytest.mark.requirement("S40-18", "X-1", "X-3")
@each_row("raw", [b"", b"a\r\nb\r\n", b"\xef\xbb\xbf# hi", bytes(range(256)), b"x" * 2_000_000])
def test_read_gives_the_exact_bytes_and_the_digest_is_theirs(tmp_path: Path, raw: bytes) -> None:
    registry = loaded(plant(tmp_path, skills("a") | {"a/file": raw}))
    file = registry.snapshot.skills["a"].files["file"]
    assert registry.read(file) == raw
    assert file.digest == digest_of(raw) and file.size == len(raw)


@pytest.mark.requirement("X-5")
def test_a_directory_swapped_for_a_link_is_stale_and_never_the_foreign_bytes(tmp_path: Path) -> None:
    registry = loaded(plant(tmp_path / "root", skills("a") | {"a/ref.md": "hello"}), limits=Limits(links=False))
    plant(tmp_path / "outside", {"SKILL.md": skill_md("a"), "ref.md": "other"})
    shutil.rmtree(tmp_path / "root/a")
    (tmp_path / "root/a").symlink_to(tmp_path / "outside")
    with pytest.raises(StaleFileError) as raised:
        registry.read(registry.snapshot.skills["a"].files["ref.md"])
    registry.rescan(raised.value.path)
    assert served(registry) == [] and codes(registry) == ["link-outside"]


def test_of_a_skill_over_a_limit_no_more_is_read_than_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"a/model.bin": "x" * 1000} | {f"a/{number}": "y" * 100 for number in range(9)}
    real, sizes = disk.ingest, list[int]()

    def ingest(root_path: str, location: str, file: SkillFile, most_bytes: int) -> bytes:
        sizes.append(file.size)
        return real(root_path, location, file, most_bytes)

    monkeypatch.setattr(disk, "ingest", ingest)
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
    file = skill.files["SKILL.md"]
    right = file.digest
    file.digest = "sha256:" + "0" * 64
    with pytest.raises(StaleFileError):
        registry.body(skill)
    file.digest = right
    (tmp_path / "a/SKILL.md").write_text("other")
    with pytest.raises(StaleFileError):
        registry.body(skill)


@pytest.mark.requirement("S40-18", "X-1")
def test_what_read_returns_always_has_the_digest_of_its_entry(tmp_path: Path) -> None:
    """A writer rewrites the file in place, at the same size, as fast as it can."""
    place = plant(tmp_path, skills("a") | {"a/ref.md": "0" * 4096}) / "a/ref.md"
    registry = loaded(tmp_path)
    done, proved = threading.Event(), set[bytes]()

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
                    proved.add(raw)
        finally:
            done.set()

    together(write, read, read)
    registry.refresh()
    assert registry.read(registry.snapshot.skills["a"].files["ref.md"]) == place.read_bytes()


@pytest.mark.requirement("X-5")
@each_row("step", ["root", "root/a", "root/a/refs"])
def test_a_file_is_stale_when_a_directory_above_it_is_swapped(tmp_path: Path, step: str) -> None:
    """The foreign file has the same name, size and time."""
    files = skills("a") | {"a/refs/ref.md": "hello"}
    registry = loaded(plant(tmp_path / "root", files))
    file = registry.snapshot.skills["a"].files["refs/ref.md"]
    assert registry.read(file) == registry.read(file) == b"hello"
    place = tmp_path / step
    scanned = (tmp_path / "root/a/refs/ref.md").stat()
    shutil.copytree(place, tmp_path / "outside")
    (foreign,) = (tmp_path / "outside").rglob("ref.md")
    foreign.write_text("other")
    os.utime(foreign, ns=(scanned.st_atime_ns, scanned.st_mtime_ns))
    place.rename(tmp_path / "away")
    place.symlink_to(tmp_path / "outside")
    with pytest.raises(StaleFileError):
        registry.read(file)
