"""A file that has not changed stays the object that it was."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from catalog.forest import age, loaded, plant, skill_md, skills
from mcp_skills_server.catalog import disk
from mcp_skills_server.catalog.disk import digest_of
from mcp_skills_server.errors import StaleFileError
from mcp_skills_server.model import SkillFile, Standing


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


def test_a_rewrite_that_keeps_size_and_time_is_noticed(tmp_path: Path) -> None:
    registry = loaded(plant(tmp_path, skills("a") | {"a/ref.md": "hello"}))
    found = (tmp_path / "a/ref.md").stat()
    (tmp_path / "a/.tmp").write_text("other")
    os.utime(tmp_path / "a/.tmp", ns=(found.st_atime_ns, found.st_mtime_ns))
    (tmp_path / "a/.tmp").rename(tmp_path / "a/ref.md")
    assert registry.refresh([str(tmp_path / "a/ref.md")]).files == {("a", "ref.md")}


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


def test_a_file_and_the_links_to_it_are_one_and_stay_so(tmp_path: Path) -> None:
    plant(tmp_path, {"one/README.md": skill_md("one"), "one/z/ref.md": "x"})
    (tmp_path / "one/SKILL.md").symlink_to("README.md")
    (tmp_path / "one/a.md").symlink_to("z/ref.md")
    registry = loaded(tmp_path)
    one = registry.snapshot.skills["one"]
    assert one.standing is Standing.VALID
    assert one.files["SKILL.md"] is one.files["README.md"] and one.files["a.md"] is one.files["z/ref.md"]
    assert not registry.refresh()
    (tmp_path / "one/z/ref.md").write_text("other")
    changes = registry.refresh([str(tmp_path / "one/z/ref.md")])
    assert changes.files == {("one", "a.md"), ("one", "z/ref.md")}
    assert not registry.refresh()


def test_a_settled_tree_is_scanned_again_without_opening_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(tmp_path, skills("one", "one/two") | {"one/ref.md": "x"})
    monkeypatch.setattr(disk, "_SETTLED_NS", -1_000_000_000_000)
    age(tmp_path)
    registry = loaded(tmp_path)

    def never(*_: object) -> bytes:
        raise AssertionError("a file was read")

    monkeypatch.setattr(disk, "ingest", never)
    assert not registry.refresh()


def test_a_rewrite_under_the_same_signature_is_caught_by_the_read_and_recovered_from(tmp_path: Path) -> None:
    registry = loaded(plant(tmp_path, skills("a") | {"a/ref.md": "hello"}))
    file = registry.snapshot.skills["a"].files["ref.md"]
    assert file.digest == digest_of(b"hello")
    same_signature_rewrite(tmp_path / "a/ref.md", file, b"other")
    with pytest.raises(StaleFileError) as raised:
        registry.read(file)
    assert registry.rescan(raised.value.path).files == {("a", "ref.md")}
    assert registry.read(registry.snapshot.skills["a"].files["ref.md"]) == b"other"
