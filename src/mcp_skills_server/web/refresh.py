"""`POST /refresh`: a webhook that fetches all sources now instead of at the next poll.

A shared secret authenticates the sender: GitHub, Gitea and Forgejo sign the body, GitLab sends the
secret itself. The content of the body is ignored.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
from collections.abc import Callable
from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from mcp_skills_server.access.quota import Quotas
from mcp_skills_server.errors import REPEATS, UsageError
from mcp_skills_server.telemetry.events import emit_refusal
from mcp_skills_server.web.part import Part, requester
from mcp_skills_server.web.rates import count_failure
from mcp_skills_server.web.refusals import RefusalError

logger = logging.getLogger(__name__)

PATH: Final = "/refresh"
_MAX_BYTES: Final = 25 << 20
"""GitHub's limit for the body of a webhook."""
_MIN_LENGTH: Final = 16
_SIGNED: Final = (
    ("x-hub-signature-256", "sha256="),
    ("x-gitea-signature", ""),
    ("x-forgejo-signature", ""),
)
"""Header, and the prefix of its value: the HMAC-SHA256 of the body in hex follows."""
_TOKEN: Final = "x-gitlab-token"  # noqa: S105, the name of a header


def checked_secret(secret: str) -> bytes:
    """Return the webhook secret as bytes.

    Raises:
        UsageError: it is too short, or no header can carry it. The message never contains it.
    """
    if len(secret) < _MIN_LENGTH:
        raise UsageError(
            f"--refresh-secret has fewer than {_MIN_LENGTH} characters; choose a longer one"
        )
    if not (secret.isascii() and secret.isprintable()):
        raise UsageError(
            "--refresh-secret has characters that are not printable ASCII; choose another one"
        )
    return secret.encode()


def webhook_part(secret: bytes, quotas: Quotas, poll_sources: Callable[[], int]) -> Part:
    """Return the webhook endpoint, authenticated by a shared secret.

    `poll_sources` polls all sources, and returns their number.
    """

    async def refresh(request: Request) -> Response:
        code = hmac.new(secret, digestmod=hashlib.sha256)
        size = 0
        async for chunk in request.stream():
            size += len(chunk)
            if size > _MAX_BYTES:
                error = f"the body has more than {_MAX_BYTES:,} bytes"
                return JSONResponse({"error": error}, 413)
            code.update(chunk)
        if not _is_known(request, secret, code.hexdigest()):
            reason = "the signature is missing or does not match the secret"
            logger.warning("%s: refused: %s", PATH, reason, extra=REPEATS)
            client = requester(request.scope)
            emit_refusal(f"POST {PATH}", "webhook-secret", address=client.address)
            try:
                count_failure(quotas, client)
            except RefusalError as over:
                error = "too many failed signatures; try again later"
                headers = {"retry-after": str(over.retry_after_s)}
                return JSONResponse({"error": error}, 429, headers)
            return JSONResponse({"error": f"{reason}; set the same secret on both sides"}, 401)
        return JSONResponse({"sources": poll_sources()}, 202)

    return Part([Route(PATH, refresh, methods=["POST"])], open_at=frozenset((PATH,)))


def _is_known(request: Request, secret: bytes, code: str) -> bool:
    """Return whether a header proves the secret. Compares in constant time."""
    proofs = [(header, (prefix + code).encode()) for header, prefix in _SIGNED]
    matches = [
        hmac.compare_digest(value.encode("utf-8", "surrogateescape"), proof)
        for header, proof in (*proofs, (_TOKEN, secret))
        for value in request.headers.getlist(header)
    ]
    return any(matches)
