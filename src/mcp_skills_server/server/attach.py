"""Add the skills of a registry to an MCP server of the Python SDK, or to one of FastMCP.

The server keeps its own features, and its handlers still answer everything that is not about a
skill. Its lists are joined with ours. On equal names its tools and prompts take precedence, and our
resources, since clients know their digests. The log names what is hidden.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast, get_args
from weakref import WeakKeyDictionary, WeakSet

import anyio
import mcp_types as types
from mcp.server.context import CallNext, HandlerResult
from mcp.server.lowlevel.server import HandlerEntry, Server
from mcp.server.session import ServerSession
from mcp.server.subscriptions import ListenHandler
from mcp.shared.exceptions import MCPError
from pydantic import BaseModel

from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.views import View, Views
from mcp_skills_server.catalog.watch import Watcher
from mcp_skills_server.dialects import runtime as tool_dialect
from mcp_skills_server.dialects.dialect import is_initial
from mcp_skills_server.errors import RequestError, UsageError
from mcp_skills_server.format import cursors, uris
from mcp_skills_server.format.dependencies import Served
from mcp_skills_server.format.uris import SCHEME, TEMPLATE, uri
from mcp_skills_server.model import SKILL_MD, printable
from mcp_skills_server.runtime.runtime import Runtime
from mcp_skills_server.runtime.sessions import Sessions
from mcp_skills_server.server import listing, prompts, resources, sdk
from mcp_skills_server.server.attachment import Attachment, server_features
from mcp_skills_server.server.eras import CALL, LISTEN
from mcp_skills_server.server.notify import Stream
from mcp_skills_server.server.requests import Settings
from mcp_skills_server.server.sdk import Context, SdkHandler, SessionPeer, principal, scope_of

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer

logger = logging.getLogger(__name__)

When: TypeAlias = Literal["description", "first-call", "error"]
IsOurs: TypeAlias = Callable[[Context, Any], Awaitable[bool]]
"""Returns whether our handler should answer a request."""

_INNER: Final = ("_lowlevel_server", "_mcp_server")
"""Private attributes of the SDK's `MCPServer` and of FastMCP with their lowlevel server."""
_ATTACHED: Final = WeakSet[Server[Any]]()
_MAX_PAGES: Final = 100
"""The maximum pages of another handler's list that are read to collect its names."""
_THEIRS: Final = "theirs"
_SKILL: Final = "mcp-skills-server/skill"
"""The key in a tool's `_meta` for the URI of the skill that documents the tool."""

_LISTS: Final = {
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
    "tools/list": "tools",
    "prompts/list": "prompts",
    "skills/list": "skills",
}
"""List methods that a server may have itself, with the key of the items in the result."""
# of a list of the server's own: method, key of the items in the result, field that identifies one
_TOOLS: Final = ("tools/list", "tools", "name")
_PROMPTS: Final = ("prompts/list", "prompts", "name")
_RESOURCES: Final = ("resources/list", "resources", "uri")
_TEMPLATES: Final = ("resources/templates/list", "resourceTemplates", "uriTemplate")
_SKILLS: Final = "skills/list"


