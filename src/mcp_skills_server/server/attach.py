"""Gives an MCP server of the Python SDK, or of FastMCP, the skills of a registry.

What the server already has stays: its handlers are asked for what is not a skill, and its lists are joined with ours.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast
from weakref import WeakSet

from mcp.server.lowlevel.server import Server

from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.views import Views
from mcp_skills_server.catalog.watch import Watcher
from mcp_skills_server.errors import UsageError
from mcp_skills_server.runtime.runtime import Runtime
from mcp_skills_server.runtime.sessions import Sessions
from mcp_skills_server.server.attachment import Attachment
from mcp_skills_server.server.entrance import observed
from mcp_skills_server.server.merging import MergedHandlers
from mcp_skills_server.server.requests import Settings

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer

_INNER: Final = ("_lowlevel_server", "_mcp_server")
"""Where the SDK's `MCPServer` and FastMCP's `FastMCP` keep their lowlevel server; neither has a public name for it."""
_ATTACHED: Final = WeakSet[Server[Any]]()


def attach(
    server: Server[Any] | MCPServer[Any] | object,
    registry: Registry,
    settings: Settings | None = None,
    *,
    watch: Watcher | bool = True,
    runtime: Runtime | None = None,
    sessions: Callable[[Runtime], Sessions] = Sessions,
    views: Views | None = None,
) -> Attachment:
    """Give an MCP server the skills of a registry: methods, capabilities, notifications.

    Call it last, before the server runs: what the server has by then stays and is joined with the skills.

    Args:
        server: a lowlevel `Server` or an `MCPServer` of the Python SDK, or a `FastMCP` of the package fastmcp.
        registry: not yet loaded; it is loaded when the first client has shaken hands.
        settings: what the operator chose.
        watch: follow changes of the folders, as the given watcher does or by default; False serves the first scan.
        runtime: what the tools run on, with its limits and how scripts are run; by default no script is.
        sessions: makes what keeps the sessions of the tools; by default this process does.
        views: which skills each principal has; by default all.

    Raises:
        TypeError: the server is of another kind, or `registry` is no registry.
        UsageError: the server has skills already.
    """
    if not isinstance(cast("object", registry), Registry):
        raise TypeError(f"attach() takes a Registry; write attach(server, Registry([{registry!r}]))")
    lowlevel = _lowlevel(server)
    if lowlevel in _ATTACHED:
        raise UsageError("attach() was called for this server before; give one Registry all roots, and attach that")
    _ATTACHED.add(lowlevel)
    watcher = Watcher(registry) if watch is True else watch or None
    attachment = Attachment(registry, settings or Settings(), watcher, runtime, sessions=sessions, views=views)
    merged = MergedHandlers(lowlevel, attachment)
    merged.add_handlers()
    lowlevel.middleware.extend((partial(observed, attachment), merged.middleware))
    inner = lowlevel.lifespan

    @asynccontextmanager
    async def lifespan(of: Server[Any]) -> AsyncGenerator[Any]:
        async with inner(of) as state, attachment.running():
            yield state

    lowlevel.lifespan = cast("Callable[[Server[Any]], AbstractAsyncContextManager[Any]]", lifespan)
    return attachment


def _lowlevel(server: object) -> Server[Any]:
    for found in (server, *(getattr(server, name, None) for name in _INNER)):
        if isinstance(found, Server):
            return cast("Server[Any]", found)
    kind = type(server)
    raise TypeError(
        f"attach() takes no {kind.__module__}.{kind.__qualname__}; give it a Server or an MCPServer of the "
        "package mcp, version 2, or a FastMCP of the package fastmcp, version 4"
    )
