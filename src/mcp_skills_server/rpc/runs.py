"""How a run is named, and told where it was not begun. Nothing that runs is imported here."""

from __future__ import annotations

import secrets
from typing import Final

from mcp_skills_server.dialects.skills_protocol import Run

MAX_SUMMARY: Final = 200
"""Characters of a summary."""


def new_run_id() -> str:
    """Names a run."""
    return f"run_{secrets.token_hex(8)}"


def failed(kind: str, message: str) -> Run:
    """A run that was not begun (SP-20, X-27)."""
    return Run(new_run_id(), message[:MAX_SUMMARY], error=(kind, message))
