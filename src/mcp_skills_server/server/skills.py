"""Handlers of `skills/list` and `skills/get`, for all dialects."""

from __future__ import annotations

from collections.abc import Sequence

from mcp_skills_server.catalog.views import View
from mcp_skills_server.dialects import table
from mcp_skills_server.dialects.dialect import Dialect, EntryContext, EntryResult
from mcp_skills_server.dialects.table import with_envelope
from mcp_skills_server.format import arguments, cursors
from mcp_skills_server.format.dependencies import Served
from mcp_skills_server.model import Skill
from mcp_skills_server.server import listing, requests
from mcp_skills_server.server.requests import Caller, Page, Params, Result, Settings
from mcp_skills_server.telemetry import events

_CURSOR = "skills"


async def list_skills(view: View, settings: Settings, caller: Caller, params: Params) -> Result:
    """Return a page of the skills, preferred ones first (`skills/list`)."""
    after = cursors.start_key(params, _CURSOR)
    dialects = settings.spoken.for_client(caller.extensions)
    order = listing.order_of(view.skill_set, settings)
    key = (_CURSOR, dialects, order, settings.page_size, after)
    page = requests.cached_page(view.snapshot, *key)
    if page is None:
        skills, more = order.page(view.snapshot, settings.page_size, after)
        subjects = [await _subject(skill, view, settings, caller, dialects) for skill in skills]
        page = Page([table.entry(subject, dialects) for subject in subjects], more)
        # such an entry names tools that differ by caller
        if not any(_needs_served(skill, dialects) for skill in skills):
            requests.cache_page(page, view.snapshot, *key)
    result = table.listing(page, cursors.encode(_CURSOR, page.more))
    result = with_envelope(settings.spoken.dialects, result, settings.ttl_ms)
    return requests.with_unread(result, view)


async def get_skill(view: View, settings: Settings, caller: Caller, params: Params) -> Result:
    """Return one skill in the dialect of the given parameter (`skills/get`).

    Raises:
        RequestError: the skill does not exist, or its arguments are invalid.
    """
    dialect, target = settings.spoken.dialect_of(params)
    skill = dialect.find(view.snapshot, target, settings.least)
    if isinstance(dialect.result, EntryResult):
        events.record_mentions([skill])
        dialects = settings.spoken.for_client(caller.extensions)
        subject = await _subject(skill, view, settings, caller, dialects)
        made = dialect.result.write(table.entry(subject, dialects))
    else:
        given = requests.given_arguments(params)
        body = await view.body(skill)  # records the mention
        text = arguments.fill_in(body.text, skill.frontmatter, given, target)
        subject = await _subject(skill, view, settings, caller, (dialect,))
        made = dialect.result.write(subject, text, body.linked)
    return with_envelope((dialect,), made, settings.ttl_ms)


async def _subject(
    skill: Skill, view: View, settings: Settings, caller: Caller, dialects: Sequence[Dialect]
) -> EntryContext:
    """Return a skill with the context of its entry in these dialects."""
    served = Served()
    if _needs_served(skill, dialects):
        served = await caller.served(view)
    return EntryContext(skill, view.snapshot, settings.least, served)


def _needs_served(skill: Skill, dialects: Sequence[Dialect]) -> bool:
    return any(dialect.needs_served(skill) for dialect in dialects)
