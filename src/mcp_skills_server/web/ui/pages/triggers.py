"""Triggers: the ranking of skills for a prompt, with reasons and similar skills.

For one skill it also checks a set of prompts. A local page can save them as the skill's trigger
set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlencode

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from mcp_skills_server.authoring.evaluation import TriggerCase, encode_cases, own_cases, read_cases
from mcp_skills_server.durable import replace_file
from mcp_skills_server.errors import RequestError, UsageError
from mcp_skills_server.model import EVALS, Skill
from mcp_skills_server.runtime.overlap import Overlap
from mcp_skills_server.runtime.search import Hit
from mcp_skills_server.runtime.search_index import NoFullTextError
from mcp_skills_server.runtime.search_text import matched_fields, matched_words
from mcp_skills_server.web.ui.context import Context

MAX_LENGTH: Final = 2_000
"""Characters of the longest prompt; the rest is ignored."""
MAX_RANKS: Final = 20
"""Ranks that are shown."""
_COMPARED: Final = 5
"""Ranks for which similar skills are searched."""
_MAX_NEAREST: Final = 6
_MAX_PROMPTS: Final = 20
_CLOSE: Final = 0.85
"""Share of the best score from which a second rank is called close."""
_FILE: Final = "trigger_queries.json"
_UNWANTED: Final = "-"
"""Prefix of a prompt for which the skill should not be loaded."""


class Ranked(NamedTuple):
    """A rank in the search results."""

    skill: Skill
    score: float | None  # None if the prompt is its name
    share: float  # its score divided by the best one, from 0 to 1
    words: str  # its rank, or its share, in words
    why: Sequence[tuple[str, Sequence[str]]]  # texts of it, with the words of the prompt in them
    near: Sequence[Overlap]  # similar skills, the most similar first


class CheckedPrompt(NamedTuple):
    """A query of a trigger set, whether it passes, and the rank of the skill in words."""

    case: TriggerCase
    passed: bool
    words: str


class Ranking(NamedTuple):
    """Search results of a prompt, best first; else similar names, or the error of the search."""

    places: Sequence[Ranked] = ()
    nearest: Sequence[Skill] = ()
    trouble: str = ""


def page(request: Request, ctx: Context) -> Response:
    """Return the view, with a ranking if there is a prompt, and a check if there is a skill.

    Blocks.
    """
    query = request.query_params
    prompt = query.get("prompt", "").strip()[:MAX_LENGTH]
    skill = ctx.snapshot.skills.get(query.get("skill", ""))
    ranking, lines, checked = Ranking(), "", list[CheckedPrompt]()
    if prompt:
        ranking = rank(ctx, prompt)
    if skill is not None:
        lines = query.get("prompts") or _own_prompts(ctx, skill)
        cases = cases_of(lines)
        try:
            checked = check(ctx, skill, cases)
        except NoFullTextError as error:
            checked = [CheckedPrompt(case, False, str(error)) for case in cases[:1]]
    return ctx.page(
        "triggers.html",
        prompt=prompt,
        ranking=ranking,
        compared=_COMPARED,
        skill=skill,
        lines=lines,
        checked=checked,
        written=encode_cases([case.case for case in checked]).decode(),
        can_save=ctx.site.is_local and skill is not None and skill.origin is None,
        saved="saved" in query,
    )


def save(_: Request, ctx: Context, fields: Mapping[str, str]) -> str:
    """Save the prompts of a form as its skill's trigger set, and return where to go. Blocks."""
    if not ctx.site.is_local:
        raise HTTPException(403, "Save queries on the local page ('mcp-skills-server ui').")
    skill = ctx.snapshot.skills.get(fields.get("skill", ""))
    if skill is None or skill.origin is not None:
        raise RequestError("Queries can be saved only in skills of your own folders.")
    cases = cases_of(fields.get("prompts", ""))
    if not cases:
        raise RequestError("There is no query.")
    _refuse_loss(ctx, skill)
    _write(Path(ctx.runtime.registry.place(skill)), encode_cases(cases))
    return f"/try?{urlencode({**fields, 'saved': 1})}#set"


