"""Skills in folders whose names begin with a dot, which no scan enters by default: counted for the operator."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final, NamedTuple

from mcp_skills_server.catalog import tree
from mcp_skills_server.catalog.disk import open_directory
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.roots import Root
from mcp_skills_server.model import SKILL_MD

_MOST_FOLDERS: Final = 5_000
"""Folders that are looked into below one root: about a tenth of a second."""
_NAMED: Final = 5


class PassedOver(NamedTuple):
    """Skills of one root that lie in dot folders.

    Attributes:
        root: the root, as the operator wrote it.
        skills: how many there are at least.
        folders: the dot folders that hold them, from the root.
        whole: whether all folders were looked into.
    """

    root: str
    skills: int
    folders: tuple[str, ...]
    whole: bool

    def __str__(self) -> str:
        count = f"{'' if self.whole else 'at least '}{self.skills}"
        lie = "skills lie in folders"
        if count == "1":
            lie = "skill lies in a folder"
        named = ", ".join(self.folders[:_NAMED])
        more = ""
        if len(self.folders) > _NAMED:
            more = f" and {len(self.folders) - _NAMED} more"
        whose = "whose names begin"
        if count == "1":
            whose = "whose name begins"
        return f"{self.root}: {count} {lie} {whose} with a dot: {named}{more}; name one as root, or give --hidden"

    def as_json(self) -> dict[str, Any]:
        """Return the same for programs."""
        return {"root": self.root, "skills": self.skills, "folders": list(self.folders), "complete": self.whole}


def passed_over(registry: Registry) -> list[PassedOver]:
    """Return the skills that `Limits.hidden` would add, by root, from a bounded number of folders."""
    out: list[PassedOver] = []
    for root in registry.roots:
        count = _Count(_MOST_FOLDERS)
        folders = [place for place in registry.dot_folders(root) if count.add(root, place)]
        if folders:
            out.append(PassedOver(root.shown, count.skills, tuple(folders), count.folders_left > 0))
    return out


class _Count:
    """A count of the skills in some dot folders.

    Args:
        folders_left: so many folders are looked into.
    """

    def __init__(self, folders_left: int) -> None:
        self.folders_left = folders_left
        self.skills = 0

    def add(self, root: Root, place: str) -> bool:
        """Count the skills of the folder at a place below a root; return whether there are any."""
        before = self.skills
        with suppress(OSError), open_directory(root.path, place) as handle:
            depth = tree.MOST_LEVELS - place.count("/") - 1
            self._visit(tree.Walk(root.index, 1, hidden=True).look(handle, place, depth))
        return self.skills > before

    def _visit(self, here: tree.Directory | None) -> None:
        if here is None:
            return
        self.folders_left -= 1
        self.skills += SKILL_MD in here.files
        for inner in here.directories if self.folders_left > 0 else ():
            self._visit(inner)
            if self.folders_left <= 0:
                break
