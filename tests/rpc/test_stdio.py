"""The loop between pipes and messages, with pipes that a test holds; as a process it is tested with the command."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import anyio
import pytest

from mcp_skills_server.rpc import server
from mcp_skills_server.transport import Pipes
from rpc.build import ACTIONS, Desk
from wire import DEADLINE

pytestmark = pytest.mark.anyio
GUIDE = b'{"jsonrpc":"2.0","id":1,"method":"load_skills_protocol_guide"}'


class Held(Pipes):
    """Pipes out of lists."""

    def __init__(self, lines: list[bytes | None]) -> None:
        self._lines = lines
        self.sent: list[Any] = []

    async def lines(self) -> AsyncIterator[bytes | None]:
        for line in self._lines:
            yield line

    async def send(self, raw: bytes) -> None:
        assert raw.endswith(b"\n") and raw.count(b"\n") == 1
        self.sent.append(json.loads(raw))

    async def serve(
        self, work: Callable[[], Awaitable[None]], before_signalled: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        await work()


async def serve(monkeypatch: pytest.MonkeyPatch, pipes: Held) -> None:
    monkeypatch.setattr(server, "Pipes", lambda _max_line: pipes)
    with anyio.fail_after(DEADLINE):
        await server.serve(Desk(ACTIONS).rpc)


async def test_it_ends_with_stdin_when_everything_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    pipes = Held([GUIDE, None, b"[]", b'{"jsonrpc":"2.0","method":"list_skills"}', GUIDE])
    await serve(monkeypatch, pipes)
    seen = [each["error"]["code"] if "error" in each else each["id"] for each in pipes.sent]
    assert sorted(seen) == [-32600, -32600, 1, 1]


async def test_more_lines_than_are_answered_at_once_all_get_their_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_AT_ONCE", 2)
    pipes = Held([GUIDE.replace(b"1,", b"%d," % number) for number in range(9)])
    await serve(monkeypatch, pipes)
    assert sorted(each["id"] for each in pipes.sent) == list(range(9))
