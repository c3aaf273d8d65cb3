"""Index of a site: discovery, cache headers, versions, refusal, and rollback."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_skills_server.dialects.wellknown import DIRECTORY_0_1, IndexRefusedError
from mcp_skills_server.sources.http import MAX_S, fresh_s
from mcp_skills_server.sources.mirrors import Follower
from mcp_skills_server.sources.records import IndexRecord, read_indexes, read_records
from mcp_skills_server.sources.site import MAX_INDEXES, with_history
from mcp_skills_server.sources.source import AbsentError, RollbackError, UnacceptableError, UnreachableError
from sources.fetching import LOCAL, fetch, fetch_to_cache, open_follower, read_tree, run_command, skill_names
from sources.publishers import (
    INDEX,
    INDEX_0_1,
    Publisher,
    ReceivedRequest,
    Route,
    entry,
    index_of,
    redirect,
    respond_and_close,
    respond_with,
    skill_md,
)
from tables import each_row


@pytest.mark.requirement("WK-40")
def test_fresh_index_is_not_requested_again(site: Publisher, output: Path) -> None:
    site.headers = {"cache-control": "max-age=3600"}
    site.add("a")
    fetch(site, output)
    assert fetch(site, output).unchanged == ("a",)
    assert site.paths == [INDEX, "/a/a"]
    assert fetch(site, output, revalidate=True).unchanged == ("a",)
    assert site.paths == [INDEX, "/a/a", INDEX]
    assert "if-none-match" in site.requests[-1].headers


@pytest.mark.parametrize("changed", [{"asked_at": 9e99}, {"fresh_s": float("nan")}, {"fresh_s": 9e99, "asked_at": 0}])
def test_implausible_freshness_in_record_is_ignored(site: Publisher, output: Path, changed: dict[str, float]) -> None:
    site.headers = {"cache-control": "max-age=3600"}
    site.add("a")
    fetch(site, output)
    (path,) = (output / ".mcp-skills" / "sources").iterdir()
    path.write_text(json.dumps({**json.loads(path.read_bytes()), **changed}))
    for _ in range(2):  # the second time the record is plausible
        fetch(site, output)
        assert site.paths == [INDEX, "/a/a", INDEX]


@pytest.mark.requirement("WK-40")
def test_no_store_index_is_not_stored(site: Publisher, output: Path) -> None:
    site.headers = {"cache-control": "private, NO-STORE"}
    site.add("a")
    fetch(site, output)
    (record,) = read_indexes(output)
    assert record.body == ""
    assert not record.validators
    fetch(site, output)
    assert "if-none-match" not in site.requests[-1].headers


def test_fresh_index_is_requested_again_after_refusal(site: Publisher, output: Path) -> None:
    site.headers = {"cache-control": "max-age=3600"}
    site.add("a", route=respond_with(skill_md("a", "Newer than the index.")))
    report = fetch(site, output)
    assert not report.ok
    assert not skill_names(output)
    site.add("a", skill_md("a", "Newer than the index."))
    assert fetch(site, output).added == ("a",)


@pytest.mark.requirement("WK-39", "WK-16")
def test_urls_are_relative_to_redirected_index(site: Publisher, output: Path) -> None:
    raw = skill_md("a")
    site.routes[INDEX] = redirect("/v2/index.json", 301)
    site.routes["/v2/index.json"] = respond_with(index_of([entry("a", raw, "files/a.md")]))
    site.routes["/v2/files/a.md"] = respond_with(raw)
    report = fetch(site, output)
    assert report.added == ("a",)
    assert report.url == f"{site.url}/v2/index.json"
    assert read_records(output)[0].url == f"{site.url}/v2/files/a.md"


@pytest.mark.requirement("WK-41", "WK-44", "WK1-12", "WK1-14")
def test_site_of_0_1_0_is_fetched_file_by_file(site: Publisher, output: Path) -> None:
    guide = f"{DIRECTORY_0_1}a/references/b%20c.md"
    site.list_files({"a": {"SKILL.md": skill_md("a"), "references/b c.md": b"b c"}})
    report = fetch(site, output)
    assert report.version == "0.1.0"
    assert report.added == ("a",)
    assert "no digests to verify files" in report.warnings[0]
    assert (output / "a" / "references" / "b c.md").read_bytes() == b"b c"
    assert fetch(site, output).unchanged == ("a",)
    site.routes[guide] = respond_with(b"more")
    assert fetch(site, output).updated == ("a",)
    for route, reason in (
        (respond_with(b"<html>Sign in", content_type="text/html"), "a web page (HTML)"),
        (respond_with(b"nothing", 404), "is not there"),
        (respond_with(b"packed", content_encoding="gzip"), "came compressed (gzip)"),
    ):
        site.routes[guide] = route
        assert reason in fetch(site, output).refused[0].reason
    assert (output / "a" / "references" / "b c.md").read_bytes() == b"more"


@pytest.mark.parametrize("first", [
    respond_with(b"", 404), respond_with(b"", 410), respond_with(b"<!doctype html>", content_type="text/html"),
])  # fmt: skip
def test_next_candidate_is_requested_if_index_is_absent(site: Publisher, output: Path, first: bytes) -> None:
    site.routes[INDEX] = first
    site.routes[INDEX_0_1] = respond_with(b'{"skills": []}')
    assert fetch(site, output).version == "0.1.0"


@pytest.mark.requirement("X-23")
@pytest.mark.parametrize(("route", "kind", "reason"), [
    (respond_with(b"{"), IndexRefusedError, "is not JSON"),
    (respond_with(b"", length=(16 << 20) + 1), UnacceptableError, "at most 16777216 are taken"),
    (respond_with(gzip.compress(index_of([])), content_encoding="gzip"), IndexRefusedError, "came compressed"),
    (respond_with(b"", 401), UnacceptableError, "--token-env"),
    (respond_with(b"", 503), UnreachableError, "does not answer now"),
    (redirect("http://10.0.0.1/"), UnacceptableError, "another origin"),
    (respond_and_close(respond_with(b"{", length=10)), UnreachableError, "broke off"),
])  # fmt: skip
def test_bad_index_fails_without_further_candidates(
    site: Publisher, output: Path, route: Route, kind: type[Exception], reason: str
) -> None:
    site.add("a")
    fetch(site, output)
    before = read_tree(output.parent.parent)
    site.routes[INDEX] = route
    site.routes[INDEX_0_1] = respond_with(b'{"skills": []}')
    with pytest.raises(kind, match=reason) as caught:
        fetch(site, output, prune=True)
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    assert message.isprintable()
    assert INDEX_0_1 not in site.paths
    assert read_tree(output.parent.parent) == before  # the last good copy


def test_absent_index_is_reported_with_all_candidates(site: Publisher, output: Path) -> None:
    site.routes[INDEX] = respond_with(b"", 404)
    with pytest.raises(AbsentError, match=r"no index of skills: .*/index\.json is not there \(status 404\)"):
        fetch(f"{site.url}/docs", output)
    assert len(site.paths) == 4
    hint = rf"if this is a repository, write git\+{re.escape(site.url)}/acme/skills$"
    with pytest.raises(AbsentError, match=hint):
        fetch(f"{site.url}/acme/skills", output)


@pytest.mark.requirement("WK-42", "WK-43", "X-23")
def test_index_of_unknown_version_is_reported_and_not_processed(site: Publisher, output: Path) -> None:
    site.add("a")
    fetch(site, output)
    later = {"$schema": "https://x/9", "skills": [site.entries[0] | {"name": "b"}]}
    site.routes[INDEX] = respond_with(json.dumps(later).encode())
    report = fetch(site, output, prune=True)
    assert report.version is None
    assert not report.ok
    assert "unknown version" in report.warnings[0]
    assert report.gone == ()
    assert skill_names(output) == ["a"]
    assert site.paths[-1] == INDEX
    assert [len(digests) for digests in read_indexes(output)[0].history.values()] == [1]


@pytest.mark.requirement("WK-12", "WK-45", "WK-46", "X-23")
def test_unknown_fields_or_types_and_differing_descriptions_do_not_fail_a_fetch(site: Publisher, output: Path) -> None:
    site.add("a", type="mcp-bundle")
    site.add("b", description="Does c.")
    site.add("c", version="7", files=["x"], later={"b": 1})
    report = fetch(site, output)
    assert report.ok
    assert report.added == ("b", "c")
    warning_of_a, warning_of_b = report.warnings
    assert warning_of_a == "a: its type 'mcp-bundle' is unknown, and so it is passed over"
    assert warning_of_b.startswith("b: ")
    assert "has another description" in warning_of_b


NOW = 1_784_109_600.0
DATE = "Wed, 15 Jul 2026 10:00:00 GMT"
IN_AN_HOUR = "Wed, 15 Jul 2026 11:00:00 GMT"


@pytest.mark.requirement("WK-40")
@each_row(("expected", "control", "others"), [
    (0, "", {}), (0, "public", {}), (300, "Public, Max-Age=300, must-revalidate", {}),
    (300, 'max-age="300"', {}), (300, "max-age=300, max-age=900", {}), (200, "max-age=300", {"age": "100"}),
    (0, "max-age=300", {"age": "900"}), (300, "max-age=300", {"age": "old"}), (0, "max-age=300, no-cache", {}),
    (0, "no-store", {}), (0, "max-age=-5", {}), (0, "s-maxage=300", {}), (MAX_S, "max-age=" + "9" * 5000, {}),
    (3600, "", {"expires": IN_AN_HOUR, "date": DATE}), (0, "", {"expires": DATE, "date": IN_AN_HOUR}),
    (0, "", {"expires": "0"}), (3600, "", {"expires": IN_AN_HOUR}), (5, "max-age=5", {"expires": IN_AN_HOUR}),
])  # fmt: skip
def test_freshness_follows_cache_headers(expected: float, control: str, others: dict[str, str]) -> None:
    assert fresh_s({"cache-control": control, **others}, NOW) == expected


@given(st.dictionaries(st.sampled_from(["cache-control", "expires", "date", "age"]), st.text()))
def test_any_cache_headers_give_bounded_freshness(headers: dict[str, str]) -> None:
    assert 0 <= fresh_s(headers, NOW) <= MAX_S


@pytest.fixture
def follower(site: Publisher, tmp_path: Path) -> Follower:
    return open_follower(site.url, tmp_path / "cache")


ROLLBACK = "it went back to an earlier index; --allow-rollback takes it"


def publish(site: Publisher, body: str) -> None:
    """Publish one skill with this body."""
    site.add("a", skill_md("a", body))


def served_body(folder: Path) -> str:
    return (folder / "a" / "SKILL.md").read_text().splitlines()[-1]


def test_site_with_a_refused_skill_is_pinned(site: Publisher, tmp_path: Path) -> None:
    site.add("a")
    site.add("bad", b"no skill")
    options = ("--allow-private", "--allow-http", "--cache-dir", tmp_path / "cache")
    lock = tmp_path / "skills.lock"
    done = run_command("lock", site.url, "--output", lock, *options)
    assert "bad" in done.stderr
    assert re.search(r'revision = "[0-9a-f]{64}"', lock.read_text())


@pytest.mark.parametrize("control", ["", "no-store", "max-age=3600", "last-modified"])
def test_pinned_index_is_kept_and_any_other_is_not(site: Publisher, tmp_path: Path, control: str) -> None:
    indexes = [index_of([entry("a", site.add("a", skill_md("a", text)), "/a/a")]) for text in ("one", "two")]

    def publish(number: int) -> None:
        site.add("a", skill_md("a", ("one", "two")[number]))
        fields = {"cache_control": control}
        if control == "last-modified":
            fields = {"last_modified": "Fri, 27 Nov 2026 00:00:00 GMT"}

        def respond(request: ReceivedRequest) -> Iterable[bytes]:
            # as Apache does when an older file comes back
            is_older = "if-modified-since" in request.headers
            yield respond_with(b"" if is_older else indexes[number], 304 if is_older else 200, **fields)

        site.routes[INDEX] = respond

    publish(0)
    pin = fetch_to_cache(site.url, tmp_path).state.revision
    for number, held in ((1, 1), (0, 0), (1, 0)):
        publish(number)
        pinned = open_follower(site.url, tmp_path, pin=pin)
        anyio.run(partial(pinned.refresh, anew=True))
        assert read_tree(pinned.path)["a/SKILL.md"] == skill_md("a", ("one", "two")[held])
        assert (pinned.state.revision == pin) is (held == 0)


def test_index_history_is_limited_per_url() -> None:
    digests = tuple(f"{number:064x}" for number in range(MAX_INDEXES))
    record = IndexRecord("key", "given", "place", body="{}", history={"place": digests, "other": ("0" * 64,)})
    history = with_history(record, allow_rollback=False).history
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
