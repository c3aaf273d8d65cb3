"""Refresh of a git source by the difference of two commits: the same copy as a fetch of the whole commit."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path

import anyio
import pytest

from mcp_skills_server.sources.mirrors import Follower
from mcp_skills_server.sources.records import read_index
from sources.fetching import QUICK, open_follower, read_tree
from sources.git.remotes import SUBMODULE, Content, Upstream, link, skill
from sources.publishers import skill_md

pytestmark = pytest.mark.needs_program("git")
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 5\n"
FOLDERS = ("", "a", "a/b", "a/b/c", "A", "a/B", "d", "e:f", ".dot/x", "a/.hidden", "[z]*", "é")
NAMES: Mapping[str, tuple[Content, ...]] = {
    "SKILL.md": (skill_md("one"), skill_md("two"), link("x.md")),
    "skill.md": (skill_md("one"),),
    "x.md": (b"one", b"two", (b"two", True), LFS, link("../x"), SUBMODULE),
    ".DS_Store": (b"",),
    "b": (b"a file where others have a folder",),
}


def state_of(follower: Follower) -> tuple[object, ...]:
    """Return what a follower serves and reports."""
    index = read_index(follower.source.place, follower.source.key)
    assert index is not None
    extent = index.extent[:2]
    files = {path: raw for path, raw in read_tree(follower.path).items() if raw != "directory"}
    problems = sorted((each.path, each.message) for each in follower._problems)
    known = sorted(index.refused.items()), sorted(index.warnings), index.skills, extent, set(index.units)
    return files, problems, sorted(follower._lines), follower.state.revision, known


def change(files: dict[str, Content], dice: random.Random) -> None:
    """Write or remove a file at random, and what cannot be beside it."""
    folder, name = dice.choice(FOLDERS), dice.choice([*NAMES])
    if folder in {"", "a/b", "A", "a/B"} and dice.random() < 0.9:  # few changes of the whole
        return
    path = f"{folder}/{name}".lstrip("/")
    if dice.random() < 0.4:
        for other in [each for each in files if each == path or each.startswith(f"{path}/")]:
            del files[other]
        return
    above = [path[:at] for at, char in enumerate(path) if char == "/"]
    for other in [each for each in files if each in above or each.startswith(f"{path}/")]:
        del files[other]
    files[path] = dice.choice(NAMES[name])


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("suffix", ["", "#a"])
def test_copy_is_that_of_the_whole_commit(seed: int, suffix: str, upstream: Upstream, tmp_path: Path) -> None:
    dice = random.Random(f"{seed}{suffix}")
    files: dict[str, Content] = {**skill("base", folder="a/"), **skill("kept", folder="a/k/")}
    upstream.commit(files)
    follower = open_follower(f"{upstream.url}{suffix}", tmp_path / "cache", QUICK)
    anyio.run(follower.refresh)
    for number in range(10):
        for _ in range(dice.randint(1, 4)):
            change(files, dice)
        upstream.commit(files)
        if dice.random() < 0.2:  # another process, which finds the copy of this one
            follower = open_follower(f"{upstream.url}{suffix}", tmp_path / "cache", QUICK)
        anyio.run(follower.refresh)
        fresh = open_follower(f"{upstream.url}{suffix}", tmp_path / f"fresh{number}", QUICK)
        anyio.run(fresh.refresh)
        assert state_of(follower) == state_of(fresh), sorted(files)
