"""How many requests of one client are at work at once: the others wait, and those of other clients do not."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from mcp_skills_server.access.quotas import QuotaSettings, Rates
from mcp_skills_server.web import rates
from mcp_skills_server.web.rates import RequestLimits

pytestmark = pytest.mark.anyio
MANY = 32


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Asked:
    """An application that notes whose requests begin and how many of one client are at work; each takes a few turns."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.most: dict[str, int] = {}
        self.limit = RequestLimits(self._answer, Rates(QuotaSettings(requests_per_minute=None)))
        self._at_work: dict[str, int] = {}

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        who = scope["client"][0] if scope["client"] else ""
        self.begun.append(who)
        self._at_work[who] = self._at_work.get(who, 0) + 1
        self.most[who] = max(self.most.get(who, 0), self._at_work[who])
        try:
            for _ in range(3):
                await asyncio.sleep(0)
            if scope.get("stays"):
                await asyncio.get_running_loop().create_future()
        finally:
            self._at_work[who] -= 1

    def ask(self, address: str | None, **more: Any) -> asyncio.Task[Any]:
        scope = {"type": "http", "path": "/mcp", "client": (address, 1) if address else None, **more}
        return asyncio.create_task(self.limit(scope, None, None))  # type: ignore[arg-type]


async def test_many_of_one_wait_for_each_other_and_another_comes_in_between() -> None:
    asked = Asked()
    flood = [asked.ask("192.0.2.1") for _ in range(MANY)]
    await asyncio.gather(*flood, asked.ask("192.0.2.2"))
    assert asked.most == {"192.0.2.1": 2, "192.0.2.2": 1}
    assert asked.begun.index("192.0.2.2") <= 2
    assert len(asked.begun) == MANY + 1


async def test_one_that_is_cancelled_keeps_nobody_waiting() -> None:
    asked = Asked()
    tasks = [asked.ask("192.0.2.1") for _ in range(MANY)]
    await asyncio.sleep(0)
    for each in tasks[1:-1]:
        each.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.gather(*(asked.ask("192.0.2.1") for _ in range(MANY)))
    assert asked.most == {"192.0.2.1": 2}
    assert len(asked.begun) == MANY + 3  # the first two, and the last


async def test_one_that_takes_long_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "_LONG_S", 0.01)
    asked = Asked()
    streams = [asked.ask("192.0.2.1", stays=True) for _ in range(4)]
    async with asyncio.timeout(20):
        await asyncio.gather(*(asked.ask("192.0.2.1") for _ in range(MANY)))
    for each in streams:
        each.cancel()
    await asyncio.gather(*streams, return_exceptions=True)
    asked.most.clear()
    await asyncio.gather(*(asked.ask("192.0.2.1") for _ in range(MANY)))
    assert asked.most == {"192.0.2.1": 2}


async def test_who_cannot_be_distinguished_waits_for_nobody() -> None:
    asked = Asked()
    await asyncio.gather(*(asked.ask(None) for _ in range(MANY)))
    assert asked.most == {"": MANY}
