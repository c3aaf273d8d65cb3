"""Lock files as commands read them: with paths from the current folder, matched to roots."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from mcp_skills_server.errors import UsageError

if TYPE_CHECKING:
    from mcp_skills_server.provenance.lock import LockedSource


def read_lock(path: str) -> tuple[LockedSource, ...]:
    """Return the sources of a lock file, with paths relative to the current folder."""
    from mcp_skills_server.provenance import lock

    def from_here(given: str) -> str:
        return os.path.normpath(os.path.join(os.path.dirname(path), given))

    sources = lock.read(Path(path))
    return tuple(replace(source, given=if_path(from_here, source.given)) for source in sources)


def locked_roots(path: str, roots: Sequence[str]) -> list[LockedSource]:
    """Return the lock file's entries for these roots, or all entries if `roots` is empty."""
    locked = [(if_path(os.path.abspath, source.given), source) for source in read_lock(path)]
    names = {name for name, _ in locked}
    wanted = {if_path(os.path.abspath, root): root for root in roots}
    for name, root in wanted.items():
        if name not in names:
            raise UsageError(f"{root}: {path} does not name this root; lock it, or leave it out")
    return [source for name, source in locked if not roots or name in wanted]


def if_path(change: Callable[[str], str], root: str) -> str:
    """Return a root with its path changed by `change`; an address stays."""
    from mcp_skills_server.sources.kinds import kind_of

    if kind_of(root).is_path:
        return change(root)
    return root


def assign_entries(
    before: Mapping[str, LockedSource], locked: Sequence[LockedSource], lock: str
) -> dict[str, LockedSource]:
    """Assign the new entries to the served folders; a folder whose entry is gone keeps no skill."""
    after = {folder: replace(source, skills={}) for folder, source in before.items()}
    free = dict(before)
    # unchanged entries first: of several folders with one address they keep their own
    for entry in sorted(locked, key=lambda entry: entry not in free.values()):
        same = [folder for folder, known in free.items() if known.given == entry.given]
        if not same:
            raise UsageError(f"{lock}: {entry.given} has a new revision there; restart the server")
        folder = next((path for path in same if free[path].revision == entry.revision), same[0])
        del free[folder]
        after[folder] = entry
    return after
