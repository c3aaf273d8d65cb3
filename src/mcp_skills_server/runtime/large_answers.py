"""A concurrency limit for large answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Hashable
from contextlib import asynccontextmanager
from typing import Final
from weakref import WeakKeyDictionary, WeakValueDictionary

_LARGE: Final = 1 << 20
_LARGE_AT_ONCE: Final = 2


class _LoopLimits:
    """Concurrency limits of one event loop."""

    def __init__(self) -> None:
        self.owners = WeakValueDictionary[Hashable, asyncio.Lock]()
        self.all = asyncio.Semaphore(_LARGE_AT_ONCE)


_turns: Final = WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopLimits]()


@asynccontextmanager
async def limit_large_answers(size: int, owner: Hashable) -> AsyncGenerator[None]:
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
