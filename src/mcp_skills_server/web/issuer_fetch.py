"""Fetch the metadata and the keys of an issuer: bounded, without redirects."""

from __future__ import annotations

from typing import Final

from mcp_skills_server.sources.http import Hop, HttpClient
from mcp_skills_server.sources.settings import Bounds

_MAX_BYTES: Final = 1 << 20
_TIMEOUT_S: Final = 5.0
_FORM: Final = {"Content-Type": "application/x-www-form-urlencoded"}


async def fetch(url: str) -> tuple[int, bytes]:
    """Return the status and the body of a GET. Redirects are not followed, and errors have no body.

    The proxy of the environment is used where there is one.

    Raises:
        SkillsServerError: there is no whole response within 5 seconds and 1 MiB.
    """
    return await _send("GET", url, {}, None, max_error_bytes=0)


async def post(url: str, form: bytes) -> tuple[int, bytes]:
    """Post a form and return the status and the body, which an error of RFC 6749 has too (status 400).

    Raises:
        SkillsServerError: as for `fetch`.
    """
    return await _send("POST", url, _FORM, form, max_error_bytes=_MAX_BYTES)


async def _send(
    method: str, url: str, headers: dict[str, str], content: bytes | None, *, max_error_bytes: int
) -> tuple[int, bytes]:
    async with HttpClient(Bounds(read_s=_TIMEOUT_S, download_s=_TIMEOUT_S), connections=1) as client:
        found = await client.request(
            method,
            url,
            {"Accept": "application/json", **headers},
            lambda _: Hop(private=True),
            max_bytes=_MAX_BYTES,
            max_error_bytes=max_error_bytes,
            content=content,
            follow=False,
        )
    return found.status, found.body
