"""Where the user's system keeps what programs write for themselves."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from platformdirs import user_cache_path, user_state_path

_NAME = "mcp-skills-server"


def cache_directory() -> Path:
    """For what can be had again, such as copies of sites. It may not be there yet."""
    return user_cache_path(_NAME, appauthor=False)


def state_directory() -> Path:
    """For what must stay and is nobody's document, such as approvals. It may not be there yet."""
    return user_state_path(_NAME, appauthor=False)


def not_private(found: os.stat_result) -> str | None:
    """Why another user may have put there what was found, None where nobody else can write it."""
    if not hasattr(os, "geteuid"):
        return None  # the user's profile has a list of its own of who may write
    if found.st_uid != os.geteuid():
        return "it belongs to another user"
    return "others may write it" if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) else None
