"""Keeps one answer from holding up the others: what takes long in a thread, and large answers in turns."""

from __future__ import annotations

from asyncio import AbstractEventLoop, Lock, Semaphore, get_running_loop
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

from mcp_skills_server.catalog.threads import in_thread

_T = TypeVar("_T")

_LARGE: Final = 1 << 20
"""An answer with more bytes than this of a file waits for its turn."""
_LARGE_AT_ONCE: Final = 2


async def off_loop(quick: bool, work: Callable[..., _T], *arguments: Any) -> _T:
    """Return what `work` returns; in a thread unless it is quick."""
    return work(*arguments) if quick else await in_thread(work, *arguments)


class _Turns:
    """Of one event loop."""

    def __init__(self) -> None:
        self.owners = WeakValueDictionary[str | None, Lock]()
        self.all = Semaphore(_LARGE_AT_ONCE)


_turns: Final = WeakKeyDictionary[AbstractEventLoop, _Turns]()


@asynccontextmanager
async def in_turn(size: int, owner: str | None) -> AsyncGenerator[None]:
    """While this is entered an answer with so many bytes of a file is made: a large one after the others of its owner,
    and of all owners only a few at once.

    An answer takes several times its size of memory until it is written, and the event loop while it is made: sixty
    requests at once took 1.3 GB, and other clients waited for 6 s.
    """
    if size <= _LARGE:
        yield
        return
    turns = _turns.setdefault(get_running_loop(), _Turns())
    lock = turns.owners.get(owner)
    if lock is None:
        lock = turns.owners[owner] = Lock()
    async with lock, turns.all:
        yield
