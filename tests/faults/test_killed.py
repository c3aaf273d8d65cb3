"""SIGKILL of commands: their files are old or new and whole, and the next run completes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from faults.killing import Killer, succeed
from mcp_skills_server.format import archive
from mcp_skills_server.provenance import lock
from mcp_skills_server.runtime.scripts import approvals
from mcp_skills_server.sources.cache import CacheFolder
from publish.test_static import published_files, tree_of
from sources.publishers import Publisher, skill_md
from wire import write_skill

pytestmark = pytest.mark.skipif(os.name == "nt", reason="SIGKILL")


def age_leftovers(file: Path, folder: Path, *others: str) -> None:
    """Assert that a folder has only these files and leftovers of killed runs; age those an hour."""
    for path in folder.iterdir():
        if path != file and path.name not in others:
            assert path.name.startswith(f".{file.name}-") and path.name.endswith(".new")
            info = path.stat()
            os.utime(path, (info.st_atime, info.st_mtime - 4_000))


def test_lock_file_is_replaced_atomically(tmp_path: Path) -> None:
    file = tmp_path / "locks" / "skills.lock"
    file.parent.mkdir()
    words = ["update", "--lock", str(file), "--cache-dir", str(tmp_path / "cache"), "--allow-private"]
    killer = Killer(tmp_path, 1)
    with Publisher() as site:

        def edit(number: int) -> None:
            for skill in range(3):
                site.add(f"skill-{skill}", skill_md(f"skill-{skill}", f"Body {number}."))

        edit(-2)
        succeed("lock", site.url, "--output", str(file), *words[3:])
        edit(-1)
        size = killer.measure(*words)
        for number in range(12):
            edit(number)
            before = file.read_bytes()
            killer.kill(size, *words)
            lock.read(file)
            if number % 2:
                continue  # the next killed run finds the leftovers of this one
            succeed(*words)
            assert file.read_bytes() != before
            assert succeed("update", "--check", *words[1:]) == ""
        killer.assert_spread()
        age_leftovers(file, file.parent)
        edit(-3)
        succeed(*words)
    assert os.listdir(file.parent) == [file.name]


def test_published_tree_is_replaced_atomically(tmp_path: Path) -> None:
    root, output = tmp_path / "skills", tmp_path / "public"
    for number in range(6):
        write_skill(root / f"skill-{number}", references__a_md="a" * 5_000)
    words = ["publish", str(root), "--output", str(output), "--keep", "0"]
    words += ["--cache-dir", str(tmp_path / "cache")]
    killer = Killer(tmp_path, 2)
    indexes: set[tuple[bytes | None, bytes | None]] = set()

    def edit(number: int) -> None:
        for skill in range(6):
            text = f"{number}" * 5_000
            write_skill(root / f"skill-{skill}", body=f"Body {number}.", references__a_md=text)

    succeed(*words)
    edit(-1)
    size = killer.measure(*words)
    for number in range(14):
        edit(number)
        killer.kill(size, *words)
        indexes.add(published_files(output))
        if number % 2:
            continue
        succeed(*words)
        contents = [path.read_bytes() for path in output.rglob("SKILL.md")]
        assert tree_of(output) is not None
        assert f"Body {number}." in str(contents)
        succeed(*words, "--check")
    assert len(indexes) > 2
    killer.assert_spread()
    succeed(*words)
    succeed(*words, "--check")


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
