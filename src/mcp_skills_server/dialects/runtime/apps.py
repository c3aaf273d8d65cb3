"""MCP App (SEP-1865): HTML views in which a host shows the catalogue and a loaded skill.

Tools have the views in their `_meta` only for hosts that declare the extension with its media type.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from mcp_skills_server.dialects.dialect import is_initial
from mcp_skills_server.dialects.runtime.words import LIST, LOAD
from mcp_skills_server.model import Json

EXTENSION: Final = "io.modelcontextprotocol/ui"
_MIME_TYPE: Final = "text/html;profile=mcp-app"
_CATALOGUE: Final = "ui://mcp-skills-server/catalogue"
_SKILL: Final = "ui://mcp-skills-server/skill"
_VIEW_OF: Final = {LIST: _CATALOGUE, LOAD: _SKILL}
_DOMAINS: Final = ("connectDomains", "resourceDomains", "frameDomains", "baseUriDomains")
_META: Final[dict[str, Json]] = {
    "ui": {"csp": {domain: [] for domain in _DOMAINS}, "prefersBorder": True}
}
"""A content security policy without any external origin."""


def is_declared(extensions: Mapping[str, Any]) -> bool:
    """Return whether the client extensions declare support of HTML views."""
    settings: Mapping[str, Any] = extensions.get(EXTENSION, {})
    kinds: object = settings.get("mimeTypes")
    return is_initial(settings) and isinstance(kinds, list) and _MIME_TYPE in kinds


def descriptors() -> list[Json]:
    """Return the `resources/list` entries of the views."""
    about = "The instructions of a loaded skill."
    search = "Search and load skills."
    return [
        _view(_CATALOGUE, name="skills-catalogue", title="Skills", description=search),
        _view(_SKILL, name="loaded-skill", title="Loaded skill", description=about),
    ]


def content(target: str, html: str) -> Json:
    """Return the content of the view at `target` for `resources/read`."""
    return _view(target, text=html)


def is_view(target: str) -> bool:
    """Return whether `target` is the URI of a view."""
    return target in _VIEW_OF.values()


def with_views(tools: Sequence[Mapping[str, Json]]) -> list[dict[str, Json]]:
    """Add the views to the `_meta` of tools, without the deprecated flat key `ui/resourceUri`."""
    out = [dict(tool) for tool in tools]
    for tool in out:
        view = _VIEW_OF.get(str(tool["name"]))
        if view is not None:
            tool["_meta"] = {"ui": {"resourceUri": view}}
    return out


def _view(target: str, **more: str) -> dict[str, Json]:
    return {"uri": target, "mimeType": _MIME_TYPE, **more, "_meta": _META}
