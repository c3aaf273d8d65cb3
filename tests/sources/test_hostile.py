"""Every kind of source against one suite of hostile content, and those that ask by HTTP against hostile servers."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import anyio
import pytest

from mcp_skills_server.sources.mirrors import Follower
from mcp_skills_server.sources.source import (
    FetchLimits,
    SourceError,
)
from sources.fetching import QUICK, listing, opened
from sources.hostile import CASES, KINDS, SKILL_BYTES, Member
from sources.oci.registries import Fake
from sources.publishers import Publisher, Route, answer, endless, redirect, skill_md, then_close

BRIEF = replace(QUICK, limits=FetchLimits(skill_bytes=SKILL_BYTES))


def refreshed(follower: Follower, caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the operator hears of one look."""
    caplog.clear()
    try:
        anyio.run(follower.refresh)
    except SourceError as error:
        follower.report_failure(error)
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def served(follower: Follower) -> dict[str, bytes | str]:
    return listing(follower.path.resolve())


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder in a folder, whose neighbours stay as they are."""
    (tmp_path / "canary").write_bytes(b"here before")
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    yield below
    assert (tmp_path / "canary").read_bytes() == b"here before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "canary"]
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["b"]


every_kind = pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.needs_program(kind.program)] if kind.program else [])
        for name, kind in KINDS.items()
    ],
)


@pytest.mark.requirement("WK-23", "WK-27", "WK-28", "WK-29", "WK-30", "WK-61")
@pytest.mark.parametrize("case", CASES)
@every_kind
def test_it_is_refused_and_the_last_good_copy_stays(
    name: str, case: str, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kind, hostile = KINDS[name], CASES[case]
    if case in kind.without:
        pytest.skip(f"{name} has no way to say it")
    with kind.open(folder) as place:
        place.publish("first", ())
        follower = opened(place.given, folder / "cache", BRIEF)
        assert refreshed(follower, caplog) == []
        good = {"good": "directory", "good/SKILL.md": skill_md("good", "first")}
        assert served(follower) == good
        place.publish("second", hostile.members)
        lines = refreshed(follower, caplog)
        assert lines and all(line.isprintable() for line in lines)
        assert not kind.words or any(hostile.said in line for line in lines), lines
        bad_comes = hostile.left_out and kind.leaves_out
        taken = kind.neighbours or bad_comes
        after = served(follower)
        assert after["good/SKILL.md"] == skill_md("good", "second" if taken else "first")
        if bad_comes:
            assert after.pop("bad/SKILL.md") and after.pop("bad") and "left out" in lines[0]
        assert {path for path in after if "scripts" not in path} == set(good)
        place.publish("third", ())
        assert refreshed(follower, caplog) == []
        assert served(follower)["good/SKILL.md"] == skill_md("good", "third")


NAMED = re.compile(r".*: fetched ([0-9a-f]{12})(?: \(was ([0-9a-f]{12})\))?: (.*)")


@every_kind
def test_an_update_names_its_revisions_and_what_became_of_each_skill(
    name: str, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="mcp_skills_server.sources")
    with KINDS[name].open(folder) as place:
        before = None
        for text, bad, changes in (
            ("first", (), "added good"),
            ("second", [Member("more.md")], "added bad; changed good"),
            ("third", (), "changed good; removed bad"),
        ):
            place.publish(text, bad)
            if name != "archive" or before is None:  # of an archive nothing is kept
                follower = opened(place.given, folder / "cache", BRIEF)
            caplog.clear()
            anyio.run(partial(follower.refresh, anew=True))
            (line,) = caplog.messages
            found = NAMED.fullmatch(line)
            assert found is not None and follower.state.revision.removeprefix("sha256:").startswith(found[1])
            assert (found[2], found[3]) == (before, changes)
            before = found[1]
        caplog.clear()
        anyio.run(partial(follower.refresh, anew=True))
        assert caplog.messages == []


ROUTES: dict[str, tuple[Callable[[Publisher], Route], str | tuple[str, ...]]] = {
    "endless": (lambda _: endless(answer(length=10**12), b"x" * 65536), ("bytes", "does not speak HTTP")),
    "endless without length": (
        lambda _: endless(
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", b"10000\r\n" + b"x" * 65536 + b"\r\n"
        ),
        ("bytes", "does not speak HTTP"),
    ),
    "endless head": (lambda _: endless(b"HTTP/1.1 200 OK\r\n", b"x: " + b"y" * 60_000 + b"\r\n"), "HTTP"),
    "silent": (lambda site: site.stall(), "did not answer within"),
    "silent in the middle": (lambda site: site.stall(answer(b"{", length=50)), "did not answer within"),
    "drip": (lambda site: site.drip(answer(b"{" * 100)), "took longer than"),
    "broken off": (lambda _: then_close(answer(b"{", length=100)), "broke off"),
    "no HTTP": (lambda _: then_close(b"SSH-2.0-OpenSSH_9.2\r\n"), "does not speak HTTP"),
    "circle": (lambda site: redirect(f"{site.url}/circle"), "more than 5 redirects"),
    "to a file": (lambda _: redirect("file:///etc/passwd"), "not an http or https URL"),
    "to metadata": (lambda _: redirect("http://169.254.169.254/latest/meta-data/"), "http"),
    "server error": (lambda _: answer(b"", 500), "does not answer now"),
    "come again": (lambda _: answer(b"", 429, retry_after="7"), "come again in 7 s"),
    "permission": (lambda _: answer(b"", 403), "asks for permission"),
    "web page": (lambda _: answer(b"<!doctype html>Sign in", content_type="text/html"), ""),
}


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(("name", "where"), [(name, where) for name, kind in KINDS.items() for where in kind.http])
def test_a_server_that_means_harm_costs_one_line(
    name: str, where: str, route: str, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make, said = ROUTES[route]
    with Fake() as site:
        site.routes["/circle"] = redirect(f"{site.url}/circle")
        follower = opened(KINDS[name].http[where](site, make(site)), folder / "cache", BRIEF)
        lines = refreshed(follower, caplog)
        assert len(lines) == 1 and lines[0].isprintable() and len(lines[0]) < 500
        assert any(words in lines[0] for words in ([said] if isinstance(said, str) else said)), lines
        assert served(follower) == {} if follower.path.is_dir() else True
