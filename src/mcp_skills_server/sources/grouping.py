"""Group the files of an archive, an image or a commit by skill. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TypeVar

from mcp_skills_server.catalog.path_map import above
from mcp_skills_server.format import frontmatter
from mcp_skills_server.format.archive import ArchiveRefusedError, Files, check_paths
from mcp_skills_server.format.ignored import is_entered, is_ignored
from mcp_skills_server.model import SKILL_MD

_T = TypeVar("_T")


def group_by_skill(
    files: Mapping[str, _T], *, hidden: bool
) -> tuple[dict[str, dict[str, _T]], list[str]]:
    """Return the files of each skill by folder ("" for the root), and the paths outside of skills.

    Only the outermost of nested skills counts. A SKILL.md in another case makes a skill, too, so
    that the scan can report it. With `hidden`, skills in dot folders count, too.
    """
    folders = {path.rpartition("/")[0] for path in files if is_skill_md(path)}
    skills: dict[str, dict[str, _T]] = {}
    rest: list[str] = []
    owners: dict[str, str | None] = {}
    for path in sorted(files):
        parent = path.rpartition("/")[0]
        if parent not in owners:
            owners[parent] = _owner(path, folders, hidden=hidden)
        folder = owners[parent]
        if folder is None:
            rest.append(path)
        else:
            skills.setdefault(folder, {})[path[len(folder) :].lstrip("/")] = files[path]
    return skills, rest


def is_skill_md(path: str) -> bool:
    """Tell whether a file is a SKILL.md, in any case."""
    return path.rpartition("/")[2].lower() == SKILL_MD.lower()


def _owner(path: str, folders: Collection[str], *, hidden: bool) -> str | None:
    """Return the outermost of these folders that contains a file, None if none or not scanned."""
    folder = next((parent for parent in above(path.rpartition("/")[0]) if parent in folders), None)
    parts = filter(None, (folder or "").split("/"))
    if not all(is_entered(part, hidden=hidden) for part in parts):
        return None
    return folder


def root_name(files: Files, others: Iterable[str]) -> str | None:
    """Return the folder name for a skill at the root: its own name, or the first usable other."""
    raw, _ = files.get(SKILL_MD, (b"", False))
    own = (frontmatter.parse(raw).frontmatter or {}).get("name")
    for name in (own, *others):
        if isinstance(name, str) and name and "/" not in name and not is_ignored(name):
            try:
                check_paths([name])
            except ArchiveRefusedError:
                continue
            return name
    return None
