"""Repeats recent notifications when another replica has caught up.

A client that hears of a change from one replica may read the old list from a replica that is behind. When that one
catches up, it notifies its own clients, and all other replicas repeat what they notified theirs of.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Final

_KEPT_S: Final = 600.0
"""A replica may be this far behind: fetching a large repository takes minutes."""
_MOST: Final = 256


class RecentNotifications:
    """The notifications of the last ten minutes.

    Args:
        announce: tells the other replicas that this one has notified its clients, and so has caught up.
    """

    def __init__(self, announce: Callable[[], object]) -> None:
        self._announce = announce
        self._notified: deque[tuple[float, Callable[[], None]]] = deque(maxlen=_MOST)
        self._loop: asyncio.AbstractEventLoop | None = None

    def add(self, notify: Callable[[], None], *, announced: bool = True) -> None:
        """Remember a notification that was just sent. Called in the event loop."""
        self._notified.append((monotonic(), notify))
        # What it holds may be large, and no other may follow.
        self._loop = asyncio.get_running_loop()
        self._loop.call_later(_KEPT_S, self._forget)
        if announced:
            self._announce()

    def repeat(self) -> None:
        """Send them once more. Called in any thread."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed: no client is left
                self._loop.call_soon_threadsafe(self._repeat)

    def _repeat(self) -> None:
        for _, notify in [*self._notified]:
            notify()

    def _forget(self) -> None:
        while self._notified and self._notified[0][0] <= monotonic() - _KEPT_S:
            self._notified.popleft()
