"""SIGKILL of commands: their files are old or new and whole, and the next run completes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from faults.killing import Killer, succeed
from mcp_skills_server.format import archive
from mcp_skills_server.runtime.scripts import approvals
from mcp_skills_server.sources.cache import CacheFolder
from sources.publishers import skill_md

pytestmark = pytest.mark.skipif(os.name == "nt", reason="SIGKILL")


def age_leftovers(file: Path, folder: Path, *others: str) -> None:
    """Assert that a folder has only these files and leftovers of killed runs; age those an hour."""
    for path in folder.iterdir():
        if path != file and path.name not in others:
            assert path.name.startswith(f".{file.name}-") and path.name.endswith(".new")
            info = path.stat()
            os.utime(path, (info.st_atime, info.st_mtime - 4_000))


def test_approvals_are_replaced_atomically(tmp_path: Path) -> None:
    def approved(file: Path) -> set[str]:
        return {each.skill for each in approvals.read(file)}

    packed, file = tmp_path / "skills.zip", tmp_path / "state" / "approvals.json"
    names = [f"skill-{number}" for number in range(3)]
    files = {f"{name}/SKILL.md": (skill_md(name), False) for name in names}
    packed.write_bytes(archive.pack(files)[1])
    words = ["--approvals", str(file), "--cache-dir", str(tmp_path / "cache")]
    killer = Killer(tmp_path / "state", 3)
    size = killer.measure("scripts", "approve", str(packed), names[0], *words)
    for number in range(8):
        name = names[1 + number % 2]
        before = approved(file)
        command, after = ["scripts", "approve", str(packed), name, *words], before | {name}
        if number % 4 > 1:
            command, after = [*command, "--revoke"], before - {name}
        killer.kill(size, *command)
        assert approved(file) in (before, after)
        succeed(*command)
        assert approved(file) == after
    killer.assert_spread()
    age_leftovers(file, file.parent, "approvals.json.lock")
    succeed("scripts", "approve", str(packed), names[0], *words)
    assert sorted(os.listdir(file.parent)) == ["approvals.json", "approvals.json.lock"]


def test_evicted_cache_entries_are_whole_or_gone(tmp_path: Path) -> None:
    cache, root = tmp_path / "cache", tmp_path / "skills.zip"
    root.write_bytes(archive.pack({"a/SKILL.md": (skill_md("a"), False)})[1])
    words = ["list", str(root), "--cache-dir", str(cache), "--cache-size", "1"]
    files = [f"{folder}/{number}" for folder in ("a", "b") for number in range(5)]
    killer = Killer(cache, 4)

    def fill(number: int) -> None:
        for source in range(3):
            top = CacheFolder(cache, "sites", f"https://{number}-{source}.example").skills
            for file in files:
                (top / file).parent.mkdir(exist_ok=True)
                (top / file).write_bytes(b"x")

    def count_entries() -> int:
        """Count the cache entries, each of which must be whole."""
        count = 0
        for entry in (cache / "sites").iterdir():
            if not entry.name.startswith(".gone-"):
                top = entry / "skills"
                paths = [path for path in top.rglob("*") if path.is_file()]
                assert sorted(path.relative_to(top).as_posix() for path in paths) == files
                count += 1
        return count

    fill(0)
    size = killer.measure(*words)
    counts: set[int] = set()
    for number in range(1, 1 + 10):
        fill(number)
        killer.kill(size, *words)
        counts.add(count_entries())
        if number % 2:
            continue
        succeed(*words)
        assert os.listdir(cache / "sites") == []
    assert len(counts) > 1
    killer.assert_spread()
