"""Asks of the current snapshot, and looks again when the disk has moved on.

A file that turns out to have changed since its scan is scanned again and the question answered anew, from the new
snapshot. Whatever may take long happens in a thread, so that one reader of a slow disk does not stop all.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, TypeVar
from weakref import WeakValueDictionary

from anyio import Lock, Semaphore, sleep, to_thread
from anyio.lowlevel import RunVar

from mcp_skills_server.catalog.reader import Body
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.errors import StaleFileError
from mcp_skills_server.model import SKILL_MD, Skill, SkillFile, Snapshot
from mcp_skills_server.telemetry import events

_T = TypeVar("_T")

_TRIES: Final = 6
_PAUSE_S: Final = 0.005
"""Before the third try, and twice as long before each one that follows: what is being written needs time."""
_INLINE_BYTES: Final = 1 << 18
"""Larger files are read off the event loop."""
_LARGE: Final = 1 << 20
"""An answer with more bytes than this of a file waits for its turn."""
_LARGE_AT_ONCE: Final = 2
_INLINE_MARKDOWN: Final = 1 << 14
"""A longer SKILL.md is parsed off the event loop; for a shorter one the switch of threads would cost more."""


async def answer(registry: Registry, ask: Callable[[Snapshot, bool], Awaitable[_T]]) -> _T:
    """What `ask(snapshot, last_try)` answers; asked anew, after a scan, when it finds a file changed.

    Raises:
        StaleFileError: a file did not hold still, or stays unreadable.
    """
    for attempt in range(_TRIES):
        last = attempt == _TRIES - 1
        try:
            return await ask(registry.snapshot, last)
        except StaleFileError as stale:
            if last:
                raise
            events.begins_again()
            await to_thread.run_sync(registry.rescan, stale)
            if attempt and stale.in_motion:
                await sleep(_PAUSE_S * 2 ** (attempt - 1))
    raise AssertionError


async def off_loop(quick: bool, work: Callable[..., _T], *arguments: Any) -> _T:
    """What `work` returns; in a thread unless it is quick."""
    return work(*arguments) if quick else await to_thread.run_sync(partial(work, *arguments))


class _Turns:
    """Of one event loop."""

    def __init__(self) -> None:
        self.owners = WeakValueDictionary[str | None, Lock]()
        self.all = Semaphore(_LARGE_AT_ONCE)


_turns: Final = RunVar[_Turns]("turns")


@asynccontextmanager
async def in_turn(size: int, owner: str | None) -> AsyncGenerator[None]:
    """While this is entered an answer with so many bytes of a file is made: a large one after the others of its owner,
    and of all owners only a few at once.

    An answer takes several times its size of memory until it is written, and the event loop while it is made: sixty
    requests at once took 1.3 GB, and nobody else was answered for 6 s.
    """
    if size <= _LARGE:
        yield
        return
    turns = _turns.get(None)
    if turns is None:
        _turns.set(turns := _Turns())
    mine = turns.owners.get(owner)
    if mine is None:
        mine = turns.owners[owner] = Lock()
    async with mine, turns.all:
        yield


async def read(registry: Registry, file: SkillFile, *, last: bool = False) -> bytes:
    """`Registry.read` without holding up others; on the last try also the bytes that a scan has kept.

    Raises:
        StaleFileError: as there.
    """
    try:
        return await off_loop(file.size <= _INLINE_BYTES, registry.read, file)
    except StaleFileError as stale:
        kept = registry.last_read(file) if last and stale.in_motion else None
        if kept is None:
            raise
        return kept


async def body(registry: Registry, skill: Skill, *, last: bool = False) -> Body:
    """`Registry.body` without holding up others; on the last try also that of the bytes that a scan has kept.

    Raises:
        StaleFileError: as there.
    """
    quick = skill.files[SKILL_MD].size <= _INLINE_MARKDOWN or registry.has_body(skill)
    try:
        found = await off_loop(quick, registry.body, skill)
    except StaleFileError as stale:
        kept = registry.last_body(skill) if last and stale.in_motion else None
        if kept is None:
            raise
        found = kept
    events.was_read(skill, SKILL_MD)
    return found
