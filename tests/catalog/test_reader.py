"""Reads that are verified against digests, and files that keep their object while unchanged."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from unittest import mock

import pytest

from catalog.forest import ChangeListener, Patch, load_registry, run_concurrently, skill_md, skills, write_files
from mcp_skills_server.catalog import disk, scan
from mcp_skills_server.catalog.roots import Limits
from mcp_skills_server.errors import StaleFileError
from mcp_skills_server.model.digests import digest_of
from tables import each_row


@pytest.mark.requirement("S40-18", "X-1", "X-3")
@each_row("raw", [b"", b"a\r\nb\r\n", b"\xef\xbb\xbf# hi", bytes(range(256)), b"x" * 3_000_001])
def test_read_returns_the_exact_bytes_of_the_digest(tmp_path: Path, raw: bytes) -> None:
    registry = load_registry(write_files(tmp_path, skills("a") | {"a/file": raw}))
    file = registry.snapshot.skills["a"].files["file"]
    assert registry.read(file) == raw
    assert file.digest == digest_of(raw)
    assert file.size == len(raw)


def test_scan_reads_no_more_of_a_skill_than_its_byte_limit(tmp_path: Path, monkeypatch: Patch) -> None:
    files = {"a/model.bin": "x" * 1000} | {f"a/{number}": "y" * 100 for number in range(9)}
    ingest = mock.Mock(wraps=disk.ingest)
    monkeypatch.setattr(disk, "ingest", ingest)
    load_registry(write_files(tmp_path, skills("a") | files), limits=Limits(bytes=500))
    assert 0 < sum(call.args[2].size for call in ingest.call_args_list) <= 500


@pytest.mark.requirement("S76-7")
def test_body_has_lf_line_ends_and_the_linked_files(tmp_path: Path) -> None:
    text = skill_md("a", body="See [the guide](ref.md), `run.sh` and [nothing](none.md).").replace("\n", "\r\n")
    registry = load_registry(write_files(tmp_path, {"a/SKILL.md": text, "a/ref.md": "x", "a/run.sh": "x"}))
    skill = registry.snapshot.skills["a"]
    body = registry.body(skill)
    assert body.text == "See [the guide](ref.md), `run.sh` and [nothing](none.md)."
    assert dict(body.linked) == {"ref.md": "the guide", "run.sh": ""}
    assert registry.body(skill) is body
    write_files(tmp_path, {"a/SKILL.md": "other"})
    with pytest.raises(StaleFileError):
        registry.body(skill)


@pytest.mark.requirement("S40-18", "X-1")
def test_read_during_rewrites_returns_only_bytes_of_the_digest(tmp_path: Path) -> None:
    """A thread rewrites the file in place, at the same size, all the time."""
    path = write_files(tmp_path, skills("a") | {"a/ref.md": "0" * 4096}) / "a/ref.md"
    registry, done = load_registry(tmp_path), threading.Event()

    def write() -> None:
        number = 0
        while not done.is_set():
            number += 1
            path.write_bytes(b"%d" % (number % 10) * 4096)

    def read() -> None:
        try:
            for _ in range(400):
                file = registry.snapshot.skills["a"].files["ref.md"]
                try:
                    raw = registry.read(file)
                except StaleFileError as stale:
                    registry.rescan(stale.path)
                else:
                    assert digest_of(raw) == file.digest
        finally:
            done.set()

    run_concurrently(write, read, read)
    registry.refresh()
    assert registry.read(registry.snapshot.skills["a"].files["ref.md"]) == path.read_bytes()


def test_refresh_of_touched_files_keeps_the_snapshot(tmp_path: Path) -> None:
    registry = load_registry(
        write_files(tmp_path, skills("a") | {"a/ref.md": "x", "bad/SKILL.md": "x", "c/skill.md": "x"})
    )
    snapshot, listener = registry.snapshot, ChangeListener(registry)
    for path in ("a/ref.md", "a/SKILL.md", "bad/SKILL.md"):
        os.utime(tmp_path / path, (1, 1))
        assert not registry.refresh([str(tmp_path / path)])
    (tmp_path / "a/new").write_text("x")
    (tmp_path / "a/new").rename(tmp_path / "a/ref.md")
    for paths in ([], [str(tmp_path)], None):
        assert not registry.refresh(paths)
    assert registry.snapshot is snapshot
    assert listener.all == []
    assert registry.read(snapshot.skills["a"].files["ref.md"]) == b"x"


def test_rescan_of_a_settled_tree_opens_no_file(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(disk, "_SETTLED_NS", -1_000_000_000_000)
    registry = load_registry(write_files(tmp_path, skills("one", "one/two") | {"one/ref.md": "x"}))
    monkeypatch.setattr(disk, "ingest", None)
    assert not registry.refresh()


def test_read_detects_a_same_signature_rewrite_and_a_rescan_recovers(tmp_path: Path, monkeypatch: Patch) -> None:
    """Two writes within one tick of the clock leave one signature."""
    monkeypatch.setattr(disk, "_SETTLED_NS", -1_000_000_000_000)
    monkeypatch.setattr(disk, "signature", lambda status: f"{status.st_size}")
    registry = load_registry(write_files(tmp_path, skills("a") | {"a/ref.md": "hello"}))
    file = registry.snapshot.skills["a"].files["ref.md"]
    (tmp_path / "a/ref.md").write_bytes(b"other")
    assert not registry.refresh()
    with pytest.raises(StaleFileError) as raised:
        registry.read(file)
    assert registry.rescan(raised.value.path).files == {("a", "ref.md")}
    assert registry.read(registry.snapshot.skills["a"].files["ref.md"]) == b"other"


def test_changed_mode_of_a_file_is_a_change_with_the_same_bytes(tmp_path: Path) -> None:
    registry = load_registry(write_files(tmp_path, skills("a") | {"a/run.sh": "exit 0"}))
    before = registry.snapshot.skills["a"].files["run.sh"]
    (tmp_path / "a/run.sh").chmod(0o755)
    assert registry.refresh().files == {("a", "run.sh")}
    after = registry.snapshot.skills["a"].files["run.sh"]
    assert (before.executable, after.executable) == (False, True)
    assert (before.digest, before.size) == (after.digest, after.size)
    assert not registry.refresh()


def test_signature_of_a_file_that_a_kept_skill_does_not_have_yet_proves_nothing(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    """The scan in the grace period reads the new SKILL.md and keeps the old skill."""
    monkeypatch.setattr(disk, "_SETTLED_NS", -1_000_000_000_000)
    registry = load_registry(write_files(tmp_path, skills("a")))
    registry.follow()
    monkeypatch.setattr(scan, "QUIET_S", 0.0)
    write_files(tmp_path, {"a/SKILL.md": skill_md("other")})
    assert not registry.refresh()
    assert registry.refresh().after["a"].name == "other"
