"""OAuth over HTTP: challenge, protected resource metadata, sign-in, and tokens of an issuer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import anyio
import httpx2
import pytest
from mcp.client.auth.oauth2 import OAuthClientProvider
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import (
    AuthorizationCodeResult,
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthToken,
    ProtectedResourceMetadata,
)
from pydantic import AnyUrl

from access.signing import claims, public, signed
from commands.calls import run
from mcp_skills_server.errors import SkillsServerError
from mcp_skills_server.web import oauth
from ports import free_port
from sources.publishers import Publisher, endless, redirect, respond_with
from tables import each_row
from web.authorization_server import authorization_server
from web.http_wire import (
    HELLO,
    MCP_HEADERS,
    Reply,
    Server,
    Target,
    bearer_header,
    client,
    http_serving,
    token_file,
    wait_until,
)
from web.in_process import app_serving
from wire import DEADLINE, serving, write_skill

WELL_KNOWN = "/.well-known/oauth-protected-resource"
FILE_TOKEN = "a-made-up-token-0123456789"


@contextmanager
def oauth_server(
    folder: Path,
    issuer: str,
    *options: str | Path,
    more: str = "",
    audience: str | None = None,
    serving: Any = app_serving,
) -> Iterator[Any]:
    """Run a server that accepts the tokens of this issuer, by default for its own URL."""
    port = free_port()
    write_skill(folder / "skills" / "one")
    file = folder / "config.toml"
    audience = audience or mcp_url(port)
    oauth_table = f"[oauth]\nissuer = '{issuer}'\naudience = '{audience}'\n{more}\n"
    file.write_text(f"roots = ['skills']\n{oauth_table}")
    with serving("--config", file, "--port", str(port), *options) as server:
        yield server


def mcp_url(port: int) -> str:
    return f"http://127.0.0.1:{port}/mcp"


@pytest.fixture
def issuer() -> Iterator[Publisher]:
    with Publisher() as site:
        metadata = {"issuer": site.url, "jwks_uri": f"{site.url}/keys"}
        site.routes["/.well-known/openid-configuration"] = respond_with(json.dumps(metadata).encode())
        site.routes["/keys"] = respond_with(json.dumps({"keys": [public()]}).encode())
        yield site


def valid_token(server: Target, issuer: Publisher, **more: Any) -> str:
    return signed(claims(**{"iss": issuer.url, "aud": mcp_url(server.port), **more}))


def initialize(server: Target, token: str | None, path: str = "/mcp") -> Reply:
    body = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": HELLO}
    headers = MCP_HEADERS if token is None else MCP_HEADERS | bearer_header(token)
    return server.send(path=path, body=json.dumps(body).encode(), headers=headers)


def challenge(reply: Reply) -> dict[str, str]:
    (header,) = reply.headers.get_all("WWW-Authenticate")
    scheme, _, rest = header.partition(" ")
    assert scheme == "Bearer"
    parameters = [each.partition("=") for each in rest.split(", ")]
    return {name: value.strip('"') for name, _, value in parameters}


class TokenStorage:
    def __init__(self) -> None:
        self.tokens: OAuthToken | None = None
        self.client: OAuthClientInformationFull | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info


def oauth_provider(url: str, storage: TokenStorage) -> OAuthClientProvider:
    """Return the OAuth provider of the SDK's client. A GET request stands in for the browser."""
    redirects: list[str] = []

    async def visit(page: str) -> None:
        async with httpx2.AsyncClient() as browser:
            redirects.append((await browser.get(page)).headers["location"])

    async def callback() -> AuthorizationCodeResult:
        query = parse_qs(urlsplit(redirects.pop()).query)
        return AuthorizationCodeResult(code=query["code"][0], state=query["state"][0])

    redirect_uris = [AnyUrl("http://127.0.0.1:1/callback")]
    metadata = OAuthClientMetadata(redirect_uris=redirect_uris, client_name="a test")
    return OAuthClientProvider(url, metadata, storage, visit, callback)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_sdk_client_signs_in_from_challenge(tmp_path: Path, mode: Any) -> None:
    storage = TokenStorage()

    async def work(server: Server) -> list[str]:
        url = mcp_url(server.port)
        with anyio.fail_after(DEADLINE):
            async with (
                httpx2.AsyncClient(auth=oauth_provider(url, storage)) as http,
                Client(streamable_http_client(url, http_client=http), mode=mode) as sdk_client,
            ):
                return [each.name for each in (await sdk_client.list_prompts()).prompts]

    scopes = "scopes = ['skills:read']"
    with (
        authorization_server() as login,
        oauth_server(tmp_path, login.url, "--log-level", "debug", more=scopes, serving=http_serving) as server,
    ):
        assert anyio.run(work, server) == ["one"]
        server.wait_for_log("authenticated as ann")
        assert {"/register", "/authorize", "/token"} <= {*login.requests}
        assert login.resources == [mcp_url(server.port)]
        assert storage.tokens is not None and storage.tokens.scope == "skills:read"
        assert storage.tokens.access_token not in server.stderr
        # The token has the audience of this server only.
        with oauth_server(tmp_path / "other", login.url) as other:
            assert initialize(other, storage.tokens.access_token).status == 401


