"""Protected resource metadata (RFC 9728), by which OAuth clients learn where to sign in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute, Route

from mcp_skills_server.access.oauth import WELL_KNOWN, ResourceServer
from mcp_skills_server.web.part import Part
from mcp_skills_server.web.settings import HttpSettings

_MAX_AGE_S: Final = 300


class ResourceMetadata(Part):
    """The metadata at the well-known path, at that with the path of the endpoint, and at that of the resource.

    Args:
        server: the resource server.
    """

    def __init__(self, server: ResourceServer) -> None:
        self._server = server
        self._paths = {WELL_KNOWN, f"{WELL_KNOWN}/mcp", urlsplit(server.metadata_url).path}

    def configure(self, http: HttpSettings) -> HttpSettings:
        """Take no token for the metadata."""
        policy = http.policy
        return replace(http, policy=replace(policy, open_at=policy.open_at | self._paths))

    def routes(self, http: HttpSettings) -> Sequence[BaseRoute]:  # noqa: ARG002
        """Return the routes of the metadata."""
        return [Route(path, self._answer, methods=["GET"]) for path in sorted(self._paths)]

    async def _answer(self, _: Request) -> JSONResponse:
        return JSONResponse(self._server.metadata, headers={"Cache-Control": f"public, max-age={_MAX_AGE_S}"})
