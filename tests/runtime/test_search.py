"""Which skills are found by which words, that the index follows the snapshot, and that no question is too odd."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from catalog.forest import loaded, plant, skill_md, skills, together
from dialects import build
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.model import Skill, Snapshot, Standing
from mcp_skills_server.runtime.search import FUSED, Search, fuse
from mcp_skills_server.runtime.search_text import STOP_WORDS, matched_fields
from tables import each_row
from wire import FIXTURES


def registry(*found: Skill) -> Registry:
    made = Registry([])
    made.snapshot = build.snapshot(*found)
    return made


def skill(path: str, *headings: str, **fields: Any) -> Skill:
    made = build.skill(path, **fields)
    return replace(made, reading=made.reading._replace(headings=headings))


def ask(search: Search, query: str, limit: int = 5) -> list[str]:
    return [found.path for found in search.find(query, limit, lambda _: True)]


def found(query: str, *among: Skill, limit: int = 5) -> list[str]:
    return ask(Search(registry(*among)), query, limit)


@pytest.fixture(scope="module")
def fixtures() -> Search:
    return Search(loaded(FIXTURES))


@each_row(
    ("query", "expected"),
    [
        ("commit-messages", "commit-messages"), ("Commit_Messages", "commit-messages"),
        ("commmit mesages", "commit-messages"), ("colr-palete", "colour-palettes"), ("refnuds", "acme/billing/refunds"),
        ("incidnet report", "incident-report"), ("retrywithbackoff", "retry-with-backoff"),
        ("a customer wants their money back", "acme/billing/refunds"),
        ("how do I write release notes for a new version", "release-checklist/changelog-entry"),
        ("write a postmortem for the outage on Tuesday", "incident-report"),
        ("rename a database column without downtime", "sql-migrations"),
        ("which response code should my endpoint return when a record does not exist", "http-status-codes"),
        ("is the text on this background readable enough", "colour-palettes"),
        ("what is in this table of sales data", "csv-profiling"),
        ("too much bold in the documentation", "emphasis-in-docs"), ("actions that last", "incident-report"),
        ("quoting line ends", "windows-paths"), ("i18n", "polite-greetings"), ("hofliche gruße", "polite-greetings"),
        ("日本語", "polite-greetings"), ("migr", "sql-migrations"), ("acme/billing/invoices", "acme/billing/invoices"),
    ],
)  # fmt: skip
def test_expected_skill_is_among_first_three(fixtures: Search, query: str, expected: str) -> None:
    assert expected in ask(fixtures, query, 3)


def test_exact_name_comes_first_with_any_separator() -> None:
    longer = skill("release-notes-release-notes", description="Release notes and release notes.")
    among = (skill("release"), skill("release-notes", description="Writes."), longer)
    for query in ("release", "Release!", "release-notes", "RELEASE_NOTES", "release/notes", "releasenotes"):
        assert found(query, *among)[0] == ("release" if "note" not in query.lower() else "release-notes")


def test_fields_are_weighted_from_name_to_path() -> None:
    filler = [skill(f"other-{number}", description="Something else.") for number in range(9)]
    among = [
        skill("zebra/e", "Other", description="Same words here."),
        skill("d", "Zebra", description="Same words here."),
        skill("c", "Other", description="Zebra words here."),
        skill("b", "Other", description="Same words here.", tags=["zebra"]),
        skill("zebra-crossing", "Other", description="Same words here."),
    ]
    assert found("zebra", *filler, *among) == ["zebra-crossing", "b", "c", "d", "zebra/e"]
    assert found("figures", skill("acme/one", title="Quarterly figures"), skill("other/two")) == ["acme/one"]


def test_equal_ranks_are_ordered_by_path() -> None:
    among = [skill(f"{letter}/tool", description=f"Equal {letter * 4}.") for letter in "cab"]
    assert found("tool", *among) == found("equal", *among) == ["a/tool", "b/tool", "c/tool"]


@each_row(
    ("query", "word"),
    [
        ("INVOICES", "invoice"), ("invoice", "Invoices"), ("writing", "writes"), ("cafe", "Café"), ("CAFÉ", "cafe"),
        ("strasse", "Straße"), ("postg", "PostgreSQL"), ("snake-case", "snake_case"), ("a.b/c", "c"),
        ("敬称", "日本語の敬称です"), ("敬", "敬称"), ("이름", "이름을"), ("Ελληνικα", "Ελληνικά"), ("a\0b", "b"),
        ("zurich", "Zürich"), ("finance", "ﬁnance"), ("İstanbul", "İstanbul"), ("viii", "Ⅷ"), ("x²", "x²"),
        ("full", "\uff26\uff35\uff2c\uff2c"), ("हिन्दी", "हिन्दी"), ("ไทย", "ไทย"), ("中文", "中文"), ("C3PO", "C3PO"),
    ],
)  # fmt: skip
def test_search_folds_case_accents_and_inflection(query: str, word: str) -> None:
    assert found(query, skill("one", description=f"About {word} and more."), skill("two")) == ["one"]


def test_more_matching_words_rank_higher() -> None:
    said = {
        "one": "Paints a fence.",
        "two": "Paints a fence in green.",
        "three": "Sings.",
        "four": "Dances.",
        "five": "x",
    }
    among = [skill(path, description=description) for path, description in said.items()]
    assert found("paint my fence green tomorrow", *among) == ["two", "one"]
    halves = [skill("one", description="Category."), skill("two", description="Zebra.")]
    assert found("cat zebra", *CROWD, *halves) == ["two"]  # only the last word may be unfinished


def test_query_and_text_are_truncated_at_limits() -> None:
    """A last word that is cut in two is "q", of which nothing is made."""
    among = [*CROWD, skill("one", description="Qz.")]
    for start, expected in (("x " * 999, ["one"]), ("x " * 999 + " ", [])):
        assert found(f"{start}qz", *among) == expected
        assert found("qz", *CROWD, skill("one", description="x " * 1000 + start + "qz")) == expected
    many = " ".join(f"zyx{number}" for number in range(23))
    assert (found(f"{many} qz x", *among), found(f"{many} zyx qz x", *among)) == (["one"], [])
    the = " ".join(sorted(STOP_WORDS - {"of"})[:23])
    assert (found(f"{the} of", skill("of")), found(f"{the} {max(STOP_WORDS)} of", skill("of"))) == (["of"], [])


@each_row("query", ["xyzzy", "qqqqqqqq", "cmt", "zebra giraffe"])
def test_query_unlike_any_skill_finds_nothing(query: str) -> None:
    assert found(query, skill("commit-messages"), skill("other")) == []


def test_stop_words_of_a_name_match_it() -> None:
    among = (skill("how-to", description="x"), skill("before-and-after", description="x"), skill("c", description="x"))
    assert found("how to", *among) == ["how-to"]
    assert found("after", *among) == ["before-and-after"]
    assert found("bef", *among) == ["before-and-after"]


CROWD = [skill(f"crowd-{number}", description=f"Something else, number {number}.") for number in range(9)]


def opening(path: str, text: str) -> Skill:
    made = skill(path, description="Does what it says.")
    return replace(made, reading=made.reading._replace(opening=text))


def test_opening_of_body_matches_if_no_field_does() -> None:
    assert found("zebra", *CROWD, opening("one", "Feed the zebras.")) == ["one"]
    assert found("zebra", *CROWD, opening("one", "Feed the zebras."), skill("zebra")) == ["zebra"]
    assert found("feed striped zebras daily", *CROWD, opening("one", "Feed the zebras daily."))[0] == "one"


def test_index_follows_edits_of_heading_and_opening(tmp_path: Path) -> None:
    known = loaded(plant(tmp_path, {"a/SKILL.md": skill_md("a", body="# Lions\n\nZebras.")} | skills("b", "c")))
    search = Search(known)
    assert (ask(search, "lion"), ask(search, "zebra"), ask(search, "giraffe")) == (["a"], ["a"], [])
    plant(tmp_path, {"a/SKILL.md": skill_md("a", body="# Tigers\n\nGiraffes.")})
    known.refresh()
    assert (ask(search, "lion"), ask(search, "zebra")) == ([], [])
    assert ask(search, "tiger") == ask(search, "giraffe") == ask(search, "tigre") == ["a"]


@each_row(
    ("query", "description"),
    [
        ("Phylogenetik", "Draws phylogenetic trees."), ("Zeitreihenanalyse", "On zeitreihen and more."),
        ("visualización", "Visualization of data."), ("dockerization", "Writes a dockerisation plan."),
    ],
)  # fmt: skip
def test_similar_word_of_another_language_is_found(query: str, description: str) -> None:
    assert found(query, *CROWD, skill("one", description=description)) == ["one"]


@each_row(
    "query",
    ["Wie kann ich das mit dem Zebra machen", "¿Cómo puedo hacer esto con una zebra?",
     "Comment faire avec ce zebra pour moi", "请帮我 zebra 怎么", "Hoe kan ik dit met een zebra"],
)  # fmt: skip
def test_stop_words_of_other_languages_are_ignored(query: str) -> None:
    words = "wie kann ich das mit dem machen como puedo hacer esto con una faire avec ce moi hoe ik dit met een 帮我"
    noise = [skill(f"noise-{number}", description=words) for number in range(3)]
    assert found(query, *CROWD, *noise, skill("one", description="Zebra."))[0] == "one"


def test_sentence_ranks_description_above_one_word_in_a_name() -> None:
    named = skill("river-song", description="Sings.")
    meant = skill("geo", description="Draws shops near a river on a map.")
    assert found("draw a map of shops at the river", *CROWD, named, meant)[0] == "geo"
    assert found("river", *CROWD, named, meant)[0] == "river-song"


def test_nearest_returns_skills_with_similar_names() -> None:
    search = Search(registry(skill("colour-palettes", description="x"), skill("commit-messages", description="y")))

    def near(query: str, limit: int = 3) -> list[str]:
        return [each.path for each in search.nearest(query, limit, lambda _: True)]

    assert near("colourisation") == ["colour-palettes"]
    assert near("messengers", 1) == ["commit-messages"]
    assert near("messengers", 0) == near("qqqq") == near("") == near("日本語") == []


def test_find_returns_up_to_limit_of_accepted_usable_skills() -> None:
    bad = skill("tool-301", standing=Standing.UNUSABLE)
    search = Search(registry(*(skill(f"tool-{number:03}", description="Same.") for number in range(300)), bad))
    odd: Callable[[Skill], bool] = lambda each: int(each.path[-1]) % 2 == 1  # noqa: E731
    assert [each.path for each in search.find("tool", 4, odd)] == ["tool-001", "tool-003", "tool-005", "tool-007"]
    assert len(search.find("tool", 1_000, odd)) == 150
    assert search.find("tool", 5, lambda _: False) == search.find("tool", 0, odd) == search.find("tool", -1, odd) == []
    assert found("tool", skill("lenient-tool", standing=Standing.LENIENT)) == ["lenient-tool"]


def test_matched_fields_names_query_words_by_field() -> None:
    one = skill("one", "Zebras", description="Invoices of réfunds", tags=["Pays"], title="Paid bills")
    one = replace(one, reading=one.reading._replace(opening="Billing"))
    for question, fields in (
        ("the invoice", {"description": ["invoice"]}), ("invoicing", {"description": ["invoicing"]}),
        ("invoicesque", {"description": ["invoicesque"]}), ("invoicesques", {}), ("inv", {"description": ["inv"]}),
        ("zebra refund", {"headings": ["zebra"], "description": ["refund"]}),
        ("bill bill", {"title": ["bill"], "opening": ["bill"]}), ("payswxyz", {}),
        ("x " * 996 + "invoices", {"description": ["invoices"]}), ("paysan", {"tags": ["paysan"]}), ("on", {}),
        (" ".join(f"q{number}" for number in range(23)) + " one", {"name": ["one"], "path": ["one"]}),
        (" ".join(f"q{number}" for number in range(24)) + " one", {}),
    ):  # fmt: skip
        assert dict(matched_fields(one, question)) == fields, question
    assert dict(matched_fields(one, "x " * 1000 + "one")) == {}


_WORDS = st.lists(st.sampled_from(["alpha", "beta", "gamma", "Über", "日本語", "it's", "x_y", "", "\0"]), max_size=4)
_TREES = st.dictionaries(st.sampled_from(["a", "b", "c/d", "alpha-beta"]), _WORDS, max_size=4)


@settings(max_examples=settings().max_examples // 5)
@given(st.lists(_TREES, min_size=2, max_size=4))
def test_updated_index_equals_new_index(states: list[dict[str, list[str]]]) -> None:
    known = Registry([])
    followed = Search(known)
    for state in states:
        made = {path: skill(path, *words, description=" ".join(words), tags=words) for path, words in state.items()}
        kept = {path: old for path, old in known.snapshot.skills.items() if path in made and len(made) % 2}
        known.snapshot = Snapshot(made | kept)
        for query in ("alpha", "beta gamma", "alhpa", "uber", "本語", "x y", "alpha beta", "a", "gam"):
            assert ask(followed, query) == ask(Search(known), query)


def test_results_do_not_depend_on_hash_seed() -> None:
    """Python orders sets by a seed of each process."""
    code = "from runtime.test_search import Search, ask, registry; from runtime.plausible import plausible, questions\n"
    code += "search = Search(registry(*plausible(400).values()))\n"
    code += "print([ask(search, each['query'], 60) for each in questions()])"
    command, tests = [sys.executable, "-c", code], Path(__file__).parents[1]
    seeded = [{**os.environ, "PYTHONHASHSEED": seed} for seed in "12"]
    found = {subprocess.run(command, cwd=tests, env=env, stdout=subprocess.PIPE, check=True).stdout for env in seeded}
    assert len(found) == 1 and len(found.pop()) > 10_000


def test_search_is_thread_safe_during_snapshot_changes() -> None:
    known = registry(skill("tool-0"))
    search = Search(known)
    answers: list[list[str]] = []

    def change() -> None:
        for number in range(100):
            known.snapshot = build.snapshot(*(skill(f"tool-{each}") for each in range(number % 7 + 1)))

    def questions() -> None:
        answers.extend(ask(search, "tool") for _ in range(100))

    together(change, questions, questions, questions)
    assert len(answers) == 300
    assert all(answer and answer == [f"tool-{number}" for number in range(len(answer))] for answer in answers)


def test_index_is_rebuilt_after_an_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    known = registry(skill("one"))
    search = Search(known)
    assert ask(search, "one") == ["one"]
    known.snapshot = build.snapshot(skill("two"), skill("three"))
    with monkeypatch.context() as patch:
        patch.setattr("mcp_skills_server.runtime.search_index.title_words", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            ask(search, "two")
    assert ask(search, "two") == ["two"]
    assert ask(search, "one") == []


@each_row(
    "query",
    ["", " \t\n", "\0", "a\0b", '"', '"""', "'; DROP TABLE words; --", "name: *", "NOT", "AND OR NOT NEAR(", "one AND",
     "^one*", "{name}: one", "one + two", "-", "👋🪪", "the of and", "x" * 100_000, "one " * 25_000, "\ud800", "\u0301",
     "日" * 5_000, "हिन्दी العربية ไทย", "\u00b2\u2460\uff21", "😀" * 50_000],
)  # fmt: skip
def test_unusual_query_raises_no_exception(query: str) -> None:
    assert set(found(query, skill("one"), skill("two"))) <= {"one", "two"}


