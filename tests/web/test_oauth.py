"""A real server that takes the tokens of an issuer on loopback: challenge, metadata, sign-in, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
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
from forkserver import run
from mcp_skills_server.errors import SkillsServerError
from mcp_skills_server.web import oauth
from ports import free_port
from sources.publishers import Publisher, answer, endless, redirect
from tables import each_row
from web.authorization_server import authorization_server
from web.http_wire import BOTH, HELLO, JSON, Reply, Server, bearing, client, http_serving, token_file, until
from wire import COMMAND, DEADLINE, serving, write_skill

WELL_KNOWN = "/.well-known/oauth-protected-resource"
FILE_TOKEN = "a-made-up-token-0123456789"


@contextmanager
def guarded(
    folder: Path, issuer: str, *options: str | Path, more: str = "", audience: str | None = None
) -> Iterator[Server]:
    """A server that takes the tokens of this issuer; its audience is its own URL."""
    port = free_port()
    write_skill(folder / "skills" / "one")
    file = folder / "config.toml"
    file.write_text(f"roots = ['skills']\n[oauth]\nissuer = '{issuer}'\naudience = '{audience or own(port)}'\n{more}\n")
    with http_serving("--config", file, "--port", str(port), *options) as server:
        yield server


def own(port: int) -> str:
    return f"http://127.0.0.1:{port}/mcp"


def publish(issuer: Publisher, *keys: Any) -> None:
    """Have it say its metadata and these keys."""
    metadata = {"issuer": issuer.url, "jwks_uri": f"{issuer.url}/keys"}
    issuer.routes["/.well-known/openid-configuration"] = answer(json.dumps(metadata).encode())
    issuer.routes["/keys"] = answer(json.dumps({"keys": [*keys]}).encode())


@pytest.fixture
def issuer() -> Iterator[Publisher]:
    with Publisher() as found:
        publish(found, public())
        yield found


def good(server: Server, issuer: Publisher, **more: Any) -> dict[str, Any]:
    return claims(**{"iss": issuer.url, "aud": own(server.port), **more})


def ask(server: Server, token: str | None, path: str = "/mcp") -> Reply:
    body = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": HELLO}
    given = {**JSON, "Accept": BOTH, **({} if token is None else bearing(token))}
    return server.send(path=path, body=json.dumps(body).encode(), headers=given)


def challenge(reply: Reply) -> dict[str, str]:
    """The parameters of WWW-Authenticate."""
    (header,) = reply.headers.get_all("WWW-Authenticate")
    scheme, _, rest = header.partition(" ")
    assert scheme == "Bearer"
    return {name: value.strip('"') for name, _, value in (each.partition("=") for each in rest.split(", "))}


class Remembered:
    """What a client keeps."""

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


def signing_in(url: str, kept: Remembered) -> OAuthClientProvider:
    """The SDK's client; the part of the browser is played by one request."""
    came: list[str] = []

    async def go(to: str) -> None:
        async with httpx2.AsyncClient() as browser:
            came.append((await browser.get(to)).headers["location"])

    async def back() -> AuthorizationCodeResult:
        found = parse_qs(urlsplit(came.pop()).query)
        return AuthorizationCodeResult(code=found["code"][0], state=found["state"][0])

    metadata = OAuthClientMetadata(redirect_uris=[AnyUrl("http://127.0.0.1:1/callback")], client_name="a test")
    return OAuthClientProvider(url, metadata, kept, go, back)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_the_sdk_s_client_signs_in_by_what_the_challenge_says(tmp_path: Path, mode: Any) -> None:
    kept = Remembered()

    async def work(server: Server) -> list[str]:
        url = own(server.port)
        with anyio.fail_after(DEADLINE):
            async with (
                httpx2.AsyncClient(auth=signing_in(url, kept)) as http,
                Client(streamable_http_client(url, http_client=http), mode=mode) as found,
            ):
                return [each.name for each in (await found.list_prompts()).prompts]

    with (
        authorization_server() as login,
        guarded(tmp_path, login.url, "--log-level", "debug", more="scopes = ['skills:read']") as server,
    ):
        assert anyio.run(work, server) == ["one"]
        server.said("authenticated as ann")
        assert {"/register", "/authorize", "/token"} <= {*login.asked}
        assert login.resources == [own(server.port)]
        assert kept.tokens is not None and kept.tokens.scope == "skills:read"
        assert kept.tokens.access_token not in server.stderr
        # Signed in, and still nobody to another server.
        with guarded(tmp_path / "other", login.url) as other:
            assert ask(other, kept.tokens.access_token).status == 401


