"""Plain answers by threads: what is plain is taken at once, and everything else is left to the careful way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from ipaddress import IPv4Network
from typing import TypeVar

import anyio
import anyio.to_thread
import pytest

from mcp_skills_server.sources.download import Answer, Downloader
from mcp_skills_server.sources.faults import UnacceptableError, UnreachableError
from mcp_skills_server.sources.settings import Bounds, OriginPolicy
from sources.fetching import ALLOWED, BRIEF
from sources.publishers import Asked, Publisher, Route, answer, redirect, then_close
from wire import DEADLINE

_T = TypeVar("_T")


def within(downloader: Callable[[], Downloader], call: Callable[[Downloader], _T]) -> _T:
    """Call this in a thread, while the downloader is open."""

    async def run() -> _T:
        async with downloader() as opened:
            return await anyio.to_thread.run_sync(call, opened)

    return anyio.run(run)


def plain(url: str, most: int = 1 << 20, bounds: Bounds = BRIEF, trust: OriginPolicy = ALLOWED) -> Answer | None:
    return within(partial(Downloader, url, trust, bounds), lambda opened: opened.get_plain(url, most))


def test_a_plain_answer_is_given_as_it_is(site: Publisher) -> None:
    site.routes["/a"] = answer(b"\0Read on.", Content_Type="text/plain", X_Two="1", x_two="2")
    got = plain(f"{site.url}/a?b=c;d")
    assert got is not None
    assert (got.raw, got.url, got.modified) == (b"\0Read on.", f"{site.url}/a?b=c;d", True)
    assert got.headers["content-type"] == "text/plain" and got.headers["x-two"] == "1, 2"
    (asked,) = site.asked
    assert asked.path == "/a?b=c;d" and asked.headers["host"] == f"127.0.0.1:{site.port}"
    assert asked.headers["accept-encoding"] == "identity" and "mcp-skills-server/" in asked.headers["user-agent"]


def test_it_is_asked_for_with_the_headers_of_the_careful_way(site: Publisher) -> None:
    site.routes["/a"] = answer(b"a")
    trust = OriginPolicy(private=True, headers=(("Authorization", "Bearer secret"),))

    async def run() -> None:
        async with Downloader(site.url, trust) as opened:
            await opened.get(f"{site.url}/a", 1)
            await anyio.to_thread.run_sync(opened.get_plain, f"{site.url}/a", 1)

    anyio.run(run)
    careful, at_once = site.asked
    assert dict(careful.headers) == dict(at_once.headers) and at_once.headers["authorization"] == "Bearer secret"


def test_one_connection_serves_several_downloads(site: Publisher) -> None:
    site.routes["/a"] = answer(b"a")

    def ask(opened: Downloader) -> int:
        for _ in range(5):
            got = opened.get_plain(f"{site.url}/a", 1)
            assert got is not None and got.raw == b"a"
        return opened.bytes

    assert within(partial(Downloader, site.url, ALLOWED), ask) == 5
    assert len(site._serving) == 1


def in_pieces(_: Asked) -> Iterator[bytes]:
    for at in answer(b"a" * 9):
        yield bytes([at])


def test_it_may_come_in_any_pieces(site: Publisher) -> None:
    site.routes["/a"] = in_pieces
    got = plain(f"{site.url}/a")
    assert got is not None and got.raw == b"a" * 9


ODD: dict[str, Route] = {
    "redirect": redirect("/b"),
    "absent": answer(b"", 404),
    "not now": answer(b"", 503),
    "partial": answer(b"a", 206),
    "chunked": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
    "chunked with a length": b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\na",
    "to the end": then_close(b"HTTP/1.1 200 OK\r\n\r\na"),
    "two lengths": b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 1\r\n\r\na",
    "signed length": b"HTTP/1.1 200 OK\r\ncontent-length: +1\r\n\r\na",
    "folded": b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\nx: a\r\n b\r\n\r\na",
    "no name": b"HTTP/1.1 200 OK\r\n: a\r\ncontent-length: 1\r\n\r\na",
    "blank before the colon": b"HTTP/1.1 200 OK\r\ncontent-length : 1\r\n\r\na",
    "first an announcement": b"HTTP/1.1 100 Continue\r\n\r\n" + answer(b"a"),
    "old": b"HTTP/1.0 200 OK\r\ncontent-length: 1\r\n\r\na",
    "another protocol": then_close(b"SSH-2.0-OpenSSH_9.2\r\n"),
    "broken off": then_close(answer(b"a", length=100)),
    "nothing": then_close(b""),
    "too large": answer(b"a" * 100),
    "endless head": answer(b"a", x="y" * (1 << 16)),
}


@pytest.mark.parametrize("name", ODD)
def test_what_is_not_plain_is_left_to_the_careful_way(site: Publisher, name: str) -> None:
    site.routes["/a"] = ODD[name]
    assert plain(f"{site.url}/a", 99) is None


def test_an_origin_that_is_seldom_plain_is_asked_no_more(site: Publisher) -> None:
    site.routes["/a"] = ODD["chunked"]

    def ask(opened: Downloader) -> None:
        for _ in range(10):
            assert opened.get_plain(f"{site.url}/a", 9) is None

    within(partial(Downloader, site.url, ALLOWED), ask)
    assert len(site.asked) == 3


def test_a_server_may_close_what_was_kept(site: Publisher) -> None:
    site.routes["/a"] = then_close(answer(b"a"))

    def ask(opened: Downloader) -> None:
        for _ in range(5):
            got = opened.get_plain(f"{site.url}/a", 9)
            assert got is not None and got.raw == b"a"

    within(partial(Downloader, site.url, ALLOWED), ask)
    assert len(site.asked) == 5


def test_what_follows_a_body_ends_the_connection(site: Publisher) -> None:
    site.routes["/a"] = answer(b"a") + answer(b"evil")

    def ask(opened: Downloader) -> list[bytes]:
        found = [opened.get_plain(f"{site.url}/a", 9) for _ in range(2)]
        return [each.raw for each in found if each]

    assert within(partial(Downloader, site.url, ALLOWED), ask) == [b"a", b"a"]
    assert len(site._serving) == 2


def test_bounds_of_time_and_bytes_hold(site: Publisher) -> None:
    site.routes["/silent"] = site.stall()
    site.routes["/half"] = site.stall(answer(b"a", length=50))
    for path in ("/silent", "/half"):
        with pytest.raises(UnreachableError, match="did not answer within"):
            plain(f"{site.url}{path}")
    site.routes["/drip"] = site.drip(answer(b"a" * 100_000))
    with pytest.raises(UnreachableError, match="took longer than"):
        plain(f"{site.url}/drip")
    site.routes["/a"] = answer(b"a" * 60)
    with pytest.raises(UnacceptableError, match="all downloads together have more than 50 bytes"):
        plain(f"{site.url}/a", bounds=Bounds(total_bytes=50))


def test_it_leads_nowhere_else(site: Publisher, monkeypatch: pytest.MonkeyPatch) -> None:
    async def resolver(host: str, port: int) -> list[str]:
        return ["1.1.1.1", "10.0.0.1"]

    for url in ("https://skills.example/a", "http://skills.example/a"):
        opened = partial(Downloader, url, OriginPolicy(http=True), resolver=resolver)
        with pytest.raises(UnacceptableError, match=r"leads to 10\.0\.0\.1, which is not public"):
            within(opened, lambda each, url=url: each.get_plain(url, 1))
    with pytest.raises(UnacceptableError, match="another origin"):
        within(partial(Downloader, site.url, ALLOWED), lambda each: each.get_plain("http://127.0.0.1:1/a", 1))


def test_the_connection_goes_to_the_address_that_was_checked(site: Publisher, monkeypatch: pytest.MonkeyPatch) -> None:
    async def resolver(host: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    monkeypatch.setattr("mcp_skills_server.sources.addresses._NOT_PUBLIC_4", (IPv4Network("10.0.0.0/8"),))
    site.routes["/a"] = answer(b"a")
    url = f"http://skills.example:{site.port}/a"
    got = within(
        partial(Downloader, url, OriginPolicy(http=True), resolver=resolver), lambda each: each.get_plain(url, 1)
    )
    assert got is not None and got.raw == b"a"
    assert site.asked[0].headers["host"] == f"skills.example:{site.port}"


def test_what_goes_by_a_proxy_goes_the_careful_way(site: Publisher, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", site.url)
    url = "http://1.1.1.1/a"
    trust = OriginPolicy(http=True)
    assert within(partial(Downloader, url, trust), lambda opened: opened.get_plain(url, 1)) is None
    assert not site.asked


def test_stopping_ends_what_threads_wait_for(site: Publisher) -> None:
    site.routes["/a"] = site.stall()

    async def run() -> list[Answer | None]:
        found: list[Answer | None] = []

        async with Downloader(site.url, ALLOWED, Bounds(read_s=60)) as opened:

            async def ask() -> None:
                found.append(await anyio.to_thread.run_sync(opened.get_plain, f"{site.url}/a", 1))

            async with anyio.create_task_group() as tasks:
                for _ in range(3):
                    tasks.start_soon(ask)
                with anyio.fail_after(DEADLINE):
                    while len(site.asked) < 3:
                        await anyio.lowlevel.checkpoint()
                    opened.stop_plain()
        return found

    assert anyio.run(run) == [None, None, None]
