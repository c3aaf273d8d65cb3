"""Refusals over HTTP: an error that the front sends as JSON-RPC without an id, and its event."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from starlette.responses import JSONResponse, Response

from mcp_skills_server.access.quota import Requester
from mcp_skills_server.dialects import jsonrpc
from mcp_skills_server.errors import REPEATS, SkillsServerError

if TYPE_CHECKING:
    from mcp_skills_server.access.oauth import ResourceServer  # imports the signature library

logger = logging.getLogger(__name__)

BearerError: TypeAlias = Literal["", "invalid_request", "invalid_token", "insufficient_scope"]
"""An error code of RFC 6750, "" if the request has no token."""
_CODES: Final[Mapping[int, int]] = {429: jsonrpc.QUOTA_EXCEEDED, 503: jsonrpc.INTERNAL_ERROR}
"""The JSON-RPC code of an HTTP status; of others `INVALID_REQUEST`."""


class RefusalError(SkillsServerError):
    """Raised to refuse a request; its message is for the client.

    Attributes:
        reason: a short code for events and logs, one of a few fixed texts.
        retry_after_s: with status 429 and 503.
        quota: the configuration key of an exhausted quota.
    """

    def __init__(
        self,
        status: int,
        message: str,
        reason: str,
        error: BearerError = "",
        *,
        retry_after_s: int = 1,
        quota: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.error: BearerError = error
        self.retry_after_s = retry_after_s
        self.quota = quota

    def response(self, oauth: ResourceServer | None = None) -> Response:
        """Return the response. The challenge names `oauth`, if given, as the source of tokens."""
        headers: dict[str, str] = {}
        data = None
        if self.status == 401 or self.error:
            headers["www-authenticate"] = self._challenge(oauth)
        if self.status in {429, 503}:
            headers["retry-after"] = str(self.retry_after_s)
        if self.quota is not None:
            headers["cache-control"] = "no-store"
            data = {"quota": self.quota}
        code = _CODES.get(self.status, jsonrpc.INVALID_REQUEST)
        return JSONResponse(jsonrpc.error(None, code, str(self), data), self.status, headers)

    def _challenge(self, oauth: ResourceServer | None) -> str:
        parameters = {"realm": "mcp-skills-server"}
        if self.error:
            parameters["error"] = self.error
        if oauth is not None:
            if oauth.settings.requested_scopes:
                parameters["scope"] = " ".join(oauth.settings.requested_scopes)
            parameters["resource_metadata"] = oauth.metadata_url
        return "Bearer " + ", ".join(f'{name}="{value}"' for name, value in parameters.items())


def over_quota(
    client: Requester, quota: str, limit: int, wait_s: float = 1.0, remedy: str = ""
) -> RefusalError:
    """Log and return a 429: `quota` is its configuration key, `limit` its size.

    `remedy` is for requests that are over the quota at any time.
    """
    message = "quota %s: %s exceeded %s; answered with 429"
    logger.warning(message, quota, client.owner, limit, extra=REPEATS)
    seconds = max(1, math.ceil(wait_s))
    remedy = remedy or f"try again in {seconds} s"
    message = f"Over the quota {quota} ({limit:,}); {remedy}"
    return RefusalError(429, message, quota, retry_after_s=seconds, quota=quota)
