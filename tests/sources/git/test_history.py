"""What led to a skill of a repository that is fetched: bounded, read-only, and nothing that a repository can steer."""

from __future__ import annotations

import shutil
from pathlib import Path

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
def long_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for git as long as a loaded machine needs."""
    monkeypatch.setattr(history, "_FETCH_S", 60.0)


def grown(upstream: Upstream) -> None:
    """Two more commits: one of alpha, one of beta."""
    upstream.commit({**BASE, **skill("alpha", "Other words.")})
    upstream.commit({**BASE, **skill("alpha", "Other words."), **skill("beta", "New.")})


def told(histories: Histories, follower: Follower, place: str = "skills/alpha", *without: str) -> History:
    return histories.of(str(follower.path), follower.source.origin, place, without)


def asked(given: str, tmp_path: Path, place: str = "skills/alpha", *without: str) -> History:
    return told(Histories(), fetch_to_cache(given, tmp_path), place, *without)


@each_row("filters", [True, False])
@each_row("kind", ["repository", "folder", "commit"])
def test_the_commits_of_a_skill_are_told_with_their_differences(kind: str, filters: bool, tmp_path: Path) -> None:
    upstream = Upstream(tmp_path / "a.git", filters=filters)
    upstream.commit(BASE)
    grown(upstream)
    given = {"repository": "", "folder": "#skills", "commit": f"@{upstream.git('rev-parse', 'main')}"}[kind]
    found = asked(upstream.url + given, tmp_path, "alpha" if kind == "folder" else "skills/alpha")
    assert found.note == "" and len(found.commits) == 2
    second, first = found.commits
    assert "+Other words." in second.lines and "-Read on." in second.lines and second.subject == "made"
    assert (second.author, second.time, second.is_whole) == ("n", 1_700_000_120, True)
    assert "+++ b/skills/alpha/references/guide.md" in first.lines
    assert not any("beta" in line for each in found.commits for line in each.lines)


def test_over_http_one_fetch_is_enough_for_all_who_look(server: GitServer, upstream: Upstream, tmp_path: Path) -> None:
    grown(upstream)
    follower, histories = fetch_to_cache(f"{server.url}/acme.git#skills", tmp_path), Histories()
    assert len(told(histories, follower, "alpha").commits) == 2
    before = len(server.asked)
    for again in (histories, Histories()):  # the second one as of another process
        assert len(told(again, follower, "alpha").commits) == 2 and len(server.asked) == before
    assert len(told(histories, follower, "beta").commits) == 2  # whose files are asked for alone
    assert len(server.asked) > before


def test_it_follows_what_is_served_and_serves_on_without_it(upstream: Upstream, tmp_path: Path) -> None:
    follower, histories = fetch_to_cache(upstream.url, tmp_path), Histories()
    with history.FileLock(follower.path.parent / "history.lock"):
        assert "in a moment" in told(histories, follower).note
    assert len(told(histories, follower).commits) == 1
    grown(upstream)
    assert len(told(histories, follower).commits) == 1, "what is not served yet"
    anyio.run(follower.refresh)
    assert len(told(histories, follower).commits) == 2
    shutil.rmtree(follower.path.parent / "history")
    assert len(told(histories, follower).commits) == 2
    anyio.run(follower.refresh)
    assert follower.state.trouble is None


def test_of_a_long_history_the_end_is_told(upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "DEPTH", 4)
    for number in range(8):
        upstream.commit({**BASE, **skill("alpha", f"Number {number}.")})
    found = asked(upstream.url, tmp_path)
    # The fourth one's parent is not here, so what it changed is not known: it would look like a beginning.
    assert len(found.commits) == 3 and all("-Number" in "".join(each.lines) for each in found.commits)
    assert asked(upstream.url, tmp_path, "skills/beta").note == "None of the last 4 commits changed it."


def test_a_skill_inside_of_another_is_no_part_of_it(upstream: Upstream, tmp_path: Path) -> None:
    upstream.commit({**BASE, **skill("alpha/inner", "Secret.")})
    assert len(asked(upstream.url, tmp_path).commits) == 2
    found = asked(upstream.url, tmp_path, "skills/alpha", "inner")
    assert len(found.commits) == 1 and "inner" not in repr(found)
    assert "Secret." in repr(asked(upstream.url, tmp_path, "skills/alpha/inner"))


def test_a_remote_that_went_is_asked_once_a_minute(server: GitServer, upstream: Upstream, tmp_path: Path) -> None:
    follower = fetch_to_cache(f"{server.url}/acme.git", tmp_path)
    server.redirect_for = lambda _: (404, "/")
    now = 0.0
    histories = Histories(lambda: now)
    first = told(histories, follower)
    assert not first.commits and first.note.startswith("The history could not be fetched: ")
    before = len(server.asked)
    assert told(histories, follower) == first and len(server.asked) == before
    server.redirect_for = lambda _: None
    now = 61.0
    assert len(told(histories, follower).commits) == 1


def test_it_takes_only_so_many_bytes(upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    upstream.commit({**BASE, **skill("alpha", assets__large_bin=bytes(range(256)) * 16)})
    monkeypatch.setattr(history, "_MOST_FETCHED_BYTES", 512)
    found = asked(upstream.url, tmp_path)
    assert not found.commits and found.note


def test_other_kinds_of_sources_have_none(tmp_path: Path) -> None:
    for origin in ("https://skills.example", "oci://registry.example/a:b", "a.zip"):
        assert Histories().of(str(tmp_path / "skills"), origin, "a") == History()
    unknown = Histories().of(str(tmp_path / "x" / "skills"), "git+https://git.example/a", "a")
    assert "not known" in unknown.note


HEAD = b"tree %s\nauthor %s %s +0000\ncommitter c <c@example.com> 1 +0000\n\n%s\n"


@pytest.mark.parametrize(("author", "moment", "message"), [
    (b"a\x1fb\x1f\x1f <x>", b"99999999999999999999", b"m\x1fm\x1f"),
    (b"<script> <x>", b"-1", b"\xff\xfe \xe2\x80\xae <b>"), (b"\x1b[31m <x>", b"253402300800", b"x" * 100_000),
    (b" <>", b"", b""),
])  # fmt: skip
def test_no_author_and_no_message_says_more_than_itself(
    author: bytes, moment: bytes, message: bytes, upstream: Upstream, tmp_path: Path
) -> None:
    tree = upstream.git("rev-parse", "main^{tree}").encode()
    raw = HEAD % (tree, author, moment, message)
    commit = upstream.git("hash-object", "-t", "commit", "-w", "--stdin", "--literally", given=raw)
    upstream.git("update-ref", "refs/heads/main", commit)
    (found,) = asked(upstream.url, tmp_path).commits
    assert found.id == commit and 0 <= found.time < 253_402_300_800 and len(found.subject) <= 2_000
    assert "+++ b/skills/alpha/SKILL.md" in found.lines


def test_no_file_ends_a_difference_and_no_attribute_starts_anything(upstream: Upstream, tmp_path: Path) -> None:
    hostile = skill("alpha", x_md=b"one\0two\x1f\n" + b"commit " + b"1" * 40 + b"\n")
    odd = {".gitattributes": b"* diff=evil text\n*.md diff\n", "skills/alpha/--output=x": b"x\n"}
    commit = upstream.commit({**BASE, **hostile, **odd})
    found = asked(upstream.url, tmp_path)
    assert [each.id for each in found.commits] == [commit, upstream.git("rev-parse", "main~1")]
    assert not any("1" * 40 in each.id for each in found.commits)


def test_a_repository_of_ones_own_is_read_by_the_same_bounds(upstream: Upstream) -> None:
    for number in range(history.MOST + 5):
        upstream.commit({**BASE, **skill("alpha", f"Number {number}.\n" * 600)})
    git = history.Git(upstream.directory, "", "none")
    found = history.read_log(git, history.pathspecs("skills/alpha"), "main")
    assert found is not None and len(found) == history.MOST
    assert not any(each.is_whole for each in found if each.lines)
    assert history.read_log(git, history.pathspecs("skills/alpha"), "--output=x") is None
