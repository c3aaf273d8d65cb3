"""The SEP-2640 v1 dialect, extension `io.modelcontextprotocol/skills`: skills identified by URI.

Pure functions of a snapshot. The URI is that of SKILL.md. An entry has the verbatim frontmatter,
and the digest and size of every file.
"""

from __future__ import annotations

from typing import Final

from mcp_skills_server.dialects.dialect import Dialect, Entry, EntryResult, Result, cacheable
from mcp_skills_server.errors import RequestError, clipped
from mcp_skills_server.format import uris
from mcp_skills_server.format.uris import uri
from mcp_skills_server.model import SKILL_MD, Json, Skill, Snapshot, Standing

EXTENSION: Final = "io.modelcontextprotocol/skills"


def find(snapshot: Snapshot, target: str, least: Standing = Standing.VALID) -> Skill:
    """Return the skill whose SKILL.md has this URI.

    Raises:
        RequestError: it is not the URI of a served SKILL.md.
    """
    target_file = uris.find(snapshot, target, least)  # S40-23, S40-25
    if target_file is None or target_file[1] != SKILL_MD:
        raise RequestError(f"Unknown skill URI: {clipped(target)}")  # S40-24
    return target_file[0]


def entry(skill: Skill) -> Entry:
    """Return the entry of a skill in `skills/list` and `skills/get`, with its readable files."""
    resources: list[Json] = [
        {"uri": uri(skill.path, path), "digest": file.digest, "size": file.size}
        for path, file in skill.files.items()
        if file.digest
    ]
    target, frontmatter = uri(skill.path, SKILL_MD), dict(skill.reading.frontmatter)
    return {"uri": target, "frontmatter": frontmatter, "resources": resources}


def _result(entry: Entry) -> Result:
    return {"skill": entry}


DIALECT: Final = Dialect(
    name="sep-2640",
    least=Standing.VALID,  # S40-5
    extensions={EXTENSION: {"directoryRead": True}},  # S40-1, S40C-1
    entry=lambda context: entry(context.skill),
    needs_served=lambda _: False,
    parameter="uri",
    find=find,
    result=EntryResult(_result),
    with_envelope=cacheable,  # S40-20, in both eras
)
