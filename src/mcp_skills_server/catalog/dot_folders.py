"""Count the skills in dot folders, which no scan enters by default, for the operator."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import Final, NamedTuple

from mcp_skills_server.catalog import tree
from mcp_skills_server.catalog.disk import open_directory
from mcp_skills_server.catalog.path_map import levels
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.roots import Root
from mcp_skills_server.errors import listed, plural
from mcp_skills_server.model import SKILL_MD

_MAX_FOLDERS: Final = 5_000
"""Folders that are searched below one root: about a tenth of a second."""
_MAX_NAMED: Final = 5


class PassedOver(NamedTuple):
    """Skills of one root, as the operator wrote it, that lie in these folders and are not served.

    Unless `complete`, not all folders were searched, and `skills` is a lower bound.
    """

    root: str
    skills: int
    folders: tuple[str, ...]
    complete: bool = True
    reason: str = "dot-folder"

    def __str__(self) -> str:
        count = ("" if self.complete else "at least ") + plural(self.skills, "skill")
        named = listed(self.folders, _MAX_NAMED)
        return (
            f"{self.root}: {count} in folders whose names begin with a dot: {named}; name one as "
            "root, or give --hidden"
        )


def passed_over(registry: Registry) -> list[PassedOver]:
    """Return the skills that `Limits.hidden` would add, by root, from a bounded scan."""
    out: list[PassedOver] = []
    for root in registry.roots:
        budget, counts = _MAX_FOLDERS, dict[str, int]()
        for location in registry.dot_folders(root):
            folders = list(islice(_folders(root, location), budget))
            budget -= len(folders)
            count = sum(SKILL_MD in folder.files for folder in folders)
            if count:
                counts[location] = count
        if counts:
            out.append(PassedOver(root.shown, sum(counts.values()), tuple(counts), budget > 0))
    return out


def _folders(root: Root, location: str) -> Iterator[tree.Directory]:
    """Yield the folder at a root-relative path and those below it."""

    def below(here: tree.Directory) -> Iterator[tree.Directory]:
        yield here
        for inner in here.directories:
            yield from below(inner)

    with suppress(OSError), open_directory(root.path, location) as handle:
        depth = tree.MAX_LEVELS - levels(location)
        # few files: only SKILL.md counts here, and a walk always keeps it
        top = tree.Walk(most_files=1, hidden=True).read_directory(handle, location, depth)
        if top is not None:
            yield from below(top)