def test_the_name_of_a_user_stands_beside_the_subject_in_audit_and_usage(tmp_path: Path, issuer: Publisher) -> None:
    audit, counts = tmp_path / "audit.jsonl", tmp_path / "usage.db"
    options = ("--audit-log", str(audit), "--usage", f"sqlite:{counts}")
    with guarded(tmp_path, issuer.url, *options) as server:
        bearer = signed(good(server, issuer, preferred_username="ann@acme"))
        with client(server, "modern", token=bearer) as one:
            one.read("skill://one/SKILL.md")
        command = [*COMMAND, "usage", "--usage", f"sqlite:{counts}", "--by", "principal"]
        until(lambda: "user:ann (ann@acme)" in run(command, capture_output=True, text=True, check=True).stdout)
    recorded = [json.loads(line) for line in audit.read_text().splitlines()]
    assert {(each["principal"], each["label"]) for each in recorded} == {("user:ann", "ann@acme")}


def test_tokens_of_the_file_and_of_the_issuer_let_in_together(tmp_path: Path, issuer: Publisher) -> None:
    file = token_file(tmp_path, f"laptop={FILE_TOKEN}")
    with guarded(tmp_path, issuer.url, "--token-file", file, "--log-level", "debug") as server:
        token = signed(good(server, issuer))
        assert (ask(server, FILE_TOKEN).status, ask(server, token).status, ask(server, "x").status) == (200, 200, 401)
        server.said("authenticated as laptop")
        server.said("authenticated as ann")
        with client(server, "legacy", token=token) as one:  # whose session is nobody else's
            assert one.post(one.message("ping"), bearing(FILE_TOKEN)).status == 404
            again = signed(good(server, issuer, scope="more"))  # the same user with another token
            assert one.post(one.message("ping"), bearing(again)).status == 200


def test_the_metadata_is_open_and_as_rfc_9728_has_it(tmp_path: Path, issuer: Publisher) -> None:
    with guarded(tmp_path, issuer.url, more="scopes = ['skills:read']") as server:
        for path in (WELL_KNOWN, f"{WELL_KNOWN}/mcp"):
            reply = server.send("GET", path)
            assert reply.status == 200 and reply.headers["Content-Type"] == "application/json"
            assert reply.headers["Cache-Control"] == "public, max-age=300"
            assert json.loads(reply.body) == {
                "resource": own(server.port),
                "authorization_servers": [issuer.url],
                "bearer_methods_supported": ["header"],
                "scopes_supported": ["skills:read"],
            }
            ProtectedResourceMetadata.model_validate_json(reply.body)
        others = (f"{WELL_KNOWN}/other", f"{WELL_KNOWN}s", f"{WELL_KNOWN}/mcp/", "/.well-known/agent-skills/index.json")
        assert [server.send("GET", path).status for path in others] == [401] * 4
        assert server.send("GET", WELL_KNOWN, headers={"Host": "evil.example"}).status == 403


def test_behind_a_proxy_the_resource_says_by_which_name_clients_know_it(tmp_path: Path, issuer: Publisher) -> None:
    url = "https://skills.example"
    with guarded(tmp_path, issuer.url, more=f"resource = '{url}/team/mcp'", audience="api://skills") as server:
        assert json.loads(server.send("GET", f"{WELL_KNOWN}/team/mcp").body)["resource"] == f"{url}/team/mcp"
        assert challenge(ask(server, None))["resource_metadata"] == f"{url}{WELL_KNOWN}/team/mcp"
        assert ask(server, signed(claims(iss=issuer.url, aud="api://skills"))).status == 200


