"""The keys of an issuer, with answers and a clock by hand: what is asked, how often, and what is believed."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

from access.signing import AUDIENCE, ISSUER, claims, private, public, signed
from mcp_skills_server.access.oauth import Issuer, ResourceServer, metadata_urls
from mcp_skills_server.access.principal import RefusedError, UnavailableError
from mcp_skills_server.access.settings import OAuthSettings, is_secure
from mcp_skills_server.errors import SkillsServerError
from tables import each_row

KEYS = "https://keys.example/keys"
META = f"{ISSUER}/.well-known/oauth-authorization-server"


class Web:
    """What URLs answer: a status and a body; an error is raised."""

    def __init__(self, *keys: Any, issuer: str = ISSUER, at: str = META) -> None:
        self.answers: dict[str, tuple[int, bytes] | SkillsServerError] = {}
        self.asked: list[str] = []
        self.gate: asyncio.Event | None = None
        self.now = 1000.0
        self.says(at, {"issuer": issuer, "jwks_uri": KEYS})
        self.has(*keys)

    def says(self, url: str, body: Any, status: int = 200) -> None:
        self.answers[url] = status, body if isinstance(body, bytes) else json.dumps(body).encode()

    def has(self, *keys: Any) -> None:
        self.says(KEYS, {"keys": [*keys]})

    def breaks(self) -> None:
        self.answers = dict.fromkeys(self.answers, SkillsServerError("nobody answers"))

    async def fetch(self, url: str) -> tuple[int, bytes]:
        self.asked.append(url)
        if self.gate is not None:
            await self.gate.wait()
        found = self.answers.get(url, (404, b""))
        if isinstance(found, SkillsServerError):
            raise found
        return found

    def issuer(self, url: str = ISSUER) -> Issuer:
        return Issuer(url, self.fetch, lambda: self.now)


def run(work: Callable[[], Awaitable[Any]]) -> Any:
    async def bounded() -> Any:
        with anyio.fail_after(20):
            return await work()

    return anyio.run(bounded)


@each_row(
    ("issuer", "urls"),
    [
        (
            "https://x.example",
            [
                "https://x.example/.well-known/oauth-authorization-server",
                "https://x.example/.well-known/openid-configuration",
            ],
        ),
        (
            "https://x.example/",
            [
                "https://x.example/.well-known/oauth-authorization-server",
                "https://x.example/.well-known/openid-configuration",
            ],
        ),
        (
            "https://x.example:8443/realms/acme",
            [
                "https://x.example:8443/.well-known/oauth-authorization-server/realms/acme",
                "https://x.example:8443/.well-known/openid-configuration/realms/acme",
                "https://x.example:8443/realms/acme/.well-known/openid-configuration",
            ],
        ),
    ],
)
def test_where_metadata_stands(issuer: str, urls: list[str]) -> None:
    assert metadata_urls(issuer) == urls


@each_row("place", [0, 1, 2])
def test_metadata_is_found_wherever_it_stands_and_asked_there_first_from_then_on(place: int) -> None:
    url = f"{ISSUER}/tenant"
    web = Web(public(), issuer=url, at=metadata_urls(url)[place])
    issuer = web.issuer(url)

    async def work() -> None:
        await issuer.key("one", "ES256")
        assert web.asked == [*metadata_urls(url)[: place + 1], KEYS]
        web.asked.clear()
        await issuer.refresh()
        assert web.asked == [metadata_urls(url)[place], KEYS]

    run(work)


def test_many_who_wait_cause_one_look() -> None:
    web = Web(public())
    issuer = web.issuer()

    async def work() -> None:
        web.gate = asyncio.Event()
        found: list[Any] = []

        async def one() -> None:
            found.append(await issuer.key("one", "ES256"))

        async with anyio.create_task_group() as tasks:
            for _ in range(500):
                tasks.start_soon(one)
            await anyio.wait_all_tasks_blocked()
            web.gate.set()
        assert {each.key_id for each in found} == {"one"} and len(found) == 500
        assert web.asked == [META, KEYS]

    run(work)


def test_who_leaves_does_not_end_the_look_of_the_others() -> None:
    web = Web(public())
    issuer = web.issuer()

    async def work() -> None:
        web.gate = asyncio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(issuer.key, "one", "ES256")
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
        web.gate.set()
        assert await issuer.key("one", "ES256") and web.asked == [META, KEYS]

    run(work)


def test_names_that_are_made_up_cause_one_look_in_thirty_seconds() -> None:
    web = Web(public())
    issuer = web.issuer()

    async def work() -> None:
        for number in range(100):
            with pytest.raises(RefusedError):
                await issuer.key(f"made up {number}", "ES256")
        assert len(web.asked) == 2
        web.has(public(), public("ES256", 1, "two"))
        web.now += 29
        with pytest.raises(RefusedError):
            await issuer.key("two", "ES256")
        web.now += 1
        assert await issuer.key("two", "ES256")  # the keys were rotated
        assert await issuer.key("one", "ES256")
        assert len(web.asked) == 4

    run(work)


@each_row("kid", ["../../etc/passwd", "' OR 1=1 --", "https://evil.example/keys", "one\x00", "x" * 10_000, ""])
def test_the_name_of_a_key_is_looked_up_and_never_followed(kid: str) -> None:
    web = Web(public())

    async def work() -> None:
        with pytest.raises(RefusedError):
            await web.issuer().key(kid, "ES256")
        assert web.asked == [META, KEYS]

    run(work)


def test_an_issuer_that_is_down_stops_nobody_whose_key_is_known(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    web = Web(public())
    issuer = web.issuer()

    async def work() -> None:
        await issuer.key("one", "ES256")
        web.breaks()
        web.now += 10_000
        issuer.keep_fresh()
        await issuer.refresh()
        assert await issuer.key("one", "ES256")
        with pytest.raises(UnavailableError) as caught:
            await issuer.key("two", "ES256")
        assert caught.value.retry_after_s == 6
        asked = len(web.asked)
        for _ in range(50):  # nor is it asked for each request
            with pytest.raises(UnavailableError):
                await issuer.key("two", "ES256")
        assert len(web.asked) == asked
        web.says(META, {"issuer": ISSUER, "jwks_uri": KEYS})
        web.has(public(), public("ES256", 1, "two"))
        web.now += 5
        assert await issuer.key("two", "ES256")

    run(work)
    said = [each.getMessage() for each in caplog.records if "keys" not in each.getMessage().partition(" has ")[2]]
    assert said == [
        f"the issuer {ISSUER}: nobody answers; tokens signed by known keys are accepted until it answers",
        f"the issuer {ISSUER} answers again",
    ]


def test_an_issuer_that_is_down_at_the_start_is_unavailable_and_not_a_refusal() -> None:
    web = Web(public())
    web.breaks()
    assert_unavailable(web)


def test_a_key_that_was_withdrawn_is_believed_for_a_quarter_of_an_hour_at_most() -> None:
    web = Web(public(), public("ES256", 1, "two"))
    issuer = web.issuer()

    async def work() -> None:
        assert await issuer.key("one", "ES256")
        web.has(public("ES256", 1, "two"))
        web.now += 901
        issuer.keep_fresh()
        assert await issuer.key("one", "ES256")  # nobody waits for the look
        for _ in range(100):
            await asyncio.sleep(0)
        with pytest.raises(RefusedError):
            await issuer.key("one", "ES256")

    run(work)


@each_row(
    ("metadata", "said"),
    [
        ({"issuer": ISSUER + "/", "jwks_uri": KEYS}, "is from another issuer, 'https://login.example/'"),
        ({"issuer": "https://evil.example", "jwks_uri": KEYS}, "is from another issuer"),
        ({"jwks_uri": KEYS}, "is from another issuer"),
        ({"issuer": ISSUER}, "has no https URL of its keys (jwks_uri)"),
        ({"issuer": ISSUER, "jwks_uri": 7}, "has no https URL of its keys (jwks_uri)"),
        ({"issuer": ISSUER, "jwks_uri": "http://keys.example/keys"}, "has no https URL of its keys (jwks_uri)"),
        ({"issuer": ISSUER, "jwks_uri": "http://127.0.0.1:1/keys"}, "has no https URL of its keys (jwks_uri)"),
        ({"issuer": ISSUER, "jwks_uri": "https://localhost/keys"}, "has no https URL of its keys (jwks_uri)"),
        ({"issuer": ISSUER, "jwks_uri": "file:///etc/passwd"}, "has no https URL of its keys (jwks_uri)"),
        ({"issuer": ISSUER, "jwks_uri": "https://u:p@keys.example/"}, "has no https URL of its keys (jwks_uri)"),
        ([], "is not a JSON object"),
        (b"<html>", "is not a JSON object"),
        (b"[" * 100_000, "is not a JSON object"),
    ],
)
def test_metadata_that_cannot_be_used(metadata: Any, said: str, caplog: pytest.LogCaptureFixture) -> None:
    web = Web(public())
    web.says(META, metadata)
    assert_unavailable(web)
    assert said in caplog.text and web.asked == [META]


@each_row(
    ("body", "status"),
    [
        *((body, 200) for body in (b"", b"null", b"[]", {}, {"keys": {}}, {"keys": "x"}, b"\xff" * 10)),
        # No redirect is followed.
        *(({"keys": [public()]}, status) for status in (301, 302, 307, 308, 401, 403, 404, 500, 503)),
    ],
)
def test_keys_that_cannot_be_read(body: Any, status: int) -> None:
    web = Web(public())
    web.says(KEYS, body, status)
    assert_unavailable(web)
    assert web.asked == [META, KEYS]


def assert_unavailable(web: Web) -> None:
    async def work() -> None:
        with pytest.raises(UnavailableError):
            await web.issuer().key("one", "ES256")

    run(work)


def of(key: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {name: value for name, value in {**key, **more}.items() if value is not None}


@each_row(
    "key",
    [
        None,
        7,
        [],
        {},
        {"kty": "oct", "kid": "one", "k": "AAAA"},
        of(public(), d="AAAA"),  # a private key is one that everybody has
        of(public(), use="enc"),
        of(public(), alg="ES384"),
        of(public(), key_ops=["sign"]),
        of(public(), key_ops=7),
        of(public(), crv="P-384"),
        of(public(), x=None),
        of(public(), x="!"),
        of(public(), x=7),
        of(public(), y="AAAA"),
        of(public(), kid=7),
        of(public(), kty=["EC"]),
        public("RS256"),
        public("EdDSA"),
    ],
)
def test_a_key_that_is_of_no_use_proves_nothing_and_hides_no_other(key: Any) -> None:
    web = Web(key, public("ES256", 1, "two"))

    async def work() -> None:
        issuer = web.issuer()
        with pytest.raises(RefusedError):
            await issuer.key("one", "ES256")
        assert await issuer.key("two", "ES256")

    run(work)


def test_two_keys_of_one_name_are_told_apart_by_their_kind() -> None:
    web = Web(public("RS256"), public("ES256"))

    async def work() -> None:
        issuer = web.issuer()
        assert (await issuer.key("one", "ES256")).key_type == "EC"
        assert (await issuer.key("one", "RS256")).key_type == "RSA"

    run(work)


def test_a_token_that_names_no_key_is_by_the_only_one_that_fits() -> None:
    web = Web(public(), public("RS256", 0, "two"))

    async def work() -> None:
        issuer = web.issuer()
        assert await issuer.key(None, "ES256")
        web.has(public(), public("ES256", 1, "two"))
        await issuer.refresh()
        with pytest.raises(RefusedError):
            await issuer.key(None, "ES256")

    run(work)


@each_row(
    ("url", "safe"),
    [
        ("https://x.example", True), ("https://x.example:8443/a?b", True), ("http://127.0.0.1:9/keys", True),
        ("http://localhost/keys", True), ("http://[::1]:8/", True), ("http://x.example", False),
        ("http://localhost.evil.example", False), ("https://x.example:port", False), ("https://[::1", False),
        ("https://", False), ("https://u@x.example", False), ("https://x.example#f", False),
        ('https://x.example/"', False), ("https://x.example/ y", False), ("https://ü.example", False),
        ("ftp://x.example", False), ("x", False), ("", False),
    ],
)  # fmt: skip
def test_which_urls_nobody_can_change_on_the_way(url: str, safe: bool) -> None:
    assert is_secure(url) is safe


# As a resource server


SETTINGS = OAuthSettings(ISSUER, AUDIENCE, AUDIENCE)


def resource(web: Web, settings: OAuthSettings = SETTINGS) -> ResourceServer:
    out = ResourceServer(settings, web.fetch)
    out.issuer = web.issuer()  # with the clock of this file
    return out


def test_a_token_is_proved_by_the_keys_that_the_issuer_has_now() -> None:
    web = Web(public())
    server = resource(web)
    token = signed()

    async def work() -> None:
        found = await server.verify(token)
        assert found.principal.id == "user:ann"
        web.has(public("ES256", 1, "two"))
        await server.issuer.refresh()
        with pytest.raises(RefusedError):
            await server.verify(token)
        assert (await server.verify(signed(key=private("ES256", 1), headers={"kid": "two"}))).principal.name == "ann"

    run(work)


def test_a_token_of_another_issuer_causes_no_look() -> None:
    web = Web(public())
    server = resource(web)

    async def work() -> None:
        await server.issuer.refresh()
        web.asked.clear()
        web.now += 100
        for token in ("x", "x.y.z", signed(claims(iss="https://evil.example")), signed(headers={"typ": "no"})):
            with pytest.raises(RefusedError):
                await server.verify(token)
        await anyio.wait_all_tasks_blocked()
        assert web.asked == []
        with pytest.raises(RefusedError):
            await server.verify(signed(headers={"kid": "another"}))
        assert web.asked == [META, KEYS]

    run(work)


@each_row(
    ("url", "metadata"),
    [
        ("https://s.example/mcp", "https://s.example/.well-known/oauth-protected-resource/mcp"),
        ("https://s.example", "https://s.example/.well-known/oauth-protected-resource"),
        ("https://s.example/", "https://s.example/.well-known/oauth-protected-resource"),
        ("https://s.example:8/a/mcp", "https://s.example:8/.well-known/oauth-protected-resource/a/mcp"),
    ],
)
def test_where_the_metadata_of_the_resource_stands(url: str, metadata: str) -> None:
    server = ResourceServer(OAuthSettings(ISSUER, "api://skills", url, scopes=("read",)), Web().fetch)
    assert server.metadata_url == metadata
    assert server.metadata == {
        "resource": url,
        "authorization_servers": [ISSUER],
        "bearer_methods_supported": ["header"],
        "scopes_supported": ["read"],
    }


def test_metadata_are_asked_for_once_and_an_issuer_that_is_down_is_told_with_a_time() -> None:
    web = Web(public())
    issuer = web.issuer()

    async def work() -> None:
        for _ in range(2):
            assert (await issuer.metadata())["jwks_uri"] == KEYS
        assert web.asked == [META, KEYS]
        web.breaks()
        with pytest.raises(UnavailableError) as caught:
            await web.issuer().metadata()
        assert caught.value.retry_after_s == 6

    run(work)
