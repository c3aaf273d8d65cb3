"""A folder of a repository as a source: what of a commit comes, what a look costs, and what stays when it fails."""

from __future__ import annotations

import logging
import os
import shutil
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from mcp_skills_server.errors import UsageError
from mcp_skills_server.sources.git.source import GitFolder
from mcp_skills_server.sources.mirrors import Follower
from mcp_skills_server.sources.source import (
    FetchLimits,
    FetchSettings,
    SourceError,
    SourceSettings,
    UnacceptableError,
    UnreachableError,
)
from sources.fetching import listing, skills
from sources.git.conftest import BASE
from sources.git.remotes import GitServer, Upstream, skill
from sources.publishers import skill_md

pytestmark = pytest.mark.needs_program("git")


def opened(given: str, tmp_path: Path, **changed: object) -> Follower:
    settings = replace(SourceSettings(tmp_path / "cache"), **changed)  # pyright: ignore[reportArgumentType]
    return Follower(GitFolder(given, settings))


def refresh(follower: Follower) -> None:
    anyio.run(follower.refresh)


def files(follower: Follower) -> list[str]:
    return [path for path, what in listing(follower.path).items() if what != "directory"]


ALL = [
    "skills/alpha/SKILL.md",
    "skills/alpha/references/guide.md",
    "skills/alpha/scripts/run.sh",
    "skills/beta/SKILL.md",
]


@pytest.mark.parametrize("filters", [True, False])
def test_the_skills_of_a_commit_come_and_nothing_else(filters: bool, tmp_path: Path) -> None:
    upstream = Upstream(tmp_path / "a.git", filters=filters)
    upstream.commit(BASE)
    follower = opened(upstream.url, tmp_path)
    refresh(follower)
    assert files(follower) == ALL
    assert (follower.path / "skills/alpha/references/guide.md").read_bytes() == b"guide\n"
    assert (follower.path / "skills/alpha/scripts/run.sh").stat().st_mode & 0o777 == 0o755
    assert (follower.path / "skills/beta/SKILL.md").stat().st_mode & 0o777 == 0o644
    assert follower.state.ready and follower.state.trouble is None


def test_a_repository_may_have_ids_of_sha256(tmp_path: Path) -> None:
    upstream = Upstream(tmp_path / "a.git", ids="sha256")
    commit = upstream.commit(BASE)
    follower = opened(upstream.url, tmp_path)
    refresh(follower)
    assert files(follower) == ALL and len(commit) == 64
    upstream.commit({**BASE, **skill("gamma")})
    refresh(follower)
    assert "skills/gamma/SKILL.md" in files(follower)
    pinned = opened(f"{upstream.url}@{commit}", tmp_path)
    refresh(pinned)
    assert files(pinned) == ALL


@pytest.mark.parametrize("kind", ["branch", "tag", "annotated", "commit", "full"])
def test_a_name_or_an_id_says_which_commit(kind: str, upstream: Upstream, tmp_path: Path) -> None:
    commit = upstream.commit({**BASE, **skill("gamma")}, "other", parent="refs/heads/main")
    upstream.git("tag", "v1", commit)
    upstream.git("-c", "user.name=n", "-c", "user.email=n@example.com", "tag", "-a", "-m", "x", "v2", commit)
    ref = {"branch": "other", "tag": "v1", "annotated": "v2", "commit": commit, "full": "refs/heads/other"}[kind]
    follower = opened(f"{upstream.url}@{ref}", tmp_path)
    assert anyio.run(follower.source.resolve).digest == commit
    refresh(follower)
    assert "skills/gamma/SKILL.md" in files(follower)


def test_a_folder_of_it_is_the_root(upstream: Upstream, tmp_path: Path) -> None:
    follower = opened(f"{upstream.url}#skills", tmp_path)
    refresh(follower)
    assert files(follower) == [path.removeprefix("skills/") for path in ALL]


@pytest.mark.parametrize("folder", ["#skills/alpha", ""])
def test_one_that_is_a_skill_lies_in_a_folder_of_its_own_name(folder: str, upstream: Upstream, tmp_path: Path) -> None:
    if not folder:
        upstream.commit({"SKILL.md": skill_md("alpha"), "inner/SKILL.md": skill_md("inner"), ".github/x": b""})
    follower = opened(upstream.url + folder, tmp_path)
    refresh(follower)
    assert "alpha/SKILL.md" in files(follower) and skills(follower.path) == ["alpha"]


