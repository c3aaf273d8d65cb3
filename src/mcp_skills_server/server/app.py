"""The MCP shell: puts the handlers into an SDK server and runs it.

This room and `notify.py` are the only ones that know the SDK. `attach` gives any lowlevel `Server` a folder of
skills; `serve_stdio` is our own server over it.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any, Final, TypeAlias, cast

import anyio
import mcp_types as types
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import BaseModel

import mcp_skills_server
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.watch import Watcher
from mcp_skills_server.dialects import sep2076, sep2640
from mcp_skills_server.errors import NotServed, RequestError
from mcp_skills_server.model import Changes
from mcp_skills_server.server import handlers
from mcp_skills_server.server.handlers import Caller, Params, Settings
from mcp_skills_server.server.notify import Notifier

logger = logging.getLogger(__name__)

_LEGACY_NOT_FOUND: Final = -32002
_NAME: Final = "mcp-skills-server"
_ENDING_S: Final = 0.5

Context: TypeAlias = ServerRequestContext[Any, Any]
Handler: TypeAlias = Callable[[Registry, Settings, Caller, Params], Awaitable[dict[str, Any]]]

_METHODS: Final[tuple[tuple[str, type[BaseModel], Handler], ...]] = (
    ("skills/list", types.RequestParams, handlers.list_skills),
    ("skills/get", types.RequestParams, handlers.get_skill),
    ("resources/list", types.PaginatedRequestParams, handlers.list_resources),
    ("resources/templates/list", types.PaginatedRequestParams, handlers.list_templates),
    ("resources/read", types.ReadResourceRequestParams, handlers.read_resource),
    ("resources/directory/read", types.RequestParams, handlers.read_directory),
    ("completion/complete", types.CompleteRequestParams, handlers.complete),
)


class Attachment:
    """A registry attached to a server: what `attach` returns.

    Entered with the server's own lifespan. The first scan begins when a client has its answer to the handshake, so
    that a large folder does not delay it; the first question about skills waits for the scan.
    """

    def __init__(self, registry: Registry, settings: Settings, watcher: Watcher | None) -> None:
        self.registry = registry
        self.settings = settings
        self.notifier = Notifier()
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
            soon(self._ready.set)

        self.registry.subscribe(lambda changes: soon(self._publish, changes))
        threading.Thread(target=loaded, name="skills-loaded", daemon=True).start()
        if self._watcher is not None:
            self._watcher.start()
        else:
            threading.Thread(target=self.registry.load, name="skills-load", daemon=True).start()

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

    def _publish(self, changes: Changes) -> None:
        # Nobody has seen anything before the first scan, so there is nothing to tell of it.
        if self._ready.is_set():
            self.notifier.publish(handlers.notices(changes, self.settings))


def attach(
    server: Server[Any], registry: Registry, settings: Settings | None = None, *, watcher: Watcher | None = None
) -> Attachment:
    """Give an SDK server the skills of a registry: methods, capabilities, notifications.

    Args:
        server: a lowlevel server, not yet running.
        registry: not yet loaded; the attachment loads it.
        settings: what the operator chose.
        watcher: keeps the registry current; None serves what the first scan found.
    """
    attachment = Attachment(registry, settings or Settings(), watcher)
    for method, params_type, handler in _METHODS:
        server.add_request_handler(method, params_type, _bound(attachment, handler))
    notifier = attachment.notifier

    async def subscribe(ctx: Context, params: types.SubscribeRequestParams) -> types.EmptyResult:
        await attachment.ready()
        if not handlers.is_served(registry, attachment.settings, params.uri):
            raise NotServed(params.uri)
        notifier.watch(ctx.session, params.uri)
        return types.EmptyResult()

    async def unsubscribe(ctx: Context, params: types.UnsubscribeRequestParams) -> types.EmptyResult:
        notifier.unwatch(ctx.session, params.uri)
        return types.EmptyResult()

    async def listen(ctx: Context, params: types.SubscriptionsListenRequestParams) -> types.SubscriptionsListenResult:
        attachment.begin()
        return await notifier.listen(ctx, params)

    server.add_request_handler("resources/subscribe", types.SubscribeRequestParams, _guarded(subscribe))
    server.add_request_handler("resources/unsubscribe", types.UnsubscribeRequestParams, _guarded(unsubscribe))
    server.add_request_handler("subscriptions/listen", types.SubscriptionsListenRequestParams, _guarded(listen))

    async def middleware(ctx: Context, call_next: CallNext) -> HandlerResult:
        result = await call_next(ctx)
        if ctx.method in {"initialize", "server/discover"} and isinstance(result, dict):
            return _declaring(result, attachment.settings)
        if ctx.method == "notifications/initialized":
            attachment.begin()
            notifier.welcome(ctx.session)
        return result

    server.middleware.append(middleware)
    inner = server.lifespan

    @asynccontextmanager
    async def lifespan(of: Server[Any]) -> AsyncGenerator[Any]:
        async with inner(of) as state, attachment.running():
            yield state

    server.lifespan = cast("Callable[[Server[Any]], AbstractAsyncContextManager[Any]]", lifespan)
    return attachment


def _declaring(result: dict[str, Any], settings: Settings) -> dict[str, Any]:
    """The result of a handshake with what the SDK's typed capabilities leave out (S76-1, S40-1, S40-4)."""
    capabilities = dict(result.get("capabilities") or {})
    if settings.dialect != sep2640.NAME:
        capabilities |= sep2076.CAPABILITY
    if settings.dialect != sep2076.NAME:
        capabilities["extensions"] = {**(capabilities.get("extensions") or {}), sep2640.EXTENSION: sep2640.settings()}
    capabilities["resources"] = {**(capabilities.get("resources") or {}), "subscribe": True, "listChanged": True}
    return {**result, "capabilities": capabilities}


