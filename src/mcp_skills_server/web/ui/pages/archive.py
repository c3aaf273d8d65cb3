"""A look into an uploaded archive on a local page: problems, text and files of its skills.

It is unpacked into a temporary folder, which is removed at once. Nothing of it is served.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from markupsafe import Markup
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.durable import write_folder
from mcp_skills_server.errors import SkillsServerError
from mcp_skills_server.format import archive, frontmatter, hidden
from mcp_skills_server.format.archive import ArchiveRefusedError, Files, UnpackLimits
from mcp_skills_server.format.ignored import summarize, unserved
from mcp_skills_server.model import SKILL_MD, Problem, Skill
from mcp_skills_server.sources.grouping import group_by_skill, root_name
from mcp_skills_server.web.ui.context import Context
from mcp_skills_server.web.ui.pages.problems import file_of
from mcp_skills_server.web.ui.render import render

_LIMITS: Final = UnpackLimits()
_MAX_UPLOAD: Final = _LIMITS.bytes + (1 << 16)
_MAX_SKILLS: Final = 20
_BOUNDARY: Final = re.compile(
    r'multipart/form-data;.{0,200}?\bboundary="?([^";, ]{1,70})', re.DOTALL
)
_FILE_NAME: Final = re.compile(rb'\bfilename="([^"\r\n]{0,255})"')


class SkillLook(NamedTuple):
    """A skill of an archive."""

    skill: Skill
    problems: Sequence[tuple[str, Problem]]  # each with its file in the skill, or ""
    rendered: Markup | None
    hidden: int  # number of the invisible characters of its SKILL.md


async def upload_of(request: Request) -> tuple[str, bytes] | None:
    """Return name and content of the file of a multipart form; None for another or larger one."""
    boundary = _BOUNDARY.match(request.headers.get("content-type", ""))
    if boundary is None:
        return None
    body = bytearray(b"\r\n")
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MAX_UPLOAD:
            return None
    delimiter = f"\r\n--{boundary[1]}".encode()
    start = body.find(delimiter)
    head = body.find(b"\r\n\r\n", start)
    end = body.find(delimiter, head + 4)
    if min(start, head, end) < 0:
        return None
    name = _FILE_NAME.search(body, start, head)
    shown = "the file"
    if name is not None and name[1]:
        shown = name[1].decode("utf-8", "replace")
    return shown, bytes(body[head + 4 : end])


def page(_: Request, ctx: Context) -> Response:
    """Return the form."""
    if not ctx.site.is_local:
        raise HTTPException(
            404, "Archives are looked at on your own page ('mcp-skills-server ui')."
        )
    return _form(ctx)


def look(_: Request, ctx: Context, upload: tuple[str, bytes]) -> Response:
    """Return the form with what is in an uploaded archive. Blocks."""
    name, raw = upload
    try:
        files = archive.unpack(raw, _LIMITS)
        left_out = unserved(files, hidden=False)
        served = {path: file for path, file in files.items() if path not in left_out}
        skills = group_by_skill(served, hidden=False)[0]
        if not skills:
            raise ArchiveRefusedError(f"it has no {SKILL_MD}")
        with tempfile.TemporaryDirectory(prefix="mcp-skills-look-") as folder:
            _write(Path(folder), skills, name)
            with Registry([folder], ctx.runtime.registry.limits) as alone:
                looks = list(_looks(alone))
    except OSError as error:
        return _form(ctx, 400, trouble=f"{name} cannot be unpacked ({error.strerror}).")
    except SkillsServerError as error:
        return _form(ctx, 400, trouble=f"{name} is refused: {error}.")
    note = ""
    if left_out:
        note = f"Not served, because of their names: {summarize(left_out)}."
    return _form(ctx, looks=looks, note=note, total=len(skills))


def _form(ctx: Context, status: int = 200, **more: object) -> Response:
    values = {"trouble": "", "looks": (), "note": "", "total": 0, **more}
    return ctx.page("archive.html", status, **values)


def _write(folder: Path, skills: Mapping[str, Files], name: str) -> None:
    """Write the skills of an archive into a folder, a root skill under its own name."""
    for directory, files in skills.items():
        own = directory or root_name(files, [name.partition(".")[0]]) or "skill"
        write_folder(folder / own, files)


def _looks(alone: Registry) -> Iterator[SkillLook]:
    """Yield the first skills of a registry with their problems, read now."""
    alone.problems()
    by_skill, root = alone.checks.survey(alone.snapshot).by_skill, alone.roots[0]
    for skill in list(alone.snapshot.skills.values())[:_MAX_SKILLS]:
        folder = root.show(skill.directory)
        problems = [
            (file_of(problem, folder, skill.files), problem)
            for problem in by_skill.get(skill.path, ())
        ]
        text, count, file = None, 0, skill.files.get(SKILL_MD)
        if file is not None and file.size <= alone.limits.skill_md:
            raw = alone.read(file)
            count = hidden.count(raw.decode("utf-8", "replace"))
            # without files: a link must not lead to a served skill of the same name
            text = render(frontmatter.parse(raw).body or "", skill.path, (), SKILL_MD)
        yield SkillLook(skill, problems, text, count)
