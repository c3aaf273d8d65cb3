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

from access.signing import ALGORITHMS, AUDIENCE, ISSUER, claims, private, public, signed
from mcp_skills_server.access import jwt
from mcp_skills_server.access.grants import Grant, Grants, Pattern
from mcp_skills_server.access.principal import Principal, RefusedError, ScopeError
from mcp_skills_server.access.settings import OAuthSettings
from tables import each_row

SETTINGS = OAuthSettings(ISSUER, AUDIENCE, AUDIENCE)


def proved(token: str, key: dict[str, Any] | None = None, **settings: Any) -> tuple[Principal, float]:
    """The principal and the end of a token, with other settings than usual."""
    chosen = replace(SETTINGS, **settings)
    algorithm, _ = jwt.precheck_token(token, chosen)
    return jwt.verify_token(token, pyjwt.PyJWK(key or public(algorithm), algorithm), algorithm, chosen)


def refused(token: str, key: dict[str, Any] | None = None, **settings: Any) -> str:
    with pytest.raises(RefusedError) as caught:
        proved(token, key, **settings)
    assert caught.value.__cause__ is None
    return str(caught.value)


def encoded(part: object) -> str:
    raw = part if isinstance(part, bytes) else json.dumps(part).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


@each_row("algorithm", ALGORITHMS)
def test_a_token_by_each_algorithm_names_its_bearer(algorithm: str) -> None:
    given = claims(groups=["finance", "legal"], scope="skills:read skills:run")
    who, expires = proved(signed(given, algorithm=algorithm))
    groups, scopes = frozenset({"finance", "legal"}), frozenset({"skills:read", "skills:run"})
    assert who == Principal("user", "ann", ISSUER, groups, scopes)
    assert expires == given["exp"] + 60


@each_row("kind", [None, "JWT", "jwt", "at+jwt", "AT+JWT", "application/at+jwt"])
def test_kinds_of_access_tokens(kind: str | None) -> None:
    assert proved(signed(headers={"typ": kind}))[0].name == "ann"


@each_row(
    ("claim", "given", "groups"),
    [
        ("groups", {}, set()), ("groups", {"groups": None}, set()), ("groups", {"groups": []}, set()),
        ("groups", {"groups": "a  b"}, {"a", "b"}), ("groups", {"groups": ["a b", "/c"]}, {"a b", "/c"}),
        ("https://x.example/roles", {"groups": ["a"], "https://x.example/roles": ["b"]}, {"b"}),
        # Dots lead into objects.
        ("realm.roles", {"realm": {"roles": ["finance"]}}, {"finance"}),
        ("realm.roles", {"realm": {"roles": ["finance"]}, "realm.roles": ["legal"]}, {"legal"}),
        ("realm.roles", {"realm": ["roles"]}, set()), ("realm.roles", {"realm": {}}, set()), ("realm.roles", {}, set()),
    ],
)  # fmt: skip
def test_groups_are_those_of_the_claim_that_is_named(claim: str, given: dict[str, Any], groups: set[str]) -> None:
    raw = json.dumps({**claims(), **given}).encode()  # null stays
    assert proved(signed(raw), groups_claim=claim)[0].groups == groups


@each_row(
    ("given", "label"),
    [("a" * 100, "a" * 100), (["ann"], ""), ("ann\nuser:admin", ""), ("a" * 101, ""), (None, "")],
)
def test_a_principal_has_a_name_to_show_by_which_nothing_is_decided(given: Any, label: str) -> None:
    found, plain = (proved(signed(claims(**more)))[0] for more in ({"preferred_username": given}, {}))
    assert (found.label, found.id, found.key) == (label, plain.id, plain.key)
    grants = Grants([Grant((f"user:{label}",), (Pattern("**"),))], local=False)
    assert not grants.permissions(found).grants


@each_row(
    "given", [{"scope": "read run"}, {"scp": ["read", "run"]}, {"scp": "run read"}, {"scope": "read", "scp": ["run"]}]
)
def test_scopes(given: dict[str, Any]) -> None:
    token = signed(claims(**given))
    assert proved(token, scopes=("read", "run"))[0].scopes == {"read", "run"}
    with pytest.raises(ScopeError):
        proved(token, scopes=("read", "admin"))


