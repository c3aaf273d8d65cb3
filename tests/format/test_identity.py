"""What a skill is called among others, and how it is found by that name."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dialects.build import skill, snapshot
from mcp_skills_server.errors import RequestError, quoted
from mcp_skills_server.format import identity
from mcp_skills_server.model import LONGEST_PATH, Standing
from tables import each_row

VALID = Standing.VALID


@pytest.mark.requirement("S76-8")
@each_row(
    "name", ["", "acme", "Refunds", "refunds/", "/acme/refunds", "acme/refunds/SKILL.md", "../refunds", "x" * 100_000]
)
def test_an_unknown_name_is_refused_and_named(name: str):
    with pytest.raises(RequestError) as caught:
        identity.require(snapshot(skill("acme/refunds")), name, VALID)
    assert str(caught.value) == f"Unknown skill: {quoted(name)}"


@pytest.mark.requirement("S76-8", "S40-37")
def test_skills_that_share_a_name_go_by_their_paths():
    first, second, other = skills = skill("acme/refunds"), skill("globex/refunds"), skill("b/other")
    here = snapshot(*skills)
    names = [identity.name_of(each, here, VALID) for each in skills]
    assert names == ["acme/refunds", "globex/refunds", "other"]
    assert [identity.require(here, name, VALID) for name in (*names, "b/other")] == [first, second, other, other]
    with pytest.raises(RequestError) as caught:
        identity.require(here, "refunds", VALID)
    assert str(caught.value) == "Several skills are named 'refunds'; ask for one of: acme/refunds, globex/refunds"


@each_row("least", [Standing.LENIENT, VALID])
def test_a_name_that_is_another_s_path_is_not_a_skill_s_own(least: Standing):
    holder, deep = skill("refunds", name="payments", standing=least), skill("acme/refunds")
    here = snapshot(holder, deep)
    assert identity.name_of(deep, here, least) == "acme/refunds"
    assert identity.require(here, "refunds", least) is holder


@pytest.mark.requirement("X-2")
def test_a_skill_that_stands_too_low_is_not_there_and_shares_no_name():
    good, broken = skill("good/a"), skill("broken/a", standing=Standing.LENIENT)
    here = snapshot(good, broken)
    assert identity.require(here, "a", VALID) is good and identity.name_of(good, here, VALID) == "a"
    assert identity.require(here, "broken/a", Standing.LENIENT) is broken
    for name, least, reason in (("broken/a", VALID, "Unknown skill"), ("a", Standing.LENIENT, "Several skills")):
        with pytest.raises(RequestError, match=reason):
            identity.require(here, name, least)


@pytest.mark.requirement("S76-8")
@given(st.sets(st.lists(st.sampled_from("abc"), min_size=1, max_size=3).map("/".join), min_size=1, max_size=8))
def test_every_listed_name_is_its_own_and_leads_back_to_its_skill(paths: set[str]):
    here = snapshot(*map(skill, paths))
    names = {identity.name_of(each, here, VALID): each for each in here.skills.values()}
    assert len(names) == len(paths)
    for name, each in names.items():
        assert identity.require(here, name, VALID) is each


def test_a_name_longer_than_any_path_is_none():
    long = skill("a", name="x" * (LONGEST_PATH + 1))
    longest = skill("b", name="x" * LONGEST_PATH)
    there = snapshot(long, longest)
    assert [identity.name_of(each, there, VALID) for each in (long, longest)] == ["a", longest.name]
    assert identity.lookup(there, longest.name, VALID) is longest
    assert identity.lookup(there, long.name, VALID) is None
    assert identity.lookup(there, "a", VALID) is long


@each_row(("fields", "expected"), [
    ({"title": "Top", "metadata": {"title": "Meta"}}, "Top"), ({"metadata": {"title": "Meta"}}, "Meta"),
    ({"title": 7, "metadata": "x"}, "Heading"), ({"title": "", "metadata": {"title": ""}}, "Heading"),
    ({"title": "\u200b"}, None),
])  # fmt: skip
def test_a_title_is_the_author_s_or_the_first_heading(fields: dict[str, Any], expected: str | None) -> None:
    assert identity.title(skill("a", heading="Heading", **fields)) == expected
    assert identity.title(skill("a")) is None


@pytest.mark.requirement("S76-19", "X-14")
@each_row(("fields", "expected"), [
    ({"version": "2", "metadata": {"version": "1"}}, "2"), ({"metadata": {"version": "1.0.3"}}, "1.0.3"),
    ({"version": 0}, "0"), ({"version": 1.5}, "1.5"), ({"version": "", "metadata": {"version": "1"}}, "1"),
    ({"version": ["1"]}, None), ({"version": True, "metadata": {"version": "1\u200b"}}, "1"),
    ({"version": "\u200b", "metadata": {"version": "1"}}, None), ({"metadata": ["1"]}, None),
])  # fmt: skip
def test_a_version_is_that_of_the_top_level_or_of_metadata(fields: dict[str, Any], expected: str | None) -> None:
    assert identity.version(fields) == expected


@each_row(("given", "seen"), [
    ("/srv/private/team.zip", "team.zip"), ("team.tar.gz", "team.tar.gz"), ("C:\\skills\\team.zip", "team.zip"),
    ("C://skills/team.zip", "team.zip"), ("/srv/private://inner/team.zip", "team.zip"),
    ("git+file:///srv/private/skills.git@feature/x#folder/below", "skills.git@feature/x#folder/below"),
    ("git+file:///srv/private/skills.git/", "skills.git"), ("GIT+FILE:///srv/private/skills", "skills"),
    *((elsewhere, elsewhere) for elsewhere in (
        "HTTP://skills.example/team", "git+https://git.example/acme/skills@main#folder", "https://skills.example/team",
        "oci://registry.example/team/skills:1.0", "oci+http://localhost:5000/team/skills:1.0", "an unknown site")),
])  # fmt: skip
def test_of_what_lies_on_the_disk_others_read_the_last_name_alone(given: str, seen: str) -> None:
    assert identity.shown_origin(given) == seen
