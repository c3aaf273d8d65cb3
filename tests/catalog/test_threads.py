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


class Answers:
    """Concurrent answers of one size, and the highest concurrency of all and of one owner."""

    def __init__(self, size: int, owners: list[str | None]) -> None:
        self._size = size
        self._current: Counter[str | None] = Counter()
        self.most = self.most_of_owner = 0
        self.order: list[str | None] = []
        anyio.run(self._answer_all, owners)

    async def _answer_all(self, owners: list[str | None]) -> None:
        async with anyio.create_task_group() as tasks:
            for owner in owners:
                tasks.start_soon(self._answer, owner)

    async def _answer(self, owner: str | None) -> None:
        async with limit_large_answers(self._size, owner):
            self._current[owner] += 1
            self.most = max(self.most, self._current.total())
            self.most_of_owner = max(self.most_of_owner, self._current[owner])
            await anyio.lowlevel.checkpoint()
            self._current[owner] -= 1
            self.order.append(owner)


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
    answers = Answers(size, owners)
    assert (answers.most, answers.most_of_owner) == (most, most_of_owner)


def test_large_answer_does_not_wait_for_all_of_another_owner() -> None:
    order = Answers(LARGE, [*["greedy"] * 50, "modest"]).order
    assert order.index("modest") <= 2
    assert len(order) == 51
