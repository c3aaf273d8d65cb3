"""The downloader against servers that are broken or mean harm."""

from __future__ import annotations

import gzip
from time import monotonic

import anyio
import pytest

from mcp_skills_server.sources.http import Downloader, Hop, HttpClient
from mcp_skills_server.sources.source import AbsentError, Bounds, OriginPolicy, UnacceptableError, UnreachableError
from sources.fetching import ALLOWED, get
from sources.publishers import Publisher, Route, answer, redirect, then_close
from tables import each_row


def test_what_comes_is_given_as_it_is(site: Publisher) -> None:
    site.routes["/a"] = answer(b"\0Read on.", etag='"1"', Content_Type="text/plain")
    got = get(f"{site.url}/a?b=c;d")
    assert (got.body, got.url, got.status) == (b"\0Read on.", f"{site.url}/a?b=c;d", 200)
    assert got.headers["etag"] == '"1"' and got.headers["content-type"] == "text/plain"
    (asked,) = site.asked
    assert asked.path == "/a?b=c;d" and asked.headers["host"] == f"127.0.0.1:{site.port}"
    assert asked.headers["accept-encoding"] == "identity" and "mcp-skills-server/" in asked.headers["user-agent"]


@pytest.mark.parametrize(("route", "connections"), [(answer(b"a"), 1), (then_close(answer(b"a")), 5)])
def test_a_connection_serves_several_downloads_until_the_server_closes_it(
    site: Publisher, route: Route, connections: int
) -> None:
    site.routes["/a"] = route

    async def run() -> None:
        async with HttpClient(Bounds(total_bytes=5)) as http:
            downloader = Downloader(http, site.url, ALLOWED)
            for _ in range(5):
                assert (await downloader.get(f"{site.url}/a", 1)).body == b"a"
            assert http.bytes == 5 and len(site.connections) == connections
            await downloader.get(f"{site.url}/a", 1)

    with pytest.raises(UnacceptableError, match="all downloads together have more than 5 bytes"):
        anyio.run(run)


@pytest.mark.parametrize("content", [None, b"once"])
def test_what_broke_off_before_the_answer_is_asked_again_unless_it_may_have_effects(
    site: Publisher, content: bytes | None
) -> None:
    begun = iter([b"", answer(b"a")])
    site.routes["/a"] = lambda _: iter([next(begun)])

    async def run() -> bytes:
        async with HttpClient(Bounds()) as http:
            allow = lambda _: Hop(private=True)  # noqa: E731
            return (await http.request("POST", f"{site.url}/a", {}, allow, max_bytes=1, content=content)).body

    if content is None:
        assert anyio.run(run) == b"a"
    else:
        with pytest.raises(UnreachableError, match="broke off"):
            anyio.run(run)
    assert len(site.asked) == (2 if content is None else 1)


def test_not_modified_only_when_that_was_asked(site: Publisher) -> None:
    site.routes["/a"] = answer(b"", 304)
    got = get(f"{site.url}/a", validators={"If-None-Match": '"1"'})
    assert got.status == 304 and got.body == b""
    assert site.asked[0].headers["if-none-match"] == '"1"'


@each_row(
    ("statuses", "kind", "said"),
    [
        ((404, 410), AbsentError, "is not there"),
        ((401, 403), UnacceptableError, "asks for permission"),
        ((204, 206, 300, 304, 418), UnacceptableError, "answers with status"),
        ((429, 500, 503), UnreachableError, "does not answer now"),
    ],
)
def test_every_status_but_200_is_an_error(
    site: Publisher, statuses: tuple[int, ...], kind: type[Exception], said: str
) -> None:
    for status in statuses:
        site.routes["/a"] = answer(b"" if status in {204, 304} else b"x", status)
        with pytest.raises(kind, match=said):
            get(f"{site.url}/a?token=secret")


@pytest.mark.requirement("WK-39")
@each_row("status", [301, 302, 303, 307, 308])
def test_redirects_are_followed(site: Publisher, status: int) -> None:
    site.routes |= {"/a": redirect("b/c", status), "/b/c": redirect("/d?e", status), "/d": answer(b"d")}
    got = get(f"{site.url}/a")
    assert (got.body, got.url) == (b"d", f"{site.url}/d?e")


