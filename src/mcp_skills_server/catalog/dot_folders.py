"""Count the skills that are passed over, in dot folders or in no plugin, for the operator."""

from __future__ import annotations

import os
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

_MOST_FOLDERS: Final = 5_000
"""Folders that are searched below one root: about a tenth of a second."""
_NAMED: Final = 5
DOT_FOLDER: Final = "dot-folder"


class PassedOver(NamedTuple):
    """Skills of one root, as the operator wrote it, that lie in these folders and are not served.

    Unless `complete`, not all dot folders were searched, and `skills` is a lower bound. The skills
    in no plugin are problems, too.
    """

    root: str
    skills: int
    folders: tuple[str, ...]
    complete: bool = True
    reason: str = DOT_FOLDER

    def __str__(self) -> str:
        count = ("" if self.complete else "at least ") + plural(self.skills, "skill")
        named = listed(self.folders, _NAMED)
        return (
            f"{self.root}: {count} in folders whose names begin with a dot: {named}; name one as "
            "root, or give --hidden"
        )


def passed_over(registry: Registry) -> list[PassedOver]:
    """Return the skills in dot folders, from a bounded scan, and those in no plugin, by root."""
    out: list[PassedOver] = []
    for root in registry.roots:
        left, found = _MOST_FOLDERS, dict[str, int]()
        for location in registry.dot_folders(root):
            holding = [SKILL_MD in here.files for here in islice(_folders(root, location), left)]
            left -= len(holding)
            if any(holding):
                found[location] = sum(holding)
        if found:
            out.append(PassedOver(root.shown, sum(found.values()), tuple(found), left > 0))
        problems = registry.of_root(root).problems
        unlisted = tuple(
            os.path.relpath(each.path, root.shown).replace(os.sep, "/")
            for each in problems
            if each.code == "plugin-unlisted"
        )
        if unlisted:
            out.append(PassedOver(root.shown, len(unlisted), unlisted, reason="no-plugin"))
    return out


def _folders(root: Root, location: str) -> Iterator[tree.Directory]:
    """Yield the folder at a root-relative path and those below it."""

    def below(here: tree.Directory) -> Iterator[tree.Directory]:
        yield here
        for inner in here.directories:
            yield from below(inner)

    with suppress(OSError), open_directory(root.path, location) as handle:
        depth = tree.MOST_LEVELS - levels(location)
        found = tree.Walk(root.index, 1, hidden=True).read_directory(handle, location, depth)
        if found is not None:
            yield from below(found)
