"""MCP resources: encoding of SKILL.md and the other skill files for `resources/*`.

Pure functions of a snapshot.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterable
from itertools import islice
from typing import Final

from mcp_skills_server.dialects.dialect import cacheable
from mcp_skills_server.format import hidden, identity, media
from mcp_skills_server.format.uris import TEMPLATE, uri
from mcp_skills_server.model import ORIGIN, SKILL_MD, Json, Skill

LIST_CHANGED: Final = "notifications/resources/list_changed"
UPDATED: Final = "notifications/resources/updated"
META_PREFIX: Final = "io.modelcontextprotocol.skills/"
DIRECTORY: Final = "inode/directory"
MAX_COMPLETIONS: Final = 100
_META_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
"""The syntax of a `_meta` key in MCP; other fields are left to the skill's entry."""
_SHOWN_ELSEWHERE: Final = frozenset(("name", "description"))


def descriptor(skill: Skill) -> dict[str, Json]:
    """Return the `resources/list` entry of a SKILL.md, with other frontmatter fields in `_meta`.

    Hidden characters are removed from name and description; `_meta` is verbatim.
    """
    out: dict[str, Json] = {"uri": uri(skill.path, SKILL_MD), "name": hidden.strip(skill.name)}
    if title := identity.title(skill):
        out["title"] = title
    if skill.description:
        out["description"] = hidden.strip(skill.description)
    out["mimeType"] = media.MARKDOWN
    out["size"] = skill.files[SKILL_MD].size
    meta: dict[str, Json] = {
        META_PREFIX + key: value
        for key, value in skill.frontmatter.items()
        if key not in _SHOWN_ELSEWHERE and _META_NAME.fullmatch(key)
    }
    if (origin := identity.origin(skill)) is not None:
        meta[ORIGIN] = origin
    if meta:
        out["_meta"] = meta
    return out


def child(name: str, target: str, inside: tuple[Skill, str] | None) -> dict[str, Json]:
    """Return the entry of a directory's child: a SKILL.md, another file, or a directory."""
    if inside is None:
        return {"uri": target, "name": name, "mimeType": DIRECTORY}
    skill, path = inside
    if path == SKILL_MD:
        return descriptor(skill)
    out: dict[str, Json] = {"uri": target, "name": name}
    if kind := media.media_type(path):
        out["mimeType"] = kind
    return {**out, "size": skill.files[path].size}


def completion(values: Iterable[str]) -> dict[str, Json]:
    """Return the result of `completion/complete`, with at most 100 values."""
    kept: list[Json] = [*islice(values, MAX_COMPLETIONS + 1)]
    more = len(kept) > MAX_COMPLETIONS
    offered: Json = {"values": kept[:MAX_COMPLETIONS], "hasMore": more}
    return {"resultType": "complete", "completion": offered}


def listing(descriptors: list[Json], next_cursor: str | None, ttl_ms: int) -> dict[str, Json]:
    """Return the result of `resources/list`."""
    return cacheable({"resources": descriptors}, ttl_ms, next_cursor)


def template_listing(ttl_ms: int) -> dict[str, Json]:
    """Return the result of `resources/templates/list`: one URI template for all skill files."""
    template: Json = {
        "uriTemplate": TEMPLATE,
        "name": "skill-file",
        "title": "File of a skill",
        "description": "Any file of any skill: skill://<skill path>/<file path>",
    }
    return cacheable({"resourceTemplates": [template]}, ttl_ms)


def content(target: str, path: str, raw: bytes) -> dict[str, Json]:
    """Return a file as content of `resources/read`: text if possible, else a base64 blob."""
    kind = media.media_type(path)
    text = media.as_text(raw, kind)
    if text is not None:
        return {"uri": target, "mimeType": kind or "text/plain", "text": text}
    blob = b64encode(raw).decode("ascii")
    return {"uri": target, "mimeType": kind or "application/octet-stream", "blob": blob}


def contents(items: list[Json], ttl_ms: int) -> dict[str, Json]:
    """Return the result of `resources/read`."""
    return cacheable({"contents": items}, ttl_ms)
