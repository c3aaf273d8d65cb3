"""Malformed messages over HTTP are answered as over stdio, and a session has one request of each id at a time."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import anyio
import pytest
from starlette.types import Message, Receive, Scope, Send

from malformed import CALL, HALVES, MALFORMED
from mcp_skills_server.web import sessions
from mcp_skills_server.web.sessions import Messages
from web.http_wire import HttpClient, Reply
from wire import DEADLINE


def send(asked: HttpClient, body: bytes) -> Reply:
    """Send a body with the headers of a call of `skills/list`."""
    return asked.server.send(body=body, headers=asked.headers(CALL))


def test_every_malformed_message_is_answered_as_over_stdio(asked: HttpClient) -> None:
    for case in MALFORMED:
        reply = send(asked, case.raw)
        assert reply.error == (400, case.code, case.id), case.title
        assert len(reply.body) < 500
        # A byte order mark is passed over.
        (answer,) = send(asked, b"\xef\xbb\xbf" + json.dumps(asked.message("skills/list")).encode()).messages
        assert answer["result"]["skills"]
    for method, params in HALVES:  # half a character
        message = asked.message(method, params)
        (answer,) = asked.post(message).messages
        assert answer["id"] == message["id"] and ("result" in answer or answer["error"]["code"] == -32602), answer


# In process, where the order is ours to choose


class Slow:
    """Stands for the SDK: ends a request when it is told to."""

    def __init__(self) -> None:
        self.ids: list[Any] = []
        self.come, self.leave = anyio.Semaphore(0), anyio.Semaphore(0)

    async def __call__(self, _: Scope, receive: Receive, send: Send) -> None:
        """As the SDK's endpoint."""
        self.ids.append(json.loads((await receive())["body"])["id"])
        self.come.release()
        await self.leave.acquire()
        await send({"type": "http.response.start", "status": 200, "headers": []})


@pytest.mark.anyio
async def test_an_id_may_be_used_again_once_its_request_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow()
    app = Messages(slow)

    async def status(id_: Any, session: bytes | None = b"s") -> int:
        """Ask with this id; the status of the answer."""
        headers = [] if session is None else [(b"mcp-session-id", session)]
        sent: list[Message] = []

        async def receive() -> Message:
            return {"type": "http.request", "body": json.dumps({**CALL, "id": id_}).encode(), "more_body": False}

        async def send(message: Message) -> None:
            sent.append(message)

        await app({"type": "http", "method": "POST", "headers": headers}, receive, send)
        return sent[0]["status"]

    async with asyncio.timeout(DEADLINE):
        first = asyncio.create_task(status(7))
        await slow.come.acquire()
        second = asyncio.create_task(status("7"))  # which the SDK keeps in the same place
        await anyio.wait_all_tasks_blocked()
        assert slow.ids == [7]  # it waits until the SDK has cleared the place
        slow.leave.release()
        await slow.come.acquire()
        monkeypatch.setattr(sessions, "_ID_S", 0.01)
        assert await status(7) == 400
        other = asyncio.create_task(status(7, None))  # of no session, and so of no other's id
        await slow.come.acquire()
        slow.leave.release()
        slow.leave.release()
        assert await asyncio.gather(first, second, other) == [200] * 3
    assert slow.ids == [7, "7", 7]
    assert app._under_way == {}
