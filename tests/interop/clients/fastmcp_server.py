"""A FastMCP server over stdio with its own resource and the skills of a folder.

Run it with the interpreter of a virtual environment that has both packages. Argument: the folder.
"""

from __future__ import annotations

import sys

from fastmcp import FastMCP

from mcp_skills_server import Registry, attach

server = FastMCP("host")


@server.resource("mine://greeting")
def greeting() -> str:
    """A greeting."""
    return "hello"


if __name__ == "__main__":
    attach(server, Registry([sys.argv[1]]))
    server.run(transport="stdio", show_banner=False)
