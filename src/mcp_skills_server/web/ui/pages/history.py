"""The history of one skill: what changed since the server started, and what git knows of its folder."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path

from anyio import to_thread
from starlette.requests import Request
from starlette.responses import Response

from mcp_skills_server.catalog.granted import nested_in
from mcp_skills_server.model import Skill
from mcp_skills_server.sources.git.history import Commit, History, pathspecs, read_log
from mcp_skills_server.sources.git.program import Git
from mcp_skills_server.telemetry import events
from mcp_skills_server.web.ui.look import Look
from mcp_skills_server.web.ui.pages.skill import skill_of


def commits(folder: str, root: str, without: Sequence[str] = ()) -> list[Commit]:
    """Return the last commits that touched a folder, the newest first; none without git. Blocks.

    Args:
        folder: absolute path in `root`, with links resolved.
        root: absolute path of the root that is served, with links resolved.
        without: folders in `folder` that do not count.
    """
    top = _top(Path(root))
    if top is None or not Path(folder).is_relative_to(top):
        return []
    inside = Path(folder).relative_to(top).as_posix()
    return read_log(Git(top / ".git", "", "none"), pathspecs("" if inside == "." else inside, without)) or []


def _top(root: Path) -> Path | None:
    """Return the directory of the repository that contains a root, None where there is none of this user's own.

    Skills are foreign, so nothing below the root leads to a repository. Nor does a `.git` that refers to another place:
    a file or link (`gitdir:`), `commondir`, or borrowed objects.
    """
    for top in (root, *root.parents):
        place = top / ".git"
        try:
            status = os.lstat(place)
        except OSError:
            continue
        # git itself would ask who owns it, had it looked for the repository.
        is_own = not hasattr(os, "geteuid") or status.st_uid == os.geteuid()
        return top if is_own and stat.S_ISDIR(status.st_mode) and _is_whole(place) else None
    return None


def _is_whole(repository: Path) -> bool:
    """Tell whether a repository has all that it knows in itself."""
    if any(os.path.lexists(repository / each) for each in ("commondir", "objects/info/alternates")):
        return False
    kept = [repository / each for each in ("HEAD", "objects", "refs")]
    return all(each.exists() and not each.is_symlink() for each in kept)


async def page(request: Request, look: Look) -> Response:
    """Return the view of a skill's history."""
    skill = skill_of(request, look)
    events.concerns([skill])
    return look.page(
        "history.html",
        skill=skill,
        revisions=look.site.revisions.of(skill.path),
        by_git=await to_thread.run_sync(_by_git, look, skill),
    )


def _by_git(look: Look, skill: Skill) -> History:
    """Return what git knows, for whoever may see all of a folder: also what was another skill's once."""
    if not look.is_admin:
        return History()
    registry = look.runtime.registry
    root, without = registry.roots[skill.root], sorted(nested_in(registry.snapshot, skill))
    if root.origin is None:
        return History(commits(registry.place(skill), root.path, without))
    return look.site.histories.of(root.path, root.origin, skill.directory, without)