def attach(
    server: Server[Any] | MCPServer[Any] | object,
    registry: Registry,
    settings: Settings | None = None,
    *,
    watch: Watcher | bool = True,
    runtime: Runtime | None = None,
    sessions: Callable[[Runtime], Sessions] = Sessions,
    views: Views | None = None,
    tool_skills: Mapping[str, str] | None = None,
    when: When | None = None,
) -> Attachment:
    """Add the skills of a registry to an MCP server: methods, capabilities, notifications.

    Call this last, before the server runs: earlier handlers are kept and joined with the skills.
    A server with skills of its own, such as by the SDK's extension `Skills`, lists both. On equal
    URIs ours take precedence. Tools, prompts and grants know only those of the registry.

    Args:
        server: a lowlevel `Server` or an `MCPServer` of the Python SDK, or a `FastMCP` of the
            package fastmcp.
        registry: not yet loaded; the first client's handshake starts the first scan.
        settings: the operator's settings.
        watch: True or a watcher to follow changes of the folders; False to serve the first scan.
        runtime: runs the tools, with its limits and its way to run scripts; by default scripts are
            disabled.
        sessions: makes the store of tool sessions; by default the memory of this process.
        views: the skills of each principal; by default all.
        tool_skills: the skill that documents a tool of the server, by tool name: a skill path, or
            the URI of a SKILL.md. The tool's `_meta` then has the URI as `mcp-skills-server/skill`
            for clients that may read the skill. The result of loading it names the tool.
        when: also tell the model to load the skill of a tool: in the tool's description, or in the
            tool's first result or failure of a conversation, once for each skill and not if it is
            loaded. A stateless client over HTTP has no conversation, and gets it each time.

    Raises:
        TypeError: the server's type is unsupported, or `registry` is not a Registry.
        UsageError: `attach` was called before, the server has skills in another protocol, or `when`
            has an unknown value.
    """
    _check_registry(registry)
    lowlevel = _lowlevel(server)
    if lowlevel in _ATTACHED:
        raise UsageError(
            "attach() was called for this server before; give one Registry all roots, and attach "
            "that"
        )
    if when is not None and when not in get_args(When):
        choices = ", ".join(map(repr, get_args(When)))
        raise UsageError(
            f"attach(when={when!r}) is unknown; give one of {choices}, or leave it out"
        )
    settings = settings or Settings()
    _check_own_skills(lowlevel, settings)
    _ATTACHED.add(lowlevel)
    watcher = watch or None
    if watcher is True:
        watcher = Watcher(registry)
    listening = lowlevel.get_request_handler(LISTEN)
    attachment = Attachment(
        registry,
        settings,
        watcher,
        runtime,
        sessions=sessions,
        views=views,
        relays=listening is not None and isinstance(listening.handler, ListenHandler),
    )
    merged = MergedHandlers(lowlevel, attachment, tool_skills or {}, when)
    merged.add_handlers()
    lowlevel.middleware.extend((partial(sdk.record_event, attachment), merged.middleware))
    _extend_lifespan(lowlevel, attachment)
    return attachment


def _check_registry(given: object) -> None:
    if not isinstance(given, Registry):
        roots = [*cast("list[object]", given)] if isinstance(given, list | tuple) else [given]
        raise TypeError(f"attach() takes a Registry; write attach(server, Registry({roots!r}))")


def _extend_lifespan(server: Server[Any], attachment: Attachment) -> None:
    """Run the attachment for as long as the server runs."""
    inner = server.lifespan

    @asynccontextmanager
    async def lifespan(running: Server[Any]) -> AsyncGenerator[Any]:
        async with inner(running) as state, attachment.running():
            yield state

    server.lifespan = cast("Callable[[Server[Any]], AbstractAsyncContextManager[Any]]", lifespan)


def _lowlevel(server: object) -> Server[Any]:
    for candidate in (server, *(getattr(server, name, None) for name in _INNER)):
        if isinstance(candidate, Server):
            return cast("Server[Any]", candidate)
    kind = type(server)
    raise TypeError(
        f"attach() does not support {kind.__module__}.{kind.__qualname__}; give it a Server or "
        "an MCPServer of the package mcp, version 2, or a FastMCP of the package fastmcp, version 4"
    )


def _check_own_skills(server: Server[Any], settings: Settings) -> None:
    """Log that a server's own skills are joined with ours.

    Raises:
        UsageError: they cannot be, as they have another protocol, or another revision of it.
    """
    if server.get_request_handler(_SKILLS) is None:
        return
    extensions = {name for dialect in settings.spoken.dialects for name in dialect.extensions}
    declared = [server.extensions[name] for name in extensions if name in server.extensions]
    if not all(map(is_initial, declared)) or not declared:
        raise UsageError(
            f"the server has a {_SKILLS} of its own, in another protocol than the attached skills "
            f"({settings.dialect}) or in an unknown revision; remove it, or serve the skills apart"
        )
    logger.warning(
        "the server's own skills are listed with the attached ones; tools, prompts and grants know "
        "only the attached ones"
    )


