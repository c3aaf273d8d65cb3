"""Blocking work in worker threads, and a concurrency limit for large answers.

A server over stdio starts without anyio: its event loop takes a tenth of a start to import, and two
megabytes.
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
"""At once, of all event loops: a slow disk may hold up as many reads before others have to wait."""
_LARGE: Final = 1 << 20
_LARGE_AT_ONCE: Final = 2


async def in_thread(work: Callable[..., _T], *arguments: object) -> _T:
    """Return what `work` returns in a thread. The event loop goes on meanwhile.

    A caller that is cancelled does not wait for the work, which ends if it has begun, and is
    dropped if it has not.
    """
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(pool(), partial(copy_context().run, work, *arguments))


async def off_loop(quick: bool, work: Callable[..., _T], *arguments: Any) -> _T:
    """Return what `work` returns; in a thread unless it is quick."""
    if quick:
        return work(*arguments)
    return await in_thread(work, *arguments)


@cache
def pool() -> ThreadPoolExecutor:
    """Return the threads of this process. They are not the event loop's own, which would wait for a
    read that hangs."""
    return ThreadPoolExecutor(_THREADS, "skills-work")


class _Turns:
    """The limits of one event loop."""

    def __init__(self) -> None:
        self.owners = WeakValueDictionary[str | None, asyncio.Lock]()
        self.all = asyncio.Semaphore(_LARGE_AT_ONCE)


_turns: Final = WeakKeyDictionary[asyncio.AbstractEventLoop, _Turns]()


@asynccontextmanager
async def in_turn(size: int, owner: str | None) -> AsyncGenerator[None]:
    """Limit the answers of more than a megabyte that are made at the same time: one for each owner,
    two in all.

    An answer takes several times its size of memory until it is written, and the event loop while
    it is made: sixty requests at once took 1.3 GB, and other clients waited for 6 s.
    """
    if size <= _LARGE:
        yield
        return
    turns = _turns.setdefault(asyncio.get_running_loop(), _Turns())
    lock = turns.owners.get(owner)
    if lock is None:
        lock = turns.owners[owner] = asyncio.Lock()
    async with lock, turns.all:
        yield