@given(st.text(st.characters(), max_size=60))
@example("ﬁ")
@example("İ")
def test_any_query_and_any_text_raise_no_exception(text: str) -> None:
    known = registry(skill("one"), skill("two", text, description=text, tags=[text], title=text))
    search = Search(known)
    ask(search, text)
    ask(search, f"one {text}")
    known.snapshot = build.snapshot(skill("one"))
    assert set(ask(search, text)) <= {"one"}


def test_hits_are_ordered_by_score_after_exact_names() -> None:
    among = [skill(f"fruit-{n}", description="apples " * n + "pears " * (9 - n)) for n in range(9)]
    search = Search(registry(*among, skill("acme/apples", description="nothing else")))
    for question in ("apples", "acme/apples", "which of these peels apples or pears best"):
        hits = search.find_scored(question, 20, lambda _: True)
        assert [hit.skill for hit in hits] == search.find(question, 20, lambda _: True)
        scores = [hit.score for hit in hits if hit.score is not None]
        assert scores == sorted(scores, reverse=True) and (len(set(scores)) > 1 or "/" in question)
        assert [hit.skill.path for hit in hits if hit.score is None] == ["acme/apples"] * ("which" not in question)


def fused(first: list[tuple[int, float]], second: list[tuple[int, float]], weight: float = 1.0) -> list[int]:
    return [row for row, _ in fuse(iter(first), iter(second), weight)]


