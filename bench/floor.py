"""The floor: the SDK's lowlevel server over its own transports, with constant results.

`python -m bench.floor FILE [PORT]`. FILE is JSON: method -> result. A server on this SDK cannot cost less.
"""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
from mcp.server.lowlevel.server import Server
from mcp.server.stdio import stdio_server


def make_server(constants: dict[str, Any]) -> Server[Any]:
    """Return a server with a constant result for each method."""
    server: Server[Any] = Server("mcp-skills-server", version="0", title="Agent Skills")

    def add(method: str, params_type: type[types.RequestParams]) -> None:
        async def answer(_context: Any, _params: Any) -> dict[str, Any]:
            return constants[method]

        server.add_request_handler(method, params_type, answer)

    add("skills/list", types.RequestParams)
    add("skills/get", types.RequestParams)
    add("resources/read", types.ReadResourceRequestParams)
    return server


async def serve_stdio(server: Server[Any]) -> None:
    async with stdio_server() as (read_stream, write_stream):
        await server.run(read_stream, write_stream, server.create_initialization_options())


def serve_http(server: Server[Any], port: int) -> None:
    """Serve over streamable HTTP, with the uvicorn settings of this server."""
    import socket

    import uvicorn
    from mcp.server.streamable_http_manager import StreamableHTTPASGIApp, StreamableHTTPSessionManager
    from starlette.applications import Starlette
    from starlette.routing import Route

    manager = StreamableHTTPSessionManager(app=server)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        async with manager.run():
            yield

    app = Starlette(routes=[Route("/mcp", StreamableHTTPASGIApp(manager))], lifespan=lifespan)
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # so that TCP_NODELAY gets set
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    config = uvicorn.Config(app, log_config=None, access_log=False, server_header=False, timeout_graceful_shutdown=1)
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    given = make_server(json.loads(Path(sys.argv[1]).read_bytes()))
    if len(sys.argv) > 2:
        serve_http(given, int(sys.argv[2]))
    else:
        anyio.run(serve_stdio, given)
