"""A site as a source: what one check costs, what it puts right, and a return to an earlier index, which is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from subprocess import CompletedProcess

import anyio
import pytest

import forkserver
from mcp_skills_server.sources.folder import BusyError, FetchedFolder
from mcp_skills_server.sources.mirrors import Follower
from mcp_skills_server.sources.records import IndexRecord, read_indexes
from mcp_skills_server.sources.site import MOST_INDEXES, with_history
from mcp_skills_server.sources.source import RollbackError
from sources.fetching import LOCAL, fetch, fetch_to_cache, open_follower, skill_names
from sources.publishers import INDEX, Publisher, answer, skill_md
from wire import COMMAND, DEADLINE


@pytest.fixture
def follower(site: Publisher, tmp_path: Path) -> Follower:
    return open_follower(site.url, tmp_path / "cache")


def test_an_index_that_is_the_same_costs_one_question(site: Publisher, follower: Follower) -> None:
    site.add("a")
    for _ in range(2):
        anyio.run(follower.refresh)
    assert site.paths == [INDEX, "/a/a", INDEX] and "if-none-match" in site.asked[2].headers


def test_what_another_process_brought_and_the_site_took_back_goes(site: Publisher, tmp_path: Path) -> None:
    """Two servers share the cache: what one of them remembers proves nothing about the folder."""
    first, second = (open_follower(site.url, tmp_path / "cache") for _ in range(2))
    site.add("a")
    anyio.run(first.refresh)
    site.add("withdrawn")
    anyio.run(second.refresh)
    site.entries = [each for each in site.entries if each["name"] == "a"]
    site.add("b")  # without it the index would be that of the beginning, which is a rollback
    anyio.run(first.refresh)
    assert skill_names(first.path) == ["a", "b"]


def test_what_was_refused_or_fetched_by_another_process_meanwhile_is_asked_for_at_the_next_check(
    site: Publisher, follower: Follower, tmp_path: Path
) -> None:
    site.add("a", route=answer(b"", 503))
    assert anyio.run(follower.refresh) == 300 and not follower.has_copy
    site.add("a")
    with FetchedFolder.opened(follower.path), pytest.raises(BusyError, match="another process fetches into"):
        anyio.run(follower.refresh)
    assert follower.state.trouble is not None
    anyio.run(follower.refresh)
    assert follower.has_copy and follower.state.trouble is None
    again = open_follower(site.url, tmp_path / "cache")
    assert again.state.ready and again.path == follower.path
    assert follower.path.parent.parent == tmp_path / "cache" / "sites"


# A return to an earlier index

BACK = "it went back to an earlier index; --allow-rollback takes it"


def publish(site: Publisher, body: str) -> None:
    """The site has one skill, with this body."""
    site.add("a", skill_md("a", body))


def body(place: Path) -> str:
    return (place / "a" / "SKILL.md").read_text().splitlines()[-1]


def test_the_longest_history_grows_no_more() -> None:
    seen = tuple(f"{number:064x}" for number in range(MOST_INDEXES))
    known = IndexRecord("key", "given", "place", history={"place": seen, "other": ("0" * 64,)})
    found = with_history(IndexRecord("key", "given", "place", body="{}"), known, allow_rollback=False).history
    assert found["place"][:-1] == seen[1:] and found["place"][-1] not in seen and found["other"] == ("0" * 64,)


# A folder of one's own


def test_an_index_that_was_there_before_is_refused_unless_that_is_allowed(site: Publisher, place: Path) -> None:
    for each in ("One.", "Two."):
        publish(site, each)
        assert fetch(site, place, revalidate=True).ok
    publish(site, "One.")
    asked = len(site.asked)
    with pytest.raises(RollbackError, match="it went back"):
        fetch(site, place, revalidate=True)
    assert site.paths[asked:] == [INDEX] and body(place) == "Two."
    assert fetch(site, place, revalidate=True, allow_rollback=True).updated == ("a",)
    assert fetch(site, place, revalidate=True).unchanged == ("a",)
    publish(site, "Two.")
    with pytest.raises(RollbackError):
        fetch(site, place, revalidate=True)
    assert body(place) == "One."


def test_an_index_whose_skills_were_not_all_brought_was_there(site: Publisher, place: Path) -> None:
    publish(site, "One.")
    fetch(site, place)
    site.add("a", skill_md("a", "Two."), route=answer(b"", 503))
    assert not fetch(site, place).ok
    publish(site, "One.")
    with pytest.raises(RollbackError):
        fetch(site, place)
    assert body(place) == "One."


def test_an_index_of_another_version_that_is_away_for_a_while_is_no_rollback(site: Publisher, place: Path) -> None:
    publish(site, "One.")
    fetch(site, place)
    site.list_files({"b": {"SKILL.md": skill_md("b")}})
    assert fetch(site, place, revalidate=True).version == "0.1.0"
    del site.routes[INDEX]
    assert fetch(site, place, revalidate=True).unchanged == ("a",)


def test_an_index_of_a_version_that_is_not_known_was_not_there(site: Publisher, place: Path) -> None:
    site.routes[INDEX] = answer(json.dumps({"$schema": "https://example.com/of-tomorrow", "skills": []}).encode())
    assert fetch(site, place).version is None
    assert [each.history for each in read_indexes(place)] == [{}]


# A site that is served


def test_a_server_keeps_the_last_copy_and_goes_on_when_the_rollback_is_over(
    site: Publisher, follower: Follower, caplog: pytest.LogCaptureFixture
) -> None:
    for each in ("One.", "Two."):
        publish(site, each)
        anyio.run(follower.refresh)
    for _ in range(2):
        publish(site, "One.")
        with pytest.raises(RollbackError) as refused:
            anyio.run(follower.refresh)
        follower.report_failure(refused.value)
        assert follower.state.trouble == BACK and follower.state.ready and body(follower.path) == "Two."
    assert [record.message for record in caplog.records] == [f"{follower.name}: {BACK}; serving the last copy"]
    publish(site, "Two.")
    anyio.run(follower.refresh)
    assert follower.state.trouble is None
    publish(site, "Three.")
    anyio.run(follower.refresh)
    assert body(follower.path) == "Three."


def test_what_one_process_may_take_the_others_follow(site: Publisher, follower: Follower, tmp_path: Path) -> None:
    for each in ("One.", "Two."):
        publish(site, each)
        anyio.run(follower.refresh)
    publish(site, "One.")
    with pytest.raises(RollbackError):
        anyio.run(follower.refresh)
    fetch_to_cache(site.url, tmp_path / "cache", replace(LOCAL, allow_rollback=True))
    anyio.run(follower.refresh)
    assert body(follower.path) == "One." and follower.state.trouble is None


def test_commands_that_read_a_site_say_it_in_one_line_and_take_the_option(site: Publisher, tmp_path: Path) -> None:
    def run(*words: str) -> CompletedProcess[str]:
        given = [*COMMAND, words[0], site.url, "--allow-private", *words[1:]]
        return forkserver.run(given, capture_output=True, text=True, timeout=DEADLINE)

    reading = ("list", "--cache-dir", str(tmp_path / "cache"))
    fetching = ("fetch", "--output", str(tmp_path / "skills"), "--update", "--prune")
    for name in ("one", "two", "one"):
        site.entries = []
        site.add(name)
        listed, brought = run(*reading), run(*fetching)
    assert "two" in listed.stdout and f"{BACK}; serving the last copy" in listed.stderr
    assert (brought.returncode, brought.stderr) == (1, f"mcp-skills-server: {site.url}: {BACK}\n")
    listed = run(*reading, "--allow-rollback")
    assert "one" in listed.stdout and "two" not in listed.stdout and BACK not in listed.stderr
    assert run(*fetching, "--allow-rollback").returncode == 0 and skill_names(tmp_path / "skills") == ["one"]
