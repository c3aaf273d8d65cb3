"""The editor of a SKILL.md on a local page: check a text, show its difference, and save it.

The skill's path is looked up in the snapshot, and only its SKILL.md is written.
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from mcp_skills_server.catalog.path_map import join
from mcp_skills_server.durable import replace_file
from mcp_skills_server.errors import RequestError, StaleFileError
from mcp_skills_server.format import hidden
from mcp_skills_server.model import SKILL_MD, Problem, Skill, Standing
from mcp_skills_server.model.digests import digest_of
from mcp_skills_server.proposals.intake import files_of, trial
from mcp_skills_server.provenance.difference import Difference, Files, compare
from mcp_skills_server.web.ui.context import Context
from mcp_skills_server.web.ui.pages.problems import file_of

FORM_FACTOR: Final = 6
"""Most bytes that a form sends for a byte of its text: `%0D%0A` for a line end."""
_NOT_HERE: Final = "Only a SKILL.md in your own folders, not behind a link, is edited here."
_GONE: Final = "The skill does not exist any more; copy the text from here."
_CHANGED: Final = (
    "SKILL.md was changed since you opened it. The difference is now between that text and yours: "
    "saving replaces it."
)
_lock = threading.Lock()
"""Serializes the edits of this process."""


class _Check(NamedTuple):
    """The findings of `validate` on a text, and its difference from the file."""

    standing: Standing
    problems: Sequence[tuple[str, Problem]]  # each with its file in the skill, or ""
    difference: Difference | None


def can_edit(ctx: Context, skill: Skill) -> bool:
    """Return whether this page may edit a skill's SKILL.md."""
    registry, file = ctx.runtime.registry, skill.files.get(SKILL_MD)
    if not ctx.site.is_local or skill.origin is not None or file is None or not file.digest:
        return False
    if file.location != join(skill.directory, SKILL_MD):
        return False  # SKILL.md is a link
    is_linked = bool(registry.roots[skill.root].locate(skill.directory).link)
    return not is_linked and file.size <= registry.limits.skill_md


async def page(request: Request, ctx: Context) -> Response:
    """Return the form with the text of the file."""
    skill = ctx.snapshot.skills.get(request.path_params["path"])
    if skill is None:
        raise HTTPException(404, _GONE)
    if not can_edit(ctx, skill):
        raise RequestError(_NOT_HERE)
    raw = await ctx.view.read(skill, SKILL_MD)
    return _form(ctx, skill.path, _text_of(raw), digest_of(raw))


def save(request: Request, ctx: Context, fields: Mapping[str, str]) -> str | Response:
    """Check or save the text of a form; return where to go, or the form again. Blocks.

    Every refusal keeps the text that was typed.
    """
    path, text = request.path_params["path"], fields.get("text", "").replace("\r\n", "\n")
    with _lock:
        try:
            skill, before = _current(ctx, path)
            after, limit = _encoded(text, before), ctx.runtime.registry.limits.skill_md
            if len(after) > limit:
                fault = f"The text has {len(after):,} bytes, more than the limit of {limit:,}."
                raise RequestError(fault)
            check = _check(ctx, skill, after)
        except RequestError as error:
            return _form(ctx, path, text, fields.get("digest", ""), trouble=str(error), status=400)
        form = partial(_form, ctx, path, text, digest_of(before), check=check)
        if fields.get("digest") != digest_of(before):
            return form(trouble=_CHANGED, other=_text_of(before), status=409)
        if fields.get("do") != "save":
            return form()
        if check.standing < skill.standing and fields.get("confirmed") != digest_of(after):
            trouble = f"With this text the skill is {check.standing.shown}. Confirm it, and save."
            return form(trouble=trouble, confirms=digest_of(after), status=400)
        trouble = _write(ctx, skill, before, after)
    if trouble:
        return form(trouble=trouble, status=400)
    return f"/skills/{quote(path)}"


def _form(
    ctx: Context, path: str, text: str, digest: str, *, status: int = 200, **more: object
) -> Response:
    """Return the form of a text that replaces the file with this digest.

    `more` are: `check`; `trouble`; `other`, the text of the file if it was changed meanwhile;
    `confirms`, the digest of a text that needs a confirmation.
    """
    values = {"check": None, "trouble": "", "other": "", "confirms": "", **more}
    values |= {"path": path, "text": text, "digest": digest, "hidden": hidden.count(text)}
    return ctx.page("edit.html", status, **values)


def _current(ctx: Context, path: str) -> tuple[Skill, bytes]:
    """Return the skill at `path`, if it can be edited, and its SKILL.md as it is on disk now."""
    registry = ctx.runtime.registry
    for _ in range(2):
        skill = ctx.offering.skill_set.snapshot.skills.get(path)
        if skill is None:
            raise RequestError(_GONE)
        if not can_edit(ctx, skill):
            raise RequestError(_NOT_HERE)
        try:
            raw = registry.read(skill.files[SKILL_MD])
        except StaleFileError as error:
            registry.rescan(error.filename)
            continue
        _text_of(raw)
        return skill, raw
    raise RequestError("SKILL.md is being changed, or is gone; try again in a moment.")


def _text_of(raw: bytes) -> str:
    """Return a SKILL.md as the text of a form, with LF line ends.

    RequestError says that a browser would change it: it sends all line ends as CRLF.
    """
    try:
        text = raw.decode().replace("\r\n", "\n")
    except UnicodeDecodeError:
        raise RequestError("SKILL.md is not UTF-8; edit it by hand.") from None
    if "\r" in text or "\0" in text or _encoded(text, raw) != raw:
        fault = "SKILL.md has different kinds of line ends, or a NUL character"
        raise RequestError(f"{fault}; edit it by hand.")
    return text


def _encoded(text: str, before: bytes) -> bytes:
    """Return a text with the line ends of the file that it replaces."""
    raw = text.encode()
    if b"\r\n" in before:
        return raw.replace(b"\n", b"\r\n")
    return raw


def _check(ctx: Context, skill: Skill, after: bytes) -> _Check:
    """Validate a skill with another SKILL.md, in a temporary folder."""
    registry = ctx.runtime.registry
    before = files_of(registry, skill)
    files: Files = {**before, SKILL_MD: (after, before[SKILL_MD][1])}
    try:
        with trial(registry, skill.path, registry.roots[skill.root], files) as alone:
            tried = [one for one in alone.snapshot.skills.values() if SKILL_MD in one.files]
            tried.sort(key=lambda one: len(one.directory))  # nested skills come later
            top, problems = f"{alone.roots[0].shown}{os.sep}", alone.problems()
    except OSError as error:
        raise RequestError(f"The text cannot be checked ({error.strerror}).") from None
    standing = tried[0].standing if tried else Standing.UNUSABLE
    directory = f"{top}{tried[0].directory}" if tried else top
    shown = [(file_of(problem, directory, files), problem) for problem in problems]
    return _Check(standing, shown, compare(skill.path, before, files))


def _write(ctx: Context, skill: Skill, before: bytes, after: bytes) -> str:
    """Replace a SKILL.md and scan it again; return the fault, or ""."""
    registry = ctx.runtime.registry
    file = Path(registry.place(skill), SKILL_MD)
    try:
        if file.resolve(strict=True) != file:
            return _NOT_HERE
        if before != after:
            replace_file(file, after, stat.S_IMODE(file.stat().st_mode))
    except OSError as error:
        return f"SKILL.md cannot be written ({error.strerror}); nothing was changed."
    registry.refresh([str(file)], grace=False)
    return ""
