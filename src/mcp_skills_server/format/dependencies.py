"""Dependencies that a skill declares, resolved against what the same server serves."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import NamedTuple

from mcp_skills_server.format import fields, uris
from mcp_skills_server.model import Skill, Snapshot, Standing

FIELD = "dependencies"


class Served(NamedTuple):
    """Names of tools and prompts, and URIs and URI templates of resources, of the same server
    beside skills."""

    tools: Container[str] = ()
    prompts: Container[str] = ()
    resources: Container[str] = ()


class Dependencies(NamedTuple):
    """Dependencies of a skill that are served, in declared order, and words for those that are not
    ("tool x")."""

    tools: tuple[str, ...] = ()
    prompts: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


_NONE = Dependencies()


def resolve(skill: Skill, snapshot: Snapshot, served: Served, least: Standing) -> Dependencies:
    """Return what the skill depends on, apart by whether this server really serves it."""
    given = skill.frontmatter.get(FIELD)
    if not isinstance(given, dict):
        return _NONE
    missing: list[str] = []

    def kept(kind: str, names: list[str], is_served: Callable[[str], bool]) -> tuple[str, ...]:
        missing.extend(f"{kind} {name}" for name in names if not is_served(name))
        return tuple(name for name in names if is_served(name))

    def is_resource(uri: str) -> bool:
        return uri in served.resources or uris.find(snapshot, uri, least) is not None

    return Dependencies(
        kept("tool", fields.texts(given.get("tools")), served.tools.__contains__),
        kept(
            "prompt", fields.references(given.get("prompts"), "name"), served.prompts.__contains__
        ),
        kept("resource", fields.references(given.get("resources"), "uri"), is_resource),
        tuple(missing),
    )
