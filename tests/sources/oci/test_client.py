"""Registry client: digests, authentication, redirects and pushes, against hostile registries."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import anyio
import pytest

from mcp_skills_server.errors import UsageError
from mcp_skills_server.sources import http
from mcp_skills_server.sources.oci import access as access_module
from mcp_skills_server.sources.oci import manifests
from mcp_skills_server.sources.oci.access import Access, Credentials
from mcp_skills_server.sources.oci.client import RegistryClient
from mcp_skills_server.sources.oci.manifests import Descriptor
from mcp_skills_server.sources.oci.reference import parse_reference
from mcp_skills_server.sources.source import AbsentError, Bounds, FetchSettings, OriginPolicy, UnacceptableError
from sources.oci.registries import REPOSITORY, FakeRegistry, digest
from sources.publishers import Publisher, ReceivedRequest, Route, redirect, respond_with
from tables import each_row

ADA = Credentials("ada", "s3cret")
BASIC = "Basic " + base64.b64encode(b"ada:s3cret").decode()
DEFAULT_POLICY = OriginPolicy()
PRIVATE_AND_HTTP = OriginPolicy(private=True, http=True)
BOUNDS = Bounds(read_s=2, download_s=5)
MANIFEST = f"/v2/{REPOSITORY}/manifests/1.0"
TAGS = f"/v2/{REPOSITORY}/tags/list"
CONTENT = Descriptor("x/y", digest(b"content"), 7)


def call_client(
    registry: FakeRegistry,
    method: str,
    *given: object,
    trust: OriginPolicy = DEFAULT_POLICY,
    access: Access | None = None,
) -> Any:
    """Call a method of a client of the registry."""
    reference = parse_reference(registry.named())

    async def run() -> object:
        settings = FetchSettings(trust=trust, bounds=BOUNDS)
        async with RegistryClient(settings, reference, access or Access(reference)) as client:
            return await getattr(client, method)(*given)

    return anyio.run(run)


@pytest.fixture(autouse=True)
def find(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """The search for the operator's credentials, by default without result."""
    mock = Mock(return_value=None)
    monkeypatch.setattr(access_module, "find_credentials", mock)
    return mock


def require_authorization(registry: FakeRegistry, wanted: str, challenge: str) -> None:
    """Serve the manifest only for this Authorization header."""

    def route(request: ReceivedRequest) -> Iterable[bytes]:
        if request.headers.get("authorization") == wanted:
            yield respond_with(b"{}", connection="close")
        else:
            yield respond_with(b"", 401, www_authenticate=challenge, connection="close")

    registry.routes[MANIFEST] = route


@each_row(("route", "reason"), [
    (respond_with(b"another"), "its digest is sha256:"), (respond_with(b"content and more"), "has 16 bytes, at most 7"),
    (respond_with(b"cont"), "its digest is sha256:"), (respond_with(b""), "its digest is sha256:"),
    (respond_with(b"", 404), "is not there"), (respond_with(b"", 204), "status 204"),
    (respond_with(b'{"errors":[{"code":"BLOB_UNKNOWN"}]}', 405), "status 405 (BLOB_UNKNOWN)"),
    (respond_with(b'{"errors":[{"code":"evil\\u001b[2J"}]}', 405), "answers with status 405"),
])  # fmt: skip
def test_blob_with_wrong_digest_or_status_is_refused(registry: FakeRegistry, route: Route, reason: str) -> None:
    registry.blob(b"content", route)
    with pytest.raises(UnacceptableError) as caught:
        call_client(registry, "blob", CONTENT)
    assert reason in str(caught.value)
    assert str(caught.value).isprintable()


def test_manifest_with_wrong_digest_is_refused(registry: FakeRegistry) -> None:
    raw, other = registry.manifest(), registry.manifest(annotations={"a": "b"})
    registry.put(raw)
    registry.routes[f"/v2/{REPOSITORY}/manifests/{digest(raw)}"] = respond_with(other)
    with pytest.raises(UnacceptableError, match="its digest is"):
        call_client(registry, "manifest", digest(raw))
    registry.put(raw, "1.0", claim=digest(other))
    with pytest.raises(UnacceptableError, match="its digest is"):
        call_client(registry, "manifest", "1.0")


@each_row("claim", ["sha256:short", "md5:" + "a" * 32, "../../etc/passwd"])
def test_malformed_digest_header_is_ignored(registry: FakeRegistry, claim: str) -> None:
    registry.put(registry.manifest(), "1.0", claim=claim)
    assert call_client(registry, "digest", "1.0") is None


