"""Sign-in at the page by one-time address, token or OAuth issuer, and sessions shared by replicas."""

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
from mcp_skills_server.access.quota import Quotas
from mcp_skills_server.access.settings import OAuthSettings
from mcp_skills_server.access.tokens import read_tokens
from mcp_skills_server.web.policy import make_policy
from mcp_skills_server.web.ui import session
from mcp_skills_server.web.ui.issuer_flow import Flow, SignInError
from mcp_skills_server.web.ui.session import PageSessions, Viewer
from mcp_skills_server.web.ui.sign_in import form_of
from shared.redis_servers import redis_server
from tables import each_row
from web.authorization_server import AuthorizationServer, authorization_server
from web.http_wire import Reply, Server, Target, bearer_header
from web.in_process import app_serving
from web.proxies import Edits, HaProxy, running
from web.ui.serving import SECRET, TOKENS, cookie_of, fetch, get, page_serving, text_of, ui_command, visible_text
from wire import write_skill

CALLBACK = "https://skills.example/ui/oauth/callback"


def sign_in(server: Target, token: str, prefix: str = "", **headers: str | None) -> Reply:
    """Submit the sign-in form as a browser would. A header that is None is left out."""
    given = {"Sec-Fetch-Site": "same-origin", "Origin": f"http://127.0.0.1:{server.port}", **headers}
    return server.send("POST", f"{prefix}/ui/sign-in", urlencode({"token": token}).encode(), given)


def sign_out(server: Target, cookie: str) -> Reply:
    return server.send("POST", "/ui/sign-out", b"", {"Cookie": cookie, "Sec-Fetch-Site": "same-origin"})


def test_root_path_prefixes_the_page_and_root_redirects_to_it(skills: Path) -> None:
    with app_serving(skills, "--ui", "--root-path", "/team", environment=TOKENS) as server:
        for path in ("/", "/team/"):
            reply = get(server, path)
            assert (reply.status, reply.headers["Location"], reply.body) == (303, "/team/ui/", b"")
        assert server.send("POST", "/", b"{}").status == 405
        assert [get(server, path).status for path in ("/mcp", "//", "/x", "/%2e")] == [401] * 4
        assert get(server, "/team/ui/").headers["Location"] == "/team/ui/sign-in"
        reply = sign_in(server, SECRET, prefix="/team")
        assert reply.headers["Location"] == "/team/ui/" and "Path=/team/ui" in (reply.headers["Set-Cookie"] or "")
        page = text_of(get(server, "/team/ui/", Cookie=cookie_of(reply)))
        assert 'href="/team/ui/skills/refunds"' in page and '"/ui/' not in page
    with app_serving(skills, environment=TOKENS) as server:
        assert get(server, "/").status == 401
    with app_serving(skills) as server:
        assert get(server, "/ui/").status == get(server, "/").status == 404


def test_open_server_needs_no_sign_in_and_sets_security_headers(skills: Path) -> None:
    with app_serving(skills, "--ui") as server:
        reply = get(server, "/ui/")
        assert reply.status == 200 and "refunds" in visible_text(reply) and "Sign out" not in visible_text(reply)
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


