"""Publishing over HTTP: discovery indexes and archives, AI catalogs, and the Server Card."""

from __future__ import annotations

import hashlib
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mcp_skills_server import __version__
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.views import FilteredSkills, Views
from mcp_skills_server.dialects import aicatalog, jsonrpc
from mcp_skills_server.dialects.aicatalog import ARD, CARD, CATALOG
from mcp_skills_server.errors import PROGRAM
from mcp_skills_server.publish.artifacts import RetentionPolicy
from mcp_skills_server.publish.publication import Publication
from mcp_skills_server.server.eras import LEGACY_VERSIONS, MODERN_VERSIONS
from mcp_skills_server.web.discovery import (
    MAX_AGE_S,
    PREFIXES,
    Discovery,
    DiscoveryByGrants,
    matches_tag,
    site_of,
)
from mcp_skills_server.web.part import Part
from mcp_skills_server.web.policy import Policy

_CARD_MAX_AGE_S: Final = 300


def publishing_part(
    views: Views, policy: Policy, root_path: str = "", *, is_open: bool, alone: bool, grace_s: float
) -> Part:
    """Return the endpoints of the documents that a server publishes.

    Args:
        root_path: the path prefix that clients see.
        is_open: whether the documents need no token, even where MCP does.
        alone: whether only documents are served, and no MCP.
        grace_s: seconds that an artifact stays available after the index drops it.
    """
    logged = set[str]()

    def make(skill_set: Registry | FilteredSkills) -> Discovery:
        keeping = RetentionPolicy(seconds=grace_s)
        return Discovery(
            Publication(skill_set, root_path, keeping=keeping),
            logged,
            is_public=policy.is_open or is_open,
            any_origin="*" in policy.origins,
            has_card=not alone,
            max_age=min(MAX_AGE_S, int(grace_s)),
        )

    discovery = DiscoveryByGrants(views, make)
    paths = [*(prefix.rstrip("/") + "{rest:path}" for prefix in PREFIXES), CATALOG, ARD]
    routes = [Route(path, discovery) for path in paths]
    open_at = {ARD, CATALOG} if is_open else set[str]()
    if not alone:
        routes.append(Route(CARD, _card, methods=["GET"]))
        open_at.add(CARD)
    return Part(routes, frozenset(open_at), PREFIXES if is_open else ())


def _card(request: Request) -> Response:
    """Return the Server Card, which needs no token and which any browser may read."""
    versions = [*LEGACY_VERSIONS, *MODERN_VERSIONS]
    raw = jsonrpc.dump(
        aicatalog.server_card(f"{site_of(request.scope)}/mcp", PROGRAM, __version__, versions)
    )
    etag = f'"{hashlib.sha256(raw).hexdigest()}"'
    headers = {
        "ETag": etag,
        "Cache-Control": f"public, max-age={_CARD_MAX_AGE_S}",
        "Access-Control-Allow-Origin": "*",
        "Access-Control-Expose-Headers": "ETag",
        "Link": aicatalog.LINKS,
    }
    if matches_tag(request.headers.get("if-none-match", ""), etag, weakly=True):
        return Response(status_code=304, headers=headers)
    return Response(raw, headers=headers, media_type=aicatalog.CARD_MEDIA_TYPE)