def test_error_for_absent_tag_lists_present_tags(registry: FakeRegistry) -> None:
    with_malformed = json.dumps({"tags": ["1.0", "1.1", 7, "bad\n", "x" * 200]}).encode()
    many = json.dumps({"tags": [f"t{number}" for number in range(20_000)]}).encode()
    for page, reason in (
        (respond_with(with_malformed, link='</next>; rel="next"'), "the last of its 2 tags: 1.0, 1.1"),
        (respond_with(many), "the last of its first 1000 tags: t995, t996, t997, t998, t999"),
        (respond_with(b'{"tags": []}'), "and no tag"),
        (respond_with(b"<html>"), ""),
        (respond_with(b"<html>", 500), ""),
    ):
        registry.routes[TAGS] = page
        registry.requests.clear()
        with pytest.raises(AbsentError) as caught:
            call_client(registry, "digest", "1.0")
        assert str(caught.value).partition(" 1.0")[2].lstrip(";, ") == reason
        assert len(registry.requests) == 2


def add_token_server(registry: FakeRegistry, body: bytes = b'{"token":"abc"}') -> None:
    realm = f'Bearer realm="{registry.url}/token",service="here",scope="repository:other:delete"'
    require_authorization(registry, "Bearer abc", realm)
    registry.routes["/token"] = respond_with(body)


def test_token_is_requested_once_with_scope_of_repository(registry: FakeRegistry, find: Mock) -> None:
    find.return_value = ADA
    add_token_server(registry)
    access = Access(parse_reference(registry.named()))
    for _ in range(2):
        call_client(registry, "manifest", "1.0", access=access)
    (request,) = [each for each in registry.requests if each.path.startswith("/token")]
    assert request.path == "/token?service=here&scope=repository%3Ateam%2Fskills%3Apull"
    assert request.headers["authorization"] == BASIC


def test_expired_token_is_renewed(registry: FakeRegistry) -> None:
    add_token_server(registry)
    access = Access(parse_reference(registry.named()))
    for token in ("abc", "def"):
        realm = f'Bearer realm="{registry.url}/token"'
        require_authorization(registry, f"Bearer {token}", realm)
        registry.routes["/token"] = respond_with(json.dumps({"access_token": token, "expires_in": 1}).encode())
        call_client(registry, "manifest", "1.0", access=access)
    assert len([path for path in registry.paths if path.startswith("/token")]) == 2
    assert not [each for each in registry.requests if "authorization" in each.headers and "token" in each.path]


def test_identity_token_is_sent_in_body(registry: FakeRegistry, find: Mock) -> None:
    find.return_value = Credentials("", "identity", identity=True)
    add_token_server(registry)
    call_client(registry, "manifest", "1.0")
    (request,) = [each for each in registry.requests if each.path.startswith("/token")]
    assert (request.method, request.path) == ("POST", "/token")
    assert "authorization" not in request.headers
    assert request.headers["content-type"] == "application/x-www-form-urlencoded"


@each_row(("reason", "realms"), [
    ("not of the public internet", ("https://10.0.0.1/", "https://127.0.0.1:1/", "https://[::1]/")),
    ("plain http", ("http://tokens.example/token", "http://127.0.0.1:1/token")),
    ("cannot be asked", ("file:///etc/passwd", "https://ada:x@tokens.example/", "")),
])  # fmt: skip
def test_forbidden_realm_gets_no_password(
    registry: FakeRegistry, find: Mock, reason: str, realms: tuple[str, ...]
) -> None:
    find.return_value = ADA
    for realm in realms:
        require_authorization(registry, "never", f'Bearer realm="{realm}"')
        with pytest.raises(UnacceptableError) as caught:
            call_client(registry, "manifest", "1.0")
        assert reason in str(caught.value)
        assert "s3cret" not in str(caught.value)
    assert not [each for each in registry.requests if "authorization" in each.headers]


def test_redirect_or_large_response_of_token_server_is_refused(registry: FakeRegistry, find: Mock) -> None:
    find.return_value = ADA
    add_token_server(registry)
    registry.routes["/token"] = redirect(f"{registry.url}/elsewhere")
    with pytest.raises(UnacceptableError, match="status 302"):
        call_client(registry, "manifest", "1.0")
    assert "/elsewhere" not in registry.paths
    registry.routes["/token"] = respond_with(b" " * 65_537)
    with pytest.raises(UnacceptableError, match="at most 65536 are taken"):
        call_client(registry, "manifest", "1.0")


@each_row("body", [
    *(b"", b"[]", b'{"token":""}', b'{"token":7}', b'{"token":"a\\r\\nX: y"}', b'{"token":"a b"}'),
    b'{"token":"%s"}' % (b"a" * 40_000),
])  # fmt: skip
def test_malformed_token_is_not_sent(registry: FakeRegistry, body: bytes) -> None:
    add_token_server(registry, body)
    with pytest.raises(UnacceptableError, match="no token that can be used"):
        call_client(registry, "manifest", "1.0")
    assert not [each for each in registry.requests if "authorization" in each.headers]


