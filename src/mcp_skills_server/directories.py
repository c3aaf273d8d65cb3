"""The user's directories for caches and state, as the operating system has them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_NAME: Final = "mcp-skills-server"


def cache_directory() -> Path:
    """Return the directory for what can be had again, such as the index. It may not exist yet."""
    from platformdirs import user_cache_path

    try:
        return user_cache_path(_NAME, appauthor=False)
    except RuntimeError:  # a user without a home, such as a number without a name in a container
        return Path("/.cache", _NAME)


def state_directory() -> Path:
    """Return the directory for what must stay, such as approvals. It may not exist yet."""
    from platformdirs import user_state_path

    try:
        return user_state_path(_NAME, appauthor=False)
    except RuntimeError:
        return Path("/.local/state", _NAME)
