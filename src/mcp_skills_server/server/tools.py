"""The runtime tools over MCP: find the session of a call, and dispatch the call to it.

A session is found by its handle, and in the legacy era also by its connection (MCP-11, X-15). A
host may hold many conversations over one connection, so both eras accept a handle, and every load
returns all that is loaded.
"""

from __future__ import annotations

import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from mcp_skills_server.catalog.skill_set import SkillSet
from mcp_skills_server.catalog.views import View
from mcp_skills_server.dialects import runtime
from mcp_skills_server.dialects.dialect import cacheable
from mcp_skills_server.errors import RequestError
from mcp_skills_server.format import cursors
from mcp_skills_server.model import Json
from mcp_skills_server.model.clients import UNKNOWN, WIDEST, client_of
from mcp_skills_server.runtime.session import Session
from mcp_skills_server.runtime.sessions import Sessions, UnknownSessionError
from mcp_skills_server.server import requests
from mcp_skills_server.server.listing import HostListing, host_listing
from mcp_skills_server.server.requests import Caller, Params, Result, Settings, with_unread

if TYPE_CHECKING:
    from mcp_skills_server.proposals.store import ProposalStore
    from mcp_skills_server.server.proposing import ProposalTools

_KIND: Final = "tools"
_TOOL_PREFIX: Final = "skills"
"""Prefix of our tools' names."""
_NOT_SHARED: Final = (
    "Only one replica of this server knows this session, because the shared store is unreachable. "
    "If a later call says that it is unknown, load the skills again without a session."
)
_CHANGING_TOOLS: Final = frozenset((runtime.LOAD, runtime.UNLOAD))


class Tools:
    """The tools, shared by all callers; without a store of proposals, those are disabled."""

    def __init__(self, sessions: Sessions, proposals: ProposalStore | None = None) -> None:
        self._sessions = sessions
        self._proposing: ProposalTools | None = None
        if proposals is not None:
            # lazy: needed only with proposals
            from mcp_skills_server.server.proposing import ProposalTools

            self._proposing = ProposalTools(sessions.runtime.registry, proposals)
        self._session_of_connection = WeakKeyDictionary[Any, str]()
        self._first_seen = WeakKeyDictionary[Any, float]()
        """The `time.monotonic` of each connection's first call: most hosts list tools once."""

    def definitions(
        self, skill_set: SkillSet, host: HostListing | None = None, client: str | None = None
    ) -> list[dict[str, Json]]:
        """Return the tools for callers with these skills; for `host` see `Briefing`."""
        briefing = self._sessions.runtime.offerings.get(skill_set).briefing
        tools = briefing.tools(handles=True, host=host, client=client_of(client))
        if self._proposing is None:
            return tools
        return [*tools, *self._proposing.definitions(skill_set)]

    def tool_variants(self, skill_set: SkillSet) -> list[list[dict[str, Json]]]:
        """Return the tools with the shortest and the longest texts, to detect changes."""
        briefing = self._sessions.runtime.offerings.get(skill_set).briefing
        return [briefing.tools(handles=True, client=client) for client in (UNKNOWN, WIDEST)]

    def instructions(
        self, skill_set: SkillSet, host: HostListing | None, client: str | None = None
    ) -> str | None:
        """Return the server instructions, or None if there are no skills to list."""
        briefing = self._sessions.runtime.offerings.get(skill_set).briefing
        return briefing.instructions(client=client_of(client), host=host) or None

    async def list_tools(
        self, view: View, settings: Settings, caller: Caller, params: Params
    ) -> Result:
        """Return all tools in one page, in a stable order (`tools/list`)."""
        if cursors.start_key(params, _KIND) is not None:
            raise RequestError("Invalid cursor: the list of tools has one page")
        self._first_seen_at(caller)
        host = host_listing(view.skill_set, settings, caller.client, caller.extensions)
        tools = self.definitions(view.skill_set, host, caller.client)
        if runtime.apps.is_declared(caller.extensions):
            tools = runtime.apps.with_views(tools)
        return with_unread(cacheable({"tools": [*tools]}, settings.ttl_ms), view)

    async def call_tool(self, view: View, _: Settings, caller: Caller, params: Params) -> Result:
        """Call a tool (`tools/call`); errors that the model can correct are results with `isError`.

        Raises:
            RequestError: the tool is unknown, and its name does not resemble one of ours.
        """
        name = str(params.get("name"))
        if runtime.canonical(name) is None and not name.startswith(_TOOL_PREFIX):
            names = ", ".join(str(tool["name"]) for tool in self.definitions(view.skill_set))
            there = names or "none, since there is no skill"
            raise RequestError(f"Unknown tool: {name[:100]!r}; known: {there}")
        result = await self._call(view, caller, name, requests.given_arguments(params))
        return {"resultType": "complete", **result}

    async def _call(
        self, view: View, caller: Caller, name: str, given: dict[str, Any]
    ) -> runtime.ToolResult:
        conversation = given.pop(runtime.CONVERSATION, None)
        handle = given.pop(runtime.SESSION, conversation)
        offering = self._sessions.runtime.offerings.get(view.skill_set)
        tool = runtime.canonical(name)
        if self._proposing is not None and tool in self._proposing.tools:
            return await self._proposing.call(view, tool, given, offering, caller=caller)
        try:
            async with AsyncExitStack() as opened:
                changes = tool in _CHANGING_TOOLS
                opened_session = await self._open_session(opened, handle, caller, changes=changes)
                session = opened_session or self._sessions.new(
                    self._first_seen_at(caller), offering
                )
                result = await session.call(
                    name,
                    given,
                    progress=caller.progress,
                    client=caller.client,
                    owner=caller.quota_owner,
                    offering=offering,
                )
            has_handle = runtime.SESSION in result.get("structuredContent", {})
            is_kept = has_handle or bool(session.active_skills)
            if is_kept and opened_session is None:
                await self._sessions.add(session, caller.owner, caller.quota_owner)
        except RequestError as error:
            return runtime.failure(str(error))
        if is_kept:
            if not self._sessions.is_shared(session) and "structuredContent" in result:
                result = runtime.with_note(result, _NOT_SHARED)
            if caller.connection is not None:
                self._session_of_connection[caller.connection] = session.session_id
        return result

    def _first_seen_at(self, caller: Caller) -> float | None:
        """Return the `time.monotonic` of the connection's first call; None without a connection."""
        if caller.list_connection is None:
            return None
        return self._first_seen.setdefault(caller.list_connection, time.monotonic())

    async def _open_session(
        self, opened: AsyncExitStack, handle: object, caller: Caller, *, changes: bool
    ) -> Session | None:
        """Open the session of a call until `opened` exits; None for a call that has none."""
        is_given = handle is not None
        if not is_given and caller.connection is not None:
            handle = self._session_of_connection.get(caller.connection)
        if handle is None:
            return None
        if not isinstance(handle, str):
            raise RequestError(
                f'Argument "{runtime.SESSION}" must be the text that {runtime.LOAD} returned'
            )
        owners = caller.owner, caller.quota_owner
        try:
            return await opened.enter_async_context(
                self._sessions.open(handle, *owners, changes=changes)
            )
        except UnknownSessionError:
            if is_given:
                raise
            return None  # expired; the caller never got its handle
