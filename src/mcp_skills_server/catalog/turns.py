"""Keeps one answer from holding up the others: what takes long in a thread, and large answers in turns."""

from __future__ import annotations

from asyncio import AbstractEventLoop, Lock, Semaphore, get_running_loop, sleep
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

from mcp_skills_server.catalog.threads import in_thread

_T = TypeVar("_T")

_LARGE: Final = 1 << 20
"""An answer with more bytes than this of a file waits for its turn."""
_LARGE_AT_ONCE: Final = 2


async def off_loop(quick: bool, work: Callable[..., _T], *arguments: Any) -> _T:
    """What `work` returns; in a thread unless it is quick."""
    return work(*arguments) if quick else await in_thread(work, *arguments)


class _Turns:
    """Of one event loop."""

    def __init__(self) -> None:
        self.owners = WeakValueDictionary[str | None, Lock]()
        self.all = Semaphore(_LARGE_AT_ONCE)


_AT_ONCE: Final = nullcontext()
_turns: Final = WeakKeyDictionary[AbstractEventLoop, _Turns]()


def in_turn(size: int, owner: str | None) -> AbstractAsyncContextManager[None]:
    """While this is entered an answer with so many bytes of a file is made: a large one after the others of its owner,
    and of all owners only a few at once.

    An answer takes several times its size of memory until it is written, and the event loop while it is made: sixty
    requests at once took 1.3 GB, and nobody else was answered for 6 s.
    """
    return _AT_ONCE if size <= _LARGE else _Turn(owner)


class _Turn(AbstractAsyncContextManager[None]):
    """No generator: one that is given up while it waits cannot be closed, and the event loop complains of it."""

    def __init__(self, owner: str | None) -> None:
        loop = get_running_loop()
        turns = _turns.get(loop)
        if turns is None:
            turns = _turns[loop] = _Turns()
        mine = turns.owners.get(owner)
        if mine is None:
            mine = turns.owners[owner] = Lock()
        self._mine, self._all = mine, turns.all

    async def __aenter__(self) -> None:
        await sleep(0)  # a call that is given up when it would have to wait ends here, with nothing in its hands
        await self._mine.acquire()
        try:
            await self._all.acquire()
        except BaseException:
            self._mine.release()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._all.release()
        self._mine.release()
