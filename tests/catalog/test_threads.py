"""Work in threads, and turns of large answers."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from contextvars import ContextVar

import anyio
import pytest

from mcp_skills_server.catalog.threads import in_thread, limit_large_answers
from wire import DEADLINE

KIND: ContextVar[str] = ContextVar("kind")


def test_work_is_done_in_another_thread_knows_what_the_caller_knows_and_may_raise() -> None:
    def look(number: int) -> tuple[int, str, str]:
        return 7 // number, KIND.get(), threading.current_thread().name

    async def ask(number: int) -> tuple[int, str, str]:
        KIND.set("mine")
        return await in_thread(look, number)

    number, kind, thread = asyncio.run(ask(1))
    assert (number, kind) == (7, "mine") and thread != threading.current_thread().name
    with pytest.raises(ZeroDivisionError):
        asyncio.run(ask(0))


def test_who_is_cancelled_does_not_wait_for_work_that_hangs_nor_does_the_event_loop() -> None:
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def hang() -> None:
        begun.set()
        go_on.wait(DEADLINE)
        ended.set()

    async def ask() -> None:
        task = asyncio.create_task(in_thread(hang))
        assert await in_thread(begun.wait, DEADLINE)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(ask())
    assert not ended.is_set()
    go_on.set()
    assert ended.wait(DEADLINE)


LARGE = (1 << 20) + 1


def answers(size: int, owners: list[str | None]) -> tuple[int, int, list[str | None]]:
    """How many answers of this size were made at once at the most, of all owners and of one, and in which order."""
    now: Counter[str | None] = Counter()
    most, order = [0, 0], list[str | None]()

    async def ask(owner: str | None) -> None:
        async with limit_large_answers(size, owner):
            now[owner] += 1
            most[:] = max(most[0], now.total()), max(most[1], now[owner])
            await anyio.lowlevel.checkpoint()
            now[owner] -= 1
            order.append(owner)

    async def all_of_them() -> None:
        async with anyio.create_task_group() as tasks:
            for owner in owners:
                tasks.start_soon(ask, owner)

    anyio.run(all_of_them)
    return most[0], most[1], order


def test_large_answers_are_made_one_at_a_time_for_an_owner_and_two_in_all() -> None:
    """10.B: sixty at once stopped the event loop for 6.8 s."""
    assert answers(LARGE, ["a"] * 20)[:2] == answers(LARGE, [None] * 20)[:2] == (1, 1)
    assert answers(LARGE, ["a"] * 20 + ["b"] * 20 + ["c"] * 20)[:2] == (2, 1)
    assert answers(1 << 20, ["a"] * 20)[:2] == (20, 20)


def test_nobody_waits_behind_all_that_another_asked_for() -> None:
    *_, order = answers(LARGE, [*["greedy"] * 50, "modest"])
    assert order.index("modest") <= 2 and len(order) == 51
