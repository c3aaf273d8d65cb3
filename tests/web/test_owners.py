"""What one client opens is never at another's cost, whether clients have tokens or addresses alone."""

from __future__ import annotations

import http.client
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from web.http_wire import MODERN_META, HttpClient, Server, client, http_serving
from wire import DEADLINE, FIXTURES, VERSIONS

FEW = """
import sys
from mcp_skills_server.cli import main
from mcp_skills_server.runtime import sessions

sessions.Sessions.__init__.__kwdefaults__["most"] = 8
main(sys.argv[1:])
"""
TOKENS = {"alpha": "a" * 16, "beta": "b" * 16}


def call(**arguments: Any) -> dict[str, Any]:
    """A call that loads a skill, or goes on with a session."""
    return {"name": "skills_load", "arguments": {"names": ["commit-messages"], **arguments}}


def test_with_tokens_a_session_of_another_bearer_stays(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("".join(f"{name}={secret}\n" for name, secret in TOKENS.items()))
    (tmp_path / "tokens").chmod(0o600)
    with (
        http_serving(FIXTURES, "--token-file", tmp_path / "tokens", command=[sys.executable, "-c", FEW]) as server,
        client(server, "modern", token=TOKENS["alpha"]) as alpha,
        client(server, "modern", token=TOKENS["beta"]) as beta,
    ):
        mine = handle(alpha.request("tools/call", call()))
        theirs = [handle(beta.request("tools/call", call())) for _ in range(9)]
        assert not alpha.request("tools/call", call(session=mine)).get("isError")
        assert not beta.request("tools/call", call(session=theirs[-1])).get("isError")
        assert beta.request("tools/call", call(session=theirs[0]))["isError"]
        assert beta.request("tools/call", call(session=mine))["isError"]


def test_without_tokens_a_session_of_another_address_stays_and_may_be_used_from_anywhere() -> None:
    with (
        http_serving(FIXTURES, command=[sys.executable, "-c", FEW]) as server,
        client(server, "modern") as here,
    ):
        mine = handle(here.request("tools/call", call()))
        theirs = [handle(from_elsewhere(server, here, call())) for _ in range(9)]
        assert not here.request("tools/call", call(session=mine)).get("isError")
        assert here.request("tools/call", call(session=theirs[0]))["isError"]
        assert not here.request("tools/call", call(session=theirs[-1])).get("isError")


def handle(result: dict[str, Any]) -> str:
    """The handle of the session that a call opened."""
    return result["structuredContent"]["session"]


def from_elsewhere(server: Server, like: HttpClient, params: dict[str, Any]) -> dict[str, Any]:
    """The result of a call from another address of this machine."""
    message = like.message("tools/call", params)
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=DEADLINE, source_address=("127.0.0.2", 0))
    try:
        connection.request("POST", "/mcp", json.dumps(message), like.headers(message))
        return json.loads(connection.getresponse().read())["result"]
    finally:
        connection.close()


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
