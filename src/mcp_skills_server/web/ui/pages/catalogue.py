"""The catalogue: every skill that the viewer may see, those left out too, found by one search field and by filters."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final
from urllib.parse import urlencode
from weakref import WeakKeyDictionary

from anyio import to_thread
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from mcp_skills_server.authoring.tokens import estimated_size
from mcp_skills_server.catalog.checks import Survey
from mcp_skills_server.format import identity
from mcp_skills_server.format.fields import tags_of
from mcp_skills_server.model import SKILL_MD, Problem, Skill, Snapshot, Standing
from mcp_skills_server.runtime.search_index import NoFullTextError
from mcp_skills_server.runtime.search_text import reasons
from mcp_skills_server.telemetry.usage_store import Line
from mcp_skills_server.web.ui.look import Look, base, reason_left_out, shown_problem, source_name, start_of
from mcp_skills_server.web.ui.pages.problems import survey_of

PART: Final = 100
"""Skills that one answer has."""
_NEAREST: Final = 6
_MOST_TAGS: Final = 200
_MOST_PLACES: Final = 100
_USED: Final = ("used", "never")
_SORTS: Final[Mapping[str, Callable[[Skill], Any]]] = {
    "name": lambda skill: skill.name,
    "tokens": lambda skill: -tokens_of(skill),
    "files": lambda skill: -len(skill.files),
}
"""What the list can be sorted by, beside the path."""
LEFT_OUT: Final = "left-out"
ANY: Final = "any"


@dataclass(frozen=True, slots=True)
class Asked:
    """What a viewer looks for; "" for no such condition.

    Attributes:
        question: the words of the search field.
        source: the number of a root.
        tag: a tag.
        problem: "left-out", "any", or the code of a problem.
        used: "used" or "never".
        sort: a key of `_SORTS`; a search has its own order.
        start: how many skills were shown before.
    """

    question: str = ""
    source: str = ""
    tag: str = ""
    problem: str = ""
    used: str = ""
    sort: str = ""
    start: int = 0

    @property
    def is_filtered(self) -> bool:
        """Tell whether anything is asked for but a part and an order."""
        return self != Asked(sort=self.sort, start=self.start)

    @classmethod
    def of(cls, given: QueryParams) -> Asked:
        """Return what an address asks for. What makes no sense asks for nothing."""
        used, sort = given.get("used", ""), given.get("sort", "")
        return cls(
            given.get("q", "").strip(),
            given.get("source", ""),
            given.get("tag", ""),
            given.get("problem", ""),
            used if used in _USED else "",
            sort if sort in _SORTS else "",
            start_of(given),
        )

    def address(self, start: int = 0, **changes: str) -> str:
        """Return the address of the part that begins there, with these conditions instead."""
        if changes:
            return replace(self, **changes).address(start)
        fields = {
            "q": self.question,
            "source": self.source,
            "tag": self.tag,
            "problem": self.problem,
            "used": self.used,
            "sort": self.sort,
            "from": str(start or ""),
        }
        given = {key: value.encode("utf-8", "replace") for key, value in fields.items() if value}
        return f"{base()}/?{urlencode(given)}" if given else f"{base()}/"


@dataclass(frozen=True, slots=True)
class SkillRow:
    """One skill of the list.

    Attributes:
        skill: which one.
        title: its title, "" where it is the name.
        source: where it comes from.
        tags: its tags.
        tokens: of its SKILL.md, as estimated.
        left_out: why it is not served to everybody, and what to do; None where it is.
        problems: how many problems of it are known.
        line: what was counted of it.
        why: in which texts which words of the question stand.
        changed: when it changed last since the server started, in seconds since 1970; None where it did not.
    """

    skill: Skill
    title: str
    source: str
    tags: Sequence[object]
    tokens: int
    left_out: Problem | None
    problems: int
    line: Line | None
    why: Sequence[tuple[str, Sequence[str]]]
    changed: float | None


@dataclass(frozen=True, slots=True)
class Found:
    """A part of what was looked for.

    Attributes:
        rows: the skills.
        more: whether there are more.
        total: how many there are in all, None where that was not counted.
        trouble: why nothing could be searched, "" where it could.
        nearest: where a search found nothing, skills whose names look like words of it.
    """

    rows: Sequence[SkillRow]
    more: bool
    total: int | None
    trouble: str = ""
    nearest: Sequence[Skill] = ()


@dataclass(frozen=True, slots=True)
class Facets:
    """What there is to filter by, each with how many skills have it."""

    sources: Sequence[tuple[str, str, int]]
    tags: Sequence[tuple[str, int]]
    codes: Sequence[tuple[str, int]]
    left_out: int
    tokens: int
    """Of all SKILL.md together."""
    places: Sequence[Problem]
    """Problems of no skill that is shown: folders that cannot be read, skills that another hides."""
    summary: str
    """All problems in one line, "" for none."""
    progress: str
    """Return the state of the checks in words, "" when they are done."""


_facets: WeakKeyDictionary[Snapshot, Facets] = WeakKeyDictionary()


async def page(request: Request, look: Look) -> Response:
    """Return the list, or with `part` in the query nothing but its rows."""
    asked = Asked.of(request.query_params)
    found, facets = await to_thread.run_sync(_work, look, asked)
    following = asked.address(asked.start + PART) if found.more else ""
    before = asked.address(max(0, asked.start - PART)) if asked.start else ""
    new = shlex.join(["mcp-skills-server", "new", os.path.join(look.runtime.registry.roots[0].given, "my-skill")])
    values: dict[str, Any] = {
        "asked": asked,
        "found": found,
        "facets": facets,
        "following": following,
        "before": before,
        "new": new,
    }
    if request.query_params.get("format") == "json":
        return JSONResponse([_as_json(row) for row in found.rows])
    if "part" in request.query_params:
        return look.page("rows.html", **values)
    return look.page("catalogue.html", **values, counts=look.site.usage.are_kept)


def _as_json(row: SkillRow) -> dict[str, Any]:
    skill = row.skill
    return {
        "path": skill.path,
        "name": skill.name,
        "title": row.title or None,
        "description": skill.description,
        "source": row.source,
        "tags": [str(tag) for tag in row.tags],
        "tokens": row.tokens,
        "files": len(skill.files),
        "problems": row.problems,
        "left_out": None if row.left_out is None else row.left_out.message,
        "loads": 0 if row.line is None else row.line.loads,
    }


def _work(look: Look, asked: Asked) -> tuple[Found, Facets]:
    survey = survey_of(look)
    return find(look, asked, survey), facets_of(look, survey)


def find(look: Look, asked: Asked, survey: Survey) -> Found:
    """Return what an address asks for. The order of a search is that of `skills_search`; else it is by path."""
    snapshot, used = look.snapshot, look.used()
    accept = _condition(asked, used, survey)
    total: int | None = None
    trouble = ""
    nearest: Sequence[Skill] = ()
    if asked.question:
        search = look.runtime.searches.of(look.runtime.skill_set)
        try:
            ranked: Sequence[Skill] = search.find(
                asked.question,
                asked.start + PART + 1,
                lambda skill: accept(skill) and skill.path in snapshot.skills,
                by_meaning=True,
            )
            if not ranked and not asked.start:
                nearest = search.nearest(asked.question, _NEAREST, lambda skill: skill.path in snapshot.skills)
        except NoFullTextError as error:
            ranked, trouble = [], str(error)
        # What cannot be read is in no index; it is looked for by its path.
        unread = [each for each in _unread(snapshot) if asked.question.lower() in each.path.lower() and accept(each)]
        skills = [*ranked, *unread][asked.start : asked.start + PART + 1]
    elif asked == Asked(start=asked.start):
        paths = snapshot.paths(Standing.UNUSABLE)
        total = len(paths)
        skills = [snapshot.skills[path] for path in paths[asked.start : asked.start + PART + 1]]
    else:
        fitting = (skill for path in snapshot.paths(Standing.UNUSABLE) if accept(skill := snapshot.skills[path]))
        all_fitting = sorted(fitting, key=_SORTS[asked.sort]) if asked.sort else list(fitting)
        total = len(all_fitting)
        skills = all_fitting[asked.start : asked.start + PART + 1]
    rows = [_row(look, each, asked, used, survey) for each in islice(skills, PART)]
    return Found(rows, len(skills) > PART, total, trouble, nearest)


def _unread(snapshot: Snapshot) -> Iterator[Skill]:
    usable = set(snapshot.paths(Standing.LENIENT))
    return (snapshot.skills[path] for path in snapshot.paths(Standing.UNUSABLE) if path not in usable)


def _condition(asked: Asked, used: Mapping[str, Line] | None, survey: Survey) -> Callable[[Skill], bool]:
    def accept(skill: Skill) -> bool:
        if asked.source and str(skill.root) != asked.source:
            return False
        if asked.tag and asked.tag not in map(str, tags_of(skill.frontmatter)):
            return False
        if asked.problem == LEFT_OUT:
            if skill.standing is Standing.VALID:
                return False
        elif asked.problem:
            found = survey.by_skill.get(skill.path, ())
            if not any(asked.problem in (ANY, each.code) for each in found):
                return False
        if asked.used and used is not None:
            line = used.get(skill.path)
            return (line is not None and line.last is not None) == (asked.used == "used")
        return True

    return accept


def _row(look: Look, skill: Skill, asked: Asked, used: Mapping[str, Line] | None, survey: Survey) -> SkillRow:
    title, left_out = identity.title(skill) or "", reason_left_out(skill)
    return SkillRow(
        skill,
        title if title != skill.name else "",
        source_name(look, skill.root),
        tags_of(skill.frontmatter)[:20],
        tokens_of(skill),
        None if left_out is None else shown_problem(look, left_out),
        len(survey.by_skill.get(skill.path, ())),
        None if used is None else used.get(skill.path),
        reasons(skill, asked.question) if asked.question else (),
        next((each.time for each in look.site.revisions.of(skill.path)), None),
    )


def tokens_of(skill: Skill) -> int:
    """Estimate the tokens of a SKILL.md by its bytes."""
    file = skill.files.get(SKILL_MD)
    return 0 if file is None else estimated_size(file.size)


def facets_of(look: Look, survey: Survey) -> Facets:
    """Return the filters of the viewer's skills. Made once for a snapshot whose skills are all checked."""
    snapshot = look.snapshot
    found = _facets.get(snapshot)
    if found is None:
        roots: Counter[int] = Counter()
        tags: Counter[str] = Counter()
        codes: Counter[str] = Counter()
        left_out = 0
        for skill in snapshot.skills.values():
            roots[skill.root] += 1
            tags.update({str(tag) for tag in tags_of(skill.frontmatter)})
            codes.update({each.code for each in survey.by_skill.get(skill.path, ())})
            left_out += skill.standing is not Standing.VALID
        found = Facets(
            [(str(root), source_name(look, root), count) for root, count in sorted(roots.items())],
            sorted(tags.most_common(_MOST_TAGS)),
            sorted(codes.items()),
            left_out,
            sum(map(tokens_of, snapshot.skills.values())),
            [shown_problem(look, each) for each in snapshot.problems[:_MOST_PLACES]],
            survey.summary,
            survey.progress,
        )
        if survey.is_complete:
            _facets[snapshot] = found
    return found
