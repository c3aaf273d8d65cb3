"""Every kind of source against one suite of hostile content, and those that ask by HTTP against hostile servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from mcp_skills_server.sources.source import FetchLimits
from sources.fetching import QUICK, opened, refreshed, served
from sources.hostile import CASES, KINDS, SKILL_BYTES, every_kind
from sources.oci.registries import Fake
from sources.publishers import Publisher, Route, answer, endless, redirect, skill_md

BRIEF = replace(QUICK, limits=FetchLimits(skill_bytes=SKILL_BYTES))


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


ROUTES: dict[str, tuple[Callable[[Publisher], Route], str | tuple[str, ...]]] = {
    "endless": (lambda _: endless(answer(length=10**12), b"x" * 65536), ("bytes", "does not speak HTTP")),
    "silent in the middle": (lambda site: site.stall(answer(b"{", length=50)), "did not answer within"),
    "to metadata": (lambda _: redirect("http://169.254.169.254/latest/meta-data/"), "http"),
    "come again": (lambda _: answer(b"", 429, retry_after="7"), "come again in 7 s"),
    "permission": (lambda _: answer(b"", 403), "asks for permission"),
    "web page": (lambda _: answer(b"<!doctype html>Sign in", content_type="text/html"), ""),
}
"""What a kind may get wrong itself; the rest is that of the client, which tests/sources/test_http.py tries."""


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(("name", "where"), [(name, where) for name, kind in KINDS.items() for where in kind.http])
def test_a_server_that_means_harm_costs_one_line(
    name: str, where: str, route: str, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make, said = ROUTES[route]
    with Fake() as site:
        follower = opened(KINDS[name].http[where](site, make(site)), folder / "cache", BRIEF)
        lines = refreshed(follower, caplog)
        assert len(lines) == 1 and lines[0].isprintable() and len(lines[0]) < 500
        assert any(words in lines[0] for words in ([said] if isinstance(said, str) else said)), lines
        assert served(follower) == {} if follower.path.is_dir() else True
