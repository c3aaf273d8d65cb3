"""Git source: selection of files, cost of a poll, and failures that keep the last copy."""

from __future__ import annotations

import hashlib
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from mcp_skills_server.sources.git.source import GitFolder
from mcp_skills_server.sources.reconcile import reconcile
from mcp_skills_server.sources.records import IndexRecord
from mcp_skills_server.sources.source import (
    FetchLimits,
    FetchSettings,
    SourceError,
    SourceSettings,
    UnacceptableError,
    UnreachableError,
)
from sources.fetching import (
    fetch_to_cache,
    fetch_to_folder,
    open_follower,
    read_tree,
    skill_names,
    warnings_of_refresh,
)
from sources.git.remotes import BASE, SKILL_PATHS, GitServer, Upstream, served_paths, skill
from sources.publishers import skill_md
from tables import each_row
from wire import DEADLINE

pytestmark = pytest.mark.needs_program("git")


@pytest.mark.parametrize("filters", [True, False])
def test_only_skills_of_a_commit_are_fetched(filters: bool, tmp_path: Path) -> None:
    upstream = Upstream(tmp_path / "a.git", filters=filters)
    upstream.commit(BASE)
    follower = fetch_to_cache(upstream.url, tmp_path)
    assert served_paths(follower) == SKILL_PATHS
    assert (follower.path / "skills/alpha/references/guide.md").read_bytes() == b"guide\n"
    assert (follower.path / "skills/alpha/scripts/run.sh").stat().st_mode & 0o777 == 0o755
    assert (follower.path / "skills/beta/SKILL.md").stat().st_mode & 0o777 == 0o644
    assert follower.state.ready
    assert follower.state.trouble is None


def test_sha256_repository_is_fetched(tmp_path: Path) -> None:
    upstream = Upstream(tmp_path / "a.git", object_format="sha256")
    commit = upstream.commit(BASE)
    follower = fetch_to_cache(upstream.url, tmp_path)
    assert served_paths(follower) == SKILL_PATHS
    assert len(commit) == 64
    upstream.commit({**BASE, **skill("gamma")})
    anyio.run(follower.refresh)
    assert "skills/gamma/SKILL.md" in served_paths(follower)
    assert served_paths(fetch_to_cache(f"{upstream.url}@{commit}", tmp_path)) == SKILL_PATHS


def test_branch_tag_or_id_selects_the_commit(upstream: Upstream, tmp_path: Path) -> None:
    commit = upstream.commit({**BASE, **skill("gamma")}, "other", parent="refs/heads/main")
    upstream.git("tag", "v1", commit)
    upstream.git("-c", "user.name=n", "-c", "user.email=n@example.com", "tag", "-a", "-m", "x", "v2", commit)
    for ref in ("other", "v1", "v2", commit, "refs/heads/other"):
        follower = fetch_to_cache(f"{upstream.url}@{ref}", tmp_path)
        assert follower.state.revision == commit
        assert "skills/gamma/SKILL.md" in served_paths(follower)


@pytest.mark.parametrize("folder", ["#skills/alpha", ""])
def test_skill_at_root_gets_folder_of_its_name(folder: str, upstream: Upstream, tmp_path: Path) -> None:
    if not folder:
        upstream.commit({"SKILL.md": skill_md("alpha"), "inner/SKILL.md": skill_md("inner"), ".github/x": b""})
    follower = fetch_to_cache(upstream.url + folder, tmp_path)
    assert "alpha/SKILL.md" in served_paths(follower)
    assert skill_names(follower.path) == ["alpha"]


def test_poll_of_unchanged_repository_requests_only_refs(server: GitServer, upstream: Upstream, tmp_path: Path) -> None:
    follower = fetch_to_cache(f"{server.url}/acme.git", tmp_path)
    before = read_tree(follower.path)
    for each in (follower, open_follower(f"{server.url}/acme.git", tmp_path)):
        server.requests.clear()
        anyio.run(each.refresh)
        assert server.paths == ["/acme.git/info/refs?service=git-upload-pack", "/acme.git/git-upload-pack"]
    assert read_tree(follower.path) == before