def test_one_time_address_signs_in_once_and_redirects_without_secret(skills: Path) -> None:
    with ui_command(skills) as address:
        origin = address.partition("/ui/")[0]
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/ui/enter\?once=[\w-]{43}", address)
        assert fetch(f"{origin}/ui/").status == 303
        assert fetch(f"{origin}/ui/enter?once=wrong").status == 200, "the way in"
        assert str(skills) not in text_of(fetch(f"{origin}/readyz?verbose"))
        rebound = fetch(address, Host="evil.example")
        assert rebound.status == 403 and "Set-Cookie" not in rebound.headers, "protects against DNS rebinding"
        signed_in = fetch(address)
        assert (signed_in.status, signed_in.headers["Location"]) == (303, "/ui/")
        cookie = signed_in.headers["Set-Cookie"] or ""
        assert "HttpOnly" in cookie and "SameSite=strict" in cookie and "Path=/ui" in cookie
        assert address.partition("once=")[2] not in cookie
        second = fetch(address)
        assert second.status == 200 and "Set-Cookie" not in second.headers
        assert "was used before" in visible_text(second)
        assert "press Another browser there. Or stop the command" in visible_text(second)
        cookie = cookie_of(signed_in)
        assert "Sign out" not in text_of(fetch(f"{origin}/ui/", cookie))
        for foreign in (fetch(f"{origin}/ui/another", cookie, "POST", Origin="http://evil.example"),
                        fetch(f"{origin}/ui/another", "", "POST", Origin=origin)):  # fmt: skip
            assert foreign.status == 403 and "once=" not in text_of(foreign)
        given = fetch(f"{origin}/ui/another", cookie, "POST", Origin=origin)
        (further,) = re.findall(r"http://127\S+/ui/enter\?once=[\w-]{43}", text_of(given))
        assert fetch(further).status == 303 and fetch(further).status == 200 and fetch(address).status == 200
        assert fetch(f"{origin}/ui/", cookie).status == 200, "the first browser stays"
        assert fetch(f"{origin}/").headers["Location"] == "/ui/"
        assert fetch(f"{origin}/ui/", cookie_of(signed_in)).status == 200
        assert fetch(f"{origin}/mcp", cookie_of(signed_in)).status == 404  # it serves nothing but the page


def test_token_signs_in_and_is_not_in_cookie_or_log(guarded: Target) -> None:
    assert get(guarded, "/ui/").headers["Location"] == "/ui/sign-in"
    assert get(guarded, "/ui/skills/refunds").status == 303
    assert 'name="token" type="password"' in get(guarded, "/ui/sign-in").body.decode()
    reply = sign_in(guarded, SECRET)
    cookie = cookie_of(reply)
    assert reply.status == 303
    assert SECRET not in cookie and len(cookie.partition("=")[2]) == 43
    assert "laptop" in visible_text(get(guarded, "/ui/", Cookie=cookie))
    assert sign_out(guarded, cookie).status == 303
    assert get(guarded, "/ui/", Cookie=cookie).status == 303
    assert get(guarded, "/ui/", Authorization=f"Bearer {SECRET}").status == 200
    assert get(guarded, "/ui/", Authorization="Bearer wrong-wrong-wrong-wrong").status == 303
    assert "not valid here" in visible_text(sign_in(guarded, "wrong-wrong-wrong-wrong"))
    guarded.wait_for_log("refused a token at the page")
    assert SECRET not in guarded.stderr


@each_row("headers", [
    {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}, {"Origin": "https://evil.example"},
    {"Origin": "null"}, {"Origin": "http://127.0.0.1:1"}, {"Origin": None, "Sec-Fetch-Site": None},
])  # fmt: skip
def test_form_of_foreign_origin_is_refused(guarded: Target, headers: dict[str, str | None]) -> None:
    reply = sign_in(guarded, SECRET, **headers)
    assert reply.status == 403 and "Set-Cookie" not in reply.headers


def test_page_with_tokens_accepts_any_host_name_but_mcp_does_not(skills: Path) -> None:
    with app_serving(skills, "--ui", "--host", "0.0.0.0", environment=TOKENS) as server:
        headers = {"Host": "skills.example", "Origin": "http://skills.example"}
        assert sign_in(server, SECRET, **headers).status == 303
        assert sign_in(server, SECRET, **{**headers, "Origin": "http://evil.example"}).status == 403
        body = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
        assert server.send("POST", "/mcp", body, {**headers, **bearer_header(SECRET)}).status == 403


