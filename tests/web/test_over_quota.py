"""The answer of who is refused again and again is held back, so that a flood costs little."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.types import Message

from mcp_skills_server.access.quotas import QuotaSettings, Rates
from mcp_skills_server.web import rates

pytestmark = pytest.mark.anyio
AT_ONCE = 60


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Refused:
    """Requests of one address that are over a quota, and what they are answered."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.left = asyncio.Event()
        self.asked = asyncio.Event()
        self._rates = Rates(QuotaSettings())

    async def again(self, address: str = "192.0.2.1") -> None:
        async def receive() -> Message:
            self.asked.set()
            await self.left.wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            self.sent.append(message)

        scope: dict[str, Any] = {"type": "http", "method": "POST", "client": (address, 1)}
        await rates.refuse_in_time(scope, receive, send, self._rates, quota="x", most=1, wait=1.0)

    @property
    def answers(self) -> int:
        return sum(each.get("status") == 429 for each in self.sent)


async def test_the_first_are_answered_at_once_and_then_it_is_waited_for() -> None:
    refused = Refused()
    for _ in range(AT_ONCE):
        await refused.again()
    assert refused.answers == AT_ONCE and not refused.asked.is_set()
    one = asyncio.create_task(refused.again())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert refused.asked.is_set() and refused.answers == AT_ONCE and not one.done()
    await refused.again("192.0.2.2")  # whom it does not concern
    assert refused.answers == AT_ONCE + 1
    refused.left.set()  # nobody is there to be answered
    await one
    assert refused.answers == AT_ONCE + 1


async def test_it_comes_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "_HELD_S", 0)
    refused = Refused()
    for _ in range(AT_ONCE + 1):
        await refused.again()
    assert refused.asked.is_set() and refused.answers == AT_ONCE + 1
