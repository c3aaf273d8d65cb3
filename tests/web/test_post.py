"""What becomes of one request over HTTP while it is worked on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread
from starlette.types import Message

from conversations import ENVELOPE
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.server.requests import Settings
from mcp_skills_server.telemetry.events import Event
from web.posts import Post, headers_of, scope_of, serving
from wire import DEADLINE, write_skill

CALL: dict[str, Any] = {"jsonrpc": "2.0", "id": "é", "method": "skills/list", "params": {"_meta": ENVELOPE}}
POST = Post(tuple(headers_of(CALL)), json.dumps(CALL).encode())


@pytest.fixture
def unread(tmp_path: Path) -> Registry:
    """A folder that has not been read: what asks for skills waits until it is."""
    write_skill(tmp_path / "a", description="Für 表.")
    return Registry([tmp_path])


@pytest.mark.anyio
async def test_an_answer_that_takes_long_is_a_stream_that_says_that_it_is_there(
    unread: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp.server._streamable_http_modern._SSE_PING_INTERVAL", 0.01)
    said: list[Message] = []
    body: bytes | None = POST.body

    async def receive() -> Message:
        nonlocal body
        if body is None:
            await anyio.sleep_forever()
        whole, body = body, None
        return {"type": "http.request", "body": whole, "more_body": False}

    async def send(message: Message) -> None:
        said.append(message)
        if len(said) == 4:
            await to_thread.run_sync(unread.load)

    with anyio.fail_after(DEADLINE):
        async with serving(unread, Settings()) as (app, _):
            await app(scope_of(POST), receive, send)
    start, *pings, last = said
    assert start["status"] == 200 and (b"content-type", b"text/event-stream") in list(start["headers"])
    assert len(pings) >= 3 and {each["body"] for each in pings} == {b": ping\r\n\r\n"}
    assert last["body"].isascii() and not last.get("more_body")
    answer = json.loads(last["body"].removeprefix(b"event: message\r\ndata: "))
    assert answer["id"] == "é" and "表" in answer["result"]["skills"][0]["description"]


@pytest.mark.anyio
async def test_a_request_whose_client_leaves_is_ended(unread: Registry) -> None:
    seen: list[Event] = []
    body: bytes | None = POST.body

    async def receive() -> Message:
        nonlocal body
        if body is None:
            return {"type": "http.disconnect"}
        whole, body = body, None
        return {"type": "http.request", "body": whole, "more_body": False}

    async def send(message: Message) -> None:
        raise AssertionError(message)

    with anyio.fail_after(DEADLINE):
        async with serving(unread, Settings(), reader=seen.append) as (app, _):
            await app(scope_of(POST), receive, send)
    assert [each.outcome for each in seen if each.protocol == "mcp"] == ["cancelled"]