def _refuse_loss(ctx: Context, skill: Skill) -> None:
    """Raise RequestError if the saved set has queries that a form does not show."""
    file = skill.files.get(EVALS + _FILE)
    if file is None:
        return
    try:
        saved = read_cases(ctx.runtime.registry.read(file), EVALS + _FILE)
    except (OSError, UsageError):
        saved = []
    shown = cases_of(_own_prompts(ctx, skill))
    if not saved or any(case._replace(skill="") not in shown for case in saved):
        fault = f"more than {_MAX_PROMPTS} queries, long ones, several lines in one, or an error"
        raise RequestError(f"{EVALS} has {fault}; edit {_FILE} there by hand, or delete it.")


def _write(folder: Path, raw: bytes) -> None:
    evals = folder / EVALS
    if evals.resolve() != evals:
        raise RequestError("The folder evals lies behind a link; write the queries by hand.")
    try:
        evals.mkdir(exist_ok=True)
        replace_file(evals / _FILE, raw, None)
    except OSError as error:
        raise RequestError(f"The queries cannot be saved: {error.strerror}.") from None


def cases_of(lines: str) -> list[TriggerCase]:
    """Parse the cases of a form: one prompt per line, after `-` if it should not load the skill."""
    cases: list[TriggerCase] = []
    for line in lines.splitlines():
        text = line.strip()
        prompt = text.removeprefix(_UNWANTED).strip()[:MAX_LENGTH]
        if prompt and len(cases) < _MAX_PROMPTS:
            cases.append(TriggerCase(prompt, not text.startswith(_UNWANTED)))
    return cases


def _own_prompts(ctx: Context, skill: Skill) -> str:
    """Return the first cases of all trigger sets of a skill, as lines."""
    cases, _ = own_cases(ctx.runtime.registry.read, skill, str)
    marks, first = {True: "", False: f"{_UNWANTED} "}, cases[:_MAX_PROMPTS]
    return "\n".join(f"{marks[case.should_trigger]}{case.query}" for _, case in first)


def check(ctx: Context, skill: Skill, cases: Sequence[TriggerCase]) -> list[CheckedPrompt]:
    """Check these queries against the ranking of `skills_search`.

    Raises:
        NoFullTextError: this Python has no full-text search.
    """
    search = ctx.offering.search
    checks: list[CheckedPrompt] = []
    for case in cases:
        hits = search.find_scored(case.query, MAX_RANKS, ctx.offers, by_meaning=True)
        position = next((at for at, hit in enumerate(hits) if hit.skill.path == skill.path), None)
        is_passed = (position == 0) == case.should_trigger
        words = _in_words(hits, position)
        if hits and not is_passed:
            words += f", by the words {', '.join(matched_words(hits[0].skill, case.query))}"
        checks.append(CheckedPrompt(case, is_passed, words))
    return checks


def _in_words(hits: Sequence[Hit], position: int | None) -> str:
    """Return a skill's rank among hits in words, with the skill before it or close behind."""
    if not hits:
        return "nothing found"
    if position is None:
        return f"not found; first is {hits[0].skill.name}"
    if position:
        return f"rank {position + 1}, after {hits[0].skill.name}"
    first, second = hits[0].score, hits[1].score if len(hits) > 1 else None
    if first is None or second is None or second <= _CLOSE * first:
        return "first by far"
    return f"first, but close to {hits[1].skill.name}"


def rank(ctx: Context, prompt: str) -> Ranking:
    """Return the ranking of `skills_search` for a prompt. Embeddings may take two seconds."""
    search = ctx.offering.search
    try:
        hits = search.find_scored(prompt, MAX_RANKS, ctx.offers, by_meaning=True)
        if not hits:
            return Ranking(nearest=search.nearest(prompt, _MAX_NEAREST, ctx.offers))
        best = max((hit.score for hit in hits if hit.score is not None), default=0.0)
        rivals = [hit.skill for hit in hits[:_COMPARED]]
        places: list[Ranked] = []
        for number, hit in enumerate(hits):
            share, near = 1.0, list[Overlap]()
            if hit.score is not None:
                share = max(0.0, hit.score) / (best or 1.0)
            if number < _COMPARED:
                near = search.confusable(hit.skill, ctx.offers, rivals)
            words = f"{share:.0%} of the best" if number else _in_words(hits, 0)
            why = matched_fields(hit.skill, prompt)
            places.append(Ranked(hit.skill, hit.score, share, words, why, near))
    except NoFullTextError as error:
        return Ranking(trouble=str(error))
    return Ranking(places)