def test_a_look_at_what_has_not_changed_asks_for_names_alone(
    server: GitServer, upstream: Upstream, tmp_path: Path
) -> None:
    follower = opened(f"{server.url}/acme.git", tmp_path)
    refresh(follower)
    before = listing(follower.path)
    for again in (follower, opened(f"{server.url}/acme.git", tmp_path)):
        server.asked.clear()
        refresh(again)
        assert [path for _, path in server.asked] == [
            "/acme.git/info/refs?service=git-upload-pack",
            "/acme.git/git-upload-pack",
        ]
    assert listing(follower.path) == before


def test_a_commit_that_is_pinned_is_asked_for_once(server: GitServer, upstream: Upstream, tmp_path: Path) -> None:
    given = f"{server.url}/acme.git@{upstream.git('rev-parse', 'main')}"
    refresh(opened(given, tmp_path))
    server.asked.clear()
    follower = opened(given, tmp_path)
    refresh(follower)
    assert not server.asked and files(follower) == ALL


def test_only_what_is_different_is_written(upstream: Upstream, tmp_path: Path) -> None:
    follower = opened(upstream.url, tmp_path)
    refresh(follower)

    def inode(name: str) -> int:
        return (follower.path / "skills" / name / "SKILL.md").stat().st_ino

    alpha, beta = inode("alpha"), inode("beta")
    upstream.commit({**BASE, **skill("beta", "Now another."), **skill("gamma")})
    refresh(follower)
    assert inode("alpha") == alpha and inode("beta") != beta
    assert b"Now another." in (follower.path / "skills/beta/SKILL.md").read_bytes()
    upstream.commit({**skill("gamma"), **skill("delta", folder="skills/gamma/")})
    refresh(follower)
    assert files(follower) == ["skills/gamma/SKILL.md", "skills/gamma/delta/SKILL.md"]
    upstream.commit(skill("delta", folder="skills/gamma/"))
    refresh(follower)
    assert files(follower) == ["skills/gamma/delta/SKILL.md"]


@pytest.mark.parametrize(("folder", "size"), [("#skills", 5_000), ("", 2 << 20)])
def test_files_beside_the_skills_are_not_downloaded(folder: str, size: int, upstream: Upstream, tmp_path: Path) -> None:
    """Of one folder nothing else, of a whole repository nothing large."""
    upstream.commit({**BASE, **skill("alpha", big=bytes(size)), "src/large.bin": os.urandom(size)})
    follower = opened(upstream.url + folder, tmp_path)
    refresh(follower)
    assert any(path.stat().st_size == size for path in follower.path.rglob("big"))
    objects = next((tmp_path / "cache" / "git").glob("*/objects"))
    assert sum(path.stat().st_size for path in objects.rglob("*.pack")) < size


@pytest.mark.parametrize("damage", ["edited", "removed", "added", "stray", "record"])
def test_what_was_changed_in_the_cache_is_put_right(damage: str, upstream: Upstream, tmp_path: Path) -> None:
    follower = opened(upstream.url, tmp_path)
    refresh(follower)
    skills = follower.path / "skills"
    before = listing(follower.path)
    if damage == "edited":
        (skills / "beta" / "SKILL.md").write_bytes(b"mine")
    elif damage == "removed":
        shutil.rmtree(skills / "alpha" / "scripts")
    elif damage == "added":
        (skills / "beta" / "more.md").write_bytes(b"mine")
    elif damage == "stray":
        (skills / "mine").mkdir()
        (skills / "beta" / "more.md").write_bytes(b"mine")
    else:
        for record in (follower.path / ".mcp-skills").rglob("*.json"):
            record.write_bytes(b"{}")
        (skills / "beta" / "more.md").write_bytes(b"mine")
    again = opened(upstream.url, tmp_path)
    refresh(again)
    assert listing(again.path) == before


@pytest.mark.parametrize(
    ("ref", "reason"),
    [
        ("@gone", "there is no branch or tag 'gone'"),
        ("@abcdef1", "there is no branch or tag 'abcdef1'; a commit is named by its whole id"),
        ("@" + "1" * 40, "git could not fetch it"),
        ("#nowhere", "has no folder 'nowhere'"),
        ("#README.md", "has no folder 'README.md'"),
    ],
)
def test_what_is_not_there_is_one_line(ref: str, reason: str, upstream: Upstream, tmp_path: Path) -> None:
    with pytest.raises(SourceError) as failed:
        refresh(opened(upstream.url + ref, tmp_path))
    assert reason in str(failed.value) and "\n" not in str(failed.value)


def test_no_repository_and_an_empty_one(tmp_path: Path) -> None:
    with pytest.raises(UnreachableError, match="there is no repository there"):
        refresh(opened(f"git+file://{tmp_path}/none.git", tmp_path))
    Upstream(tmp_path / "empty.git")
    with pytest.raises(UnacceptableError, match="it is empty"):
        refresh(opened(f"git+file://{tmp_path}/empty.git", tmp_path))


