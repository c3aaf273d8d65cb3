"""What an issuer on a real socket can make a fetch cost."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from mcp_skills_server.errors import SkillsServerError
from mcp_skills_server.web import oauth
from sources.publishers import Publisher, answer, endless, redirect
from tables import each_row


def test_an_answer_comes_with_its_status_and_nobody_is_led_elsewhere() -> None:
    moved = (301, 302, 303, 307, 308)
    with Publisher() as site:
        site.routes = {"/a": answer(b"{}"), "/b": answer(b"read after a POST", 500)}
        site.routes |= {f"/{status}": redirect(f"{site.url}/a", status) for status in moved}
        given = {"a?x=1": (200, b"{}"), "b": (500, b"")} | {str(status): (status, b"") for status in moved}
        for path, found in given.items():
            assert anyio.run(oauth.fetch, f"{site.url}/{path}") == found
        assert site.paths == [f"/{path}" for path in given]
        failed = anyio.run(oauth.fetch, f"{site.url}/b", b"code=x")
        assert failed == (500, b"read after a POST"), "whoever posts is told why it failed"
        assert {each.headers["accept-encoding"] for each in site.asked} == {"identity"}


ENDLESS = endless(b"HTTP/1.1 200 Said\r\n\r\n", b" " * 65536)


@each_row("route", [answer(b"", length=100 << 20), answer(b" " * ((1 << 20) + 1)), ENDLESS])
def test_more_than_a_mebibyte_is_not_read(route: Any) -> None:
    with Publisher() as site:
        site.routes["/a"] = route
        with pytest.raises(SkillsServerError, match="1048576"):
            anyio.run(oauth.fetch, f"{site.url}/a")


def test_an_issuer_that_drips_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oauth, "_TIMEOUT_S", 0.3)
    with Publisher() as site:
        site.routes["/a"] = site.drip(b"HTTP/1.1 200 Said\r\ncontent-length: 1000\r\n\r\n" + b" " * 1000, 0.002)
        with pytest.raises(SkillsServerError, match=r"longer than 0\.3 s"):
            anyio.run(oauth.fetch, f"{site.url}/a")