def test_the_challenge_says_where_to_sign_in_and_what_is_wrong(tmp_path: Path, issuer: Publisher) -> None:
    with guarded(tmp_path, issuer.url, more="scopes = ['skills:read', 'skills:run']") as server:
        named = {
            "realm": "mcp-skills-server",
            "resource_metadata": f"http://127.0.0.1:{server.port}{WELL_KNOWN}/mcp",
            "scope": "skills:read skills:run",
        }
        for path in ("/mcp", "/rpc", "/.well-known/agent-skills/index.json", "/none"):
            assert challenge(ask(server, None, path)) == named
        little = signed(good(server, issuer, scope="skills:read"))
        for token, status, error in (
            ("x", 401, "invalid_token"), (signed(good(server, issuer, exp=1)), 401, "invalid_token"),
            (little, 403, "insufficient_scope"),
        ):  # fmt: skip
            reply = ask(server, token)
            assert (reply.status, challenge(reply)) == (status, named | {"error": error})
        server.said(f"refused a token of {issuer.url}: it lacks required scopes: skills:run")
        server.said("refused a token: it is not a signed token")
        assert ask(server, signed(good(server, issuer, scope="skills:read skills:run more"))).status == 200


@pytest.mark.parametrize("is_down", [True, False])
def test_an_issuer_that_cannot_be_asked_is_503_with_a_time(tmp_path: Path, issuer: Publisher, is_down: bool) -> None:
    url = issuer.url
    if is_down:
        url = f"http://127.0.0.1:{free_port()}"
    issuer.routes["/elsewhere"] = issuer.routes["/keys"]
    issuer.routes["/keys"] = redirect(f"{issuer.url}/elsewhere")
    with guarded(tmp_path, url) as server:
        server.said(f"WARNING: the issuer {url}: .*; its tokens cannot be verified until it answers")
        reply = ask(server, signed(claims(iss=url, aud=own(server.port))))
        assert reply.status == 503 and 1 <= int(reply.headers["Retry-After"]) <= 6
        server.said("refused a request: the issuer does not answer")
        assert ask(server, "x").status == 401  # which no issuer would make good
        assert "/elsewhere" not in issuer.paths
        assert server.send("GET", "/healthz").status == 200


def test_over_stdio_an_issuer_and_quotas_are_named_as_unused(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    issuer = "issuer = 'https://login.example'\naudience = 'https://skills.example/mcp'\n"
    file.write_text(f"[oauth]\n{issuer}[quota]\nruns = 1\n")
    with serving(write_skill(tmp_path / "one"), "--config", file) as wire:
        wire.logs(rb"no effect without --transport http: [oauth], [quota]")


def test_without_an_issuer_nothing_is_loaded_that_proves_signatures() -> None:
    code = "import sys, mcp_skills_server.web.app; print('jwt' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_an_answer_comes_with_its_status_and_nobody_is_led_elsewhere() -> None:
    moved = (301, 302, 303, 307, 308)
    with Publisher() as site:
        site.routes = {"/a": answer(b"{}"), "/b": answer(b"read after a POST", 500)}
        site.routes |= {f"/{status}": redirect(f"{site.url}/a", status) for status in moved}
        given = {"a?x=1": (200, b"{}"), "b": (500, b"")} | {str(status): (status, b"") for status in moved}
        for path, found in given.items():
            assert anyio.run(oauth.fetch, f"{site.url}/{path}") == found
        assert site.paths == [f"/{path}" for path in given]
        failed = anyio.run(oauth.fetch, f"{site.url}/b", b"code=x")
        assert failed == (500, b"read after a POST"), "whoever posts is told why it failed"
        assert {each.headers["accept-encoding"] for each in site.asked} == {"identity"}


ENDLESS = endless(b"HTTP/1.1 200 Said\r\n\r\n", b" " * 65536)


@each_row("route", [answer(b"", length=100 << 20), answer(b" " * ((1 << 20) + 1)), ENDLESS])
def test_more_than_a_mebibyte_is_not_read(route: Any) -> None:
    with Publisher() as site:
        site.routes["/a"] = route
        with pytest.raises(SkillsServerError, match="1048576"):
            anyio.run(oauth.fetch, f"{site.url}/a")


def test_an_issuer_that_drips_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oauth, "_TIMEOUT_S", 0.3)
    with Publisher() as site:
        site.routes["/a"] = site.drip(b"HTTP/1.1 200 Said\r\ncontent-length: 1000\r\n\r\n" + b" " * 1000, 0.002)
        with pytest.raises(SkillsServerError, match=r"longer than 0\.3 s"):
            anyio.run(oauth.fetch, f"{site.url}/a")
