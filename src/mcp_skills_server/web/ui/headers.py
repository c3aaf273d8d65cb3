"""The headers that every answer of the page has: nothing foreign runs in it, and nobody keeps or frames it."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

CSP: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = {
    "content-security-policy": CSP,
    "x-content-type-options": "nosniff",
    # With "no-referrer" a browser sends the forms of a page with `Origin: null`, and nobody could tell whose they are.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


def safe(response: Response) -> Response:
    """The response with the headers that every one has; its own are kept."""
    for name, value in _HEADERS.items():
        response.headers.setdefault(name, value)
    return response
