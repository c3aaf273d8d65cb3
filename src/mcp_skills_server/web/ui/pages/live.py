"""The view of recent changes, and the stream that updates open pages."""

from __future__ import annotations

from heapq import nlargest
from typing import Final

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from mcp_skills_server.access.quota import QuotaError
from mcp_skills_server.web.part import requester
from mcp_skills_server.web.ui.changes import TYPE, ChangeStream
from mcp_skills_server.web.ui.context import Context, reason_left_out

MAX_EARLIER: Final = 50
"""Skills shown that changed before the server started."""


async def page(request: Request, ctx: Context) -> Response:
    """Return the view, or only the changes if the query has `part`."""
    live, skills = ctx.site.live, ctx.snapshot.skills
    changes = live.latest(ctx.offering.skill_set)
    there = {change.path for change in changes if change.path in skills}
    left_out = {path: reason_left_out(ctx, skills[path]) for path in there}
    template = "changes.html" if "part" in request.query_params else "live.html"
    number = max((change.number for change in changes), default=0)
    times = {path: ctx.site.revisions.changed(path) for path in skills.keys() - there}
    return ctx.page(
        template,
        changes=changes,
        there=there,
        left_out=left_out,
        since=live.since,
        number=number,
        earlier=nlargest(MAX_EARLIER, ((when, path) for path, when in times.items() if when)),
    )


async def events(request: Request, ctx: Context) -> Response:
    """Return the event stream that announces changes."""
    if request.method == "HEAD":
        return Response(media_type=TYPE)
    skills, live, query = ctx.offering.skill_set, ctx.site.live, request.query_params
    text = request.headers.get("last-event-id") or query.get("after", "")
    known, owner = live.number(skills), requester(request.scope).owner
    if text.isascii() and text.isdigit() and len(text) < 20:
        known = int(text)
    try:
        path = query.get("skill", "")
        return ChangeStream(live, skills, owner, known, ctx.has_access, path=path)
    except QuotaError as error:
        # A browser does not reconnect after a response of another type.
        return PlainTextResponse(f"{error}\n", 503, {"retry-after": "10"})
