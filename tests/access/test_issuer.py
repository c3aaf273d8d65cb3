"""The keys of an issuer, with answers and a clock by hand: what is asked, how often, and what is believed."""

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

KEYS = "https://keys.example/keys"
META = f"{ISSUER}/.well-known/oauth-authorization-server"
TWO = public("ES256", 1, "two")

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


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


async def refused(issuer: Issuer, kid: str | None) -> None:
    with pytest.raises(RefusedError):
        await issuer.key(kid, "ES256")


async def unavailable(issuer: Issuer, kid: str = "one") -> int:
    """Prove that the issuer cannot be asked for a key now; the seconds after which to try again."""
    with pytest.raises(UnavailableError) as caught:
        await issuer.key(kid, "ES256")
    return caught.value.retry_after_s


@each_row(
    ("path", "urls"),
    [
        ("", ["{0}/oauth-authorization-server", "{0}/openid-configuration"]),
        ("/", ["{0}/oauth-authorization-server", "{0}/openid-configuration"]),
        (
            "/realms/acme",
            [
                "{0}/oauth-authorization-server/realms/acme", "{0}/openid-configuration/realms/acme",
                "https://x.example:8443/realms/acme/.well-known/openid-configuration",
            ],
        ),
    ],
)  # fmt: skip
def test_where_metadata_stands(path: str, urls: list[str]) -> None:
    host = "https://x.example:8443"
    assert metadata_urls(host + path) == [each.format(f"{host}/.well-known") for each in urls]


@each_row("place", [0, 1, 2])
async def test_metadata_is_found_wherever_it_stands_and_asked_there_first_from_then_on(place: int) -> None:
    url = f"{ISSUER}/tenant"
    web = Web(public(), issuer=url, at=metadata_urls(url)[place])
    issuer = web.issuer(url)
    await issuer.key("one", "ES256")
    assert web.asked == [*metadata_urls(url)[: place + 1], KEYS]
    web.asked.clear()
    await issuer.refresh()
    assert web.asked == [metadata_urls(url)[place], KEYS]
    web.answers[metadata_urls(url)[place - 1]] = web.answers.pop(metadata_urls(url)[place])
    await issuer.refresh()
    assert web.asked[-1] == KEYS, "it is found where it went"


async def test_many_who_wait_cause_one_look_and_who_leaves_does_not_end_it() -> None:
    web = Web(public())
    issuer = web.issuer()
    web.gate = asyncio.Event()
    async with anyio.create_task_group() as leaving:
        leaving.start_soon(issuer.key, "one", "ES256")
        await anyio.wait_all_tasks_blocked()
        leaving.cancel_scope.cancel()
    waiting = [asyncio.create_task(issuer.key("one", "ES256")) for _ in range(100)]
    await anyio.wait_all_tasks_blocked()
    web.gate.set()
    assert {each.key_id for each in await asyncio.gather(*waiting)} == {"one"}
    assert web.asked == [META, KEYS]


async def test_names_that_are_made_up_cause_one_look_in_thirty_seconds() -> None:
    web = Web(public())
    issuer = web.issuer()
    for number in range(100):
        await refused(issuer, f"made up {number}")
    assert len(web.asked) == 2
    web.has(public(), TWO)
    web.now += 29
    await refused(issuer, "two")
    web.now += 1
    assert await issuer.key("two", "ES256")  # the keys were rotated
    assert await issuer.key("one", "ES256")
    assert len(web.asked) == 4


@each_row("kid", ["../../etc/passwd", "' OR 1=1 --", "https://evil.example/keys", "one\x00", "x" * 10_000, ""])
async def test_the_name_of_a_key_is_looked_up_and_never_followed(kid: str) -> None:
    web = Web(public())
    await refused(web.issuer(), kid)
    assert web.asked == [META, KEYS]


async def test_an_issuer_that_is_down_stops_nobody_whose_key_is_known(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "mcp_skills_server.access.oauth")
    web = Web(public(), 7)
    issuer = web.issuer()
    await issuer.key("one", "ES256")
    web.breaks()
    web.now += 10_000
    issuer.keep_fresh()
    await issuer.refresh()
    assert await issuer.key("one", "ES256")
    asked = len(web.asked)
    for _ in range(50):  # nor is it asked for each request
        issuer.keep_fresh()
        assert await unavailable(issuer, "two") == 6
    assert len(web.asked) == asked
    web.says(META, {"issuer": ISSUER, "jwks_uri": KEYS})
    web.has(public(), TWO)
    web.now += 5
    assert await issuer.key("two", "ES256")
    assert [each.removeprefix(f"the issuer {ISSUER}") for each in caplog.messages] == [
        ": 1 of its keys are unusable here",
        " has 1 keys",
        ": nobody answers; tokens signed by known keys are accepted until it answers",
        " has 2 keys",
        " answers again",
    ]


async def test_a_key_that_was_withdrawn_is_believed_for_a_quarter_of_an_hour_at_most() -> None:
    web = Web(public(), TWO)
    issuer = web.issuer()
    assert await issuer.key("one", "ES256")
    web.has(TWO)
    for seconds, asked in ((900, 2), (1, 4)):
        web.now += seconds
        issuer.keep_fresh()
        assert await issuer.key("one", "ES256")  # nobody waits for the look
        await anyio.wait_all_tasks_blocked()
        assert len(web.asked) == asked
    await refused(issuer, "one")


WITHOUT_KEYS = "has no https URL of its keys (jwks_uri)"


