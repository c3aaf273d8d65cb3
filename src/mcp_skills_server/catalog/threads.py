"""Work that would hold up the event loop, in threads of asyncio's kind.

A server over stdio starts without anyio: its event loop takes a tenth of a start to import, and two megabytes.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import copy_context
from functools import cache, partial
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

_T = TypeVar("_T")

_THREADS: Final = 40
"""At once, of all event loops: a slow disk may hold up as many reads before others have to wait."""


async def in_thread(work: Callable[..., _T], *arguments: object) -> _T:
    """Return what `work` returns in a thread. The event loop goes on meanwhile.

    A caller that is cancelled does not wait for the work, which ends if it has begun, and is dropped if it has not.
    """
    import asyncio  # late, for the commands that have no event loop

    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(pool(), partial(copy_context().run, work, *arguments))


@cache
def pool() -> ThreadPoolExecutor:
    """Return the threads of this process. They are not the event loop's own, which would wait for a read that hangs."""
    from concurrent.futures import ThreadPoolExecutor

    return ThreadPoolExecutor(_THREADS, "skills-work")
