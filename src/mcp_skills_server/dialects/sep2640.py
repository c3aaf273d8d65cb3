"""SEP-2640 v1, the extension `io.modelcontextprotocol/skills`: skills asked for by the URI of their SKILL.md.

Snapshot in, plain dicts out. An entry holds the frontmatter verbatim and every file with digest and size.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mcp_skills_server.errors import RequestError, clipped
from mcp_skills_server.format import uris
from mcp_skills_server.format.uris import uri
from mcp_skills_server.model import SKILL_MD, Json, Skill, Snapshot, Standing

NAME: Final = "sep-2640"
EXTENSION: Final = "io.modelcontextprotocol/skills"


def settings() -> dict[str, Json]:
    """What the capability says: an inline object (S40-1, S40C-1)."""
    return {"directoryRead": True}


def find(snapshot: Snapshot, target: str) -> Skill:
    """The skill whose SKILL.md has this URI (S40-23, S40-25).

    Raises:
        RequestError: it is not the URI of a served SKILL.md, but of nothing, a file or a directory (S40-24).
    """
    found = uris.find(snapshot, target, Standing.VALID)
    if found is None or found[1] != SKILL_MD:
        raise RequestError(f"Unknown skill URI: {clipped(target)}")
    return found[0]


def entry(skill: Skill, digests: Mapping[str, str]) -> dict[str, Json]:
    """A skill as `skills/list` and `skills/get` show it (S40-12...18). `digests` are those of its files, by path."""
    resources: list[Json] = [
        {"uri": uri(skill.path, path), "digest": digests[path], "size": file.size} for path, file in skill.files.items()
    ]
    return {"uri": uri(skill.path, SKILL_MD), "frontmatter": dict(skill.frontmatter), "resources": resources}


def framed(result: Mapping[str, Json], ttl_ms: int) -> dict[str, Json]:
    """A result of `skills/list` or `skills/get` as this dialect sends it, in both eras (S40-20, S40-23)."""
    return {"resultType": "complete", **result, "ttlMs": ttl_ms, "cacheScope": "private"}


def one(entry: Json) -> dict[str, Json]:
    """The answer of `skills/get` before it is framed."""
    return {"skill": entry}