def test_failed_authentications_share_one_rate_limit_for_page_and_mcp(tmp_path: Path, skills: Path) -> None:
    config, audit = tmp_path / "c.toml", tmp_path / "audit.jsonl"
    config.write_text("[quota]\nfailed-authentications-per-minute = 4\n")
    wrong = bearer_header("wrong-wrong-wrong-wrong")
    with app_serving(skills, "--ui", "--config", config, "--audit-log", audit, environment=TOKENS) as server:
        own = {"Origin": f"http://127.0.0.1:{server.port}"}
        assert server.send("POST", "/mcp", b"{}", wrong).status == 401
        assert get(server, "/ui/", **wrong).status == 303
        assert [sign_in(server, "wrong").status for _ in range(3)] == [403, 403, 429]
        assert server.send("POST", "/mcp", b"{}", wrong).status == 429
        for method, path in (("GET", "/ui/"), ("GET", "/ui/sign-in"), ("POST", "/ui/try"), ("GET", "/ui/no-such")):
            reply = server.send(method, path, b"", own | wrong)
            assert reply.status == 429 and int(reply.headers["Retry-After"] or 0) >= 1, path
            assert reply.headers["Content-Security-Policy"]
            assert server.send(method, path, b"", own | bearer_header(SECRET)).status != 429, path
        assert sign_in(server, SECRET).status == 303  # the limit of an address does not affect valid tokens
    recorded = [json.loads(line) for line in audit.read_text(encoding="utf-8").splitlines()]
    events = [each["event"] for each in recorded if each.get("reason") == "unknown-token"]
    assert events and {*events} == {"refuse"}


def test_session_ends_on_token_expiry_idle_timeout_and_eviction() -> None:
    policy = make_policy("127.0.0.1", (), (), read_tokens(f"laptop={SECRET}", "x").require_valid())
    sessions = PageSessions(policy, Quotas())

    async def request_of_new_session(seconds: float = 600) -> Request:
        """Begin a session by a token that expires in `seconds`. Return a request with its cookie."""
        scope: dict[str, Any] = {"type": "http", "method": "GET", "path": "/ui/", "headers": []}
        viewer = Viewer(Admission(Principal("user", "ann", ISSUER), b"", time.time() + seconds))
        await sessions.begin(Request(scope), response := Response(), viewer)
        return Request({**scope, "headers": [(b"cookie", response.headers["Set-Cookie"].partition(";")[0].encode())]})

    async def are_valid(*requests: Request) -> list[bool]:
        return [await sessions.viewer(request) is not None for request in requests]

    async def check() -> None:
        assert await are_valid(await request_of_new_session()) == [True]
        assert await are_valid(await request_of_new_session(-1)) == [False]
        for idle, is_valid in ((12 * 3600 - 60, True), (12 * 3600 + 60, False)):
            request = await request_of_new_session()
            for key, stored in sessions._sessions.items():
                sessions._sessions[key] = stored._replace(used=stored.used - idle)
            assert await are_valid(request) == [is_valid]
        requests = [await request_of_new_session() for _ in range(51)]
        assert await are_valid(*requests) == [False] + [True] * 50, "fifty sessions per principal"
        sessions._sessions.clear()
        request, other = await request_of_new_session(), session._ViewerSession(Viewer(), time.monotonic())
        sessions._sessions.update((b"%d" % number, other) for number in range(9_999))
        assert await are_valid(request) == [True]
        newest = await request_of_new_session()
        assert await are_valid(newest, request) == [True] * 2, "the least recently used session is evicted"
        assert (len(sessions._sessions), b"0" in sessions._sessions) == (10_000, False)

    anyio.run(check)


def register_page(issuer: AuthorizationServer) -> None:
    issuer.clients["page"] = OAuthClientInformationFull(
        client_id="page", redirect_uris=[AnyUrl(CALLBACK)], token_endpoint_auth_method="none"
    )


def oauth_configuration(folder: Path, issuer: str, more: str = 'ui-client-id = "page"') -> Path:
    config = folder / "config.toml"
    config.write_text(f'[oauth]\nissuer = "{issuer}"\naudience = "https://skills.example/mcp"\n{more}\n')
    return config


