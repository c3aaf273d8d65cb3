"""The built-in skill `skills.protocol.guide`, whose files are package data."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import cast

from mcp_skills_server.format import frontmatter, manifest
from mcp_skills_server.format.manifest import SKILL_TOML, Manifest
from mcp_skills_server.model import SKILL_MD, Json


@cache
def files() -> dict[str, bytes]:
    """Return the files of the bundle by path."""
    here = resources.files(__name__)
    return {name: here.joinpath(name).read_bytes() for name in (SKILL_MD, SKILL_TOML)}


@cache
def described() -> tuple[Manifest, dict[str, Json]]:
    """Return the guide's manifest and frontmatter."""
    fields = dict(frontmatter.parse(files()[SKILL_MD]).frontmatter or {})
    return cast(Manifest, manifest.read(files()[SKILL_TOML], fields, "guide").manifest), fields
