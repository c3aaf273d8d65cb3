"""The downloader against servers that are broken or mean harm."""

from __future__ import annotations

import gzip
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from ipaddress import IPv4Network
from pathlib import Path
from time import monotonic
from typing import Any

import anyio
import anyio.to_thread
import pytest

from mcp_skills_server.errors import UsageError
from mcp_skills_server.sources.download import Answer, Downloader
from mcp_skills_server.sources.faults import AbsentError, UnacceptableError, UnreachableError
from mcp_skills_server.sources.settings import Bounds, OriginPolicy
from sources.publishers import Publisher, Route, answer, endless, redirect, then_close

LOCAL = OriginPolicy(private=True)
QUICK = Bounds(read_s=0.3, download_s=0.6)


@pytest.fixture
def site() -> Iterator[Publisher]:
    with Publisher() as publisher:
        yield publisher


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def get(
    url: str, trust: OriginPolicy = LOCAL, bounds: Bounds = QUICK, most: int = 100_000, home: str = "", **more: Any
) -> Answer:
    validators = more.pop("validators", None)

    async def run() -> Answer:
        async with Downloader(home or url, trust, bounds, **more) as downloader:
            return await downloader.get(url, most, validators=validators)

    return anyio.run(run)


def test_what_comes_is_given_as_it_is(site: Publisher) -> None:
    site.routes["/a"] = answer(b"\0Read on.", etag='"1"', Content_Type="text/plain")
    got = get(f"{site.url}/a?b=c;d")
    assert (got.raw, got.url, got.modified) == (b"\0Read on.", f"{site.url}/a?b=c;d", True)
    assert got.headers["etag"] == '"1"' and got.headers["content-type"] == "text/plain"
    (asked,) = site.asked
    assert asked.path == "/a?b=c;d" and asked.headers["host"] == f"127.0.0.1:{site.port}"
    assert asked.headers["accept-encoding"] == "identity" and "mcp-skills-server/" in asked.headers["user-agent"]


def test_one_connection_serves_several_downloads(site: Publisher) -> None:
    site.routes["/a"] = answer(b"a")

    async def run() -> int:
        async with Downloader(site.url, LOCAL) as downloader:
            for _ in range(5):
                assert (await downloader.get(f"{site.url}/a", 1)).raw == b"a"
            return downloader.bytes

    assert anyio.run(run) == 5
    assert len(site._serving) == 1


def test_not_modified_only_when_that_was_asked(site: Publisher) -> None:
    site.routes["/a"] = answer(b"", 304)
    got = get(f"{site.url}/a", validators={"If-None-Match": '"1"'})
    assert not got.modified and got.raw == b""
    assert site.asked[0].headers["if-none-match"] == '"1"'
    with pytest.raises(UnacceptableError, match="status 304"):
        get(f"{site.url}/a")


@pytest.mark.parametrize(
    ("status", "kind", "said"),
    [
        (404, AbsentError, "is not there"),
        (410, AbsentError, "is not there"),
        (401, UnacceptableError, "asks for permission"),
        (403, UnacceptableError, "asks for permission"),
        (204, UnacceptableError, "status 204"),
        (206, UnacceptableError, "status 206"),
        (300, UnacceptableError, "status 300"),
        (418, UnacceptableError, "status 418"),
        (429, UnreachableError, "does not answer now"),
        (500, UnreachableError, "does not answer now"),
        (503, UnreachableError, "does not answer now"),
    ],
)
def test_every_status_but_200_is_an_error(site: Publisher, status: int, kind: type[Exception], said: str) -> None:
    site.routes["/a"] = answer(b"" if status == 204 else b"x", status)
    with pytest.raises(kind, match=said):
        get(f"{site.url}/a?token=secret")


def test_when_to_come_again_is_kept(site: Publisher) -> None:
    site.routes["/a"] = answer(b"", 503, retry_after="120")
    with pytest.raises(UnreachableError, match="come again in 120 s") as caught:
        get(f"{site.url}/a")
    assert caught.value.retry_after_s == 120


@pytest.mark.requirement("WK-39")
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_followed(site: Publisher, status: int) -> None:
    site.routes |= {"/a": redirect("b/c", status), "/b/c": redirect("/d?e", status), "/d": answer(b"d")}
    got = get(f"{site.url}/a")
    assert (got.raw, got.url) == (b"d", f"{site.url}/d?e")


