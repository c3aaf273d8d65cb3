"""Skills and snapshots built in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from mcp_skills_server.dialects.dialect import EntryContext
from mcp_skills_server.format.dependencies import Served
from mcp_skills_server.model import SKILL_MD, Reading, Skill, SkillFile, Snapshot, Standing

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)

AVAILABLE_SKILL = Draft202012Validator({
    "type": "object", "required": ["name", "description"], "additionalProperties": False,
    "properties": {
        "name": {"type": "string", "pattern": "^[a-z0-9]+(-[a-z0-9]+)*\\Z", "maxLength": 64},
        "description": {"type": "string", "minLength": 1, "maxLength": 1024},
        "license": {"type": "string"}, "compatibility": {"type": "string", "maxLength": 500},
        "allowedTools": {"type": "array", "items": {"type": "string"}}, "_meta": {"type": "object"},
    },
})  # fmt: skip
"""The schema of ACP's AvailableSkill."""


def skill(
    path: str,
    files: Iterable[str] = (),
    *,
    heading: str | None = None,
    standing: Standing = Standing.VALID,
    only: Mapping[str, Any] | None = None,
    **fields: Any,
) -> Skill:
    """Return a valid skill with these extra frontmatter fields, or `only` these. `_` stands for `-`."""
    name = path.rpartition("/")[2]
    frontmatter = {"name": name, "description": f"Does {name}."}
    frontmatter |= {key.replace("_", "-"): value for key, value in fields.items()}
    reading = Reading(frontmatter if only is None else only, heading, standing, ())
    sizes = {
        file: SkillFile(0, f"{path}/{file}", len(file), digest(f"{path}/{file}")) for file in sorted({SKILL_MD, *files})
    }
    return Skill(path, 0, path, reading, sizes, (), standing)


def digest(file: str) -> str:
    return "sha256:" + hashlib.sha256(file.encode()).hexdigest()


def subject(one: Skill, *others: Skill, served: Served | None = None, least: Standing = Standing.VALID) -> EntryContext:
    return EntryContext(one, snapshot(one, *others), least, served or Served())


def snapshot(*skills: Skill) -> Snapshot:
    return Snapshot({each.path: each for each in skills})
