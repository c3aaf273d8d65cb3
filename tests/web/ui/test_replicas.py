"""Signing in to the page of two replicas behind a real haproxy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from shared.redis_servers import redis_server
from web.authorization_server import authorization_server
from web.http_wire import Server
from web.proxies import Edits, HaProxy, running
from web.ui.serving import ask, cookie_of, get, page_serving, words
from web.ui.test_sign_in import SECRET, TOKENS, know_the_page, oauth_page, sign_in
from wire import write_skill

pytestmark = pytest.mark.needs_program("haproxy")

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


def test_the_shipped_file_leads_a_person_to_one_replica(tmp_path: Path) -> None:
    with two(tmp_path, **TOKENS) as (proxy, _):
        assert statuses(proxy, cookie_of(sign_in(proxy, SECRET).headers)) == {200}


@pytest.mark.needs_program("redis-server")
def test_with_redis_each_replica_knows_who_is_signed_in_until_it_ends(tmp_path: Path) -> None:
    with (
        redis_server(tmp_path / "redis") as redis,
        two(tmp_path, "--redis", redis.url, edits=TAKE_TURNS, **TOKENS) as (proxy, first),
    ):
        cookie = cookie_of(sign_in(proxy, SECRET).headers)
        assert statuses(proxy, cookie) == {200}
        for key in redis.all_keys():
            if redis.say("type", key) == "string":
                assert SECRET not in redis.say("get", key) and cookie.partition("=")[2] not in key
        out = proxy.send("POST", "/ui/sign-out", b"", {"Cookie": cookie, "Sec-Fetch-Site": "same-origin"})
        assert out.status == 303 and statuses(proxy, cookie) == {303}
        # What Redis holds proves nothing by itself, and what a replica knows goes on without Redis.
        cookie = cookie_of(sign_in(first, SECRET).headers)
        pages = [each for each in redis.all_keys() if each.startswith("mcp-skills:page:")]
        (key,) = (each for each in pages if "all" not in each and "of:" not in each)
        redis.say("set", key, "gAAAAAforged")
        assert 303 in statuses(proxy, cookie)
        redis.stop()
        assert get(first, "/ui/", Cookie=cookie).status == 200


@pytest.mark.needs_program("redis-server")
def test_one_replica_finishes_what_another_began_at_the_issuer(tmp_path: Path) -> None:
    with authorization_server() as issuer, redis_server(tmp_path / "redis") as redis:
        know_the_page(issuer)
        config = oauth_page(tmp_path, issuer.url)
        with two(tmp_path, "--config", config, "--redis", redis.url, edits=TAKE_TURNS) as (proxy, _):
            for _ in range(3):
                begun = get(proxy, "/ui/oauth/begin")
                returned = urlsplit(ask(begun.headers["Location"] or "")[1]["Location"] or "")
                done = get(proxy, f"/ui/oauth/callback?{returned.query}", Cookie=cookie_of(begun.headers))
                assert done.status == 200, words(done)
                assert statuses(proxy, cookie_of(done.headers)) == {200}