def test_names_of_cache_folders_are_stable(tmp_path: Path) -> None:
    assert open_follower("git+https://git.example/a", tmp_path).path.parent.name == "git.example-a-820148f7e96a"
    assert open_follower("sqlite:skills.db", tmp_path).path.parent.name == "41b64cabb602"


@pytest.mark.parametrize("folder", ["#skills", ""])
def test_files_outside_of_skills_are_not_downloaded(folder: str, upstream: Upstream, tmp_path: Path) -> None:
    size = 5_000
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
def test_missing_ref_or_folder_is_reported(ref: str, reason: str, upstream: Upstream, tmp_path: Path) -> None:
    with pytest.raises(SourceError) as failed:
        fetch_to_cache(upstream.url + ref, tmp_path)
    assert reason in str(failed.value)
    assert "\n" not in str(failed.value)


def test_missing_or_empty_repository_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(UnreachableError, match="there is no repository there"):
        fetch_to_cache(f"git+file://{tmp_path}/none.git", tmp_path)
    upstream = Upstream(tmp_path / "empty.git")
    with pytest.raises(UnacceptableError, match="it is empty"):
        fetch_to_cache(upstream.url, tmp_path)
    upstream.commit({"README.md": b"no skill"})
    fetch_to_cache(upstream.url, tmp_path)
    assert "it has no SKILL.md; name another #folder or @branch" in caplog.text


def test_missing_git_program_is_reported(upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnreachableError, match="the program git is not installed"):
        fetch_to_cache(upstream.url, tmp_path)


