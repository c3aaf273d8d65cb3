"""Where the user's system keeps what programs write for themselves."""

from __future__ import annotations

from pathlib import Path

from platformdirs import user_cache_path, user_state_path

_NAME = "mcp-skills-server"


def cache_directory() -> Path:
    """For what can be had again, such as copies of sites. It may not be there yet."""
    return user_cache_path(_NAME, appauthor=False)


def state_directory() -> Path:
    """For what must stay and is nobody's document, such as approvals. It may not be there yet."""
    return user_state_path(_NAME, appauthor=False)
