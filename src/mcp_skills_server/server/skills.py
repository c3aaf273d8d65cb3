"""`skills/list` and `skills/get`, in whatever dialects the server speaks. No SDK here."""

from __future__ import annotations

import logging

from mcp_skills_server.catalog.view import View
from mcp_skills_server.dialects.dialect import EntryResult, Subject
from mcp_skills_server.dialects.table import listing
from mcp_skills_server.errors import REPEATS, RequestError, StaleFileError, clipped
from mcp_skills_server.format import arguments, cursors
from mcp_skills_server.format.dependencies import FIELD, Served
from mcp_skills_server.model import Json
from mcp_skills_server.server.entries import Entries
from mcp_skills_server.server.requests import Caller, Params, Result, Settings, given_arguments, page_of
from mcp_skills_server.telemetry import events

logger = logging.getLogger(__name__)

_CURSOR = "skills"
_NOTHING = Served()


async def list_skills(view: View, settings: Settings, caller: Caller, params: Params) -> Result:
    """`skills/list`: the skills by path, in pages. One that cannot be read is left out."""
    page, more = page_of(view.snapshot, settings, cursors.key_of(params, _CURSOR))
    entries = Entries(view, settings, caller)
    await entries.prepare(page)
    out: list[Json] = []
    for skill in page:
        try:
            out.append(entries.kept(skill) or await entries.entry(skill))
        except StaleFileError as stale:
            if not view.last_try:
                raise
            logger.warning("%s is left out of the listing: %s", skill.path, stale, extra=REPEATS)
    return settings.spoken.framed(listing(out, cursors.encode(_CURSOR, more)), settings.ttl_ms)


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
            made = result.write(await Entries(view, settings, caller).entry(skill))
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
