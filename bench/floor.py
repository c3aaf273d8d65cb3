"""The floor: the same SDK's lowlevel server over its own stdio transport, answering constants.

`python -m bench.floor [FILE]`. FILE is JSON: method -> result, for `skills/list`, `skills/get uri`, `skills/get name`
and `resources/read`. Whatever our server costs beyond this is ours.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.server.stdio import stdio_server


def make_server(constants: dict[str, Any]) -> Server[Any]:
    """A server that answers each method with its constant."""
    server: Server[Any] = Server("mcp-skills-server", version="0", title="Agent Skills")

    async def list_skills(_ctx: ServerRequestContext[Any, Any], _params: types.RequestParams) -> dict[str, Any]:
        return constants["skills/list"]

    async def get_skill(ctx: ServerRequestContext[Any, Any], _params: types.RequestParams) -> dict[str, Any]:
        return constants["skills/get uri" if "uri" in (ctx.params or {}) else "skills/get name"]

    async def read(_ctx: ServerRequestContext[Any, Any], _params: types.ReadResourceRequestParams) -> dict[str, Any]:
        return constants["resources/read"]

    server.add_request_handler("skills/list", types.RequestParams, list_skills)
    server.add_request_handler("skills/get", types.RequestParams, get_skill)
    server.add_request_handler("resources/read", types.ReadResourceRequestParams, read)
    return server


async def serve(constants: dict[str, Any]) -> None:
    """Serve one client until stdin closes."""
    server = make_server(constants)
    async with stdio_server() as (read_stream, write_stream):
        await server.run(read_stream, write_stream, server.create_initialization_options())


if __name__ == "__main__":
    given: dict[str, Any] = json.loads(Path(sys.argv[1]).read_bytes()) if len(sys.argv) > 1 else {}
    anyio.run(serve, given)
