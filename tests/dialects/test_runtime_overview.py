"""Bounded overview of the skills: its budget, its groups, and its text as hosts truncate it."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
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

from .overviews import build_overview

UNLIMITED = 100_000
FIRST_LINE_CHARACTERS = 240
"""Characters that a host keeps if it shows only the first line."""
HOST_CHARACTERS = 4_096
"""The length at which some hosts truncate."""
SIZES = (17, 148, 600, 10_000)
"""Number of skills: the fixtures, a collection, a company, a public catalogue."""
IN_XML = st.text(st.characters(exclude_categories=["C"]), max_size=30)
OFFERS = st.lists(
    st.tuples(st.text("ab<ü-", min_size=1, max_size=40), st.text("x &😀", max_size=900)).map(lambda each: Offer(*each)),
    max_size=60,
)


@cache
def overview_of_size(size: int) -> Overview:
    if size != SIZES[0]:
        return build_overview(size, folders=0 if size < 300 else 20)
    registry = Registry([FIXTURES])
    registry.load()
    overview = Runtime(registry).whole.briefing.overview
    assert len(overview.offers) == size
    return overview


def texts_of_size(size: int) -> tuple[str, str]:
    instructions = runtime.instructions(overview_of_size(size), OVERVIEW_CHARACTERS, scripts=False)
    return instructions, loading(overview_of_size(size), OVERVIEW_CHARACTERS)


def names_in(text: str, size: int) -> set[str]:
    words = set(re.findall(r"[\w/-]+", text))
    return {offer.name for offer in overview_of_size(size).offers} & words


def golden_file(size: int) -> Path:
    return ROOT / "tests" / "golden" / f"catalogue.{size}.txt"


def golden_text(size: int) -> str:
    return "\n\n=====\n\n".join(texts_of_size(size)) + "\n"


@each_row("size", SIZES)
def test_texts_match_the_golden_files(size: int) -> None:
    assert golden_file(size).read_text(encoding="utf-8") == golden_text(size)


@pytest.mark.requirement("RT-5", "ASG-20", "ASG-21")
@each_row("size", SIZES)
def test_truncated_texts_have_the_number_of_skills_and_the_tools(size: int) -> None:
    instructions, description = texts_of_size(size)
    first_line = instructions[:FIRST_LINE_CHARACTERS]
    assert first_line.startswith(f"{size:,} skills here") and "\n" in first_line
    for text in (first_line, instructions, description):
        assert {runtime.SEARCH, runtime.LOAD, runtime.READ} <= set(re.findall(r"\w+", text))
        assert f"{size:,} skills" in text
        assert len(text) <= min(HOST_CHARACTERS, OVERVIEW_CHARACTERS)
    if size < 300:
        names = {offer.name for offer in overview_of_size(size).offers}
        assert names_in(instructions, size) == names
        assert names_in(description, size) == names


@pytest.mark.requirement("RT-3", "ASG-20")
def test_overview_within_the_budget_has_whole_descriptions_and_locations() -> None:
    overview = Overview([Offer("b", " Does\n b.", "/skills/b/SKILL.md"), Offer("a", "Does a.")])
    whole = runtime.available(overview, UNLIMITED)
    assert whole == (
        "<available_skills>\n"
        "<skill>\n<name>b</name>\n<description>Does b.</description>\n<location>/skills/b/SKILL.md</location>\n"
        "</skill>\n"
        "<skill>\n<name>a</name>\n<description>Does a.</description>\n</skill>\n"
        "</available_skills>"
    )
    assert runtime.available(overview, len(whole)) == whole
    assert runtime.available(overview, len(whole) - 1) != whole


@given(st.lists(st.tuples(IN_XML, IN_XML, st.none() | IN_XML).map(lambda each: Offer(*each)), min_size=1, max_size=5))
def test_any_text_of_a_skill_stays_within_its_element(offers: list[Offer]) -> None:
    expected: list[dict[str, str]] = []
    for offer in offers:
        fields = {"name": offer.name, "description": " ".join(offer.description.split())}
        if offer.location is not None:
            fields["location"] = offer.location
        expected.append(fields)
    block = ElementTree.fromstring(runtime.available(Overview(offers), UNLIMITED))
    assert [{field.tag: field.text or "" for field in skill} for skill in block.findall("skill")] == expected


@given(OFFERS, st.integers(0, 5_000))
@example([Offer("<", "&&&&&"), Offer("<<<", "&&&&")], 537)
def test_texts_keep_to_the_limit_and_are_well_formed(offers: list[Offer], characters: int) -> None:
    overview = Overview(offers)
    text = runtime.instructions(overview, characters, scripts=False)
    rule, _, block = text.partition("<available_skills>")
    assert len(text) <= characters or not block
    assert runtime.instructions(overview, 0, scripts=False).strip() == rule.strip()
    if block:
        ElementTree.fromstring(f"<available_skills>{block}")
    description = loading(overview, characters)
    assert len(description) <= characters or "\n\n" not in description
    is_complete = bool(offers) and in_loading(overview, characters).names is None
    if is_complete and all(offer.name.isalpha() for offer in offers):
        for offer in offers:
            assert offer.name in description


@each_row(("overview", "least", "most"), [
    (Overview([Offer("a", ""), Offer("b", "")]), 1, 20),
    (Overview([Offer(f"skill-{n}", "Does it well. " * 9, path=f"{n}") for n in range(9)]), 60, 900),
    (Overview([Offer(f"skill-{n}", "", path=f"folder-{n % 30}/{n}") for n in range(900)]), 1, 900),
])  # fmt: skip
def test_texts_use_the_limit_to_the_character(overview: Overview, least: int, most: int) -> None:
    for budget in range(least, most, 7):
        text = fit(overview, budget).text
        assert len(text) <= budget
        assert fit(overview, len(text)).text == text
    whole = runtime.instructions(overview, UNLIMITED, scripts=False)
    size = len(whole)
    assert runtime.instructions(overview, size, scripts=False) == whole
    assert runtime.instructions(overview, size - 1, scripts=False) != whole
    assert in_instructions(overview, size, scripts=False).text in whole
    assert in_instructions(overview, size - 1, scripts=False).text not in whole
    description = loading(overview, UNLIMITED)
    assert loading(overview, len(description)) == description
    assert loading(overview, len(description) - 1) != description
    assert loading(overview, 0).startswith("Load one or more skills")


def test_long_descriptions_share_what_short_ones_leave() -> None:
    overview = Overview([Offer("short", "Does it."), *(Offer(f"long-{n}", "many words " * 90) for n in range(9))])
    shown = fit(overview, 1_000)
    assert shown.names is None and len(shown.text) <= 1_000
    descriptions = dict(line.removeprefix("- ").split(": ", 1) for line in shown.text.splitlines())
    assert shown.cut == {position: descriptions[overview.offers[position].name] for position in range(1, 10)}
    assert descriptions.pop("short") == "Does it."
    (length,) = {len(text) for text in descriptions.values()}
    assert length > 80
    for text in descriptions.values():
        assert text.endswith(("many...", "words..."))


def test_preferred_skills_have_descriptions_if_only_some_fit() -> None:
    text = "Fills them. Use when there is a form. " * 9
    overview = Overview(
        [Offer(f"skill-of-forms-{n}", text, path=f"{n}") for n in range(99)], preferred=["gone", "7", "98", "3"]
    )
    shown = fit(overview, 2_700)
    described = {position for position, text in shown.cut.items() if text}
    assert described >= {7, 98, 3}
    assert len(described) < 10
    assert shown_part(overview, shown, 7).startswith("90 of 341 characters of its description: Use when")
    assert shown_part(overview, shown, min({*range(99)} - described)) == "by name alone"


def test_names_take_precedence_over_descriptions() -> None:
    names = [f"skill-{n}" for n in range(10)]
    overview = Overview([Offer(name, "What it does. " * 9) for name in names])
    enough = len(", ".join(names))
    shown = fit(overview, enough)
    assert shown.text == ", ".join(names)
    assert shown.names is None
    assert shown.cut == dict.fromkeys(range(10), "")
    fewer = fit(overview, enough - 1)
    assert fewer.names is not None and not fewer.cut
    assert {names[position] for position in fewer.names} == set(re.findall(r"skill-\d", fewer.text))


def test_whole_description_is_shown_in_its_own_order() -> None:
    overview = Overview([Offer("a", f"Does {'a' * 90}. Use when b.")])
    shown = fit(overview, UNLIMITED)
    assert shown.text == f"- a: Does {'a' * 90}. Use when b."
    assert shown_part(overview, shown, 0) == "with its whole description"


@each_row(("places", "expected"), [  # the places are `root:path` or `path`
    (["skills/a/x", "skills/a/y", "skills/b/z"], {"a": [0, 1], "b": [2]}),  # a shared folder is no group
    (["skills/x", "skills/y"], {"": [0, 1]}),
    (["c/x", "a/x", "b/x", "b/y"], {"b": [2, 3], "a": [1], "c": [0]}),  # equal sizes: by name
    (["site:a", "mine:b", "mine:c", "mine:acme/d"], {"mine": [1, 2], "acme": [3], "site": [0]}),
])  # fmt: skip
def test_groups_are_the_first_folders_that_differ_or_the_roots(
    places: list[str], expected: dict[str, list[int]]
) -> None:
    found = groups([(place.rpartition(":")[0], place.rpartition(":")[2]) for place in places])
    assert list(found) == list(expected)
    assert {label: sorted(positions) for label, positions in found.items()} == expected


def test_largest_groups_are_shown_and_the_others_counted() -> None:
    paths = [f"folder-{n % 100}/skill-{n}" for n in range(1500)]
    many = groups([("", path) for path in paths[:150]])
    assert len(many) == 24
    assert {len(positions) for positions in many.values()} == {2}
    overview = Overview([Offer(f"skill-{n}", "", path=path) for n, path in enumerate(paths)])
    shown = fit(overview, 4_000)
    assert shown.names and re.search(r"\n- in other folders: 1,140$", shown.text)
    for position in range(1500):
        expected = "by name alone" if position in shown.names else "not named"
        assert shown_part(overview, shown, position) == expected


def test_group_label_is_truncated_to_40_characters() -> None:
    for folder, label in (("x" * 40, "x" * 40), ("x" * 41, "x" * 37 + "...")):
        offers = [Offer(f"skill-{n}", "", path=f"{folder if n % 2 else 'b'}/{n}") for n in range(500)]
        assert f"\n- {label} (250): skill-" in fit(Overview(offers), 1_000).text
    flat = Overview([Offer(f"skill-{n}", "", path=f"{n}") for n in range(500)])
    assert "\n- " not in fit(flat, 1_000).text


def test_groups_alternate_and_a_new_skill_reorders_no_others() -> None:
    places = [("", f"a/skill-{n}") for n in range(40)] + [("", f"b/skill-{n}") for n in range(3)]
    folders = [places[position][1][0] for position in round_robin(groups(places))]
    assert folders[:8] == ["a", "b", "a", "b", "a", "b", "a", "a"]
    before = [places[position][1] for position in groups(places)["a"]]
    assert before != sorted(before)
    places.append(("", "a/new"))
    after = [places[position][1] for position in groups(places)["a"]]
    after.remove("a/new")
    assert after == before


def test_incomplete_count_is_shown_as_a_minimum() -> None:
    overview = Overview([Offer("a", "Does a.", path="a")], more=True)
    assert first_line(overview).startswith("More than 1 skill here")
    assert len(first_line(build_overview(10_000))) <= FIRST_LINE_CHARACTERS - len("More than ") - 1
    unread = Overview([], more=True)
    text = runtime.instructions(unread, UNLIMITED, scripts=False)
    assert "MUST" in text and "<available_skills>" not in text
    assert runtime.definitions(unread, UNLIMITED, scripts=False, handles=True) != []


def stems_of(text: str) -> list[str]:
    """Return the words of a text, an identifier as one, without the commonest endings."""
    return [re.sub(r"(?:ed|s)\Z", "", word) for word in re.findall(r"\w+", text.lower())]


def ranked(query: str, documents: Sequence[str]) -> list[int]:
    """Return the positions of the documents with a word of the query, by Okapi BM25."""
    counts = [Counter(stems_of(document)) for document in documents]
    average = sum(map(Counter.total, counts)) / len(counts)
    scores = dict.fromkeys(range(len(counts)), 0.0)
    for word in stems_of(query):
        having = sum(word in count for count in counts)
        weight = math.log((len(counts) - having + 0.5) / (having + 0.5) + 1)
        for position, count in enumerate(counts):
            often, length = count[word], 0.25 + 0.75 * count.total() / average
            scores[position] += weight * often * 2.2 / (often + 1.2 * length)
    return sorted((position for position in scores if scores[position]), key=lambda position: -scores[position])


@each_row("query", ["skills search load read", "search skills", "load skill", "load a skill and read its files"])
def test_search_among_the_tools_of_two_servers_finds_those_that_a_model_needs(query: str) -> None:
    """Codex ranks names, texts and the server's instructions by BM25, and shows eight tools."""
    names: list[str] = []
    documents: list[str] = []
    for server, size in (("skills", 148), ("more", 17)):
        overview = overview_of_size(size)
        about = runtime.instructions(overview, 0, scripts=False)
        tools: Any = runtime.definitions(overview, 10_000, scripts=False, handles=True)
        for tool in (*tools, *runtime.proposing()):
            names.append(tool["name"])
            words = (f"mcp__{server}__{names[-1]}", names[-1], names[-1], server, tool["title"], tool["description"])
            documents.append(" ".join((*words, about, *tool["inputSchema"]["properties"])))
    assert len(names) == 14
    found = Counter(names[position] for position in ranked(query, documents)[:8])
    assert (found["skills_search"], found["skills_load"]) == (2, 2)