def test_oauth_sign_in_uses_pkce_and_state_bound_to_browser(tmp_path: Path, skills: Path) -> None:
    with ExitStack() as stack:
        with authorization_server() as issuer:
            register_page(issuer)
            server = stack.enter_context(
                app_serving(skills, "--ui", "--config", oauth_configuration(tmp_path, issuer.url))
            )
            assert "Sign in at" in visible_text(get(server, "/ui/sign-in"))
            begun = get(server, "/ui/oauth/begin")
            authorization_url = begun.headers["Location"] or ""
            parameters = parse_qs(urlsplit(authorization_url).query)
            assert parameters["code_challenge_method"] == ["S256"]
            assert parameters["redirect_uri"] == [CALLBACK]
            assert "Max-Age=600; Path=/ui/oauth; SameSite=lax" in (begun.headers["Set-Cookie"] or "")
            cookie = cookie_of(begun)
            assert len(cookie.partition("=")[2]) == 43
            redirect = urlsplit(fetch(authorization_url).headers["Location"] or "")
            assert redirect.netloc == "skills.example"
            callback = f"/ui/oauth/callback?{redirect.query}"
            assert get(server, callback).status == 403  # another browser, which does not use up the code
            error = {"error": "no", "error_description": "<b>Ask</b> IT"}
            query = urlencode({"state": parse_qs(redirect.query)["state"][0], **error})
            page = text_of(get(server, f"/ui/oauth/callback?{query}", Cookie=cookie))
            assert "refused the sign-in (no: &lt;b&gt;Ask&lt;/b&gt; IT)." in page
            server.wait_for_log(
                r"signing in at the issuer failed: The issuer refused the sign-in \(no: <b>Ask</b> IT\)"
            )
            server.wait_for_log("refused a callback without a sign-in")
            forged = get(server, f"/ui/oauth/callback?{urlencode({'state': 'x', **error})}", Cookie=cookie)
            assert "Ask" not in visible_text(forged)  # any foreign page can link to such an address
            done = get(server, callback, Cookie=cookie)
            assert done.status == 200 and done.headers["Refresh"] == "0; url=/ui/"
            assert "ann" in visible_text(get(server, "/ui/", Cookie=cookie_of(done)))
        reply = get(server, callback, Cookie=cookie)  # the issuer has ended
        assert reply.status == 503 and "does not respond" in visible_text(reply)


def test_cross_site_requests_do_not_consume_the_sign_in_rate_limit(tmp_path: Path, skills: Path) -> None:
    with authorization_server() as issuer:
        quota = 'ui-client-id = "page"\n[quota]\nfailed-authentications-per-minute = 4'
        with app_serving(skills, "--ui", "--config", oauth_configuration(tmp_path, issuer.url, quota)) as server:
            image = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"}
            for path in ("/ui/oauth/begin", "/ui/oauth/callback?state=x&code=y", "/ui/enter?once=x", "/metrics"):
                for _ in range(8):
                    marked = get(server, path, **image)
                    unmarked = get(server, path)  # some browsers send no fetch metadata over plain HTTP
                    assert "Set-Cookie" not in marked.headers
                    if path == "/ui/oauth/begin":
                        assert (marked.status, unmarked.status) == (403, 303)
            assert get(server, "/ui/oauth/begin", **{"Sec-Fetch-Site": "same-origin"}).status == 303
            assert {*issuer.requests} <= {"/.well-known/oauth-authorization-server", "/keys"}
            assert len(issuer.requests) <= 4


def test_page_without_client_id_accepts_bearer_tokens_only(tmp_path: Path, skills: Path) -> None:
    with (
        authorization_server() as issuer,
        app_serving(skills, "--ui", "--config", oauth_configuration(tmp_path, issuer.url, "")) as server,
    ):
        assert get(server, "/ui/oauth/begin").status == 404 and get(server, "/ui/").status == 303
        token = issuer.token("https://skills.example/mcp", [])
        assert get(server, "/ui/", **bearer_header(token)).status == 200


ISSUER, AUDIENCE = "https://login.example", "https://skills.example/team/mcp"
METADATA = {
    "issuer": ISSUER,
    "jwks_uri": f"{ISSUER}/keys",
    "authorization_endpoint": f"{ISSUER}/authorize?tenant=1",
    "token_endpoint": f"{ISSUER}/token",
    "scopes_supported": ["openid"],
}
NAMES_ITSELF = {"authorization_response_iss_parameter_supported": True}


def access_token(**more: object) -> str:
    now = int(time.time())
    return signed({"iss": ISSUER, "sub": "ann", "aud": AUDIENCE, "iat": now, "exp": now + 600, **more})


