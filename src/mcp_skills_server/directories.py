"""The user's cache and state directories by the operating system's convention."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_NAME: Final = "mcp-skills-server"


def cache_directory() -> Path:
    """Return the directory for reproducible data, such as the index; it may not exist yet."""
    from platformdirs import user_cache_path

    try:
        return user_cache_path(_NAME, appauthor=False)
    except RuntimeError:  # a user without a home, such as a bare uid in a container
        return Path("/.cache", _NAME)


def state_directory() -> Path:
    """Return the directory for lasting data, such as approvals; it may not exist yet."""
    from platformdirs import user_state_path

    try:
        return user_state_path(_NAME, appauthor=False)
    except RuntimeError:
        return Path("/.local/state", _NAME)
