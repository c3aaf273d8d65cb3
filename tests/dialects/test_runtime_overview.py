"""What a model is told of the skills unasked: how its length is spent, and what hosts leave of it."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.dialects import runtime
from mcp_skills_server.dialects.runtime import OVERVIEW_CHARACTERS, Offer, Overview, round_robin, shown_part
from mcp_skills_server.dialects.runtime.overview import first_line, fit, groups, in_instructions, in_loading, loading
from mcp_skills_server.dialects.runtime.words import clipped, max_min_limit, paragraphs
from mcp_skills_server.runtime.runtime import Runtime
from tables import each_row
from wire import FIXTURES, ROOT

from .overviews import CUT, FIRST_LINE, made_up

PLENTY = 100_000
SIZES = (17, 148, 600, 10_000)
"""The fixtures, a collection, a company, and all that there is."""
IN_XML = st.text(st.characters(exclude_categories=["C"]), max_size=30)
OFFERS = st.lists(
    st.tuples(st.text("ab<ü-", min_size=1, max_size=40), st.text("x &😀", max_size=900)).map(lambda each: Offer(*each)),
    max_size=60,
)


@cache
def skills(size: int) -> Overview:
    if size != SIZES[0]:
        return made_up(size, folders=0 if size < 300 else 20)
    registry = Registry([FIXTURES])
    registry.load()
    offers = Runtime(registry).briefing.overview
    assert len(offers.offers) == size
    return offers


def texts(size: int) -> tuple[str, str]:
    """The instructions and the description of the loading tool."""
    seen = runtime.instructions(skills(size), OVERVIEW_CHARACTERS, scripts=False)
    return seen, loading(skills(size), OVERVIEW_CHARACTERS)


def golden(size: int) -> Path:
    return ROOT / "tests" / "golden" / f"catalogue.{size}.txt"


def names_in(text: str, size: int) -> set[str]:
    words = set(re.findall(r"[\w/-]+", text))
    return {offer.name for offer in skills(size).offers} & words


@each_row("size", SIZES)
def test_the_texts_are_the_golden_ones(size: int) -> None:
    assert "\n\n=====\n\n".join(texts(size)) + "\n" == golden(size).read_text(encoding="utf-8")


@pytest.mark.requirement("RT-5", "ASG-20", "ASG-21")
@each_row("size", SIZES)
def test_what_hosts_leave_of_the_texts_says_how_many_there_are_and_what_to_call(size: int) -> None:
    instructions, description = texts(size)
    first_line = instructions[:FIRST_LINE]
    assert first_line.startswith(f"{size:,} skills here") and "\n" in first_line
    for text in (first_line, instructions, description):
        assert {runtime.SEARCH, runtime.LOAD, runtime.READ} <= set(re.findall(r"\w+", text))
        assert f"{size:,} skills" in text and len(text) <= min(CUT, OVERVIEW_CHARACTERS)
    if size < 300:
        everything = {offer.name for offer in skills(size).offers}
        assert names_in(instructions, size) == names_in(description, size) == everything


@pytest.mark.requirement("RT-3", "ASG-20")
def test_where_all_fits_each_skill_has_its_whole_description_and_location() -> None:
    found = Overview([Offer("b", " Does\n b.", "/skills/b/SKILL.md"), Offer("a", "Does a.")])
    whole = runtime.available(found, PLENTY)
    assert whole == runtime.available(found, len(whole)) != runtime.available(found, len(whole) - 1)
    assert whole == (
        "<available_skills>\n"
        "<skill>\n<name>b</name>\n<description>Does b.</description>\n<location>/skills/b/SKILL.md</location>\n"
        "</skill>\n"
        "<skill>\n<name>a</name>\n<description>Does a.</description>\n</skill>\n"
        "</available_skills>"
    )


@given(st.lists(st.tuples(IN_XML, IN_XML, st.none() | IN_XML).map(lambda each: Offer(*each)), min_size=1, max_size=5))
def test_whatever_a_skill_says_stays_in_its_place(found: list[Offer]) -> None:
    wanted = [
        {"name": each.name, "description": " ".join(each.description.split())}
        | ({} if each.location is None else {"location": each.location})
        for each in found
    ]
    block = ElementTree.fromstring(runtime.available(Overview(found), PLENTY))
    assert [{field.tag: field.text or "" for field in each} for each in block.findall("skill")] == wanted


@given(OFFERS, st.integers(0, 5_000))
@example([Offer("<", "&&&&&"), Offer("<<<", "&&&&")], 537)
def test_the_texts_keep_to_their_length_and_no_skill_ends_the_block(found: list[Offer], characters: int) -> None:
    seen = runtime.instructions(Overview(found), characters, scripts=False)
    rule, _, block = seen.partition("<available_skills>")
    assert len(seen) <= characters or not block
    assert runtime.instructions(Overview(found), 0, scripts=False).strip() == rule.strip()
    if block:
        ElementTree.fromstring(f"<available_skills>{block}")
    described = loading(Overview(found), characters)
    complete = bool(found) and in_loading(Overview(found), characters).names is None
    assert len(described) <= characters or "\n\n" not in described
    if complete and all(offer.name.isalpha() for offer in found):
        assert all(offer.name in described for offer in found)


@each_row(("found", "least", "most"), [
    (Overview([Offer("a", ""), Offer("b", "")]), 1, 20),
    (Overview([Offer(f"skill-{n}", "Does it well. " * 9, path=f"{n}") for n in range(9)]), 60, 900),
    (Overview([Offer(f"skill-{n}", "", path=f"folder-{n % 30}/{n}") for n in range(900)]), 1, 900),
])  # fmt: skip
def test_a_text_has_all_that_fits_to_the_character(found: Overview, least: int, most: int) -> None:
    for budget in range(least, most):
        text = fit(found, budget).text
        assert len(text) <= budget and fit(found, len(text)).text == text
    seen = runtime.instructions(found, PLENTY, scripts=False)
    assert runtime.instructions(found, len(seen), scripts=False) == seen
    assert runtime.instructions(found, len(seen) - 1, scripts=False) != seen
    assert in_instructions(found, len(seen), scripts=False).text in seen
    assert in_instructions(found, len(seen) - 1, scripts=False).text not in seen
    described = loading(found, PLENTY)
    assert loading(found, len(described)) == described != loading(found, len(described) - 1)
    assert loading(found, 0).startswith("Load one or more skills")


def test_descriptions_are_shortened_to_one_length_and_short_ones_leave_their_part_to_the_others() -> None:
    found = Overview([Offer("short", "Does it."), *(Offer(f"long-{n}", "many words " * 90) for n in range(9))])
    shown = fit(found, 1_000)
    seen = dict(line.removeprefix("- ").split(": ", 1) for line in shown.text.splitlines())
    assert shown.names is None and len(shown.text) <= 1_000
    assert shown.cut == {position: seen[found.offers[position].name] for position in range(1, 10)}
    assert seen.pop("short") == "Does it."
    (length,) = {len(each) for each in seen.values()}
    assert length > 80 and all(each.endswith(("many...", "words...")) for each in seen.values())
    within = fit(Overview([Offer(f"skill-{n}", "PDF " + "填写表单" * 60) for n in range(9)]), 1_000)
    assert sorted(within.cut) == [*range(9)] and min(map(len, within.cut.values())) >= 60  # without blanks


def test_preferred_skills_have_descriptions_where_not_all_do() -> None:
    said = "Fills them. Use when there is a form. " * 9
    found = Overview(
        [Offer(f"skill-of-forms-{n}", said, path=f"{n}") for n in range(99)], preferred=["gone", "7", "98", "3"]
    )
    shown = fit(found, 2_700)
    described = {position for position, text in shown.cut.items() if text}
    assert described >= {7, 98, 3} and len(described) < 10
    assert shown_part(found, shown, 7).startswith("90 of 341 characters of its description: Use when")
    assert shown_part(found, shown, min({*range(99)} - described)) == "by name alone"


def test_names_come_before_any_description() -> None:
    found = Overview([Offer(f"skill-{n}", "What it does. " * 9) for n in range(10)])
    enough = len(", ".join(offer.name for offer in found.offers))
    shown = fit(found, enough)
    assert (shown.text, shown.names) == (", ".join(offer.name for offer in found.offers), None)
    assert shown.cut == dict.fromkeys(range(10), "")
    fewer = fit(found, enough - 1)
    assert fewer.names is not None and not fewer.cut
    assert {found.offers[position].name for position in fewer.names} == set(re.findall(r"skill-\d", fewer.text))
    whole = Overview([Offer("a", f"Does {'a' * 90}. Use when b.")])
    assert fit(whole, PLENTY).text == f"- a: Does {'a' * 90}. Use when b."
    assert shown_part(whole, fit(whole, PLENTY), 0) == "with its whole description"


@each_row(("places", "labels"), [
    (["skills/a/x", "skills/a/y", "skills/b/z"], {"a": [0, 1], "b": [2]}),  # what all share makes no group
    (["skills/x", "skills/y"], {"": [0, 1]}),
    (["c/x", "a/x", "b/x", "b/y"], {"b": [2, 3], "a": [1], "c": [0]}),  # those of one size by their names
    (["site:a", "mine:b", "mine:c", "mine:acme/d"], {"mine": [1, 2], "acme": [3], "site": [0]}),
])  # fmt: skip
def test_groups_are_the_folders_that_differ_else_the_roots(places: list[str], labels: dict[str, list[int]]) -> None:
    found = groups([(each.rpartition(":")[0], each.rpartition(":")[2]) for each in places])
    assert [(label, sorted(positions)) for label, positions in found.items()] == [*labels.items()]


def test_of_many_groups_the_largest_are_shown_and_the_others_counted() -> None:
    paths = [f"folder-{n % 100}/skill-{n}" for n in range(1500)]
    many = groups([("", path) for path in paths[:150]])
    assert len(many) == 24 and {len(positions) for positions in many.values()} == {2}
    found = Overview([Offer(f"skill-{n}", "", path=path) for n, path in enumerate(paths)])
    shown = fit(found, 4_000)
    assert re.search(r"\n- in other folders: 1,140$", shown.text) and shown.names
    words = {position in shown.names: shown_part(found, shown, position) for position in range(1500)}
    assert words == {True: "by name alone", False: "not named"}
    for folder, label in (("x" * 40, "x" * 40), ("x" * 41, "x" * 37 + "...")):
        two = [Offer(f"skill-{n}", "", path=f"{folder if n % 2 else 'b'}/{n}") for n in range(500)]
        assert f"\n- {label} (250): skill-" in fit(Overview(two), 1_000).text
    flat = Overview([Offer(f"skill-{n}", "", path=f"{n}") for n in range(500)])
    assert "\n- " not in fit(flat, 1_000).text


def test_groups_take_turns_and_a_newcomer_moves_nobody() -> None:
    before = [("", f"{folder}/skill-{n}") for folder, count in (("a", 40), ("b", 3)) for n in range(count)]
    order = [before[position][1] for position in round_robin(groups(before))]
    assert [path[0] for path in order[:8]] == ["a", "b", "a", "b", "a", "b", "a", "a"]
    alone = [before[position][1] for position in groups(before)["a"]]
    after = [*before, ("", "a/new")]
    assert [path for position in groups(after)["a"] if (path := after[position][1]) != "a/new"] == alone
    assert alone != sorted(alone)


def test_a_count_that_was_cut_short_is_said_as_such() -> None:
    found = Overview([Offer("a", "Does a.", path="a")], more=True)
    assert first_line(found).startswith("More than 1 skill here")
    none = Overview([], more=True)
    seen = runtime.instructions(none, PLENTY, scripts=False)
    assert "MUST" in seen and "<available_skills>" not in seen
    assert len(first_line(made_up(10_000))) <= FIRST_LINE - len("More than ") - 1
    assert [tool["name"] for tool in runtime.definitions(none, PLENTY, scripts=False, handles=True)]


@pytest.mark.parametrize("scripts", [True, False])
def test_a_search_among_tools_finds_all_of_them_by_any_of_four_words(scripts: bool) -> None:
    tools: Any = runtime.definitions(skills(148), OVERVIEW_CHARACTERS, scripts=scripts, handles=True)
    assert len(tools) == 5 + scripts
    for tool in tools:
        assert {"skill", "search", "load", "read"} <= set(re.findall(r"[a-z]+", tool["description"].lower()))


@each_row("count", (*SIZES[:3], 3_000))
def test_what_is_shown_of_the_skills_is_said_of_the_very_texts_that_a_model_gets(count: int) -> None:
    found = skills(count)
    for scripts in (False, True):
        part = in_instructions(found, OVERVIEW_CHARACTERS, scripts=scripts)
        assert part.text in runtime.instructions(found, OVERVIEW_CHARACTERS, scripts=scripts)
        assert (part.names is None) == all(offer.name in part.text for offer in found.offers)
    part = in_loading(found, OVERVIEW_CHARACTERS)
    assert loading(found, OVERVIEW_CHARACTERS).endswith(f":\n{part.text}")
    assert in_instructions(Overview(), 4_000, scripts=True).text == ""


@given(st.lists(st.integers(0, 50), min_size=1, max_size=20), st.integers(0, 500))
def test_all_get_as_much_as_fits_and_not_a_character_more(lengths: list[int], room: int) -> None:
    most = max_min_limit(lengths, room)
    assert max_min_limit([5], -3) == 0
    assert sum(min(length, most) for length in lengths) <= room or most == 0
    if most < max(lengths):
        assert sum(min(length, most + 1) for length in lengths) > room
    else:
        assert most == max(lengths)


@given(st.text("ab &;<>", max_size=40), st.integers(0, 45))
def test_a_text_is_cut_to_a_length(text: str, most: int) -> None:
    cut = clipped(text, most)
    assert cut == text or (len(cut) <= most and text.startswith(cut.removesuffix("...")))


@each_row(("text", "most", "cut"), [
    ("one two three", 12, "one two..."), ("one two three", 10, "one two..."), ("one two three", 9, "one..."),
    ("abcdefghij", 8, "abcde..."), ("abc&amp;def", 9, "abc..."), ("anything", 3, ""), ("anything", 4, "a..."),
    ("anything", 8, "anything"), ("one, two three", 8, "one..."), ("a &lt; bcdefgh", 10, "a &lt;..."),
    ("a " + "x" * 99, 34, "a..."), ("a " + "x" * 99, 35, f"a {'x' * 30}..."),
])  # fmt: skip
def test_a_cut_leaves_no_half_of_a_word_or_of_an_entity(text: str, most: int, cut: str) -> None:
    assert clipped(text, most) == cut


@given(st.text("ab\n", max_size=60), st.integers(1, 30))
@example("one\n\ntwo\n\nthree", 8)
def test_paragraphs_and_the_rest_make_the_text(text: str, most: int) -> None:
    kept, position = paragraphs(text, most)
    assert len(kept) <= most and text.startswith(kept)
    assert not text[len(kept) : position].strip("\n")
    assert position > 0 or not text
    assert paragraphs("one\n\ntwo\n\nthree", 9) == ("one\n\ntwo", 10)
    assert paragraphs("one\ntwo\nthree", 9) == ("one\ntwo", 8)
    assert paragraphs("onetwothree", 6) == ("onetwo", 6)
    assert paragraphs("ab\n", 3) == ("ab\n", 3) and paragraphs("\nabc", 2) == ("\na", 2)
    assert paragraphs("a\n\nbcd", 3) == ("a", 3)
