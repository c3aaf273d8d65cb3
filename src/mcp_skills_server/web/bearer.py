"""Bearer authentication (RFC 6750): admit a request, or refuse it with a challenge.

A request carries its token in a single Authorization header. Tokens are never logged.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote_to_bytes

from starlette.types import Scope

from mcp_skills_server.access.principal import Admission, RefusedError, ScopeError, UnavailableError
from mcp_skills_server.access.tokens import Token, find_token, format_time
from mcp_skills_server.errors import REPEATS
from mcp_skills_server.web.refusals import BearerError, RefusalError

if TYPE_CHECKING:
    from mcp_skills_server.access.oauth import ResourceServer  # imports the signature library

logger = logging.getLogger(__name__)

_PARAMETER: Final = b"access_token"


def no_valid_token(reason: str, error: BearerError = "invalid_token") -> RefusalError:
    """Return a 401: a client cannot tell an expired token from an unknown one."""
    return RefusalError(401, "A bearer token is required", reason, error)


def secret_of(header: str | None) -> str | None:
    """Return the bearer token of an Authorization header, or None."""
    scheme, _, secret = (header or "").partition(" ")
    if scheme.lower() != "bearer":
        return None
    return secret.strip() or None


async def authenticate(
    scope: Scope, tokens: Iterable[Token], oauth: ResourceServer | None
) -> Admission:
    """Authenticate a request by a static token or, with `oauth`, by a token of the issuer.

    Raises:
        RefusalError: 400, 401, 403 or 503, which is logged.
    """
    given = [value for name, value in scope["headers"] if name == b"authorization"]
    if len(given) > 1 or (scope.get("query_string") and _in_query(scope["query_string"])):
        logger.warning(
            "refused a request with a token in its query, or with two Authorization headers",
            extra=REPEATS,
        )
        message = "Send the token once, in the Authorization header"
        raise RefusalError(400, message, "misplaced-token", "invalid_request")
    secret = secret_of(given[0].decode("latin-1")) if given else None
    token = find_token(tokens, secret or "")
    if token is not None:
        if token.expires > time.time():
            return token.admission
        ended = format_time(token.expires)
        logger.warning(
            "refused the token %s, which expired at %s", token.name, ended, extra=REPEATS
        )
        raise no_valid_token("expired-token")
    if secret is None or oauth is None:
        logger.warning("refused a request without a valid token", extra=REPEATS)
        if secret is None:
            raise no_valid_token("no-token", "")
        raise no_valid_token("unknown-token")
    try:
        return await oauth.verify(secret)
    except ScopeError as error:
        logger.warning("refused a token of %s: %s", oauth.settings.issuer, error, extra=REPEATS)
        message = "The token lacks a required scope"
        raise RefusalError(403, message, "scope", "insufficient_scope") from None
    except RefusedError as error:
        logger.warning("refused a token: %s", error, extra=REPEATS)
        raise no_valid_token("unknown-token") from None
    except UnavailableError as error:
        logger.warning("refused a request: %s", error, extra=REPEATS)
        message = "The token issuer does not respond; try again later"
        wait = error.retry_after_s
        raise RefusalError(503, message, "issuer", retry_after_s=wait) from None


def _in_query(query: bytes) -> bool:
    return any(
        unquote_to_bytes(pair.partition(b"=")[0]) == _PARAMETER for pair in query.split(b"&")
    )