def _bound(attachment: Attachment, handler: Handler) -> Callable[[Context, Any], Awaitable[dict[str, Any]]]:
    async def call(ctx: Context, _: Any) -> dict[str, Any]:
        await attachment.ready()
        return await handler(attachment.registry, attachment.settings, _caller(ctx), ctx.params or {})

    return _guarded(call)


def _caller(ctx: Context) -> Caller:
    capabilities = ctx.session.client_capabilities
    declared = capabilities.extensions if capabilities is not None else None
    return Caller(ctx.protocol_version in MODERN_PROTOCOL_VERSIONS, bool(declared) and sep2640.EXTENSION in declared)


def _guarded(call: Callable[[Context, Any], Awaitable[Any]]) -> Callable[[Context, Any], Awaitable[Any]]:
    """Errors become the protocol's: the client's fault by its code, a bug as -32603 without internals."""

    async def guarded(ctx: Context, params: Any) -> Any:
        try:
            return await call(ctx, params)
        except NotServed as error:
            modern = ctx.protocol_version in MODERN_PROTOCOL_VERSIONS
            code = types.INVALID_PARAMS if modern else _LEGACY_NOT_FOUND
            raise MCPError(code=code, message=str(error), data={"uri": error.uri}) from None
        except RequestError as error:
            raise MCPError(code=types.INVALID_PARAMS, message=str(error)) from None
        except MCPError:
            raise
        except Exception:
            logger.exception("%s failed", ctx.method)
            raise MCPError(code=types.INTERNAL_ERROR, message="Internal error") from None

    return guarded


def make_server() -> Server[Any]:
    """Our own server, with nothing attached yet."""
    return Server(
        _NAME,
        version=mcp_skills_server.__version__,
        title="Agent Skills",
        instructions="This server serves Agent Skills. List them with skills/list, fetch one with skills/get, and read "
        "its files with resources/read.",
    )


async def serve_stdio(registry: Registry, settings: Settings, watcher: Watcher | None) -> None:
    """Serve one client over stdin and stdout until stdin closes or SIGTERM or SIGINT arrives."""
    server = make_server()
    attachment = attach(server, registry, settings, watcher=watcher)
    if sys.platform == "win32":
        async with stdio_server() as (read_stream, write_stream):
            await server.run(read_stream, write_stream, server.create_initialization_options())
        return

    from mcp_skills_server.server.stdio import Pipes

    pipes = Pipes(at_end=attachment.notifier.close)
    async with anyio.create_task_group() as tasks:

        async def end_on_signal() -> None:
            with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
                async for _ in signals:
                    attachment.notifier.close()
                    await pipes.settle(_ENDING_S)
                    tasks.cancel_scope.cancel()
                    return

        tasks.start_soon(end_on_signal)
        stream = cast("anyio.AsyncFile[str]", pipes)
        async with stdio_server(stdin=stream, stdout=stream) as (read_stream, write_stream):
            await server.run(read_stream, write_stream, server.create_initialization_options())
        tasks.cancel_scope.cancel()
