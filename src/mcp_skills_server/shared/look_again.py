"""Publish/subscribe between replicas: a change that one notices makes the others look at their
sources or folders.

A message says where to look and nothing else, so that a writer to Redis can make replicas look and
no more. Messages are throttled to one look a second, and a replica looks by itself when messages
may have been missed.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import threading
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final, Literal, TypeAlias, cast

from mcp_skills_server.errors import REPEATS
from mcp_skills_server.shared.link import Link

logger = logging.getLogger(__name__)

Where: TypeAlias = Literal["sources", "folders", "clients"]
SOURCES: Final = "sources"
FOLDERS: Final = "folders"
CLIENTS: Final = "clients"
"""A replica has notified its clients: clients of the others may have read the old state from it
until then."""
_LOOK_S: Final = 1.0
_SHARE: Final = 4
"""The least pause after a look, as a multiple of the time that the look took."""
_SAY_S: Final = 0.2
"""Between two messages: an edit of many files is one."""
_LONGEST: Final = 512
_FIELDS: Final = ("look", "from")


class LookAgain:
    """Says to other replicas that there is something to look at, and looks when they say so.

    Args:
        link: the way to Redis, not yet started; this is what listens there.
        look: what to call, in a thread, for each of `SOURCES`, `FOLDERS` and `CLIENTS` that this
            replica follows.
    """

    def __init__(self, link: Link, look: Mapping[Where, Callable[[], object]]) -> None:
        self._link = link
        self._us = secrets.token_hex(8)
        self._looks: dict[str, _Throttled] = {
            where: _Throttled(partial(self._look_in_thread, work), _LOOK_S)
            for where, work in look.items()
        }
        self._says: dict[Where, _Throttled] = {}
        self._lookers: set[int] = set()
        """The threads that look because another replica said so."""

    def start(self) -> None:
        """Listen from now on."""
        self._link.start(self)

    def stop(self) -> None:
        """Listen no more."""
        self._link.stop()

    @property
    def is_looking(self) -> bool:
        """Tell whether this thread looks at folders because another replica said so, which need not
        be said again."""
        return threading.get_ident() in self._lookers

    def say(self, where: Where) -> None:
        """Have the other replicas look, from any thread.

        Return at once. The message is lost where Redis does not answer.
        """
        self._link.soon(self._say, where)

    def _say(self, where: Where) -> None:
        if where not in self._says:
            self._says[where] = _Throttled(partial(self._publish, where), _SAY_S)
        self._says[where].ask()

    async def _publish(self, where: Where) -> None:
        await self._link.publish(json.dumps({"look": where, "from": self._us}))

    def heard(self, message: bytes) -> None:
        """Look, if this is from another replica and says so."""
        said = _parsed(message)
        if said is None:
            logger.warning(
                "%s: a message that no replica wrote; keep other programs off the keys %s*",
                self._link.settings.shown,
                self._link.settings.prefix,
                extra=REPEATS,
            )
            return
        if said["from"] != self._us and said["look"] in self._looks:
            self._looks[said["look"]].ask()

    def returned(self) -> None:
        """Look everywhere, and have the others do so: messages were lost meanwhile."""
        for where, throttled in self._looks.items():
            throttled.ask()
            self._say(cast("Where", where))

    async def _look_in_thread(self, work: Callable[[], object]) -> None:
        await asyncio.to_thread(self._look, work)

    def _look(self, work: Callable[[], object]) -> None:
        self._lookers.add(threading.get_ident())
        try:
            work()
        finally:
            self._lookers.discard(threading.get_ident())


class _Throttled:
    """Work that is done at once when it is asked for, and not again before a pause is over. For one
    event loop.

    The pause is at least `pause_s`, and four times as long as the work took.
    """

    def __init__(self, work: Callable[[], Awaitable[object]], pause_s: float) -> None:
        self._work = work
        self._pause_s = pause_s
        self._asked = False
        self._task: asyncio.Task[None] | None = None

    def ask(self) -> None:
        """Have it done."""
        self._asked = True
        if self._task is None:
            self._task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        try:
            while self._asked:
                self._asked = False
                began = asyncio.get_running_loop().time()
                try:
                    await self._work()
                except Exception:  # what fails once must not end the looking
                    logger.exception("looking again failed")
                took = asyncio.get_running_loop().time() - began
                await asyncio.sleep(max(self._pause_s, _SHARE * took))
        finally:
            self._task = None


def _parsed(message: bytes) -> dict[str, str] | None:
    """Return what a message says; None of one that no replica wrote."""
    if len(message) > _LONGEST:
        return None
    try:
        said = json.loads(message)
        return {key: str(said[key]) for key in _FIELDS}
    except (ValueError, RecursionError, TypeError, KeyError):
        return None
