"""HTTP client: SSRF protection, proxies, redirects, timeouts, size limits and malformed responses."""

from __future__ import annotations

import gzip
import ssl
from collections.abc import Awaitable, Callable
from ipaddress import IPv4Network
from pathlib import Path
from time import monotonic
from typing import Any
from unittest.mock import AsyncMock

import anyio
import pytest

from mcp_skills_server.errors import UsageError
from mcp_skills_server.sources.http import Downloader, Hop, HttpClient, Response
from mcp_skills_server.sources.source import (
    AbsentError,
    Bounds,
    FetchSettings,
    OriginPolicy,
    UnacceptableError,
    UnreachableError,
)
from sources.fetching import ALLOW_PRIVATE, SHORT_BOUNDS, download
from sources.oci.registries import self_signed
from sources.publishers import Publisher, Route, redirect, respond_and_close, respond_with
from tables import each_row


def download_route(site: Publisher, route: Route, **options: Any) -> Response:
    site.routes["/a"] = route
    return download(f"{site.url}/a", **options)


def test_private_address_and_plain_http_are_refused_by_default(site: Publisher) -> None:
    for url in (f"{site.url}/a", f"http://localhost:{site.port}/a", f"http://127.1:{site.port}/a"):
        for trust in (OriginPolicy(), OriginPolicy(http=True)):
            with pytest.raises(UnacceptableError, match="--allow-private"):
                download(url, trust)
    assert not site.requests
    for trust in (OriginPolicy(), OriginPolicy(private=True)):
        with pytest.raises(UnacceptableError, match="plain http"):
            download("http://skills.example/a", trust)


@each_row("addresses", [["10.0.0.1"], ["1.1.1.1", "127.0.0.1"], ["::ffff:127.0.0.1"], ["169.254.169.254"]])
def test_name_with_private_address_is_refused(addresses: list[str]) -> None:
    reason = r"skills\.example leads to [0-9a-f.:]+, which is not public"
    for url in ("https://skills.example/a", "http://skills.example/a"):
        with pytest.raises(UnacceptableError, match=reason):
            download(url, OriginPolicy(http=True), resolve=AsyncMock(return_value=addresses))


def test_each_redirect_is_resolved_and_checked(site: Publisher, monkeypatch: pytest.MonkeyPatch) -> None:
    site.routes["/a"] = redirect(f"http://inner.example:{site.port}/b")
    resolver = AsyncMock(side_effect=[["127.0.0.1"], ["10.0.0.1"]])
    # The loopback address of the test server must count as public.
    private = (IPv4Network("10.0.0.0/8"),)
    monkeypatch.setattr("mcp_skills_server.sources.addresses._NOT_PUBLIC_4", private)
    trust = OriginPolicy(frozenset({f"http://inner.example:{site.port}"}), http=True)
    with pytest.raises(UnacceptableError, match=r"inner\.example leads to 10\.0\.0\.1"):
        download(f"http://outer.example:{site.port}/a", trust, resolve=resolver)
    assert [call.args[0] for call in resolver.await_args_list] == ["outer.example", "inner.example"]
    assert site.paths == ["/a"]


def test_connection_uses_first_reachable_checked_address(site: Publisher) -> None:
    site.routes["/a"] = respond_with(b"a")
    resolver = AsyncMock(side_effect=[["127.77.77.77", "127.0.0.1"], ["10.255.255.1"]])
    trust = OriginPolicy(private=True, http=True)
    assert download(f"http://rebinding.example:{site.port}/a", trust, resolve=resolver).body == b"a"
    assert resolver.await_count == 1
    assert site.requests[0].headers["host"] == f"rebinding.example:{site.port}"


async def resolve_never(_host: str, _port: int) -> list[str]:
    await anyio.sleep_forever()
    return []


@each_row(("resolver", "reason"), [
    (AsyncMock(side_effect=OSError("no such name")), r"the name skills\.example cannot be resolved"),
    (AsyncMock(side_effect=UnicodeError("label too long")), r"the name skills\.example cannot be resolved"),
    (AsyncMock(return_value=[]), r"the name skills\.example has no address"),
    (resolve_never, r"did not answer|took longer"),
])  # fmt: skip
def test_unresolvable_name_is_reported(resolver: Callable[[str, int], Awaitable[list[str]]], reason: str) -> None:
    with pytest.raises(UnreachableError, match=reason):
        download("https://skills.example/a", bounds=SHORT_BOUNDS, resolve=resolver)


@pytest.mark.needs_program("openssl")
def test_certificate_is_verified_by_host_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate, key = self_signed(tmp_path)
    options: dict[str, Any] = {"resolve": AsyncMock(return_value=["127.0.0.1"]), "bounds": Bounds()}
    names: list[str | None] = []
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    tls.sni_callback = lambda _, name, __: names.append(name)
    with Publisher(tls) as site:
        site.routes["/a"] = respond_with(b"a")
        url = f"https://localhost:{site.port}/a"
        with pytest.raises(UnreachableError, match="CERTIFICATE_VERIFY_FAILED"):
            download(url, **options)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        names.clear()
        assert download(url, **options).body == b"a"
        assert names == ["localhost"]
        with pytest.raises(UnreachableError, match="CERTIFICATE_VERIFY_FAILED"):
            download(f"https://other.example:{site.port}/a", **options)
        assert site.paths == ["/a"]


