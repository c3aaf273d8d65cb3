"""The variables that files of the project set for the server."""

from __future__ import annotations

import re

from mcp_skills_server.commands.serve import serve
from wire import ROOT


def known() -> set[str]:
    """Those that `serve` reads."""
    return {f"MCP_SKILLS_{each.name.upper()}" for each in serve.params if each.name}


def used(name: str) -> set[str]:
    """Those that a file names."""
    return set(re.findall(r"MCP_SKILLS_[A-Z_]*[A-Z]", (ROOT / name).read_text(encoding="utf-8")))
