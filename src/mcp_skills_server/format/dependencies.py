"""Resolution of a skill's declared dependencies against the server's own tools and resources."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import NamedTuple

from mcp_skills_server.format import fields, uris
from mcp_skills_server.model import Skill, Snapshot, Standing

FIELD = "dependencies"


class Served(NamedTuple):
    """Names of the server's tools and prompts, and URIs or URI templates of its own resources."""

    tools: Container[str] = ()
    prompts: Container[str] = ()
    resources: Container[str] = ()


class Dependencies(NamedTuple):
    """Served dependencies of a skill in declared order, and labels of missing ones ("tool x")."""

    tools: tuple[str, ...] = ()
    prompts: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


def resolve(skill: Skill, snapshot: Snapshot, served: Served, least: Standing) -> Dependencies:
    """Return the dependencies of a skill, split into those that the server serves and others."""
    given = skill.frontmatter.get(FIELD)
    if not isinstance(given, dict):
        return Dependencies()
    missing: list[str] = []

    def kept(kind: str, names: list[str], is_served: Callable[[str], bool]) -> tuple[str, ...]:
        missing.extend(f"{kind} {name}" for name in names if not is_served(name))
        return tuple(name for name in names if is_served(name))

    def is_resource(uri: str) -> bool:
        return uri in served.resources or uris.find(snapshot, uri, least) is not None

    prompts = fields.references(given.get("prompts"), "name")
    return Dependencies(
        kept("tool", fields.texts(given.get("tools")), served.tools.__contains__),
        kept("prompt", prompts, served.prompts.__contains__),
        kept("resource", fields.references(given.get("resources"), "uri"), is_resource),
        tuple(missing),
    )
