"""A concurrency limit for large answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Hashable
from contextlib import asynccontextmanager
from typing import Final
from weakref import WeakKeyDictionary, WeakValueDictionary

_LARGE: Final = 1 << 20
_MAX_AT_ONCE: Final = 2


class _LoopLimits:
    """Concurrency limits of one event loop."""

    def __init__(self) -> None:
        self.locks = WeakValueDictionary[Hashable, asyncio.Lock]()  # by owner
        self.slots = asyncio.Semaphore(_MAX_AT_ONCE)


_limits: Final = WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopLimits]()


@asynccontextmanager
async def limit_large_answers(size: int, owner: Hashable) -> AsyncGenerator[None]:
    """Limit concurrent answers of more than a megabyte: one for each owner, two in all.

    An answer takes several times its size of memory until it is written, and blocks the event loop
    while it is made: sixty requests at once took 1.3 GB, and other clients waited for 6 s.
    """
    if size <= _LARGE:
        yield
        return
    limits = _limits.setdefault(asyncio.get_running_loop(), _LoopLimits())
    lock = limits.locks.get(owner)
    if lock is None:
        lock = limits.locks[owner] = asyncio.Lock()
    async with lock, limits.slots:  # in this order: who waits for the own lock takes no slot
        yield
