"""The catalogue: all skills of the viewer, even invalid ones, with search and filters."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final
from urllib.parse import quote
from weakref import WeakKeyDictionary

from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from mcp_skills_server.authoring.tokens import estimated_tokens_of_bytes
from mcp_skills_server.catalog.checks import Survey
from mcp_skills_server.catalog.roots import Root
from mcp_skills_server.catalog.switches import switch
from mcp_skills_server.errors import RequestError
from mcp_skills_server.format import identity
from mcp_skills_server.format.fields import tags_of
from mcp_skills_server.installation import shell_command, start_command
from mcp_skills_server.model import SKILL_MD, Skill, Snapshot, Standing
from mcp_skills_server.runtime.search_index import NoFullTextError
from mcp_skills_server.runtime.search_text import matched_fields
from mcp_skills_server.telemetry.events import Action, Use
from mcp_skills_server.telemetry.usage import UsageRow
from mcp_skills_server.web.ui.addresses import base, choice_of, list_address, start_of
from mcp_skills_server.web.ui.context import (
    Context,
    emit_decision,
    reason_left_out,
    shown_problem,
    source_name,
)
from mcp_skills_server.web.ui.pages.problems import survey_of

PAGE_SIZE: Final = 100
"""Skills on one page."""
_NEAREST: Final = 6
_MAX_TAGS: Final = 200
_MAX_TAGS_OF_ONE: Final = 20
_MAX_PLACES: Final = 100
_SORTS: Final[Mapping[str, Callable[[Skill], Any]]] = {
    "name": lambda skill: skill.name,
    "tokens": lambda skill: -tokens_of(skill),
    "files": lambda skill: -len(skill.files),
}
"""Sort keys of the list, beside the path and the time of the last change."""
_ORDERS: Final = [f"{sign}{key}" for key in (*_SORTS, "changed") for sign in ("", "-")]
_VISITS: Final = "skills-ui-visits"
"""The cookie with the times of the last visit and of this one, as "LAST.THIS"."""
_VISIT_S: Final = 1800.0
"""Seconds without a request of the list after which a new visit begins."""
_DAY_S: Final = 86_400.0
_UNUSED: Final = UsageRow("")


@dataclass(frozen=True, slots=True)
class ListQuery:
    """A viewer's filter, by the names of the query's fields; "" for no such condition."""

    q: str = ""  # the words of the search field
    source: str = ""  # the number of a root
    tag: str = ""
    problem: str = ""  # "left-out", "any", or the code of a problem
    used: str = ""  # "used" or "never"
    since: str = ""  # "day" or "visit": changed since yesterday, or the last visit
    sort: str = ""  # one of `_ORDERS`, "-" reverses; a search has its own order
    start: int = 0  # offset of the first skill

    @property
    def is_filtered(self) -> bool:
        """Return whether there is any condition beside order and offset."""
        return self != ListQuery(sort=self.sort, start=self.start)

    @classmethod
    def parse(cls, given: QueryParams) -> ListQuery:
        """Return the filter of a query, ignoring invalid choices."""
        return cls(
            given.get("q", "").strip(),
            given.get("source", ""),
            given.get("tag", ""),
            given.get("problem", ""),
            choice_of(given, "used", ("used", "never")),
            choice_of(given, "since", ("day", "visit")),
            choice_of(given, "sort", _ORDERS),
            start_of(given),
        )

    def address(self, start: int = 0, **changes: str) -> str:
        """Return the address of the list from `start` on, with these fields changed."""
        fields = asdict(self) | changes
        del fields["start"]
        return list_address("", fields, start)


_facets: WeakKeyDictionary[Snapshot, dict[bool, dict[str, Any]]] = WeakKeyDictionary()
"""By whether they are for an administrator."""


def page(request: Request, ctx: Context) -> Response:
    """Return the list, or only its rows if the query has `part`. Blocks."""
    given = request.query_params
    query, survey = ListQuery.parse(given), survey_of(ctx)
    last, current = _visits(request.cookies.get(_VISITS, ""))
    since = {"": 0.0, "day": time.time() - _DAY_S, "visit": last}[query.since]
    listing = _find(ctx, query, survey, since)
    if given.get("format") == "json":
        return JSONResponse([_as_json(row) for row in listing["rows"]])
    template = "rows.html" if "part" in given else "catalogue.html"
    roots, off = ctx.runtime.registry.roots, list[tuple[str, str, str]]()
    own = [root.given for root in roots if root.origin is None]
    new = [*start_command(), "new", "my-skill", "--directory", *own[:1]]
    for key, (root, directory) in switched_off(ctx).items():
        off.append((key, directory, root.show(directory) if ctx.site.is_local else directory))
    response = ctx.page(
        template,
        query=query,
        last_visit=last,
        page_size=PAGE_SIZE,
        new=shell_command(new) if own else "",
        off=off,
        facets=_facets_of(ctx, survey),
        **listing,
    )
    if "part" not in given:  # a page that is left open is no visit
        value, age = f"{last:.0f}.{current:.0f}", 366 * 86_400
        response.set_cookie(_VISITS, value, age, path=base(), httponly=True, samesite="strict")
    return response


def _visits(cookie: str) -> tuple[float, float]:
    """Return the times of the last visit, 0 for none, and of this one."""
    numbers = cookie.split(".")
    now, last, current = time.time(), 0.0, 0.0
    if len(numbers) == 2 and all(text.isascii() and text.isdigit() for text in numbers):
        last, current = (float(text[:12]) for text in numbers)
    if now - current > _VISIT_S:
        last = current
    return last, now


def switched_off(ctx: Context) -> dict[str, tuple[Root, str]]:
    """Return the root and folder of each skill that the viewer can switch on, by its form key."""
    if not may_switch(ctx):
        return {}
    return {
        f"{root.index}:{directory}": (root, directory)
        for root in ctx.runtime.registry.roots
        for directory in sorted(root.off)
    }


def switch_skill(request: Request, ctx: Context, fields: Mapping[str, str]) -> str:
    """Switch a local skill on or off for all programs, and return its address. Blocks."""
    if not may_switch(ctx):
        raise HTTPException(403, "Only administrators, and the user of 'ui', switch skills.")
    registry, skill = ctx.runtime.registry, ctx.snapshot.skills.get(fields.get("off", ""))
    known, is_on = switched_off(ctx), skill is None
    if skill is not None and can_switch(ctx, skill):
        root, directory = registry.roots[skill.root], skill.directory
    elif fields.get("on") in known:
        root, directory = known[fields["on"]]
    else:
        raise RequestError("Only skills in the server's own folders can be switched on and off.")
    switch(root.path, directory, on=is_on)
    registry.refresh()
    action: Action = "switch-on" if is_on else "switch-off"
    emit_decision(request, ctx, Use(action, directory, "", ""))
    return f"/skills/{quote(directory)}?switched={'on' if is_on else 'off'}"


def may_switch(ctx: Context) -> bool:
    """Return whether the viewer may switch skills: of a local page, or as an administrator."""
    return ctx.site.is_local or ctx.sees_others


def can_switch(ctx: Context, skill: Skill) -> bool:
    """Return whether the viewer may switch a skill, which is in a subfolder of a folder served."""
    return may_switch(ctx) and skill.origin is None and bool(skill.directory)


def _find(ctx: Context, query: ListQuery, survey: Survey, since: float = 0.0) -> dict[str, Any]:
    """Return the skills that match a filter, in search order if there is a search, else by path.

    `total` is None if not counted; `trouble` is the error of a search. `nearest` has skills with
    names like the words of a search without results.
    """
    skills, used = ctx.snapshot.skills, ctx.used()
    times, fits = ctx.site.revisions, _condition(query, used, survey)

    def newest(skill: Skill) -> float:
        return -(times.changed(skill.path) or 0.0)

    def accept(skill: Skill) -> bool:
        return -newest(skill) >= since and fits(skill)

    total, trouble = None, ""
    nearest: Sequence[Skill] = ()
    by_path = [skills[path] for path in ctx.snapshot.paths(Standing.UNUSABLE)]
    if query.q:
        search = ctx.offering.search
        fitting: list[Skill] = []
        try:
            most = query.start + PAGE_SIZE + 1
            fitting += search.find(
                query.q, most, lambda skill: accept(skill) and skill.path in skills, by_meaning=True
            )
            if not fitting and not query.start:
                nearest = search.nearest(query.q, _NEAREST, lambda skill: skill.path in skills)
        except NoFullTextError as error:
            trouble = str(error)
        # Unreadable skills are in no index; find them by path.
        unread = (skill for skill in by_path if skill.standing is Standing.UNUSABLE)
        fitting += (
            skill for skill in unread if accept(skill) and query.q.lower() in skill.path.lower()
        )
    else:
        fitting = [*filter(accept, by_path)]
        total = len(fitting)
        if query.sort:
            key = query.sort.removeprefix("-")
            fitting.sort(key=_SORTS.get(key, newest), reverse=key != query.sort)
    end = query.start + PAGE_SIZE
    rows = [_row(ctx, skill, query, used or {}, survey) for skill in fitting[query.start : end]]
    more = len(fitting) > end
    return {"rows": rows, "more": more, "total": total, "trouble": trouble, "nearest": nearest}


def _condition(
    query: ListQuery, used: Mapping[str, UsageRow] | None, survey: Survey
) -> Callable[[Skill], bool]:
    def accept(skill: Skill) -> bool:
        if query.source and str(skill.root) != query.source:
            return False
        if query.tag and query.tag not in map(str, tags_of(skill.frontmatter)):
            return False
        if query.problem == "left-out":
            if skill.standing is Standing.VALID:
                return False
        elif query.problem:
            problems = survey.by_skill.get(skill.path, ())
            if not any(query.problem in ("any", problem.code) for problem in problems):
                return False
        if query.used and used is not None:
            line = used.get(skill.path)
            return (line is not None and line.last is not None) == (query.used == "used")
        return True

    return accept


def _row(
    ctx: Context, skill: Skill, query: ListQuery, used: Mapping[str, UsageRow], survey: Survey
) -> dict[str, Any]:
    """Return a skill's row in the list. `left_out` is why it is not listed or not served."""
    title = identity.title(skill)
    why: Sequence[tuple[str, Sequence[str]]] = ()
    if title == skill.name:
        title = None
    if query.q:
        why = matched_fields(skill, query.q)
    return {
        "path": skill.path,
        "name": skill.name,
        "title": title,
        "description": skill.description,
        "source": source_name(ctx, skill.root),
        "tags": [str(tag) for tag in tags_of(skill.frontmatter)[:_MAX_TAGS_OF_ONE]],
        "tokens": tokens_of(skill),
        "files": len(skill.files),
        "problems": len(survey.by_skill.get(skill.path, ())),
        "stale": ctx.runtime.registry.freshness.is_stale(skill),
        "standing": skill.standing.shown,
        "left_out": reason_left_out(ctx, skill),
        "loads": used.get(skill.path, _UNUSED).loads,
        "why": why,
        "changed": ctx.site.revisions.changed(skill.path),
    }