def test_a_name_may_have_512_characters() -> None:
    assert proved(signed(claims(sub="x" * 512)))[0].name == "x" * 512


NOW, LAST = int(time()), 253_402_300_799


@each_row(
    ("given", "said"),
    [
        *(({name: None}, "claim is missing") for name in ("exp", "aud", "sub")),
        *(({"exp": each}, "exp is not a time") for each in (str(NOW + 300), True, [NOW + 300], -NOW)),
        ({"exp": LAST + 1}, "exp is not a time"),  # or milliseconds
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
        # Tokens of other kinds; `typ` as Keycloak has it, and `token_use` as Cognito does.
        *(({name: "x"}, "not an access token") for name in ("nonce", "at_hash")),
        *(({name: value}, "not an access token") for name, value in (("typ", "ID"), ("token_use", "id"))),
        *(
            ({"cnf": each}, "bound to a key")
            for each in ({"jkt": "x"}, {"x5t#S256": "x"}, {"jwk": {"kty": "EC"}}, {"kid": "x"}, "x")
        ),
    ],
)  # fmt: skip
def test_claims_that_are_wrong(given: dict[str, Any], said: str) -> None:
    assert said in refused(signed(claims(**given)))


def test_clocks_may_differ_by_the_skew() -> None:
    now = int(time())
    assert proved(signed(claims(exp=now - 50)))[1] == now + 10
    assert proved(signed(claims(nbf=now + 50, iat=now + 3_000, jti=7)))  # of these two nothing is wanted
    assert "expired" in refused(signed(claims(exp=now - 1)), skew_s=0)
    assert proved(signed(claims(aud=["x", AUDIENCE], exp=now + 7.5)))[1] == now + 67.5


def test_what_is_as_long_as_it_may_be() -> None:
    groups = [str(each) for each in range(1_000)]
    who, expires = proved(signed(claims(sub="x" * 512, groups=groups, exp=LAST)))
    assert (len(who.name), len(who.groups), expires) == (512, 1_000, LAST + 60)
    token = signed().ljust(32 << 10, "A")
    assert jwt.precheck_token(token, SETTINGS) == ("ES256", "one")
    assert refused(f"{token}A") == "it is not a signed token"


@each_row(
    "text",
    [
        f'"iss":"{ISSUER}"',  # twice the same
        '"sub":"eve"', '"exp":99999999999', '"more":{"a":1,"a":2}', '"exp2":NaN', '"exp2":Infinity',
        '"exp2":-Infinity', '"exp2":1e999', '"exp2":' + "9" * 5000,
    ],
)  # fmt: skip
def test_json_that_can_be_read_in_two_ways_is_refused(text: str) -> None:
    assert "duplicate name" in refused(signed(f"{json.dumps(claims())[:-1]},{text}}}".encode()))


@each_row("algorithm", ["none", "None", "NONE", "nOnE", ""])
def test_a_token_that_nobody_signed(algorithm: str) -> None:
    for signature in ("", encoded(b"x")):
        token = f"{encoded({'alg': algorithm, 'typ': 'JWT', 'kid': 'one'})}.{encoded(claims())}.{signature}"
        assert "algorithm" in refused(token)


def test_a_public_key_is_no_secret() -> None:
    """HS256 with what everybody can read: the confusion of algorithms."""
    key = private("RS256").public_key()
    shapes = [key.public_bytes(each, PublicFormat.SubjectPublicKeyInfo) for each in (Encoding.PEM, Encoding.DER)]
    head = f"{encoded({'alg': 'HS256', 'typ': 'JWT', 'kid': 'one'})}.{encoded(claims())}"
    for secret in (*shapes, json.dumps(public("RS256")).encode()):
        token = f"{head}.{encoded(hmac.digest(secret, head.encode(), hashlib.sha256))}"
        assert "algorithm" in refused(token, public("RS256"))


def test_an_algorithm_that_is_not_allowed_is_refused_though_the_key_fits() -> None:
    assert "algorithm" in refused(signed(algorithm="RS256"), algorithms=("ES256",))


