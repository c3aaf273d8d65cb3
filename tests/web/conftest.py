"""Fixtures of the web tests: a server of the fixture skills, and a client of each era."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from web.http_wire import HttpClient, Target, client
from web.in_process import App, app_serving
from wire import FIXTURES, Era


@pytest.fixture(scope="module")
def server() -> Iterator[App]:
    with app_serving(FIXTURES) as started:
        yield started


@pytest.fixture
def http_client(server: Target, era: Era) -> Iterator[HttpClient]:
    with client(server, era) as opened:
        yield opened
