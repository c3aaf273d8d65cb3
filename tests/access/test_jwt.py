"""Verification of JSON Web Tokens, with each fault that a token can have."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from dataclasses import replace
from time import time
from typing import Any

import jwt as pyjwt
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from access.signing import ALGORITHMS, AUDIENCE, ISSUER, claims, private, public, signed
from mcp_skills_server.access import jwt
from mcp_skills_server.access.grants import Grant, Grants, Pattern
from mcp_skills_server.access.principal import Principal, RefusedError, ScopeError
from mcp_skills_server.access.settings import OAuthSettings
from tables import each_row

SETTINGS = OAuthSettings(ISSUER, AUDIENCE, AUDIENCE)


def verify(token: str, key: dict[str, Any] | None = None, **settings: Any) -> tuple[Principal, float]:
    """Verify a token with changed settings. Return its principal and expiry."""
    chosen = replace(SETTINGS, **settings)
    algorithm, _ = jwt.precheck_token(token, chosen)
    return jwt.verify_token(token, pyjwt.PyJWK(key or public(algorithm), algorithm), algorithm, chosen)


def error_of(token: str, key: dict[str, Any] | None = None, **settings: Any) -> str:
    with pytest.raises(RefusedError) as caught:
        verify(token, key, **settings)
    assert caught.value.__cause__ is None
    return str(caught.value)


def encode(part: object) -> str:
    raw = part if isinstance(part, bytes) else json.dumps(part).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


@each_row("algorithm", ALGORITHMS)
def test_token_of_each_algorithm_names_its_principal(algorithm: str) -> None:
    payload = claims(groups=["finance", "legal"], scope="skills:read skills:run")
    principal, expires = verify(signed(payload, algorithm=algorithm))
    groups, scopes = frozenset({"finance", "legal"}), frozenset({"skills:read", "skills:run"})
    assert principal == Principal("user", "ann", ISSUER, groups, scopes)
    assert expires == payload["exp"] + 60


@each_row("kind", [None, "JWT", "jwt", "at+jwt", "AT+JWT", "application/at+jwt"])
def test_access_token_types_are_accepted(kind: str | None) -> None:
    assert verify(signed(headers={"typ": kind}))[0].name == "ann"


@each_row(("claim", "changes", "groups"), [
    ("groups", {}, set()), ("groups", {"groups": None}, set()), ("groups", {"groups": []}, set()),
    ("groups", {"groups": "a  b"}, {"a", "b"}), ("groups", {"groups": ["a b", "/c"]}, {"a b", "/c"}),
    ("https://x.example/roles", {"groups": ["a"], "https://x.example/roles": ["b"]}, {"b"}),
    # A dot separates the names of nested objects.
    ("realm.roles", {"realm": {"roles": ["finance"]}}, {"finance"}),
    ("realm.roles", {"realm": {"roles": ["finance"]}, "realm.roles": ["legal"]}, {"legal"}),
    ("realm.roles", {"realm": ["roles"]}, set()), ("realm.roles", {"realm": {}}, set()), ("realm.roles", {}, set()),
])  # fmt: skip
def test_groups_are_read_from_the_configured_claim(claim: str, changes: dict[str, Any], groups: set[str]) -> None:
    raw = json.dumps({**claims(), **changes}).encode()  # `claims` would drop null
    assert verify(signed(raw), groups_claim=claim)[0].groups == groups


@each_row(
    ("username", "label"), [("a" * 100, "a" * 100), (["ann"], ""), ("ann\nuser:admin", ""), ("a" * 101, ""), (None, "")]
)
def test_preferred_username_is_a_label_without_effect_on_grants(username: Any, label: str) -> None:
    principal, _ = verify(signed(claims(preferred_username=username)))
    unlabelled, _ = verify(signed(claims()))
    assert (principal.label, principal.id, principal.key) == (label, unlabelled.id, unlabelled.key)
    grants = Grants([Grant((f"user:{label}",), (Pattern("**"),))], local=False)
    assert not grants.permissions(principal).grants


@each_row(
    "changes", [{"scope": "read run"}, {"scp": ["read", "run"]}, {"scp": "run read"}, {"scope": "read", "scp": ["run"]}]
)
def test_scopes_are_read_from_scope_and_scp(changes: dict[str, Any]) -> None:
    token = signed(claims(**changes))
    assert verify(token, scopes=("read", "run"))[0].scopes == {"read", "run"}
    with pytest.raises(ScopeError):
        verify(token, scopes=("read", "admin"))


NOW, LATEST = int(time()), 253_402_300_799


@each_row(("changes", "message"), [
    *(({name: None}, "claim is missing") for name in ("exp", "aud", "sub")),
    *(({"exp": each}, "exp is not a time") for each in (str(NOW + 300), True, [NOW + 300], -NOW, -2)),
    ({"exp": LATEST + 1}, "exp is not a time"),  # perhaps milliseconds
    ({"exp": NOW - 120}, "expired"), ({"nbf": "0"}, "nbf is not a time"),
    ({"nbf": NOW + 3_000, "exp": NOW + 6_000}, "not valid yet; compare the clocks"),
    *(({"iss": each}, "another issuer") for each in (None, ISSUER + "/", [ISSUER])),
    *(
        ({"aud": each}, "another audience")
        for each in ("https://skills.example", {AUDIENCE: 1}, [AUDIENCE, 1], ["a", "b"])
    ),
    *(({"sub": each}, "subject") for each in (7, "", "x" * 513)),
    *(({"groups": each}, "groups is not a list of text") for each in ({"a": 1}, ["a", 7])),
    ({"groups": [str(each) for each in range(1001)]}, "more than 1000"),
    ({"scope": {}}, "scope is not a list of text"),
    # ID tokens: `typ` is Keycloak's claim, `token_use` Cognito's.
    *(({name: "x"}, "not an access token") for name in ("nonce", "at_hash")),
    *(({name: value}, "not an access token") for name, value in (("typ", "ID"), ("token_use", "id"))),
    *(
        ({"cnf": each}, "bound to a key")
        for each in ({"jkt": "x"}, {"x5t#S256": "x"}, {"jwk": {"kty": "EC"}}, {"kid": "x"}, "x")
    ),
])  # fmt: skip
def test_invalid_claims_are_refused(changes: dict[str, Any], message: str) -> None:
    assert message in error_of(signed(claims(**changes)))


def test_expiry_and_start_tolerate_clock_skew() -> None:
    now = int(time())
    assert verify(signed(claims(exp=now - 50)))[1] == now + 10
    assert verify(signed(claims(nbf=now + 50, iat=now + 3_000, jti=7)))  # iat and jti are not checked
    assert "expired" in error_of(signed(claims(exp=now - 1)), skew_s=0)
    assert verify(signed(claims(aud=["x", AUDIENCE], exp=now + 7.5)))[1] == now + 67.5


def test_longest_subject_groups_expiry_and_token_are_accepted() -> None:
    groups = [str(each) for each in range(1_000)]
    principal, expires = verify(signed(claims(sub="x" * 512, groups=groups, exp=LATEST)))
    assert (len(principal.name), len(principal.groups), expires) == (512, 1_000, LATEST + 60)
    token = signed().ljust(32 << 10, "A")
    assert jwt.precheck_token(token, SETTINGS) == ("ES256", "one")
    assert error_of(f"{token}A") == "it is not a signed token"


@each_row("text", [
    f'"iss":"{ISSUER}"',  # a duplicate of equal value
    '"sub":"eve"', '"exp":99999999999', '"more":{"a":1,"a":2}', '"exp2":NaN', '"exp2":Infinity',
    '"exp2":-Infinity', '"exp2":1e999', '"exp2":' + "9" * 5000,
])  # fmt: skip
def test_ambiguous_json_is_refused(text: str) -> None:
    assert "duplicate name" in error_of(signed(f"{json.dumps(claims())[:-1]},{text}}}".encode()))


@each_row("algorithm", ["none", "None", "NONE", "nOnE", ""])
def test_unsigned_token_is_refused(algorithm: str) -> None:
    for signature in ("", encode(b"x")):
        token = f"{encode({'alg': algorithm, 'typ': 'JWT', 'kid': 'one'})}.{encode(claims())}.{signature}"
        assert "algorithm" in error_of(token)


def test_public_key_as_hmac_secret_is_refused() -> None:
    """Algorithm confusion: HS256 with the public key as its secret."""
    key = private("RS256").public_key()
    encodings = [key.public_bytes(each, PublicFormat.SubjectPublicKeyInfo) for each in (Encoding.PEM, Encoding.DER)]
    head = f"{encode({'alg': 'HS256', 'typ': 'JWT', 'kid': 'one'})}.{encode(claims())}"
    for secret in (*encodings, json.dumps(public("RS256")).encode()):
        token = f"{head}.{encode(hmac.digest(secret, head.encode(), hashlib.sha256))}"
        assert "algorithm" in error_of(token, public("RS256"))


def test_disallowed_algorithm_is_refused_with_valid_key() -> None:
    assert "algorithm" in error_of(signed(algorithm="RS256"), algorithms=("ES256",))


def test_key_of_another_algorithm_is_refused() -> None:
    with pytest.raises(RefusedError):
        jwt.verify_token(signed(algorithm="RS256"), pyjwt.PyJWK(public("RS256"), "PS256"), "RS256", SETTINGS)


def test_signature_by_another_key_is_refused() -> None:
    """Keys that the token itself contains or links are ignored."""
    headers = {"jwk": public("ES256", 1, "one"), "jku": "https://evil.example/keys", "x5u": "https://evil.example/x"}
    for keys in ({}, {**headers, "x5c": ["AAAA"]}):
        assert "signature" in error_of(signed(key=private("ES256", 1), headers=keys))
        assert verify(signed(headers=keys))[0].name == "ann"


def test_weak_rsa_key_is_refused() -> None:
    weak = private("RS256", 0, 1024)
    key = {**json.loads(pyjwt.algorithms.RSAAlgorithm.to_jwk(weak.public_key())), "kid": "one"}
    with pytest.warns(Warning, match="key"):
        token = signed(algorithm="RS256", key=weak)
    assert "too weak" in error_of(token, key)


@each_row(("message", "headers"), [
    *(("not an access token", {"typ": each}) for each in ("logout+jwt", "dpop+jwt", 7)),
    *(("does not support", {"crit": each, "exp": 1}) for each in (["exp"], [])),
])  # fmt: skip
def test_invalid_headers_are_refused(message: str, headers: dict[str, Any]) -> None:
    assert message in error_of(signed(headers=headers))


def test_unencoded_payload_is_refused() -> None:
    head = encode({"alg": "ES256", "kid": "one", "b64": False})
    assert "does not support" in error_of(f"{head}.{encode(claims())}.x")


@each_row("kid", [7, ["one"], {"a": 1}, True])
def test_key_id_must_be_text(kid: Any) -> None:
    head = encode({"alg": "ES256", "kid": kid})
    assert error_of(f"{head}.{signed().split('.', 1)[1]}") == "its key id is not text"


@each_row("token", [
    "", ".", "..", "...", "a.b.c", "a.b", "e30.e30.e30", f"{encode([])}.{encode({})}.x",
    f"{encode(b'[' * 20_000)}.{encode({})}.x", f"{encode({'alg': 'ES256'})}.{encode(b'null')}.x",
    "é.é.é", "x" * (1 << 20), ("e30." * (1 << 18)), f"{signed()}.{'x'}", f"{signed()}\x00",
    # A duplicate name in the header.
    encode(b'{"alg":"none","alg":"ES256","kid":"one"}') + "." + signed().split(".", 1)[1],
])  # fmt: skip
def test_malformed_token_is_refused(token: str) -> None:
    assert error_of(token)


@given(st.one_of(st.text(), st.text(alphabet=".eyJ0IiAxfQ-_=", max_size=60), st.binary().map(encode)))
def test_any_unsigned_text_is_refused(token: str) -> None:
    error_of(token)


def test_error_contains_nothing_of_the_token() -> None:
    token = signed(claims(sub="secretive", exp=1, groups=["hidden"]), headers={"kid": "hidden-kid"})
    message = error_of(token)
    assert not any(part in message for part in ("secretive", "hidden", "hidden-kid", token[:20]))