def test_no_git_is_one_line(upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    follower = opened(upstream.url, tmp_path)
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(UnreachableError, match="the program git is not installed"):
        refresh(follower)


@pytest.mark.parametrize("what", ["rewritten", "tag", "branch is gone", "folder is gone"])
def test_what_takes_the_place_of_another_is_reported_and_the_last_copy_stays(
    what: str, upstream: Upstream, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    upstream.git("tag", "v1", "main")
    ref = {"tag": "@v1", "branch is gone": "@main", "folder is gone": "#skills"}.get(what, "")
    follower = opened(upstream.url + ref, tmp_path)
    refresh(follower)
    before = listing(follower.path)
    reason = {
        "rewritten": "'HEAD' was rewritten",
        "tag": "the tag 'v1' was moved",
        "branch is gone": "there is no branch or tag 'main'",
        "folder is gone": "has no folder 'skills'",
    }[what]
    if what == "rewritten":
        upstream.commit(skill("evil"), orphan=True)
    elif what == "tag":
        upstream.git("tag", "--force", "v1", upstream.commit(skill("evil")))
    elif what == "branch is gone":
        upstream.git("update-ref", "-d", "refs/heads/main")
    else:
        upstream.commit(skill("evil", folder=""))
    for again in (follower, opened(upstream.url + ref, tmp_path)):
        for _ in range(2):
            with pytest.raises(UnacceptableError, match=reason) as refused:
                refresh(again)
            again.report_failure(refused.value)
        assert listing(again.path) == before
    assert caplog.text.count("serving the last copy") == 2
    if what in {"rewritten", "tag"}:
        with caplog.at_level(logging.WARNING):
            accepted = opened(upstream.url + ref, tmp_path, rewritten=True)
            refresh(accepted)
        assert files(accepted) == ["skills/evil/SKILL.md"] and reason in caplog.text


@pytest.mark.parametrize("filters", [True, False])
def test_many_commits_later_is_no_rewriting(filters: bool, tmp_path: Path) -> None:
    upstream = Upstream(tmp_path / "a.git", filters=filters)
    upstream.commit(BASE)
    follower = opened(upstream.url, tmp_path)
    refresh(follower)
    for number in range(20):
        upstream.commit({**BASE, **skill("gamma", str(number))})
    refresh(follower)
    assert b"19" in (follower.path / "skills/gamma/SKILL.md").read_bytes()


def test_objects_that_are_damaged_are_fetched_again(upstream: Upstream, tmp_path: Path) -> None:
    follower = opened(upstream.url, tmp_path)
    refresh(follower)
    for pack in (tmp_path / "cache").glob("git/*/objects/objects/pack/*.pack"):
        os.chmod(pack, 0o600)
        pack.write_bytes(b"damaged")
    upstream.commit({**BASE, **skill("gamma")})
    for _ in range(2):
        try:
            refresh(follower)
        except UnreachableError:
            continue
    assert "skills/gamma/SKILL.md" in files(follower)


def test_a_fetch_that_is_over_its_time_is_ended(upstream: Upstream, tmp_path: Path) -> None:
    limits = FetchSettings(limits=FetchLimits(total_s=0.001))
    with pytest.raises(UnreachableError, match="no answer"):
        refresh(opened(upstream.url, tmp_path, fetch=limits))


def test_too_many_skills_or_bytes_are_refused_as_a_whole(upstream: Upstream, tmp_path: Path) -> None:
    for limits, reason in (
        (FetchLimits(skills=1), "more than 1 skills"),
        (FetchLimits(unpacked_bytes=90), "more than 90"),
    ):
        with pytest.raises(UnacceptableError, match=reason):
            refresh(opened(upstream.url, tmp_path, fetch=FetchSettings(limits=limits)))


def test_a_pin_of_a_lock_file_is_brought_and_then_asks_nobody(
    server: GitServer, upstream: Upstream, tmp_path: Path
) -> None:
    given = f"{server.url}/acme.git@main"
    old = upstream.git("rev-parse", "main")
    refresh(opened(given, tmp_path))
    upstream.commit({**BASE, **skill("gamma")})
    follower = opened(given, tmp_path, pin=old)
    refresh(follower)
    assert files(follower) == ALL
    server.asked.clear()
    refresh(opened(given, tmp_path, pin=old))
    assert not server.asked
    with pytest.raises(UsageError, match="is no commit"):
        opened(given, tmp_path, pin="--upload-pack=x")
