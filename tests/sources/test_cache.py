"""Cache folders: names, modes, leases, and least-recently-used eviction."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mcp_skills_server.errors import UsageError
from mcp_skills_server.sources.cache import CacheFolder, PrivateFolder, trim

LEASE_SCRIPT = """
import sys
from pathlib import Path
from mcp_skills_server.sources.cache import CacheFolder
folder = CacheFolder(Path(sys.argv[1]), "sites", sys.argv[2])
print(folder.path, flush=True)
sys.stdin.read()
"""


@contextmanager
def lease_in_other_process(cache: Path, origin: str) -> Iterator[subprocess.Popen[str]]:
    """Run a process that leases the folder of an origin."""
    words = [sys.executable, "-c", LEASE_SCRIPT, str(cache), origin]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline()
        yield process
    finally:
        process.kill()
        process.communicate()


def unleased_folder(cache: Path, origin: str, *, size: int, at: float) -> Path:
    """Create a folder whose last lease, which has ended, was taken at this time."""
    path = CacheFolder(cache, "sites", origin).path
    (path / "skill").mkdir()
    (path / "skill" / "SKILL.md").write_bytes(b"x" * size)
    os.utime(path / ".mcp-skills-used", (at, at))
    return path


def test_cache_folder_is_private_and_named_by_origin_and_key(tmp_path: Path) -> None:
    keys = [
        ("sites", "https://Skills.example/a"), ("sites", "https://Skills.example/a", "pin"), ("sites", "https://b.example"),
        ("git", "https://Skills.example/a"), ("sites", "../../../etc"), ("sites", ""),
    ]  # fmt: skip
    paths = [CacheFolder(tmp_path, *each).path for each in keys]
    assert len(set(paths)) == len(paths)
    for path in paths:
        assert path.is_dir()
        assert path.parent.parent == tmp_path
    first = paths[0]
    assert first.parent == tmp_path / "sites"
    assert first.name.startswith("skills.example-a-")
    assert stat.S_IMODE(first.stat().st_mode) == stat.S_IMODE(first.parent.stat().st_mode) == 0o700
    first.chmod(0o777)
    assert CacheFolder(tmp_path, *keys[0]).path == first
    assert stat.S_IMODE(first.stat().st_mode) == 0o755


def test_trim_evicts_least_recently_used_folders_down_to_limit(tmp_path: Path) -> None:
    old, middle, new = (
        unleased_folder(tmp_path, f"https://{at}.example", size=1_000, at=at) for at in (1_000.0, 2_000.0, 3_000.0)
    )
    for most, left in ((3_000, {old, middle, new}), (2_999, {middle, new}), (0, set[Path]())):
        trim(tmp_path, most)
        assert {*(tmp_path / "sites").iterdir()} == left


def test_leased_folder_is_not_evicted(tmp_path: Path) -> None:
    mine = CacheFolder(tmp_path, "sites", "https://mine.example")
    other = "https://other.example"
    path = unleased_folder(tmp_path, other, size=1_000, at=1_000.0)
    (mine.path / "file").write_bytes(b"x" * 1_000)
    with lease_in_other_process(tmp_path, "https://mine.example"):
        pass  # of two leases of this folder one remains
    with lease_in_other_process(tmp_path, other) as process:
        trim(tmp_path, 0)
        assert path.exists()
        process.kill()
        process.wait()
        trim(tmp_path, 0)
        assert not path.exists()
    assert (mine.path / "file").exists()
    del mine
    trim(tmp_path, 0)
    assert not [*(tmp_path / "sites").iterdir()]


def test_leases_of_ended_processes_are_removed_at_the_next_start(tmp_path: Path) -> None:
    origin = "https://other.example"
    for _ in range(3):
        with lease_in_other_process(tmp_path, origin):
            mine = CacheFolder(tmp_path, "sites", origin)
            assert len(os.listdir(mine.path / ".mcp-skills-used")) == 2
        del mine


def test_trim_removes_leftovers_of_killed_process_but_no_link_and_no_other_folder(tmp_path: Path) -> None:
    """`--cache-dir ~` is a mistake that must not delete `~/documents/taxes`."""
    sites, mine, taxes = tmp_path / "cache" / "sites", tmp_path / "mine", tmp_path / "cache" / "documents" / "taxes"
    for folder in (sites / ".gone-0123", mine, taxes):
        folder.mkdir(parents=True)
        (folder / "file").write_bytes(b"x" * 1_000)
    (sites / "link").symlink_to(mine)
    (tmp_path / "cache" / "kind").symlink_to(tmp_path / "elsewhere")
    trim(tmp_path / "cache", 0)
    assert [each.name for each in sites.iterdir()] == ["link"]
    assert (mine / "file").exists()
    assert (taxes / "file").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="no cleaner of temporary files that heeds locks")
def test_private_folder_is_locked_against_cleaners_of_temporary_files() -> None:
    import fcntl

    folder = PrivateFolder()
    descriptor = os.open(folder.skills, os.O_RDONLY)
    with pytest.raises(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # as systemd-tmpfiles does
    del folder
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(descriptor)


@pytest.mark.skipif(sys.platform == "win32", reason="no such locks")
def test_private_folder_works_on_a_file_system_without_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    def flock(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(fcntl, "flock", flock)
    assert PrivateFolder().skills.is_dir()


def test_unwritable_cache_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError, match="the cache cannot be written"):
        CacheFolder(tmp_path / "file", "sites", "https://a.example")
