"""Trigger evaluation: judge which prompts load a skill; count hits, misses, false triggers.

Two common formats are read. A trigger set is a JSON array of `{"query": ..., "should_trigger":
true}`, as skill-creator writes it. `evals.json` is `{"skill_name": ..., "evals": [{"prompt":
...}]}`, of which each prompt should trigger the skill.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple, Protocol, cast
from xml.etree import ElementTree

from mcp_skills_server.catalog.views import View
from mcp_skills_server.dialects import runtime as dialect
from mcp_skills_server.errors import UsageError
from mcp_skills_server.model import EVALS, Skill, SkillFile, Snapshot, printable
from mcp_skills_server.model.decoding import load_json
from mcp_skills_server.runtime.search import Hit, Search
from mcp_skills_server.runtime.search_text import matched_words

PLACES: Final = 5
"""Top places of a ranking that count for hit@5."""
_MAX_CASES: Final = 10_000
_MAX_LENGTH: Final = 10_000
"""Most characters of a query."""


class NoTriggerSetError(UsageError):
    """The file is JSON for another purpose."""


class TriggerCase(NamedTuple):
    """A prompt, its expected outcome, and the skill as the file names it, "" if it names none."""

    query: str
    should_trigger: bool
    skill: str = ""


def read_cases(raw: bytes, where: str) -> list[TriggerCase]:
    """Return the cases of a file; error messages refer to it as `where`.

    Raises:
        UsageError: the file has neither format. The message says what is wrong, and where.
    """
    try:
        decoded: Any = load_json(raw)
    except ValueError as error:
        raise UsageError(f"{where}: cannot be read as JSON ({error})") from None
    if isinstance(decoded, dict) and "evals" in decoded:
        evals = cast("dict[str, Any]", decoded)
        about = {"skill_name": evals.get("skill_name")}
        return [
            _case(about | entry | {"should_trigger": True}, "prompt", f"{where}: evals[{at}]")
            for at, entry in enumerate(_entries(evals["evals"], where))
        ]
    if isinstance(decoded, list):
        entries = enumerate(_entries(decoded, where))
        return [_case(entry, "query", f"{where}: entry {at}") for at, entry in entries]
    hint = 'write [{"query": "...", "should_trigger": true}], or {"evals": [...]}'
    raise NoTriggerSetError(f"{where}: has no trigger set; {hint}")


def encode_cases(cases: Iterable[TriggerCase]) -> bytes:
    """Return these cases as the JSON text of a trigger set."""
    entries = [{"query": case.query, "should_trigger": case.should_trigger} for case in cases]
    return (json.dumps(entries, ensure_ascii=False, indent=2) + "\n").encode("utf-8", "replace")


def _entries(decoded: Any, where: str) -> list[dict[str, Any]]:
    if not isinstance(decoded, list) or not all(
        isinstance(entry, dict) for entry in cast("list[Any]", decoded)
    ):
        raise UsageError(f"{where}: is not a list of objects")
    entries = cast("list[dict[str, Any]]", decoded)
    if len(entries) > _MAX_CASES:
        most = f"at most {_MAX_CASES:,} are read; split the file"
        raise UsageError(f"{where}: has {len(entries):,} cases, {most}")
    return entries


def _case(entry: Mapping[str, Any], key: str, where: str) -> TriggerCase:
    query, expected = entry.get(key), entry.get("should_trigger")
    if not isinstance(query, str) or not query.strip():
        raise UsageError(f"{where} has no text {key!r}")
    if len(query) > _MAX_LENGTH:
        most = f"at most {_MAX_LENGTH:,} are allowed"
        raise UsageError(f"{where}: its {key!r} has {len(query):,} characters, {most}")
    if not isinstance(expected, bool):
        hint = 'add "should_trigger": true or false'
        raise UsageError(f"{where} does not say whether it should trigger; {hint}")
    named = entry.get("skill") or entry.get("skill_name") or ""
    return TriggerCase(query.strip(), expected, str(named))


def own_cases(
    read: Callable[[SkillFile], bytes], skill: Skill, show: Callable[[str], str]
) -> tuple[list[tuple[Skill, TriggerCase]], list[UsageError]]:
    """Return the cases in a skill's folder `evals`, and the errors of JSON files without cases.

    `show` returns the place of a file, from the root, for messages.
    """
    cases: list[tuple[Skill, TriggerCase]] = []
    troubles: list[UsageError] = []
    for path, file in skill.files.items():
        name = path.removeprefix(EVALS)
        if name == path or "/" in name or not name.endswith(".json"):
            continue
        try:
            cases += [(skill, case) for case in read_cases(read(file), show(file.location))]
        except UsageError as error:
            troubles.append(error)
        except OSError as error:
            reason = f"cannot be read ({error.strerror})"
            troubles.append(UsageError(f"{show(file.location)}: {reason}"))
    return cases, troubles


class Judge(Protocol):
    """A judge of which skills a prompt calls for; if it `ranks`, only the first choice triggers."""

    runs: int
    concurrency: int
    ranks: bool

    def choose(self, query: str, run: int) -> Sequence[str]:
        """Return the paths of the chosen skills, the best first."""
        ...


class RankingJudge:
    """A judge by the ranking of `skills_search`: a model would load the first skill in it."""

    runs = 1
    concurrency = 1
    ranks = True

    def __init__(self, search: Search) -> None:
        self._search = search

    def ranked(self, query: str) -> list[Hit]:
        """Return the first `PLACES` hits for this prompt."""
        return self._search.find_scored(query, PLACES, dialect.is_offered, by_meaning=True)

    def choose(self, query: str, run: int) -> Sequence[str]:  # noqa: ARG002 - each run has the same ranking
        """Return the paths of the skills in the first places."""
        return [hit.skill.path for hit in self.ranked(query)]


class CaseResult(NamedTuple):
    """The verdict on one case."""

    skill: Skill
    case: TriggerCase
    triggers: int
    """The number of runs that chose the skill."""
    runs: int
    passed: bool
    """True if the outcome is the expected one."""
    rank: int | None
    """The place of the skill in the first run, from 1; None if it was not chosen."""
    winner: str
    """The path of the other skill that came first in the first run; "" if none did."""
    words: Sequence[str]
    """The words of the prompt that are in the texts of the skill that came first."""

    def as_json(self) -> dict[str, Any]:
        """Return the result with the fields of skill-creator's runner, and more."""
        return {
            "skill_name": self.skill.name,
            "path": self.skill.path,
            "query": self.case.query,
            "should_trigger": self.case.should_trigger,
            "trigger_rate": self.triggers / self.runs,
            "triggers": self.triggers,
            "runs": self.runs,
            "pass": self.passed,
            "rank": self.rank,
            "winner": self.winner or None,
            "words": list(self.words),
        }


