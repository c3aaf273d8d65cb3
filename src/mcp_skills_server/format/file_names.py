"""File names that some platform cannot hold or tell apart, or that hold invisible characters."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple
from unicodedata import normalize

from mcp_skills_server.format import hidden
from mcp_skills_server.format.excerpts import excerpt

_NOT_ON_WINDOWS: Final = re.compile(r"[<>:\"|?*\x00-\x1f]|[ .]\Z")
_RESERVED: Final = re.compile(r"(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\.|\Z)", re.IGNORECASE)


class NameFault(NamedTuple):
    """A fault of a file name: an invisible character, or a name that is not portable."""

    path: str
    message: str
    is_hidden: bool = False


def folded(path: str) -> str:
    """Return a form that is equal for paths that some platform cannot tell apart."""
    return normalize("NFC", path).casefold()


def faults(paths: Iterable[str]) -> Iterator[NameFault]:
    """Yield the faults of these paths: invisible characters, unportable names and collisions."""
    seen: dict[str, str] = {}
    for path in paths:
        for segment in path.split("/"):
            unseen = next(hidden.find(f"/{segment}"), None)  # no byte order mark begins a name
            if unseen is not None:
                character = f"the invisible character U+{ord(unseen[1]):04X}"
                message = f"the name {excerpt(segment)} holds {character}"
                yield NameFault(path, message, is_hidden=True)
            elif _NOT_ON_WINDOWS.search(segment) or _RESERVED.match(segment):
                yield NameFault(path, f"Windows cannot hold the name {excerpt(segment)}")
        other = seen.setdefault(folded(path), path)
        if other != path:
            yield NameFault(path, f"many platforms cannot tell it from {excerpt(other)}")
