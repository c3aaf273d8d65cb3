"""Which scripts ran and which clients asked, for who may see what others do."""

from __future__ import annotations

from anyio import to_thread
from starlette.requests import Request
from starlette.responses import Response

from mcp_skills_server.web.ui.look import Look


async def runs(_: Request, look: Look) -> Response:
    """The latest runs. A skill that the viewer may not read is not named."""
    found = await to_thread.run_sync(look.site.activity.runs)
    skills = {each.started.skill for each in found}
    readable = {each for each in skills if not each or look.may_read(each)}
    return look.page("runs.html", runs=found, readable=readable)


async def clients(_: Request, look: Look) -> Response:
    """The latest clients."""
    return look.page("clients.html", clients=await to_thread.run_sync(look.site.activity.clients))