def test_second_or_unknown_challenge_is_not_answered(registry: FakeRegistry, find: Mock) -> None:
    find.return_value = ADA
    add_token_server(registry, b'{"token":"other"}')
    with pytest.raises(UnacceptableError, match=r"'docker login 127\.0\.0\.1:"):
        call_client(registry, "manifest", "1.0")
    assert len(registry.requests) == 3
    for count, challenge in enumerate(("Negotiate", ""), 4):
        require_authorization(registry, "never", challenge)
        with pytest.raises(UnacceptableError, match="asks for permission"):
            call_client(registry, "manifest", "1.0")
        assert len(registry.requests) == count


def test_unreadable_credentials_are_reported_only_if_needed(registry: FakeRegistry, find: Mock) -> None:
    find.side_effect = UsageError("config.json is not JSON; correct it")
    add_token_server(registry)
    call_client(registry, "manifest", "1.0")  # a token without credentials suffices
    registry.routes["/token"] = respond_with(b"", 401)
    with pytest.raises(UnacceptableError, match=r"asks for permission .* config\.json is not JSON; correct it"):
        call_client(registry, "manifest", "1.0")


def test_redirect_to_other_host_has_no_authorization(registry: FakeRegistry, find: Mock) -> None:
    find.return_value = ADA
    access = Access(parse_reference(registry.named()))
    require_authorization(registry, BASIC, 'Basic realm="x"')
    call_client(registry, "manifest", "1.0", access=access)
    with Publisher() as storage:
        registry.blob(b"content", redirect(f"http://localhost:{storage.port}/blob?signature=x", 307))
        storage.routes["/blob"] = respond_with(b"content")
        assert call_client(registry, "blob", CONTENT, trust=PRIVATE_AND_HTTP, access=access) == b"content"
        assert registry.requests[-1].headers["authorization"] == BASIC
        assert storage.paths == ["/blob?signature=x"]
        storage.routes["/blob"] = respond_with(b"", 401, www_authenticate='Basic realm="x"')
        with pytest.raises(UnacceptableError, match="asks for permission"):
            call_client(registry, "blob", CONTENT, trust=PRIVATE_AND_HTTP, access=access)
        assert not [each for each in storage.requests if "authorization" in each.headers]


@each_row(("location", "reason"), [
    ("http://localhost:1/x", "plain http; --allow-http"), ("https://169.254.169.254/latest", "--allow-private"),
    ("https://[::ffff:10.0.0.1]/", "--allow-private"), ("https://2130706433/", "--allow-private"),
    ("gopher://a/", "not an http or https URL"),
])  # fmt: skip
def test_redirect_to_forbidden_url_is_refused(registry: FakeRegistry, location: str, reason: str) -> None:
    registry.blob(b"content", redirect(location))
    registry.routes[f"/v2/{REPOSITORY}/blobs/uploads/"] = respond_with(b"", 202, location=location, connection="close")
    for call in (("blob", CONTENT), ("upload", digest(b"x"), b"x")):
        with pytest.raises(UnacceptableError) as caught:
            call_client(registry, *call)
        assert reason in str(caught.value)


def test_registry_name_with_loopback_address_is_refused(
    registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name server may return any address, so --allow-private is required."""
    reference = replace(parse_reference(registry.named()), registry=f"registry.example:{registry.port}")

    async def resolve_to_loopback(_host: str, _port: int) -> list[str]:
        return ["127.0.0.1"]

    async def run() -> object:
        settings = FetchSettings(trust=OriginPolicy(http=True), bounds=BOUNDS)
        async with RegistryClient(settings, reference, Access(reference)) as client:
            return await client.digest("1.0")

    monkeypatch.setattr(http, "resolve", resolve_to_loopback)
    with pytest.raises(UnacceptableError, match="which is not public"):
        anyio.run(run)
    assert not registry.requests


def test_push_with_wrong_digest_or_status_is_refused(registry: FakeRegistry) -> None:
    raw = registry.manifest()
    registry.routes[MANIFEST] = respond_with(b"", 201, docker_content_digest=digest(b"other"), connection="close")
    with pytest.raises(UnacceptableError, match="its digest is"):
        call_client(registry, "put_manifest", "1.0", manifests.MANIFEST, raw)
    registry.routes[MANIFEST] = respond_with(b"", 400, connection="close")
    with pytest.raises(UnacceptableError, match="status 400"):
        call_client(registry, "put_manifest", "1.0", manifests.MANIFEST, raw)