def _as_json(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row as JSON values."""
    out = {key: value for key, value in row.items() if key not in {"why", "changed"}}
    if row["left_out"] is not None:
        out["left_out"] = row["left_out"].message
    return out


def tokens_of(skill: Skill) -> int:
    """Estimate the tokens of a SKILL.md by its bytes."""
    file = skill.files.get(SKILL_MD)
    if file is None:
        return 0
    return estimated_tokens_of_bytes(file.size)


def _facets_of(ctx: Context, survey: Survey) -> dict[str, Any]:
    """Return the facets to filter by, with counts of skills, and totals of all skills.

    They are cached per snapshot once all its skills are checked. `places` has problems outside the
    shown skills: skills that another one hides and, for administrators, unreadable folders.
    """
    snapshot = ctx.snapshot
    made = _facets.setdefault(snapshot, {})
    facets = made.get(ctx.is_admin)
    if facets is None:
        places = [problem for problem in snapshot.problems if problem.skill or ctx.is_admin]
        skills, by_skill = snapshot.skills.values(), survey.by_skill
        roots, tags, codes = Counter[int](), Counter[str](), Counter[str]()
        for skill in skills:
            roots[skill.root] += 1
            tags.update(set(map(str, tags_of(skill.frontmatter))))
            codes.update({problem.code for problem in by_skill.get(skill.path, ())})
        sources = sorted(roots.items())
        facets = {
            "sources": [(str(root), source_name(ctx, root), count) for root, count in sources],
            "tags": sorted(tags.most_common(_MAX_TAGS)),
            "codes": sorted(codes.items()),
            "left_out": sum(skill.standing is not Standing.VALID for skill in skills),
            "tokens": sum(map(tokens_of, skills)),
            "places": [shown_problem(ctx, problem) for problem in places[:_MAX_PLACES]],
            "summary": survey.summary,
            "progress": survey.progress,
        }
        if survey.is_complete:
            made[ctx.is_admin] = facets
    return facets
