"""The way to the issuer and back: whatever comes back that does not belong together lets nobody in."""

from __future__ import annotations

import base64
import hashlib
import json
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import anyio
import pytest

from access.signing import public, signed
from mcp_skills_server.access.oauth import ResourceServer
from mcp_skills_server.access.settings import OAuthSettings
from mcp_skills_server.web.ui.sign_in import Flow, SignInError
from tables import each_row

ISSUER, AUDIENCE = "https://login.example", "https://skills.example/team/mcp"
METADATA = {
    "issuer": ISSUER,
    "jwks_uri": f"{ISSUER}/keys",
    "authorization_endpoint": f"{ISSUER}/authorize?tenant=1",
    "token_endpoint": f"{ISSUER}/token",
    "scopes_supported": ["openid"],
}


def token(**more: object) -> str:
    now = int(time.time())
    return signed({"iss": ISSUER, "sub": "ann", "aud": AUDIENCE, "iat": now, "exp": now + 600, **more})


class Issuer:
    """What an issuer answers, and the forms that it got."""

    def __init__(self, metadata: Mapping[str, object] = METADATA) -> None:
        self.metadata = metadata
        self.forms: list[dict[str, str]] = []
        self.answer: dict[str, Any] = {"access_token": token()}
        self.status = 200
        self.flow = Flow(ResourceServer(OAuthSettings(ISSUER, AUDIENCE, AUDIENCE), self.fetch), "page", self.post)

    async def fetch(self, url: str) -> tuple[int, bytes]:
        found = {"keys": [public()]} if url.endswith("/keys") else self.metadata
        return 200, json.dumps(found).encode()

    async def post(self, url: str, form: bytes) -> tuple[int, bytes]:
        assert url == f"{ISSUER}/token"
        self.forms.append(dict(parse_qsl(form.decode())))
        return self.status, json.dumps(self.answer).encode()


def sign_in(issuer: Issuer, browser: str = "browser", end: Issuer | None = None, **change: str) -> tuple[Any, Any]:
    """Go to the issuer and come back, to another replica if there is one; the viewer and what was asked."""

    async def work() -> tuple[Any, Any]:
        asked = dict(parse_qsl(urlsplit(await issuer.flow.begin("browser")).query))
        return await (end or issuer).flow.finish({"state": asked["state"], "code": "c", **change}, browser), asked

    return anyio.run(work)


def test_another_replica_finishes_what_one_began_for_who_went() -> None:
    one, other = Issuer(), Issuer()
    found, asked = sign_in(one, end=other, iss=ISSUER)
    assert found.principal.name == "ann"
    assert asked["redirect_uri"] == "https://skills.example/team/ui/oauth/callback" and asked["tenant"] == "1"
    assert "nonce" not in asked and asked["scope"] == "openid"
    (form,) = other.forms
    assert form["code"] == "c" and len(form["code_verifier"]) == 43 and "client_secret" not in form
    challenge = base64.urlsafe_b64encode(hashlib.sha256(form["code_verifier"].encode()).digest()).decode()
    assert challenge.rstrip("=") == asked["code_challenge"]
    assert form["resource"] == asked["resource"] == AUDIENCE


@each_row(
    ("change", "browser", "said"),
    [
        ({"state": "other"}, "browser", "did not begin"),
        ({}, "another", "did not begin"),
        ({}, "", "did not begin"),
        ({"iss": "https://evil.example"}, "browser", "from another issuer"),
        ({"error": "access_denied"}, "browser", "refused the sign-in"),
        ({"code": ""}, "browser", "refused the sign-in"),
    ],
)
def test_what_does_not_belong_together_is_refused(change: dict[str, str], browser: str, said: str) -> None:
    issuer = Issuer()
    with pytest.raises(SignInError, match=said):
        sign_in(issuer, browser, **change)
    assert issuer.forms == []


def test_where_an_issuer_always_says_who_answers_an_answer_without_it_is_refused() -> None:
    issuer = Issuer({**METADATA, "authorization_response_iss_parameter_supported": True})
    with pytest.raises(SignInError, match="does not name its issuer"):
        sign_in(issuer)
    sign_in(issuer, iss=ISSUER)
    assert len(issuer.forms) == 1


@each_row(
    ("answer", "status", "said"),
    [
        ({"access_token": token(aud="https://other.example")}, 200, "not accepted here"),
        ({"access_token": "no token"}, 200, "not accepted here"),
        ({"access_token": 7}, 200, "issued no token"),
        ({"access_token": token()}, 400, "issued no token"),
        ({"error": "x", "error_description": "no\nsuch"}, 400, r"no token \(x: no\\u\{a\}such\)"),
    ],
)
def test_tokens_of_others_let_nobody_in(answer: dict[str, Any], status: int, said: str) -> None:
    issuer = Issuer()
    issuer.answer, issuer.status = answer, status
    with pytest.raises(SignInError, match=said):
        sign_in(issuer)


@each_row(
    "more",
    [{"issuer": "https://evil.example"}, *({"authorization_endpoint": each} for each in ("http://a.example/x", 7))],
)
def test_an_issuer_that_says_nothing_safe_is_not_gone_to(more: dict[str, object]) -> None:
    with pytest.raises(SignInError):
        sign_in(Issuer({**METADATA, **more}))
