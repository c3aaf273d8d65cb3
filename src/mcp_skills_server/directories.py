"""Where the user's system keeps what programs write for themselves."""

from __future__ import annotations

import os
import sys
from pathlib import Path

_NAME = "mcp-skills-server"


def cache_directory() -> Path:
    """For what can be had again, such as copies of sites. It may not be there yet."""
    place = _plain("XDG_CACHE_HOME", ".cache")
    if place is not None:
        return place
    from platformdirs import user_cache_path

    return user_cache_path(_NAME, appauthor=False)


def state_directory() -> Path:
    """For what must stay and is nobody's document, such as approvals. It may not be there yet."""
    place = _plain("XDG_STATE_HOME", ".local/state")
    if place is not None:
        return place
    from platformdirs import user_state_path

    return user_state_path(_NAME, appauthor=False)


def _plain(variable: str, usual: str) -> Path | None:
    """What platformdirs says on Linux where the environment leaves no doubt; else None.

    Every start asks, and platformdirs brings a dozen modules: 3 ms and 1 MB.
    """
    if sys.platform != "linux" or "ANDROID_DATA" in os.environ:
        return None
    place, home = os.environ.get(variable, ""), os.environ.get("HOME", "")
    if os.path.isabs(place):
        return Path(place, _NAME)
    return Path(home, usual, _NAME) if not place and os.path.isabs(home) else None
