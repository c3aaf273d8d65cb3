"""Handlers of `skills/list` and `skills/get`, for all dialects."""

from __future__ import annotations

from collections.abc import Sequence

from mcp_skills_server.catalog.views import View
from mcp_skills_server.dialects.dialect import Dialect, Entry, EntryResult, Subject
from mcp_skills_server.dialects.table import listing, union
from mcp_skills_server.format import arguments, cursors
from mcp_skills_server.format.dependencies import Served
from mcp_skills_server.model import Skill
from mcp_skills_server.server.requests import (
    Caller,
    Page,
    Params,
    Result,
    Settings,
    given_arguments,
    keep_page,
    kept_page,
    page_of,
    with_pending,
)
from mcp_skills_server.telemetry import events

_CURSOR = "skills"
_NOTHING = Served()


async def list_skills(view: View, settings: Settings, caller: Caller, params: Params) -> Result:
    """Return a page of the skills in path order (`skills/list`)."""
    after = cursors.start_key(params, _CURSOR)
    dialects = settings.spoken.for_client(caller.extensions)
    key = (_CURSOR, dialects, settings.least, settings.page_size, after)
    page = kept_page(view.snapshot, *key)
    if page is None:
        skills, more = page_of(view.snapshot, settings, after)
        subjects = [await _subject(skill, view, settings, caller, dialects) for skill in skills]
        page = Page([_entry(each, dialects) for each in subjects], more)
        if all(each.served is _NOTHING for each in subjects):
            keep_page(page, view.snapshot, *key)
    result = settings.spoken.framed(
        listing(page, cursors.encode(_CURSOR, page.more)), settings.ttl_ms
    )
    return with_pending(result, view)


async def get_skill(view: View, settings: Settings, caller: Caller, params: Params) -> Result:
    """Return one skill in the dialect of the given parameter (`skills/get`).

    Raises:
        RequestError: the skill does not exist, or its arguments are invalid.
    """
    dialect, target = settings.spoken.asked(params)
    result = dialect.result
    if isinstance(result, EntryResult):
        skill = dialect.find(view.snapshot, target, settings.least)
        events.record_mentions([skill])
        dialects = settings.spoken.for_client(caller.extensions)
        made = result.write(
            _entry(await _subject(skill, view, settings, caller, dialects), dialects)
        )
    else:
        given = given_arguments(params)
        skill = dialect.find(view.snapshot, target, settings.least)
        body = await view.body(skill)
        text = arguments.fill_in(body.text, arguments.declared(skill.frontmatter), given, target)
        made = result.write(
            await _subject(skill, view, settings, caller, (dialect,)), text, body.linked
        )
    if dialect.framed is None:
        return made
    return dialect.framed(made, settings.ttl_ms)


async def _subject(
    skill: Skill, view: View, settings: Settings, caller: Caller, dialects: Sequence[Dialect]
) -> Subject:
    """Return a skill with the context of its entry in these dialects."""
    served = _NOTHING
    if any(each.needs_served(skill) for each in dialects):
        served = await caller.served(view)
    return Subject(skill, view.snapshot, settings.least, served)


def _entry(subject: Subject, dialects: Sequence[Dialect]) -> Entry:
    return union([each.entry(subject) for each in dialects])
