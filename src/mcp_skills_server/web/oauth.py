"""OAuth over HTTP: protected resource metadata (RFC 9728), and bounded requests to the issuer."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from mcp_skills_server.access.oauth import ResourceServer
from mcp_skills_server.access.settings import WELL_KNOWN
from mcp_skills_server.sources.http import Hop, HttpClient
from mcp_skills_server.sources.source import Bounds
from mcp_skills_server.web.part import Part

_MAX_AGE_S: Final = 300
_MAX_BYTES: Final = 1 << 20
_TIMEOUT_S: Final = 5.0


def metadata_part(server: ResourceServer) -> Part:
    """Return the metadata: at the well-known path, and below it of the endpoint and resource."""

    async def answer(_: Request) -> JSONResponse:
        headers = {"Cache-Control": f"public, max-age={_MAX_AGE_S}"}
        return JSONResponse(server.metadata, headers=headers)

    paths = {WELL_KNOWN, f"{WELL_KNOWN}/mcp", urlsplit(server.metadata_url).path}
    routes = [Route(path, answer, methods=["GET"]) for path in sorted(paths)]
    return Part(routes, open_at=frozenset(paths))


async def fetch(url: str, form: bytes | None = None) -> tuple[int, bytes]:
    """Return the status and the body of a GET, or of a POST of this form.

    Redirects are not followed. The body of an error is read only after a POST, since RFC 6749 sends
    errors there (status 400). The proxy of the environment is used, if any.

    Raises:
        SkillsServerError: there is no whole response within 5 seconds and 1 MiB.
    """
    headers = {"Accept": "application/json"}
    method, max_error_bytes = "GET", 0
    if form is not None:
        headers["Content-Type"] = "application/x-www-form-urlencoded"
        method, max_error_bytes = "POST", _MAX_BYTES
    bounds = Bounds(read_s=_TIMEOUT_S, download_s=_TIMEOUT_S)
    async with HttpClient(bounds, connections=1) as client:
        response = await client.request(
            method,
            url,
            headers,
            lambda _: Hop(private=True),
            max_bytes=_MAX_BYTES,
            max_error_bytes=max_error_bytes,
            content=form,
            follow=False,
        )
    return response.status, response.body
