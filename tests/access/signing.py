"""Keys of an issuer, and JSON Web Tokens signed with them."""

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
    """Return a private key, the same one for the same arguments."""
    return _generate("RS256" if algorithm in _RSA else algorithm, number, bits)


@cache
def _generate(algorithm: str, number: int, bits: int) -> Any:
    if algorithm in _CURVES:
        return ec.generate_private_key(_CURVES[algorithm]())
    if algorithm == "EdDSA":
        return ed25519.Ed25519PrivateKey.generate()
    return rsa.generate_private_key(65537, bits)


def public(algorithm: str = "ES256", number: int = 0, kid: str | None = "one", **more: Any) -> dict[str, Any]:
    """Return the public key as a JSON Web Key."""
    kinds: dict[str, Any] = {"EdDSA": OKPAlgorithm} | dict.fromkeys(_RSA, RSAAlgorithm)
    key = json.loads(kinds.get(algorithm, ECAlgorithm).to_jwk(private(algorithm, number).public_key()))
    if kid is not None:
        key["kid"] = kid
    return key | more


def claims(**more: Any) -> dict[str, Any]:
    """Return the claims of a valid token, with changes. None leaves a claim out."""
    now = int(time())
    valid = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ann", "iat": now, "nbf": now, "exp": now + 300}
    return {name: value for name, value in {**valid, **more}.items() if value is not None}


def signed(
    payload: dict[str, Any] | bytes | None = None,
    *,
    algorithm: str = "ES256",
    key: Any = None,
    headers: dict[str, Any] | None = None,
) -> str:
    """Sign a token with these claims, or with these raw bytes."""
    if payload is None:
        payload = claims()
    raw = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    headers = {"kid": "one", "typ": "at+jwt", **(headers or {})}
    return jwt.PyJWS().encode(raw, key or private(algorithm), algorithm, headers=headers)
