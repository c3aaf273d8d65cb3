"""The catalogue: every skill that the viewer may see, those left out too, found by one search field and by filters."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any, Final, NamedTuple
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
from mcp_skills_server.web.ui.look import (
    Look,
    choice_of,
    list_address,
    reason_left_out,
    shown_problem,
    source_name,
    start_of,
)
from mcp_skills_server.web.ui.pages.problems import survey_of

PART: Final = 100
"""Skills that one answer has."""
_NEAREST: Final = 6
_MOST_TAGS: Final = 200
_MOST_TAGS_OF_ONE: Final = 20
_MOST_PLACES: Final = 100
_SORTS: Final[Mapping[str, Callable[[Skill], Any]]] = {
    "name": lambda skill: skill.name,
    "tokens": lambda skill: -tokens_of(skill),
    "files": lambda skill: -len(skill.files),
}
"""What the list can be sorted by, beside the path."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a viewer looks for, by the names of the fields in the address; "" for no such condition.

    Attributes:
        q: the words of the search field.
        source: the number of a root.
        tag: a tag.
        problem: "left-out", "any", or the code of a problem.
        used: "used" or "never".
        sort: a key of `_SORTS`; a search has its own order.
        start: how many skills were shown before.
    """

    q: str = ""
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
        return cls(
            given.get("q", "").strip(),
            given.get("source", ""),
            given.get("tag", ""),
            given.get("problem", ""),
            choice_of(given, "used", ("used", "never")),
            choice_of(given, "sort", _SORTS),
            start_of(given),
        )

    def address(self, start: int = 0, **changes: str) -> str:
        """Return the address of the part that begins there, with these fields instead."""
        fields = asdict(self) | changes
        del fields["start"]
        return list_address("", fields, start)

    def part_of(self, skills: Sequence[Skill]) -> Sequence[Skill]:
        """Return the skills of the part that is asked for, and one more where there are more."""
        return skills[self.start : self.start + PART + 1]


class SkillRow(NamedTuple):
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

    def as_json(self) -> dict[str, Any]:
        """Return the row for programs."""
        left_out, loads = None, 0
        if self.left_out is not None:
            left_out = self.left_out.message
        if self.line is not None:
            loads = self.line.loads
        return {
            "path": self.skill.path,
            "name": self.skill.name,
            "title": self.title or None,
            "description": self.skill.description,
            "source": self.source,
            "tags": [str(tag) for tag in self.tags],
            "tokens": self.tokens,
            "files": len(self.skill.files),
            "problems": self.problems,
            "left_out": left_out,
            "loads": loads,
        }


class Found(NamedTuple):
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
    trouble: str
    nearest: Sequence[Skill]


class Facets(NamedTuple):
    """What there is to filter by, each with how many skills have it.

    Attributes:
        tokens: of all SKILL.md together.
        places: problems of no skill that is shown: folders that cannot be read, skills that another hides.
        summary: all problems in one line, "" for none.
        progress: the state of the checks in words, "" when they are done.
    """

    sources: Sequence[tuple[str, str, int]]
    tags: Sequence[tuple[str, int]]
    codes: Sequence[tuple[str, int]]
    left_out: int
    tokens: int
    places: Sequence[Problem]
    summary: str
    progress: str


_facets: WeakKeyDictionary[Snapshot, Facets] = WeakKeyDictionary()


async def page(request: Request, look: Look) -> Response:
    """Return the list, or with `part` in the query nothing but its rows."""
    return await to_thread.run_sync(_page, request.query_params, look)


def _page(given: QueryParams, look: Look) -> Response:
    asked, survey = Asked.of(given), survey_of(look)
    found = find(look, asked, survey)
    if given.get("format") == "json":
        return JSONResponse([row.as_json() for row in found.rows])
    template = "rows.html" if "part" in given else "catalogue.html"
    folder = os.path.join(look.runtime.registry.roots[0].given, "my-skill")
    return look.page(
        template,
        asked=asked,
        found=found,
        facets=facets_of(look, survey),
        part=PART,
        new=shlex.join(["mcp-skills-server", "new", folder]),
    )


def find(look: Look, asked: Asked, survey: Survey) -> Found:
    """Return what an address asks for. The order of a search is that of `skills_search`; else it is by path."""
    skills, used = look.snapshot.skills, look.used()
    accept = _condition(asked, used, survey)
    total, trouble = None, ""
    nearest: Sequence[Skill] = ()
    by_path = [skills[path] for path in look.snapshot.paths(Standing.UNUSABLE)]
    if asked.q:
        search = look.runtime.searches.of(look.runtime.skill_set)
        ranked: Sequence[Skill] = ()
        try:
            ranked = search.find(
                asked.q,
                asked.start + PART + 1,
                lambda skill: accept(skill) and skill.path in skills,
                by_meaning=True,
            )
            if not ranked and not asked.start:
                nearest = search.nearest(asked.q, _NEAREST, lambda skill: skill.path in skills)
        except NoFullTextError as error:
            trouble = str(error)
        # What cannot be read is in no index; it is looked for by its path.
        unread = [each for each in by_path if each.standing is Standing.UNUSABLE]
        fitting = [*ranked, *(each for each in unread if asked.q.lower() in each.path.lower() and accept(each))]
    else:
        fitting = [*filter(accept, by_path)]
        total = len(fitting)
        if asked.sort:
            fitting.sort(key=_SORTS[asked.sort])
    part = asked.part_of(fitting)
    rows = [_row(look, each, asked, used or {}, survey) for each in islice(part, PART)]
    return Found(rows, len(part) > PART, total, trouble, nearest)


def _condition(asked: Asked, used: Mapping[str, Line] | None, survey: Survey) -> Callable[[Skill], bool]:
    def accept(skill: Skill) -> bool:
        if asked.source and str(skill.root) != asked.source:
            return False
        if asked.tag and asked.tag not in map(str, tags_of(skill.frontmatter)):
            return False
        if asked.problem == "left-out":
            if skill.standing is Standing.VALID:
                return False
        elif asked.problem:
            found = survey.by_skill.get(skill.path, ())
            if not any(asked.problem in ("any", each.code) for each in found):
                return False
        if asked.used and used is not None:
            line = used.get(skill.path)
            return (line is not None and line.last is not None) == (asked.used == "used")
        return True

    return accept


def _row(look: Look, skill: Skill, asked: Asked, used: Mapping[str, Line], survey: Survey) -> SkillRow:
    title, left_out = identity.title(skill) or "", reason_left_out(skill)
    why: Sequence[tuple[str, Sequence[str]]] = ()
    if title == skill.name:
        title = ""
    if left_out is not None:
        left_out = shown_problem(look, left_out)
    if asked.q:
        why = reasons(skill, asked.q)
    return SkillRow(
        skill,
        title,
        source_name(look, skill.root),
        tags_of(skill.frontmatter)[:_MOST_TAGS_OF_ONE],
        tokens_of(skill),
        left_out,
        len(survey.by_skill.get(skill.path, ())),
        used.get(skill.path),
        why,
        next((each.time for each in look.site.revisions.of(skill.path)), None),
    )


def tokens_of(skill: Skill) -> int:
    """Estimate the tokens of a SKILL.md by its bytes."""
    file = skill.files.get(SKILL_MD)
    if file is None:
        return 0
    return estimated_size(file.size)


def facets_of(look: Look, survey: Survey) -> Facets:
    """Return the filters of the viewer's skills. Made once for a snapshot whose skills are all checked."""
    snapshot = look.snapshot
    found = _facets.get(snapshot)
    if found is None:
        skills = snapshot.skills.values()
        roots = Counter(skill.root for skill in skills)
        tags = Counter(tag for skill in skills for tag in {str(each) for each in tags_of(skill.frontmatter)})
        codes = Counter(
            code for path in snapshot.skills for code in {each.code for each in survey.by_skill.get(path, ())}
        )
        found = Facets(
            [(str(root), source_name(look, root), count) for root, count in sorted(roots.items())],
            sorted(tags.most_common(_MOST_TAGS)),
            sorted(codes.items()),
            sum(skill.standing is not Standing.VALID for skill in skills),
            sum(map(tokens_of, skills)),
            [shown_problem(look, each) for each in snapshot.problems[:_MOST_PLACES]],
            survey.summary,
            survey.progress,
        )
        if survey.is_complete:
            _facets[snapshot] = found
    return found
