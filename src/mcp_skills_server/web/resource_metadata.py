"""What clients need to sign in, as RFC 9728 has it: which issuer, which scopes, and by what name the server is known.

It stands at the well-known place, at that with the path of the endpoint, and at that with the path of the resource as
clients know it, and is read without a token.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from mcp_skills_server.access.oauth import WELL_KNOWN, ResourceServer

_MAX_AGE_S: Final = 300


def paths(server: ResourceServer) -> frozenset[str]:
    """The paths at which it stands."""
    return frozenset((WELL_KNOWN, f"{WELL_KNOWN}/mcp", urlsplit(server.metadata_url).path))


def routes(server: ResourceServer) -> list[Route]:
    """The routes of it."""

    async def metadata(_: Request) -> JSONResponse:
        return JSONResponse(server.metadata, headers={"Cache-Control": f"public, max-age={_MAX_AGE_S}"})

    return [Route(path, metadata, methods=["GET"]) for path in sorted(paths(server))]