def test_audit_and_usage_have_user_name_beside_subject(tmp_path: Path, issuer: Publisher) -> None:
    audit, counts = tmp_path / "audit.jsonl", tmp_path / "usage.db"
    options = ("--audit-log", str(audit), "--usage", f"sqlite:{counts}")
    with oauth_server(tmp_path, issuer.url, *options) as server:
        token = valid_token(server, issuer, preferred_username="ann@acme")
        with client(server, "modern", token=token) as reader:
            reader.read("skill://one/SKILL.md")
        usage = ("usage", "--usage", f"sqlite:{counts}", "--by", "principal")
        wait_until(lambda: "user:ann (ann@acme)" in run(*usage).stdout)
    records = [json.loads(line) for line in audit.read_text().splitlines()]
    assert {(each["principal"], each["label"]) for each in records} == {("user:ann", "ann@acme")}


def test_tokens_of_file_and_of_issuer_are_both_accepted(tmp_path: Path, issuer: Publisher) -> None:
    file = token_file(tmp_path, f"laptop={FILE_TOKEN}")
    with oauth_server(tmp_path, issuer.url, "--token-file", file, "--log-level", "debug") as server:
        token = valid_token(server, issuer)
        assert initialize(server, FILE_TOKEN).status == 200
        assert initialize(server, token).status == 200
        assert initialize(server, "x").status == 401
        server.wait_for_log("authenticated as laptop")
        server.wait_for_log("authenticated as ann")
        with client(server, "legacy", token=token) as ann:  # the session belongs to the user
            assert ann.post(ann.message("ping"), bearer_header(FILE_TOKEN)).status == 404
            second_token = valid_token(server, issuer, scope="more")
            assert ann.post(ann.message("ping"), bearer_header(second_token)).status == 200


def test_resource_metadata_is_public_and_valid(tmp_path: Path, issuer: Publisher) -> None:
    with oauth_server(tmp_path, issuer.url, more="scopes = ['skills:read']") as server:
        for path in (WELL_KNOWN, f"{WELL_KNOWN}/mcp"):
            reply = server.send("GET", path)
            assert reply.status == 200
            assert reply.headers["Content-Type"] == "application/json"
            assert reply.headers["Cache-Control"] == "public, max-age=300"
            assert json.loads(reply.body) == {
                "resource": mcp_url(server.port),
                "authorization_servers": [issuer.url],
                "bearer_methods_supported": ["header"],
                "scopes_supported": ["skills:read"],
            }
            ProtectedResourceMetadata.model_validate_json(reply.body)
        for path in (f"{WELL_KNOWN}/other", f"{WELL_KNOWN}s", f"{WELL_KNOWN}/mcp/"):
            assert server.send("GET", path).status == 401
        assert server.send("GET", WELL_KNOWN, headers={"Host": "evil.example"}).status == 403


def test_resource_url_is_in_metadata_and_challenge(tmp_path: Path, issuer: Publisher) -> None:
    site, resource = "https://skills.example", "https://skills.example/team/mcp"
    options: dict[str, str] = {"more": f"resource = '{resource}'", "audience": "api://skills"}
    with oauth_server(tmp_path, issuer.url, **options) as server:
        metadata = json.loads(server.send("GET", f"{WELL_KNOWN}/team/mcp").body)
        assert metadata["resource"] == resource
        parameters = challenge(initialize(server, None))
        assert parameters["resource_metadata"] == f"{site}{WELL_KNOWN}/team/mcp"
        assert initialize(server, valid_token(server, issuer, aud="api://skills")).status == 200


