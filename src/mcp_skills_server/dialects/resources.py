"""MCP's own resources: how SKILL.md and the files beside it look to `resources/*`.

Snapshot in, plain dicts out.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterable
from itertools import islice
from typing import Final

from mcp_skills_server.format import hidden, identity, media
from mcp_skills_server.format.uris import TEMPLATE, uri
from mcp_skills_server.model import ORIGIN, SKILL_MD, Json, Skill

LIST_CHANGED: Final = "notifications/resources/list_changed"
UPDATED: Final = "notifications/resources/updated"
META_PREFIX: Final = "io.modelcontextprotocol.skills/"
DIRECTORY: Final = "inode/directory"
MOST_COMPLETIONS: Final = 100
_META_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
"""The syntax of a `_meta` key in MCP; a field of another name is still in the skill's entry."""
_SHOWN_ELSEWHERE: Final = frozenset(("name", "description"))


def descriptor(skill: Skill, title: str | None) -> dict[str, Json]:
    """Return a SKILL.md as `resources/list` shows it: metadata and the rest of the frontmatter.

    Name and description are without hidden characters; `_meta` is verbatim.
    """
    out: dict[str, Json] = {"uri": uri(skill.path, SKILL_MD), "name": hidden.without(skill.name)}
    if title:
        out["title"] = title
    if skill.description:
        out["description"] = hidden.without(skill.description)
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


def child(
    name: str, target: str, found: tuple[Skill, str] | None, title: str | None
) -> dict[str, Json]:
    """Return one child of a directory: a SKILL.md with its metadata, another file, or a
    directory."""
    if found is None:
        return {"uri": target, "name": name, "mimeType": DIRECTORY}
    skill, path = found
    if path == SKILL_MD:
        return descriptor(skill, title)
    out: dict[str, Json] = {"uri": target, "name": name}
    kind = media.media_type(path)
    if kind:
        out["mimeType"] = kind
    out["size"] = skill.files[path].size
    return out


def completion(values: Iterable[str]) -> dict[str, Json]:
    """Return the answer of `completion/complete`: the first 100 of these values, and whether there
    are more."""
    kept: list[Json] = [*islice(values, MOST_COMPLETIONS + 1)]
    more = len(kept) > MOST_COMPLETIONS
    return {
        "resultType": "complete",
        "completion": {"values": kept[:MOST_COMPLETIONS], "hasMore": more},
    }


def listing(descriptors: list[Json], next_cursor: str | None, ttl_ms: int) -> dict[str, Json]:
    """Return the answer of `resources/list`."""
    out = _cacheable("resources", descriptors, ttl_ms)
    if next_cursor is not None:
        out["nextCursor"] = next_cursor
    return out


def template_listing(ttl_ms: int) -> dict[str, Json]:
    """Return the answer of `resources/templates/list`: the one template that every file of every
    skill fits."""
    template: Json = {
        "uriTemplate": TEMPLATE,
        "name": "skill-file",
        "title": "File of a skill",
        "description": "Any file of any skill: skill://<skill path>/<file path>",
    }
    return _cacheable("resourceTemplates", [template], ttl_ms)


def content(target: str, path: str, raw: bytes) -> dict[str, Json]:
    """Return one file as `resources/read` answers it: text where it is text, else a blob, byte for
    byte."""
    kind = media.media_type(path)
    text = media.as_text(raw, kind)
    if text is not None:
        return {"uri": target, "mimeType": kind or "text/plain", "text": text}
    return {
        "uri": target,
        "mimeType": kind or "application/octet-stream",
        "blob": b64encode(raw).decode("ascii"),
    }


def contents(items: list[Json], ttl_ms: int) -> dict[str, Json]:
    """Return the answer of `resources/read`."""
    return _cacheable("contents", items, ttl_ms)


def _cacheable(key: str, items: list[Json], ttl_ms: int) -> dict[str, Json]:
    return {"resultType": "complete", key: items, "ttlMs": ttl_ms, "cacheScope": "private"}
