"""Trigger evaluation: judge the cases of trigger sets, and report hits, misses and false triggers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, Protocol
from xml.etree import ElementTree

from mcp_skills_server.authoring.trigger_sets import TriggerCase, read_cases
from mcp_skills_server.dialects import runtime as dialect
from mcp_skills_server.errors import StaleFileError, UsageError
from mcp_skills_server.model import EVALS, Skill, SkillFile, Snapshot, printable
from mcp_skills_server.runtime.search import Hit, Search
from mcp_skills_server.runtime.search_text import reasons

PLACES: Final = 5
"""Places of a ranking that count for hit@5."""


class Judge(Protocol):
    """Decides which skills a prompt calls for.

    Attributes:
        runs: how often each prompt is judged.
        concurrency: how many prompts may be judged at once.
        ranks: whether the choice is a ranking, of which the first place alone is a trigger.
    """

    runs: int
    concurrency: int
    ranks: bool

    def choose(self, query: str, run: int) -> Sequence[str]:
        """Return the paths of the chosen skills, the best first."""
        ...


class RankingJudge:
    """Judges by the ranking of `skills_search`: the skill in the first place is the one that a model would load."""

    runs = 1
    concurrency = 1
    ranks = True

    def __init__(self, search: Search) -> None:
        self._search = search

    def ranked(self, query: str) -> list[Hit]:
        """Return the first places for this prompt."""
        return self._search.scored(query, PLACES, dialect.is_offered, by_meaning=True)

    def choose(self, query: str, run: int) -> Sequence[str]:  # noqa: ARG002 - each run has the same ranking
        """Return the paths of the first places."""
        return [hit.skill.path for hit in self.ranked(query)]


@dataclass(frozen=True, slots=True)
class CaseResult:
    """How one case was judged.

    Attributes:
        skill: the skill that the case is about.
        case: the prompt and what is expected.
        triggers: how many of the runs chose the skill.
        runs: how often it was judged.
        passed: whether that is what is expected.
        rank: the place of the skill in the first run, from 1; None where it was not chosen.
        winner: the path of another skill that was chosen first in the first run, "" where there was none.
        words: the words of the prompt that stand in the texts of the one that was chosen first.
    """

    skill: Skill
    case: TriggerCase
    triggers: int
    runs: int
    passed: bool
    rank: int | None
    winner: str
    words: Sequence[str]

    @property
    def trigger_rate(self) -> float:
        """The share of runs that chose the skill."""
        return self.triggers / self.runs


@dataclass(frozen=True, slots=True)
class Summary:
    """The results of some cases together.

    Attributes:
        total: how many cases there are.
        passed: how many came out as expected.
        hit_at_1: the share of prompts that should trigger and put the skill in the first place; None without any.
        hit_at_5: the same for the first five places.
        false_triggers: how many prompts triggered the skill that should not.
    """

    total: int
    passed: int
    hit_at_1: float | None
    hit_at_5: float | None
    false_triggers: int

    @property
    def pass_rate(self) -> float:
        """The share of cases that came out as expected."""
        return self.passed / self.total if self.total else 1.0

    def as_json(self) -> dict[str, Any]:
        """Return the summary with the names that skill-creator's runner uses, and ours."""
        return {
            "total": self.total,
            "passed": self.passed,
            "failed": self.total - self.passed,
            "hit_at_1": _rounded(self.hit_at_1),
            "hit_at_5": _rounded(self.hit_at_5),
            "false_triggers": self.false_triggers,
        }


def evaluate(
    cases: Sequence[tuple[Skill, TriggerCase]],
    judge: Judge,
    snapshot: Snapshot,
    threshold: float = 0.5,
    tick: Callable[[], object] = lambda: None,
) -> list[CaseResult]:
    """Judge all cases, and return the results in the same order.

    Args:
        cases: each with the skill that it is about.
        judge: decides which skills a prompt calls for.
        snapshot: the skills there are.
        threshold: the share of runs from which on a prompt triggers a skill.
        tick: called after each case, in any thread.
    """

    def result(pair: tuple[Skill, TriggerCase]) -> CaseResult:
        skill, case = pair
        chosen = [judge.choose(case.query, run) for run in range(judge.runs)]
        triggers = sum(skill.path in (each[:1] if judge.ranks else each) for each in chosen)
        first = chosen[0]
        winner = first[0] if first else ""
        decided = snapshot.skills.get(winner)
        tick()
        return CaseResult(
            skill,
            case,
            triggers,
            judge.runs,
            (triggers / judge.runs >= threshold) == case.should_trigger,
            first.index(skill.path) + 1 if skill.path in first else None,
            "" if winner == skill.path else winner,
            [] if decided is None else _words(decided, case.query),
        )

    if judge.concurrency == 1:
        return [result(each) for each in cases]
    with ThreadPoolExecutor(judge.concurrency, "skills-judge") as threads:
        return list(threads.map(result, cases))


