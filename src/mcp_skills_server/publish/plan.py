"""What a run of `publish` is about to do, and which places of an output folder can be this program's."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from mcp_skills_server.dialects.wellknown import DIRECTORY, DIRECTORY_0_1, INDEX
from mcp_skills_server.model import printable
from mcp_skills_server.publish.edition import Item
from mcp_skills_server.publish.folder import above
from mcp_skills_server.publish.record import Record

HEADERS: Final = "_headers"
PLACES: Final = (DIRECTORY[1:], DIRECTORY_0_1[1:])
"""The folders in which every file of ours lies, but for the headers."""
FOLDERS: Final = (PLACES[0].partition("/")[0], *(place.rstrip("/") for place in PLACES))
"""These folders and the one that they lie in."""
INDEXES: Final = frozenset(place + INDEX for place in PLACES)
_ARTIFACT: Final = re.compile(re.escape(DIRECTORY[1:]) + r"[^/]+/[0-9a-f]{64}/[^/]+")


@dataclass(frozen=True, slots=True)
class Difference:
    """One file that is not as it would be published.

    Attributes:
        path: in the output folder.
        state: "missing", "different" or "left over".
    """

    path: str
    state: str

    def __str__(self) -> str:
        return printable(f"{self.path}: {self.state}")


@dataclass(slots=True)
class Plan:
    """What is to be done.

    Attributes:
        differences: all that is not as it should be.
        put: files to write, the indexes last.
        stale: files of ours to delete once no index names them.
        early: the same, where a folder must be in the place of a file, or a file in that of a folder.
        record: what to write down afterwards.
    """

    differences: list[Difference] = field(default_factory=list["Difference"])
    put: list[Item] = field(default_factory=list[Item])
    stale: list[str] = field(default_factory=list[str])
    early: list[str] = field(default_factory=list[str])
    record: Record = field(default_factory=Record)


def is_place(path: str) -> bool:
    """Whether this program could have written a file there, whatever a record says."""
    return path == HEADERS or (path.startswith(PLACES) and not {"", ".", ".."} & {*path.split("/")})


def in_the_way(gone: set[str], ours: Iterable[str]) -> tuple[list[str], frozenset[str]]:
    """The files of `gone` that must go before those of `ours` can be put, and the paths that change between file and
    folder.
    """
    if not gone:
        return [], frozenset()
    files = frozenset(ours)
    ordered = sorted(files)
    early: list[str] = []
    changed: set[str] = set()
    for path in gone:
        found = files.intersection(above(path))
        position = bisect_left(ordered, f"{path}/")
        if position < len(ordered) and ordered[position].startswith(f"{path}/"):
            found |= {path}
        changed |= found
        if found:
            early.append(path)
    return early, frozenset(changed)


def is_artifact(path: str) -> bool:
    """Whether this is the place of an artifact."""
    return _ARTIFACT.fullmatch(path) is not None


def owner_of(path: str) -> str:
    """The name of the skill that a file in our folders belongs to, "" for an index and for the headers."""
    parts = path.split("/")
    return parts[2] if len(parts) > 3 else ""
