"""The floor: the SDK's lowlevel server over stdio, with constant results.

`python -m bench.floor FILE`. FILE is JSON: method -> result. A server on this SDK cannot cost less.
"""

from __future__ import annotations

import json
import sys
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


if __name__ == "__main__":
    anyio.run(serve_stdio, make_server(json.loads(Path(sys.argv[1]).read_bytes())))
