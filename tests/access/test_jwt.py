"""What a signed token must be. Each thing that can be wrong with one is wrong here once."""

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

from access.signing import AUDIENCE, ISSUER, claims, private, public, signed
from mcp_skills_server.access import jwt
from mcp_skills_server.access.grants import Grant, Grants, Pattern
from mcp_skills_server.access.principal import Principal, RefusedError, ScopeError
from mcp_skills_server.access.settings import ALGORITHMS, OAuthSettings
from tables import each_row

SETTINGS = OAuthSettings(ISSUER, AUDIENCE, AUDIENCE)


def proved(
    token: str, settings: OAuthSettings = SETTINGS, key: dict[str, Any] | None = None
) -> tuple[Principal, float]:
    algorithm, _ = jwt.precheck_token(token, settings)
    return jwt.verify_token(token, pyjwt.PyJWK(key or public(algorithm), algorithm), algorithm, settings)


def refused(token: str, settings: OAuthSettings = SETTINGS, key: dict[str, Any] | None = None) -> str:
    with pytest.raises(RefusedError) as caught:
        proved(token, settings, key)
    assert caught.value.__cause__ is None
    return str(caught.value)


@each_row("algorithm", ALGORITHMS)
def test_a_token_by_each_algorithm_names_its_bearer(algorithm: str) -> None:
    given = claims(groups=["finance", "legal"], scope="skills:read skills:run")
    who, expires = proved(signed(given, algorithm=algorithm))
    assert who == Principal(
        "user", "ann", ISSUER, frozenset({"finance", "legal"}), frozenset({"skills:read", "skills:run"})
    )
    assert expires == given["exp"] + 60


@each_row("kind", [None, "JWT", "jwt", "at+jwt", "AT+JWT", "application/at+jwt"])
def test_kinds_of_access_tokens(kind: str | None) -> None:
    token = signed(headers={"typ": kind})
    assert proved(token)[0].name == "ann"


@each_row(
    ("given", "groups"),
    [
        ({}, set()),
        ({"groups": None}, set()),
        ({"groups": []}, set()),
        ({"groups": "a  b"}, {"a", "b"}),
        ({"groups": ["a b", "/c"]}, {"a b", "/c"}),
    ],
)
def test_groups_are_a_list_or_a_text(given: dict[str, Any], groups: set[str]) -> None:
    raw = json.dumps({**claims(), **given}).encode()  # null stays
    assert proved(signed(raw))[0].groups == groups


@each_row(
    ("given", "groups"),
    [
        ({"realm_access": {"roles": ["finance"]}}, {"finance"}),
        ({"realm_access": {"roles": ["finance"]}, "realm_access.roles": ["legal"]}, {"legal"}),
        ({"realm_access": ["roles"]}, set()),
        ({"realm_access": {}}, set()),
        ({}, set()),
    ],
)
def test_dots_of_a_claim_lead_into_objects(given: dict[str, Any], groups: set[str]) -> None:
    settings = replace(SETTINGS, groups_claim="realm_access.roles")
    assert proved(signed(claims(**given)), settings)[0].groups == groups


@each_row(
    ("given", "label"),
    [
        ({"preferred_username": "ann@acme"}, "ann@acme"),
        ({"preferred_username": ["ann"]}, ""),
        ({"preferred_username": "ann\nuser:admin"}, ""),
        ({"preferred_username": "a" * 101}, ""),
        ({}, ""),
    ],
)
def test_a_principal_has_a_name_to_show_by_which_nothing_is_decided(given: dict[str, Any], label: str) -> None:
    found = proved(signed(claims(**given)))[0]
    plain = proved(signed(claims()))[0]
    assert (found.label, found.id, found.key) == (label, plain.id, plain.key)
    grants = Grants([Grant((f"user:{label}",), (Pattern("**"),))], local=False)
    assert not grants.permissions(found).grants


def test_groups_come_from_the_claim_that_is_named() -> None:
    settings = replace(SETTINGS, groups_claim="https://login.example/roles")
    given = claims(groups=["a"], **{"https://login.example/roles": ["b"]})
    assert proved(signed(given), settings)[0].groups == {"b"}


@each_row(
    "given", [{"scope": "read run"}, {"scp": ["read", "run"]}, {"scp": "run read"}, {"scope": "read", "scp": ["run"]}]
)
def test_scopes(given: dict[str, Any]) -> None:
    assert proved(signed(claims(**given)), replace(SETTINGS, scopes=("read", "run")))[0].scopes == {"read", "run"}
    with pytest.raises(ScopeError):
        proved(signed(claims(**given)), replace(SETTINGS, scopes=("read", "admin")))


