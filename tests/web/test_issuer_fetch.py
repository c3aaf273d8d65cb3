"""What an issuer on a real socket can make a fetch cost."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from mcp_skills_server.errors import SkillsServerError
from mcp_skills_server.web import oauth
from sources.publishers import Publisher, answer, endless, redirect
from tables import each_row


def fetched(url: str) -> tuple[int, bytes]:
    return anyio.run(oauth.fetch, url)


def test_an_answer_comes_with_its_status() -> None:
    with Publisher() as site:
        site.routes = {"/a": answer(b"{}"), "/b": answer(b"never read", 500)}
        assert fetched(f"{site.url}/a?x=1") == (200, b"{}")
        assert fetched(f"{site.url}/b") == (500, b"")
        assert fetched(f"{site.url}/c")[0] == 404
        assert site.paths == ["/a?x=1", "/b", "/c"]
        assert {each.headers["accept-encoding"] for each in site.asked} == {"identity"}


@each_row("status", [301, 302, 303, 307, 308])
def test_nobody_is_led_elsewhere(status: int) -> None:
    with Publisher() as site:
        site.routes = {"/a": redirect(f"{site.url}/b", status), "/b": answer(b"{}")}
        assert fetched(f"{site.url}/a") == (status, b"")
        assert site.paths == ["/a"]


ENDLESS = endless(b"HTTP/1.1 200 Said\r\n\r\n", b" " * 65536)


@each_row("route", [answer(b"", length=100 << 20), answer(b" " * ((1 << 20) + 1)), ENDLESS])
def test_more_than_a_mebibyte_is_not_read(route: Any) -> None:
    with Publisher() as site:
        site.routes["/a"] = route
        with pytest.raises(SkillsServerError, match="1048576"):
            fetched(f"{site.url}/a")


def test_an_issuer_that_drips_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oauth, "_TIMEOUT_S", 0.3)
    with Publisher() as site:
        site.routes["/a"] = site.drip(b"HTTP/1.1 200 Said\r\ncontent-length: 1000\r\n\r\n" + b" " * 1000, 0.002)
        with pytest.raises(SkillsServerError, match=r"longer than 0\.3 s"):
            fetched(f"{site.url}/a")
