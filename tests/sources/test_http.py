"""Where a connection goes: addresses, certificates and proxies."""

from __future__ import annotations

import ssl
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import anyio
import pytest

from mcp_skills_server.errors import UsageError
from mcp_skills_server.sources.http import Resolve
from mcp_skills_server.sources.source import Bounds, OriginPolicy, UnacceptableError, UnreachableError
from sources.fetching import get
from sources.oci.registries import self_signed
from sources.publishers import Publisher, answer, redirect
from tables import each_row

# Addresses


def resolving(*found: str) -> Resolve:
    async def resolver(host: str, port: int) -> list[str]:
        return list(found)

    return resolver


def test_this_machine_and_plain_http_need_leave(site: Publisher) -> None:
    for home in (f"{site.url}/a", f"http://localhost:{site.port}/a", f"http://127.1:{site.port}/a"):
        for trust in (OriginPolicy(), OriginPolicy(http=True)):
            with pytest.raises(UnacceptableError, match="--allow-private"):
                get(home, trust)
    assert not site.asked
    for trust in (OriginPolicy(), OriginPolicy(private=True)):
        with pytest.raises(UnacceptableError, match="plain http"):
            get("http://skills.example/a", trust)


@each_row("found", [["10.0.0.1"], ["1.1.1.1", "127.0.0.1"], ["::ffff:127.0.0.1"], ["169.254.169.254"]])
def test_a_name_that_leads_to_a_private_address_is_refused(found: list[str]) -> None:
    for url in ("https://skills.example/a", "http://skills.example/a"):
        with pytest.raises(UnacceptableError, match=r"skills\.example leads to [0-9a-f.:]+, which is not public"):
            get(url, OriginPolicy(http=True), resolver=resolving(*found))


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


def test_the_connection_goes_to_the_first_checked_address_that_answers(site: Publisher) -> None:
    site.routes["/a"] = answer(b"a")
    answers = iter([["127.77.77.77", "127.0.0.1"], ["10.255.255.1"]])

    async def resolver(host: str, port: int) -> list[str]:
        return next(answers)

    trust = OriginPolicy(private=True, http=True)
    assert get(f"http://rebinding.example:{site.port}/a", trust, resolver=resolver).body == b"a"
    assert next(answers) == ["10.255.255.1"]  # it was asked once
    assert site.asked[0].headers["host"] == f"rebinding.example:{site.port}"


@each_row("error", [OSError("no such name"), UnicodeError("label too long")])
def test_a_name_that_nobody_knows(error: Exception) -> None:
    async def resolver(host: str, port: int) -> list[str]:
        raise error

    with pytest.raises(UnreachableError, match=r"the name skills\.example cannot be resolved"):
        get("https://skills.example/a", resolver=resolver)


def test_a_name_server_that_stalls() -> None:
    async def resolver(host: str, port: int) -> list[str]:
        await anyio.sleep_forever()
        return []

    with pytest.raises(UnreachableError, match=r"did not answer|took longer"):
        get("https://skills.example/a", resolver=resolver)


@pytest.mark.needs_program("openssl")
def test_certificates_are_proved_by_name(tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path)
    more: dict[str, Any] = {"resolver": resolving("127.0.0.1"), "bounds": Bounds()}
    trusting = ssl.create_default_context(cafile=certificate)
    tls, names = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), list[str | None]()
    tls.load_cert_chain(certificate, key)
    tls.sni_callback = lambda _, name, __: names.append(name)
    with Publisher(tls) as site:
        site.routes["/a"] = answer(b"a")
        url = f"https://localhost:{site.port}/a"
        assert get(url, tls=trusting, **more).body == b"a" and names == ["localhost"]
        with pytest.raises(UnreachableError, match="CERTIFICATE_VERIFY_FAILED"):
            get(f"https://other.example:{site.port}/a", tls=trusting, **more)
        with pytest.raises(UnreachableError, match="CERTIFICATE_VERIFY_FAILED"):
            get(url, **more)
        assert site.paths == ["/a"]


# Proxies


def test_a_proxy_of_the_environment_is_used(site: Publisher, monkeypatch: pytest.MonkeyPatch) -> None:
    site.routes["http://skills.example/a"] = answer(b"by proxy")
    monkeypatch.setenv("http_proxy", site.url.replace("//", "//me:p%40ss@"))
    got = get("http://skills.example/a", OriginPolicy(http=True))
    assert got.body == b"by proxy"
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
    assert get(f"{site.url}/a").body == b"a"


@each_row("proxy", ["gopher://127.0.0.1:1", "http://", "http://127.0.0.1:99999", "socks5://127.0.0.1:1"])
def test_a_proxy_that_cannot_be_used(monkeypatch: pytest.MonkeyPatch, proxy: str) -> None:
    monkeypatch.setenv("https_proxy", proxy)
    monkeypatch.setattr("mcp_skills_server.sources.http.find_spec", lambda _: None)
    with pytest.raises(UsageError, match="the proxy of the environment"):
        get("https://skills.example/a", OriginPolicy())
