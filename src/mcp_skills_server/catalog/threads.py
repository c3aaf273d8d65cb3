"""Blocking work in worker threads.

asyncio alone, because a server over stdio starts without anyio: importing anyio's event loop costs
a tenth of the start time and two megabytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import cache, partial
from typing import Any, Final, TypeVar

_T = TypeVar("_T")

_THREADS: Final = 40
"""Threads for all event loops: so many reads can block on a slow disk before others wait."""


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
