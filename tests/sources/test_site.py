"""Site source: a cache that processes share, and refusal of a rollback to an earlier index."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from mcp_skills_server.sources.folder import BusyError, FetchedFolder
from mcp_skills_server.sources.mirrors import Follower
from mcp_skills_server.sources.records import IndexRecord, read_indexes
from mcp_skills_server.sources.site import MOST_INDEXES, with_history
from mcp_skills_server.sources.source import RollbackError
from sources.fetching import LOCAL, fetch, fetch_to_cache, open_follower, run_command, skill_names
from sources.publishers import INDEX, Publisher, respond_with, skill_md


@pytest.fixture
def follower(site: Publisher, tmp_path: Path) -> Follower:
    return open_follower(site.url, tmp_path / "cache")


def test_withdrawn_skill_fetched_by_another_process_is_removed(site: Publisher, tmp_path: Path) -> None:
    """Processes share the cache, so the folder may have a skill that this one never fetched."""
    first, second = (open_follower(site.url, tmp_path / "cache") for _ in range(2))
    site.add("a")
    anyio.run(first.refresh)
    site.add("withdrawn")
    anyio.run(second.refresh)
    site.entries = [each for each in site.entries if each["name"] == "a"]
    site.add("b")  # without it the index would equal the first one, which is a rollback
    anyio.run(first.refresh)
    assert skill_names(first.path) == ["a", "b"]


def test_refused_or_locked_fetch_is_retried_at_next_poll(site: Publisher, follower: Follower, tmp_path: Path) -> None:
    site.add("a", route=respond_with(b"", 503))
    assert anyio.run(follower.refresh) == 300
    assert not follower.has_copy
    site.add("a")
    with FetchedFolder.opened(follower.path), pytest.raises(BusyError, match="another process fetches into"):
        anyio.run(follower.refresh)
    assert follower.state.trouble is not None
    anyio.run(follower.refresh)
    assert follower.has_copy
    assert follower.state.trouble is None
    restarted = open_follower(site.url, tmp_path / "cache")
    assert restarted.state.ready
    assert restarted.path == follower.path
    assert follower.path.parent.parent == tmp_path / "cache" / "sites"


ROLLBACK = "it went back to an earlier index; --allow-rollback takes it"


def publish(site: Publisher, body: str) -> None:
    """Publish one skill with this body."""
    site.add("a", skill_md("a", body))


def served_body(folder: Path) -> str:
    return (folder / "a" / "SKILL.md").read_text().splitlines()[-1]


def test_index_history_is_limited_per_url() -> None:
    digests = tuple(f"{number:064x}" for number in range(MOST_INDEXES))
    known = IndexRecord("key", "given", "place", history={"place": digests, "other": ("0" * 64,)})
    record = IndexRecord("key", "given", "place", body="{}")
    history = with_history(record, known, allow_rollback=False).history
    assert history["place"][:-1] == digests[1:]
    assert history["place"][-1] not in digests
    assert history["other"] == ("0" * 64,)


def test_rollback_is_refused_unless_allowed(site: Publisher, output: Path) -> None:
    for body in ("One.", "Two."):
        publish(site, body)
        assert fetch(site, output, revalidate=True).ok
    publish(site, "One.")
    before = len(site.requests)
    with pytest.raises(RollbackError, match="it went back"):
        fetch(site, output, revalidate=True)
    assert site.paths[before:] == [INDEX]
    assert served_body(output) == "Two."
    assert fetch(site, output, revalidate=True, allow_rollback=True).updated == ("a",)
    assert fetch(site, output, revalidate=True).unchanged == ("a",)
    publish(site, "Two.")
    with pytest.raises(RollbackError):
        fetch(site, output, revalidate=True)
    assert served_body(output) == "One."


def test_incompletely_fetched_index_counts_in_history(site: Publisher, output: Path) -> None:
    publish(site, "One.")
    fetch(site, output)
    site.add("a", skill_md("a", "Two."), route=respond_with(b"", 503))
    assert not fetch(site, output).ok
    publish(site, "One.")
    with pytest.raises(RollbackError):
        fetch(site, output)
    assert served_body(output) == "One."


def test_return_from_other_index_version_is_no_rollback(site: Publisher, output: Path) -> None:
    publish(site, "One.")
    fetch(site, output)
    site.list_files({"b": {"SKILL.md": skill_md("b")}})
    assert fetch(site, output, revalidate=True).version == "0.1.0"
    del site.routes[INDEX]
    assert fetch(site, output, revalidate=True).unchanged == ("a",)


def test_index_of_unknown_version_is_not_in_history(site: Publisher, output: Path) -> None:
    site.routes[INDEX] = respond_with(json.dumps({"$schema": "https://example.com/of-tomorrow", "skills": []}).encode())
    assert fetch(site, output).version is None
    assert [each.history for each in read_indexes(output)] == [{}]


def test_rollback_accepted_by_one_process_holds_for_others(site: Publisher, follower: Follower, tmp_path: Path) -> None:
    for body in ("One.", "Two."):
        publish(site, body)
        anyio.run(follower.refresh)
    publish(site, "One.")
    with pytest.raises(RollbackError):
        anyio.run(follower.refresh)
    fetch_to_cache(site.url, tmp_path / "cache", replace(LOCAL, allow_rollback=True))
    anyio.run(follower.refresh)
    assert served_body(follower.path) == "One."
    assert follower.state.trouble is None


def test_commands_report_rollback_and_accept_allow_rollback(site: Publisher, tmp_path: Path) -> None:
    list_command = ("list", site.url, "--allow-private", "--cache-dir", str(tmp_path / "cache"))
    fetch_command = ("fetch", site.url, "--allow-private", "--output", tmp_path / "skills", "--update", "--prune")
    for name, is_rollback in (("one", False), ("two", False), ("one", True)):
        site.entries = []
        site.add(name)
        listed = run_command(*list_command)
        fetched = run_command(*fetch_command, code=1 if is_rollback else 0)
    assert "two" in listed.stdout
    assert f"{ROLLBACK}; serving the last copy" in listed.stderr
    assert fetched.stderr == f"mcp-skills-server: {site.url}: {ROLLBACK}\n"
    listed = run_command(*list_command, "--allow-rollback")
    assert "one" in listed.stdout
    assert "two" not in listed.stdout
    assert ROLLBACK not in listed.stderr
    run_command(*fetch_command, "--allow-rollback")
    assert skill_names(tmp_path / "skills") == ["one"]