class Summary(NamedTuple):
    """The totals of some cases.

    Of the prompts that should trigger, `hit_at_1` is the share whose skill came first, `hit_at_5`
    the same for the first five places; None without such prompts.
    """

    total: int
    passed: int
    hit_at_1: float | None
    hit_at_5: float | None
    false_triggers: int

    def as_json(self) -> dict[str, Any]:
        """Return the summary with the fields of skill-creator's runner, and more."""
        return {
            "total": self.total,
            "passed": self.passed,
            "failed": self.total - self.passed,
            "hit_at_1": self.hit_at_1 and round(self.hit_at_1, 4),
            "hit_at_5": self.hit_at_5 and round(self.hit_at_5, 4),
            "false_triggers": self.false_triggers,
        }


def evaluate(
    cases: Sequence[tuple[Skill, TriggerCase]],
    judge: Judge,
    snapshot: Snapshot,
    threshold: float = 0.5,
) -> Iterator[CaseResult]:
    """Judge each case for its skill, and yield the results in the same order.

    A prompt triggers a skill that at least `threshold` of the runs chose.
    """

    def result(pair: tuple[Skill, TriggerCase]) -> CaseResult:
        skill, case = pair
        chosen = [judge.choose(case.query, run) for run in range(judge.runs)]
        first, triggering = chosen[0], chosen
        if judge.ranks:
            triggering = [paths[:1] for paths in chosen]
        triggers = sum(skill.path in paths for paths in triggering)
        passed = (triggers / judge.runs >= threshold) == case.should_trigger
        rank, winner, words = None, "", list[str]()
        if skill.path in first:
            rank = first.index(skill.path) + 1
        if first and first[0] != skill.path:
            winner = first[0]
        if first and first[0] in snapshot.skills:
            words = matched_words(snapshot.skills[first[0]], case.query)
        return CaseResult(skill, case, triggers, judge.runs, passed, rank, winner, words)

    if judge.concurrency == 1:
        yield from map(result, cases)
        return
    with ThreadPoolExecutor(judge.concurrency, "skills-judge") as threads:
        yield from threads.map(result, cases)


