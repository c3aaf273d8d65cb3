"""Bearer authentication (RFC 6750): admit a request, or refuse it with a challenge.

A request carries its token in a single Authorization header. Tokens are never logged.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import unquote_to_bytes

from starlette.responses import Response
from starlette.types import Scope

from mcp_skills_server.access.principal import Admission, RefusedError, ScopeError, UnavailableError
from mcp_skills_server.access.tokens import Token, find_token, format_time
from mcp_skills_server.errors import REPEATS
from mcp_skills_server.web.rates import error_response

if TYPE_CHECKING:
    from mcp_skills_server.access.oauth import ResourceServer  # imports the signature library

logger = logging.getLogger(__name__)

_PARAMETER: Final = b"access_token"


@dataclass(frozen=True, slots=True)
class Refusal:
    """The response to a refused request."""

    status: int
    message: str  # for the client
    reason: str  # a short code for events and logs
    error: Literal["", "invalid_request", "invalid_token", "insufficient_scope"] = ""
    """The error code of RFC 6750, "" if the request has no token."""
    retry_after_s: int = 1  # with status 503

    def response(self, oauth: ResourceServer | None) -> Response:
        """Return the response. The challenge names `oauth`, if given, as the source of tokens."""
        code = -32603 if self.status == 503 else -32600
        headers: dict[str, str] = {}
        if self.status == 401 or self.error:
            headers["www-authenticate"] = self._challenge(oauth)
        elif self.status == 503:
            headers["retry-after"] = str(self.retry_after_s)
        return error_response(self.status, code, self.message, headers)

    def _challenge(self, oauth: ResourceServer | None) -> str:
        parameters = {"realm": "mcp-skills-server"}
        if self.error:
            parameters["error"] = self.error
        if oauth is not None:
            if oauth.settings.requested_scopes:
                parameters["scope"] = " ".join(oauth.settings.requested_scopes)
            parameters["resource_metadata"] = oauth.metadata_url
        return "Bearer " + ", ".join(f'{name}="{value}"' for name, value in parameters.items())


_NO_TOKEN: Final = Refusal(401, "A bearer token is required", "no-token")
UNKNOWN: Final = Refusal(401, _NO_TOKEN.message, "unknown-token", "invalid_token")
EXPIRED: Final = Refusal(401, _NO_TOKEN.message, "expired-token", "invalid_token")
"""A client cannot tell an expired token from an unknown one."""
_MISPLACED_TOKEN: Final = Refusal(
    400, "Send the token once, in the Authorization header", "misplaced-token", "invalid_request"
)
_INSUFFICIENT_SCOPE: Final = Refusal(
    403, "The token lacks a required scope", "scope", "insufficient_scope"
)


def secret_of(header: str | None) -> str | None:
    """Return the bearer token of an Authorization header, or None."""
    scheme, _, secret = (header or "").partition(" ")
    if scheme.lower() != "bearer":
        return None
    return secret.strip() or None


async def authenticate(
    scope: Scope, tokens: Iterable[Token], oauth: ResourceServer | None
) -> Admission | Refusal:
    """Authenticate a request by a static token or, with `oauth`, by a token of the issuer."""
    given = [value for name, value in scope["headers"] if name == b"authorization"]
    if len(given) > 1 or (scope.get("query_string") and _in_query(scope["query_string"])):
        logger.warning(
            "refused a request with a token in its query, or with two Authorization headers",
            extra=REPEATS,
        )
        return _MISPLACED_TOKEN
    secret = secret_of(given[0].decode("latin-1")) if given else None
    token = find_token(tokens, secret or "")
    if token is not None:
        if token.expires > time.time():
            return token.admission
        ended = format_time(token.expires)
        logger.warning(
            "refused the token %s, which expired at %s", token.name, ended, extra=REPEATS
        )
        return EXPIRED
    if secret is None or oauth is None:
        logger.warning("refused a request without a valid token", extra=REPEATS)
        if secret is None:
            return _NO_TOKEN
        return UNKNOWN
    try:
        return await oauth.verify(secret)
    except ScopeError as error:
        logger.warning("refused a token of %s: %s", oauth.settings.issuer, error, extra=REPEATS)
        return _INSUFFICIENT_SCOPE
    except RefusedError as error:
        logger.warning("refused a token: %s", error, extra=REPEATS)
        return UNKNOWN
    except UnavailableError as error:
        logger.warning("refused a request: %s", error, extra=REPEATS)
        message = "The token issuer does not respond; try again later"
        return Refusal(503, message, "issuer", retry_after_s=error.retry_after_s)


def _in_query(query: bytes) -> bool:
    return any(
        unquote_to_bytes(each.partition(b"=")[0]) == _PARAMETER for each in query.split(b"&")
    )
