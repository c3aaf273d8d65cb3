"""How the metadata and the keys of an issuer are fetched: bounded, without redirects, and never twice for one look."""

from __future__ import annotations

from typing import Final

import anyio

from mcp_skills_server import __version__
from mcp_skills_server.sources.connections import Connections
from mcp_skills_server.sources.exchange import Exchange, slow
from mcp_skills_server.sources.settings import Bounds

_MOST_BYTES: Final = 1 << 20
_MOST_S: Final = 5.0
_HEADERS: Final = {
    "Accept": "application/json",
    "Accept-Encoding": "identity",
    "User-Agent": f"mcp-skills-server/{__version__}",
}
_FORM: Final = {"Content-Type": "application/x-www-form-urlencoded"}


async def fetch(url: str) -> tuple[int, bytes]:
    """The status and the body of what a URL answers; of a redirect its status, and nobody goes there.

    The proxy of the environment is used where there is one.

    Raises:
        SkillsServerError: no whole answer within 5 seconds and 1 MiB.
    """
    return await _send("GET", url, _HEADERS)


async def post(url: str, form: bytes) -> tuple[int, bytes]:
    """The same for a form that is sent there.

    Raises:
        SkillsServerError: as for `fetch`.
    """
    return await _send("POST", url, {**_HEADERS, **_FORM, "Content-Length": str(len(form))}, form)


async def _send(method: str, url: str, headers: dict[str, str], content: bytes | None = None) -> tuple[int, bytes]:
    exchange = Exchange(Bounds(read_s=_MOST_S, download_s=_MOST_S))
    connections = Connections(1, private=True)
    try:
        with anyio.fail_after(_MOST_S):
            async with exchange.send(method, url, headers, connections, content) as (status, answered, response):
                wanted = status == 200 or method == "POST"  # an error of RFC 6749 has a body, with status 400
                body = await exchange.body(url, _MOST_BYTES, answered, response) if wanted else b""
                return status, body
    except TimeoutError:
        raise slow(url, _MOST_S) from None
    finally:
        await connections.close()
