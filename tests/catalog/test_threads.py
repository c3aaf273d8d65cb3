"""Work in threads, beside the event loop."""

from __future__ import annotations

import asyncio
import threading
from contextvars import ContextVar

import pytest

from mcp_skills_server.catalog.threads import in_thread
from wire import DEADLINE

KIND: ContextVar[str] = ContextVar("kind")


def test_work_is_done_in_another_thread_and_knows_what_the_caller_knows() -> None:
    def look(number: int) -> tuple[int, str, str]:
        return number, KIND.get(), threading.current_thread().name

    async def ask() -> tuple[int, str, str]:
        KIND.set("mine")
        return await in_thread(look, 7)

    number, kind, thread = asyncio.run(ask())
    assert (number, kind) == (7, "mine") and thread != threading.current_thread().name


def test_what_the_work_raises_is_raised() -> None:
    def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        asyncio.run(in_thread(fail))


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
