"""Gives an MCP server of the Python SDK the skills of a registry.

What the server already has stays: its handlers are asked for what is not a skill, and its lists are joined with ours.
This module, `app.py`, `callers.py`, `exchange.py` and `notify.py` are the only ones here that know the SDK.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

import anyio
import mcp_types as types
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel.server import HandlerEntry, Server
from mcp.server.subscriptions import ListenHandler
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import ResourceUpdated, ServerEvent, event_to_notification
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import BaseModel

from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.watch import Watcher
from mcp_skills_server.dialects import runtime, sep2076, sep2640
from mcp_skills_server.dialects.prompts import LIST_CHANGED as PROMPTS_CHANGED
from mcp_skills_server.errors import REPEATS, NotServedError, RequestError
from mcp_skills_server.format import cursors
from mcp_skills_server.format.dependencies import Served
from mcp_skills_server.format.uris import SCHEME
from mcp_skills_server.model import Changes, Json
from mcp_skills_server.runtime.runtime import Runtime
from mcp_skills_server.runtime.sessions import Sessions
from mcp_skills_server.server import handlers, prompts
from mcp_skills_server.server.callers import bearer, counted
from mcp_skills_server.server.handlers import Caller, Params, Settings
from mcp_skills_server.server.notify import Notifier
from mcp_skills_server.server.tools import Tools

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer

logger = logging.getLogger(__name__)

_LEGACY_NOT_FOUND: Final = -32002
_MOST_PAGES: Final = 100
"""Pages of another handler's list that are read for its names."""

_THEIRS: Final = "theirs"

Context: TypeAlias = ServerRequestContext[Any, Any]
Handler: TypeAlias = Callable[[Registry, Settings, Caller, Params], Awaitable[dict[str, Any]]]
Call: TypeAlias = Callable[[Context, Any], Awaitable[Any]]

_OURS: Final[tuple[tuple[str, type[BaseModel], Handler], ...]] = (
    ("skills/list", types.RequestParams, handlers.list_skills),
    ("skills/get", types.RequestParams, handlers.get_skill),
    ("resources/directory/read", types.RequestParams, handlers.read_directory),
)
_LISTS: Final[tuple[tuple[str, str, Handler], ...]] = (
    ("resources/list", "resources", handlers.list_resources),
    ("resources/templates/list", "resourceTemplates", handlers.list_templates),
)
_TOOLS: Final = ("tools/list", "tools", "name")
_PROMPTS: Final = ("prompts/list", "prompts", "name")
_SCAN_AWAITED_S: Final = 0.25
"""How long a handshake and a list of tools wait for the first scan."""
_SCAN_AWAITED: Final = 300
"""With more skills the scan is not waited for, nor begun before the handshake is over: the first look has to do."""


