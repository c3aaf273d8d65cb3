"""Publishing over HTTP: discovery indexes and archives, AI catalogs, and the Server Card."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from mcp_skills_server import __version__
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.views import FilteredSkills, Views
from mcp_skills_server.dialects import aicatalog, jsonrpc
from mcp_skills_server.dialects.aicatalog import ARD, CARD, CATALOG
from mcp_skills_server.dialects.wellknown import DIRECTORY, INDEX
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
from mcp_skills_server.web.settings import HttpSettings

_NAME: Final = "mcp-skills-server"
_CARD_MAX_AGE_S: Final = 300


class Publisher(Part):
    """Endpoints of the documents that a server publishes.

    Args:
        is_open: whether the documents need no token, even where MCP does.
        alone: whether only documents are served, and no MCP.
        grace_s: seconds that an artifact stays available after the index drops it.
    """

    def __init__(self, views: Views, *, is_open: bool, alone: bool, grace_s: float) -> None:
        self._views = views
        self._is_open = is_open
        self._alone = alone
        self._grace_s = grace_s

    def configure(self, http: HttpSettings) -> HttpSettings:
        """Exempt the Server Card from tokens and, if `is_open`, all that is published."""
        policy = http.policy
        if self._is_open:
            below = (*policy.open_below, *PREFIXES)
            policy = replace(policy, open_below=below, open_at=policy.open_at | {ARD, CATALOG})
        if self._alone:
            return replace(http, policy=policy, answers_mcp=False, start_path=DIRECTORY + INDEX)
        return replace(http, policy=replace(policy, open_at=policy.open_at | {CARD}))

    def routes(self, http: HttpSettings) -> Sequence[BaseRoute]:
        """Return the routes of discovery and, with MCP, of the Server Card."""
        logged = set[str]()

        def make(skill_set: Registry | FilteredSkills) -> Discovery:
            keeping = RetentionPolicy(seconds=self._grace_s)
            publication = Publication(skill_set, http.root_path, keeping=keeping)
            return Discovery(publication, logged, http, min(MAX_AGE_S, int(self._grace_s)))

        discovery = DiscoveryByGrants(self._views, make)
        paths = [*(prefix.rstrip("/") + "{rest:path}" for prefix in PREFIXES), CATALOG, ARD]
        routes = [Route(path, discovery) for path in paths]
        if http.answers_mcp:
            routes.append(Route(CARD, _card, methods=["GET"]))
        return routes


def _card(request: Request) -> Response:
    """Return the Server Card, which needs no token and which any browser may read."""
    versions = [*LEGACY_VERSIONS, *MODERN_VERSIONS]
    raw = jsonrpc.dump(
        aicatalog.server_card(f"{site_of(request.scope)}/mcp", _NAME, __version__, versions)
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
