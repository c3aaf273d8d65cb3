"""SIGKILL of runs that fetch a source: each skill is old or new and whole, and none is lost."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from faults.killing import Killer, succeed
from mcp_skills_server.format.archive import Files
from sources.git.remotes import Upstream
from sources.publishers import Publisher, skill_md

pytestmark = pytest.mark.skipif(os.name == "nt", reason="SIGKILL")

NAMES = [f"skill-{number}" for number in range(6)]


def names(number: int) -> set[str]:
    """Return the names in a version of the source. Each version lacks another skill."""
    return {*NAMES} - {NAMES[number % len(NAMES)]}


def version(name: str, number: int) -> Files:
    """Return the files of a skill in a version. All versions of a file differ."""
    text = f"This is version {number}.\n".encode() * 200
    files = {"SKILL.md": (skill_md(name, f"Version {number}."), False)}
    paths = ("references/rules.md", "references/deep/more.md", "scripts/run.sh")
    for path in (*paths, f"assets/only-in-{number}.bin"):
        files[path] = (path.encode() + b" " + text, path.endswith(".sh"))
    return files


def read_files(folder: Path) -> Files:
    files: Files = {}
    for path in folder.rglob("*"):
        if not path.is_dir():
            is_executable = bool(path.stat().st_mode & 0o100)
            files[path.relative_to(folder).as_posix()] = (path.read_bytes(), is_executable)
    return files


def kill_fetches(
    kind: str,
    source: str,
    tmp_path: Path,
    publish: Callable[[int], None],
    kills: int,
    *,
    set_offline: Callable[[bool], object] | None = None,
    output: Path | None = None,
) -> None:
    """Fetch version after version of a source, killing most of the runs, and check the skills.

    Args:
        kind: the kind of the source, which is the name of its folder in the cache.
        publish: puts the source into a version.
        set_offline: makes the source unreachable, or reachable again.
        output: the folder to fetch to; None for the cache.
    """
    cache = output or tmp_path / "cache"
    words = ["list", source, "--cache-dir", str(cache), "--allow-private"]
    if output is not None:
        words = ["fetch", source, "--output", str(output), "--allow-private", "--prune"]
    killer = Killer(cache, 6)

    def skills_folder() -> Path:
        if output is not None:
            return output
        (folder,) = (cache / kind).iterdir()
        return folder / "skills"

    def versions(newest: int) -> dict[str, int]:
        """Return the version of each fetched skill, which must be whole."""
        out: dict[str, int] = {}
        for path in skills_folder().iterdir():
            if path.name in NAMES:
                files = read_files(path)
                matching = [each for each in range(newest + 1) if version(path.name, each) == files]
                (out[path.name],) = matching
        return out

    publish(0)
    first = killer.measure(*words)
    shutil.rmtree(cache)
    for _ in range(kills // 4):  # first fetches
        killer.kill(first, *words)
        versions(0)
    succeed(*words)
    assert versions(0) == dict.fromkeys(names(0), 0)
    publish(1)
    update = killer.measure(*words)
    kept = names(1)
    for number in range(2, 2 + kills - kills // 4):
        publish(number)
        kept &= names(number)
        killer.kill(update, *words)
        missing = kept - versions(number).keys()  # killed between removal and replacement
        if missing and set_offline is not None:
            set_offline(True)
            succeed(*words)
            assert kept <= versions(number).keys()
            set_offline(False)
        if number % 2 == 0:  # otherwise the next killed run finds the leftovers
            succeed(*words)
            assert versions(number) == dict.fromkeys(names(number), number)
            kept = names(number)
    killer.assert_spread()
    publish(kills + 2)
    succeed(*words)
    assert versions(kills + 2) == dict.fromkeys(names(kills + 2), kills + 2)
    for stage in (skills_folder() / ".mcp-skills/stage", skills_folder().parent / "stage"):
        assert not stage.is_dir() or not [*stage.iterdir()]


def test_killed_fetch_of_site_into_a_folder_loses_no_skill(tmp_path: Path) -> None:
    with Publisher() as site:

        def publish(number: int) -> None:
            site.entries = []
            for name in names(number):
                site.pack(name, version(name, number))

        kill_fetches("sites", site.url, tmp_path, publish, 12, output=tmp_path / "own")


@pytest.mark.needs_program("git")
def test_killed_fetch_of_git_source_loses_no_skill(tmp_path: Path) -> None:
    upstream = Upstream(tmp_path / "remotes" / "acme.git")

    def publish(number: int) -> None:
        files: Files = {}
        for name in names(number):
            for path, file in version(name, number).items():
                files[f"skills/{name}/{path}"] = file
        upstream.commit(files)

    def set_offline(is_offline: bool) -> None:
        hidden = upstream.directory.with_name("hidden")
        if is_offline:
            upstream.directory.rename(hidden)
        else:
            hidden.rename(upstream.directory)

    kill_fetches("git", f"{upstream.url}#skills", tmp_path, publish, 12, set_offline=set_offline)
