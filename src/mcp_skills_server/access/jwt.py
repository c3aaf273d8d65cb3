"""Verification of signed access tokens (JWT).

PyJWT checks the signature, the times and the audience. This module refuses what PyJWT accepts:
duplicate keys in JSON, times that are not finite numbers, other kinds of token, and tokens that are
bound to a key. It is pure except for the clock. No error shows any part of a token.
"""

from __future__ import annotations

import binascii
from base64 import urlsafe_b64decode
from collections.abc import Sequence
from typing import Any, Final, cast

import jwt

from mcp_skills_server.access.principal import Principal, RefusedError, ScopeError
from mcp_skills_server.access.settings import OAuthSettings
from mcp_skills_server.format.fields import mapping
from mcp_skills_server.model.decoding import load_json

MAX_LENGTH: Final = 32 << 10
"""Most characters of a token."""
_MAX_ENTRIES: Final = 1_000
"""Most groups, and most scopes."""
_MAX_NAME: Final = 512
_MAX_LABEL: Final = 100
_LAST_TIME: Final = 253_402_300_799
"""The end of the year 9999; a later time was probably given in milliseconds."""
_ACCESS_TOKEN_TYPES: Final = frozenset(("jwt", "at+jwt", "application/at+jwt", "application/jwt"))
_OTHER_TOKEN_TYPES: Final = frozenset(("id", "refresh", "offline", "logout"))
_ID_TOKEN_CLAIMS: Final = frozenset(("nonce", "at_hash", "c_hash"))
_OPTIONS: Final[Any] = {
    "require": ["exp", "sub"],
    "verify_iat": False,
    "verify_jti": False,
    "enforce_minimum_key_length": True,
}
_REASONS: Final = (
    (jwt.ExpiredSignatureError, "it has expired"),
    (jwt.ImmatureSignatureError, "it is not valid yet; compare the clocks"),
    (jwt.InvalidAudienceError, "it is for another audience"),
    (jwt.InvalidIssuerError, "it is from another issuer"),
    (jwt.MissingRequiredClaimError, "a required claim is missing"),
    (jwt.InvalidKeyError, "the issuer's key for it is too weak or invalid"),
)


def precheck_token(token: str, settings: OAuthSettings) -> tuple[str, str | None]:
    """Check a token without its key, and return the algorithm and key id from its header.

    Raises:
        RefusedError: the token is invalid under any key.
    """
    if len(token) > MAX_LENGTH or not token.isascii() or token.count(".") != 2:
        raise RefusedError("it is not a signed token")
    header, claims = (_parse_object(_decoded(part)) for part in token.split(".")[:2])
    algorithm, kid, kind = header.get("alg"), header.get("kid"), header.get("typ", "jwt")
    if not isinstance(algorithm, str) or algorithm not in settings.algorithms:
        raise RefusedError("its signature algorithm is not allowed")
    if not (kid is None or isinstance(kid, str)):
        raise RefusedError("its key id is not text")
    if not isinstance(kind, str) or kind.lower() not in _ACCESS_TOKEN_TYPES:
        raise RefusedError("it is not an access token")
    if "crit" in header or header.get("b64", True) is not True:
        raise RefusedError("its header requires an extension that this server does not support")
    if claims.get("iss") != settings.issuer:
        raise RefusedError("it is from another issuer")
    for name in ("exp", "nbf"):
        when = claims.get(name, 0)
        if type(when) not in (int, float) or not -1 <= when <= _LAST_TIME:
            raise RefusedError(f"{name} is not a time in seconds")
    return algorithm, kid


def verify_token(
    token: str, key: jwt.PyJWK, algorithm: str, settings: OAuthSettings
) -> tuple[Principal, float]:
    """Verify a token that passed `precheck_token`; return (principal, expiry in epoch seconds).

    Raises:
        RefusedError: the signature or a claim is invalid, such as the expiry or the audience.
        ScopeError: the token is valid, but lacks a required scope.
    """
    try:
        claims: dict[str, Any] = jwt.decode(
            token,
            key,
            [algorithm],
            options=_OPTIONS,
            audience=settings.audience,
            issuer=settings.issuer,
            leeway=settings.skew_s,
        )
    except jwt.PyJWTError as error:
        for kind, words in _REASONS:
            if isinstance(error, kind):
                raise RefusedError(words) from None
        raise RefusedError("its signature or its subject is invalid") from None
    _check_kind(claims)
    name: str = claims["sub"]
    if not name or len(name) > _MAX_NAME:
        raise RefusedError("its subject is empty or too long")
    groups = _words(_claim(claims, settings.groups_claim), "groups")
    scopes = _words(claims.get("scope"), "scope") | _words(claims.get("scp"), "scp")
    if missing := [scope for scope in settings.scopes if scope not in scopes]:
        raise ScopeError(f"it lacks required scopes: {' '.join(missing)}")
    label = _label(_claim(claims, settings.principal_claim))
    who = Principal("user", name, settings.issuer, groups, scopes, label)
    return who, claims["exp"] + settings.skew_s


def _check_kind(claims: dict[str, Any]) -> None:
    """Refuse other kinds of token, and tokens that are bound to a key."""
    kinds = {str(claims.get(name, "")).lower() for name in ("typ", "token_use")}
    if kinds & _OTHER_TOKEN_TYPES or claims.keys() & _ID_TOKEN_CLAIMS:
        raise RefusedError("it is not an access token")
    if claims.get("cnf") is not None:  # RFC 7800
        raise RefusedError("it is bound to a key (cnf), which this server does not support")


def _claim(claims: dict[str, Any], name: str) -> Any:
    """Return the claim of this name, else the nested one of a dotted name, else None."""
    if name in claims:
        return claims[name]
    value: Any = claims
    for part in name.split("."):
        value = mapping(value).get(part)
    return value


def _label(value: Any) -> str:
    """Return a display name from an untrusted claim, or "" if it does not fit on one line."""
    label = value.strip() if isinstance(value, str) else ""
    if len(label) > _MAX_LABEL or not label.isprintable():
        return ""
    return label


def _words(value: Any, name: str) -> frozenset[str]:
    """Return the words of a claim that is a list of strings or a string with blanks."""
    if value is None:
        return frozenset()
    words: Any = value.split() if isinstance(value, str) else value
    if not isinstance(words, list) or not all(isinstance(word, str) for word in cast(Any, words)):
        raise RefusedError(f"{name} is not a list of text")
    words = cast("list[str]", words)
    if len(words) > _MAX_ENTRIES:
        raise RefusedError(f"{name} has more than {_MAX_ENTRIES} entries")
    return frozenset(words)


def _decoded(part: str) -> bytes:
    try:
        return urlsafe_b64decode(part + "=" * (-len(part) % 4))
    except (binascii.Error, ValueError):
        raise RefusedError("it is not a signed token") from None


def _parse_object(raw: bytes) -> dict[str, Any]:
    """Parse a JSON object; refuse duplicate names and numbers that are not finite."""
    try:
        value: Any = load_json(raw, object_pairs_hook=_no_duplicates)
    except ValueError:
        raise RefusedError("it is not a signed token, or has a duplicate name") from None
    if not isinstance(value, dict):
        raise RefusedError("it is not a signed token")
    return cast("dict[str, Any]", value)


def _no_duplicates(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        raise ValueError
    return out
