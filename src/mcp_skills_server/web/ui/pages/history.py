"""The history of one skill: what changed since the server started, and what git knows of its folder."""

from __future__ import annotations

from collections.abc import Sequence

from anyio import to_thread
from starlette.requests import Request
from starlette.responses import Response

from mcp_skills_server.catalog.nested import nested_in
from mcp_skills_server.model import Skill
from mcp_skills_server.web.ui.git_log import Commit, commits
from mcp_skills_server.web.ui.look import Look
from mcp_skills_server.web.ui.pages.skill import skill_of


async def page(request: Request, look: Look) -> Response:
    """The view of a skill's history."""
    skill = skill_of(request, look)
    return look.page(
        "history.html",
        skill=skill,
        revisions=look.site.revisions.of(skill.path),
        commits=await to_thread.run_sync(_commits, look, skill),
    )


def _commits(look: Look, skill: Skill) -> Sequence[Commit]:
    """What git knows, for whoever may see all of a folder: also what was another skill's once."""
    if not look.is_admin or look.runtime.registry.roots[skill.root].origin is not None:
        return ()
    registry = look.runtime.registry
    return commits(registry.place(skill), tuple(sorted(nested_in(registry.snapshot, skill))))