def ranked(cases: Sequence[tuple[Skill, TriggerCase]], view: View) -> list[CaseResult]:
    """Return the results by the full-text ranking of the skills of a view."""
    return [*evaluate(cases, RankingJudge(Search(view)), view.snapshot)]


def summary(results: Sequence[CaseResult]) -> Summary:
    """Return the totals of these results."""
    ranks = [result.rank for result in results if result.case.should_trigger]
    hit_at_1 = hit_at_5 = None
    if ranks:
        hit_at_1 = ranks.count(1) / len(ranks)
        hit_at_5 = sum(rank is not None and rank <= PLACES for rank in ranks) / len(ranks)
    passed = sum(result.passed for result in results)
    false_triggers = sum(not result.passed for result in results if not result.case.should_trigger)
    return Summary(len(results), passed, hit_at_1, hit_at_5, false_triggers)


def by_skill(results: Iterable[CaseResult]) -> Mapping[Skill, list[CaseResult]]:
    """Return the results grouped by skill, in the order of the paths."""
    out: dict[Skill, list[CaseResult]] = {}
    for result in sorted(results, key=lambda result: result.skill.path):
        out.setdefault(result.skill, []).append(result)
    return out


def as_json(results: Sequence[CaseResult]) -> dict[str, Any]:
    """Return all results as JSON: the fields of skill-creator's runner, and more."""
    skills: list[dict[str, Any]] = []
    for skill, of_skill in by_skill(results).items():
        about = {"skill_name": skill.name, "path": skill.path, "description": skill.description}
        skills.append(about | {"summary": summary(of_skill).as_json()})
    return {
        "skills": skills,
        "results": [result.as_json() for result in results],
        "summary": summary(results).as_json(),
    }


def as_junit(results: Sequence[CaseResult]) -> str:
    """Return the results as JUnit XML: a suite for each skill, a case for each prompt."""
    suites = ElementTree.Element("testsuites", name="trigger evaluation")
    for skill, of_skill in by_skill(results).items():
        failed = sum(not result.passed for result in of_skill)
        name = printable(skill.path)
        counts = {"name": name, "tests": str(len(of_skill)), "failures": str(failed)}
        suite = ElementTree.SubElement(suites, "testsuite", counts)
        for result in of_skill:
            prompt = printable(result.case.query)
            case = ElementTree.SubElement(suite, "testcase", classname=name, name=prompt)
            if not result.passed:
                ElementTree.SubElement(case, "failure", message=printable(failure_reason(result)))
    ElementTree.indent(suites)
    return ElementTree.tostring(suites, encoding="unicode", xml_declaration=True)


def failure_reason(result: CaseResult) -> str:
    """Return the reason why a case failed, as a phrase."""
    words = f" by the words {', '.join(result.words)}" if result.words else ""
    if not result.case.should_trigger:
        return f"it triggers the skill and should not{words}"
    if result.runs > 1:
        return f"chosen in {result.triggers} of {result.runs} runs"
    if result.winner and result.rank:
        return f"{result.winner} comes first{words}; the skill is in place {result.rank}"
    if result.winner:
        return f"{result.winner} comes first{words}; the skill is not among those chosen"
    return "no skill is chosen"
