"""How fast the search is at ten thousand skills, and how often what was meant is among the first five.

`python -m bench.search`. The questions of `bench/queries.json` were labelled by hand, before the search was tuned;
those that fail stay in. "fixtures" are the skills that come with the project, "generated" is `bench.catalogue`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, median
from time import perf_counter
from typing import Any, Final

from bench.catalogue import plausible
from bench.report import Row, Run, table
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.model import Skill, Snapshot
from mcp_skills_server.runtime.search import Search

FIXTURES: Final = Path(__file__).parent.parent / "fixtures" / "skills"
QUERIES: Final = Path(__file__).with_name("queries.json")
KINDS: Final = ("name", "typo", "task", "heading", "tag", "prefix")
FIRST: Final = 5
_MS: Final = 1e3


@dataclass(frozen=True, slots=True)
class Query:
    """A question and what was meant.

    Attributes:
        catalogue: "fixtures" or "generated".
        kind: in which way it is asked, one of `KINDS`.
        query: the question.
        expect: the skill paths that should be among the first five.
    """

    catalogue: str
    kind: str
    query: str
    expect: tuple[str, ...]


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
    return [Query(each["catalogue"], each["kind"], each["query"], tuple(each["expect"])) for each in read]


def scores(catalogue: str, search: Search) -> list[Score]:
    """Ask all questions about this catalogue."""
    asked = [each for each in queries() if each.catalogue == catalogue]
    return [Score(each, tuple(found.path for found in search.find(each.query, FIRST, _any))) for each in asked]


def speed(size: int, quick: bool) -> Iterator[Row]:
    """Build, refresh and ask, on a generated catalogue."""
    known = holding(plausible(size))
    builds = [_timed(Search(known), "build it") for _ in range(3 if quick else 7)]
    yield Row("build of the index", size, len(builds), median(builds) * _MS, None, "ms", most=1500)
    search = Search(known)
    search.find("build it", FIRST, _any)
    asked = [each.query for each in queries()] * (3 if quick else 20)
    times = sorted(_timed(search, query) for query in asked)
    yield Row("question, p50", size, len(times), median(times) * _MS, None, "ms", most=20)
    yield Row("question, p99", size, len(times), times[round(0.99 * (len(times) - 1))] * _MS, None, "ms", most=20)
    empty = median(_timed(search, "nothing") for _ in range(50))
    refreshes: list[float] = []
    for number, path in enumerate(list(known.snapshot.skills)[: 30 if quick else 300]):
        known.snapshot = known.snapshot.replacing({path: _edited(known.snapshot.skills[path], number)}, (), ())
        refreshes.append(_timed(search, "nothing") - empty)
    refreshes.sort()
    n = len(refreshes)
    yield Row("refresh of one edited skill, p50", size, n, median(refreshes) * _MS, None, "ms", most=5)
    yield Row("refresh of one edited skill, p99", size, n, refreshes[round(0.99 * (n - 1))] * _MS, None, "ms")


def holding(skills: dict[str, Skill]) -> Registry:
    """A registry that holds these skills, which lie in no folder."""
    registry = Registry([])
    registry.snapshot = Snapshot(skills)
    return registry


def _any(_: Skill) -> bool:
    return True


def _edited(skill: Skill, number: int) -> Skill:
    fields = {**skill.frontmatter, "description": f"{skill.description} Edited for the {number}th time."}
    return replace(skill, reading=replace(skill.reading, frontmatter=fields))


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


def _line(catalogue: str, kind: str, seen: Sequence[Score]) -> tuple[str, ...]:
    recall = mean(score.recall for score in seen)
    return catalogue, kind, str(len(seen)), f"{recall:.3f}", f"{mean(score.reciprocal_rank for score in seen):.3f}"


def main() -> int:
    """Measure, print two tables and, when asked, the questions that failed."""
    parser = argparse.ArgumentParser(prog="python -m bench.search", description="Speed and quality of the search.")
    parser.add_argument("--size", type=int, default=10_000, help="number of generated skills, at most 10,368")
    parser.add_argument("--quick", action="store_true", help="fewer repeats")
    parser.add_argument("--failed", action="store_true", help="also show each question whose first answer is wrong")
    options = parser.parse_args()
    run = Run()
    rows = list(speed(options.size, options.quick))
    fixtures = Registry([FIXTURES])
    fixtures.load()
    seen = scores("fixtures", Search(fixtures)) + scores("generated", Search(holding(plausible(options.size))))
    run.tell(rows)
    print(f"\n{table(quality(seen), right=range(2, 5))}")
    if options.failed:
        for score in seen:
            if score.reciprocal_rank < 1:
                query = score.query
                print(f"\n{query.kind}: {query.query}\n  meant {', '.join(query.expect)}")
                print(f"  found {', '.join(score.answer) or 'nothing'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