def test_proxy_is_used_except_for_hosts_in_no_proxy(site: Publisher, monkeypatch: pytest.MonkeyPatch) -> None:
    site.routes |= {"http://skills.example/a": respond_with(b"by proxy"), "/a": respond_with(b"a")}
    monkeypatch.setenv("http_proxy", site.url.replace("//", "//me:p%40ss@"))
    monkeypatch.setenv("https_proxy", site.url.removeprefix("http://"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert download("http://skills.example/a", OriginPolicy(http=True)).body == b"by proxy"
    assert site.requests[0].headers["host"] == "skills.example"
    assert site.requests[0].headers["proxy-authorization"] == "Basic bWU6cEBzcw=="
    assert download(f"{site.url}/a").body == b"a"
    with pytest.raises(UnreachableError, match="cannot be reached: 404"):
        download("https://skills.example/a", OriginPolicy())
    assert site.paths[1:] == ["/a", "skills.example:443"]


def test_private_address_is_refused_behind_proxy(site: Publisher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("all_proxy", site.url)
    for host in ("169.254.169.254", "10.0.0.1", "0x7f.1", "[::1]", "localhost", "a.localhost", "2852039166"):
        with pytest.raises(UnacceptableError, match="--allow-private"):
            download(f"https://{host}/a", OriginPolicy(http=True))
    assert not site.requests


@each_row("proxy", ["gopher://127.0.0.1:1", "http://", "http://127.0.0.1:99999", "socks5://127.0.0.1:1"])
def test_unusable_proxy_is_reported(monkeypatch: pytest.MonkeyPatch, proxy: str) -> None:
    monkeypatch.setenv("https_proxy", proxy)
    monkeypatch.setattr("mcp_skills_server.sources.http.find_spec", lambda _: None)
    with pytest.raises(UsageError, match="the proxy of the environment"):
        download("https://skills.example/a", OriginPolicy())


def test_response_is_returned_unmodified_and_compressed(site: Publisher) -> None:
    body = gzip.compress(bytes(50 << 20))
    site.routes["/a"] = respond_with(body, etag='"1"', Content_Type="text/plain", content_encoding="gzip")
    response = download(f"{site.url}/a?b=c;d")
    assert response.body == body
    assert response.url == f"{site.url}/a?b=c;d"
    assert response.status == 200
    assert response.encoding == "gzip"
    assert response.headers["etag"] == '"1"'
    assert response.headers["content-type"] == "text/plain"
    (request,) = site.requests
    assert request.path == "/a?b=c;d"
    assert request.headers["host"] == f"127.0.0.1:{site.port}"
    assert request.headers["accept-encoding"] == "identity"
    assert "mcp-skills-server/" in request.headers["user-agent"]


@pytest.mark.parametrize(
    ("route", "connections"), [(respond_with(b"a"), 1), (respond_and_close(respond_with(b"a")), 5)]
)
def test_connection_is_reused_until_server_closes_it(site: Publisher, route: Route, connections: int) -> None:
    site.routes["/a"] = route

    async def run() -> None:
        settings = FetchSettings(trust=ALLOW_PRIVATE, bounds=Bounds(total_bytes=5))
        async with Downloader(settings, site.url) as downloader:
            for _ in range(5):
                assert (await downloader.get(f"{site.url}/a", 1)).body == b"a"
            assert downloader.bytes == 5
            assert len(site.connections) == connections
            await downloader.get(f"{site.url}/a", 1)

    with pytest.raises(UnacceptableError, match="all downloads together have more than 5 bytes"):
        anyio.run(run)


@pytest.mark.parametrize("content", [None, b"once"])
def test_disconnected_request_is_retried_unless_it_has_content(site: Publisher, content: bytes | None) -> None:
    responses = iter([b"", respond_with(b"a")])
    site.routes["/a"] = lambda _: iter([next(responses)])

    async def run() -> bytes:
        async with HttpClient(Bounds()) as http:
            hop = Hop(private=True)
            url = f"{site.url}/a"
            response = await http.request("POST", url, {}, lambda _: hop, max_bytes=1, content=content)
            return response.body

    if content is None:
        assert anyio.run(run) == b"a"
        assert len(site.requests) == 2
    else:
        with pytest.raises(UnreachableError, match="broke off"):
            anyio.run(run)
        assert len(site.requests) == 1


@each_row(("statuses", "kind", "reason"), [
    ((404, 410), AbsentError, "is not there"), ((401, 403), UnacceptableError, "asks for permission"),
    ((204, 206, 300, 304, 418), UnacceptableError, "answers with status"),
    ((429, 500, 503), UnreachableError, "does not answer now"),
])  # fmt: skip
def test_status_other_than_200_is_an_error(
    site: Publisher, statuses: tuple[int, ...], kind: type[Exception], reason: str
) -> None:
    for status in statuses:
        site.routes["/a"] = respond_with(b"" if status in {204, 304} else b"x", status)
        with pytest.raises(kind, match=reason):
            download(f"{site.url}/a?token=secret")


@pytest.mark.requirement("WK-39")
@each_row("status", [301, 302, 303, 307, 308])
def test_redirects_are_followed(site: Publisher, status: int) -> None:
    site.routes |= {"/a": redirect("b/c", status), "/b/c": redirect("/d?e", status), "/d": respond_with(b"d")}
    response = download(f"{site.url}/a")
    assert (response.body, response.url) == (b"d", f"{site.url}/d?e")


@each_row(("route", "reason"), [
    (redirect("ftp://127.0.0.1/a"), "not an http or https URL"),
    (redirect("https://user:secret@127.0.0.1/a"), "a user name or a password"),
    (redirect("http://127.0.0.1:1/a"), "another origin"), (redirect("//example.com/a"), "another origin"),
    (redirect("http://[::1"), "cannot be read as a URL"),
    (redirect(""), "contains a character that no URL may contain"),
    (redirect("/a b"), "contains a character that no URL may contain"),
    (respond_with(b"", 302), "redirects to nowhere"),
])  # fmt: skip
def test_redirect_to_other_origin_or_bad_url_is_refused(site: Publisher, route: Route, reason: str) -> None:
    with pytest.raises(UnacceptableError, match=reason) as caught:
        download_route(site, route)
    assert str(caught.value).isprintable()
    assert set(site.paths) == {"/a"}


@pytest.mark.requirement("WK-56", "WK-57", "WK-58")
def test_allowed_origin_gets_no_token(site: Publisher) -> None:
    with Publisher() as other:
        other.routes["/b"] = respond_with(b"b")
        site.routes["/a"] = redirect(f"{other.url}/b")
        secret = (("Authorization", "Bearer very-secret"),)
        with pytest.raises(UnacceptableError, match=f"--fetch-origin {other.url} allows it") as caught:
            download(f"{site.url}/a", OriginPolicy(private=True, headers=secret))
        assert not other.requests
        assert "very-secret" not in str(caught.value)
        trust = OriginPolicy(frozenset({other.url}), private=True, headers=secret)
        assert download(f"{site.url}/a", trust).body == b"b"
        assert site.requests[-1].headers["authorization"] == "Bearer very-secret"
        assert "authorization" not in other.requests[0].headers
        assert "very-secret" not in repr(trust)


@each_row("response", [
    b"HTTP/1.1 200 OK\r\n" + b"x-a: b\r\n" * 100, b"HTTP/1.1 100 Continue\r\n\r\n" * 100,
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 100,
])  # fmt: skip
def test_slow_drip_response_times_out(site: Publisher, response: bytes) -> None:
    start = monotonic()
    with pytest.raises(UnreachableError, match=r"took longer than 0\.6 s"):
        download_route(site, site.drip(response), bounds=SHORT_BOUNDS)
    assert monotonic() - start < 20  # the whole response would take longer


def test_redirects_are_limited_in_number_and_total_time(site: Publisher) -> None:
    with pytest.raises(UnacceptableError, match="more than 5 redirects"):
        download_route(site, redirect("/a"), bounds=Bounds())
    assert len(site.requests) == 6
    with pytest.raises((UnreachableError, UnacceptableError)):
        download_route(site, site.drip(redirect("/a"), 0.004), bounds=Bounds(download_s=0.5, redirects=10_000))


@each_row("route", [
    respond_with(b"x" * 1001),
    respond_with(b"", length=1001),
    respond_and_close(b"HTTP/1.0 200 OK\r\n\r\n" + b"x" * 1001),
])  # fmt: skip
def test_response_over_size_limit_is_refused(site: Publisher, route: Route) -> None:
    with pytest.raises(UnacceptableError, match=r"more than 1000 bytes|bytes, at most 1000 are taken"):
        download_route(site, route, max_bytes=1000, bounds=Bounds())
    assert download_route(site, respond_with(b"x" * 1000), max_bytes=1000).body == b"x" * 1000


@each_row("response", [
    *(b"", b"Hello.\r\n\r\n", b"\0\xff" * 100, b"HTTP/1.1 2x0 OK\r\n\r\n", respond_with(b"short", length=50)),
    b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nabcdef",
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\nabc\r\n0\r\n\r\n",
    b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
    b"HTTP/1.1 200 OK\r\n" + b"x: " + b"y" * 200_000 + b"\r\n\r\n", b"SSH-2.0-OpenSSH_9.2\r\n",
])  # fmt: skip
def test_malformed_http_is_reported_in_one_line(site: Publisher, response: bytes) -> None:
    with pytest.raises((UnreachableError, UnacceptableError)) as caught:
        download_route(site, respond_and_close(response))
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    assert message.isprintable()


def test_web_page_is_recognized(site: Publisher) -> None:
    pages = [
        respond_with(b"x", content_type="text/html; charset=utf-8"),
        respond_with(b"\n<!DOCTYPE html><p>"),
        respond_with(b"<HTML>"),
    ]
    for page in pages:
        assert download_route(site, page).is_html
    assert not download_route(site, respond_with(b"<p>", content_type="text/markdown")).is_html