NOW = int(time())
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no exp": ({"exp": None}, "claim is missing"),
    "expired": ({"exp": NOW - 120}, "expired"),
    "exp as text": ({"exp": str(NOW + 300)}, "exp is not a time"),
    "exp as truth": ({"exp": True}, "exp is not a time"),
    "exp as list": ({"exp": [NOW + 300]}, "exp is not a time"),
    "exp in milliseconds": ({"exp": (NOW + 300) * 1000}, "exp is not a time"),
    "exp below zero": ({"exp": -NOW}, "exp is not a time"),
    "nbf as text": ({"nbf": "0"}, "nbf is not a time"),
    "nbf to come": ({"nbf": NOW + 3_000, "exp": NOW + 6_000}, "not valid yet"),
    "a clock that is 10 minutes ahead": ({"nbf": NOW + 6_000, "exp": NOW + 9_000}, "compare the clocks"),
    "a clock that is 10 minutes behind": ({"nbf": NOW - 900, "exp": NOW - 600 + 300}, "expired"),
    "no iss": ({"iss": None}, "another issuer"),
    "another iss": ({"iss": ISSUER + "/"}, "another issuer"),
    "iss as list": ({"iss": [ISSUER]}, "another issuer"),
    "no aud": ({"aud": None}, "claim is missing"),
    "another aud": ({"aud": "https://skills.example"}, "another audience"),
    "aud as object": ({"aud": {AUDIENCE: 1}}, "another audience"),
    "aud with a number": ({"aud": [AUDIENCE, 1]}, "another audience"),
    "no aud in the list": ({"aud": ["a", "b"]}, "another audience"),
    "no sub": ({"sub": None}, "claim is missing"),
    "sub as number": ({"sub": 7}, "subject"),
    "sub empty": ({"sub": ""}, "subject"),
    "sub long": ({"sub": "x" * 513}, "subject"),
    "groups as object": ({"groups": {"a": 1}}, "groups is not a list of text"),
    "groups with numbers": ({"groups": ["a", 7]}, "groups is not a list of text"),
    "too many groups": ({"groups": [str(each) for each in range(1001)]}, "more than 1000"),
    "groups of 1 MB": ({"groups": ["x" * (1 << 20)]}, "not a signed token"),
    "scope as object": ({"scope": {}}, "scope is not a list of text"),
    "nonce": ({"nonce": "x"}, "not an access token"),
    "at_hash": ({"at_hash": "x"}, "not an access token"),
    "typ ID, as Keycloak has it": ({"typ": "ID"}, "not an access token"),
    "token_use id, as Cognito has it": ({"token_use": "id"}, "not an access token"),
    "bound to a key": ({"cnf": {"jkt": "x"}}, "bound to a key"),
    "bound to a certificate": ({"cnf": {"x5t#S256": "x"}}, "bound to a key"),
    "bound to a key in the token": ({"cnf": {"jwk": {"kty": "EC"}}}, "bound to a key"),
    "bound to a key by its id": ({"cnf": {"kid": "x"}}, "bound to a key"),
    "bound to what is no object": ({"cnf": "x"}, "bound to a key"),
}


@each_row("name", WRONG)
def test_claims_that_are_wrong(name: str) -> None:
    given, said = WRONG[name]
    assert said in refused(signed(claims(**given)))


def test_clocks_may_differ_by_the_skew() -> None:
    now = int(time())
    assert proved(signed(claims(exp=now - 50)))[1] == now + 10
    assert proved(signed(claims(nbf=now + 50)))
    strict = replace(SETTINGS, skew_s=0)
    assert "expired" in refused(signed(claims(exp=now - 1)), strict)
    assert proved(signed(claims(aud=["x", AUDIENCE], exp=now + 7.5)))[1] == now + 67.5


@each_row(
    "text",
    [
        '"iss":"%(iss)s"',  # twice the same
        '"sub":"eve"',
        '"exp":99999999999',
        '"more":{"a":1,"a":2}',
        '"exp2":NaN',
        '"exp2":Infinity',
        '"exp2":1e999',
        '"exp2":' + "9" * 5000,
    ],
)
def test_json_that_can_be_read_in_two_ways_is_refused(text: str) -> None:
    good = json.dumps(claims())
    raw = (
        (good[:-1] + "," + text % {"iss": ISSUER} + "}").encode()
        if "%" in text
        else (good[:-1] + f",{text}}}").encode()
    )
    assert "duplicate name" in refused(signed(raw))


@each_row("number", ["NaN", "Infinity", "-Infinity"])
def test_an_end_that_is_no_number(number: str) -> None:
    raw = json.dumps(claims(exp=1)).replace('"exp": 1', f'"exp": {number}').encode()
    assert refused(signed(raw))


def encoded(part: object) -> str:
    raw = part if isinstance(part, bytes) else json.dumps(part).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


@each_row("algorithm", ["none", "None", "NONE", "nOnE", ""])
def test_a_token_that_nobody_signed(algorithm: str) -> None:
    for signature in ("", encoded(b"x")):
        token = f"{encoded({'alg': algorithm, 'typ': 'JWT', 'kid': 'one'})}.{encoded(claims())}.{signature}"
        assert "algorithm" in refused(token)


@each_row("shape", ["pem", "der", "jwk"])
def test_a_public_key_is_no_secret(shape: str) -> None:
    """HS256 with what everybody can read: the confusion of algorithms."""
    key = private("RS256").public_key()
    secret = {
        "pem": key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
        "der": key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
        "jwk": json.dumps(public("RS256")).encode(),
    }[shape]
    head = f"{encoded({'alg': 'HS256', 'typ': 'JWT', 'kid': 'one'})}.{encoded(claims())}"
    token = f"{head}.{encoded(hmac.digest(secret, head.encode(), hashlib.sha256))}"
    assert "algorithm" in refused(token, key=public("RS256"))