def own_cases(
    read: Callable[[SkillFile], bytes], skill: Skill, show: Callable[[str], str]
) -> tuple[list[tuple[Skill, TriggerCase]], list[str]]:
    """Return the cases in the folder `evals` of a skill, and why a JSON file there holds none.

    Args:
        read: returns the bytes of a file.
        skill: the skill.
        show: returns the place of a file, from the root, for messages.
    """
    found: list[tuple[Skill, TriggerCase]] = []
    troubles: list[str] = []
    for path, file in skill.files.items():
        name = path.removeprefix(EVALS)
        if name == path or "/" in name or not name.endswith(".json"):
            continue
        try:
            found += [(skill, case) for case in read_cases(read(file), show(file.location))]
        except UsageError as error:
            troubles.append(str(error))
        except StaleFileError as error:
            troubles.append(f"{show(file.location)}: cannot be read ({error.reason or 'it changed'})")
    return found, troubles


def summary(results: Iterable[CaseResult]) -> Summary:
    """Return what these results come to."""
    found = list(results)
    ranks = [each.rank for each in found if each.case.should_trigger]

    def share(most: int) -> float | None:
        return sum(rank is not None and rank <= most for rank in ranks) / len(ranks) if ranks else None

    missed = sum(not each.passed for each in found if not each.case.should_trigger)
    return Summary(len(found), sum(each.passed for each in found), share(1), share(PLACES), missed)


def by_skill(results: Iterable[CaseResult]) -> Mapping[str, list[CaseResult]]:
    """Return the results by the path of the skill, in the order of the paths."""
    out: dict[str, list[CaseResult]] = {}
    for each in sorted(results, key=lambda each: each.skill.path):
        out.setdefault(each.skill.path, []).append(each)
    return out


def _words(skill: Skill, query: str) -> list[str]:
    return list(dict.fromkeys(word for _, words in reasons(skill, query) for word in words))


def _rounded(share: float | None) -> float | None:
    return None if share is None else round(share, 4)


def as_json(results: Sequence[CaseResult]) -> dict[str, Any]:
    """Return all results for programs: `results` and `summary` have the fields of skill-creator's runner, and more."""
    return {
        "skills": [
            {"skill_name": found[0].skill.name, "path": path, "description": found[0].skill.description}
            | {"summary": summary(found).as_json()}
            for path, found in by_skill(results).items()
        ],
        "results": [
            {
                "skill_name": each.skill.name,
                "path": each.skill.path,
                "query": each.case.query,
                "should_trigger": each.case.should_trigger,
                "trigger_rate": each.trigger_rate,
                "triggers": each.triggers,
                "runs": each.runs,
                "pass": each.passed,
                "rank": each.rank,
                "winner": each.winner or None,
                "words": list(each.words),
            }
            for each in results
        ],
        "summary": summary(results).as_json(),
    }


def as_junit(results: Sequence[CaseResult]) -> str:
    """Return the results as JUnit XML: a suite for each skill, a case for each prompt."""
    suites = ElementTree.Element("testsuites", name="trigger evaluation")
    for path, found in by_skill(results).items():
        failed = sum(not each.passed for each in found)
        suite = ElementTree.SubElement(
            suites, "testsuite", name=printable(path), tests=str(len(found)), failures=str(failed)
        )
        for each in found:
            case = ElementTree.SubElement(suite, "testcase", classname=printable(path), name=printable(each.case.query))
            if not each.passed:
                ElementTree.SubElement(case, "failure", message=printable(why(each)))
    ElementTree.indent(suites)
    return ElementTree.tostring(suites, encoding="unicode", xml_declaration=True)


def why(result: CaseResult) -> str:
    """Return why a case failed, in a sentence."""
    words = f" by the words {', '.join(result.words)}" if result.words else ""
    if not result.case.should_trigger:
        return f"it triggers the skill and should not{words}"
    if result.winner:
        place = f"the skill is in place {result.rank}" if result.rank else "the skill is not among those chosen"
        return f"{result.winner} comes first{words}; {place}"
    return "no skill is chosen" if result.rank is None else f"chosen in {result.triggers} of {result.runs} runs"
