"""Our own server over the SDK."""

from __future__ import annotations

from typing import Any, Final

from mcp.server.lowlevel.server import Server

import mcp_skills_server

_NAME: Final = "mcp-skills-server"


def make_server() -> Server[Any]:
    """Our own server, with nothing attached yet."""
    return Server(
        _NAME,
        version=mcp_skills_server.__version__,
        title="Agent Skills",
    )
