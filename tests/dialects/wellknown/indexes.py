"""Index entries of Agent Skills Discovery, and indexes decoded from them."""

from __future__ import annotations

import json
from typing import Any

from mcp_skills_server.dialects.wellknown import SCHEMA, SiteIndex, decode

HEX = "0123456789abcdef" * 4
DIGEST = f"sha256:{HEX}"
URL = "https://example.com/.well-known/agent-skills/index.json"
OLD_URL = "https://example.com/.well-known/skills/index.json"


def fields(**other: Any) -> dict[str, Any]:
    """Return an entry of 0.2.0 with these fields changed, or removed if the value is `...`."""
    out = {"name": "a", "type": "archive", "description": "Does a.", "url": "/a.tar.gz", "digest": DIGEST, **other}
    return {key: value for key, value in out.items() if value is not ...}


def old_fields(**other: Any) -> dict[str, Any]:
    out = {"name": "a", "description": "Does a.", "files": ["SKILL.md", "b/c.md"], **other}
    return {key: value for key, value in out.items() if value is not ...}


def decode_index(*entries: Any, url: str = URL, **top: Any) -> SiteIndex:
    return decode(json.dumps({"$schema": SCHEMA, "skills": list(entries), **top}).encode(), url)


def decode_old_index(*entries: Any, url: str = OLD_URL) -> SiteIndex:
    return decode(json.dumps({"skills": list(entries)}).encode(), url)
