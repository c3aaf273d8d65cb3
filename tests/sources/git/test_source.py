"""A folder of a repository as a source: what of a commit comes, what a look costs, and what stays when it fails."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from mcp_skills_server.sources.source import (
    FetchLimits,
    FetchSettings,
    SourceError,
    UnacceptableError,
    UnreachableError,
)
from sources.fetching import fetch_to_cache, open_follower, read_tree, skill_names
from sources.git.remotes import BASE, SKILL_PATHS, GitServer, Upstream, served_paths, skill
from sources.publishers import skill_md
from tables import each_row
from wire import DEADLINE

pytestmark = pytest.mark.needs_program("git")


@pytest.mark.parametrize("filters", [True, False])
def test_the_skills_of_a_commit_come_and_nothing_else(filters: bool, tmp_path: Path) -> None:
    upstream = Upstream(tmp_path / "a.git", filters=filters)
    upstream.commit(BASE)
    follower = fetch_to_cache(upstream.url, tmp_path)
    assert served_paths(follower) == SKILL_PATHS
    assert (follower.path / "skills/alpha/references/guide.md").read_bytes() == b"guide\n"
    assert (follower.path / "skills/alpha/scripts/run.sh").stat().st_mode & 0o777 == 0o755
    assert (follower.path / "skills/beta/SKILL.md").stat().st_mode & 0o777 == 0o644
    assert follower.state.ready and follower.state.trouble is None


def test_a_repository_may_have_ids_of_sha256(tmp_path: Path) -> None:
    upstream = Upstream(tmp_path / "a.git", ids="sha256")
    commit = upstream.commit(BASE)
    follower = fetch_to_cache(upstream.url, tmp_path)
    assert served_paths(follower) == SKILL_PATHS and len(commit) == 64
    upstream.commit({**BASE, **skill("gamma")})
    anyio.run(follower.refresh)
    assert "skills/gamma/SKILL.md" in served_paths(follower)
    pinned = fetch_to_cache(f"{upstream.url}@{commit}", tmp_path)
    assert served_paths(pinned) == SKILL_PATHS


def test_a_name_or_an_id_says_which_commit(upstream: Upstream, tmp_path: Path) -> None:
    commit = upstream.commit({**BASE, **skill("gamma")}, "other", parent="refs/heads/main")
    upstream.git("tag", "v1", commit)
    upstream.git("-c", "user.name=n", "-c", "user.email=n@example.com", "tag", "-a", "-m", "x", "v2", commit)
    for ref in ("other", "v1", "v2", commit, "refs/heads/other"):
        follower = fetch_to_cache(f"{upstream.url}@{ref}", tmp_path)
        assert follower.state.revision == commit and "skills/gamma/SKILL.md" in served_paths(follower)


def test_a_folder_of_it_is_the_root(upstream: Upstream, tmp_path: Path) -> None:
    assert served_paths(fetch_to_cache(f"{upstream.url}#skills", tmp_path)) == [
        path.removeprefix("skills/") for path in SKILL_PATHS
    ]


@pytest.mark.parametrize("folder", ["#skills/alpha", ""])
def test_one_that_is_a_skill_lies_in_a_folder_of_its_own_name(folder: str, upstream: Upstream, tmp_path: Path) -> None:
    if not folder:
        upstream.commit({"SKILL.md": skill_md("alpha"), "inner/SKILL.md": skill_md("inner"), ".github/x": b""})
    follower = fetch_to_cache(upstream.url + folder, tmp_path)
    assert "alpha/SKILL.md" in served_paths(follower) and skill_names(follower.path) == ["alpha"]


def test_a_look_at_an_unchanged_one_asks_for_names_alone(server: GitServer, upstream: Upstream, tmp_path: Path) -> None:
    follower = fetch_to_cache(f"{server.url}/acme.git", tmp_path)
    before = read_tree(follower.path)
    for again in (follower, open_follower(f"{server.url}/acme.git", tmp_path)):
        server.asked.clear()
        anyio.run(again.refresh)
        assert server.paths == ["/acme.git/info/refs?service=git-upload-pack", "/acme.git/git-upload-pack"]
    assert read_tree(follower.path) == before
    pinned = f"{server.url}/acme.git@{follower.state.revision}"
    fetch_to_cache(pinned, tmp_path)
    server.asked.clear()
    assert served_paths(fetch_to_cache(pinned, tmp_path)) == SKILL_PATHS and not server.asked


def test_the_copy_of_an_earlier_version_is_found(tmp_path: Path) -> None:
    assert open_follower("git+https://git.example/a", tmp_path).path.parent.name == "git.example-a-820148f7e96a"
    assert open_follower("sqlite:skills.db", tmp_path).path.parent.name == "41b64cabb602"


def test_a_skill_may_take_the_place_of_one_above_it(upstream: Upstream, tmp_path: Path) -> None:
    upstream.commit({**skill("gamma"), **skill("delta", folder="skills/gamma/")})
    follower = fetch_to_cache(upstream.url, tmp_path)
    assert served_paths(follower) == ["skills/gamma/SKILL.md", "skills/gamma/delta/SKILL.md"]
    upstream.commit(skill("delta", folder="skills/gamma/"))
    anyio.run(follower.refresh)
    assert served_paths(follower) == ["skills/gamma/delta/SKILL.md"]


@pytest.mark.parametrize(("folder", "size"), [("#skills", 5_000), ("", 2 << 20)])
def test_files_beside_the_skills_are_not_downloaded(folder: str, size: int, upstream: Upstream, tmp_path: Path) -> None:
    """Of one folder nothing else, of a whole repository nothing large."""
    upstream.commit({**BASE, **skill("alpha", big=bytes(size)), "src/large.bin": os.urandom(size)})
    follower = fetch_to_cache(upstream.url + folder, tmp_path)
    assert any(path.stat().st_size == size for path in follower.path.rglob("big"))
    objects = next((tmp_path / "git").glob("*/objects"))
    assert sum(path.stat().st_size for path in objects.rglob("*.pack")) < size


@each_row(("ref", "reason"), [
    ("@gone", "there is no branch or tag 'gone'"),
    ("@abcdef1", "there is no branch or tag 'abcdef1'; a commit is named by its whole id"),
    ("@" + "1" * 40, "git could not fetch it"), ("#nowhere", "has no folder 'nowhere'"),
    ("#README.md", "has no folder 'README.md'"),
])  # fmt: skip
def test_what_is_not_there_is_one_line(ref: str, reason: str, upstream: Upstream, tmp_path: Path) -> None:
    with pytest.raises(SourceError) as failed:
        fetch_to_cache(upstream.url + ref, tmp_path)
    assert reason in str(failed.value) and "\n" not in str(failed.value)


def test_no_repository_and_an_empty_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(UnreachableError, match="there is no repository there"):
        fetch_to_cache(f"git+file://{tmp_path}/none.git", tmp_path)
    upstream = Upstream(tmp_path / "empty.git")
    with pytest.raises(UnacceptableError, match="it is empty"):
        fetch_to_cache(upstream.url, tmp_path)
    upstream.commit({"README.md": b"no skill"})
    fetch_to_cache(upstream.url, tmp_path)
    assert "it has no SKILL.md; name another #folder or @branch" in caplog.text


def test_no_git_is_one_line(upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnreachableError, match="the program git is not installed"):
        fetch_to_cache(upstream.url, tmp_path)


@pytest.mark.parametrize(("ref", "change", "reason"), [
    ("", lambda up: up.commit(skill("evil"), orphan=True), "'HEAD' was rewritten"),
    ("@v1", lambda up: up.git("tag", "--force", "v1", up.commit(skill("evil"))), "the tag 'v1' was moved"),
    ("@main", lambda up: up.git("update-ref", "-d", "refs/heads/main"), "there is no branch or tag 'main'"),
    ("#skills", lambda up: up.commit(skill("evil", folder="")), "has no folder 'skills'"),
])  # fmt: skip
def test_what_takes_the_place_of_another_is_refused_and_the_last_copy_stays(  # noqa: PLR0917
    ref: str,
    change: Callable[[Upstream], object],
    reason: str,
    upstream: Upstream,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    upstream.git("tag", "v1", "main")
    follower = fetch_to_cache(upstream.url + ref, tmp_path)
    before = read_tree(follower.path)
    change(upstream)
    for again in (follower, follower, open_follower(upstream.url + ref, tmp_path)):
        with pytest.raises(UnacceptableError, match=reason):
            anyio.run(again.refresh)
        assert read_tree(again.path) == before
    if reason.endswith(("rewritten", "moved")):
        assert served_paths(fetch_to_cache(upstream.url + ref, tmp_path, rewritten=True)) == ["skills/evil/SKILL.md"]
        assert reason in caplog.text


@pytest.mark.parametrize("filters", [True, False])
def test_many_commits_later_is_no_rewriting(filters: bool, tmp_path: Path) -> None:
    upstream = Upstream(tmp_path / "a.git", filters=filters)
    upstream.commit(BASE)
    follower = fetch_to_cache(upstream.url, tmp_path)
    for number in range(20):
        upstream.commit({**BASE, **skill("gamma", str(number))})
    anyio.run(follower.refresh)
    assert b"19" in (follower.path / "skills/gamma/SKILL.md").read_bytes()


def test_objects_that_are_damaged_are_fetched_again(upstream: Upstream, tmp_path: Path) -> None:
    follower = fetch_to_cache(upstream.url, tmp_path)
    for pack in tmp_path.glob("git/*/objects/objects/pack/*.pack"):
        os.chmod(pack, 0o600)
        pack.write_bytes(b"damaged")
    upstream.commit({**BASE, **skill("gamma")})
    for _ in range(2):
        try:
            anyio.run(follower.refresh)
        except UnreachableError:
            continue
    assert "skills/gamma/SKILL.md" in served_paths(follower)


def test_a_fetch_that_is_over_its_time_is_ended(upstream: Upstream, tmp_path: Path) -> None:
    limits = FetchSettings(limits=FetchLimits(total_s=0.001))
    with pytest.raises(UnreachableError, match="no answer"):
        fetch_to_cache(upstream.url, tmp_path, fetch=limits)


def test_too_many_skills_or_bytes_are_refused_as_a_whole(upstream: Upstream, tmp_path: Path) -> None:
    limited = (FetchLimits(skills=1), "more than 1 skills"), (FetchLimits(unpacked_bytes=90), "more than 90")
    for limits, reason in limited:
        with pytest.raises(UnacceptableError, match=reason):
            fetch_to_cache(upstream.url, tmp_path, fetch=FetchSettings(limits=limits))


SCRIPT = """
import os, sys
from pathlib import Path
from mcp_skills_server.sources.git.program import Git
out = os.dup2(1, 40)  # what it says is read there, also where nothing else is open
os.closerange(int(sys.argv[2]), 20)
os.write(out, Git(Path(sys.argv[1]), "", "none").run("hash-object", "--stdin", seconds=10, given=b"given\\n"))
"""


@pytest.mark.parametrize("first", [0, 3])
def test_what_is_given_to_git_is_its_stdin_whichever_descriptors_are_free(first: int, tmp_path: Path) -> None:
    """A server whose lowest descriptors are free would give them to what is meant for git."""
    words = [sys.executable, "-c", SCRIPT, str(tmp_path / "none"), str(first)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=DEADLINE, check=False)
    expected = hashlib.sha1(b"blob 6\0given\n", usedforsecurity=False).hexdigest()
    assert done.stdout.strip() == expected, done.stderr
