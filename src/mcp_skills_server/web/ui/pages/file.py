"""One file of a skill: what is in it, and its exact bytes as something that a browser does not run."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Final
from urllib.parse import quote

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from mcp_skills_server.authoring.tokens import estimated
from mcp_skills_server.catalog.threads import in_turn
from mcp_skills_server.format import hidden, media
from mcp_skills_server.model import Skill
from mcp_skills_server.server.callers import counted
from mcp_skills_server.telemetry import events
from mcp_skills_server.web.ui.look import Look
from mcp_skills_server.web.ui.pages.skill import skill_of
from mcp_skills_server.web.ui.render import MOST_PICTURE_BYTES, is_raster_name, raster_type, rendered

_GONE: Final = "This file is not there any more. It may have been moved, renamed or deleted."
_MOST_TEXT: Final = 200_000
_MOST_LOOKED_AT: Final = 1 << 20
"""A larger file is offered for download, and not looked into."""
_PIECE: Final = 1 << 18
_SANDBOX: Final = "default-src 'none'; sandbox; frame-ancestors 'none'"
_MARKDOWN: Final = (".md", ".markdown")


async def page(request: Request, look: Look) -> Response:
    """Return the view of a file."""
    skill, path = _file_of(request, look)
    file = skill.files[path]
    text, picture, html = None, False, None
    if is_raster_name(path) and file.size <= MOST_PICTURE_BYTES:
        picture = raster_type((await _read(request, look, skill, path))[:16]) is not None
    elif file.size <= _MOST_LOOKED_AT:
        text = media.as_text(await _read(request, look, skill, path), media.media_type(path))
        if text is not None and path.lower().endswith(_MARKDOWN):
            html = await rendered(text, skill.path, skill.files, path)
    else:
        events.concerns([skill])
    return look.page(
        "file.html",
        skill=skill,
        path=path,
        size=file.size,
        digest=file.digest,
        is_executable=file.executable,
        kind=media.media_type(path) or "unknown",
        text=None if text is None else text[:_MOST_TEXT],
        is_cut=text is not None and len(text) > _MOST_TEXT,
        is_large=text is None and not picture and file.size > _MOST_LOOKED_AT,
        picture=picture,
        rendered=html,
        hidden=0 if text is None else hidden.count(text),
        cost=None if text is None else estimated(text),
    )


async def raw(request: Request, look: Look) -> Response:
    """Return the exact bytes: text as plain text, raster pictures as such, everything else to be kept in a file."""
    skill, path = _file_of(request, look)
    content = await _read(request, look, skill, path)
    kind = raster_type(content) if is_raster_name(path) else None
    if (
        kind is None
        and media.as_text(content, media.media_type(path)) is not None
        and "keep" not in request.query_params
    ):
        kind = "text/plain; charset=utf-8"
    headers = {"content-security-policy": _SANDBOX, "content-length": str(len(content))}
    if kind is None:
        name = quote(path.rpartition("/")[2])
        headers["content-disposition"] = f"attachment; filename*=utf-8''{name}"

    async def pieces() -> AsyncGenerator[bytes]:
        for start in range(0, len(content), _PIECE):
            yield content[start : start + _PIECE]

    return StreamingResponse(pieces(), headers={**headers, "content-type": kind or "application/octet-stream"})


def _file_of(request: Request, look: Look) -> tuple[Skill, str]:
    skill = skill_of(request, look)
    path = request.query_params.get("file", "")
    if path not in skill.files:
        raise HTTPException(404, _GONE)
    return skill, path


async def _read(request: Request, look: Look, skill: Skill, path: str) -> bytes:
    async with in_turn(skill.files[path].size, counted(request.scope)):
        return await look.view.read(skill, path)
