"""The trigger playground: which skills a prompt means, in which order and why, and which could be taken for another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from anyio import to_thread
from starlette.requests import Request
from starlette.responses import Response

from mcp_skills_server.dialects import runtime
from mcp_skills_server.model import Skill
from mcp_skills_server.runtime.match_reasons import reasons
from mcp_skills_server.runtime.overlap import Overlap, overlaps
from mcp_skills_server.runtime.search_index import NoFullTextError
from mcp_skills_server.web.ui.look import Look

LONGEST: Final = 2_000
"""Characters of a prompt that count."""
MOST: Final = 20
"""Places of the ranking that are shown."""
_COMPARED: Final = 5
"""Places whose neighbours are looked for."""
_NEIGHBOURS: Final = 6
_LEAST: Final = 0.3
"""An overlap that is worth a line."""
_SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class Ranked:
    """A place in the ranking.

    Attributes:
        skill: which skill.
        score: its score, None where its very name was asked for.
        share: its score as a part of the best one, from 0 to 1.
        why: in which texts which words of the prompt stand.
        near: skills that say much the same of themselves, the most alike first.
    """

    skill: Skill
    score: float | None
    share: float
    why: Sequence[tuple[str, Sequence[str]]]
    near: Sequence[Overlap]


@dataclass(frozen=True, slots=True)
class Ranking:
    """What a prompt finds.

    Attributes:
        places: the best first.
        nearest: where nothing fits, skills whose names look like words of the prompt.
        trouble: why nothing could be searched, "" where it could.
    """

    places: Sequence[Ranked] = ()
    nearest: Sequence[Skill] = ()
    trouble: str = ""


async def page(request: Request, look: Look) -> Response:
    """Return the view, with the ranking where there is a prompt."""
    prompt = request.query_params.get("prompt", "").strip()[:LONGEST]
    ranking = await to_thread.run_sync(rank, look, prompt) if prompt else Ranking()
    return look.page("triggers.html", prompt=prompt, ranking=ranking, compared=_COMPARED)


def rank(look: Look, prompt: str) -> Ranking:
    """Return the ranking that `skills_search` has for these words. It may ask the embeddings, and take two seconds."""
    search, offered = look.runtime.searches.of(look.runtime.skill_set), partial(_is_offered, look)
    try:
        hits = search.scored(prompt, MOST, offered, by_meaning=True)
        if not hits:
            return Ranking(nearest=search.nearest(prompt, _NEIGHBOURS, offered))
        best = max((hit.score for hit in hits if hit.score is not None), default=0.0)
        found = [hit.skill for hit in hits]
        places: list[Ranked] = []
        for place, hit in enumerate(hits):
            near: list[Overlap] = []
            if place < _COMPARED:
                alike = search.find(hit.skill.description or hit.skill.name, _NEIGHBOURS, offered)
                candidates = dict.fromkeys([*found[:_COMPARED], *alike])
                near = [each for each in overlaps(hit.skill, candidates) if each.share >= _LEAST][:_SHOWN]
            share = 1.0
            if hit.score is not None:
                share = max(0.0, hit.score / best) if best > 0 else 0.0
            places.append(Ranked(hit.skill, hit.score, share, reasons(hit.skill, prompt), near))
    except NoFullTextError as error:
        return Ranking(trouble=str(error))
    return Ranking(places)


def _is_offered(look: Look, skill: Skill) -> bool:
    return runtime.is_offered(skill) and skill.path in look.snapshot.skills
