"""Answers of `skills_read`: a part of a text, a picture or sound, or bytes; of a skill, or of a script's output."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from mcp_skills_server.catalog.threads import in_thread
from mcp_skills_server.dialects import runtime
from mcp_skills_server.dialects.runtime import ToolResult
from mcp_skills_server.errors import RequestError
from mcp_skills_server.format import media
from mcp_skills_server.format.uris import uri
from mcp_skills_server.model import Skill, Standing

if TYPE_CHECKING:
    from mcp_skills_server.runtime.runtime import RuntimeSettings
    from mcp_skills_server.runtime.scripts.workspace import Workspace

_MOST_OUTPUT: Final = 16 << 20
"""Bytes of a file that a script left and that is read."""


def skill_file(skill: Skill, path: str, raw: bytes, given: Mapping[str, Any], settings: RuntimeSettings) -> ToolResult:
    """Return a file of a skill, of which the model wants what `given` says."""
    text = media.as_text(raw, media.media_type(path))
    if text is None:
        target = uri(skill.path, path) if skill.standing is Standing.VALID else None
        return runtime.binary_file(path, target, raw, settings.media_bytes)
    return _part(path, text, given, settings)


async def output_file(
    workspace: Workspace | None, path: str, given: Mapping[str, Any], settings: RuntimeSettings, *, elsewhere: bool
) -> ToolResult:
    """Return a file that a script of a session left in its work directory.

    Args:
        workspace: the work directory here; None where there is none.
        path: the file's path in it.
        given: what the model wants of it.
        settings: how much is shown.
        elsewhere: whether the session's last script ran on another replica.

    Raises:
        RequestError: there is no such file here; the message says why.
    """
    try:
        if workspace is None:
            raise RequestError(f"No script has run in this session, so there is nothing in {runtime.WORKSPACE}")
        raw = await in_thread(workspace.read, path, _MOST_OUTPUT)
    except RequestError:
        if not elsewhere:
            raise
        raise RequestError(
            f"A script of this session ran on another replica of this server, and what it left in "
            f"{runtime.WORKSPACE} is on that machine's disk only; run the script again to have its files here"
        ) from None
    shown = runtime.WORKSPACE + path
    text = media.as_text(raw, media.media_type(path))
    if text is None:
        return runtime.made_file(shown, raw, settings.media_bytes)
    return _part(shown, text, given, settings)


def _part(path: str, text: str, given: Mapping[str, Any], settings: RuntimeSettings) -> ToolResult:
    start, most = int(given.get("start_line", 1)), given.get("max_lines")
    most = None if most is None else int(most)
    within = int(given.get("start_character", 1))
    return runtime.text_file(path, text, start, most, settings.result_characters, start_character=within)