class MergedHandlers:
    """Handlers that combine our results with those of the server they are added to."""

    def __init__(
        self,
        server: Server[Any],
        attachment: Attachment,
        tool_skills: Mapping[str, str],
        when: When | None = None,
    ) -> None:
        self._server = server
        self._attachment = attachment
        self._tool_skills = {
            tool: skill if skill.startswith(SCHEME) else uri(skill, SKILL_MD)
            for tool, skill in tool_skills.items()
        }
        self._theirs: dict[str, HandlerEntry[Any] | None] = {}
        self._warned: set[str] = set()
        self._when = when
        self._known = WeakKeyDictionary[Any, set[str]]()
        """By conversation, the URIs of tools' skills that are loaded or were named."""

    def add_handlers(self) -> None:
        """Replace the server's handlers by ours, which call the server's as needed."""
        tools = self._server.get_request_handler("tools/list")
        if self._tool_skills and tools is not None:
            listed = partial(self._list_tools, tools.handler)
            self._server.add_request_handler("tools/list", types.PaginatedRequestParams, listed)
        calls = self._server.get_request_handler(CALL)
        if self._tool_skills and calls is not None and self._when in {"first-call", "error"}:
            called = partial(self._call_their_tool, calls.handler)
            self._server.add_request_handler(CALL, types.CallToolRequestParams, called)
        routed: dict[str, tuple[type[BaseModel], IsOurs]] = {
            CALL: (types.CallToolRequestParams, self._is_our_tool),
            "prompts/get": (types.GetPromptRequestParams, self._is_our_prompt),
            "resources/read": (types.ReadResourceRequestParams, self._is_served),
            "completion/complete": (types.CompleteRequestParams, self._is_our_reference),
            "resources/subscribe": (types.SubscribeRequestParams, self._is_served),
            "resources/unsubscribe": (types.UnsubscribeRequestParams, self._is_served),
        }
        ours: dict[str, SdkHandler] = {
            method: partial(self._call_ours, method) for method in self._attachment.handlers
        }
        if CALL in ours and self._tool_skills:
            ours[CALL] = self._call_our_tool
        ours |= {"resources/subscribe": self._subscribe, "resources/unsubscribe": self._unsubscribe}
        for method, handler in ours.items():
            if method in _LISTS:
                self._add_list(method, _LISTS[method], handler)
            elif method in routed:
                self._add_routed(method, *routed[method], handler)
            else:
                self._add(method, types.RequestParams, partial(self._call_either, method, handler))
        self._add(LISTEN, types.SubscriptionsListenRequestParams, self._listen)

    async def middleware(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """Add capabilities unknown to the SDK to handshakes, and register initialized clients."""
        result = await call_next(ctx)
        if ctx.method in {"initialize", "server/discover"} and isinstance(result, dict):
            result = await self._attachment.advertise(
                result, principal(scope_of(ctx)), *sdk.host_of(ctx)
            )
            # skills of the server's own may lack what ours have, such as directories
            extensions = result["capabilities"].get("extensions", {})
            extensions |= {
                name: own for name, own in self._server.extensions.items() if name in extensions
            }
        if ctx.method == "notifications/initialized":
            self._attachment.begin()
            self._attachment.notifier.add_legacy_client(SessionPeer(ctx))
        return result

    async def _call_ours(self, method: str, ctx: Context, _: Any) -> dict[str, Any]:
        caller = sdk.caller_of(ctx, self._attachment, self._served)
        return await self._attachment.call(method, caller, ctx.params or {})

    async def _call_either(self, method: str, ours: SdkHandler, ctx: Context, params: Any) -> Any:
        """Answer from our skills, or for a URI that is not theirs from the server's own ones."""
        theirs, given = self._theirs[method], ctx.params or {}
        try:
            return await ours(ctx, params)
        except RequestError:
            if theirs is None or not isinstance(given.get("uri"), str):
                raise
        return await theirs.handler(ctx, theirs.params_type.model_validate(given))

    def _add(self, method: str, params_type: type[BaseModel], call: SdkHandler) -> None:
        self._theirs[method] = self._server.get_request_handler(method)
        self._server.add_request_handler(method, params_type, sdk.map_errors(call))

    def _add_routed(
        self, method: str, params_type: type[BaseModel], is_ours: IsOurs, ours: SdkHandler
    ) -> None:
        """Add a handler that answers if a skill is concerned, or if the server has no handler."""

        async def call(ctx: Context, params: Any) -> Any:
            theirs = self._theirs[method]
            if theirs is None:
                return await ours(ctx, params)
            await self._attachment.ready()
            if await is_ours(ctx, params):
                return await ours(ctx, params)
            return await theirs.handler(ctx, params)

        self._add(method, params_type, call)

    def _add_list(self, method: str, key: str, ours: SdkHandler) -> None:
        """Add a list handler: the server's pages, their cursors wrapped in ours, then our pages."""

        async def call(ctx: Context, params: types.PaginatedRequestParams) -> Any:
            theirs, kind, inner = self._theirs[method], _THEIRS, None
            if theirs is None:
                return await ours(ctx, params)
            if params.cursor is not None:
                kind, inner = cursors.decode(params.cursor)
            if kind != _THEIRS:  # past the server's own pages
                return await self._without_hidden(ctx, method, key, await ours(ctx, params))
            unwrapped: BaseModel = params.model_copy(update={"cursor": inner})
            if not isinstance(unwrapped, theirs.params_type):  # of the SDK's extension `Skills`
                unwrapped = theirs.params_type.model_validate({"cursor": inner})
            page: dict[str, Any] = {"ttlMs": 0, **_as_dict(await theirs.handler(ctx, unwrapped))}
            if key in {"resources", "skills"}:  # tools do not wait for the first scan
                await self._attachment.ready()
            page[key] = [item for item in page[key] if not self._is_hidden(ctx, key, item)]
            more = page.pop("nextCursor", None)
            if more is not None:
                page["nextCursor"] = cursors.encode(_THEIRS, str(more))
                return page | {"cacheScope": "private"}
            # their last page, joined with our first one
            mine = await ours(replace(ctx, params={}), params)
            mine = await self._without_hidden(ctx, method, key, mine)
            mine |= {key: [*page[key], *mine[key]]}
            return page | mine | {"ttlMs": min(page["ttlMs"], mine["ttlMs"])}

        self._add(method, types.PaginatedRequestParams, call)

    def _is_hidden(self, ctx: Context, key: str, item: Mapping[str, Any]) -> bool:
        """Return whether ours hides this item of the server, and warn of what it hides."""
        if key in {"resources", "skills"} and self._serves(ctx, item["uri"]):
            words = f"a skill hides the server's own {key.removesuffix('s')} {item['uri']}"
            self._warn(f"{words}; give it another URI")
            return True
        return key == "resourceTemplates" and item["uriTemplate"] == TEMPLATE

    async def _without_hidden(
        self, ctx: Context, method: str, key: str, mine: dict[str, Any]
    ) -> dict[str, Any]:
        """Return a page of our tools or prompts without those that the server's own ones hide."""
        taken = frozenset[str]()
        if key in {"tools", "prompts"}:
            taken = await self._names(ctx, method, key, "name")
        for name in sorted(taken & {item["name"] for item in mine[key]}):
            kind = f"{key.removesuffix('s')} {name}"
            remedy = f"rename it, or attach with Settings({key}=False)"
            self._warn(f"the server's own {kind} hides that of the skills; {remedy}")
        return mine | {key: [item for item in mine[key] if item["name"] not in taken]}

    def _warn(self, words: str) -> None:
        if words not in self._warned:
            self._warned.add(words)
            logger.warning("%s", printable(words))

    # The skills of the server's own tools

    def _skill_of(self, ctx: Context, tool: str) -> str | None:
        """Return the URI of a tool's skill, or None if this client has no such skill."""
        named = self._tool_skills.get(tool)
        if named is None:
            return None
        return resources.canonical(self._view(ctx), self._attachment.settings, named)

    async def _list_tools(self, theirs: SdkHandler, ctx: Context, params: Any) -> dict[str, Any]:
        page = _as_dict(await theirs(ctx, params))
        await self._attachment.ready()
        tools: list[dict[str, Any]] = []
        for tool in map(_as_dict, page["tools"]):
            skill = self._skill_of(ctx, tool["name"])
            if skill is not None:
                tool["_meta"] = {**(tool.get("_meta") or {}), _SKILL: skill}
            if skill is not None and self._when == "description":
                parts = tool.get("description"), self._pointer(ctx, skill)
                tool["description"] = "\n\n".join(filter(None, parts))
            tools.append(tool)
        return page | {"tools": tools, "cacheScope": "private"}

    def _pointer(self, ctx: Context, skill: str) -> str:
        """Return the line that tells a model to load the skill of a tool, by URI."""
        settings, view = self._attachment.settings, self._view(ctx)
        host = listing.host_listing(view.skill_set, settings, *sdk.host_of(ctx))
        served = uris.find(view.snapshot, skill, settings.least)
        is_shown = (
            host is not None and served is not None and served[0].path in host.shown(view.snapshot)
        )
        line = f"The skill {skill} explains this tool: load it"
        if settings.tools and not is_shown:
            line += f" with {tool_dialect.LOAD}"
        return f"{line}."

    def _known_skills(self, ctx: Context) -> set[str]:
        """Return the URIs that the conversation of a request knows, to add to."""
        conversation = sdk.caller_of(ctx, self._attachment, self._served).list_connection
        if conversation is None:
            return set()
        return self._known.setdefault(conversation, set())

    async def _call_their_tool(self, theirs: SdkHandler, ctx: Context, params: Any) -> Any:
        """Call a tool of the server, and add the pointer to its skill to the text of the result."""
        result = await theirs(ctx, params)
        skill, known = self._skill_of(ctx, params.name), self._known_skills(ctx)
        if skill is None or skill in known:
            return result
        answer = _as_dict(result)
        is_due = self._when == "first-call" or answer.get("isError")
        if not is_due or not isinstance(answer.get("content"), list):  # such as a request for input
            return result
        known.add(skill)
        line = {"type": "text", "text": self._pointer(ctx, skill)}
        return answer | {"content": [*answer["content"], line]}

    async def _call_our_tool(self, ctx: Context, params: Any) -> dict[str, Any]:
        """Call one of our tools; after a load, add the names of tools that the skills document."""
        result = await self._call_ours(CALL, ctx, params)
        active = result.get("structuredContent", {}).get("active_skills")
        if active and tool_dialect.canonical(params.name) == tool_dialect.LOAD:
            loaded = {entry["location"]: entry["name"] for entry in active}
            self._known_skills(ctx).update(loaded)
            named: list[str] = []
            for tool in sorted(await self._names(ctx, *_TOOLS)):
                skill = self._skill_of(ctx, tool)
                if skill in loaded:
                    named.append(f"{tool} ({loaded[skill]})")
            if named:
                note = f"Tools that these skills document: {', '.join(named)}."
                return {**tool_dialect.with_note(cast("tool_dialect.ToolResult", result), note)}
        return result

    # Routing between our handlers and the server's own

    def _view(self, ctx: Context) -> View:
        return self._attachment.view(principal(scope_of(ctx)))

    async def _is_served(self, ctx: Context, params: Any) -> bool:
        return self._serves(ctx, params.uri)

    def _serves(self, ctx: Context, uri: str) -> bool:
        view, settings = self._view(ctx), self._attachment.settings
        is_file = resources.canonical(view, settings, uri) is not None
        return is_file or resources.is_view(settings, uri)

    async def _is_our_tool(self, ctx: Context, params: Any) -> bool:
        if tool_dialect.canonical(params.name) is None:
            return False
        return params.name not in await self._names(ctx, *_TOOLS)

    async def _is_our_prompt(self, ctx: Context, params: Any) -> bool:
        view, settings = self._view(ctx), self._attachment.settings
        if not settings.prompts or prompts.prompt_of(view.snapshot, settings, params.name) is None:
            return False
        return params.name not in await self._names(ctx, *_PROMPTS)

    async def _is_our_reference(self, ctx: Context, params: Any) -> bool:
        if isinstance(params.ref, types.PromptReference):
            return await self._is_our_prompt(ctx, params.ref)
        return params.ref.uri == TEMPLATE

    async def _served(self, ctx: Context, view: View) -> Served:
        """Return the names of the server's other tools, prompts and resources."""
        tools, others = await self._names(ctx, *_TOOLS), await self._names(ctx, *_PROMPTS)
        uris = await self._names(ctx, *_RESOURCES) | await self._names(ctx, *_TEMPLATES)
        return server_features(self._attachment, view, tools, others, uris)

    async def _names(self, ctx: Context, method: str, key: str, field: str) -> frozenset[str]:
        """Return the values of a field in one of the server's own lists, from at most 100 pages."""
        entry = self._theirs.get(method, self._server.get_request_handler(method))
        if entry is None:
            return frozenset()
        names: set[str] = set()
        cursor: str | None = None
        for _ in range(_MAX_PAGES):
            page = _as_dict(await entry.handler(ctx, types.PaginatedRequestParams(cursor=cursor)))
            names |= {str(item[field]) for item in page.get(key, [])}
            cursor = page.get("nextCursor")
            if cursor is None:
                break
        return frozenset(names)

    # Subscriptions

    async def _subscribe(
        self, ctx: Context, params: types.SubscribeRequestParams
    ) -> types.EmptyResult:
        owner = sdk.quota_owner(scope_of(ctx))
        await self._attachment.subscribe(SessionPeer(ctx), params.uri, owner)
        return types.EmptyResult()

    async def _unsubscribe(
        self, ctx: Context, params: types.UnsubscribeRequestParams
    ) -> types.EmptyResult:
        self._attachment.unsubscribe(SessionPeer(ctx), params.uri)
        return types.EmptyResult()

    async def _listen(self, ctx: Context, params: types.SubscriptionsListenRequestParams) -> Any:
        theirs, notifier = self._theirs[LISTEN], self._attachment.notifier
        is_ours = notifier.relays or self._is_about_skills(params.notifications)
        if theirs is not None and not is_ours:  # a custom handler, whose events cannot be relayed
            return await theirs.handler(ctx, params)
        # Acknowledge after the first scan, so that no later change lacks a notification.
        await self._attachment.ready()
        wanted = params.notifications.model_dump(by_alias=True, exclude_none=True)
        stream, owner = sdk.stream_of(ctx), sdk.quota_owner(scope_of(ctx))
        if theirs is None or not notifier.relays:
            return await notifier.listen(stream, wanted, owner)
        relay = _Relay(ctx)
        relayed = replace(ctx, session=cast("ServerSession", relay))

        async def pass_on() -> None:
            with suppress(MCPError):  # the server's handler has too many streams
                await theirs.handler(relayed, params)

        relaying = asyncio.create_task(pass_on())
        try:
            return await notifier.listen(relay.opened_by(stream), wanted, owner)
        finally:
            relaying.cancel()

    def _is_about_skills(self, wanted: types.SubscriptionFilter) -> bool:
        extra, uris = wanted.model_extra or {}, wanted.resource_subscriptions or ()
        keys = self._attachment.settings.spoken.notifications
        asked = wanted.resources_list_changed or any(map(extra.get, keys))
        return bool(asked) or any(uri.startswith(SCHEME) for uri in uris)


class _Relay:
    """Session proxy that delays events of the server's listen handler until our stream opens."""

    def __init__(self, ctx: Context) -> None:
        self._session = ctx.session
        self._acknowledged = anyio.Event()

    def opened_by(self, stream: Stream) -> Stream:
        """Return our stream, wrapped so that its first message releases the server's events."""

        async def send(method: str, params: dict[str, Any] | None) -> None:
            await stream.send(method, params)
            self._acknowledged.set()

        return Stream(stream.id, send, stream.shared, stream.principal)

    async def send_notification(
        self,
        notification: types.ServerNotification,
        related_request_id: types.RequestId | None = None,
    ) -> None:
        """Forward a notification of the server's handler, except its acknowledgement."""
        if not isinstance(notification, types.SubscriptionsAcknowledgedNotification):
            await self._acknowledged.wait()
            await self._session.send_notification(notification, related_request_id)


def _as_dict(result: Any) -> dict[str, Any]:
    if isinstance(result, BaseModel):
        return result.model_dump(by_alias=True, mode="json", exclude_none=True)
    return dict(cast("Mapping[str, Any]", result))
