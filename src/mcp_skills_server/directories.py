"""Where the user's system keeps what programs write for themselves."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_NAME = "mcp-skills-server"


def cache_directory() -> Path:
    """For what can be had again, such as copies of sites. It may not be there yet."""
    place = _plain("XDG_CACHE_HOME", ".cache")
    if place is not None:
        return place
    from platformdirs import user_cache_path

    return _at_home(user_cache_path, ".cache")


def state_directory() -> Path:
    """For what must stay and is nobody's document, such as approvals. It may not be there yet."""
    place = _plain("XDG_STATE_HOME", ".local/state")
    if place is not None:
        return place
    from platformdirs import user_state_path

    return _at_home(user_state_path, ".local/state")


def _at_home(said: Callable[..., Path], usual: str) -> Path:
    """What platformdirs says. Who has no home, such as a number without a name in a container, has the root."""
    try:
        return said(_NAME, appauthor=False)
    except RuntimeError:
        return Path("/", usual, _NAME)


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
