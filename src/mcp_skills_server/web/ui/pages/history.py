"""The view of one skill's history: text diffs since the server started, and git commits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from mcp_skills_server.model import Skill
from mcp_skills_server.sources.git.history import Commit, History, pathspecs, read_log, working_copy
from mcp_skills_server.sources.git.program import Git
from mcp_skills_server.telemetry import events
from mcp_skills_server.web.ui.context import Context
from mcp_skills_server.web.ui.pages.skill import heading, skill_of


def commits(folder: str, root: str, without: Sequence[str] = ()) -> list[Commit]:
    """Return the last git commits that touched a folder, except those of `without`. Blocks."""
    top = working_copy(Path(root))
    if top is None or not Path(folder).is_relative_to(top):
        return []
    inside = Path(folder).relative_to(top).as_posix()
    if inside == ".":
        inside = ""
    return read_log(Git(top / ".git", url="", protocol="none"), pathspecs(inside, without)) or []


def page(request: Request, ctx: Context) -> Response:
    """Return the view of a skill's history. Blocks."""
    skill = skill_of(request, ctx)
    revisions, by_git = ctx.site.revisions.latest(skill.path), _by_git(ctx, skill)
    if revisions or by_git.commits:
        events.record_sent(events.Use("read", skill.path, "", ""), 0)
    else:
        events.record_mentions([skill])
    values = heading(request, ctx, skill, "history")
    return ctx.page("history.html", **values, revisions=revisions, by_git=by_git)


def _by_git(ctx: Context, skill: Skill) -> History:
    """Return the git history, for operators only: it may show files of other skills."""
    if not ctx.is_admin:
        return History()
    registry = ctx.runtime.registry
    root = registry.roots[skill.root]
    if root.origin is None:
        return History(commits(registry.place(skill), root.path, skill.nested))
    return ctx.site.histories.changes_of(root.path, root.origin, skill.directory, skill.nested)
