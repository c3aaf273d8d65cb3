"""A look of a viewer without a server."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from catalog.forest import loaded
from mcp_skills_server.access.grants import Grants
from mcp_skills_server.access.principal import Principal
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.views import Views
from mcp_skills_server.runtime.runtime import Runtime
from mcp_skills_server.server.requests import Settings
from mcp_skills_server.sources.mirrors import SourceState
from mcp_skills_server.web.guards import make_policy
from mcp_skills_server.web.settings import HttpSettings, UiSettings
from mcp_skills_server.web.ui.app import PagePart
from mcp_skills_server.web.ui.context import Context


def look_at(
    *roots: Path,
    settings: Settings | None = None,
    sources: Sequence[SourceState] = (),
    registry: Registry | None = None,
    grants: Grants | None = None,
    principal: Principal | None = None,
) -> Context:
    """What a viewer sees of these roots, read once."""
    runtime = Runtime(registry or loaded(*roots))
    page = PagePart(runtime, settings or Settings(), UiSettings(), Views(runtime.registry, grants))
    page.routes(HttpSettings("127.0.0.1", 0, make_policy("127.0.0.1", (), (), ()), site_states=lambda: sources))
    return page._context(principal)