@each_row(
    ("metadata", "said"),
    [
        ({"issuer": ISSUER + "/", "jwks_uri": KEYS}, "is from another issuer, 'https://login.example/'"),
        ({"issuer": "https://evil.example", "jwks_uri": KEYS}, "is from another issuer"),
        ({"jwks_uri": KEYS}, "is from another issuer"), ({"issuer": ISSUER}, WITHOUT_KEYS),
        *(
            ({"issuer": ISSUER, "jwks_uri": url}, WITHOUT_KEYS)
            for url in (
                7, "http://keys.example/keys", "http://127.0.0.1:1/keys", "https://localhost/keys",
                "file:///etc/passwd", "https://u:p@keys.example/",
            )
        ),
        *((body, "is not a JSON object") for body in ([], b"<html>", b"[" * 100_000)),
    ],
)  # fmt: skip
async def test_metadata_that_cannot_be_used(metadata: Any, said: str, caplog: pytest.LogCaptureFixture) -> None:
    web = Web(public())
    web.says(META, metadata)
    await unavailable(web.issuer())
    assert said in caplog.text and web.asked == [META]


@each_row(
    ("body", "status"),
    [
        *((body, 200) for body in (b"", b"null", b"[]", {}, {"keys": {}}, {"keys": "x"}, b"\xff" * 10)),
        # No redirect is followed.
        *(({"keys": [public()]}, status) for status in (301, 302, 307, 308, 401, 403, 404, 500, 503)),
    ],
)
async def test_keys_that_cannot_be_read(body: Any, status: int) -> None:
    web = Web(public())
    web.says(KEYS, body, status)
    await unavailable(web.issuer())
    assert web.asked == [META, KEYS]


def of(**more: Any) -> dict[str, Any]:
    """The public key with other fields, without those that are None."""
    return {name: value for name, value in {**public(), **more}.items() if value is not None}


INVALID = [of(x=None), of(x="!"), of(x=7), of(y="AAAA")]


@each_row(
    "key",
    [
        None, 7, [], {}, {"kty": "oct", "kid": "one", "k": "AAAA"},
        ECAlgorithm.to_jwk(private("ES256"), as_dict=True) | {"kid": "one"},  # a private key that everybody has
        of(use="enc"), of(alg="ES384"), of(key_ops=["sign"]), of(key_ops=7), of(crv="P-384"), of(kid=7),
        of(kty=["EC"]), public("RS256"), public("EdDSA"), *INVALID,
    ],
)  # fmt: skip
async def test_a_key_that_is_of_no_use_proves_nothing_and_hides_no_other(
    key: Any, caplog: pytest.LogCaptureFixture
) -> None:
    issuer = Web(key, TWO).issuer()
    await refused(issuer, "one")
    assert await issuer.key("two", "ES256")
    assert ("one of its keys is invalid" in caplog.text) == (key in INVALID)


async def test_keys_of_one_name_are_told_apart_by_their_kind_and_without_a_name_the_only_one_fits() -> None:
    web = Web(public("RS256"), public("ES256"))
    issuer = web.issuer()
    for kid in ("one", None):
        assert (await issuer.key(kid, "ES256")).key_type == "EC"
        assert (await issuer.key(kid, "RS256")).key_type == "RSA"
    web.has(public(), TWO)
    await issuer.refresh()
    await refused(issuer, None)


@each_row(
    ("safe", "urls"),
    [
        (True, ["https://x.example", "https://x.example:8443/a?b"]),
        (True, ["http://127.0.0.1:9/keys", "http://localhost/keys", "http://[::1]:8/"]),
        (False, ["http://x.example", "http://localhost.evil.example", "https://x.example:port", "https://[::1"]),
        (False, ["https://", "https://u@x.example", "https://x.example#f", 'https://x.example/"']),
        (False, ["https://x.example/ y", "https://ü.example", "ftp://x.example", "x", ""]),
    ],
)
def test_which_urls_nobody_can_change_on_the_way(safe: bool, urls: list[str]) -> None:
    assert [each for each in urls if is_secure(each) is not safe] == []


@each_row(("status", "said"), [(404, "no metadata"), (499, "no metadata"), (429, "status 429"), (500, "status 500")])
async def test_an_issuer_that_is_overloaded_is_told_from_one_without_metadata(
    status: int, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    web = Web()
    web.says(META, {}, status)
    await unavailable(web.issuer())
    assert said in caplog.text and len(web.asked) == 2


def resource(web: Web) -> ResourceServer:
    out = ResourceServer(OAuthSettings(ISSUER, AUDIENCE, AUDIENCE), web.fetch)
    out.issuer = web.issuer()  # with the clock of this file
    return out


async def test_a_token_of_another_issuer_causes_no_look() -> None:
    web = Web(public())
    server = resource(web)
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


@each_row(("resource", "path"), [("", ""), ("/", ""), (":8/a/mcp", "/a/mcp")])
def test_where_the_metadata_of_the_resource_stands(resource: str, path: str) -> None:
    server = ResourceServer(OAuthSettings(ISSUER, "api://skills", f"https://s.example{resource}"), Web().fetch)
    host = "https://s.example" + resource.partition("/")[0]
    assert server.metadata_url == f"{host}/.well-known/oauth-protected-resource{path}"


async def test_metadata_are_asked_for_once_and_an_issuer_that_is_down_is_told_with_a_time() -> None:
    web = Web(public())
    issuer = web.issuer()
    for _ in range(2):
        assert (await issuer.metadata())["jwks_uri"] == KEYS
    assert web.asked == [META, KEYS]
    web.now += 901
    await issuer.metadata()
    await anyio.wait_all_tasks_blocked()
    assert len(web.asked) == 4, "they are kept fresh"
    web.breaks()
    with pytest.raises(UnavailableError) as caught:
        await web.issuer().metadata()
    assert caught.value.retry_after_s == 6
