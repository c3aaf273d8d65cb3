"""Which notifications a difference of the catalogue calls for. They say "fetch again" and carry no data."""

from __future__ import annotations

from typing import TypeAlias

from mcp_skills_server.dialects import prompts as prompt_dialect
from mcp_skills_server.dialects import resources as resource_dialect
from mcp_skills_server.dialects import runtime
from mcp_skills_server.format.uris import uri
from mcp_skills_server.model import Changes
from mcp_skills_server.server import prompts, resources
from mcp_skills_server.server.requests import Settings

Notice: TypeAlias = "tuple[str, str | None]"
"""A notification method, and the URI that it is about, if it is about one."""


def lists(settings: Settings) -> list[Notice]:
    """That every list may be another."""
    methods = [*settings.spoken.notifications.values(), resource_dialect.LIST_CHANGED]
    if settings.tools:
        methods.append(runtime.LIST_CHANGED)
    if settings.prompts:
        methods.append(prompt_dialect.LIST_CHANGED)
    return [(method, None) for method in methods]


def notices(changes: Changes, settings: Settings, *, tools: bool) -> list[Notice]:
    """What clients may hear of these changes; `tools` tells whether the list of tools is another."""
    least = settings.least
    before = {path: skill for path, skill in changes.before.items() if skill.standing >= least}
    after = {path: skill for path, skill in changes.after.items() if skill.standing >= least}
    out: list[Notice] = []
    changed = {path for path, _ in changes.files}
    if before.keys() != after.keys() or changed & before.keys():
        out += [(method, None) for method in settings.spoken.notifications.values()]
    if {path: resources.descriptor(skill) for path, skill in before.items()} != {
        path: resources.descriptor(skill) for path, skill in after.items()
    }:
        out.append((resource_dialect.LIST_CHANGED, None))
    for path, file_path in sorted(changes.files):
        if path in before or path in after:
            out.append((resource_dialect.UPDATED, uri(path, file_path)))
    if tools:
        out.append((runtime.LIST_CHANGED, None))
    if settings.prompts and prompts.changed(changes, settings):
        out.append((prompt_dialect.LIST_CHANGED, None))
    return out
