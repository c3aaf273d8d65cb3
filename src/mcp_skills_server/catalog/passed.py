"""What a scan passed over for the dot that begins a folder's name, counted for the operator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from mcp_skills_server.catalog import tree
from mcp_skills_server.catalog.registry import Registry

_MOST_NAMES: Final = 20_000
"""Names that are looked at below one root: some hundredths of a second."""
_NAMED: Final = 5


@dataclass(frozen=True, slots=True)
class PassedOver:
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
        """The same for programs."""
        return {"root": self.root, "skills": self.skills, "folders": list(self.folders), "complete": self.whole}


def passed_over(registry: Registry) -> list[PassedOver]:
    """The skills that `Limits.hidden` would add, by root. Looks at names alone, and at a bounded number of them."""
    out: list[PassedOver] = []
    for root in registry.roots:
        left, skills = _MOST_NAMES, 0
        folders: list[str] = []
        for location in registry.dot_folders(root):
            if left <= 0:
                break
            count, names = tree.count_skills(root.path, location, most_names=left)
            left -= names
            if count:
                skills += count
                folders.append(location)
        if skills:
            out.append(PassedOver(root.shown, skills, tuple(folders), left > 0))
    return out
