"""What appeared, changed and vanished, as it happens."""

from __future__ import annotations

from contextlib import aclosing
from typing import Final

from anyio import to_thread
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from mcp_skills_server.model import Skill, Standing
from mcp_skills_server.runtime.quota import QuotaError
from mcp_skills_server.server.callers import counted
from mcp_skills_server.web.ui.live import ChangeStream
from mcp_skills_server.web.ui.look import Look, reason_left_out, shown_problem

_TYPE: Final = "text/event-stream"


async def page(request: Request, look: Look) -> Response:
    """Return the view, or with `part` in the query nothing but the changes."""
    found, own = look.site.live, look.runtime.skill_set
    changes, skills = found.latest(own), look.snapshot.skills
    there = {each.what.path for each in changes if each.what.path in skills}
    left_out = {each: _reason(look, skills[each]) for each in there if skills[each].standing < Standing.VALID}
    template = "changes.html" if "part" in request.query_params else "live.html"
    number = changes[0].number if changes else 0
    return look.page(template, changes=changes, there=there, left_out=left_out, since=found.since, number=number)


def _reason(look: Look, skill: Skill) -> str:
    found = reason_left_out(skill)
    return "" if found is None else shown_problem(look, found).message


async def events(request: Request, look: Look) -> Response:
    """Return the stream that says that there are more."""
    if request.method == "HEAD":
        return Response(media_type=_TYPE)
    skills = look.runtime.skill_set
    known = _number(request.headers.get("last-event-id") or request.query_params.get("after", ""))
    if known is None:
        known = look.site.live.number(skills)
    try:
        path = request.query_params.get("skill", "")
        stream = look.site.live.open(skills, counted(request.scope), known, look.stays, path)
    except QuotaError as error:
        # What is no stream is not asked for again by a browser.
        return PlainTextResponse(f"{error}\n", 429, {"retry-after": "60"})
    return _EventStream(stream)


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None


class _EventStream(StreamingResponse):
    """Sends a stream, and closes it however the connection ends."""

    def __init__(self, stream: ChangeStream) -> None:
        self._stream = stream
        self._lines = stream.lines()
        super().__init__(self._lines, media_type=_TYPE, headers={"x-accel-buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with aclosing(self._lines):
                await super().__call__(scope, receive, send)
        finally:
            self._stream.close()


async def runs(_: Request, look: Look) -> Response:
    """Return the latest runs. A skill that the viewer may not read is not named."""
    found = await to_thread.run_sync(look.site.activity.runs)
    skills = {each.started.skill for each in found}
    readable = {each for each in skills if not each or look.may_read(each)}
    return look.page("runs.html", runs=found, readable=readable)


async def clients(_: Request, look: Look) -> Response:
    """Return the latest clients."""
    return look.page("clients.html", clients=await to_thread.run_sync(look.site.activity.clients))
