"""The skills that an earlier process saw: shown to a host that asks before the first scan is done.

Nothing is looked up on the disk and nothing is served from this: the scan replaces it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from os.path import basename

from mcp_skills_server.catalog import disk
from mcp_skills_server.catalog.index import Index, StoredSkills
from mcp_skills_server.catalog.roots import Limits, Root, merge
from mcp_skills_server.format.ignored import is_entered
from mcp_skills_server.model import Skill, Snapshot


def remembered(roots: Sequence[Root], limits: Limits, index: Index | None) -> Snapshot | None:
    """Return the skills that the index has of all these roots, None where it does not know one of them."""
    stored = [None if index is None else index.skills(root.path) for root in roots]
    known = [each for each in stored if each is not None]
    if len(known) < len(roots):
        return None
    return Snapshot(merge(_skills(root, limits, each) for root, each in zip(roots, known, strict=True))[0])


def _skills(root: Root, limits: Limits, stored: StoredSkills) -> Iterator[Skill]:
    """Yield the skills that a scan with these limits would look for."""
    namespace = disk.spelled(basename(root.path)) if "" in stored else root.namespace
    for directory in stored.directories:
        steps = directory.split("/") if directory else []
        reading = stored.skill(directory).reading
        deepest = 1 if root.namespace else limits.depth  # of a plugin only what lies right below its skills folder
        is_sought = len(steps) <= deepest and all(is_entered(step, hidden=limits.hidden) for step in steps)
        if reading is not None and is_sought:
            path = "/".join(part for part in (namespace, directory) if part) or "root"
            yield Skill(path, root.index, directory, reading, {}, (), reading.standing, origin=root.origin)