def test_a_key_of_another_algorithm_proves_nothing() -> None:
    with pytest.raises(RefusedError):
        jwt.verify_token(signed(algorithm="RS256"), pyjwt.PyJWK(public("RS256"), "PS256"), "RS256", SETTINGS)


def test_a_signature_by_another_key() -> None:
    """Nor are keys looked at that the token brings."""
    headers = {"jwk": public("ES256", 1, "one"), "jku": "https://evil.example/keys", "x5u": "https://evil.example/x"}
    for brought in ({}, {**headers, "x5c": ["AAAA"]}):
        assert "signature" in refused(signed(key=private("ES256", 1), headers=brought))
        assert proved(signed(headers=brought))[0].name == "ann"  # by the issuer's key it is a token like any other


def test_a_weak_key_proves_nothing() -> None:
    weak = private("RS256", 0, 1024)
    key = {**json.loads(pyjwt.algorithms.RSAAlgorithm.to_jwk(weak.public_key())), "kid": "one"}
    with pytest.warns(Warning, match="key"):
        token = signed(algorithm="RS256", key=weak)
    assert "too weak" in refused(token, key)


@each_row(
    ("said", "headers"),
    [
        *(("not an access token", {"typ": each}) for each in ("logout+jwt", "dpop+jwt", 7)),
        *(("does not support", {"crit": each, "exp": 1}) for each in (["exp"], [])),
    ],
)
def test_headers_that_are_wrong(said: str, headers: dict[str, Any]) -> None:
    assert said in refused(signed(headers=headers))


def test_a_payload_that_is_not_encoded_is_refused() -> None:
    head = encoded({"alg": "ES256", "kid": "one", "b64": False})
    assert "does not support" in refused(f"{head}.{encoded(claims())}.x")


@each_row("kid", [7, ["one"], {"a": 1}, True])
def test_the_name_of_a_key_is_text(kid: Any) -> None:
    head = encoded({"alg": "ES256", "kid": kid})
    assert refused(f"{head}.{signed().split('.', 1)[1]}") == "its key id is not text"


def test_every_changed_character_is_noticed() -> None:
    token = signed()
    for place in range(0, len(token) - 1, 3):
        other = "A" if token[place] != "A" else "B"
        assert refused(token[:place] + other + token[place + 1 :])


@each_row(
    "token",
    [
        "", ".", "..", "...", "a.b.c", "a.b", "e30.e30.e30", f"{encoded([])}.{encoded({})}.x",
        f"{encoded(b'[' * 20_000)}.{encoded({})}.x", f"{encoded({'alg': 'ES256'})}.{encoded(b'null')}.x", "é.é.é",
        "x" * (1 << 20), ("e30." * (1 << 18)), f"{signed()}.{'x'}", f"{signed()}\x00",
        # A header that says a thing twice.
        encoded(b'{"alg":"none","alg":"ES256","kid":"one"}') + "." + signed().split(".", 1)[1],
    ],
)  # fmt: skip
def test_what_is_no_token(token: str) -> None:
    assert refused(token)


@given(st.one_of(st.text(), st.text(alphabet=".eyJ0IiAxfQ-_=", max_size=60), st.binary().map(encoded)))
def test_no_text_trips_it(token: str) -> None:
    refused(token)


NAMES = ["iss", "aud", "sub", "exp", "nbf", "groups", "scope", "scp", "cnf", "typ", "nonce", "x"]
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda each: st.one_of(st.lists(each, max_size=3), st.dictionaries(st.text(max_size=3), each, max_size=3)),
    max_leaves=4,
)


@given(st.dictionaries(st.sampled_from(NAMES), VALUES))
def test_no_claims_of_the_issuer_trip_it(more: dict[str, Any]) -> None:
    try:
        who, _ = proved(signed(json.dumps({**claims(), **more}).encode()))
    except RefusedError:
        return
    assert who.issuer == ISSUER and who.name


def test_nothing_of_a_token_is_in_an_error() -> None:
    token = signed(claims(sub="secretive", exp=1, groups=["hidden"]), headers={"kid": "kid-of-theirs"})
    said = refused(token)
    assert not any(each in said for each in ("secretive", "hidden", "kid-of-theirs", token[:20]))