@each_row(
    ("to", "said"),
    [
        ("ftp://127.0.0.1/a", "not an http or https URL"),
        ("https://user:secret@127.0.0.1/a", "a user name or a password"),
        ("http://127.0.0.1:1/a", "another origin"),
        ("//example.com/a", "another origin"),
        ("http://[::1", "cannot be read as a URL"),
        ("", "contains a character that no URL may contain"),
        ("/a b", "contains a character that no URL may contain"),
        (None, "redirects to nowhere"),
    ],
)
def test_redirects_lead_nowhere_else(site: Publisher, to: str | None, said: str) -> None:
    site.routes["/a"] = answer(b"", 302) if to is None else redirect(to)
    with pytest.raises(UnacceptableError, match=said) as caught:
        get(f"{site.url}/a")
    assert str(caught.value).isprintable()
    assert set(site.paths) == {"/a"}


@pytest.mark.requirement("WK-56", "WK-57", "WK-58")
def test_another_origin_needs_leave_and_gets_no_token(site: Publisher) -> None:
    with Publisher() as other:
        other.routes["/b"] = answer(b"b")
        site.routes["/a"] = redirect(f"{other.url}/b")
        secret = (("Authorization", "Bearer very-secret"),)
        with pytest.raises(UnacceptableError, match=f"--fetch-origin {other.url} allows it") as caught:
            get(f"{site.url}/a", OriginPolicy(private=True, headers=secret))
        assert not other.asked and "very-secret" not in str(caught.value)
        trust = OriginPolicy(frozenset({other.url}), private=True, headers=secret)
        assert get(f"{site.url}/a", trust).body == b"b"
        assert site.asked[-1].headers["authorization"] == "Bearer very-secret"
        assert "authorization" not in other.asked[0].headers
        assert "very-secret" not in repr(trust)


# Time


@each_row(
    "said",
    [
        b"HTTP/1.1 200 OK\r\n" + b"x-a: b\r\n" * 100,
        b"HTTP/1.1 100 Continue\r\n\r\n" * 100,
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 100,
    ],
)
def test_a_server_that_drips_does_not_hold_us(site: Publisher, said: bytes) -> None:
    site.routes["/a"] = site.drip(said)
    start = monotonic()
    with pytest.raises(UnreachableError, match=r"took longer than 0\.6 s"):
        get(f"{site.url}/a")
    assert monotonic() - start < 20  # the whole of it would take longer, were it waited for


def test_redirects_share_the_time_of_one_download(site: Publisher) -> None:
    site.routes["/a"] = site.drip(redirect("/a"), 0.004)
    with pytest.raises((UnreachableError, UnacceptableError)):
        get(f"{site.url}/a", bounds=Bounds(download_s=0.5, redirects=10_000))


# Bytes


@each_row(
    "route", [answer(b"x" * 1001), answer(b"", length=1001), then_close(b"HTTP/1.0 200 OK\r\n\r\n" + b"x" * 1001)]
)
def test_more_bytes_than_allowed_are_not_taken(site: Publisher, route: Route) -> None:
    site.routes["/a"] = route
    with pytest.raises(UnacceptableError, match=r"more than 1000 bytes|bytes, at most 1000 are taken"):
        get(f"{site.url}/a", most=1000, bounds=Bounds())
    site.routes["/a"] = answer(b"x" * 1000)
    assert get(f"{site.url}/a", most=1000).body == b"x" * 1000


def test_a_compressed_body_stays_compressed(site: Publisher) -> None:
    bomb = gzip.compress(bytes(50 << 20))
    site.routes["/a"] = answer(bomb, content_encoding="gzip")
    got = get(f"{site.url}/a")
    assert got.body == bomb and got.encoding == "gzip"


# Lies and garbage


@each_row(
    "said",
    [
        *(b"", b"Hello.\r\n\r\n", b"\0\xff" * 100, b"HTTP/1.1 2x0 OK\r\n\r\n", answer(b"short", length=50)),
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nabcdef",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\nabc\r\n0\r\n\r\n",
        b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
    ],
)
def test_what_is_not_http_is_the_networks_fault(site: Publisher, said: bytes) -> None:
    site.routes["/a"] = then_close(said)
    with pytest.raises((UnreachableError, UnacceptableError)) as caught:
        get(f"{site.url}/a")
    assert len(str(caught.value).splitlines()) == 1 and str(caught.value).isprintable()


def test_a_web_page_is_known(site: Publisher) -> None:
    for route, expected in (
        (answer(b"x", content_type="text/html; charset=utf-8"), True),
        (answer(b"\n<!DOCTYPE html><p>"), True),
        (answer(b"<HTML>"), True),
        (answer(b"<p>", content_type="text/markdown"), False),
    ):
        site.routes["/a"] = route
        assert get(f"{site.url}/a").is_html is expected
