"""Fetch the metadata and the keys of an issuer: bounded, without redirects."""

from __future__ import annotations

from typing import Final

from mcp_skills_server.sources.http import Hop, HttpClient
from mcp_skills_server.sources.source import Bounds

_MAX_BYTES: Final = 1 << 20
_TIMEOUT_S: Final = 5.0
_FORM: Final = {"Content-Type": "application/x-www-form-urlencoded"}


async def fetch(url: str, form: bytes | None = None) -> tuple[int, bytes]:
    """Return the status and the body of a GET, or of a POST of this form.

    Redirects are not followed. An error has a body only after a POST, as that of RFC 6749 has (status 400). The proxy
    of the environment is used where there is one.

    Raises:
        SkillsServerError: there is no whole response within 5 seconds and 1 MiB.
    """
    async with HttpClient(Bounds(read_s=_TIMEOUT_S, download_s=_TIMEOUT_S), connections=1) as client:
        found = await client.request(
            "GET" if form is None else "POST",
            url,
            {"Accept": "application/json"} if form is None else {"Accept": "application/json", **_FORM},
            lambda _: Hop(private=True),
            max_bytes=_MAX_BYTES,
            max_error_bytes=0 if form is None else _MAX_BYTES,
            content=form,
            follow=False,
        )
    return found.status, found.body