class FakeIssuer:
    """An issuer whose responses tests set, with a sign-in flow. It records the token requests."""

    def __init__(
        self, metadata: Mapping[str, object] = {}, answer: object = None, status: int = 200, **settings: Any
    ) -> None:
        self.metadata = {**METADATA, **metadata}
        self.forms: list[dict[str, str]] = []
        self.answer = answer or {"access_token": access_token()}
        self.status = status
        expected = OAuthSettings(ISSUER, AUDIENCE, AUDIENCE, **settings)
        self.flow = Flow(ResourceServer(expected, self.fetch), "page", self.post)

    async def fetch(self, url: str) -> tuple[int, bytes]:
        document = {"keys": [public()]} if url.endswith("/keys") else self.metadata
        return 200, json.dumps(document).encode()

    async def post(self, url: str, form: bytes) -> tuple[int, bytes]:
        assert url == f"{ISSUER}/token"
        self.forms.append(dict(parse_qsl(form.decode())))
        return self.status, json.dumps(self.answer).encode()


def complete_sign_in(
    first: FakeIssuer, second: FakeIssuer | None = None, browser: str = "browser", **change: str
) -> tuple[Any, dict[str, str]]:
    """Begin a sign-in at one replica and finish it at another, with changes to the callback's query.

    Return the viewer and the parameters of the authorization request.
    """

    async def sign_in() -> tuple[Any, dict[str, str]]:
        parameters = dict(parse_qsl(urlsplit(await first.flow.begin("browser")).query))
        query = {"state": parameters["state"], "code": "c", **change}
        return await (second or first).flow.finish(query, browser), parameters

    return anyio.run(sign_in)


def test_sign_in_begun_at_one_replica_finishes_at_another() -> None:
    first, second = FakeIssuer(), FakeIssuer(NAMES_ITSELF)
    viewer, parameters = complete_sign_in(first, second, iss=ISSUER)
    assert viewer.principal.name == "ann"
    assert parameters["redirect_uri"] == "https://skills.example/team/ui/oauth/callback"
    assert parameters["tenant"] == "1", "the query of the authorization endpoint is kept"
    assert "nonce" not in parameters
    assert parameters["scope"] == "openid"
    (form,) = second.forms
    assert form["code"] == "c"
    assert len(form["code_verifier"]) == 43
    assert "client_secret" not in form
    challenge = base64.urlsafe_b64encode(hashlib.sha256(form["code_verifier"].encode()).digest()).decode()
    assert challenge.rstrip("=") == parameters["code_challenge"]
    assert form["resource"] == parameters["resource"] == AUDIENCE


def test_authorization_request_has_configured_scopes_and_resource() -> None:
    minimal = {"authorization_endpoint": f"{ISSUER}/authorize", "scopes_supported": []}
    _, parameters = complete_sign_in(FakeIssuer(minimal))
    assert "scope" not in parameters
    _, parameters = complete_sign_in(FakeIssuer(request_scopes=("a", "b"), ui_resource=False))
    assert parameters["scope"] == "a b"
    assert "resource" not in parameters


@each_row(("issuer", "callback", "message"), [
    ({}, {"state": "other"}, "did not begin"),
    ({}, {"browser": "another"}, "did not begin"),
    ({}, {"browser": ""}, "did not begin"),
    ({}, {"iss": "https://evil.example"}, "from another issuer"),
    ({}, {"error": "access_denied"}, "refused the sign-in"),
    ({}, {"code": ""}, "refused the sign-in"),
    ({"metadata": NAMES_ITSELF}, {}, "does not name its issuer"),
    ({"metadata": {"issuer": "https://evil.example"}}, {}, "does not respond"),
    ({"metadata": {"authorization_endpoint": "http://a.example/x"}}, {}, "no usable sign-in address"),
    ({"metadata": {"authorization_endpoint": 7}}, {}, "no usable sign-in address"),
    ({"answer": {"access_token": access_token(aud="https://other.example")}}, {}, "not accepted here"),
    ({"answer": {"access_token": "no token"}}, {}, "not accepted here"),
    ({"answer": {"access_token": 7}}, {}, "issued no token"),
    ({"answer": {"access_token": access_token()}, "status": 400}, {}, "issued no token"),
    ({"answer": {"error": "x", "error_description": "no\nsuch"}}, {}, r"no token \(x: no\\u\{a\}such\)"),
])  # fmt: skip
def test_invalid_callback_metadata_and_token_are_refused(
    issuer: dict[str, Any], callback: dict[str, str], message: str
) -> None:
    fake = FakeIssuer(**issuer)
    with pytest.raises(SignInError, match=message):
        complete_sign_in(fake, **callback)
    assert len(fake.forms) == ("answer" in issuer), "no code is redeemed for an invalid callback"


