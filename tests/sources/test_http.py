"""The HTTP client: where a connection goes, and servers that are broken or mean harm."""

from __future__ import annotations

import gzip
import ssl
from collections.abc import Awaitable, Callable
from ipaddress import IPv4Network
from pathlib import Path
from time import monotonic
from typing import Any

import anyio
import pytest

from mcp_skills_server.errors import UsageError
from mcp_skills_server.sources.http import Downloader, Hop, HttpClient
from mcp_skills_server.sources.source import AbsentError, Bounds, OriginPolicy, UnacceptableError, UnreachableError
from sources.fetching import ALLOWED, download
from sources.oci.registries import self_signed
from sources.publishers import Publisher, Route, answer, redirect, respond_and_close
from tables import each_row

# Addresses


def resolving(*found: str) -> Callable[[str, int], Awaitable[list[str]]]:
    async def resolver(host: str, port: int) -> list[str]:
        return list(found)

    return resolver


def test_this_machine_and_plain_http_need_leave(site: Publisher) -> None:
    for home in (f"{site.url}/a", f"http://localhost:{site.port}/a", f"http://127.1:{site.port}/a"):
        for trust in (OriginPolicy(), OriginPolicy(http=True)):
            with pytest.raises(UnacceptableError, match="--allow-private"):
                download(home, trust)
    assert not site.asked
    for trust in (OriginPolicy(), OriginPolicy(private=True)):
        with pytest.raises(UnacceptableError, match="plain http"):
            download("http://skills.example/a", trust)


@each_row("found", [["10.0.0.1"], ["1.1.1.1", "127.0.0.1"], ["::ffff:127.0.0.1"], ["169.254.169.254"]])
def test_a_name_that_leads_to_a_private_address_is_refused(found: list[str]) -> None:
    for url in ("https://skills.example/a", "http://skills.example/a"):
        with pytest.raises(UnacceptableError, match=r"skills\.example leads to [0-9a-f.:]+, which is not public"):
            download(url, OriginPolicy(http=True), resolve=resolving(*found))


def test_each_hop_is_resolved_and_checked(site: Publisher, monkeypatch: pytest.MonkeyPatch) -> None:
    site.routes["/a"] = redirect(f"http://inner.example:{site.port}/b")
    asked: list[str] = []

    async def resolver(host: str, port: int) -> list[str]:
        asked.append(host)
        return ["127.0.0.1"] if host == "outer.example" else ["10.0.0.1"]

    # For this test alone the test server's address counts as one of the internet.
    monkeypatch.setattr("mcp_skills_server.sources.addresses._NOT_PUBLIC_4", (IPv4Network("10.0.0.0/8"),))
    trust = OriginPolicy(frozenset({f"http://inner.example:{site.port}"}), http=True)
    with pytest.raises(UnacceptableError, match=r"inner\.example leads to 10\.0\.0\.1"):
        download(f"http://outer.example:{site.port}/a", trust, resolve=resolver)
    assert asked == ["outer.example", "inner.example"] and site.paths == ["/a"]


def test_the_connection_goes_to_the_first_checked_address_that_answers(site: Publisher) -> None:
    site.routes["/a"] = answer(b"a")
    answers = iter([["127.77.77.77", "127.0.0.1"], ["10.255.255.1"]])

    async def resolver(host: str, port: int) -> list[str]:
        return next(answers)

    trust = OriginPolicy(private=True, http=True)
    assert download(f"http://rebinding.example:{site.port}/a", trust, resolve=resolver).body == b"a"
    assert next(answers) == ["10.255.255.1"]  # it was asked once
    assert site.asked[0].headers["host"] == f"rebinding.example:{site.port}"


@each_row("error", [OSError("no such name"), UnicodeError("label too long")])
def test_a_name_that_nobody_knows(error: Exception) -> None:
    async def resolver(host: str, port: int) -> list[str]:
        raise error

    with pytest.raises(UnreachableError, match=r"the name skills\.example cannot be resolved"):
        download("https://skills.example/a", resolve=resolver)


def test_a_name_server_that_stalls() -> None:
    async def resolver(host: str, port: int) -> list[str]:
        await anyio.sleep_forever()
        return []

    with pytest.raises(UnreachableError, match=r"did not answer|took longer"):
        download("https://skills.example/a", resolve=resolver)


@pytest.mark.needs_program("openssl")
def test_certificates_are_proved_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate, key = self_signed(tmp_path)
    more: dict[str, Any] = {"resolve": resolving("127.0.0.1"), "bounds": Bounds()}
    tls, names = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), list[str | None]()
    tls.load_cert_chain(certificate, key)
    tls.sni_callback = lambda _, name, __: names.append(name)
    with Publisher(tls) as site:
        site.routes["/a"] = answer(b"a")
        url = f"https://localhost:{site.port}/a"
        with pytest.raises(UnreachableError, match="CERTIFICATE_VERIFY_FAILED"):
            download(url, **more)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        names.clear()
        assert download(url, **more).body == b"a" and names == ["localhost"]
        with pytest.raises(UnreachableError, match="CERTIFICATE_VERIFY_FAILED"):
            download(f"https://other.example:{site.port}/a", **more)
        assert site.paths == ["/a"]


