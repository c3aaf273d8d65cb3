"""Who may look: one-time addresses, tokens, an issuer; and who may not."""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import parse_qs, urlencode, urlsplit

from mcp.shared.auth import OAuthClientInformationFull
from pydantic import AnyUrl

from web.authorization_server import AuthorizationServer, authorization_server
from web.http_wire import Reply, Server, bearing, http_serving
from web.ui.serving import ask, cookie_of, get, own_page, page_serving, words

SECRET = "0123456789abcdef"
BACK = "https://skills.example/ui/oauth/callback"
TOKENS = {"MCP_SKILLS_TOKENS": f"laptop={SECRET}"}


def sign_in(server: Server, token: str, prefix: str = "", **headers: str | None) -> Reply:
    given = {"Sec-Fetch-Site": "same-origin", "Origin": f"http://127.0.0.1:{server.port}", **headers}
    return server.send("POST", f"{prefix}/ui/sign-in", urlencode({"token": token}).encode(), given)


def test_the_root_leads_to_the_page_if_it_is_asked_for_and_opens_nothing(skills: Path) -> None:
    with page_serving(skills, "--root-path", "/team", environment=TOKENS) as server:
        for path in ("/", "/team/"):
            reply = get(server, path)
            assert (reply.status, reply.headers["Location"], reply.body) == (303, "/team/ui/", b"")
        assert server.send("POST", "/", b"{}").status == 405
        assert [get(server, path).status for path in ("/mcp", "//", "/x", "/%2e")] == [401] * 4
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
    with own_page(skills) as address:
        origin = address.partition("/ui/")[0]
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/ui/enter\?once=[\w-]{43}", address)
        assert ask(f"{origin}/ui/")[0] == 303
        assert ask(f"{origin}/ui/enter?once=wrong")[0] == 403
        assert str(skills) not in ask(f"{origin}/readyz?verbose")[2]
        status, headers, _ = ask(address)
        assert (status, headers["Location"]) == (303, "/ui/")
        given = headers["Set-Cookie"] or ""
        assert "HttpOnly" in given and "SameSite=strict" in given and "Path=/ui" in given
        assert address.partition("once=")[2] not in given
        assert ask(address)[0] == 403
        used = words(ask(address)[2])
        assert "was used before" in used and "start it again, and open the whole address that it prints" in used
        assert ask(f"{origin}/")[1]["Location"] == "/ui/"
        assert ask(f"{origin}/ui/", cookie_of(headers))[0] == 200
        assert ask(f"{origin}/mcp", cookie_of(headers))[0] == 404  # nothing but the page


def test_a_token_lets_in_and_is_not_in_the_cookie(skills: Path) -> None:
    with page_serving(skills, environment=TOKENS) as server:
        assert get(server, "/ui/").headers["Location"] == "/ui/sign-in"
        assert get(server, "/ui/skills/refunds").status == 303
        assert 'type="password"' in get(server, "/ui/sign-in").body.decode()
        reply = sign_in(server, SECRET)
        cookie = cookie_of(reply.headers)
        assert reply.status == 303 and SECRET not in cookie
        assert "laptop" in words(get(server, "/ui/", Cookie=cookie))
        out = server.send("POST", "/ui/sign-out", b"", {"Cookie": cookie, "Sec-Fetch-Site": "same-origin"})
        assert out.status == 303 and get(server, "/ui/", Cookie=cookie).status == 303
        assert get(server, "/ui/", Authorization=f"Bearer {SECRET}").status == 200
        assert get(server, "/ui/", Authorization="Bearer wrong-wrong-wrong-wrong").status == 303
        assert SECRET not in server.stderr


def test_a_form_of_another_page_is_refused(skills: Path) -> None:
    foreign: list[dict[str, str | None]] = [
        {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}, {"Origin": "https://evil.example"},
        {"Origin": "null"}, {"Origin": "http://127.0.0.1:1"}, {"Origin": None, "Sec-Fetch-Site": None},
    ]  # fmt: skip
    with page_serving(skills, environment=TOKENS) as server:
        for headers in foreign:
            reply = sign_in(server, SECRET, **headers)
            assert reply.status == 403 and "Set-Cookie" not in reply.headers, headers


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


def test_a_prefix_before_the_page_stands_in_its_addresses(skills: Path) -> None:
    with page_serving(skills, "--root-path", "/team", environment=TOKENS) as server:
        assert get(server, "/team/ui/").headers["Location"] == "/team/ui/sign-in"
        reply = sign_in(server, SECRET, prefix="/team")
        assert reply.headers["Location"] == "/team/ui/" and "Path=/team/ui" in (reply.headers["Set-Cookie"] or "")
        shown = get(server, "/team/ui/", Cookie=cookie_of(reply.headers)).body.decode()
        assert 'href="/team/ui/skills/refunds"' in shown and '"/ui/' not in shown


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
            assert "SameSite=lax" in (begun.headers["Set-Cookie"] or "")
            away = cookie_of(begun.headers)
            returned = urlsplit(ask(place)[1]["Location"] or "")
            assert returned.netloc == "skills.example"
            callback = f"/ui/oauth/callback?{returned.query}"
            assert get(server, callback).status == 403  # of another browser, which takes nothing from this one
            said = {"state": parse_qs(returned.query)["state"][0], "error": "no", "error_description": "<b>Ask</b> IT"}
            shown = get(server, f"/ui/oauth/callback?{urlencode(said)}", Cookie=away).body.decode()
            assert "refused the sign-in (no: &lt;b&gt;Ask&lt;/b&gt; IT)." in shown
            server.said(r"signing in at the issuer failed: The issuer refused the sign-in \(no: <b>Ask</b> IT\)")
            foreign = get(server, f"/ui/oauth/callback?{urlencode({**said, 'state': 'x'})}", Cookie=away)
            assert "Ask" not in words(foreign)  # an address that anybody may have made up
            done = get(server, callback, Cookie=away)
            assert done.status == 200 and done.headers["Refresh"] == "0; url=/ui/"
            assert "ann" in words(get(server, "/ui/", Cookie=cookie_of(done.headers)))


def test_an_issuer_that_does_not_respond_refuses_nobody(tmp_path: Path, skills: Path) -> None:
    with ExitStack() as stack:
        with authorization_server() as issuer:
            know_the_page(issuer)
            server = stack.enter_context(page_serving(skills, "--config", oauth_page(tmp_path, issuer.url)))
            begun = get(server, "/ui/oauth/begin")
            back = urlsplit(ask(begun.headers["Location"] or "")[1]["Location"] or "")
        reply = get(server, f"/ui/oauth/callback?{back.query}", Cookie=cookie_of(begun.headers))
        assert reply.status == 503 and "does not respond" in words(reply)


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
