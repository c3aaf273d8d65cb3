"""Fixtures that the tests of the web server share: a server on the fixtures, and a client of each era on it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from web.http_wire import HttpClient, Server, client, http_serving
from wire import FIXTURES, Era


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server on the fixtures, for tests that change nothing but their own sessions."""
    with http_serving(FIXTURES) as started:
        yield started


@pytest.fixture
def asked(server: Server, era: Era) -> Iterator[HttpClient]:
    """A client of each era on it, hands shaken."""
    with client(server, era) as opened:
        yield opened