@pytest.mark.parametrize(
    ("to", "said"),
    [
        ("/a", "more than 5 redirects"),
        ("file:///etc/passwd", "no http or https URL"),
        ("ftp://127.0.0.1/a", "no http or https URL"),
        ("https://user:secret@127.0.0.1/a", "a user name or a password"),
        ("http://127.0.0.1:1/a", "another origin"),
        ("//example.com/a", "another origin"),
        ("http://[::1", "cannot be read as a URL"),
        ("", "holds what no URL may hold"),
        ("/a b", "holds what no URL may hold"),
    ],
)
def test_redirects_lead_nowhere_else(site: Publisher, to: str, said: str) -> None:
    site.routes["/a"] = redirect(to)
    with pytest.raises(UnacceptableError, match=said) as caught:
        get(f"{site.url}/a")
    assert str(caught.value).isprintable()
    assert set(site.paths) == {"/a"}


def test_a_redirect_without_a_place(site: Publisher) -> None:
    site.routes["/a"] = answer(b"", 302)
    with pytest.raises(UnacceptableError, match="redirects to nowhere"):
        get(f"{site.url}/a")


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
        assert get(f"{site.url}/a", trust).raw == b"b"
        assert site.asked[-1].headers["authorization"] == "Bearer very-secret"
        assert "authorization" not in other.asked[0].headers
        assert "very-secret" not in repr(trust)


# Time


