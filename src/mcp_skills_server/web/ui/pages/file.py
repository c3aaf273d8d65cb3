"""The view of one file of a skill, and its bytes in a form that browsers do not run."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Final
from urllib.parse import quote

from anyio import to_thread
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from mcp_skills_server.format import hidden, media
from mcp_skills_server.model import SKILL_MD, Skill
from mcp_skills_server.runtime.large_answers import limit_large_answers
from mcp_skills_server.telemetry import events
from mcp_skills_server.web.part import requester
from mcp_skills_server.web.ui.colours import coloured_lines
from mcp_skills_server.web.ui.context import Context
from mcp_skills_server.web.ui.pages.skill import heading, skill_of
from mcp_skills_server.web.ui.render import MAX_PICTURE_BYTES, is_raster_name, raster_type, rendered

_GONE: Final = "This file does not exist any more. It may have moved."
_MAX_SHOWN: Final = 1 << 20
"""Bytes of the largest file that is shown; a larger one is offered for download."""
_MAX_CHARACTERS: Final = 200_000
_MAX_LINES: Final = 5_000
"""Lines of the longest text with numbers."""
_PIECE: Final = 1 << 18
_SANDBOX: Final = "default-src 'none'; sandbox; frame-ancestors 'none'"
_MARKDOWN: Final = (".md", ".markdown")


async def page(request: Request, ctx: Context) -> Response:
    """Return the view of a file."""
    skill, path = _path_of(request, ctx)
    file = skill.files[path]
    text, picture, html = None, False, None
    if is_raster_name(path) and file.size <= MAX_PICTURE_BYTES:
        picture = raster_type((await _read(request, ctx, skill, path))[:16]) is not None
    elif file.size <= _MAX_SHOWN:
        text = media.as_text(await _read(request, ctx, skill, path), media.media_type(path))
        is_markdown = path.lower().endswith(_MARKDOWN) and not path.endswith(SKILL_MD)
        if text is not None and is_markdown:  # the view of the skill renders SKILL.md
            html = await rendered(text, skill.path, skill.files, path)
    else:
        events.record_mentions([skill])
    lines = None
    if text is not None and len(text) <= _MAX_CHARACTERS and text.count("\n") < _MAX_LINES:
        lines = await to_thread.run_sync(coloured_lines, text, path)
    return ctx.page(
        "file.html",
        **heading(request, ctx, skill, "files"),
        path=path,
        size=file.size,
        digest=file.digest,
        is_executable=file.executable,
        kind=media.media_type(path) or "unknown",
        text=text,
        lines=lines,
        largest=_MAX_SHOWN,
        picture=picture,
        rendered=html,
        hidden=hidden.count(text or ""),
    )


async def raw_file(request: Request, ctx: Context) -> Response:
    """Return a file's bytes: text and raster pictures inline, all else as a download."""
    skill, path = _path_of(request, ctx)
    content = await _read(request, ctx, skill, path)
    kind = None
    if is_raster_name(path):
        kind = raster_type(content)
    is_text = media.as_text(content, media.media_type(path)) is not None
    if kind is None and is_text and "keep" not in request.query_params:
        kind = "text/plain; charset=utf-8"
    headers = {"content-security-policy": _SANDBOX, "content-length": str(len(content))}
    if kind is None:
        name = quote(path.rpartition("/")[2])
        headers["content-disposition"] = f"attachment; filename*=utf-8''{name}"

    async def pieces() -> AsyncGenerator[bytes]:
        for start in range(0, len(content), _PIECE):
            yield content[start : start + _PIECE]

    headers["content-type"] = kind or "application/octet-stream"
    return StreamingResponse(pieces(), headers=headers)


def _path_of(request: Request, ctx: Context) -> tuple[Skill, str]:
    skill = skill_of(request, ctx)
    path = request.query_params.get("file", "")
    if path not in skill.files:
        raise HTTPException(404, _GONE)
    return skill, path


async def _read(request: Request, ctx: Context, skill: Skill, path: str) -> bytes:
    async with limit_large_answers(skill.files[path].size, requester(request.scope).owner):
        return await ctx.view.read(skill, path)
