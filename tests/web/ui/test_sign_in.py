"""Who may look: one-time addresses, tokens, an issuer, and at which replica; and who may not."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

import anyio
import pytest
from mcp.shared.auth import OAuthClientInformationFull
from pydantic import AnyUrl
from starlette.requests import Request
from starlette.responses import Response

from access.signing import public, signed
from mcp_skills_server.access.oauth import ResourceServer
from mcp_skills_server.access.principal import Admission, Principal
from mcp_skills_server.access.quotas import QuotaSettings, Rates
from mcp_skills_server.access.settings import OAuthSettings
from mcp_skills_server.access.tokens import read_tokens
from mcp_skills_server.web.guards import make_policy
from mcp_skills_server.web.rates import FailedAuthentications
from mcp_skills_server.web.ui import session
from mcp_skills_server.web.ui.session import PageSessions, Viewer
from mcp_skills_server.web.ui.sign_in import Flow, SignInError
from shared.redis_servers import redis_server
from tables import each_row
from web.authorization_server import AuthorizationServer, authorization_server
from web.http_wire import Reply, Server, bearing, http_serving
from web.proxies import Edits, HaProxy, running
from web.ui.serving import SECRET, TOKENS, cookie_of, fetch, get, page_serving, ui_command, words
from wire import write_skill

BACK = "https://skills.example/ui/oauth/callback"


def sign_in(server: Server, token: str, prefix: str = "", **headers: str | None) -> Reply:
    given = {"Sec-Fetch-Site": "same-origin", "Origin": f"http://127.0.0.1:{server.port}", **headers}
    return server.send("POST", f"{prefix}/ui/sign-in", urlencode({"token": token}).encode(), given)


def test_the_page_stands_below_a_prefix_and_the_root_leads_to_it_and_opens_nothing(skills: Path) -> None:
    with page_serving(skills, "--root-path", "/team", environment=TOKENS) as server:
        for path in ("/", "/team/"):
            reply = get(server, path)
            assert (reply.status, reply.headers["Location"], reply.body) == (303, "/team/ui/", b"")
        assert server.send("POST", "/", b"{}").status == 405
        assert [get(server, path).status for path in ("/mcp", "//", "/x", "/%2e")] == [401] * 4
        assert get(server, "/team/ui/").headers["Location"] == "/team/ui/sign-in"
        reply = sign_in(server, SECRET, prefix="/team")
        assert reply.headers["Location"] == "/team/ui/" and "Path=/team/ui" in (reply.headers["Set-Cookie"] or "")
        shown = get(server, "/team/ui/", Cookie=cookie_of(reply)).body.decode()
        assert 'href="/team/ui/skills/refunds"' in shown and '"/ui/' not in shown
    with http_serving(skills, environment=TOKENS) as server:
        assert get(server, "/").status == 401
    with http_serving(skills) as server:
        assert get(server, "/ui/").status == get(server, "/").status == 404


def test_an_open_server_asks_nobody_and_nothing_foreign_runs_in_its_page(skills: Path) -> None:
    with page_serving(skills) as server:
        reply = get(server, "/ui/")
        assert reply.status == 200 and "refunds" in words(reply) and "Sign out" not in words(reply)
        assert get(server, "/ui").headers["Location"] == "/ui/"
        assert get(server, "/", Host="evil.example").status == sign_in(server, SECRET, Origin="null").status == 403
        for path in ("/ui/", "/ui/static/ui.js", "/ui/no/such", "/ui/skills/none", "/ui/sign-in"):
            headers = get(server, path).headers
            policy = headers["Content-Security-Policy"] or ""
            assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';"), path
            assert "unsafe" not in policy and "frame-ancestors 'none'" in policy
            assert headers["X-Content-Type-Options"] == "nosniff"
            assert headers["Cross-Origin-Opener-Policy"] == headers["Cross-Origin-Resource-Policy"] == "same-origin"
            assert headers["Referrer-Policy"] == "same-origin"
            assert headers["Cache-Control"] == ("no-cache" if "static" in path else "no-store")


def test_the_address_of_ones_own_page_lets_in_once_and_leaves_no_secret_in_the_address(skills: Path) -> None:
    with ui_command(skills) as address:
        origin = address.partition("/ui/")[0]
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/ui/enter\?once=[\w-]{43}", address)
        assert fetch(f"{origin}/ui/").status == 303
        assert fetch(f"{origin}/ui/enter?once=wrong").status == 403
        assert str(skills) not in text_of(fetch(f"{origin}/readyz?verbose"))
        status, headers, _ = fetch(address)
        assert (status, headers["Location"]) == (303, "/ui/")
        given = headers["Set-Cookie"] or ""
        assert "HttpOnly" in given and "SameSite=strict" in given and "Path=/ui" in given
        assert address.partition("once=")[2] not in given
        assert fetch(address).status == 403
        used = words(fetch(address))
        assert "was used before" in used and "start it again, and open the whole address that it prints" in used
        assert fetch(f"{origin}/").headers["Location"] == "/ui/"
        assert fetch(f"{origin}/ui/", cookie_of(headers)).status == 200
        assert fetch(f"{origin}/mcp", cookie_of(headers)).status == 404  # nothing but the page


def test_a_token_lets_in_and_is_not_in_the_cookie(guarded: Server) -> None:
    assert get(guarded, "/ui/").headers["Location"] == "/ui/sign-in"
    assert get(guarded, "/ui/skills/refunds").status == 303
    assert 'name="token" type="password"' in get(guarded, "/ui/sign-in").body.decode()
    reply = sign_in(guarded, SECRET)
    cookie = cookie_of(reply)
    assert reply.status == 303 and SECRET not in cookie and len(cookie.partition("=")[2]) == 43
    assert "laptop" in words(get(guarded, "/ui/", Cookie=cookie))
    out = guarded.send("POST", "/ui/sign-out", b"", {"Cookie": cookie, "Sec-Fetch-Site": "same-origin"})
    assert out.status == 303 and get(guarded, "/ui/", Cookie=cookie).status == 303
    assert get(guarded, "/ui/", Authorization=f"Bearer {SECRET}").status == 200
    assert get(guarded, "/ui/", Authorization="Bearer wrong-wrong-wrong-wrong").status == 303
    assert "not valid here" in words(sign_in(guarded, "wrong-wrong-wrong-wrong"))
    guarded.said("refused a token at the page")
    assert SECRET not in guarded.stderr


@each_row(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}, {"Origin": "https://evil.example"},
        {"Origin": "null"}, {"Origin": "http://127.0.0.1:1"}, {"Origin": None, "Sec-Fetch-Site": None},
    ],
)  # fmt: skip
def test_a_form_of_another_page_is_refused(guarded: Server, headers: dict[str, str | None]) -> None:
    reply = sign_in(guarded, SECRET, **headers)
    assert reply.status == 403 and "Set-Cookie" not in reply.headers


def test_the_page_may_be_reached_by_any_name_where_tokens_are_wanted(skills: Path) -> None:
    with page_serving(skills, "--host", "0.0.0.0", environment=TOKENS) as server:
        named = {"Host": "skills.example", "Origin": "http://skills.example"}
        assert sign_in(server, SECRET, **named).status == 303
        assert sign_in(server, SECRET, **{**named, "Origin": "http://evil.example"}).status == 403
        body = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
        assert server.send("POST", "/mcp", body, {**named, "Authorization": f"Bearer {SECRET}"}).status == 403


def test_whoever_fails_too_often_has_to_wait_at_every_door(tmp_path: Path, skills: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text("[quota]\nfailed-authentications-per-minute = 4\n")
    wrong = bearing("wrong-wrong-wrong-wrong")
    with page_serving(skills, "--config", config, environment=TOKENS) as server:
        assert server.send("POST", "/mcp", b"{}", wrong).status == 401
        assert get(server, "/ui/", **wrong).status == 303
        assert [sign_in(server, "wrong").status for _ in range(3)] == [403, 403, 429]
        reply = get(server, "/ui/", **wrong)
        assert reply.status == 429 and int(reply.headers["Retry-After"] or 0) >= 1
        assert server.send("POST", "/mcp", b"{}", wrong).status == 429
        assert sign_in(server, SECRET).status == 303  # who proves to be somebody pays for nobody else at the address


def test_a_session_ends_with_its_token_and_where_it_is_not_used() -> None:
    policy = make_policy("127.0.0.1", (), (), read_tokens(f"laptop={SECRET}", "x").require_valid())
    sessions = PageSessions(policy, None, FailedAuthentications(Rates(QuotaSettings())), None)

    async def begun(seconds: float = 600) -> Request:
        """What comes with the cookie of a session, by a token that lasts so long."""
        scope: dict[str, Any] = {"type": "http", "method": "GET", "path": "/ui/", "headers": []}
        viewer = Viewer(Admission(Principal("user", "ann", ISSUER), b"", time.time() + seconds))
        await sessions.begin(Request(scope), response := Response(), viewer)
        return Request({**scope, "headers": [(b"cookie", response.headers["Set-Cookie"].partition(";")[0].encode())]})

    async def lasts(*requests: Request) -> list[bool]:
        return [await sessions.viewer(each) is not None for each in requests]

    async def work() -> None:
        assert await lasts(await begun(), await begun(-1)) == [True, False]
        for idle, is_left in ((12 * 3600 - 60, True), (12 * 3600 + 60, False)):
            request = await begun()
            for key, each in sessions._sessions.items():
                sessions._sessions[key] = each._replace(used=each.used - idle)
            assert await lasts(request) == [is_left]
        assert await lasts(*[await begun() for _ in range(51)]) == [False] + [True] * 50, "fifty of one"
        sessions._sessions.clear()
        request, other = await begun(), session._ViewerSession(Viewer(), time.monotonic())
        sessions._sessions.update((b"%d" % number, other) for number in range(9_999))
        assert await lasts(request) + await lasts(await begun(), request) == [True] * 3, "who was there last ends last"
        assert (len(sessions._sessions), b"0" in sessions._sessions) == (10_000, False)

    anyio.run(work)


def know_the_page(issuer: AuthorizationServer) -> None:
    """Register the page as a public client of the issuer."""
    issuer.clients["page"] = OAuthClientInformationFull(
        client_id="page", redirect_uris=[AnyUrl(BACK)], token_endpoint_auth_method="none"
    )


def oauth_page(folder: Path, issuer: str, more: str = 'ui-client-id = "page"') -> Path:
    config = folder / "config.toml"
    config.write_text(f'[oauth]\nissuer = "{issuer}"\naudience = "https://skills.example/mcp"\n{more}\n')
    return config


def test_the_issuer_signs_in_with_pkce_state_and_a_browser_of_its_own(tmp_path: Path, skills: Path) -> None:
    with authorization_server() as issuer:
        know_the_page(issuer)
        with page_serving(skills, "--config", oauth_page(tmp_path, issuer.url)) as server:
            assert "Sign in at" in words(get(server, "/ui/sign-in"))
            begun = get(server, "/ui/oauth/begin")
            place = begun.headers["Location"] or ""
            asked = parse_qs(urlsplit(place).query)
            assert asked["code_challenge_method"] == ["S256"] and asked["redirect_uri"] == [BACK]
            assert "Max-Age=600; Path=/ui/oauth; SameSite=lax" in (begun.headers["Set-Cookie"] or "")
            away = cookie_of(begun)
            assert len(away.partition("=")[2]) == 43
            returned = urlsplit(fetch(place).headers["Location"] or "")
            assert returned.netloc == "skills.example"
            callback = f"/ui/oauth/callback?{returned.query}"
            assert get(server, callback).status == 403  # of another browser, which takes nothing from this one
            said = {"state": parse_qs(returned.query)["state"][0], "error": "no", "error_description": "<b>Ask</b> IT"}
            shown = get(server, f"/ui/oauth/callback?{urlencode(said)}", Cookie=away).body.decode()
            assert "refused the sign-in (no: &lt;b&gt;Ask&lt;/b&gt; IT)." in shown
            server.said(r"signing in at the issuer failed: The issuer refused the sign-in \(no: <b>Ask</b> IT\)")
            server.said("refused a callback without a sign-in")
            foreign = get(server, f"/ui/oauth/callback?{urlencode({**said, 'state': 'x'})}", Cookie=away)
            assert "Ask" not in words(foreign)  # an address that anybody may have made up
            done = get(server, callback, Cookie=away)
            assert done.status == 200 and done.headers["Refresh"] == "0; url=/ui/"
            assert "ann" in words(get(server, "/ui/", Cookie=cookie_of(done)))


def test_an_issuer_that_does_not_respond_refuses_nobody(tmp_path: Path, skills: Path) -> None:
    with ExitStack() as stack:
        with authorization_server() as issuer:
            know_the_page(issuer)
            server = stack.enter_context(page_serving(skills, "--config", oauth_page(tmp_path, issuer.url)))
            begun = get(server, "/ui/oauth/begin")
            back = urlsplit(fetch(begun.headers["Location"] or "").headers["Location"] or "")
        reply = get(server, f"/ui/oauth/callback?{back.query}", Cookie=cookie_of(begun))
        assert reply.status == 503 and "does not respond" in words(reply)
        server.said("signing in at the issuer failed: The issuer does not respond")


def test_no_foreign_page_locks_anybody_out_of_signing_in(tmp_path: Path, skills: Path) -> None:
    with authorization_server() as issuer:
        quota = 'ui-client-id = "page"\n[quota]\nfailed-authentications-per-minute = 4'
        with page_serving(skills, "--config", oauth_page(tmp_path, issuer.url, quota)) as server:
            image = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"}
            for path in ("/ui/oauth/begin", "/ui/oauth/callback?state=x&code=y", "/ui/enter?once=x", "/metrics"):
                for given in (image, {}):  # not every browser says it over plain HTTP
                    replies = [get(server, path, **given) for _ in range(8)]
                    assert path != "/ui/oauth/begin" or {each.status for each in replies} == {403 if given else 303}
                    assert not given or not any("Set-Cookie" in each.headers for each in replies)
            assert get(server, "/ui/oauth/begin", **{"Sec-Fetch-Site": "same-origin"}).status == 303
            assert {*issuer.asked} <= {"/.well-known/oauth-authorization-server", "/keys"} and len(issuer.asked) <= 4


def test_an_issuer_that_does_not_know_the_page_signs_nobody_in(tmp_path: Path, skills: Path) -> None:
    with (
        authorization_server() as issuer,
        page_serving(skills, "--config", oauth_page(tmp_path, issuer.url, "")) as server,
    ):
        assert get(server, "/ui/oauth/begin").status == 404 and get(server, "/ui/").status == 303
        token = issuer.token("https://skills.example/mcp", [])
        assert get(server, "/ui/", **bearing(token)).status == 200


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

    def __init__(self, metadata: Mapping[str, object] = METADATA, **settings: Any) -> None:
        self.metadata = metadata
        self.forms: list[dict[str, str]] = []
        self.answer: dict[str, Any] = {"access_token": token()}
        self.status = 200
        expected = OAuthSettings(ISSUER, AUDIENCE, AUDIENCE, **settings)
        self.flow = Flow(ResourceServer(expected, self.fetch), "page", self.post)

    async def fetch(self, url: str) -> tuple[int, bytes]:
        found = {"keys": [public()]} if url.endswith("/keys") else self.metadata
        return 200, json.dumps(found).encode()

    async def post(self, url: str, form: bytes) -> tuple[int, bytes]:
        assert url == f"{ISSUER}/token"
        self.forms.append(dict(parse_qsl(form.decode())))
        return self.status, json.dumps(self.answer).encode()


def went(issuer: Issuer, browser: str = "browser", end: Issuer | None = None, **change: str) -> tuple[Any, Any]:
    """Go to the issuer and come back, to another replica if there is one; the viewer and what was asked."""

    async def work() -> tuple[Any, Any]:
        asked = dict(parse_qsl(urlsplit(await issuer.flow.begin("browser")).query))
        return await (end or issuer).flow.finish({"state": asked["state"], "code": "c", **change}, browser), asked

    return anyio.run(work)


def test_another_replica_finishes_what_one_began_for_who_went() -> None:
    one, other = Issuer(), Issuer()
    found, asked = went(one, end=other, iss=ISSUER)
    assert found.principal.name == "ann"
    assert asked["redirect_uri"] == "https://skills.example/team/ui/oauth/callback" and asked["tenant"] == "1"
    assert "nonce" not in asked and asked["scope"] == "openid"
    (form,) = other.forms
    assert form["code"] == "c" and len(form["code_verifier"]) == 43 and "client_secret" not in form
    challenge = base64.urlsafe_b64encode(hashlib.sha256(form["code_verifier"].encode()).digest()).decode()
    assert challenge.rstrip("=") == asked["code_challenge"]
    assert form["resource"] == asked["resource"] == AUDIENCE
    plain = METADATA | {"authorization_endpoint": f"{ISSUER}/authorize", "scopes_supported": []}
    assert "scope" not in went(Issuer(plain))[1]
    _, asked = went(Issuer(request_scopes=("a", "b"), ui_resource=False))
    assert asked["scope"] == "a b" and "resource" not in asked


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
        went(issuer, browser, **change)
    assert issuer.forms == []


def test_where_an_issuer_always_says_who_answers_an_answer_without_it_is_refused() -> None:
    issuer = Issuer({**METADATA, "authorization_response_iss_parameter_supported": True})
    with pytest.raises(SignInError, match="does not name its issuer"):
        went(issuer)
    went(issuer, iss=ISSUER)
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
        went(issuer)


@each_row(
    "more",
    [{"issuer": "https://evil.example"}, *({"authorization_endpoint": each} for each in ("http://a.example/x", 7))],
)
def test_an_issuer_that_says_nothing_safe_is_not_gone_to(more: dict[str, object]) -> None:
    with pytest.raises(SignInError):
        went(Issuer({**METADATA, **more}))


TAKE_TURNS: Edits = [("balance source", "balance roundrobin"), ("hash-type consistent", "")]


@contextmanager
def two(folder: Path, *options: str | Path, edits: Edits = (), **environment: str) -> Iterator[tuple[Server, Server]]:
    """Two replicas with the page, and a proxy before them; the proxy and the first replica."""
    write_skill(folder / "skills" / "refunds")
    (folder / "proxy").mkdir()
    with ExitStack() as stack:
        given = (folder / "skills", *options)
        replicas = [stack.enter_context(page_serving(*given, environment=environment)) for _ in range(2)]
        proxy = stack.enter_context(running(HaProxy(folder / "proxy", *(each.port for each in replicas), edits=edits)))
        assert isinstance(proxy, HaProxy)
        for name in ("replica-1", "replica-2"):
            proxy.sees(name, "UP")
        yield proxy, replicas[0]


def statuses(server: Server, cookie: str) -> set[int]:
    """The answers to requests that follow: enough for either replica to have several."""
    return {get(server, "/ui/", Cookie=cookie).status for _ in range(6)}


@pytest.mark.needs_program("haproxy")
def test_the_shipped_file_leads_a_person_to_one_replica(tmp_path: Path) -> None:
    with two(tmp_path, **TOKENS) as (proxy, _):
        assert statuses(proxy, cookie_of(sign_in(proxy, SECRET))) == {200}


@pytest.mark.needs_program("haproxy", "redis-server")
def test_with_redis_each_replica_knows_who_is_signed_in_until_it_ends(tmp_path: Path) -> None:
    with (
        redis_server(tmp_path / "redis") as redis,
        two(tmp_path, "--redis", redis.url, edits=TAKE_TURNS, **TOKENS) as (proxy, first),
    ):
        cookie = cookie_of(sign_in(proxy, SECRET))
        assert statuses(proxy, cookie) == {200}
        for key in redis.all_keys():
            if redis.say("type", key) == "string":
                assert SECRET not in redis.say("get", key) and cookie.partition("=")[2] not in key
        out = proxy.send("POST", "/ui/sign-out", b"", {"Cookie": cookie, "Sec-Fetch-Site": "same-origin"})
        assert out.status == 303 and statuses(proxy, cookie) == {303}
        # What Redis holds proves nothing by itself, and what a replica knows goes on without Redis.
        cookie = cookie_of(sign_in(first, SECRET))
        pages = [each for each in redis.all_keys() if each.startswith("mcp-skills:page:")]
        (key,) = (each for each in pages if "all" not in each and "of:" not in each)
        redis.say("set", key, "gAAAAAforged")
        assert 303 in statuses(proxy, cookie)
        redis.stop()
        assert get(first, "/ui/", Cookie=cookie).status == 200
