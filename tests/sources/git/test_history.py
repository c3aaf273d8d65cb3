"""Commit history of skills: depth, limits, caching, and untrusted git output."""

from __future__ import annotations

import shutil
from pathlib import Path
from unittest.mock import Mock

import anyio
import pytest

from mcp_skills_server.sources.git import history
from mcp_skills_server.sources.git.history import Histories, History
from mcp_skills_server.sources.mirrors import Follower
from sources.fetching import fetch_to_cache
from sources.git.remotes import BASE, GitServer, Upstream, skill
from tables import each_row

pytestmark = pytest.mark.needs_program("git")


@pytest.fixture(autouse=True)
def long_fetch_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise the timeout, because the machine may be busy."""
    monkeypatch.setattr(history, "_FETCH_S", 60.0)


def add_two_commits(upstream: Upstream) -> None:
    """Add one commit that changes alpha, and one that changes beta."""
    upstream.commit({**BASE, **skill("alpha", "Other words.")})
    upstream.commit({**BASE, **skill("alpha", "Other words."), **skill("beta", "New.")})


def history_of(histories: Histories, follower: Follower, folder: str = "skills/alpha", *without: str) -> History:
    return histories.changes_of(str(follower.path), follower.source.origin, folder, without)


def fetch_history(given: str, tmp_path: Path, folder: str = "skills/alpha", *without: str) -> History:
    """Fetch a root and the history of one of its skills."""
    return history_of(Histories(), fetch_to_cache(given, tmp_path), folder, *without)


@each_row("filters", [True, False])
@each_row(("suffix", "folder"), [("", "skills/alpha"), ("#skills", "alpha"), ("@COMMIT", "skills/alpha")])
def test_history_has_commits_of_skill_with_diffs(suffix: str, folder: str, filters: bool, tmp_path: Path) -> None:
    upstream = Upstream(tmp_path / "a.git", filters=filters)
    upstream.commit(BASE)
    add_two_commits(upstream)
    suffix = suffix.replace("COMMIT", upstream.git("rev-parse", "main"))
    found = fetch_history(upstream.url + suffix, tmp_path, folder)
    assert found.note == ""
    assert len(found.commits) == 2
    second, first = found.commits
    assert "+Other words." in second.lines
    assert "-Read on." in second.lines
    assert (second.author, second.subject) == ("n", "change")
    assert (second.time, second.is_whole) == (1_700_000_120, True)
    assert "+++ b/skills/alpha/references/guide.md" in first.lines
    assert not any("beta" in line for each in found.commits for line in each.lines)


def test_history_is_fetched_once_for_all_processes(server: GitServer, upstream: Upstream, tmp_path: Path) -> None:
    add_two_commits(upstream)
    follower = fetch_to_cache(f"{server.url}/acme.git#skills", tmp_path)
    histories = Histories()
    assert len(history_of(histories, follower, "alpha").commits) == 2
    before = len(server.requests)
    for each in (histories, Histories()):  # the second one plays another process
        assert len(history_of(each, follower, "alpha").commits) == 2
    assert len(server.requests) == before
    assert len(history_of(histories, follower, "beta").commits) == 2
    assert len(server.requests) > before  # the blobs of beta are fetched on demand


def test_history_follows_served_commit_and_is_rebuilt_if_deleted(upstream: Upstream, tmp_path: Path) -> None:
    follower = fetch_to_cache(upstream.url, tmp_path)
    histories = Histories()
    with history.FileLock(follower.path.parent / "history.lock"):
        assert "in a moment" in history_of(histories, follower).note
    assert len(history_of(histories, follower).commits) == 1
    add_two_commits(upstream)
    assert len(history_of(histories, follower).commits) == 1  # the new ones are not served yet
    anyio.run(follower.refresh)
    assert len(history_of(histories, follower).commits) == 2
    shutil.rmtree(follower.path.parent / "history")
    assert len(history_of(histories, follower).commits) == 2
    anyio.run(follower.refresh)
    assert follower.state.trouble is None


def test_history_is_limited_in_depth(upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "DEPTH", 4)
    for number in range(8):
        upstream.commit({**BASE, **skill("alpha", f"Number {number}.")})
    found = fetch_history(upstream.url, tmp_path)
    # the parent of the fourth is not fetched, so its changes are unknown
    assert len(found.commits) == 3
    assert all("-Number" in "".join(each.lines) for each in found.commits)
    assert fetch_history(upstream.url, tmp_path, "skills/beta").note == "None of the last 4 commits changed it."


def test_history_excludes_nested_skills(upstream: Upstream, tmp_path: Path) -> None:
    upstream.commit({**BASE, **skill("alpha/inner", "Secret.")})
    assert len(fetch_history(upstream.url, tmp_path).commits) == 2
    found = fetch_history(upstream.url, tmp_path, "skills/alpha", "inner")
    assert len(found.commits) == 1
    assert "inner" not in repr(found)
    assert "Secret." in repr(fetch_history(upstream.url, tmp_path, "skills/alpha/inner"))


def test_failed_history_fetch_is_retried_after_a_minute(
    server: GitServer, upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower = fetch_to_cache(f"{server.url}/acme.git", tmp_path)
    server.redirect_for = lambda _: (404, "/")
    clock = Mock(return_value=0.0)
    monkeypatch.setattr(history, "monotonic", clock)
    histories = Histories()
    first = history_of(histories, follower)
    assert not first.commits
    assert first.note.startswith("The history could not be fetched: ")
    before = len(server.requests)
    assert history_of(histories, follower) == first
    assert len(server.requests) == before
    server.redirect_for = None
    clock.return_value = 61.0
    assert len(history_of(histories, follower).commits) == 1


def test_history_fetch_is_limited_in_bytes(upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    upstream.commit({**BASE, **skill("alpha", assets__large_bin=bytes(range(256)) * 16)})
    monkeypatch.setattr(history, "_MAX_FETCHED_BYTES", 512)
    found = fetch_history(upstream.url, tmp_path)
    assert not found.commits
    assert found.note


def test_other_sources_and_unknown_commits_have_no_history(tmp_path: Path) -> None:
    for origin in ("https://skills.example", "oci://registry.example/a:b", "a.zip"):
        assert Histories().changes_of(str(tmp_path / "skills"), origin, "a") == History()
    unknown = Histories().changes_of(str(tmp_path / "x" / "skills"), "git+https://git.example/a", "a")
    assert "not known" in unknown.note


COMMIT_OBJECT = b"tree %s\nauthor %s %s +0000\ncommitter c <c@example.com> 1 +0000\n\n%s\n"


@pytest.mark.parametrize(("author", "moment", "message"), [
    (b"a\x1fb\x1f\x1f <x>", b"99999999999999999999", b"m\x1fm\x1f"),
    (b"<script> <x>", b"-1", b"\xff\xfe \xe2\x80\xae <b>"), (b"\x1b[31m <x>", b"253402300800", b"x" * 100_000),
    (b" <>", b"", b""),
])  # fmt: skip
def test_author_and_message_cannot_forge_fields(
    author: bytes, moment: bytes, message: bytes, upstream: Upstream, tmp_path: Path
) -> None:
    tree = upstream.git("rev-parse", "main^{tree}").encode()
    raw = COMMIT_OBJECT % (tree, author, moment, message)
    commit = upstream.git("hash-object", "-t", "commit", "-w", "--stdin", "--literally", given=raw)
    upstream.git("update-ref", "refs/heads/main", commit)
    (found,) = fetch_history(upstream.url, tmp_path).commits
    assert found.id == commit
    assert 0 <= found.time < 253_402_300_800
    assert len(found.subject) <= 2_000
    assert "+++ b/skills/alpha/SKILL.md" in found.lines


def test_file_content_names_and_attributes_cannot_forge_commits(upstream: Upstream, tmp_path: Path) -> None:
    content = skill("alpha", x_md=b"one\0two\x1f\n" + b"commit " + b"1" * 40 + b"\n")
    attributes = {".gitattributes": b"* diff=evil text\n*.md diff\n"}
    name = {"skills/alpha/--output=x": b"x\n"}
    commit = upstream.commit({**BASE, **content, **attributes, **name})
    found = fetch_history(upstream.url, tmp_path)
    assert [each.id for each in found.commits] == [commit, upstream.git("rev-parse", "main~1")]


def test_log_of_local_repository_is_bounded(upstream: Upstream) -> None:
    for number in range(history.MAX_REVISIONS + 5):
        upstream.commit({**BASE, **skill("alpha", f"Number {number}.\n" * 600)})
    git = history.Git(upstream.directory, "", "none")
    found = history.read_log(git, history.pathspecs("skills/alpha"), "main")
    assert found is not None
    assert len(found) == history.MAX_REVISIONS
    assert any(each.lines for each in found)
    assert not any(each.is_whole for each in found if each.lines)
    assert history.read_log(git, history.pathspecs("skills/alpha"), "--output=x") is None
