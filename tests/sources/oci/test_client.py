"""The client of a registry against registries that lie, lead astray, or ask for passwords."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import anyio
import pytest

from mcp_skills_server.errors import UsageError
from mcp_skills_server.sources import http
from mcp_skills_server.sources.http import HttpClient
from mcp_skills_server.sources.oci import manifests
from mcp_skills_server.sources.oci.access import Access, Credentials
from mcp_skills_server.sources.oci.client import RegistryClient
from mcp_skills_server.sources.oci.manifests import Descriptor
from mcp_skills_server.sources.oci.reference import parse_reference
from mcp_skills_server.sources.source import AbsentError, Bounds, OriginPolicy, UnacceptableError
from sources.oci.registries import REPOSITORY, FakeRegistry, digest
from sources.publishers import Publisher, ReceivedRequest, Route, answer, redirect
from tables import each_row

ADA = Credentials("ada", "s3cret")
BASIC = "Basic " + base64.b64encode(b"ada:s3cret").decode()
CLOSED = OriginPolicy()
OPEN = OriginPolicy(private=True, http=True)
BOUNDS = Bounds(read_s=2, download_s=5)
MANIFEST = f"/v2/{REPOSITORY}/manifests/1.0"
TAGS = f"/v2/{REPOSITORY}/tags/list"
CONTENT = Descriptor("x/y", digest(b"content"), 7)


def asking(
    registry: FakeRegistry, method: str, *given: object, trust: OriginPolicy = CLOSED, access: Access | None = None
) -> Any:
    """What a method of the client returns, by default without credentials."""
    reference = parse_reference(registry.named())

    async def run() -> object:
        async with HttpClient(BOUNDS) as opened:
            client = RegistryClient(opened, reference, access or knowing(registry, None), trust)
            return await getattr(client, method)(*given)

    return anyio.run(run)


def knowing(registry: FakeRegistry, known: Credentials | None) -> Access:
    return Access(parse_reference(registry.named()), find=lambda _: known)


def guarded(registry: FakeRegistry, wanted: str, challenge: str) -> None:
    """Have a manifest that is given only for this value of Authorization."""

    def route(asked: ReceivedRequest) -> Iterable[bytes]:
        if asked.headers.get("authorization") == wanted:
            yield answer(b"{}", connection="close")
        else:
            yield answer(b"", 401, www_authenticate=challenge, connection="close")

    registry.routes[MANIFEST] = route


# Bytes are what their digest says


@each_row(("route", "said"), [
    (answer(b"another"), "its digest is sha256:"), (answer(b"content and more"), "has 16 bytes, at most 7"),
    (answer(b"cont"), "its digest is sha256:"), (answer(b""), "its digest is sha256:"),
    (answer(b"", 404), "is not there"), (answer(b"", 204), "status 204"),
    (answer(b'{"errors":[{"code":"BLOB_UNKNOWN"}]}', 405), "status 405 (BLOB_UNKNOWN)"),
    (answer(b'{"errors":[{"code":"evil\\u001b[2J"}]}', 405), "answers with status 405"),
])  # fmt: skip
def test_another_blob_is_refused(registry: FakeRegistry, route: Route, said: str) -> None:
    registry.blob(b"content", route)
    with pytest.raises(UnacceptableError) as caught:
        asking(registry, "blob", CONTENT)
    assert said in str(caught.value) and str(caught.value).isprintable()


def test_another_manifest_is_refused(registry: FakeRegistry) -> None:
    raw, other = registry.manifest(), registry.manifest(annotations={"a": "b"})
    registry.put(raw)
    registry.routes[f"/v2/{REPOSITORY}/manifests/{digest(raw)}"] = answer(other)
    with pytest.raises(UnacceptableError, match="its digest is"):
        asking(registry, "manifest", digest(raw))
    registry.put(raw, "1.0", said=digest(other))
    with pytest.raises(UnacceptableError, match="its digest is"):
        asking(registry, "manifest", "1.0")


@each_row("said", ["sha256:short", "md5:" + "a" * 32, "../../etc/passwd"])
def test_a_digest_of_a_head_that_is_none_is_not_believed(registry: FakeRegistry, said: str) -> None:
    registry.put(registry.manifest(), "1.0", said=said)
    assert asking(registry, "digest") is None


# Tags


def test_an_absent_tag_names_some_that_are_there(registry: FakeRegistry) -> None:
    other = ["1.0", "1.1", 7, "bad\n", "x" * 200]
    many = [f"t{number}" for number in range(20_000)]
    for page, said in (
        (answer(json.dumps({"tags": other}).encode(), link='</next>; rel="next"'), "the last of its 2 tags: 1.0, 1.1"),
        (answer(json.dumps({"tags": many}).encode()), "the last of its first 1000 tags: t995, t996, t997, t998, t999"),
        (answer(b'{"tags": []}'), "and no tag"),
        (answer(b"<html>"), ""),
        (answer(b"<html>", 500), ""),
    ):
        registry.routes[TAGS] = page
        registry.asked.clear()
        with pytest.raises(AbsentError) as caught:
            asking(registry, "digest")
        assert str(caught.value).partition(" 1.0")[2].lstrip(";, ") == said and len(registry.asked) == 2


# Passwords and tokens


def test_a_password_is_sent_when_it_is_asked_for_and_remembered(registry: FakeRegistry) -> None:
    guarded(registry, BASIC, 'Basic realm="x"')
    access = knowing(registry, ADA)
    for count in (2, 3):
        asking(registry, "manifest", "1.0", access=access)
        assert len(registry.asked) == count
    assert [asked.headers.get("authorization") for asked in registry.asked] == [None, BASIC, BASIC]


def token_server(registry: FakeRegistry, body: bytes = b'{"token":"abc"}') -> None:
    realm = f'Bearer realm="{registry.url}/token",service="here",scope="repository:other:delete"'
    guarded(registry, "Bearer abc", realm)
    registry.routes["/token"] = answer(body)


def test_a_token_is_asked_for_once_and_for_what_is_wanted(registry: FakeRegistry) -> None:
    token_server(registry)
    access = knowing(registry, ADA)
    for _ in range(2):
        asking(registry, "manifest", "1.0", access=access)
    asked = [each for each in registry.asked if each.path.startswith("/token")]
    assert [each.path for each in asked] == ["/token?service=here&scope=repository%3Ateam%2Fskills%3Apull"]
    assert asked[0].headers["authorization"] == BASIC


def test_a_token_that_is_over_is_renewed_before_it_is_refused(registry: FakeRegistry) -> None:
    token_server(registry, b'{"access_token":"abc","expires_in":100}')
    now = [0.0]
    access = Access(parse_reference(registry.named()), find=lambda _: None, clock=lambda: now[0])
    for seconds, tokens in ((0, 1), (80, 1), (95, 2)):
        now[0] = seconds
        asking(registry, "manifest", "1.0", access=access)
        assert len([path for path in registry.paths if path.startswith("/token")]) == tokens
    assert not [each for each in registry.asked if "authorization" in each.headers and "token" in each.path]


def test_an_identity_token_goes_in_the_body(registry: FakeRegistry) -> None:
    token_server(registry)
    asking(registry, "manifest", "1.0", access=knowing(registry, Credentials("", "identity", identity=True)))
    (asked,) = [each for each in registry.asked if each.path.startswith("/token")]
    assert (asked.method, asked.path) == ("POST", "/token") and "authorization" not in asked.headers
    assert asked.headers["content-type"] == "application/x-www-form-urlencoded"


@each_row(("said", "realms"), [
    ("not of the public internet", ("https://10.0.0.1/", "https://127.0.0.1:1/", "https://[::1]/")),
    ("plain http", ("http://tokens.example/token", "http://127.0.0.1:1/token")),
    ("cannot be asked", ("file:///etc/passwd", "https://ada:x@tokens.example/", "")),
])  # fmt: skip
def test_a_realm_that_leads_astray_gets_no_password(registry: FakeRegistry, said: str, realms: tuple[str, ...]) -> None:
    for realm in realms:
        guarded(registry, "never", f'Bearer realm="{realm}"')
        with pytest.raises(UnacceptableError) as caught:
            asking(registry, "manifest", "1.0", access=knowing(registry, ADA))
        assert said in str(caught.value) and "s3cret" not in str(caught.value)
    assert not [each for each in registry.asked if "authorization" in each.headers]


def test_a_token_server_is_followed_nowhere(registry: FakeRegistry) -> None:
    token_server(registry)
    registry.routes["/token"] = redirect(f"{registry.url}/elsewhere")
    with pytest.raises(UnacceptableError, match="status 302"):
        asking(registry, "manifest", "1.0", access=knowing(registry, ADA))
    assert "/elsewhere" not in registry.paths
    registry.routes["/token"] = answer(b" " * 65_537)
    with pytest.raises(UnacceptableError, match="at most 65536 are taken"):
        asking(registry, "manifest", "1.0")


@each_row(
    "body",
    [
        *(b"", b"[]", b'{"token":""}', b'{"token":7}', b'{"token":"a\\r\\nX: y"}', b'{"token":"a b"}'),
        b'{"token":"%s"}' % (b"a" * 40_000),
    ],
)
def test_what_is_no_token_is_not_sent(registry: FakeRegistry, body: bytes) -> None:
    token_server(registry, body)
    with pytest.raises(UnacceptableError, match="no token that can be used"):
        asking(registry, "manifest", "1.0")
    assert not [each for each in registry.asked if "authorization" in each.headers]


def test_who_is_refused_again_or_challenged_in_an_unknown_way_is_not_asked_once_more(registry: FakeRegistry) -> None:
    token_server(registry, b'{"token":"other"}')
    with pytest.raises(UnacceptableError, match=r"'docker login 127\.0\.0\.1:"):
        asking(registry, "manifest", "1.0")
    assert len(registry.asked) == 3
    for count, challenge in enumerate(("Negotiate", ""), 4):
        guarded(registry, "never", challenge)
        with pytest.raises(UnacceptableError, match="asks for permission"):
            asking(registry, "manifest", "1.0", access=knowing(registry, ADA))
        assert len(registry.asked) == count


def test_credentials_that_cannot_be_read_are_said_where_they_are_missed(registry: FakeRegistry) -> None:
    def broken(_: str) -> Credentials | None:
        raise UsageError("config.json is not JSON; correct it")

    access = Access(parse_reference(registry.named()), find=broken)
    token_server(registry)
    asking(registry, "manifest", "1.0", access=access)  # what needs none is served all the same
    registry.routes["/token"] = answer(b"", 401)
    access = Access(parse_reference(registry.named()), find=broken)
    with pytest.raises(UnacceptableError, match=r"asks for permission .* config\.json is not JSON; correct it"):
        asking(registry, "manifest", "1.0", access=access)


# Redirects


def test_another_host_gets_the_request_without_what_authorizes(registry: FakeRegistry) -> None:
    access = knowing(registry, ADA)
    guarded(registry, BASIC, 'Basic realm="x"')
    asking(registry, "manifest", "1.0", access=access)
    with Publisher() as storage:
        registry.blob(b"content", redirect(f"http://localhost:{storage.port}/blob?signature=x", 307))
        storage.routes["/blob"] = answer(b"content")
        assert asking(registry, "blob", CONTENT, trust=OPEN, access=access) == b"content"
        assert registry.asked[-1].headers["authorization"] == BASIC and storage.paths == ["/blob?signature=x"]
        storage.routes["/blob"] = answer(b"", 401, www_authenticate='Basic realm="x"')
        with pytest.raises(UnacceptableError, match="asks for permission"):
            asking(registry, "blob", CONTENT, trust=OPEN, access=access)
        assert not [each for each in storage.asked if "authorization" in each.headers]


@each_row(("to", "said"), [
    ("http://localhost:1/x", "plain http; --allow-http"), ("https://169.254.169.254/latest", "--allow-private"),
    ("https://[::ffff:10.0.0.1]/", "--allow-private"), ("https://2130706433/", "--allow-private"),
    ("gopher://a/", "not an http or https URL"),
])  # fmt: skip
def test_a_redirect_to_where_nobody_may_go_is_refused(registry: FakeRegistry, to: str, said: str) -> None:
    registry.blob(b"content", redirect(to))
    registry.routes[f"/v2/{REPOSITORY}/blobs/uploads/"] = answer(b"", 202, location=to, connection="close")
    for asked in (("blob", CONTENT), ("upload", digest(b"x"), b"x")):
        with pytest.raises(UnacceptableError) as caught:
            asking(registry, *asked)
        assert said in str(caught.value)


def test_this_machine_is_asked_only_where_it_is_named(registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    """A registry of another name that leads here, as one whose name server lies, needs --allow-private."""
    reference = replace(parse_reference(registry.named()), registry=f"registry.example:{registry.port}")

    async def lying(_host: str, _port: int) -> list[str]:
        return ["127.0.0.1"]

    async def run() -> object:
        async with HttpClient(BOUNDS) as client:
            return await RegistryClient(client, reference, Access(reference), OriginPolicy(http=True)).digest()

    monkeypatch.setattr(http, "resolve", lying)
    with pytest.raises(UnacceptableError, match="which is not public"):
        anyio.run(run)
    assert not registry.asked


# What is pushed


def test_a_registry_that_takes_another_manifest_than_was_sent_is_not_believed(registry: FakeRegistry) -> None:
    raw = registry.manifest()
    registry.routes[MANIFEST] = answer(b"", 201, docker_content_digest=digest(b"other"), connection="close")
    with pytest.raises(UnacceptableError, match="its digest is"):
        asking(registry, "put_manifest", "1.0", manifests.MANIFEST, raw)
    registry.routes[MANIFEST] = answer(b"", 400, connection="close")
    with pytest.raises(UnacceptableError, match="status 400"):
        asking(registry, "put_manifest", "1.0", manifests.MANIFEST, raw)
