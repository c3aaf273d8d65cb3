"""The history of one skill: what changed since the server started, and what git knows of its folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from anyio import to_thread
from starlette.requests import Request
from starlette.responses import Response

from mcp_skills_server.catalog.views import nested_in
from mcp_skills_server.model import Skill
from mcp_skills_server.sources.git.history import Commit, History, pathspecs, read_log, working_copy
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
    top = working_copy(Path(root))
    if top is None or not Path(folder).is_relative_to(top):
        return []
    inside = Path(folder).relative_to(top).as_posix()
    return read_log(Git(top / ".git", "", "none"), pathspecs("" if inside == "." else inside, without)) or []


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
    """Return what git knows, for viewers who may see all of a folder: also what was another skill's once."""
    if not look.is_admin:
        return History()
    registry = look.runtime.registry
    root, without = registry.roots[skill.root], sorted(nested_in(registry.snapshot, skill))
    if root.origin is None:
        return History(commits(registry.place(skill), root.path, without))
    return look.site.histories.of(root.path, root.origin, skill.directory, without)