# Proxies


def test_the_proxy_of_the_environment_is_used_except_for_no_proxy(
    site: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.routes |= {"http://skills.example/a": answer(b"by proxy"), "/a": answer(b"a")}
    monkeypatch.setenv("http_proxy", site.url.replace("//", "//me:p%40ss@"))
    monkeypatch.setenv("https_proxy", site.url.removeprefix("http://"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert download("http://skills.example/a", OriginPolicy(http=True)).body == b"by proxy"
    assert site.asked[0].headers["host"] == "skills.example"
    assert site.asked[0].headers["proxy-authorization"] == "Basic bWU6cEBzcw=="
    assert download(f"{site.url}/a").body == b"a"
    with pytest.raises(UnreachableError, match="cannot be reached: 404"):
        download("https://skills.example/a", OriginPolicy())
    assert site.paths[1:] == ["/a", "skills.example:443"]


def test_behind_a_proxy_what_an_address_gives_away_is_refused(site: Publisher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("all_proxy", site.url)
    for host in ("169.254.169.254", "10.0.0.1", "0x7f.1", "[::1]", "localhost", "a.localhost", "2852039166"):
        with pytest.raises(UnacceptableError, match="--allow-private"):
            download(f"https://{host}/a", OriginPolicy(http=True))
    assert not site.asked


@each_row("proxy", ["gopher://127.0.0.1:1", "http://", "http://127.0.0.1:99999", "socks5://127.0.0.1:1"])
def test_a_proxy_that_cannot_be_used(monkeypatch: pytest.MonkeyPatch, proxy: str) -> None:
    monkeypatch.setenv("https_proxy", proxy)
    monkeypatch.setattr("mcp_skills_server.sources.http.find_spec", lambda _: None)
    with pytest.raises(UsageError, match="the proxy of the environment"):
        download("https://skills.example/a", OriginPolicy())


# What a server answers


def test_what_comes_is_given_as_it_is(site: Publisher) -> None:
    site.routes["/a"] = answer(b"\0Read on.", etag='"1"', Content_Type="text/plain")
    got = download(f"{site.url}/a?b=c;d")
    assert (got.body, got.url, got.status) == (b"\0Read on.", f"{site.url}/a?b=c;d", 200)
    assert got.headers["etag"] == '"1"' and got.headers["content-type"] == "text/plain"
    (asked,) = site.asked
    assert asked.path == "/a?b=c;d" and asked.headers["host"] == f"127.0.0.1:{site.port}"
    assert asked.headers["accept-encoding"] == "identity" and "mcp-skills-server/" in asked.headers["user-agent"]


@pytest.mark.parametrize(("route", "connections"), [(answer(b"a"), 1), (respond_and_close(answer(b"a")), 5)])
def test_a_connection_serves_downloads_until_the_server_closes_it(
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
def test_what_broke_off_unanswered_is_asked_again_unless_it_has_effects(site: Publisher, content: bytes | None) -> None:
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


@each_row(("statuses", "kind", "said"), [
    ((404, 410), AbsentError, "is not there"), ((401, 403), UnacceptableError, "asks for permission"),
    ((204, 206, 300, 304, 418), UnacceptableError, "answers with status"),
    ((429, 500, 503), UnreachableError, "does not answer now"),
])  # fmt: skip
def test_each_other_status_is_an_error(
    site: Publisher, statuses: tuple[int, ...], kind: type[Exception], said: str
) -> None:
    for status in statuses:
        site.routes["/a"] = answer(b"" if status in {204, 304} else b"x", status)
        with pytest.raises(kind, match=said):
            download(f"{site.url}/a?token=secret")


@pytest.mark.requirement("WK-39")
@each_row("status", [301, 302, 303, 307, 308])
def test_redirects_are_followed(site: Publisher, status: int) -> None:
    site.routes |= {"/a": redirect("b/c", status), "/b/c": redirect("/d?e", status), "/d": answer(b"d")}
    got = download(f"{site.url}/a")
    assert (got.body, got.url) == (b"d", f"{site.url}/d?e")


@each_row(("to", "said"), [
    ("ftp://127.0.0.1/a", "not an http or https URL"),
    ("https://user:secret@127.0.0.1/a", "a user name or a password"), ("http://127.0.0.1:1/a", "another origin"),
    ("//example.com/a", "another origin"), ("http://[::1", "cannot be read as a URL"),
    ("", "contains a character that no URL may contain"), ("/a b", "contains a character that no URL may contain"),
    (None, "redirects to nowhere"),
])  # fmt: skip
def test_redirects_lead_nowhere_else(site: Publisher, to: str | None, said: str) -> None:
    site.routes["/a"] = answer(b"", 302) if to is None else redirect(to)
    with pytest.raises(UnacceptableError, match=said) as caught:
        download(f"{site.url}/a")
    assert str(caught.value).isprintable()
    assert set(site.paths) == {"/a"}


@pytest.mark.requirement("WK-56", "WK-57", "WK-58")
def test_another_origin_needs_leave_and_gets_no_token(site: Publisher) -> None:
    with Publisher() as other:
        other.routes["/b"] = answer(b"b")
        site.routes["/a"] = redirect(f"{other.url}/b")
        secret = (("Authorization", "Bearer very-secret"),)
        with pytest.raises(UnacceptableError, match=f"--fetch-origin {other.url} allows it") as caught:
            download(f"{site.url}/a", OriginPolicy(private=True, headers=secret))
        assert not other.asked and "very-secret" not in str(caught.value)
        trust = OriginPolicy(frozenset({other.url}), private=True, headers=secret)
        assert download(f"{site.url}/a", trust).body == b"b"
        assert site.asked[-1].headers["authorization"] == "Bearer very-secret"
        assert "authorization" not in other.asked[0].headers
        assert "very-secret" not in repr(trust)


# Time


@each_row("said", [
    b"HTTP/1.1 200 OK\r\n" + b"x-a: b\r\n" * 100, b"HTTP/1.1 100 Continue\r\n\r\n" * 100,
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 100,
])  # fmt: skip
def test_a_server_that_drips_does_not_hold_us(site: Publisher, said: bytes) -> None:
    site.routes["/a"] = site.drip(said)
    start = monotonic()
    with pytest.raises(UnreachableError, match=r"took longer than 0\.6 s"):
        download(f"{site.url}/a")
    assert monotonic() - start < 20  # the whole of it would take longer, were it waited for


def test_redirects_are_counted_and_share_the_time_of_one_download(site: Publisher) -> None:
    site.routes["/a"] = redirect("/a")
    with pytest.raises(UnacceptableError, match="more than 5 redirects"):
        download(f"{site.url}/a", bounds=Bounds())
    assert len(site.asked) == 6
    site.routes["/a"] = site.drip(redirect("/a"), 0.004)
    with pytest.raises((UnreachableError, UnacceptableError)):
        download(f"{site.url}/a", bounds=Bounds(download_s=0.5, redirects=10_000))


@pytest.mark.parametrize("said", [b"", answer(b"{", length=50)])
def test_a_server_that_is_silent_is_left(site: Publisher, said: bytes) -> None:
    site.routes["/a"] = site.stall(said)
    with pytest.raises(UnreachableError, match=r"did not answer within 0\.3 s"):
        download(f"{site.url}/a", bounds=Bounds(read_s=0.3))


# Bytes


@each_row(
    "route",
    [answer(b"x" * 1001), answer(b"", length=1001), respond_and_close(b"HTTP/1.0 200 OK\r\n\r\n" + b"x" * 1001)],
)
def test_more_bytes_than_allowed_are_not_taken(site: Publisher, route: Route) -> None:
    site.routes["/a"] = route
    with pytest.raises(UnacceptableError, match=r"more than 1000 bytes|bytes, at most 1000 are taken"):
        download(f"{site.url}/a", most=1000, bounds=Bounds())
    site.routes["/a"] = answer(b"x" * 1000)
    assert download(f"{site.url}/a", most=1000).body == b"x" * 1000


def test_a_compressed_body_stays_compressed(site: Publisher) -> None:
    bomb = gzip.compress(bytes(50 << 20))
    site.routes["/a"] = answer(bomb, content_encoding="gzip")
    got = download(f"{site.url}/a")
    assert got.body == bomb and got.encoding == "gzip"


# Lies and garbage


@each_row("said", [
    *(b"", b"Hello.\r\n\r\n", b"\0\xff" * 100, b"HTTP/1.1 2x0 OK\r\n\r\n", answer(b"short", length=50)),
    b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nabcdef",
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\nabc\r\n0\r\n\r\n",
    b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
    b"HTTP/1.1 200 OK\r\n" + b"x: " + b"y" * 200_000 + b"\r\n\r\n", b"SSH-2.0-OpenSSH_9.2\r\n",
])  # fmt: skip
def test_what_is_not_http_is_the_networks_fault(site: Publisher, said: bytes) -> None:
    site.routes["/a"] = respond_and_close(said)
    with pytest.raises((UnreachableError, UnacceptableError)) as caught:
        download(f"{site.url}/a")
    assert len(str(caught.value).splitlines()) == 1 and str(caught.value).isprintable()


def test_a_web_page_is_known(site: Publisher) -> None:
    for route, expected in (
        (answer(b"x", content_type="text/html; charset=utf-8"), True),
        (answer(b"\n<!DOCTYPE html><p>"), True),
        (answer(b"<HTML>"), True),
        (answer(b"<p>", content_type="text/markdown"), False),
    ):
        site.routes["/a"] = route
        assert download(f"{site.url}/a").is_html is expected
