"""What one client opens is never at another's cost, whether clients have tokens or addresses alone."""

from __future__ import annotations

import json
from typing import Any

import pytest

from web.http_wire import MODERN_META, client, http_serving
from wire import FIXTURES, VERSIONS


def call(**arguments: Any) -> dict[str, Any]:
    """A call that loads a skill, or goes on with a session."""
    return {"name": "skills_load", "arguments": {"names": ["commit-messages"], **arguments}}


def handle(result: dict[str, Any]) -> str:
    """The handle of the session that a call opened."""
    return result["structuredContent"]["session"]


@pytest.mark.parametrize("size", [1_000_000, 70_000])
def test_streams_that_ask_for_more_than_can_be_kept_are_refused_and_cost_nothing(size: int) -> None:
    with http_serving(FIXTURES) as server, client(server, "modern") as asked:
        asked.request("skills/list")
        before = server.resident()
        wanted = {"notifications": {"resourceSubscriptions": ["x" * size]}, "_meta": MODERN_META}
        body = json.dumps({"jsonrpc": "2.0", "id": 7, "method": "subscriptions/listen", "params": wanted}).encode()
        headers = {**asked.headers(), "Mcp-Method": "subscriptions/listen"}
        assert headers["MCP-Protocol-Version"] == VERSIONS["modern"]
        for _ in range(120):
            assert server.send(body=body, headers=headers).error == (400, -32602, 7)
        assert server.resident() - before < 48 << 20
