"""Worker threads, and the concurrency limit for large answers."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from contextvars import ContextVar

import anyio
import pytest

from mcp_skills_server.catalog.threads import in_thread, limit_large_answers
from tables import each_row
from wire import DEADLINE

KIND: ContextVar[str] = ContextVar("kind")


def test_in_thread_passes_context_variables_and_exceptions() -> None:
    def work(divisor: int) -> str:
        assert threading.current_thread() is not threading.main_thread()
        return f"{KIND.get()} {7 // divisor}"

    async def run(divisor: int) -> str:
        KIND.set("mine")
        return await in_thread(work, divisor)

    assert asyncio.run(run(1)) == "mine 7"
    with pytest.raises(ZeroDivisionError):
        asyncio.run(run(0))


def test_cancelled_task_does_not_wait_for_a_hanging_thread() -> None:
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def hang() -> None:
        begun.set()
        go_on.wait(DEADLINE)
        ended.set()

    async def cancel() -> None:
        task = asyncio.create_task(in_thread(hang))
        assert await in_thread(begun.wait, DEADLINE)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    assert not ended.is_set()
    go_on.set()
    assert ended.wait(DEADLINE)


LARGE = (1 << 20) + 1


def answer_all(size: int, owners: list[str | None]) -> list[Counter[str | None]]:
    """Make concurrent answers, and return the number of unfinished ones by owner at each start."""
    running: Counter[str | None] = Counter()
    started: list[Counter[str | None]] = []

    async def answer(owner: str | None) -> None:
        async with limit_large_answers(size, owner):
            running[owner] += 1
            started.append(Counter(running))
            await anyio.lowlevel.checkpoint()
            running[owner] -= 1

    async def answer_concurrently() -> None:
        async with anyio.create_task_group() as tasks:
            for owner in owners:
                tasks.start_soon(answer, owner)

    anyio.run(answer_concurrently)
    assert len(started) == len(owners)
    return started


# Sixty large answers at once stopped the event loop for 6.8 s.
@each_row(("size", "owners", "most", "most_of_owner"), [
    (LARGE, ["a"] * 20, 1, 1),
    (LARGE, [None] * 20, 1, 1),
    (LARGE, [*["a"] * 20, *["b"] * 20, *["c"] * 20], 2, 1),
    (LARGE - 1, ["a"] * 20, 20, 20),
])  # fmt: skip
def test_large_answers_run_one_per_owner_and_two_in_all(
    size: int, owners: list[str | None], most: int, most_of_owner: int
) -> None:
    started = answer_all(size, owners)
    assert max(each.total() for each in started) == most
    assert max(max(each.values()) for each in started) == most_of_owner


def test_large_answer_does_not_wait_for_all_of_another_owner() -> None:
    started = answer_all(LARGE, [*["greedy"] * 50, "modest"])
    assert any(each["modest"] for each in started[:3])
