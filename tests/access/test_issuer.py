"""Keys and metadata of an OAuth issuer, with fake responses and a fake clock."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import anyio
import pytest
from jwt.algorithms import ECAlgorithm

from access.signing import AUDIENCE, ISSUER, claims, private, public, signed
from mcp_skills_server.access.oauth import Issuer, ResourceServer, metadata_urls
from mcp_skills_server.access.principal import RefusedError, UnavailableError
from mcp_skills_server.access.settings import OAuthSettings, is_secure
from mcp_skills_server.errors import SkillsServerError
from tables import each_row

KEYS_URL = "https://keys.example/keys"
METADATA_URL = f"{ISSUER}/.well-known/oauth-authorization-server"
KEY_TWO = public("ES256", 1, "two")

pytestmark = pytest.mark.anyio


class FakeWeb:
    """Fake HTTP: a status and a body by URL, or an error to raise. It records the requests."""

    def __init__(self, *keys: Any, issuer: str = ISSUER, metadata_url: str = METADATA_URL) -> None:
        self.responses: dict[str, tuple[int, bytes] | SkillsServerError] = {}
        self.requests: list[str] = []
        self.gate: asyncio.Event | None = None
        self.now = 1000.0
        self.respond(metadata_url, {"issuer": issuer, "jwks_uri": KEYS_URL})
        self.publish_keys(*keys)

    def respond(self, url: str, body: Any, status: int = 200) -> None:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.responses[url] = (status, raw)

    def publish_keys(self, *keys: Any) -> None:
        self.respond(KEYS_URL, {"keys": [*keys]})

    def fail(self) -> None:
        self.responses = dict.fromkeys(self.responses, SkillsServerError("no response"))

    async def fetch(self, url: str) -> tuple[int, bytes]:
        self.requests.append(url)
        if self.gate is not None:
            await self.gate.wait()
        response = self.responses.get(url, (404, b""))
        if isinstance(response, SkillsServerError):
            raise response
        return response

    def make_issuer(self, url: str = ISSUER) -> Issuer:
        return Issuer(url, self.fetch, lambda: self.now)


async def assert_refused(issuer: Issuer, kid: str | None) -> None:
    with pytest.raises(RefusedError):
        await issuer.key(kid, "ES256")


async def retry_after(issuer: Issuer, kid: str = "one") -> int:
    """Assert that the issuer is unavailable. Return the seconds after which to retry."""
    with pytest.raises(UnavailableError) as caught:
        await issuer.key(kid, "ES256")
    return caught.value.retry_after_s


@each_row(("path", "urls"), [
    ("", ["{0}/oauth-authorization-server", "{0}/openid-configuration"]),
    ("/", ["{0}/oauth-authorization-server", "{0}/openid-configuration"]),
    (
        "/realms/acme",
        [
            "{0}/oauth-authorization-server/realms/acme", "{0}/openid-configuration/realms/acme",
            "https://x.example:8443/realms/acme/.well-known/openid-configuration",
        ],
    ),
])  # fmt: skip
def test_metadata_urls_follow_rfc_8414_and_openid_discovery(path: str, urls: list[str]) -> None:
    host = "https://x.example:8443"
    assert metadata_urls(host + path) == [url.format(f"{host}/.well-known") for url in urls]


@each_row("index", [0, 1, 2])
async def test_last_working_metadata_url_is_tried_first(index: int) -> None:
    url = f"{ISSUER}/tenant"
    web = FakeWeb(public(), issuer=url, metadata_url=metadata_urls(url)[index])
    issuer = web.make_issuer(url)
    await issuer.key("one", "ES256")
    assert web.requests == [*metadata_urls(url)[: index + 1], KEYS_URL]
    web.requests.clear()
    await issuer.start_fetch()
    assert web.requests == [metadata_urls(url)[index], KEYS_URL]
    web.responses[metadata_urls(url)[index - 1]] = web.responses.pop(metadata_urls(url)[index])
    await issuer.start_fetch()
    assert web.requests[-1] == KEYS_URL, "metadata is found at another URL"


async def test_concurrent_requests_share_one_fetch_that_survives_cancellation() -> None:
    web = FakeWeb(public())
    issuer = web.make_issuer()
    web.gate = asyncio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(issuer.key, "one", "ES256")
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    waiting = [asyncio.create_task(issuer.key("one", "ES256")) for _ in range(100)]
    await anyio.wait_all_tasks_blocked()
    web.gate.set()
    assert {key.key_id for key in await asyncio.gather(*waiting)} == {"one"}
    assert web.requests == [METADATA_URL, KEYS_URL]


async def test_unknown_key_ids_cause_one_fetch_per_thirty_seconds() -> None:
    web = FakeWeb(public())
    issuer = web.make_issuer()
    for kid in ("../../etc/passwd", "https://evil.example/keys", "one\x00", "x" * 10_000, "", *map(str, range(100))):
        await assert_refused(issuer, kid)
    assert web.requests == [METADATA_URL, KEYS_URL]
    web.publish_keys(public(), KEY_TWO)
    web.now += 29
    await assert_refused(issuer, "two")
    web.now += 1
    assert await issuer.key("two", "ES256")  # the keys were rotated
    assert await issuer.key("one", "ES256")
    assert len(web.requests) == 4


async def test_known_keys_stay_valid_while_issuer_is_down(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "mcp_skills_server.access.oauth")
    web = FakeWeb(public(), 7)
    issuer = web.make_issuer()
    await issuer.key("one", "ES256")
    web.fail()
    web.now += 10_000
    issuer.keep_fresh()
    await issuer.start_fetch()
    assert await issuer.key("one", "ES256")
    count = len(web.requests)
    for _ in range(50):  # backoff: a failed fetch is not retried for each request
        issuer.keep_fresh()
        assert await retry_after(issuer, "two") == 6
    assert len(web.requests) == count
    web.respond(METADATA_URL, {"issuer": ISSUER, "jwks_uri": KEYS_URL})
    web.publish_keys(public(), KEY_TWO)
    web.now += 5
    assert await issuer.key("two", "ES256")
    assert [message.removeprefix(f"the issuer {ISSUER}") for message in caplog.messages] == [
        ": 1 of its keys are unusable here",
        " has 1 keys",
        ": no response; tokens signed by known keys are accepted until it answers",
        " has 2 keys",
        " answers again",
    ]


async def test_withdrawn_key_is_accepted_for_at_most_fifteen_minutes() -> None:
    web = FakeWeb(public(), KEY_TWO)
    issuer = web.make_issuer()
    assert await issuer.key("one", "ES256")
    web.publish_keys(KEY_TWO)
    for seconds, requests in ((900, 2), (1, 4)):
        web.now += seconds
        issuer.keep_fresh()
        assert await issuer.key("one", "ES256")  # requests do not wait for the fetch
        await anyio.wait_all_tasks_blocked()
        assert len(web.requests) == requests
    await assert_refused(issuer, "one")


NO_KEYS_URL = "has no https URL of its keys (jwks_uri)"


@each_row(("metadata", "message"), [
    ({"issuer": ISSUER + "/", "jwks_uri": KEYS_URL}, "is from another issuer, 'https://login.example/'"),
    ({"issuer": "https://evil.example", "jwks_uri": KEYS_URL}, "is from another issuer"),
    ({"jwks_uri": KEYS_URL}, "is from another issuer"), ({"issuer": ISSUER}, NO_KEYS_URL),
    *(
        ({"issuer": ISSUER, "jwks_uri": url}, NO_KEYS_URL)
        for url in (
            7, "http://keys.example/keys", "http://127.0.0.1:1/keys", "https://localhost/keys",
            "https://127.1/keys", "https://0x7f000001/", "https://keys.localhost/",
            "file:///etc/passwd", "https://u:p@keys.example/",
        )
    ),
    *((body, "is not a JSON object") for body in ([], b"<html>", b"[" * 100_000)),
])  # fmt: skip
async def test_invalid_metadata_makes_issuer_unavailable(
    metadata: Any, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    web = FakeWeb(public())
    web.respond(METADATA_URL, metadata)
    await retry_after(web.make_issuer())
    assert message in caplog.text
    assert web.requests == [METADATA_URL]


@each_row(("body", "status"), [
    *((body, 200) for body in (b"", b"null", b"[]", {}, {"keys": {}}, {"keys": "x"}, b"\xff" * 10)),
    # No redirect is followed.
    *(({"keys": [public()]}, status) for status in (301, 302, 307, 308, 401, 403, 404, 500, 503)),
])  # fmt: skip
async def test_invalid_key_set_makes_issuer_unavailable(body: Any, status: int) -> None:
    web = FakeWeb(public())
    web.respond(KEYS_URL, body, status)
    await retry_after(web.make_issuer())
    assert web.requests == [METADATA_URL, KEYS_URL]


def key_with(**more: Any) -> dict[str, Any]:
    """Return the public key with changed fields. None removes a field."""
    return {name: value for name, value in {**public(), **more}.items() if value is not None}


MALFORMED_KEYS = [key_with(x=None), key_with(x="!"), key_with(x=7), key_with(y="AAAA")]


@each_row("key", [
    None, 7, [], {}, {"kty": "oct", "kid": "one", "k": "AAAA"},
    ECAlgorithm.to_jwk(private("ES256"), as_dict=True) | {"kid": "one"},  # a published private key
    key_with(use="enc"), key_with(alg="ES384"), key_with(key_ops=["sign"]), key_with(key_ops=7),
    key_with(crv="P-384"), key_with(kid=7), key_with(kty=["EC"]), public("RS256"), public("EdDSA"), *MALFORMED_KEYS,
])  # fmt: skip
async def test_unusable_key_is_refused_while_others_stay_usable(key: Any, caplog: pytest.LogCaptureFixture) -> None:
    issuer = FakeWeb(key, KEY_TWO).make_issuer()
    await assert_refused(issuer, "one")
    assert await issuer.key("two", "ES256")
    assert ("one of its keys is invalid" in caplog.text) == (key in MALFORMED_KEYS)


async def test_key_is_selected_by_id_and_type_and_id_is_optional_for_a_single_key() -> None:
    web = FakeWeb(public("RS256"), public("ES256"))
    issuer = web.make_issuer()
    for kid in ("one", None):
        assert (await issuer.key(kid, "ES256")).key_type == "EC"
        assert (await issuer.key(kid, "RS256")).key_type == "RSA"
    web.publish_keys(public(), KEY_TWO)
    await issuer.start_fetch()
    await assert_refused(issuer, None)


@each_row(("safe", "urls"), [
    (True, ["https://x.example", "https://x.example:8443/a?b"]),
    (True, ["http://127.0.0.1:9/keys", "http://localhost/keys", "http://[::1]:8/", "http://auth.localhost/"]),
    (False, ["http://x.example", "http://localhost.evil.example", "https://x.example:port", "https://[::1"]),
    (False, ["https://", "https://u@x.example", "https://x.example#f", 'https://x.example/"']),
    (False, ["https://x.example/ y", "https://ü.example", "ftp://x.example", "x", ""]),
])  # fmt: skip
def test_secure_urls_are_https_or_loopback(safe: bool, urls: list[str]) -> None:
    assert [url for url in urls if is_secure(url) is not safe] == []


@each_row(("status", "message"), [(404, "no metadata"), (499, "no metadata"), (429, "status 429"), (500, "status 500")])
async def test_overloaded_issuer_is_distinguished_from_missing_metadata(
    status: int, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    web = FakeWeb()
    web.respond(METADATA_URL, {}, status)
    await retry_after(web.make_issuer())
    assert message in caplog.text
    assert len(web.requests) == 2


async def test_foreign_token_causes_no_fetch() -> None:
    web = FakeWeb(public())
    server = ResourceServer(OAuthSettings(ISSUER, AUDIENCE, AUDIENCE), web.fetch)
    server.issuer = web.make_issuer()  # with the fake clock
    await server.issuer.start_fetch()
    web.requests.clear()
    web.now += 100
    for token in ("x", "x.y.z", signed(claims(iss="https://evil.example")), signed(headers={"typ": "no"})):
        with pytest.raises(RefusedError):
            await server.verify(token)
    await anyio.wait_all_tasks_blocked()
    assert web.requests == []
    with pytest.raises(RefusedError):
        await server.verify(signed(headers={"kid": "another"}))
    assert web.requests == [METADATA_URL, KEYS_URL]


@each_row(("resource", "path"), [("", ""), ("/", ""), (":8/a/mcp", "/a/mcp")])
def test_resource_metadata_url_follows_rfc_9728(resource: str, path: str) -> None:
    host = "https://s.example" + resource.partition("/")[0]
    server = ResourceServer(OAuthSettings(ISSUER, "api://skills", f"https://s.example{resource}"), FakeWeb().fetch)
    assert server.metadata_url == f"{host}/.well-known/oauth-protected-resource{path}"


async def test_metadata_is_cached_and_outage_error_has_retry_time() -> None:
    web = FakeWeb(public())
    issuer = web.make_issuer()
    for _ in range(2):
        assert (await issuer.metadata())["jwks_uri"] == KEYS_URL
    assert web.requests == [METADATA_URL, KEYS_URL]
    web.now += 901
    await issuer.metadata()
    await anyio.wait_all_tasks_blocked()
    assert len(web.requests) == 4, "expired metadata is fetched again"
    web.fail()
    with pytest.raises(UnavailableError) as outage:
        await web.make_issuer().metadata()
    assert outage.value.retry_after_s == 6
