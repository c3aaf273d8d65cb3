"""A site as a source: what one check costs, and what it puts right."""

from __future__ import annotations

import shutil
from pathlib import Path

import anyio
import pytest

from mcp_skills_server.errors import UsageError
from mcp_skills_server.sources.folder import FetchedFolder
from mcp_skills_server.sources.mirrors import Follower
from sources.fetching import opened, skills
from sources.publishers import INDEX, Publisher, answer, skill_md


@pytest.fixture
def follower(site: Publisher, tmp_path: Path) -> Follower:
    return opened(site.url, tmp_path / "cache")


def test_an_index_that_is_the_same_costs_one_question(site: Publisher, follower: Follower) -> None:
    site.add("a")
    anyio.run(follower.refresh)
    edited = follower.path / "a" / "SKILL.md"
    edited.write_bytes(b"edited in the cache")
    anyio.run(follower.refresh)
    assert site.paths == [INDEX, "/a/a", INDEX] and "if-none-match" in site.asked[2].headers
    follower._change(revision="")  # as in the next process
    anyio.run(follower.refresh)
    assert edited.read_bytes() == skill_md("a")
    site.add("b")
    anyio.run(follower.refresh)
    assert skills(follower.path) == ["a", "b"]


def test_what_another_process_brought_and_the_site_took_back_goes(site: Publisher, tmp_path: Path) -> None:
    """Two servers share the cache: what one of them remembers proves nothing about the folder."""
    first, second = (opened(site.url, tmp_path / "cache") for _ in range(2))
    site.add("a")
    anyio.run(first.refresh)
    site.add("withdrawn")
    anyio.run(second.refresh)
    site.entries = [each for each in site.entries if each["name"] == "a"]
    site.add("b")  # without it the index would be that of the beginning, which is a rollback
    anyio.run(first.refresh)
    assert skills(first.path) == ["a", "b"]


def test_a_copy_that_is_gone_is_fetched_again(site: Publisher, follower: Follower) -> None:
    site.add("a")
    anyio.run(follower.refresh)
    for gone in (follower.path / "a", follower.path.parent):
        shutil.rmtree(gone)
        anyio.run(follower.refresh)
        assert skills(follower.path) == ["a"]


def test_what_was_refused_or_fetched_by_another_process_meanwhile_is_asked_for_at_the_next_check(
    site: Publisher, follower: Follower, tmp_path: Path
) -> None:
    site.add("a", route=answer(b"", 503))
    assert anyio.run(follower.refresh) == 300 and not follower.has_copy
    site.add("a")
    with FetchedFolder.opened(follower.path), pytest.raises(UsageError, match="another process fetches into"):
        anyio.run(follower.refresh)
    assert follower.state.trouble is not None
    anyio.run(follower.refresh)
    assert follower.has_copy and follower.state.trouble is None
    again = opened(site.url, tmp_path / "cache")
    assert again.state.ready and again.path == follower.path
    assert follower.path.parent.parent == tmp_path / "cache" / "sites"