def test_challenge_names_metadata_scopes_and_error(tmp_path: Path, issuer: Publisher) -> None:
    with oauth_server(tmp_path, issuer.url, more="scopes = ['skills:read', 'skills:run']") as server:
        expected = {
            "realm": "mcp-skills-server",
            "resource_metadata": f"http://127.0.0.1:{server.port}{WELL_KNOWN}/mcp",
            "scope": "skills:read skills:run",
        }
        for path in ("/mcp", "/rpc", "/.well-known/agent-skills/index.json", "/none"):
            assert challenge(initialize(server, None, path)) == expected
        expired = valid_token(server, issuer, exp=1)
        lacking = valid_token(server, issuer, scope="skills:read")
        for token, status, error in (
            ("x", 401, "invalid_token"),
            (expired, 401, "invalid_token"),
            (lacking, 403, "insufficient_scope"),
        ):
            reply = initialize(server, token)
            assert (reply.status, challenge(reply)) == (status, expected | {"error": error})
        server.wait_for_log(f"refused a token of {issuer.url}: it lacks required scopes: skills:run")
        server.wait_for_log("refused a token: it is not a signed token")
        token = valid_token(server, issuer, scope="skills:read skills:run more")
        assert initialize(server, token).status == 200


@pytest.mark.parametrize("is_down", [True, False])  # or its keys are redirected
def test_unreachable_issuer_causes_503_with_retry_after(tmp_path: Path, issuer: Publisher, is_down: bool) -> None:
    url = issuer.url
    if is_down:
        url = f"http://127.0.0.1:{free_port()}"
    issuer.routes["/elsewhere"] = issuer.routes["/keys"]
    issuer.routes["/keys"] = redirect(f"{issuer.url}/elsewhere")
    with oauth_server(tmp_path, url) as server:
        server.wait_for_log(f"WARNING: the issuer {url}: .*; its tokens cannot be verified until it answers")
        reply = initialize(server, valid_token(server, issuer, iss=url))
        assert reply.status == 503
        assert 1 <= int(reply.headers["Retry-After"]) <= 6
        server.wait_for_log("refused a request: the issuer does not answer")
        assert initialize(server, "x").status == 401  # refused without the issuer
        assert "/elsewhere" not in issuer.paths
        assert server.send("GET", "/healthz").status == 200


def test_oauth_and_quota_have_no_effect_over_stdio(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    issuer = "issuer = 'https://login.example'\naudience = 'https://skills.example/mcp'\n"
    file.write_text(f"[oauth]\n{issuer}[quota]\nruns = 1\n")
    with serving(write_skill(tmp_path / "one"), "--config", file) as wire:
        wire.wait_for_log(rb"no effect without --transport http: [oauth], [quota]")


def test_fetch_returns_status_and_follows_no_redirect() -> None:
    expected = {"/a?x=1": (200, b"{}"), "/b": (500, b"")}
    with Publisher() as site:
        site.routes = {"/a": respond_with(b"{}"), "/b": respond_with(b"read after a POST", 500)}
        for status in (301, 302, 303, 307, 308):
            site.routes[f"/{status}"] = redirect(f"{site.url}/a", status)
            expected[f"/{status}"] = (status, b"")
        for path, response in expected.items():
            assert anyio.run(oauth.fetch, f"{site.url}{path}") == response
        assert site.paths == [*expected]
        failed = anyio.run(oauth.fetch, f"{site.url}/b", b"code=x")
        assert failed == (500, b"read after a POST")
        assert {each.headers["accept-encoding"] for each in site.requests} == {"identity"}


ENDLESS = endless(b"HTTP/1.1 200 OK\r\n\r\n", b" " * 65536)


@each_row("route", [respond_with(b"", length=100 << 20), respond_with(b" " * ((1 << 20) + 1)), ENDLESS])
def test_fetch_reads_at_most_one_mebibyte(route: Any) -> None:
    with Publisher() as site:
        site.routes["/a"] = route
        with pytest.raises(SkillsServerError, match="1048576"):
            anyio.run(oauth.fetch, f"{site.url}/a")


def test_fetch_from_dripping_issuer_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oauth, "_TIMEOUT_S", 0.3)
    with Publisher() as site:
        response = b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n" + b" " * 1000
        site.routes["/a"] = site.drip(response, 0.002)
        with pytest.raises(SkillsServerError, match=r"longer than 0\.3 s"):
            anyio.run(oauth.fetch, f"{site.url}/a")
