"""Names that are never part of a skill: one rule for what is served, packed, watched, fetched and
unpacked.

What is not served is not written either: it would go unseen, and programs act on such names by
themselves (`.git`, `.envrc`, `.vscode`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from mcp_skills_server.model import SKILL_MD, printable

FIRSTS: Final = frozenset(".~#n_4")
LASTS: Final = frozenset("~pox_")
"""What an ignored name begins or ends with: two look-ups spare most names the question."""
_IGNORED: Final = frozenset(("node_modules", "__pycache__", "4913"))
_ENDS: Final = ("~", ".swp", ".swo", ".swx", "___jb_tmp___", "___jb_old___")
_BEGINNINGS: Final = ("~$", "#")
PATTERNS: Final = (
    ".*",
    *sorted(_IGNORED),
    *(f"*{end}" for end in _ENDS),
    *(f"{begin}*" for begin in _BEGINNINGS),
)
"""The names for which `is_ignored` is true, as patterns of a shell."""
_NEVER_ENTERED: Final = frozenset(
    (".", "..", ".git", ".hg", ".svn", ".jj", ".venv", ".tox", ".nox", ".cache")
)
"""Dot folders that hold a program's own state, never a person's skills."""
ENVIRONMENT: Final = "pyvenv.cfg"
"""A folder that holds a file of this name is a Python environment: packages, and never a person's
skills."""
OURS: Final = ".mcp-skills"
"""How the names of the folders of `fetch` and `publish` begin: what they hold are copies, records
and locks."""
_SKILL_MD_FOLDED: Final = SKILL_MD.lower()
_NAMES_SHOWN: Final = 5
_LONGEST_SHOWN: Final = 60


def is_ignored(name: str) -> bool:
    """Tell whether a file or directory of this name is never served, listed, hashed, packed,
    watched or fetched."""
    return (
        name[0] == "." or name in _IGNORED or name.endswith(_ENDS) or name.startswith(_BEGINNINGS)
    )


def is_entered(name: str, *, hidden: bool) -> bool:
    """Tell whether a walk outside of skills enters a directory of this name; `hidden` admits dot
    folders of people.

    Inside a skill nothing changes: what `is_ignored` names is never part of it.
    """
    return not is_ignored(name) or (
        hidden and name[0] == "." and name not in _NEVER_ENTERED and not name.startswith(OURS)
    )


def ignored(paths: Iterable[str]) -> list[str]:
    """Return those of the files of a skill, by their paths in it, that would not be served; in
    order."""
    return sorted(path for path in paths if any(map(is_ignored, path.split("/"))))


def unserved(paths: Iterable[str], *, hidden: bool) -> list[str]:
    """Return those of the files of a tree of skills that would not be served for their names; in
    order.

    Args:
        paths: all files of the tree, from its root.
        hidden: dot folders of people are entered, outside of skills.
    """
    known = list(paths)
    skills = {
        above
        for above, _, name in (path.rpartition("/") for path in known)
        if name.lower() == _SKILL_MD_FOLDED
    }
    return sorted(path for path in known if not _is_served(path, skills, hidden=hidden))


def _is_served(path: str, skills: set[str], *, hidden: bool) -> bool:
    *folders, name = path.split("/")
    inside, dotted, place = "" in skills, False, ""
    for folder in folders:
        if is_ignored(folder):
            if inside or not is_entered(folder, hidden=hidden):
                return False
            dotted = True
        if place:
            place = f"{place}/{folder}"
        else:
            place = folder
        inside = inside or place in skills
    return not is_ignored(name) and (inside or not dotted)


def some_of(paths: list[str]) -> str:
    """Return the first of these paths for a message of one line, and how many more there are."""
    shown = ", ".join(printable(path[:_LONGEST_SHOWN]) for path in paths[:_NAMES_SHOWN])
    if len(paths) > _NAMES_SHOWN:
        return f"{shown} and {len(paths) - _NAMES_SHOWN} more"
    return shown
