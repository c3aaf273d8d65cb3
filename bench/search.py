"""How fast the search is at ten thousand skills, and how often what was meant is among the first five.

`python -m bench.search`. The questions of `bench/queries.json` were labelled by hand, before the search was tuned;
those that fail stay in. "fixtures" are the skills that come with the project, "generated" is `bench.catalogue`, and
"collections" are real skills that do not come with it (`--collections`): a user's own sentences in five languages, and
keywords as a model sends them. The search was tuned with one half of these; the other half is the one to report. Speed
is measured on real texts, too: those of the collections, again and again with other words in them. With these the first
search after a start is measured as well, without and with what an earlier process left of its index.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import mean, median
from time import perf_counter
from typing import Any, Final
from zlib import crc32

from bench.catalogue import plausible
from bench.first_search import first_searches
from bench.report import Row, Run, table
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.model import Skill, Snapshot
from mcp_skills_server.runtime.search import Search

FIXTURES: Final = Path(__file__).parent.parent / "fixtures" / "skills"
QUERIES: Final = Path(__file__).with_name("queries.json")
COLLECTIONS: Final = Path("../shared/collections")
KINDS: Final = ("name", "typo", "task", "heading", "tag", "prefix")
FIRST: Final = 5
_MS: Final = 1e3
_WORD: Final = re.compile(r"[^\W\d_]{3,}")
_VARIED: Final = 0.15
"""The part of the words that are others in each copy of a real skill; half of these are in no other skill."""


@dataclass(frozen=True, slots=True)
class Query:
    """A question and what was meant.

    Attributes:
        catalogue: "fixtures", "generated" or "collections".
        kind: in which way it is asked: one of `KINDS`, or of the collections "sentence" or "keywords".
        query: the question.
        expect: the skill paths that should be among the first five, any of them of the collections.
        language: of the question, as in "de".
    """

    catalogue: str
    kind: str
    query: str
    expect: tuple[str, ...]
    language: str = "en"

    @property
    def half(self) -> str:
        """Whether the search was tuned with it. By the text alone, so that new questions move no old one."""
        return "reported" if crc32(self.query.encode()) % 2 else "tuning"


@dataclass(frozen=True, slots=True)
class Score:
    """How well one question was answered.

    Attributes:
        query: the question.
        answer: skill paths, the best first.
    """

    query: Query
    answer: tuple[str, ...]

    @property
    def recall(self) -> float:
        """The part of what was meant that is among the first five."""
        return len({*self.answer} & {*self.query.expect}) / len(self.query.expect)

    @property
    def reciprocal_rank(self) -> float:
        """One divided by the place of the first that was meant, 0 if it is not among the first five."""
        places = (place for place, path in enumerate(self.answer, 1) if path in self.query.expect)
        return 1 / next(places, float("inf"))


def queries() -> list[Query]:
    """The labelled questions."""
    read: list[dict[str, Any]] = json.loads(QUERIES.read_text(encoding="utf-8"))
    return [Query(**{**each, "expect": tuple(each["expect"])}) for each in read]


def scores(catalogue: str, search: Search) -> list[Score]:
    """Ask all questions about this catalogue."""
    asked = [each for each in queries() if each.catalogue == catalogue]
    return [Score(each, tuple(found.path for found in search.find(each.query, FIRST, _any))) for each in asked]


def multiplied(skills: Sequence[Skill], size: int) -> dict[str, Skill]:
    """So many skills with the texts of these, varied; the same every time."""
    chance = random.Random(7)
    texts = (" ".join((each.description, *each.reading.headings, each.reading.opening_text)) for each in skills)
    words = sorted({word for text in texts for word in _WORD.findall(text)})

    def other(found: re.Match[str]) -> str:
        if chance.random() >= _VARIED:
            return found[0]
        return chance.choice(words) if chance.random() < 0.5 else f"{found[0]}{chance.randrange(size)}"

    out: dict[str, Skill] = {}
    for number in range(size):
        skill, copy = skills[number % len(skills)], number // len(skills)
        name = f"{skill.name}-{copy}"
        fields = {**skill.frontmatter, "name": name, "description": _WORD.sub(other, skill.description)}
        headings = tuple(_WORD.sub(other, each) for each in skill.reading.headings)
        opening = _WORD.sub(other, skill.reading.opening_text)
        reading = skill.reading._replace(frontmatter=fields, headings=headings, opening=opening)
        out[f"team-{copy}/{name}"] = replace(skill, path=f"team-{copy}/{name}", reading=reading)
    return out


def speed(skills: dict[str, Skill], texts: str, quick: bool) -> Iterator[Row]:
    """Build, refresh and ask; `texts` says of what kind the skills are."""
    known, size = holding(skills), len(skills)
    builds = [_timed(Search(known), "build it") for _ in range(3 if quick else 7)]
    yield Row(f"{texts}: build of the index", size, len(builds), median(builds) * _MS, None, "ms", most=1500)
    search = Search(known)
    search.find("build it", FIRST, _any)
    asked = [each.query for each in queries()] * (3 if quick else 20)
    times = sorted(_timed(search, query) for query in asked)
    yield Row(f"{texts}: question, p50", size, len(times), median(times) * _MS, None, "ms", most=10)
    yield Row(
        f"{texts}: question, p99", size, len(times), times[round(0.99 * (len(times) - 1))] * _MS, None, "ms", most=10
    )
    empty = median(_timed(search, "nothing") for _ in range(50))
    refreshes: list[float] = []
    for number, path in enumerate(list(known.snapshot.skills)[: 30 if quick else 300]):
        known.snapshot = known.snapshot.replacing({path: _edited(known.snapshot.skills[path], number)}, (), ())
        refreshes.append(_timed(search, "nothing") - empty)
    refreshes.sort()
    n = len(refreshes)
    yield Row(f"{texts}: refresh of one edited skill, p50", size, n, median(refreshes) * _MS, None, "ms", most=5)
    yield Row(f"{texts}: refresh of one edited skill, p99", size, n, refreshes[round(0.99 * (n - 1))] * _MS, None, "ms")


def holding(skills: dict[str, Skill]) -> Registry:
    """A registry that holds these skills, which lie in no folder."""
    registry = Registry([])
    registry.snapshot = Snapshot(skills)
    return registry


def _any(_: Skill) -> bool:
    return True


def _edited(skill: Skill, number: int) -> Skill:
    fields = {**skill.frontmatter, "description": f"{skill.description} Edited for the {number}th time."}
    return replace(skill, reading=skill.reading._replace(frontmatter=fields))


def _timed(search: Search, query: str) -> float:
    start = perf_counter()
    search.find(query, FIRST, _any)
    return perf_counter() - start


def quality(seen: Sequence[Score]) -> list[tuple[str, ...]]:
    """Lines of a table: catalogue, kind, number of questions, recall among the first five, mean reciprocal rank."""
    lines = [("catalogue", "kind", "queries", f"recall@{FIRST}", "MRR")]
    for catalogue in dict.fromkeys(score.query.catalogue for score in seen):
        mine = [score for score in seen if score.query.catalogue == catalogue]
        lines += [_line(catalogue, kind, [score for score in mine if score.query.kind == kind]) for kind in KINDS]
        lines.append(_line(catalogue, "all", mine))
    return [*lines, _line("all", "all", seen)]


def collected(known: Registry) -> list[Score]:
    """Ask all questions about these real skills; they are known by the names of their directories."""
    seen = scores("collections", Search(known))
    return [replace(score, answer=tuple(path.rpartition("/")[2] for path in score.answer)) for score in seen]


def hits(seen: Sequence[Score]) -> list[tuple[str, ...]]:
    """Lines of a table: kind, half, language, number of questions, how many were answered, and how well."""
    lines = [("kind", "half", "language", "queries", f"hit@{FIRST}", "MRR")]
    for kind, half in product(("sentence", "keywords"), ("tuning", "reported")):
        mine = [score for score in seen if (score.query.kind, score.query.half) == (kind, half)]
        for language in ("all", *dict.fromkeys(score.query.language for score in mine)):
            asked = [score for score in mine if language in ("all", score.query.language)]
            hit = mean(score.reciprocal_rank > 0 for score in asked)
            rank = mean(score.reciprocal_rank for score in asked)
            lines.append((kind, half, language, str(len(asked)), f"{hit:.3f}", f"{rank:.3f}"))
    return lines


def _line(catalogue: str, kind: str, seen: Sequence[Score]) -> tuple[str, ...]:
    recall = mean(score.recall for score in seen)
    return catalogue, kind, str(len(seen)), f"{recall:.3f}", f"{mean(score.reciprocal_rank for score in seen):.3f}"


def main() -> int:
    """Measure, print two tables and, when asked, the questions that failed."""
    parser = argparse.ArgumentParser(prog="python -m bench.search", description="Speed and quality of the search.")
    parser.add_argument("--size", type=int, default=10_000, help="number of generated skills, at most 10,368")
    parser.add_argument("--quick", action="store_true", help="fewer repeats")
    parser.add_argument("--failed", action="store_true", help="also show each question whose first answer is wrong")
    parser.add_argument("--collections", type=Path, default=COLLECTIONS, help="folder of the real skills")
    options = parser.parse_args()
    run = Run()
    rows = list(speed(plausible(options.size), "generated", options.quick))
    real = Registry([options.collections]) if options.collections.is_dir() else None
    some: list[Skill] = []
    if real is not None:
        real.load()
        some = list(real.snapshot.skills.values())
        rows += speed(multiplied(some, options.size), "real", options.quick)
    for size in sorted({min(1_000, options.size), options.size}):
        rows += first_searches(plausible(size) if real is None else multiplied(some, size), options.quick)
    fixtures = Registry([FIXTURES])
    fixtures.load()
    seen = scores("fixtures", Search(fixtures)) + scores("generated", Search(holding(plausible(options.size))))
    run.tell(rows)
    print(f"\n{table(quality(seen), right=range(2, 5))}")
    if real is not None:
        answers = collected(real)
        print(f"\n{table(hits(answers), right=range(3, 6))}")
        seen += [score for score in answers if score.query.half == "tuning"]
    else:
        print(f"\nThere is no folder {options.collections}: no question about real skills was asked (--collections)")
    if options.failed:
        for score in seen:
            if score.reciprocal_rank < 1:
                query = score.query
                print(f"\n{query.kind}: {query.query}\n  meant {', '.join(query.expect)}")
                print(f"  found {', '.join(score.answer) or 'nothing'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
