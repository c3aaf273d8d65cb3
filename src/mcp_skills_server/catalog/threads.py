"""Blocking work in worker threads, and a concurrency limit for large answers.

asyncio alone, because a server over stdio starts without anyio: importing anyio's event loop costs
a tenth of the start time and two megabytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from contextvars import copy_context
from functools import cache, partial
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

_T = TypeVar("_T")

_THREADS: Final = 40
"""Concurrent threads for all event loops: so many reads can block on a slow disk before others
queue."""
_LARGE: Final = 1 << 20
_LARGE_AT_ONCE: Final = 2


async def in_thread(work: Callable[..., _T], *arguments: object) -> _T:
    """Run `work` in a worker thread and return its result, without blocking the event loop.

    A cancelled caller does not wait: work that has begun runs to its end, queued work is dropped.
    """
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(pool(), partial(copy_context().run, work, *arguments))


async def off_loop(quick: bool, work: Callable[..., _T], *arguments: Any) -> _T:
    """Return the result of `work`, run inline if `quick` and in a worker thread otherwise."""
    if quick:
        return work(*arguments)
    return await in_thread(work, *arguments)


@cache
def pool() -> ThreadPoolExecutor:
    """Return the process-wide thread pool; the event loop's own waits on close for a hung read."""
    return ThreadPoolExecutor(_THREADS, "skills-work")


class _LoopLimits:
    """Concurrency limits of one event loop."""

    def __init__(self) -> None:
        self.owners = WeakValueDictionary[str | None, asyncio.Lock]()
        self.all = asyncio.Semaphore(_LARGE_AT_ONCE)


_turns: Final = WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopLimits]()


@asynccontextmanager
async def limit_large_answers(size: int, owner: str | None) -> AsyncGenerator[None]:
    """Limit concurrent answers of more than a megabyte: one for each owner, two in all.

    An answer takes several times its size of memory until it is written, and blocks the event loop
    while it is made: sixty requests at once took 1.3 GB, and other clients waited for 6 s.
    """
    if size <= _LARGE:
        yield
        return
    turns = _turns.setdefault(asyncio.get_running_loop(), _LoopLimits())
    lock = turns.owners.get(owner)
    if lock is None:
        lock = turns.owners[owner] = asyncio.Lock()
    async with lock, turns.all:
        yield
