"""Answers over HTTP in both eras: as recorded, and with the results that stdio gives."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from dispatching import local_serving
from web.http_wire import Target, client
from web.in_process import app_serving
from web.recorded import CALLS, FILE, OPTIONS, exchanges, recorded, send
from wire import FIXTURES, Era


@pytest.fixture(scope="module")
def server() -> Iterator[Target]:
    with app_serving(FIXTURES, *OPTIONS) as started:
        yield started


@pytest.mark.requirement(
    "MCP-2", "MCP-3", "MCP-7", "MCP-32", "MCP-42", "MCP-43", "MCP-44", "MCP-47", "MCP-52", "S40-30"
)
def test_answers_are_as_recorded(server: Target, era: Era) -> None:
    expected = json.loads(FILE.read_text(encoding="utf-8"))
    with client(server, era) as sender:
        sender.every_skill()
        for exchange in exchanges(sender):
            assert recorded(send(sender, exchange)) == expected[exchange.name], exchange.name


def test_results_equal_those_over_stdio(server: Target, era: Era) -> None:
    with client(server, era) as sender, local_serving(FIXTURES, "--no-local-paths", era=era) as wire:
        for method, params in CALLS:
            message = sender.message(method, params)
            (over_http,) = sender.post(message).messages
            assert over_http == wire.exchange(message), (method, params)