@each_row("size", (*SIZES[:3], 3_000))
def test_shown_part_is_part_of_the_text_that_a_model_gets(size: int) -> None:
    overview = overview_of_size(size)
    for scripts in (False, True):
        shown = in_instructions(overview, OVERVIEW_CHARACTERS, scripts=scripts)
        assert shown.text in runtime.instructions(overview, OVERVIEW_CHARACTERS, scripts=scripts)
        assert (shown.names is None) == all(offer.name in shown.text for offer in overview.offers)
    shown = in_loading(overview, OVERVIEW_CHARACTERS)
    assert loading(overview, OVERVIEW_CHARACTERS).endswith(f":\n{shown.text}")
    assert in_instructions(Overview(), 4_000, scripts=True).text == ""


@given(st.lists(st.integers(0, 50), min_size=1, max_size=20), st.integers(0, 500))
def test_max_min_limit_is_the_greatest_that_fits(lengths: list[int], budget: int) -> None:
    most = max_min_limit(lengths, budget)
    assert sum(min(length, most) for length in lengths) <= budget or most == 0
    if most < max(lengths):
        assert sum(min(length, most + 1) for length in lengths) > budget
    else:
        assert most == max(lengths)
    assert max_min_limit([5], -3) == 0


@given(st.text("ab &;<>", max_size=40), st.integers(0, 45))
def test_clipped_keeps_to_the_limit(text: str, most: int) -> None:
    cut = clipped(text, most)
    assert cut == text or (len(cut) <= most and text.startswith(cut.removesuffix("...")))