def test_a_server_that_stalls(site: Publisher) -> None:
    site.routes |= {"/a": site.stall(), "/b": site.stall(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nab")}
    for path in ("/a", "/b"):
        with pytest.raises(UnreachableError, match=r"did not answer within 0\.3 s"):
            get(site.url + path)


@pytest.mark.parametrize(
    "said",
    [
        answer(b"x" * 1000),
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


@pytest.mark.parametrize(
    "route",
    [
        answer(b"x" * 1001),
        answer(b"", length=1001),
        answer(b"", length=10**30),
        endless(b"HTTP/1.0 200 OK\r\n\r\n", b"x" * 100),
        endless(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
    ],
)
def test_more_bytes_than_allowed_are_not_taken(site: Publisher, route: Route) -> None:
    site.routes["/a"] = route
    with pytest.raises(
        (UnacceptableError, UnreachableError), match=r"1000 (bytes|are taken)|does not speak HTTP|bytes, at most"
    ):
        get(f"{site.url}/a", most=1000, bounds=Bounds())


def test_endless_headers_are_not_read(site: Publisher) -> None:
    site.routes["/a"] = endless(b"HTTP/1.1 200 OK\r\n", b"x-a: " + b"b" * 1000 + b"\r\n")
    with pytest.raises(UnreachableError, match="does not speak HTTP"):
        get(f"{site.url}/a", bounds=Bounds())


def test_all_downloads_together_are_bounded(site: Publisher) -> None:
    site.routes["/a"] = answer(b"x" * 400)

    async def run() -> None:
        async with Downloader(site.url, LOCAL, Bounds(total_bytes=1000)) as downloader:
            for _ in range(2):
                await downloader.get(f"{site.url}/a", 500)
            await downloader.get(f"{site.url}/a", 500)

    with pytest.raises(UnacceptableError, match="all downloads together have more than 1000 bytes"):
        anyio.run(run)


def test_a_compressed_body_stays_compressed(site: Publisher) -> None:
    bomb = gzip.compress(bytes(50 << 20))
    site.routes["/a"] = answer(bomb, content_encoding="gzip")
    got = get(f"{site.url}/a")
    assert got.raw == bomb and got.encoding == "gzip"


# Lies and garbage


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"Hello.\r\n\r\n",
        b"\0\xff" * 100,
        b"HTTP/1.1 2x0 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: five\r\n\r\nabcde",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nabcdef",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\nabc\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nab",
        b"HTTP/1.1 200 OK\r\nbad header\r\n\r\n",
        b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
        answer(b"short", length=50),
    ],
)
def test_what_is_not_http_is_the_networks_fault(site: Publisher, said: bytes) -> None:
    site.routes["/a"] = then_close(said)
    with pytest.raises((UnreachableError, UnacceptableError)) as caught:
        get(f"{site.url}/a")
    assert len(str(caught.value).splitlines()) == 1 and str(caught.value).isprintable()


def test_bytes_beyond_the_length_are_not_the_next_answer(site: Publisher) -> None:
    site.routes |= {"/a": answer(b"aa" + answer(b"evil"), length=2), "/b": answer(b"b")}

    async def run() -> None:
        async with Downloader(site.url, LOCAL, QUICK) as downloader:
            assert (await downloader.get(f"{site.url}/a", 100)).raw == b"aa"
            with suppress(UnreachableError):
                assert (await downloader.get(f"{site.url}/b", 100)).raw in {b"b", b"evil"}  # a digest tells which
            assert (await downloader.get(f"{site.url}/b", 100)).raw == b"b"

    anyio.run(run)


def test_nobody_listens() -> None:
    with Publisher() as publisher:
        url = publisher.url
    with pytest.raises(UnreachableError, match="cannot be reached"):
        get(f"{url}/a")


@pytest.mark.parametrize(
    ("route", "expected"),
    [
        (answer(b"x", content_type="text/html; charset=utf-8"), True),
        (answer(b"\n<!DOCTYPE html><p>"), True),
        (answer(b"<HTML>"), True),
        (answer(b"<p>", content_type="text/markdown"), False),
    ],
)
def test_a_web_page_is_known(site: Publisher, route: Route, expected: bool) -> None:
    site.routes["/a"] = route
    assert get(f"{site.url}/a").is_html is expected


# Addresses


def test_this_machine_needs_leave(site: Publisher) -> None:
    for home in (f"{site.url}/a", f"http://localhost:{site.port}/a", f"http://127.1:{site.port}/a"):
        with pytest.raises(UnacceptableError, match="--allow-private"):
            get(home, OriginPolicy())
        with pytest.raises(UnacceptableError, match="--allow-private"):
            get(home, OriginPolicy(http=True))
    assert not site.asked


def test_plain_http_needs_leave() -> None:
    for trust in (OriginPolicy(), OriginPolicy(private=True)):
        with pytest.raises(UnacceptableError, match="plain http"):
            get("http://skills.example/a", trust)


@pytest.mark.parametrize("found", [["10.0.0.1"], ["1.1.1.1", "127.0.0.1"], ["::ffff:127.0.0.1"], ["169.254.169.254"]])
def test_a_name_that_leads_to_a_private_address_is_refused(found: list[str]) -> None:
    async def resolver(host: str, port: int) -> list[str]:
        return found

    for url in ("https://skills.example/a", "http://skills.example/a"):
        with pytest.raises(UnacceptableError, match=r"skills\.example leads to [0-9a-f.:]+, which is not public"):
            get(url, OriginPolicy(http=True), resolver=resolver)


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
        get(f"http://outer.example:{site.port}/a", trust, resolver=resolver)
    assert asked == ["outer.example", "inner.example"] and site.paths == ["/a"]


def test_the_connection_goes_to_the_address_that_was_checked(site: Publisher) -> None:
    site.routes["/a"] = answer(b"a")
    answers = iter([["127.0.0.1"], ["10.255.255.1"]])

    async def resolver(host: str, port: int) -> list[str]:
        return next(answers)

    trust = OriginPolicy(private=True, http=True)
    assert get(f"http://rebinding.example:{site.port}/a", trust, resolver=resolver).raw == b"a"
    assert next(answers) == ["10.255.255.1"]  # it was asked once
    assert site.asked[0].headers["host"] == f"rebinding.example:{site.port}"


def test_the_next_address_is_tried_when_one_does_not_answer(site: Publisher) -> None:
    site.routes["/a"] = answer(b"a")

    async def resolver(host: str, port: int) -> list[str]:
        return ["127.77.77.77", "127.0.0.1"]

    assert (
        get(f"http://two.example:{site.port}/a", OriginPolicy(private=True, http=True), resolver=resolver).raw == b"a"
    )


@pytest.mark.parametrize("error", [OSError("no such name"), UnicodeError("label too long")])
def test_a_name_that_nobody_knows(error: Exception) -> None:
    async def resolver(host: str, port: int) -> list[str]:
        raise error

    with pytest.raises(UnreachableError, match=r"the name skills\.example cannot be resolved"):
        get("https://skills.example/a", resolver=resolver)


def test_a_name_server_that_stalls() -> None:
    async def resolver(host: str, port: int) -> list[str]:
        await anyio.sleep_forever()
        return []

    with pytest.raises(UnreachableError, match="did not answer"):
        get("https://skills.example/a", resolver=resolver)


# TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for skills.example that vouches for itself, with its key."""
    place = tmp_path_factory.mktemp("tls")
    options = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=skills.example"
    names = ["-addext", "subjectAltName=DNS:skills.example"]
    places = ["-keyout", place / "key.pem", "-out", place / "cert.pem"]
    subprocess.run(["openssl", *options.split(), *names, *places], capture_output=True, check=True)
    return place


class TlsPublisher(Publisher):
    """The same over TLS; `names` has the SNI of each connection."""

    def __init__(self, certificate: Path) -> None:
        self.names: list[str | None] = []
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._tls.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
        self._tls.sni_callback = lambda _, name, __: self.names.append(name)
        super().__init__()

    def _serve(self, connection: Any) -> None:
        connection.settimeout(5)
        try:
            connection = self._tls.wrap_socket(connection, server_side=True)
        except OSError:
            connection.close()
            return
        super()._serve(connection)


@pytest.mark.needs_program("openssl")
def test_certificates_are_proved_by_name(certificate: Path) -> None:
    async def resolver(host: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    trusting = ssl.create_default_context(cafile=str(certificate / "cert.pem"))
    with TlsPublisher(certificate) as site:
        site.routes["/a"] = answer(b"a")
        url = f"https://skills.example:{site.port}/a"
        assert get(url, tls=trusting, resolver=resolver, bounds=Bounds()).raw == b"a"
        assert site.names == ["skills.example"]
        with pytest.raises(UnreachableError, match="CERTIFICATE_VERIFY_FAILED"):
            get(f"https://other.example:{site.port}/a", tls=trusting, resolver=resolver, bounds=Bounds())
        with pytest.raises(UnreachableError, match="CERTIFICATE_VERIFY_FAILED"):
            get(url, resolver=resolver, bounds=Bounds())
        assert site.paths == ["/a"]


# Proxies


def test_a_proxy_of_the_environment_is_used(site: Publisher, monkeypatch: pytest.MonkeyPatch) -> None:
    site.routes["http://skills.example/a"] = answer(b"by proxy")
    monkeypatch.setenv("http_proxy", site.url.replace("//", "//me:p%40ss@"))
    got = get("http://skills.example/a", OriginPolicy(http=True))
    assert got.raw == b"by proxy"
    assert site.asked[0].headers["host"] == "skills.example"
    assert site.asked[0].headers["proxy-authorization"] == "Basic bWU6cEBzcw=="


def test_a_tunnel_that_is_refused(site: Publisher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", site.url.removeprefix("http://"))
    with pytest.raises(UnreachableError, match="cannot be reached: 404"):
        get("https://skills.example/a", OriginPolicy())
    assert site.paths == ["skills.example:443"]


def test_behind_a_proxy_what_an_address_gives_away_is_refused(site: Publisher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("all_proxy", site.url)
    for host in ("169.254.169.254", "10.0.0.1", "0x7f.1", "[::1]", "localhost", "a.localhost", "2852039166"):
        with pytest.raises(UnacceptableError, match="--allow-private"):
            get(f"https://{host}/a", OriginPolicy(http=True))
    assert not site.asked


def test_no_proxy_is_honoured(site: Publisher, monkeypatch: pytest.MonkeyPatch) -> None:
    site.routes["/a"] = answer(b"a")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert get(f"{site.url}/a").raw == b"a"


@pytest.mark.parametrize("proxy", ["gopher://127.0.0.1:1", "http://", "http://127.0.0.1:99999", "socks5://127.0.0.1:1"])
def test_a_proxy_that_cannot_be_used(monkeypatch: pytest.MonkeyPatch, proxy: str) -> None:
    monkeypatch.setenv("https_proxy", proxy)
    monkeypatch.setattr("mcp_skills_server.sources.connections.find_spec", lambda _: None)
    with pytest.raises(UsageError, match="the proxy of the environment"):
        get("https://skills.example/a", OriginPolicy())


def test_cancelling_leaves_nothing_open(site: Publisher) -> None:
    site.routes["/a"] = site.stall()

    async def run() -> None:
        async with Downloader(site.url, LOCAL, Bounds()) as downloader, anyio.create_task_group() as group:
            group.start_soon(downloader.get, f"{site.url}/a", 1)
            await anyio.to_thread.run_sync(site.reached.wait, 20)
            group.cancel_scope.cancel()

    anyio.run(run)
    assert site.reached.is_set()
