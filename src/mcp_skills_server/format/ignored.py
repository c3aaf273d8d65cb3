"""Ignore rule for file names, shared by serving, packing, watching, fetching and unpacking.

Ignored files are not written to disk either: no listing shows them, and programs act on such names
automatically (`.git`, `.envrc`, `.vscode`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from mcp_skills_server.errors import listed
from mcp_skills_server.model import SKILL_MD, printable

_IGNORED: Final = frozenset(("node_modules", "__pycache__", "4913"))
"""Vim creates a file 4913 to try whether it can write in a folder."""
_ENDS: Final = ("~", ".swp", ".swo", ".swx", "___jb_tmp___", "___jb_old___")
_BEGINNINGS: Final = ("~$", "#")
PATTERNS: Final = (
    ".*",
    *sorted(_IGNORED),
    *(f"*{end}" for end in _ENDS),
    *(f"{begin}*" for begin in _BEGINNINGS),
)
"""Shell patterns of the names for which `is_ignored` is true."""
ARCHIVES: Final = (".zip", ".skill", ".tar", ".tar.gz", ".tgz", ".tar.xz", ".txz")
"""Suffixes of archives: read as a ROOT, never in a folder. skill-creator names a zip `.skill`."""
_NEVER_ENTERED: Final = frozenset(
    (".", "..", ".git", ".hg", ".svn", ".jj", ".venv", ".tox", ".nox", ".cache")
)
"""Dot folders of program state, which hold no skills even if dot folders are searched."""
VENV_MARKER: Final = "pyvenv.cfg"
"""The file that marks a folder as a Python virtual environment, which holds no skills."""
STATE_DIR: Final = ".mcp-skills"
"""Prefix of the folders of `fetch` and `publish`, which hold copies, records and locks."""
_SKILL_MD_FOLDED: Final = SKILL_MD.lower()
_NAMES_SHOWN: Final = 5
_MAX_LINE_SHOWN: Final = 60


def is_ignored(name: str) -> bool:
    """Tell whether a file or directory of this name is never part of a skill."""
    return (
        name[0] == "." or name in _IGNORED or name.endswith(_ENDS) or name.startswith(_BEGINNINGS)
    )


def is_entered(name: str, *, hidden: bool) -> bool:
    """Tell whether a search for skills enters a directory of this name.

    `hidden` admits dot folders, except those of program state. Inside a skill only `is_ignored`
    counts.
    """
    return not is_ignored(name) or (
        hidden and name[0] == "." and name not in _NEVER_ENTERED and not name.startswith(STATE_DIR)
    )


def ignored(paths: Iterable[str]) -> list[str]:
    """Return the paths in a skill that are not served because of `is_ignored`, sorted."""
    return sorted(path for path in paths if any(map(is_ignored, path.split("/"))))


def unserved(paths: Iterable[str], *, hidden: bool) -> list[str]:
    """Return the paths in a tree of skills that are not served because of a name, sorted.

    Args:
        paths: all files of the tree, relative to its root.
        hidden: whether a search for skills enters dot folders.
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
    inside, dotted, directory = "" in skills, False, ""
    for folder in folders:
        if is_ignored(folder):
            if inside or not is_entered(folder, hidden=hidden):
                return False
            dotted = True
        if directory:
            directory = f"{directory}/{folder}"
        else:
            directory = folder
        inside = inside or directory in skills
    return not is_ignored(name) and (inside or not dotted)


def summarize(paths: list[str]) -> str:
    """Format the first five paths and the number of the others for a one-line message."""
    return listed([printable(path[:_MAX_LINE_SHOWN]) for path in paths], _NAMES_SHOWN)
