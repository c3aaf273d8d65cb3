"""Requests of one owner begin in turns, and those of others come in between; nothing is lost on the way."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from mcp_skills_server.web.fair_queue import FairQueue

pytestmark = pytest.mark.anyio
MANY = 32


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Asked:
    """An application that notes whose requests begin, and in which turn of the loop."""

    def __init__(self) -> None:
        self.begun: list[tuple[str, int]] = []
        self.queue = FairQueue(self._answer)
        self._turn = 0

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.begun.append((scope["client"][0] if scope["client"] else "", self._turn))

    def ask(self, address: str | None) -> asyncio.Task[Any]:
        scope = {"type": "http", "client": (address, 1) if address else None}
        return asyncio.create_task(self.queue(scope, None, None))  # type: ignore[arg-type]

    async def settle(self, *tasks: asyncio.Task[Any]) -> None:
        """Until all is over, counting turns of the loop."""
        while not all(each.done() for each in tasks):
            self._turn += 1
            await asyncio.sleep(0)

    def in_turns(self, address: str) -> list[int]:
        """How many of an address began in each turn in which some did."""
        turns = [turn for who, turn in self.begun if who == address]
        return [turns.count(turn) for turn in sorted({*turns})]


async def test_many_of_one_begin_in_turns_and_another_comes_in_between() -> None:
    asked = Asked()
    await asked.settle(asked.ask("192.0.2.1"), asked.ask("192.0.2.2"))
    asked.begun.clear()
    flood = [asked.ask("192.0.2.1") for _ in range(MANY)]
    await asked.settle(*flood, asked.ask("192.0.2.2"))
    assert asked.in_turns("192.0.2.1") == [1] * MANY
    assert [who for who, _ in asked.begun].index("192.0.2.2") <= 2
    assert len(asked.begun) == MANY + 1


async def test_two_who_ask_for_much_take_turns() -> None:
    asked = Asked()
    await asked.settle(*(asked.ask(f"192.0.2.{number % 2}") for number in range(2 * MANY)))
    assert asked.in_turns("192.0.2.0") == asked.in_turns("192.0.2.1") == [1] * MANY


async def test_who_is_alone_has_longer_turns() -> None:
    asked = Asked()
    await asked.settle(*(asked.ask("192.0.2.1") for _ in range(MANY)))
    assert asked.in_turns("192.0.2.1") == [8] * (MANY // 8)


async def test_one_that_is_cancelled_keeps_nobody_waiting() -> None:
    asked = Asked()
    tasks = [asked.ask("192.0.2.1") for _ in range(MANY)]
    await asyncio.sleep(0)
    waiting = [each for each in tasks if not each.done()]
    for each in waiting[:-1]:
        each.cancel()
    await asked.settle(*tasks)
    assert len(asked.begun) == MANY - len(waiting) + 1
    await asked.settle(asked.ask("192.0.2.1"))
    assert len(asked.begun) == MANY - len(waiting) + 2


async def test_who_cannot_be_distinguished_waits_for_nobody() -> None:
    asked = Asked()
    await asked.settle(*(asked.ask(None) for _ in range(MANY)))
    assert asked.in_turns("") == [MANY]
