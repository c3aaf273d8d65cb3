"""Freshness: what is asked of the network, within bounds, of public addresses alone, and nothing is written."""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterator
from ipaddress import IPv4Network
from pathlib import Path
from unittest.mock import AsyncMock

import anyio
import pytest

from mcp_skills_server.format.reliance import Reliance, parse_reliances
from mcp_skills_server.sources.reliances import ask
from mcp_skills_server.sources.source import Bounds, FetchLimits, FetchSettings, OriginPolicy
from sources.publishers import Publisher, ReceivedRequest, Route, redirect, respond_with, with_tools
from tables import each_row

SCHEMA = {"type": "object", "properties": {"query": {"type": "string"}}}
LOCAL = OriginPolicy(private=True, http=True)
SHORT = Bounds(read_s=0.3, download_s=0.5)


@pytest.fixture
def site() -> Iterator[Publisher]:
    with Publisher() as site:
        yield site


def tool_of(url: str) -> Reliance:
    return Reliance("tools", "search", url)


def asked(
    *entries: Reliance,
    trust: OriginPolicy = LOCAL,
    bounds: Bounds | None = None,
    limits: FetchLimits | None = None,
    most: int = 10,
) -> tuple[dict[str, str], list[str]]:
    fetch = FetchSettings(trust=trust, bounds=bounds or Bounds(), limits=limits or FetchLimits())
    return anyio.run(ask, entries, fetch, most)


def test_tools_have_one_digest_in_both_eras(site: Publisher) -> None:
    site.routes |= {
        "/modern": with_tools({"search": SCHEMA}), "/legacy": with_tools({"search": SCHEMA}, is_legacy=True),
    }  # fmt: skip
    states, refused = asked(tool_of(f"{site.url}/modern"), tool_of(f"{site.url}/legacy"))
    assert refused == []
    first, second = states.values()
    assert first == second and first.startswith("sha256:")
    assert {request.method for request in site.requests} == {"POST", "DELETE"}  # no stream, which would not end


def test_nothing_is_written(site: Publisher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    site.routes |= {"/mcp": with_tools({"search": SCHEMA}), "/a": respond_with(b"1")}
    states, _ = asked(tool_of(f"{site.url}/mcp"), tool_of(f"{site.url}/none"), Reliance("urls", f"{site.url}/a"))
    assert len(states) == 2
    assert os.listdir(tmp_path) == []


def without_end(_: ReceivedRequest) -> Iterator[bytes]:
    yield b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n"
    while True:
        yield b" " * (1 << 16)


def test_hostile_address_is_refused_in_bounded_time(site: Publisher) -> None:
    def never(_: ReceivedRequest) -> Iterator[bytes]:
        site.closing.wait()
        yield b""

    def drip(_: ReceivedRequest) -> Iterator[bytes]:
        yield b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
        while not site.closing.wait(0.05):
            yield b": still here\n\n"

    bomb = gzip.compress(b" " * (1 << 20))
    routes: dict[str, tuple[Route, str]] = {
        "/never": (never, "did not answer|longer than|no answer"),
        "/drip": (drip, "longer than|no answer"),
        "/endless": (without_end, "more than 10485760 bytes"),
        "/moved": (redirect("http://169.254.169.254/latest"), "another origin|no answer"),
        "/bomb": (respond_with(bomb, content_encoding="gzip", content_type="application/json"), "compressed"),
        "/page": (respond_with(b"<html>", content_type="text/html"), "no answer"),
        "/list": (respond_with(b"[" * 100_000, content_type="application/json"), "no answer"),
    }
    for path, (route, fault) in routes.items():
        site.routes[path] = route
        bounds = SHORT if path in {"/never", "/drip"} else Bounds()
        states, (line,) = asked(tool_of(site.url + path), bounds=bounds)
        assert states == {}, path
        assert any(part in line for part in fault.split("|")), line


@each_row(
    "url",
    [
        "http://169.254.169.254/latest/meta-data", "http://127.0.0.1:1/", "http://[::1]:1/", "https://10.0.0.1/",
        "https://localhost:1/", "http://2130706433/", "https://0x7f000001/", "https://[::ffff:127.0.0.1]/",
        "http://public.example/",
    ],
)  # fmt: skip
def test_private_address_and_plain_http_are_refused(url: str) -> None:
    states, refused = asked(Reliance("urls", url), tool_of(url), trust=OriginPolicy())
    assert states == {}
    assert len(refused) == 2
    assert all("--allow-" in line or "not public" in line for line in refused), refused


def test_name_of_a_tool_server_is_resolved_once_for_each_connection_and_checked(
    site: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name server that answers with a public address first, and then with a private one."""
    site.routes["/mcp"] = with_tools({"search": SCHEMA})
    resolver = AsyncMock(side_effect=[["127.0.0.1"], ["10.0.0.1"]])
    monkeypatch.setattr("mcp_skills_server.sources.http.resolve", resolver)
    # The loopback address of the test server must count as public.
    monkeypatch.setattr("mcp_skills_server.sources.addresses._NOT_PUBLIC_4", (IPv4Network("10.0.0.0/8"),))
    states, (line,) = asked(tool_of(f"http://tools.example:{site.port}/mcp"), trust=OriginPolicy(http=True))
    assert states == {}
    assert "tools.example leads to 10.0.0.1, which is not public" in line
    assert len(site.requests) == 1 and resolver.await_count == 2


def test_addresses_are_asked_until_the_time_is_over(site: Publisher) -> None:
    site.routes |= {"/a": respond_with(b"1")}
    states, (line,) = asked(Reliance("urls", f"{site.url}/a"), limits=FetchLimits(total_s=-1))
    assert states == {} and site.requests == []
    assert "not asked; the others took too long" in line


def test_command_is_no_server() -> None:
    for server in ("mcp+stdio:touch x", "touch x", "stdio:touch", "file:///bin/sh", "https://a b/", "https://u:p@a/"):
        with pytest.raises(ValueError, match="of its server"):
            parse_reliances(f'[relies-on.tools]\n"{server}" = ["search"]\n')
