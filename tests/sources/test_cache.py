"""The cache: who uses what, and what goes when there is too much."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mcp_skills_server.errors import UsageError
from mcp_skills_server.sources.cache import CacheFolder, trim

HOLD = """
import sys
from pathlib import Path
from mcp_skills_server.sources.cache import CacheFolder
folder = CacheFolder(Path(sys.argv[1]), "sites", sys.argv[2])
print(folder.path, flush=True)
sys.stdin.read()
"""


@contextmanager
def in_use(cache: Path, origin: str) -> Iterator[subprocess.Popen[str]]:
    """Another process that uses the folder of an origin."""
    words = [sys.executable, "-c", HOLD, str(cache), origin]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline()
        yield process
    finally:
        process.kill()
        process.communicate()


def used_before(cache: Path, origin: str, *, size: int, at: float) -> Path:
    """A folder that a process used at this moment of the epoch, and uses no longer."""
    path = CacheFolder(cache, "sites", origin).path
    (path / "skill").mkdir()
    (path / "skill" / "SKILL.md").write_bytes(b"x" * size)
    os.utime(path / ".mcp-skills-used", (at, at))
    return path


def test_each_origin_and_each_question_has_a_folder_with_a_name_that_says_whose_it_is(tmp_path: Path) -> None:
    asked = [
        ("sites", "https://Skills.example/a"), ("sites", "https://Skills.example/a", "pin"), ("sites", "https://b.example"),
        ("git", "https://Skills.example/a"), ("sites", "../../../etc"), ("sites", ""),
    ]  # fmt: skip
    made = [CacheFolder(tmp_path, *each).path for each in asked]
    assert len(set(made)) == len(made) and all(path.is_dir() and path.parent.parent == tmp_path for path in made)
    assert made[0].parent == tmp_path / "sites" and made[0].name.startswith("skills.example-a-")
    assert stat.S_IMODE(made[0].stat().st_mode) == stat.S_IMODE(made[0].parent.stat().st_mode) == 0o700
    made[0].chmod(0o777)
    assert CacheFolder(tmp_path, *asked[0]).path == made[0] and stat.S_IMODE(made[0].stat().st_mode) == 0o755


def test_the_longest_unused_goes_first_and_only_as_much_as_must(tmp_path: Path) -> None:
    moments = 1_000.0, 2_000.0, 3_000.0
    old, middle, new = (used_before(tmp_path, f"https://{at}.example", size=1_000, at=at) for at in moments)
    for most, left in ((3_000, {old, middle, new}), (2_999, {middle, new}), (0, set[Path]())):
        trim(tmp_path, most)
        assert {*(tmp_path / "sites").iterdir()} == left


def test_what_is_in_use_stays_whatever_it_takes(tmp_path: Path) -> None:
    mine, other = CacheFolder(tmp_path, "sites", "https://mine.example"), "https://other.example"
    path = used_before(tmp_path, other, size=1_000, at=1_000.0)
    (mine.path / "file").write_bytes(b"x" * 1_000)
    with in_use(tmp_path, "https://mine.example"):
        pass  # one of two still uses it
    with in_use(tmp_path, other) as process:
        trim(tmp_path, 0)
        assert path.exists()
        process.kill()
        process.wait()
        trim(tmp_path, 0)
        assert not path.exists()  # whoever was killed uses nothing
    assert (mine.path / "file").exists()
    del mine
    trim(tmp_path, 0)
    assert not [*(tmp_path / "sites").iterdir()]


def test_what_a_killed_process_was_removing_is_removed_and_no_link_is_followed(tmp_path: Path) -> None:
    sites, mine = tmp_path / "cache" / "sites", tmp_path / "mine"
    for folder in (sites / ".gone-0123", mine):
        folder.mkdir(parents=True)
        (folder / "file").write_bytes(b"x" * 1_000)
    (sites / "link").symlink_to(mine)
    (tmp_path / "cache" / "kind").symlink_to(tmp_path / "elsewhere")
    trim(tmp_path / "cache", 0)
    assert [each.name for each in sites.iterdir()] == ["link"] and (mine / "file").exists()


def test_where_nothing_can_be_written_it_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError, match="the cache cannot be written"):
        CacheFolder(tmp_path / "file", "sites", "https://a.example")
