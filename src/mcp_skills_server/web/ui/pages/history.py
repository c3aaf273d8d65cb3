"""The history of one skill: what changed since the server started, and what git knows of its folder."""

from __future__ import annotations

from anyio import to_thread
from starlette.requests import Request
from starlette.responses import Response

from mcp_skills_server.catalog.nested import nested_in
from mcp_skills_server.model import Skill
from mcp_skills_server.sources.git.history import History
from mcp_skills_server.telemetry import events
from mcp_skills_server.web.ui.git_log import commits
from mcp_skills_server.web.ui.look import Look
from mcp_skills_server.web.ui.pages.skill import skill_of


async def page(request: Request, look: Look) -> Response:
    """The view of a skill's history."""
    skill = skill_of(request, look)
    events.concerns([skill])
    return look.page(
        "history.html",
        skill=skill,
        revisions=look.site.revisions.of(skill.path),
        by_git=await to_thread.run_sync(_by_git, look, skill),
    )


def _by_git(look: Look, skill: Skill) -> History:
    """What git knows, for whoever may see all of a folder: also what was another skill's once."""
    if not look.is_admin:
        return History()
    registry = look.runtime.registry
    root, without = registry.roots[skill.root], sorted(nested_in(registry.snapshot, skill))
    if root.origin is None:
        return History(commits(registry.place(skill), root.path, without))
    return look.site.histories.of(root.path, root.origin, skill.directory, without)
