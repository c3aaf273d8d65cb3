"""Names of skills among others, lookup by name, titles, versions and origins."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dialects.build import skill, snapshot
from mcp_skills_server.errors import RequestError, quoted
from mcp_skills_server.format import identity
from mcp_skills_server.model import MAX_PATH, Standing
from tables import each_row

VALID = Standing.VALID


@pytest.mark.requirement("S76-8")
@each_row(
    "name", ["", "acme", "Refunds", "refunds/", "/acme/refunds", "acme/refunds/SKILL.md", "../refunds", "x" * 100_000]
)
def test_unknown_name_is_refused_by_name(name: str):
    with pytest.raises(RequestError) as caught:
        identity.require(snapshot(skill("acme/refunds")), name, VALID)
    assert str(caught.value) == f"Unknown skill: {quoted(name)}"


@pytest.mark.requirement("S76-8", "S40-37")
def test_skills_that_share_a_name_are_named_by_path():
    first, second, other = skills = skill("acme/refunds"), skill("globex/refunds"), skill("b/other")
    served = snapshot(*skills)
    names = [identity.name_of(each, served, VALID) for each in skills]
    assert names == ["acme/refunds", "globex/refunds", "other"]
    assert [identity.require(served, name, VALID) for name in (*names, "b/other")] == [first, second, other, other]
    with pytest.raises(RequestError) as caught:
        identity.require(served, "refunds", VALID)
    assert str(caught.value) == "Several skills are named 'refunds'; ask for one of: acme/refunds, globex/refunds"


@pytest.mark.requirement("S76-8")
@each_row("least", [Standing.LENIENT, VALID])
def test_name_that_is_the_path_of_another_skill_is_not_used(least: Standing):
    owner, deep = skill("refunds", name="payments", standing=least), skill("acme/refunds")
    served = snapshot(owner, deep)
    assert identity.name_of(deep, served, least) == "acme/refunds"
    assert identity.require(served, "refunds", least) is owner


@pytest.mark.requirement("X-2")
def test_skill_below_the_required_standing_is_unknown_and_shares_no_name():
    good, broken = skill("good/a"), skill("broken/a", standing=Standing.LENIENT)
    served = snapshot(good, broken)
    assert identity.require(served, "a", VALID) is good
    assert identity.name_of(good, served, VALID) == "a"
    assert identity.require(served, "broken/a", Standing.LENIENT) is broken
    for name, least, reason in (("broken/a", VALID, "Unknown skill"), ("a", Standing.LENIENT, "Several skills")):
        with pytest.raises(RequestError, match=reason):
            identity.require(served, name, least)


@pytest.mark.requirement("S76-8")
@given(st.sets(st.lists(st.sampled_from("abc"), min_size=1, max_size=3).map("/".join), min_size=1, max_size=8))
def test_listed_names_are_unique_and_lead_back_to_their_skills(paths: set[str]):
    served = snapshot(*map(skill, paths))
    names = {identity.name_of(each, served, VALID): each for each in served.skills.values()}
    assert len(names) == len(paths)
    for name, each in names.items():
        assert identity.require(served, name, VALID) is each


def test_name_longer_than_the_longest_path_is_not_used():
    too_long = skill("a", name="x" * (MAX_PATH + 1))
    longest = skill("b", name="x" * MAX_PATH)
    served = snapshot(too_long, longest)
    assert [identity.name_of(each, served, VALID) for each in (too_long, longest)] == ["a", longest.name]
    assert identity.lookup(served, longest.name, VALID) is longest
    assert identity.lookup(served, too_long.name, VALID) is None
    assert identity.lookup(served, "a", VALID) is too_long


@each_row(("fields", "expected"), [
    ({"title": "Top", "metadata": {"title": "Meta"}}, "Top"), ({"metadata": {"title": "Meta"}}, "Meta"),
    ({"title": 7, "metadata": "x"}, "Heading"), ({"title": "", "metadata": {"title": ""}}, "Heading"),
    ({"title": "\u200b"}, None),
])  # fmt: skip
def test_title_is_a_field_or_the_first_heading(fields: dict[str, Any], expected: str | None) -> None:
    assert identity.title(skill("a", heading="Heading", **fields)) == expected
    assert identity.title(skill("a")) is None


@pytest.mark.requirement("S76-19", "X-14")
@each_row(("fields", "expected"), [
    ({"version": "2", "metadata": {"version": "1"}}, "2"), ({"metadata": {"version": "1.0.3"}}, "1.0.3"),
    ({"version": 0}, "0"), ({"version": 1.5}, "1.5"), ({"version": "", "metadata": {"version": "1"}}, "1"),
    ({"version": ["1"]}, None), ({"version": True, "metadata": {"version": "1\u200b"}}, "1"),
    ({"version": "\u200b", "metadata": {"version": "1"}}, None), ({"metadata": ["1"]}, None),
])  # fmt: skip
def test_version_is_a_field_of_the_top_level_or_of_metadata(fields: dict[str, Any], expected: str | None) -> None:
    assert identity.version(fields) == expected


@each_row(("origin", "shown"), [
    ("/srv/private/team.zip", "team.zip"), ("team.tar.gz", "team.tar.gz"), ("C:\\skills\\team.zip", "team.zip"),
    ("C://skills/team.zip", "team.zip"), ("/srv/private://inner/team.zip", "team.zip"),
    ("git+file:///srv/private/skills.git@feature/x#folder/below", "skills.git@feature/x#folder/below"),
    ("git+file:///srv/private/skills.git/", "skills.git"), ("GIT+FILE:///srv/private/skills", "skills"),
    *((elsewhere, elsewhere) for elsewhere in (
        "HTTP://skills.example/team", "git+https://git.example/acme/skills@main#folder", "https://skills.example/team",
        "oci://registry.example/team/skills:1.0", "oci+http://localhost:5000/team/skills:1.0", "an unknown site")),
])  # fmt: skip
def test_shown_origin_of_a_local_path_is_its_last_name(origin: str, shown: str) -> None:
    assert identity.shown_origin(origin) == shown