@pytest.mark.parametrize(("ref", "change", "reason"), [
    ("", lambda up: up.commit(skill("evil"), orphan=True), "'HEAD' was rewritten"),
    ("@v1", lambda up: up.git("tag", "--force", "v1", up.commit(skill("evil"))), "the tag 'v1' was moved"),
    ("@main", lambda up: up.git("update-ref", "-d", "refs/heads/main"), "there is no branch or tag 'main'"),
    ("#skills", lambda up: up.commit(skill("evil", folder="")), "has no folder 'skills'"),
])  # fmt: skip
def test_rewritten_or_removed_ref_is_refused_and_last_copy_stays(  # noqa: PLR0917
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
    for each in (follower, follower, open_follower(upstream.url + ref, tmp_path)):
        with pytest.raises(UnacceptableError, match=reason):
            anyio.run(each.refresh)
        assert read_tree(each.path) == before
    if reason.endswith(("rewritten", "moved")):
        accepted = fetch_to_cache(upstream.url + ref, tmp_path, rewritten=True)
        assert served_paths(accepted) == ["skills/evil/SKILL.md"]
        assert reason in caplog.text


def test_accepted_rewrite_is_said_once(upstream: Upstream, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fetch_to_cache(upstream.url, tmp_path)
    upstream.commit(BASE | skill("gamma"), orphan=True)
    (line,) = warnings_of_refresh(open_follower(upstream.url, tmp_path, rewritten=True), caplog)
    assert "was rewritten" in line
    assert warnings_of_refresh(open_follower(upstream.url, tmp_path, rewritten=True), caplog) == []


@pytest.mark.parametrize("filters", [True, False])
def test_branch_with_many_new_commits_is_not_rewritten(filters: bool, tmp_path: Path) -> None:
    upstream = Upstream(tmp_path / "a.git", filters=filters)
    upstream.commit(BASE)
    follower = fetch_to_cache(upstream.url, tmp_path)
    for number in range(20):
        upstream.commit({**BASE, **skill("gamma", str(number))})
    anyio.run(follower.refresh)
    assert b"19" in (follower.path / "skills/gamma/SKILL.md").read_bytes()


def test_damaged_objects_are_fetched_again(upstream: Upstream, tmp_path: Path) -> None:
    follower = fetch_to_cache(upstream.url, tmp_path)
    for pack in tmp_path.glob("git/*/objects/objects/pack/*.pack"):
        os.chmod(pack, 0o600)
        pack.write_bytes(b"damaged")
    upstream.commit({**BASE, **skill("gamma")})
    for _ in range(2):
        with suppress(UnreachableError):
            anyio.run(follower.refresh)
    assert "skills/gamma/SKILL.md" in served_paths(follower)


def test_full_disk_at_first_fetch_leaves_no_broken_repository(upstream: Upstream, tmp_path: Path) -> None:
    follower = open_follower(upstream.url, tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        with pytest.raises(SourceError, match="cannot be written"):
            anyio.run(follower.refresh)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    anyio.run(follower.refresh)
    assert served_paths(follower) == SKILL_PATHS


def test_failed_fetch_leaves_no_temporary_pack(upstream: Upstream, tmp_path: Path) -> None:
    follower = fetch_to_cache(upstream.url, tmp_path)
    assert isinstance(follower.source, GitFolder)
    follower.source._repository.git._most_bytes = 50_000
    upstream.commit({**BASE, **skill("gamma", large_bin=os.urandom(200_000))})
    with pytest.raises(UnreachableError, match="it has more than 4 GiB"):
        anyio.run(follower.refresh)
    (packs,) = tmp_path.glob("git/*/objects/objects/pack")
    assert [each.name for each in packs.iterdir() if each.name.startswith("tmp")] == []


def test_fetch_over_time_limit_is_ended(upstream: Upstream, tmp_path: Path) -> None:
    limits = FetchSettings(limits=FetchLimits(total_s=0.001))
    with pytest.raises(UnreachableError, match="no answer"):
        fetch_to_cache(upstream.url, tmp_path, fetch=limits)


def test_processes_that_share_a_repository_take_turns(upstream: Upstream, tmp_path: Path) -> None:
    fetch_to_folder(upstream.url, tmp_path / "one")
    cache = SourceSettings(tmp_path / "cache", output=tmp_path / "other")
    source = GitFolder(upstream.url, cache)

    async def fetch_meanwhile() -> None:
        revision = await source.resolve()
        known = IndexRecord(source.key, source.key)
        async with source.plan(revision, known):
            limits = FetchLimits(total_s=0.1)
            with pytest.raises(UnreachableError, match="another process fetches it"):
                await reconcile(GitFolder(upstream.url, replace(cache, fetch=FetchSettings(limits=limits))), revision)
            began = time.monotonic()
            with anyio.move_on_after(0.1):
                await reconcile(GitFolder(upstream.url, cache), revision)
            assert time.monotonic() - began < DEADLINE  # a thread that waits for a lock cannot be cancelled
        await reconcile(source, revision)

    anyio.run(fetch_meanwhile)
    assert skill_names(tmp_path / "other") == ["alpha", "beta"]


def test_commit_over_skill_or_byte_limit_is_refused(upstream: Upstream, tmp_path: Path) -> None:
    for limits, reason in (
        (FetchLimits(skills=1), "more than 1 skills"),
        (FetchLimits(unpacked_bytes=90), "more than 90"),
    ):
        with pytest.raises(UnacceptableError, match=reason):
            fetch_to_cache(upstream.url, tmp_path, fetch=FetchSettings(limits=limits))


SCRIPT = """
import os, sys
from pathlib import Path
from mcp_skills_server.sources.git.program import Git
out = os.dup2(1, 40)  # keeps stdout open
os.closerange(int(sys.argv[2]), 20)
os.write(out, Git(Path(sys.argv[1]), "", "none").run("hash-object", "--stdin", seconds=10, given=b"given\\n"))
"""


@pytest.mark.parametrize("first_closed", [0, 3])
def test_git_reads_its_stdin_whichever_descriptors_are_free(first_closed: int, tmp_path: Path) -> None:
    """A pipe of the server may get descriptor 0, 1 or 2 if it is free."""
    words = [sys.executable, "-c", SCRIPT, str(tmp_path / "none"), str(first_closed)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=DEADLINE, check=False)
    expected = hashlib.sha1(b"blob 6\0given\n", usedforsecurity=False).hexdigest()
    assert done.stdout.strip() == expected, done.stderr
