"""`skills/list` and `skills/get`, in whatever dialects the server speaks. No SDK here."""

from __future__ import annotations

import logging
from collections.abc import Hashable
from typing import Any, cast

from mcp_skills_server.catalog.view import View
from mcp_skills_server.dialects.dialect import EntryResult, Subject
from mcp_skills_server.dialects.table import listing
from mcp_skills_server.errors import REPEATS, RequestError, StaleFileError, clipped
from mcp_skills_server.format import arguments, cursors
from mcp_skills_server.format.dependencies import FIELD, Served
from mcp_skills_server.server.entries import Entries
from mcp_skills_server.server.fragments import Fragment, Fragments, Page, keep_page, kept_page
from mcp_skills_server.server.requests import Caller, Params, Result, Settings, given_arguments, page_of
from mcp_skills_server.telemetry import events

logger = logging.getLogger(__name__)

_CURSOR = "skills"
_NOTHING = Served()


async def list_skills(view: View, settings: Settings, caller: Caller, params: Params) -> Result:
    """`skills/list`: the skills by path, in pages. One that cannot be read is left out."""
    after, entries = cursors.key_of(params, _CURSOR), Entries(view, settings, caller)
    key = (_CURSOR, entries.dialects, settings.least, settings.page_size, after)
    page = kept_page(view.snapshot, key) or await _page(view, settings, entries, after, key)
    made = listing(cast(Any, page.fragments), cursors.encode(_CURSOR, page.more))
    return settings.spoken.framed(made, settings.ttl_ms)


async def _page(view: View, settings: Settings, entries: Entries, after: str | None, key: Hashable) -> Page:
    skills, more = page_of(view.snapshot, settings, after)
    await entries.prepare(skills)
    out: list[Fragment] = []
    for skill in skills:
        try:
            out.append(entries.kept(skill) or await entries.entry(skill))
        except StaleFileError as stale:
            if not view.last_try:
                raise
            logger.warning("%s is left out of the listing: %s", skill.path, stale, extra=REPEATS)
    page = Page(Fragments(out), more)
    return keep_page(view.snapshot, key, page) if all(map(entries.kept, skills)) else page


async def get_skill(view: View, settings: Settings, caller: Caller, params: Params) -> Result:
    """`skills/get`: one skill, as the dialect answers whose parameter names it.

    Raises:
        RequestError: there is no such skill, or its arguments are not as they were declared.
    """
    dialect, target = settings.spoken.asked(params)
    snapshot, least, result = view.snapshot, settings.least, dialect.result
    try:
        if isinstance(result, EntryResult):
            skill = dialect.find(snapshot, target, least)
            events.concerns([skill])
            entries = Entries(view, settings, caller)
            made = result.write(cast(Any, entries.kept(skill) or await entries.entry(skill)))
        else:
            given = given_arguments(params)
            skill = dialect.find(snapshot, target, least)
            body = await view.body(skill)
            text = arguments.fill_in(body.text, arguments.declared(skill.frontmatter), given, target)
            served = await caller.served(view) if FIELD in skill.frontmatter else _NOTHING
            made = result.write(Subject(skill, snapshot, least, served, {}), text, body.linked)
    except StaleFileError as stale:
        unreadable = RequestError(f"Unknown skill: {clipped(target)!r}; a file of it cannot be read")
        raise view.refusal(stale, unreadable) from None
    return made if dialect.framed is None else dialect.framed(made, settings.ttl_ms)