class Attachment:
    """A registry attached to a server: what `attach` returns.

    Entered with the server's own lifespan. The first scan of a large folder begins when a client has its answer to the
    handshake, so that it does not delay it. The handshake and the list of tools say what a first look found until the
    scan is done; every other question about skills waits for it.
    """

    def __init__(
        self, registry: Registry, settings: Settings, watcher: Watcher | None, runtime: Runtime | None
    ) -> None:
        self.registry = registry
        self.settings = settings
        self.sessions = Sessions(runtime or Runtime(registry))
        self.tools = Tools(self.sessions)
        self.notifier = Notifier(
            skills=settings.dialect != sep2640.NAME, tools=settings.tools, prompts=settings.prompts
        )
        self._tools_told: list[dict[str, Json]] | None = None
        self._watcher = watcher
        self._ready = anyio.Event()
        self._begun = False

    def begin(self) -> None:
        """Start the first scan, and the watch. Later calls do nothing."""
        if self._begun:
            return
        self._begun = True
        loop = asyncio.get_running_loop()

        def soon(work: Callable[..., None], *arguments: object) -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody is left to be told
                loop.call_soon_threadsafe(work, *arguments)

        def loaded() -> None:
            self.registry.loaded.wait()
            soon(self._open)

        self.registry.subscribe(lambda changes: soon(self._publish, changes))

        def scan() -> None:
            if self.settings.tools:
                self.sessions.runtime.briefing.look()  # while the scan works, it is all that can be told
            if self._watcher is not None:
                self._watcher.start()
            else:
                self.registry.load()
            if self.settings.tools:
                self.sessions.runtime.warn_if_unsearchable()

        threading.Thread(target=loaded, name="skills-loaded", daemon=True).start()
        threading.Thread(target=scan, name="skills-load", daemon=True).start()

    async def ready(self) -> None:
        """Wait for the first scan."""
        self.begin()
        await self._ready.wait()

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Tell clients of changes while this is entered; stop the watch afterwards."""
        async with self.notifier.running():
            try:
                yield
            finally:
                if self._watcher is not None:
                    self._watcher.stop(timeout=0.2)
                self.sessions.close()

    async def instructions(self) -> str | None:
        """What a handshake tells a model of the skills; it does not wait long."""
        await self.glimpse()
        return self.tools.instructions()

    async def glimpse(self) -> None:
        """Wait until there is something to tell of the skills: the scan where that is quick, else the first look."""
        if self._ready.is_set():
            return
        briefing = self.sessions.runtime.briefing
        await anyio.to_thread.run_sync(briefing.look)
        if briefing.is_small(_SCAN_AWAITED):
            self.begin()
            with anyio.move_on_after(_SCAN_AWAITED_S):
                await self._ready.wait()
        if not self._ready.is_set():
            self._tools_told = self.tools.definitions()

    async def glimpse_and_begin(self) -> None:
        """The same, and have the scan begin: the handshake is over."""
        await self.glimpse()
        self.begin()

    def _open(self) -> None:
        told = self._tools_told
        if self.settings.tools:
            self._tools_told = self.tools.definitions()
        self._ready.set()
        if told is not None and told != self._tools_told:
            # After those who waited for the scan to listen, so that they hear of it.
            asyncio.get_running_loop().call_soon(self.notifier.publish, [(runtime.LIST_CHANGED, None)])

    def _publish(self, changes: Changes) -> None:
        # Nobody has seen anything before the first scan, so there is nothing to tell of it.
        if self._ready.is_set():
            notices = handlers.notices(changes, self.settings)
            if self.settings.tools and runtime.changed(changes.before, changes.after):
                now = self.tools.definitions()
                if now != self._tools_told:
                    self._tools_told = now
                    notices.append((runtime.LIST_CHANGED, None))
            if self.settings.prompts and prompts.changed(changes, self.settings):
                notices.append((PROMPTS_CHANGED, None))
            self.notifier.publish(notices)


def attach(
    server: Server[Any] | MCPServer[Any],
    registry: Registry,
    settings: Settings | None = None,
    *,
    watch: Watcher | bool = True,
    runtime: Runtime | None = None,
) -> Attachment:
    """Give an MCP server the skills of a registry: methods, capabilities, notifications.

    Call it last, before the server runs: what the server has by then stays and is joined with the skills.

    Args:
        server: a lowlevel `Server` or an `MCPServer` of the Python SDK.
        registry: not yet loaded; it is loaded when the first client has shaken hands.
        settings: what the operator chose.
        watch: follow changes of the folders, as the given watcher does or by default; False serves the first scan.
        runtime: what the tools run on, with its limits and how scripts are run; by default no script is.
    """
    lowlevel = cast("Server[Any]", getattr(server, "_lowlevel_server", server))
    watcher = Watcher(registry) if watch is True else watch or None
    attachment = Attachment(registry, settings or Settings(), watcher, runtime)
    joint = _MergedHandlers(lowlevel, attachment)
    joint.add_handlers()
    lowlevel.middleware.append(joint.middleware)
    inner = lowlevel.lifespan

    @asynccontextmanager
    async def lifespan(of: Server[Any]) -> AsyncGenerator[Any]:
        async with inner(of) as state, attachment.running():
            yield state

    lowlevel.lifespan = cast("Callable[[Server[Any]], AbstractAsyncContextManager[Any]]", lifespan)
    return attachment


class _MergedHandlers:
    """Where our handlers meet those that a server has already."""

    def __init__(self, server: Server[Any], attachment: Attachment) -> None:
        self._server = server
        self._attachment = attachment
        self._theirs: dict[str, HandlerEntry[Any] | None] = {}

    def add_handlers(self) -> None:
        """Put ours in place of theirs, with theirs behind them."""
        for method, params_type, handler in _OURS:
            self._add(method, params_type, self._ours(handler))
        for method, key, handler in _LISTS:
            self._add(method, types.PaginatedRequestParams, self._joined(method, key, self._ours(handler)))
        attachment = self._attachment
        if attachment.settings.tools:
            method, key, _ = _TOOLS
            ours = self._ours(attachment.tools.list_tools, attachment.glimpse_and_begin)
            self._add(method, types.PaginatedRequestParams, self._joined(method, key, ours))
            ours = self._ours(attachment.tools.call_tool)
            self._add("tools/call", types.CallToolRequestParams, self._routed("tools/call", ours, self._is_our_tool))
        if attachment.settings.prompts:
            method, key, _ = _PROMPTS
            ours = self._ours(prompts.list_prompts)
            self._add(method, types.PaginatedRequestParams, self._joined(method, key, ours))
            ours = self._ours(prompts.get_prompt)
            self._add(
                "prompts/get", types.GetPromptRequestParams, self._routed("prompts/get", ours, self._is_our_prompt)
            )
        read, complete = self._ours(handlers.read_resource), self._ours(_complete)
        self._add("resources/read", types.ReadResourceRequestParams, self._routed("resources/read", read, self._by_uri))
        self._add(
            "completion/complete",
            types.CompleteRequestParams,
            self._routed("completion/complete", complete, self._is_our_reference),
        )
        for method, params_type, call in (
            ("resources/subscribe", types.SubscribeRequestParams, self._subscribe),
            ("resources/unsubscribe", types.UnsubscribeRequestParams, self._unsubscribe),
        ):
            self._add(method, params_type, self._routed(method, call, self._by_uri))
        self._add("subscriptions/listen", types.SubscriptionsListenRequestParams, self._listen)
        listening = self._theirs["subscriptions/listen"]
        if listening is not None and isinstance(listening.handler, ListenHandler):
            bus = listening.handler._bus  # pyright: ignore[reportPrivateUsage]
            bus.subscribe(self._relay)
            self._attachment.notifier.relays = True

    async def middleware(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """Declare the capabilities that the SDK does not know, and note when a legacy client is ready."""
        result = await call_next(ctx)
        if ctx.method in {"initialize", "server/discover"} and isinstance(result, dict):
            said = await self._attachment.instructions() if self._attachment.settings.tools else None
            return _declaring(result, self._attachment.settings, said)
        if ctx.method == "notifications/initialized":
            self._attachment.begin()
            self._attachment.notifier.add_legacy_client(ctx.session)
        return result

    def _add(self, method: str, params_type: type[BaseModel], call: Call) -> None:
        self._theirs[method] = self._server.get_request_handler(method)
        self._server.add_request_handler(method, params_type, _guarded(call))

    def _ours(self, handler: Handler, ready: Callable[[], Awaitable[None]] | None = None) -> Call:
        """A handler of ours, asked once the first scan is done, or once `ready` returns."""
        attachment = self._attachment

        async def call(ctx: Context, _: Any) -> dict[str, Any]:
            await (ready or attachment.ready)()
            capabilities = ctx.session.client_capabilities
            declared = capabilities.extensions if capabilities is not None else None
            modern = ctx.protocol_version in MODERN_PROTOCOL_VERSIONS
            connection = None if modern else ctx.session._connection  # pyright: ignore[reportPrivateUsage]
            client = ctx.session.client_params
            caller = Caller(
                modern,
                bool(declared) and sep2640.EXTENSION in declared,
                partial(self._served, ctx),
                owner=bearer(_scope(ctx)),
                counted=counted(_scope(ctx)),
                connection=connection,
                progress=partial(_report, ctx),
                audience=self if modern and ctx.request is None else connection,
                client=None if client is None else client.client_info.name,
            )
            return await handler(attachment.registry, attachment.settings, caller, ctx.params or {})

        return call

    def _routed(self, method: str, ours: Call, is_ours: Callable[[Context, Any], Awaitable[bool]]) -> Call:
        """Ours where it is about a skill, or where the server has nothing of its own."""

        async def call(ctx: Context, params: Any) -> Any:
            theirs = self._theirs[method]
            if theirs is None:
                return await ours(ctx, params)
            await self._attachment.ready()
            return await (ours if await is_ours(ctx, params) else theirs.handler)(ctx, params)

        return call

    def _joined(self, method: str, key: str, ours: Call) -> Call:
        """Their pages first, then ours; a cursor of theirs travels inside one of ours."""

        async def call(ctx: Context, params: types.PaginatedRequestParams) -> Any:
            theirs = self._theirs[method]
            if theirs is None or (params.cursor is not None and cursors.decode(params.cursor)[0] != _THEIRS):
                return await ours(ctx, params)
            inner = None if params.cursor is None else cursors.decode(params.cursor)[1]
            page = _as_dict(await theirs.handler(ctx, params.model_copy(update={"cursor": inner})))
            more = page.pop("nextCursor", None)
            if more is not None:
                return page | {"nextCursor": cursors.encode(_THEIRS, str(more)), "cacheScope": "private"}
            mine = await ours(replace(ctx, params={}), params)
            taken = await self._names(ctx, method, key, "name") if key in {"tools", "prompts"} else frozenset[str]()
            both = [*page[key], *(each for each in mine[key] if each["name"] not in taken)]
            return page | mine | {key: both, "ttlMs": min(page.get("ttlMs", 0), mine["ttlMs"])}

        return call

    # What is about a skill and what is the server's own. A tool or prompt of the server's own making goes first.

    async def _by_uri(self, _: Context, params: Any) -> bool:
        return handlers.is_served(self._attachment.registry, self._attachment.settings, params.uri)

    async def _is_our_tool(self, ctx: Context, params: Any) -> bool:
        return runtime.canonical(params.name) is not None and params.name not in await self._names(ctx, *_TOOLS)

    async def _is_our_prompt(self, ctx: Context, params: Any) -> bool:
        attachment = self._attachment
        if not attachment.settings.prompts:
            return False
        ours = prompts.is_our_prompt(attachment.registry, attachment.settings, params.name)
        return ours and params.name not in await self._names(ctx, *_PROMPTS)

    async def _is_our_reference(self, ctx: Context, params: Any) -> bool:
        if prompts.is_prompt(params.ref):
            return await self._is_our_prompt(ctx, params.ref)
        return handlers.is_our_template(params.ref)

    async def _subscribe(self, ctx: Context, params: types.SubscribeRequestParams) -> types.EmptyResult:
        await self._attachment.ready()
        canonical = handlers.canonical(self._attachment.registry, self._attachment.settings, params.uri)
        if canonical is None:
            raise NotServedError(params.uri)
        self._attachment.notifier.watch(ctx.session, canonical, counted(_scope(ctx)))
        return types.EmptyResult()

    async def _unsubscribe(self, ctx: Context, params: types.UnsubscribeRequestParams) -> types.EmptyResult:
        canonical = handlers.canonical(self._attachment.registry, self._attachment.settings, params.uri)
        self._attachment.notifier.unwatch(ctx.session, params.uri if canonical is None else canonical)
        return types.EmptyResult()

    async def _listen(self, ctx: Context, params: types.SubscriptionsListenRequestParams) -> Any:
        theirs = self._theirs["subscriptions/listen"]
        if theirs is not None and not self._attachment.notifier.relays and not _is_about_skills(params.notifications):
            return await theirs.handler(ctx, params)  # a handler of their own making, whose events we cannot relay
        # Acknowledged after the first scan, so that whatever changes after the acknowledgement is told.
        await self._attachment.ready()
        return await self._attachment.notifier.listen(ctx, params, counted(_scope(ctx)))

    def _relay(self, event: ServerEvent) -> None:
        notification = event_to_notification(event, {})
        uri = event.uri if isinstance(event, ResourceUpdated) else None
        self._attachment.notifier.relay((notification.method, uri))

    async def _served(self, ctx: Context) -> Served:
        """What the server has beside skills, by name (S76-9...11)."""
        attachment = self._attachment
        tools, names = await self._names(ctx, *_TOOLS), await self._names(ctx, *_PROMPTS)
        if attachment.settings.tools:
            tools |= {str(each["name"]) for each in attachment.tools.definitions()}
        return Served(
            tools=tools,
            prompts=prompts.Names(attachment.registry, attachment.settings, names)
            if attachment.settings.prompts
            else names,
            resources=await self._names(ctx, "resources/list", "resources", "uri")
            | await self._names(ctx, "resources/templates/list", "resourceTemplates", "uriTemplate"),
        )

    async def _names(self, ctx: Context, method: str, key: str, field: str) -> frozenset[str]:
        entry = self._theirs[method] if method in self._theirs else self._server.get_request_handler(method)
        names: set[str] = set()
        if entry is None:
            return frozenset()
        cursor: str | None = None
        for _ in range(_MOST_PAGES):
            page = _as_dict(await entry.handler(ctx, types.PaginatedRequestParams(cursor=cursor)))
            names |= {str(each[field]) for each in page.get(key, [])}
            cursor = page.get("nextCursor")
            if cursor is None:
                break
        return frozenset(names)


async def _complete(registry: Registry, settings: Settings, caller: Caller, params: Params) -> dict[str, Any]:
    of_prompt = settings.prompts and params["ref"].get("type") == "ref/prompt"
    return await (prompts.complete_argument if of_prompt else handlers.complete)(registry, settings, caller, params)


def _scope(ctx: Context) -> Mapping[str, Any]:
    """The ASGI scope of a request, empty where it came over a pipe."""
    return getattr(ctx.request, "scope", {})


async def _report(ctx: Context, seconds: float) -> None:
    await ctx.session.report_progress(seconds, None, f"running for {seconds:.0f} s")


def _is_about_skills(wanted: types.SubscriptionFilter) -> bool:
    uris = wanted.resource_subscriptions or ()
    asked = wanted.resources_list_changed or (wanted.model_extra or {}).get("skillsListChanged")
    return bool(asked) or any(uri.startswith(SCHEME) for uri in uris)


def _as_dict(result: Any) -> dict[str, Any]:
    if isinstance(result, BaseModel):
        return result.model_dump(by_alias=True, mode="json", exclude_none=True)
    return dict(cast("Mapping[str, Any]", result))


def _declaring(result: dict[str, Any], settings: Settings, instructions: str | None) -> dict[str, Any]:
    """The result of a handshake with what the SDK's typed capabilities leave out (S76-1, S40-1, S40-4).

    The instructions of the server that we are attached to come first.
    """
    capabilities = dict(result.get("capabilities") or {})
    if settings.dialect != sep2640.NAME:
        capabilities |= sep2076.CAPABILITY
    if settings.dialect != sep2076.NAME:
        capabilities["extensions"] = {**(capabilities.get("extensions") or {}), sep2640.EXTENSION: sep2640.settings()}
    capabilities["resources"] = {**(capabilities.get("resources") or {}), "subscribe": True, "listChanged": True}
    for key in (*(("tools",) if settings.tools else ()), *(("prompts",) if settings.prompts else ())):
        capabilities[key] = {**(capabilities.get(key) or {}), "listChanged": True}
    said = "\n\n".join(filter(None, (result.get("instructions"), instructions)))
    return {**result, "capabilities": capabilities, **({"instructions": said} if said else {})}


def _guarded(call: Call) -> Call:
    """Errors become the protocol's: the client's fault by its code, a bug as -32603 without internals."""

    async def guarded(ctx: Context, params: Any) -> Any:
        try:
            return await call(ctx, params)
        except NotServedError as error:
            modern = ctx.protocol_version in MODERN_PROTOCOL_VERSIONS
            code = types.INVALID_PARAMS if modern else _LEGACY_NOT_FOUND
            raise MCPError(code=code, message=str(error), data={"uri": error.uri}) from None
        except RequestError as error:
            raise MCPError(code=types.INVALID_PARAMS, message=str(error)) from None
        except MCPError:
            raise
        except Exception:
            logger.exception("%s failed", ctx.method, extra=REPEATS)
            raise MCPError(code=types.INTERNAL_ERROR, message="Internal error") from None

    return guarded
