"""`skills/list` and `skills/get`, in whatever dialects the server speaks. No SDK here."""

from __future__ import annotations

import logging
from collections.abc import Hashable
from functools import cache
from weakref import WeakKeyDictionary

from mcp_skills_server.catalog.views import View
from mcp_skills_server.dialects.dialect import Dialect, Entry, EntryResult, Subject
from mcp_skills_server.dialects.table import listing, union
from mcp_skills_server.format import arguments, cursors
from mcp_skills_server.format.dependencies import FIELD, Served
from mcp_skills_server.model import Skill, Standing
from mcp_skills_server.server.pages import Page, keep_page, kept_page, page_of
from mcp_skills_server.server.requests import Caller, Params, Result, Settings, given_arguments, with_pending
from mcp_skills_server.telemetry import events

logger = logging.getLogger(__name__)

_CURSOR = "skills"
_NOTHING = Served()


async def list_skills(view: View, settings: Settings, caller: Caller, params: Params) -> Result:
    """`skills/list`: the skills by path, in pages."""
    after, entries = cursors.key_of(params, _CURSOR), _Entries(view, settings, caller)
    key = (_CURSOR, entries.dialects, settings.least, settings.page_size, after)
    page = kept_page(view.snapshot, *key)
    if page is None:
        page = await _page(view, settings, entries, after)
        if entries.are_fixed:
            keep_page(page, view.snapshot, *key)
    result = settings.spoken.framed(listing(page, cursors.encode(_CURSOR, page.more)), settings.ttl_ms)
    return with_pending(result, view)


async def _page(view: View, settings: Settings, entries: _Entries, after: str | None) -> Page:
    skills, more = page_of(view.snapshot, settings, after)
    return Page([await entries.entry(skill) for skill in skills], more)


async def get_skill(view: View, settings: Settings, caller: Caller, params: Params) -> Result:
    """`skills/get`: one skill, as the dialect answers whose parameter names it.

    Raises:
        RequestError: there is no such skill, or its arguments are not as they were declared.
    """
    dialect, target = settings.spoken.asked(params)
    snapshot, least, result = view.snapshot, settings.least, dialect.result
    if isinstance(result, EntryResult):
        skill = dialect.find(snapshot, target, least)
        events.concerns([skill])
        made = result.write(await _Entries(view, settings, caller).entry(skill))
    else:
        given = given_arguments(params)
        skill = dialect.find(snapshot, target, least)
        body = await view.body(skill)
        text = arguments.fill_in(body.text, arguments.declared(skill.frontmatter), given, target)
        served = _NOTHING
        if FIELD in skill.frontmatter:
            served = await caller.served(view)
        made = result.write(Subject(skill, snapshot, least, served, {}), text, body.linked)
    if dialect.framed is None:
        return made
    return dialect.framed(made, settings.ttl_ms)


@cache
def _cache_of(
    _dialects: tuple[Dialect, ...], _least: Standing
) -> WeakKeyDictionary[Skill, tuple[tuple[Hashable, ...], Entry]]:
    """Return the entries by skill, each with what it varies with beside the skill. Do not change an entry."""
    return WeakKeyDictionary()


class _Entries:
    """The entries of one request: of one dialect, or of several as one.

    Args:
        view: what the request sees.
        settings: what the operator chose.
        caller: who asks; its extensions choose the dialects.

    Attributes:
        dialects: the dialects of the entries.
        are_fixed: whether the entries so far depend on nothing but the snapshot.
    """

    def __init__(self, view: View, settings: Settings, caller: Caller) -> None:
        self._view = view
        self._caller = caller
        self._least = settings.least
        self.dialects = settings.spoken.for_client(caller.extensions)
        self.are_fixed = True
        self._cache = _cache_of(self.dialects, settings.least)

    async def entry(self, skill: Skill) -> Entry:
        """Return the entry of a skill."""
        snapshot = self._view.snapshot
        varies = tuple([each.varies_with(skill, snapshot, self._least) for each in self.dialects])
        if None in varies:
            self.are_fixed = False
            return self._written(skill, await self._caller.served(self._view))
        known = self._cache.get(skill)
        if known is not None and known[0] == varies:
            return known[1]
        written = self._written(skill, _NOTHING)
        self._cache[skill] = varies, written
        return written

    def _written(self, skill: Skill, served: Served) -> Entry:
        parts: list[Entry] = []
        for dialect in self.dialects:
            digests = {}
            if dialect.wants_digests:
                digests = skill.digests
            parts.append(dialect.entry(Subject(skill, self._view.snapshot, self._least, served, digests)))
        return union(parts)