def test_fuse_ranks_by_place_and_weight() -> None:
    assert fused([(1, -9.0), (2, -8.0)], [(2, -5.0)]) == [2, 1]  # what both have comes before what one has
    assert fused([(1, -9.0), (2, -8.0)], [(2, -9.0), (3, -8.0)], 3.0) == [2, 1, 3]
    assert fused([(1, -9.0)], [(2, -99.0)]) == [1, 2]  # places count, not ranks
    assert fused([(3, -9.0)], [(1, -9.0)], 3.0) == [3, 1]
    assert (fused([], [(2, -1.0), (3, 0.0)]), fused([], [])) == ([2, 3], [])
    scores = dict(fuse(iter([(1, -9.0), (2, -9.0), (3, -8.0)]), iter([])))
    assert scores[1] == scores[2] < scores[3]
    assert sorted(fused([(row, -1.0) for row in range(5_000)], [])) == list(range(5_000))  # many equals are not lost
    long = [(row, row + 0.5) for row in range(3 * FUSED)]
    assert sum(rank < 0 for _, rank in fuse(iter(long), iter([]))) == 60
    assert sum(rank < 0 for _, rank in fuse(iter([(row, 1.0) for row in range(1_001)]), iter([]))) == 1_000
    order = fused(long, [long[-1]])
    # The rest of the first ranking follows in its order, and only once.
    assert order.index(long[-1][0]) < FUSED + 1 and order.count(long[-1][0]) == 1
    assert [row for row in order if row != long[-1][0]] == [row for row, _ in long[:-1]]
