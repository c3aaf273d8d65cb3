"""Full-text search: matching, ranking, index updates and unusual queries."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from catalog.forest import load_registry, skill_md, skills, write_files
from dialects import build
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.model import Skill, Snapshot, Standing
from mcp_skills_server.runtime.search import FUSED, Search, fuse
from mcp_skills_server.runtime.search_index import SearchIndex
from mcp_skills_server.runtime.search_text import STOP_WORDS, matched_fields
from tables import each_row
from wire import FIXTURES


def registry(*skills: Skill) -> Registry:
    built = Registry([])
    built.snapshot = build.snapshot(*skills)
    return built


def skill(path: str, *headings: str, opening: str = "", **fields: Any) -> Skill:
    built = build.skill(path, **fields)
    return replace(built, reading=built.reading._replace(headings=headings, opening=opening))


def find(search: Search, query: str, limit: int = 5) -> list[str]:
    """Return the paths of the skills that a search finds."""
    return [skill.path for skill in search.find(query, limit, lambda _: True)]


def find_among(query: str, *skills: Skill) -> list[str]:
    """Return the paths of those of these skills that a new index finds."""
    return find(Search(registry(*skills)), query)


FILLER = [skill(f"filler-{number}", description=f"Something else, number {number}.") for number in range(9)]
"""Skills that match no query, because words of most skills are dropped from a query."""


@pytest.fixture(scope="module")
def fixtures() -> Search:
    return Search(load_registry(FIXTURES))


@each_row(("query", "expected"), [
    ("commit-messages", "commit-messages"), ("Commit_Messages", "commit-messages"),
    ("commmit mesages", "commit-messages"), ("colr-palete", "colour-palettes"), ("refnuds", "acme/billing/refunds"),
    ("incidnet report", "incident-report"), ("retrywithbackoff", "retry-with-backoff"),
    ("a customer wants their money back", "acme/billing/refunds"), ("actions that last", "incident-report"),
    ("quoting line ends", "windows-paths"), ("i18n", "polite-greetings"), ("hofliche gruße", "polite-greetings"),
    ("日本語", "polite-greetings"), ("migr", "sql-migrations"), ("acme/billing/invoices", "acme/billing/invoices"),
])  # fmt: skip
def test_expected_skill_is_among_first_three(fixtures: Search, query: str, expected: str) -> None:
    assert expected in find(fixtures, query, 3)


def test_exact_name_comes_first_with_any_separator() -> None:
    longer = skill("release-notes-release-notes", description="Release notes and release notes.")
    skills = (skill("release"), skill("release-notes", description="Writes."), longer)
    for query in ("release", "Release!"):
        assert find_among(query, *skills)[0] == "release"
    for query in ("release-notes", "RELEASE_NOTES", "release/notes", "releasenotes"):
        assert find_among(query, *skills)[0] == "release-notes"


def test_fields_are_weighted_from_name_to_path() -> None:
    skills = [
        skill("zebra/e", "Other", description="Same words here."),
        skill("d", "Zebra", description="Same words here."),
        skill("c", "Other", description="Zebra words here."),
        skill("b", "Other", description="Same words here.", tags=["zebra"]),
        skill("zebra-crossing", "Other", description="Same words here."),
    ]
    assert find_among("zebra", *FILLER, *skills) == ["zebra-crossing", "b", "c", "d", "zebra/e"]
    assert find_among("figures", skill("acme/one", title="Quarterly figures"), skill("other/two")) == ["acme/one"]


@each_row(("query", "word"), [
    ("INVOICES", "invoice"), ("invoice", "Invoices"), ("writing", "writes"), ("cafe", "Café"), ("CAFÉ", "cafe"),
    ("strasse", "Straße"), ("postg", "PostgreSQL"), ("snake-case", "snake_case"), ("a.b/c", "c"),
    ("敬称", "日本語の敬称です"), ("敬", "敬称"), ("이름", "이름을"), ("Ελληνικα", "Ελληνικά"), ("a\0b", "b"),
    ("zurich", "Zürich"), ("finance", "ﬁnance"), ("İstanbul", "İstanbul"), ("viii", "Ⅷ"), ("x²", "x²"),
    ("full", "\uff26\uff35\uff2c\uff2c"), ("हिन्दी", "हिन्दी"), ("ไทย", "ไทย"), ("中文", "中文"), ("C3PO", "C3PO"),
])  # fmt: skip
def test_search_folds_case_accents_and_inflection(query: str, word: str) -> None:
    assert find_among(query, skill("one", description=f"About {word} and more."), skill("two")) == ["one"]


def test_more_matching_words_rank_higher() -> None:
    one = skill("one", description="Paints a fence.")
    two = skill("two", description="Paints a fence in green.")
    assert find_among("paint my fence green tomorrow", *FILLER, one, two) == ["two", "one"]


def test_only_last_word_of_query_matches_as_prefix() -> None:
    skills = [*FILLER, skill("one", description="Category."), skill("two", description="Zebra.")]
    assert find_among("cat zebra", *skills) == ["two"]


def test_query_and_text_are_truncated_at_limits() -> None:
    """At the limit the last word "qz" is cut to "q", which is too short to match as a prefix."""
    skills = [*FILLER, skill("one", description="Qz.")]
    for start, expected in (("x " * 999, ["one"]), ("x " * 999 + " ", [])):
        assert find_among(f"{start}qz", *skills) == expected
        assert find_among("qz", *FILLER, skill("one", description="x " * 1000 + start + "qz")) == expected
    words = " ".join(f"zyx{number}" for number in range(23))
    assert find_among(f"{words} qz x", *skills) == ["one"]
    assert find_among(f"{words} zyx qz x", *skills) == []
    stop_words = " ".join(sorted(STOP_WORDS - {"of"})[:23])
    assert find_among(f"{stop_words} of", skill("of")) == ["of"]
    assert find_among(f"{stop_words} {max(STOP_WORDS)} of", skill("of")) == []


@each_row("query", ["xyzzy", "qqqqqqqq", "cmt", "zebra giraffe"])
def test_query_unlike_any_skill_finds_nothing(query: str) -> None:
    assert find_among(query, skill("commit-messages"), skill("other")) == []


def test_stop_words_of_a_name_match_it() -> None:
    skills = [skill(path, description="x") for path in ("how-to", "before-and-after", "c")]
    assert find_among("how to", *skills) == ["how-to"]
    assert find_among("after", *skills) == find_among("bef", *skills) == ["before-and-after"]
    assert find_among("the", skill("theory"), *skills) == ["theory"], "it may be the beginning of a name"
    assert find_among("a", *skills) == []


def test_opening_of_body_matches_if_no_field_does() -> None:
    one = skill("one", description="Does what it says.", opening="Feed the zebras daily.")
    assert find_among("zebra", *FILLER, one) == ["one"]
    assert find_among("zebra", *FILLER, one, skill("zebra")) == ["zebra"]
    assert find_among("feed striped zebras daily", *FILLER, one)[0] == "one"
    assert find_among("zebra the lion", *FILLER, one, skill("lion")) == ["lion"]
    assert find_among("zebra and the lion", *FILLER, one, skill("lion")) == ["lion", "one"], "a sentence"


def test_index_follows_edits_of_heading_and_opening(tmp_path: Path) -> None:
    registry = load_registry(
        write_files(tmp_path, {"a/SKILL.md": skill_md("a", body="# Lions\n\nZebras.")} | skills("b", "c"))
    )
    search = Search(registry)
    assert find(search, "lion") == find(search, "zebra") == ["a"]
    assert find(search, "giraffe") == []
    write_files(tmp_path, {"a/SKILL.md": skill_md("a", body="# Tigers\n\nGiraffes.")})
    registry.refresh()
    assert find(search, "lion") == find(search, "zebra") == []
    assert find(search, "tiger") == find(search, "giraffe") == find(search, "tigre") == ["a"]


@each_row(("query", "description"), [
    ("Phylogenetik", "Draws phylogenetic trees."), ("Zeitreihenanalyse", "On zeitreihen and more."),
    ("visualización", "Visualization of data."), ("dockerization", "Writes a dockerisation plan."),
])  # fmt: skip
def test_similar_word_of_another_language_is_found(query: str, description: str) -> None:
    assert find_among(query, *FILLER, skill("one", description=description)) == ["one"]


@each_row(
    "query",
    ["Wie kann ich das mit dem Zebra machen", "¿Cómo puedo hacer esto con una zebra?",
     "Comment faire avec ce zebra pour moi", "请帮我 zebra 怎么", "Hoe kan ik dit met een zebra"],
)  # fmt: skip
def test_stop_words_of_other_languages_are_ignored(query: str) -> None:
    words = "wie kann ich das mit dem machen como puedo hacer esto con una faire avec ce moi hoe ik dit met een 帮我"
    noise = [skill(f"noise-{number}", description=words) for number in range(3)]
    assert find_among(query, *FILLER, *noise, skill("one", description="Zebra."))[0] == "one"


def test_sentence_ranks_description_above_one_word_in_a_name() -> None:
    skills = [
        *FILLER,
        skill("river-song", description="Sings of stars."),
        skill("geo", description="Draws maps of shops and houses and towns."),
    ]
    assert find_among("draw map river", *skills) == ["geo", "river-song"]
    assert find_among("map river", *skills) == ["river-song", "geo"]


def test_common_words_of_a_sentence_are_dropped() -> None:
    skills = [*FILLER, skill("one", description="Paints fences green."), skill("two", description="Big calls.")]
    assert find_among("paint big green fence", *skills) == ["one"]


def test_weak_hits_of_a_sentence_are_cut_off_among_20_skills() -> None:
    strong = skill("strong", description="Paints wooden fences green.")
    weak = skill("weak", description="Reads all kinds of very long green books about many things and people.")
    fillers = [skill(f"filler-{number}", description=f"Something else, number {number}.") for number in range(18)]
    assert find_among("paint the wooden fence green", strong, weak, *fillers) == ["strong"]
    assert find_among("paint the wooden fence green", strong, weak, *fillers[1:]) == ["strong", "weak"]


def test_nearest_returns_skills_with_similar_names() -> None:
    search = Search(registry(skill("colour-palettes", description="x"), skill("commit-messages", description="y")))

    def nearest(query: str, limit: int = 3) -> list[str]:
        return [each.path for each in search.nearest(query, limit, lambda _: True)]

    assert nearest("colourisation") == ["colour-palettes"]
    assert nearest("messengers", 1) == ["commit-messages"]
    assert nearest("messengers", 0) == nearest("qqqq") == nearest("") == nearest("日本語") == []


def test_find_returns_up_to_limit_of_accepted_usable_skills() -> None:
    unusable = skill("tool-301", standing=Standing.UNUSABLE)
    search = Search(registry(*(skill(f"tool-{n:03}", description="Same.") for n in range(300)), unusable))

    def is_odd(each: Skill) -> bool:
        return int(each.path[-1]) % 2 == 1

    found = search.find("tool", 4, is_odd)
    assert [each.path for each in found] == ["tool-001", "tool-003", "tool-005", "tool-007"]
    assert len(search.find("tool", 1_000, is_odd)) == 150
    assert search.find("tool", 5, lambda _: False) == []
    assert search.find("tool", 0, is_odd) == search.find("tool", -1, is_odd) == []
    assert find_among("tool", skill("lenient-tool", standing=Standing.LENIENT)) == ["lenient-tool"]


def test_matched_fields_names_query_words_by_field() -> None:
    one = skill(
        "one", "Zebras", description="Invoices of réfunds", tags=["Pays"], title="Paid bills", opening="Billing"
    )
    for query, fields in (
        ("the invoice", {"description": ["invoice"]}), ("invoicing", {"description": ["invoicing"]}),
        ("invoicesque", {"description": ["invoicesque"]}), ("invoicesques", {}), ("inv", {"description": ["inv"]}),
        ("zebra refund", {"headings": ["zebra"], "description": ["refund"]}),
        ("bill bill", {"title": ["bill"], "opening": ["bill"]}), ("payswxyz", {}),
        ("x " * 996 + "invoices", {"description": ["invoices"]}), ("paysan", {"tags": ["paysan"]}), ("on", {}),
        (" ".join(f"q{number}" for number in range(23)) + " one", {"name": ["one"], "path": ["one"]}),
        (" ".join(f"q{number}" for number in range(24)) + " one", {}),
    ):  # fmt: skip
        assert dict(matched_fields(one, query)) == fields, query
    assert dict(matched_fields(one, "x " * 1000 + "one")) == {}


_WORDS = st.lists(st.sampled_from(["alpha", "beta", "gamma", "Über", "日本語", "it's", "x_y", "", "\0"]), max_size=4)
_TREES = st.dictionaries(st.sampled_from(["a", "b", "c/d", "alpha-beta"]), _WORDS, max_size=4)


@settings(max_examples=settings().max_examples // 5)
@given(st.lists(_TREES, min_size=2, max_size=4))
def test_updated_index_equals_new_index(states: list[dict[str, list[str]]]) -> None:
    registry = Registry([])
    search = Search(registry)
    for state in states:
        new = {path: skill(path, *words, description=" ".join(words), tags=words) for path, words in state.items()}
        kept = {path: old for path, old in registry.snapshot.skills.items() if path in new and len(new) % 2}
        registry.snapshot = Snapshot(new | kept)
        for query in ("alpha", "beta gamma", "alhpa", "uber", "本語", "x y", "alpha beta", "a", "gam"):
            assert find(search, query) == find(Search(registry), query)


def test_index_is_rebuilt_after_an_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    changing = registry(skill("one"))
    search = Search(changing)
    assert find(search, "one") == ["one"]
    changing.snapshot = build.snapshot(skill("two"), skill("three"))
    with monkeypatch.context() as patch:
        patch.setattr("mcp_skills_server.runtime.search_index.title_words", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            find(search, "two")
    assert find(search, "two") == ["two"]
    assert find(search, "one") == []


@given(st.text(st.characters(), max_size=60))
@example("ﬁ")
@example("İ")
def test_any_query_and_any_text_raise_no_exception(text: str) -> None:
    changing = registry(skill("one"), skill("two", text, description=text, tags=[text], title=text))
    search = Search(changing)
    find(search, text)
    find(search, f"one {text}")
    changing.snapshot = build.snapshot(skill("one"))
    assert set(find(search, text)) <= {"one"}


def test_hits_are_ordered_by_score_after_exact_names() -> None:
    fruits = [skill(f"fruit-{n}", description="apples " * n + "pears " * (9 - n)) for n in range(9)]
    search = Search(registry(*fruits, skill("acme/apples", description="nothing else")))
    sentence = "which of these peels apples or pears best"
    for query, exact in (("apples", ["acme/apples"]), ("acme/apples", ["acme/apples"]), (sentence, [])):
        hits = search.find_scored(query, 20, lambda _: True)
        assert [hit.skill for hit in hits] == search.find(query, 20, lambda _: True)
        assert [hit.skill.path for hit in hits if hit.score is None] == exact
        scores = [hit.score for hit in hits if hit.score is not None]
        assert scores == sorted(scores, reverse=True)
        if query != "acme/apples":
            assert len(set(scores)) > 1


def fused(first: list[tuple[int, float]], second: list[tuple[int, float]], weight: float = 1.0) -> list[int]:
    return [row for row, _ in fuse(iter(first), iter(second), weight)]


def test_fuse_ranks_by_place_and_weight() -> None:
    assert fused([(1, -9.0), (2, -8.0)], [(2, -5.0)]) == [2, 1]  # a row of both comes first
    assert fused([(1, -9.0), (2, -8.0)], [(2, -9.0), (3, -8.0)], 3.0) == [2, 1, 3]
    assert fused([(1, -9.0)], [(2, -99.0)]) == [1, 2]  # places count, not ranks
    assert fused([(3, -9.0)], [(1, -9.0)], 3.0) == [3, 1]
    assert fused([], [(2, -1.0), (3, 0.0)]) == [2, 3]
    assert fused([], []) == []
    scores = dict(fuse(iter([(1, -9.0), (2, -9.0), (3, -8.0)]), iter([])))
    assert scores[1] == scores[2] < scores[3]


def test_fuse_scores_limited_places_and_keeps_other_rows() -> None:
    assert sorted(fused([(row, -1.0) for row in range(5_000)], [])) == list(range(5_000))
    ranking = [(row, row + 0.5) for row in range(3 * FUSED)]
    assert sum(rank < 0 for _, rank in fuse(iter(ranking), iter([]))) == 60
    equals = [(row, 1.0) for row in range(1_001)]
    assert sum(rank < 0 for _, rank in fuse(iter(equals), iter([]))) == 1_000
    last, _ = ranking[-1]
    order = fused(ranking, [ranking[-1]])
    assert order.index(last) < FUSED + 1
    order.remove(last)
    assert order == [row for row, _ in ranking[:-1]]


def test_words_of_removed_skills_are_no_longer_suggested() -> None:
    index = SearchIndex()
    index.follow(build.snapshot(build.skill("orchid", description="Waters plants.")))
    assert index.titles.corrections("orchidd") == ["orchid"]
    assert index.descriptions.similar("watersx") == ["waters"]
    index.follow(build.snapshot())
    assert index.titles.corrections("orchidd") == index.descriptions.similar("watersx") == []


def test_search_of_a_part_has_no_skill_and_no_word_of_another() -> None:
    part = [*FILLER, skill("refunds", description="About invoices.")]
    hidden = [skill("refunded", description="About zebras."), skill("invoices"), skill("refonds", tags=["zebras"])]
    search = Search(registry(*part, *hidden)).restricted_to(registry(*part))
    assert find(search, "refunds") == find(search, "refumds") == find(search, "invoices") == ["refunds"]
    assert find(search, "refonts") == ["refunds"], "no word of another is nearer"
    assert find(search, "zebras") == find(search, "zebrax") == find(search, "invoices zebras", 0) == []
    assert [each.path for each in search.nearest("refundeds", 5, lambda _: True)] == ["refunds"]
    assert search.nearest("zebra", 5, lambda _: True) == []


WORDS_OF_SKILLS = st.lists(
    st.sampled_from(["tea", "coffee", "refund", "invoice", "report", "teapot", "reports", "tee"]), max_size=4
)


@given(st.lists(st.tuples(WORDS_OF_SKILLS, st.booleans()), max_size=12), WORDS_OF_SKILLS.map(lambda drawn: drawn[:2]))
def test_search_of_a_part_finds_what_an_index_of_the_part_finds(
    drawn: list[tuple[list[str], bool]], query: list[str]
) -> None:
    """Only the order may differ: ranks count the skills of the whole."""
    every = [skill(f"s{at}", description=" ".join(words)) for at, (words, _) in enumerate(drawn)]
    part = registry(*(each for each, (_, is_seen) in zip(every, drawn, strict=True) if is_seen))
    shared = Search(registry(*every)).restricted_to(part)
    known = {word for each in part.snapshot.skills.values() for word in each.description.split()}
    text = " ".join(word for word in query if word in known)  # other words may be corrected in another way
    assert sorted(find(shared, text, 20)) == sorted(find(Search(part), text, 20))


def test_search_of_a_part_returns_the_skills_of_the_part() -> None:
    whole = registry(*FILLER, skill("tea", title="Whole"))
    part = registry(*FILLER, skill("tea", title="Part"))
    search = Search(whole).restricted_to(part)
    (found,) = search.find("tea", 5, lambda _: True)
    assert found is part.snapshot.skills["tea"]
    whole.snapshot = build.snapshot(*FILLER)  # as a scan between the two looks does
    assert find(search, "tea") == []
