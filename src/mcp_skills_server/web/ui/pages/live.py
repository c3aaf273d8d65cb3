"""What appeared, changed and vanished, as it happens."""

from __future__ import annotations

from contextlib import aclosing
from typing import Final

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from mcp_skills_server.runtime.quota import QuotaError
from mcp_skills_server.server.callers import counted
from mcp_skills_server.web.ui.live import Stream
from mcp_skills_server.web.ui.look import Look

_TYPE: Final = "text/event-stream"


async def page(request: Request, look: Look) -> Response:
    """The view, or with `part` in the query nothing but the changes."""
    feed = look.site.live.feed(look.runtime.skill_set)
    changes = feed.latest()
    there = {each.path for each in changes if each.path in look.snapshot.skills}
    template = "changes.html" if "part" in request.query_params else "live.html"
    return look.page(template, changes=changes, there=there, since=feed.since, number=feed.number)


async def events(request: Request, look: Look) -> Response:
    """The stream that says that there are more."""
    if request.method == "HEAD":
        return Response(media_type=_TYPE)
    after = request.headers.get("last-event-id") or request.query_params.get("after", "")
    skills = look.runtime.skill_set
    known = (
        int(after) if after.isascii() and after.isdigit() and len(after) < 16 else look.site.live.feed(skills).number
    )
    try:
        stream = look.site.live.open(skills, counted(request.scope), known, look.stays)
    except QuotaError as error:
        # What is no stream is not asked for again by a browser.
        return PlainTextResponse(f"{error}\n", 429, {"retry-after": "60"})
    return _Events(stream)


class _Events(StreamingResponse):
    """Sends a stream, and closes it however the connection ends."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._lines = stream.lines()
        super().__init__(self._lines, media_type=_TYPE, headers={"x-accel-buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with aclosing(self._lines):
                await super().__call__(scope, receive, send)
        finally:
            self._stream.close()
