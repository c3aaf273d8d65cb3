"""Where the skills of a folder were fetched from: `fetch` leaves a record beside each.

A record that is there and cannot be read makes a skill one of unknown origin, never a local one.
"""

from __future__ import annotations

import json
import os
import stat
from typing import Any, Final

from mcp_skills_server.dialects.wellknown import DIRECTORY
from mcp_skills_server.format.ignored import OURS
from mcp_skills_server.format.uris import bare

UNKNOWN: Final = "an unknown site"
"""The origin of a skill whose record cannot be read."""
RECORDS: Final = f"{OURS}/skills"
"""Where, in a folder of fetched skills, the record of each lies: `NAME.json`."""
_INDEX: Final = f"{DIRECTORY}index.json"
_MOST_BYTES: Final = 16 << 20
_FLAGS: Final[int] = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


class Origins:
    """The origins of a root's skills, for one scan.

    Args:
        root_path: the root, absolute.
        origin: what all of it comes from, None for a folder.
    """

    def __init__(self, root_path: str, origin: str | None) -> None:
        self._root = root_path
        self._origin = origin
        self._known: dict[str, str | None] = {}
        self._has_records: dict[str, bool] = {}

    def of(self, directory: str) -> str | None:
        """The origin of what lies in a directory below the root, None if nothing says that it was fetched."""
        if self._origin is not None:
            return self._origin
        if directory not in self._known:
            if directory:
                parent, _, name = directory.rpartition("/")
                place = os.path.join(self._root, parent) if parent else self._root
                found = self._recorded(place, name) or self.of(parent)
            else:
                found = self._of_root()
            self._known[directory] = found
        return self._known[directory]

    def _of_root(self) -> str | None:
        """A root may itself be a fetched skill, or lie in one."""
        place = self._root
        while (above := os.path.dirname(place)) != place:
            found = self._recorded(above, os.path.basename(place))
            if found is not None:
                return found
            place = above
        return None

    def _recorded(self, place: str, name: str) -> str | None:
        if place not in self._has_records:
            self._has_records[place] = _is_there(os.path.join(place, RECORDS))
        return _source(os.path.join(place, RECORDS, f"{name}.json")) if self._has_records[place] else None


def _is_there(path: str) -> bool:
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def _source(path: str) -> str | None:
    try:
        descriptor = os.open(path, _FLAGS)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        return UNKNOWN
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return UNKNOWN
        with os.fdopen(os.dup(descriptor), "rb") as file:
            told: dict[str, Any] = json.loads(file.read(_MOST_BYTES))
        source = bare(told["source"]).removesuffix(_INDEX).rstrip("/")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return UNKNOWN
    finally:
        os.close(descriptor)
    return source if source.isprintable() and source else UNKNOWN
