"""Worker threads."""

from __future__ import annotations

import asyncio
import threading
from contextvars import ContextVar

import pytest

from mcp_skills_server.catalog.threads import in_thread
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
