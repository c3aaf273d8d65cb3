"""Skills in folders whose names begin with a dot, which no scan enters by default: counted for the operator."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any, Final, NamedTuple

from mcp_skills_server.catalog.disk import open_directory
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.tree import MOST_LEVELS
from mcp_skills_server.format.ignored import ENVIRONMENT, is_entered, is_ignored
from mcp_skills_server.model import SKILL_MD

_MOST_NAMES: Final = 20_000
"""Names that are looked at below one root: some hundredths of a second."""
_NAMED: Final = 5


class PassedOver(NamedTuple):
    """Skills of one root that lie in dot folders.

    Attributes:
        root: the root, as the operator wrote it.
        skills: how many there are at least.
        folders: the dot folders that hold them, from the root.
        whole: whether all names were looked at.
    """

    root: str
    skills: int
    folders: tuple[str, ...]
    whole: bool

    def __str__(self) -> str:
        count = f"{'' if self.whole else 'at least '}{self.skills}"
        lie = "skill lies in a folder" if count == "1" else "skills lie in folders"
        named = ", ".join(self.folders[:_NAMED])
        more = f" and {len(self.folders) - _NAMED} more" if len(self.folders) > _NAMED else ""
        whose = "whose name begins" if count == "1" else "whose names begin"
        return f"{self.root}: {count} {lie} {whose} with a dot: {named}{more}; name one as root, or give --hidden"

    def as_json(self) -> dict[str, Any]:
        """Return the same for programs."""
        return {"root": self.root, "skills": self.skills, "folders": list(self.folders), "complete": self.whole}


def passed_over(registry: Registry) -> list[PassedOver]:
    """Return the skills that `Limits.hidden` would add, by root. Looks at names alone, and at a bounded number of
    them.
    """
    out: list[PassedOver] = []
    for root in registry.roots:
        left, skills = _MOST_NAMES, 0
        folders: list[str] = []
        for location in registry.dot_folders(root):
            if left <= 0:
                break
            count, names = _count_skills(root.path, location, most_names=left)
            left -= names
            if count:
                skills += count
                folders.append(location)
        if skills:
            out.append(PassedOver(root.shown, skills, tuple(folders), left > 0))
    return out


def _count_skills(root_path: str, path: str, *, most_names: int) -> tuple[int, int]:
    """Return how many skills a walk that enters dot folders would find at or below a directory, by names alone.

    Returns the number of skills and of the names that were looked at. Those are at most `most_names`; when they are
    as many, the number of skills may be too small.
    """
    skills = names = 0
    todo = [(path, False)]
    while todo and names < most_names:
        place, inside = todo.pop()
        inner: list[str] = []
        dotted: list[str] = []
        found = is_environment = False
        with suppress(OSError), open_directory(root_path, place) as handle, os.scandir(handle) as entries:
            for entry in entries:
                names += 1
                if names >= most_names:
                    break
                name = entry.name
                with suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        if not is_ignored(name):
                            inner.append(name)
                        elif is_entered(name, hidden=True):
                            dotted.append(name)
                    elif name == ENVIRONMENT:
                        is_environment = True
                    elif name == SKILL_MD and entry.is_file(follow_symlinks=False):
                        found = True
        if is_environment:
            continue
        skills += found
        inside = inside or found
        if place.count("/") < MOST_LEVELS:
            todo += [(f"{place}/{name}", inside) for name in (inner if inside else inner + dotted)]
    return skills, names