@each_row(("text", "most", "cut"), [
    ("one two three", 12, "one two..."), ("one two three", 10, "one two..."), ("one two three", 9, "one..."),
    ("abcdefghij", 8, "abcde..."), ("abc&amp;def", 9, "abc..."), ("anything", 3, ""), ("anything", 4, "a..."),
    ("anything", 8, "anything"), ("one, two three", 8, "one..."), ("a &lt; bcdefgh", 10, "a &lt;..."),
    ("a " + "x" * 99, 34, "a..."), ("a " + "x" * 99, 35, f"a {'x' * 30}..."),
])  # fmt: skip
def test_clipped_ends_at_a_word_and_splits_no_entity(text: str, most: int, cut: str) -> None:
    assert clipped(text, most) == cut


@given(st.text("ab\n", max_size=60), st.integers(1, 30))
@example("one\n\ntwo\n\nthree", 8)
def test_paragraphs_and_the_rest_are_the_text(text: str, most: int) -> None:
    kept, position = paragraphs(text, most)
    assert len(kept) <= most and text.startswith(kept)
    assert not text[len(kept) : position].strip("\n")
    assert position > 0 or not text


@each_row(("text", "most", "expected"), [
    ("one\n\ntwo\n\nthree", 9, ("one\n\ntwo", 10)), ("one\ntwo\nthree", 9, ("one\ntwo", 8)),
    ("onetwothree", 6, ("onetwo", 6)), ("ab\n", 3, ("ab\n", 3)), ("\nabc", 2, ("\na", 2)), ("a\n\nbcd", 3, ("a", 3)),
])  # fmt: skip
def test_paragraphs_end_at_a_paragraph_then_a_line_then_anywhere(
    text: str, most: int, expected: tuple[str, int]
) -> None:
    assert paragraphs(text, most) == expected