ROUND_ROBIN: Edits = [("balance source", "balance roundrobin"), ("hash-type consistent", "")]


@contextmanager
def two_replicas(
    folder: Path, *options: str | Path, edits: Edits = (), **environment: str
) -> Iterator[tuple[Server, Server]]:
    write_skill(folder / "skills" / "refunds")
    (folder / "proxy").mkdir()
    with ExitStack() as stack:
        arguments = (folder / "skills", *options)
        replicas = [stack.enter_context(page_serving(*arguments, environment=environment)) for _ in range(2)]
        ports = [replica.port for replica in replicas]
        proxy = stack.enter_context(running(HaProxy(folder / "proxy", *ports, edits=edits)))
        assert isinstance(proxy, HaProxy)
        for name in ("replica-1", "replica-2"):
            proxy.wait_for_state(name, "UP")
        yield proxy, replicas[0]


def statuses(server: Server, cookie: str) -> set[int]:
    """Return the statuses of six requests, so that each replica receives several."""
    return {get(server, "/ui/", Cookie=cookie).status for _ in range(6)}


@pytest.mark.needs_program("haproxy")
def test_shipped_proxy_configuration_keeps_session_on_one_replica(tmp_path: Path) -> None:
    with two_replicas(tmp_path, **TOKENS) as (proxy, _):
        assert statuses(proxy, cookie_of(sign_in(proxy, SECRET))) == {200}


@pytest.mark.needs_program("haproxy", "redis-server")
def test_replicas_share_sessions_through_redis(tmp_path: Path) -> None:
    with (
        redis_server(tmp_path / "redis") as redis,
        two_replicas(tmp_path, "--redis", redis.url, edits=ROUND_ROBIN, **TOKENS) as (proxy, first),
    ):
        cookie = cookie_of(sign_in(proxy, SECRET))
        assert statuses(proxy, cookie) == {200}
        for key in redis.all_keys():
            if redis.say("type", key) == "string":
                assert SECRET not in redis.say("get", key) and cookie.partition("=")[2] not in key
        assert sign_out(proxy, cookie).status == 303
        assert statuses(proxy, cookie) == {303}
        # A forged record in Redis is no session, and a replica keeps its own sessions without Redis.
        cookie = cookie_of(sign_in(first, SECRET))
        pages = [key for key in redis.all_keys() if key.startswith("mcp-skills:page:")]
        (key,) = (key for key in pages if "all" not in key and "of:" not in key)
        redis.say("set", key, "gAAAAAforged")
        assert 303 in statuses(proxy, cookie)
        redis.stop()
        assert get(first, "/ui/", Cookie=cookie).status == 200


@each_row(
    ("most", "over"),
    [("a=" + "x" * 65_534, "a=" + "x" * 65_535), ("&".join(["a=b"] * 10), "&".join(["a=b"] * 11)), ("a=b", "a=\u00e4")],
)
def test_form_is_bounded_in_bytes_and_fields(most: str, over: str) -> None:
    def form(raw: bytes) -> dict[str, str] | None:
        async def receive() -> Any:
            return {"type": "http.request", "body": raw, "more_body": False}

        return anyio.run(form_of, Request({"type": "http", "method": "POST", "headers": []}, receive))

    assert (form(most.encode()) or {}).keys() == {"a"} and form(over.encode()) is None
