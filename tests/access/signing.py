"""An issuer's keys, and tokens by them, right and wrong ones."""

from __future__ import annotations

import json
from functools import cache
from time import time
from typing import Any, Final

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

ISSUER: Final = "https://login.example"
AUDIENCE: Final = "https://skills.example/mcp"
_CURVES: Final = {"ES256": ec.SECP256R1, "ES384": ec.SECP384R1, "ES512": ec.SECP521R1}
_RSA: Final = "RS256", "RS384", "RS512", "PS256", "PS384", "PS512"
ALGORITHMS: Final = (*_RSA, *_CURVES, "EdDSA")


def private(algorithm: str = "ES256", number: int = 0, bits: int = 2048) -> Any:
    """A key that is always the same one in a process."""
    return _private("RS256" if algorithm in _RSA else algorithm, number, bits)


@cache
def _private(algorithm: str, number: int, bits: int) -> Any:
    if algorithm in _CURVES:
        return ec.generate_private_key(_CURVES[algorithm]())
    if algorithm == "EdDSA":
        return ed25519.Ed25519PrivateKey.generate()
    return rsa.generate_private_key(65537, bits)


def public(algorithm: str = "ES256", number: int = 0, kid: str | None = "one", **more: Any) -> dict[str, Any]:
    """Its other half as a set of keys has it."""
    key = private(algorithm, number).public_key()
    kind: Any = RSAAlgorithm if algorithm in _RSA else OKPAlgorithm if algorithm == "EdDSA" else ECAlgorithm
    found = json.loads(kind.to_jwk(key))
    return {**found, **({} if kid is None else {"kid": kid}), **more}


def claims(**more: Any) -> dict[str, Any]:
    """What a good token says; None leaves a claim out."""
    now = int(time())
    good = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ann", "iat": now, "nbf": now, "exp": now + 300}
    return {name: value for name, value in {**good, **more}.items() if value is not None}


def signed(
    payload: dict[str, Any] | bytes | None = None,
    *,
    algorithm: str = "ES256",
    key: Any = None,
    headers: dict[str, Any] | None = None,
) -> str:
    """A token with these claims, or with these very bytes."""
    raw = payload if isinstance(payload, bytes) else json.dumps(claims() if payload is None else payload).encode()
    return jwt.PyJWS().encode(
        raw, key or private(algorithm), algorithm, headers={"kid": "one", "typ": "at+jwt", **(headers or {})}
    )
