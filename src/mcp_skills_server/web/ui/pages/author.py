"""The part of a skill's page for its author: trigger set, hosts that show the skill, similar skills."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from mcp_skills_server.authoring import context, evaluation
from mcp_skills_server.authoring.evaluation import CaseResult, RankingJudge, Summary
from mcp_skills_server.dialects import runtime
from mcp_skills_server.model import Skill
from mcp_skills_server.model.clients import client_of
from mcp_skills_server.runtime.overlap import Overlap, overlaps
from mcp_skills_server.runtime.search_index import NoFullTextError
from mcp_skills_server.web.ui.look import Look

_MOST_CASES: Final = 100
_NEIGHBOURS: Final = 20
_SHOWN: Final = 5
_LEAST: Final = 0.4
_WORDS: Final = {
    "whole": "with its description",
    "absent": "not at all; skills_search finds it",
}


@dataclass(frozen=True, slots=True)
class AuthorReport:
    """The findings on a skill for its author.

    Attributes:
        summary: of its trigger set; None where it has none.
        failed: the cases that do not come out as expected, each with the reason.
        troubles: why files in its folder evals hold no cases.
        hosts: the hosts whose models are shown the skill alike, and how they are, unasked.
        neighbours: skills that a model may take it for, the most alike first.
    """

    summary: Summary | None
    failed: Sequence[tuple[CaseResult, str]]
    troubles: Sequence[str]
    hosts: Sequence[tuple[str, str]]
    neighbours: Sequence[Overlap]


def report_of(look: Look, skill: Skill) -> AuthorReport:
    """Return the report of a skill that a model is offered. Blocks for some milliseconds for each case."""
    registry = look.runtime.registry
    root = registry.roots[skill.root]

    def show(place: str) -> str:
        return root.show(place) if look.site.local else place

    cases, troubles = evaluation.own_cases(registry.read, skill, show)
    search = look.runtime.searches.of(look.runtime.skill_set)
    try:
        results = evaluation.evaluate(cases[:_MOST_CASES], RankingJudge(search), look.snapshot)
        alike = search.find(
            skill.description or skill.name,
            _NEIGHBOURS,
            lambda each: runtime.is_offered(each) and each.path in look.snapshot.skills,
        )
    except NoFullTextError as error:
        return AuthorReport(None, (), [*troubles, str(error)], _hosts(look, skill), ())
    failed = [(each, evaluation.why(each)) for each in results if not each.passed]
    near = [each for each in overlaps(skill, alike) if each.share >= _LEAST][:_SHOWN]
    return AuthorReport(evaluation.summary(results) if results else None, failed, troubles, _hosts(look, skill), near)


def _hosts(look: Look, skill: Skill) -> list[tuple[str, str]]:
    if not look.site.settings.tools:
        return []
    briefing = look.runtime.briefing
    offer = next((each for each in briefing.overview.offers if each.path == skill.path), None)
    if offer is None:
        return []
    out: dict[str, list[str]] = {}
    for key, host in context.HOSTS.items():
        (part,) = context.parts_shown(context.unasked(look.runtime, host), [offer]).values()
        words = _WORDS.get(part) or briefing.shown_part(skill, client_of(host.client)) or ""
        out.setdefault(words, []).append(key)
    return [(", ".join(hosts), words) for words, hosts in out.items()]