def test_an_algorithm_that_is_not_allowed_is_refused_though_the_key_fits() -> None:
    assert "algorithm" in refused(signed(algorithm="RS256"), replace(SETTINGS, algorithms=("ES256",)))


def test_a_key_of_another_algorithm_proves_nothing() -> None:
    with pytest.raises(RefusedError):
        jwt.verify_token(signed(algorithm="RS256"), pyjwt.PyJWK(public("RS256"), "PS256"), "RS256", SETTINGS)


def test_a_signature_by_another_key() -> None:
    assert "signature" in refused(signed(key=private("ES256", 1)))


def test_a_weak_key_proves_nothing() -> None:
    weak = private("RS256", 0, 1024)
    key = {**json.loads(pyjwt.algorithms.RSAAlgorithm.to_jwk(weak.public_key())), "kid": "one"}
    with pytest.warns(Warning, match="key"):
        token = signed(algorithm="RS256", key=weak)
    assert "too weak" in refused(token, key=key)


@each_row(
    ("headers", "said"),
    [
        ({"typ": "logout+jwt"}, "not an access token"),
        ({"typ": "dpop+jwt"}, "not an access token"),
        ({"typ": 7}, "not an access token"),
        ({"crit": ["exp"], "exp": 1}, "does not support"),
        ({"crit": []}, "does not support"),
    ],
)
def test_headers_that_are_wrong(headers: dict[str, Any], said: str) -> None:
    assert said in refused(signed(headers=headers))


def test_a_payload_that_is_not_encoded_is_refused() -> None:
    head = encoded({"alg": "ES256", "kid": "one", "b64": False, "crit": ["b64"]})
    assert refused(f"{head}..{encoded(b'x' * 64)}")


def test_a_header_that_says_a_thing_twice_is_refused() -> None:
    head = encoded(b'{"alg":"none","alg":"ES256","kid":"one"}')
    assert "duplicate" in refused(f"{head}.{signed().split('.', 1)[1]}")


@each_row("kid", [7, ["one"], {"a": 1}, True])
def test_the_name_of_a_key_is_text(kid: Any) -> None:
    head = encoded({"alg": "ES256", "kid": kid})
    assert refused(f"{head}.{signed().split('.', 1)[1]}") == "its key id is not text"


def test_keys_that_the_token_brings_are_not_looked_at() -> None:
    mine = public("ES256", 1, "one")
    headers = {"jwk": mine, "jku": "https://evil.example/keys", "x5u": "https://evil.example/x", "x5c": ["AAAA"]}
    token = signed(key=private("ES256", 1), headers=headers)
    assert "signature" in refused(token)
    assert proved(signed(headers=headers))[0].name == "ann"  # by the issuer's key it is a token like any other


def test_every_changed_character_is_noticed() -> None:
    token = signed()
    for place in range(0, len(token) - 1, 3):
        other = "A" if token[place] != "A" else "B"
        assert refused(token[:place] + other + token[place + 1 :])


@each_row(
    "token",
    [
        "",
        ".",
        "..",
        "...",
        "a.b.c",
        "a.b",
        "e30.e30.e30",
        f"{encoded([])}.{encoded({})}.x",
        f"{encoded(b'[' * 20_000)}.{encoded({})}.x",
        f"{encoded({'alg': 'ES256'})}.{encoded(b'null')}.x",
        "é.é.é",
        "x" * (1 << 20),
        ("e30." * (1 << 18)),
        f"{signed()}.{'x'}",
        f"{signed()}\x00",
    ],
)
def test_what_is_no_token(token: str) -> None:
    assert refused(token)


@given(st.one_of(st.text(), st.text(alphabet=".eyJ0IiAxfQ-_=", max_size=60), st.binary().map(encoded)))
def test_no_text_trips_it(token: str) -> None:
    refused(token)


@given(
    st.dictionaries(
        st.sampled_from(["iss", "aud", "sub", "exp", "nbf", "groups", "scope", "scp", "cnf", "typ", "nonce", "x"]),
        st.recursive(
            st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
            lambda each: st.one_of(st.lists(each, max_size=3), st.dictionaries(st.text(max_size=3), each, max_size=3)),
            max_leaves=4,
        ),
    )
)
def test_no_claims_of_the_issuer_trip_it(more: dict[str, Any]) -> None:
    raw = json.dumps({**claims(), **more}).encode()
    try:
        who, _ = proved(signed(raw))
    except RefusedError:
        return
    assert who.issuer == ISSUER and who.name


def test_nothing_of_a_token_is_in_an_error() -> None:
    token = signed(claims(sub="secretive", exp=1, groups=["hidden"]), headers={"kid": "kid-of-theirs"})
    said = refused(token)
    assert not any(each in said for each in ("secretive", "hidden", "kid-of-theirs", token[:20]))
