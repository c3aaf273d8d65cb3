"""Every kind of source with hostile skills, and those over HTTP with hostile responses."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from mcp_skills_server.sources.mirrors import Follower
from mcp_skills_server.sources.source import FetchLimits
from sources.fetching import QUICK, fetch_to_cache, open_follower, served_files, warnings_of_refresh
from sources.hostile import CASES, KINDS, MAX_SKILL_BYTES, PublishedSource, every_kind
from sources.oci.registries import FakeRegistry
from sources.publishers import Publisher, Route, endless, redirect, respond_with, skill_md
from tables import each_row

LIMITED = replace(QUICK, limits=FetchLimits(skill_bytes=MAX_SKILL_BYTES))


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A nested folder; nothing outside of it may change."""
    (tmp_path / "canary").write_bytes(b"here before")
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    yield below
    assert (tmp_path / "canary").read_bytes() == b"here before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "canary"]
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["b"]


@pytest.fixture
def source(name: str, folder: Path) -> Iterator[tuple[PublishedSource, Follower]]:
    """A source of this kind, and its follower, which has a copy of the skill `good`."""
    with KINDS[name].open(folder) as source:
        source.publish("first", ())
        yield source, fetch_to_cache(source.given, folder / "cache", LIMITED)


@pytest.mark.requirement("WK-23", "WK-27", "WK-28", "WK-29", "WK-30", "WK-61")
@every_kind
@each_row("case", CASES)
def test_hostile_skill_is_refused_and_last_copy_stays(
    name: str, case: str, source: tuple[PublishedSource, Follower], caplog: pytest.LogCaptureFixture
) -> None:
    kind, hostile, (published, follower) = KINDS[name], CASES[case], source
    if case in kind.inexpressible:
        return
    before = served_files(follower)
    assert before.keys() == {"good", "good/SKILL.md"}
    published.publish(f"with {case}", hostile.members)
    lines = warnings_of_refresh(follower, caplog)
    assert lines
    assert all(line.isprintable() for line in lines)
    if kind.reports_reason:
        assert any(hostile.reason in line for line in lines), lines
    is_bad_served = hostile.is_omitted and kind.omits_ignored
    after = served_files(follower)
    if kind.is_per_skill or is_bad_served:
        assert after["good/SKILL.md"] == skill_md("good", f"with {case}")
    else:
        assert after["good/SKILL.md"] == before["good/SKILL.md"]
    if is_bad_served:
        assert after.pop("bad/SKILL.md")
        assert after.pop("bad")
        assert "not served, because of their names" in lines[0]
    assert {path for path in after if "scripts" not in path} == before.keys()
    published.publish(f"after {case}", ())
    assert warnings_of_refresh(follower, caplog) == []
    assert served_files(follower)["good/SKILL.md"] == skill_md("good", f"after {case}")


ROUTES: dict[str, tuple[Callable[[Publisher], Route], str]] = {
    "endless": (lambda _: endless(respond_with(length=10**12), b"x" * 65536), "bytes|does not speak HTTP"),
    "silent in the middle": (lambda site: site.stall(respond_with(b"{", length=50)), "did not answer within"),
    "to metadata": (lambda _: redirect("http://169.254.169.254/latest/meta-data/"), "http"),
    "retry later": (lambda _: respond_with(b"", 429, retry_after="7"), "come again in 7 s"),
    "permission": (lambda _: respond_with(b"", 403), "asks for permission"),
    "web page": (lambda _: respond_with(b"<!doctype html>Sign in", content_type="text/html"), ""),
}
"""Responses that each kind of source handles itself, with a pattern of the reason; test_http.py has those
that the HTTP client handles."""

HTTP_REQUESTS = [(name, request) for name, kind in KINDS.items() for request in kind.http_roots]
"""Each kind over HTTP with each of its requests that gets the response."""


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(("name", "requested"), HTTP_REQUESTS)
def test_hostile_http_response_is_reported_in_one_line(
    name: str, requested: str, route: str, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_route, reason = ROUTES[route]
    with FakeRegistry() as site:
        root = KINDS[name].http_roots[requested](site, make_route(site))
        follower = open_follower(root, folder / "cache", LIMITED)
        (line,) = warnings_of_refresh(follower, caplog)
        assert line.isprintable()
        assert len(line) < 500
        assert re.search(reason, line)
        if follower.path.is_dir():
            assert served_files(follower) == {}
