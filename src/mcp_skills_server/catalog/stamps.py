"""Which skill folders of a root are as they were: one stamp for each, from names and stat results alone.

Nothing is opened but directories, and no object is made for a skill. What a stat result does not tell (where a link
leads, what is written to a young file) gives no stamp to rely on.
"""

from __future__ import annotations

import hashlib
import os
import time
from typing import Final

from mcp_skills_server.catalog.disk import Handle, close, enter, is_settled, signature
from mcp_skills_server.catalog.tree import MOST_LEVELS
from mcp_skills_server.format.ignored import FIRSTS, LASTS, is_entered, is_ignored
from mcp_skills_server.model import SKILL_MD

OUTSIDE: Final = "/"
"""Where the stamp of all stands that lies in no skill; no folder has this name."""
YOUNG: Final = "young"
"""The stamp of a skill of which a file is so young that a later write could leave the same signature."""
_SKILL_MD_FOLDED: Final = SKILL_MD.lower()


def stamps(root_path: str, *, hidden: bool) -> dict[str, str] | None:
    """A stamp for each outermost folder with a SKILL.md, by its place below the root, and one for `OUTSIDE`.

    A stamp changes with the name, place, signature or kind of anything that a scan looks at. It is "" where the folder
    alone does not say what its skill is, for there are links in it, and `YOUNG` where a change could leave it the same.
    None where either holds for what lies outside, or a folder cannot be listed.

    Args:
        root_path: the root, absolute and resolved.
        hidden: dot folders are entered, outside of skills.
    """
    walk = _Walk(hidden=hidden)
    try:
        handle = enter(None, root_path, follow=True)
        try:
            walk.look(handle, "", None, MOST_LEVELS)
        finally:
            close(handle)
    except OSError:
        return None
    if walk.unsure:
        return None
    walk.found[OUTSIDE] = _stamp(walk.outside)
    return walk.found


class _Walk:
    def __init__(self, *, hidden: bool) -> None:
        self.found: dict[str, str] = {}
        self.outside: list[bytes] = []
        self.unsure = False
        """Whether what lies outside of skills may change without another stamp."""
        self._hidden = hidden
        self._now = time.time_ns()
        self._young = False
        """Whether a young file was found since the last skill."""

    def look(self, handle: Handle, path: str, unit: list[bytes] | None, depth: int) -> bool:
        """Look at an open directory, of the skill with the listings `unit` if it lies in one. Whether all is sure."""
        here: list[str] = []
        inner: list[str] = []
        dotted: list[str] = []
        by_descriptor, now = isinstance(handle, int), self._now
        sure, begins = depth > 0, False
        with os.scandir(handle) as entries:
            for entry in entries:
                name = entry.name
                ignored = (name[0] in FIRSTS or name[-1] in LASTS) and is_ignored(name)
                begins = begins or (len(name) == len(SKILL_MD) and name.lower() == _SKILL_MD_FOLDED)
                if entry.is_dir(follow_symlinks=False):
                    here.append(f"{name}/")
                    if not ignored:
                        inner.append(name)
                    elif is_entered(name, hidden=True):
                        dotted.append(name)
                elif ignored:
                    here.append(name)
                elif entry.is_file(follow_symlinks=False):
                    found = entry.stat(follow_symlinks=False) if by_descriptor else os.lstat(entry.path)
                    here.append(f"{name}\0{signature(found)}")
                    sure = sure and found.st_nlink == 1
                    self._young = self._young or not is_settled(found, now)
                else:
                    here.append(name)
                    sure = False
        here.sort()
        try:
            listing = "\0\0".join((path, *here)).encode()
        except UnicodeEncodeError:
            listing, sure = b"", False
        outer = unit
        if unit is None and begins:
            unit = []
        if unit is None and dotted:
            inner += dotted if self._hidden else ()
            sure = sure and self._hidden  # a run says which skills lie in them
        (self.outside if unit is None else unit).append(listing)
        if unit is None:
            self.unsure = self.unsure or self._young or not sure
            self._young = False
        for name in inner if depth > 0 else ():
            opened = enter(handle, name)
            try:
                within = self.look(opened, f"{path}/{name}" if path else name, unit, depth - 1)
            finally:
                close(opened)
            sure = sure and (within or unit is None)
        if unit is not None and outer is None:
            self.found[path] = (YOUNG if self._young else _stamp(unit)) if sure else ""
            self._young = False
        return sure


def _stamp(listings: list[bytes]) -> str:
    return hashlib.blake2b(b"\0\0\0".join(listings), digest_size=16).hexdigest()
