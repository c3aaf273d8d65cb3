"""Indexes made by hand, and what is read of them."""

from __future__ import annotations

import json
from typing import Any

from mcp_skills_server.dialects import wellknown
from mcp_skills_server.dialects.wellknown import SCHEMA, IndexLimits, SiteIndex, decode
from mcp_skills_server.model import Skill

HEX = "0123456789abcdef" * 4
DIGEST = f"sha256:{HEX}"
URL = "https://example.com/.well-known/agent-skills/index.json"
OLD_URL = "https://example.com/.well-known/skills/index.json"


def fields(**other: Any) -> dict[str, Any]:
    """An entry of 0.2.0 in which these fields are otherwise, or gone where they are `...`."""
    out = {"name": "a", "type": "archive", "description": "Does a.", "url": "/a.tar.gz", "digest": DIGEST, **other}
    return {key: value for key, value in out.items() if value is not ...}


def old_fields(**other: Any) -> dict[str, Any]:
    """An entry of 0.1.0, likewise."""
    out = {"name": "a", "description": "Does a.", "files": ["SKILL.md", "b/c.md"], **other}
    return {key: value for key, value in out.items() if value is not ...}


def read(*entries: Any, url: str = URL, **top: Any) -> SiteIndex:
    return decode(json.dumps({"$schema": SCHEMA, "skills": list(entries), **top}).encode(), url)


def read_old(*entries: Any, url: str = OLD_URL, limits: IndexLimits | None = None, **top: Any) -> SiteIndex:
    return decode(json.dumps({"skills": list(entries), **top}).encode(), url, limits)


def published(*skills: Skill, suffix: str = ".tar.gz") -> list[Any]:
    return [
        (each, wellknown.artifact(each.name, DIGEST, "" if wellknown.kind(each) == "skill-md" else suffix))
        for each in skills
    ]
