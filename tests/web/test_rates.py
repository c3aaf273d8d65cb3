"""Concurrency of one client: beyond its limit a request waits, and so does one that is refused again and again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from mcp_skills_server.access.quotas import QuotaSettings, Rates
from mcp_skills_server.web import rates
from mcp_skills_server.web.rates import RequestLimits

MANY = 32
AT_ONCE = 60


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

    async def all(self, *addresses: str | None) -> None:
        """Ask so many times at once, from each of these and from one client."""
        await asyncio.gather(*(self.ask("192.0.2.1") for _ in range(MANY)), *map(self.ask, addresses))


@pytest.mark.anyio
async def test_many_of_one_wait_for_each_other_and_another_comes_in_between() -> None:
    asked = Asked()
    await asked.all("192.0.2.2", *[None] * MANY)  # who cannot be distinguished waits for nobody
    assert asked.most == {"192.0.2.1": 2, "192.0.2.2": 1, "": MANY}
    assert asked.begun.index("192.0.2.2") <= 2
    assert len(asked.begun) == 2 * MANY + 1


@pytest.mark.anyio
async def test_one_that_is_cancelled_keeps_nobody_waiting() -> None:
    asked = Asked()
    tasks = [asked.ask("192.0.2.1") for _ in range(MANY)]
    await asyncio.sleep(0)
    for each in tasks[1:-1]:
        each.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asked.all()
    assert asked.most == {"192.0.2.1": 2}
    assert len(asked.begun) == MANY + 3  # the first two, and the last


@pytest.mark.anyio
async def test_one_that_takes_long_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "_SLOW_S", 0.01)
    asked = Asked()
    streams = [asked.ask("192.0.2.1", stays=True) for _ in range(4)]
    async with asyncio.timeout(20):
        await asked.all()
    for each in streams:
        each.cancel()
    await asyncio.gather(*streams, return_exceptions=True)
    monkeypatch.setattr(rates, "_SLOW_S", 20)  # from here on none takes long, however busy the machine
    asked.most.clear()
    await asked.all()
    assert asked.most == {"192.0.2.1": 2}


@pytest.mark.anyio
async def test_one_that_has_to_wait_for_half_a_second_is_refused() -> None:
    scope = {"type": "http", "method": "POST", "path": "/mcp", "headers": [], "client": ("192.0.2.1", 1)}
    statuses: list[int] = []

    async def app(*_: Any) -> None:
        statuses.append(200)

    async def send(message: Message) -> None:
        statuses.extend([message["status"]] if "status" in message else [])

    limits = Rates(QuotaSettings(120, 120))
    failed, limit = rates.FailedAuthentications(limits), RequestLimits(app, limits)
    for _ in range(121):
        await limit(scope, None, send)  # type: ignore[arg-type]
    assert statuses == [200] * 120 + [429]
    assert [await failed.is_over(scope, app, send) for _ in range(121)] == [False] * 120 + [True]  # type: ignore[arg-type]


@pytest.mark.anyio
async def test_the_first_are_answered_at_once_and_then_it_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Message] = []
    left, asked = asyncio.Event(), asyncio.Event()
    limits = Rates(QuotaSettings())

    async def receive() -> Message:
        asked.set()
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    def refused(address: str = "192.0.2.1") -> Any:
        scope = {"type": "http", "method": "POST", "path": "/mcp", "headers": [], "client": (address, 1)}
        return rates.refuse_with_delay(scope, receive, send, limits, quota="x", most=1, wait=1.0)

    def answers() -> int:
        return sum(each.get("status") == 429 for each in sent)

    for _ in range(AT_ONCE):
        await refused()
    assert answers() == AT_ONCE and not asked.is_set()
    one = asyncio.create_task(refused())
    await asyncio.wait({one, asyncio.create_task(asked.wait())}, return_when=asyncio.FIRST_COMPLETED)
    assert answers() == AT_ONCE and not one.done()
    await refused("192.0.2.2")  # whom it does not concern
    assert answers() == AT_ONCE + 1
    left.set()  # nobody is there to be answered
    await one
    assert answers() == AT_ONCE + 1
    left.clear()
    monkeypatch.setattr(rates, "_TARPIT_S", 0)
    await refused()
    assert answers() == AT_ONCE + 2, "it comes in the end"
