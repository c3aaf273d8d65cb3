"""What clients were notified of in the last moments, to notify them of it once more.

Where several processes serve the same, a client that heard of a change from one may ask another that does not have it
yet. When that one has it, its notification goes to its own clients alone.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Final

_KEPT_S: Final = 30.0
"""No process is behind for longer while it answers."""
_MOST: Final = 256


class Latest:
    """The notifications of the last half minute, made in one event loop."""

    def __init__(self) -> None:
        self._notified: deque[tuple[float, Callable[[], None]]] = deque(maxlen=_MOST)
        self._loop: asyncio.AbstractEventLoop | None = None

    def add(self, notify: Callable[[], None]) -> None:
        """This was just done."""
        self._notified.append((monotonic(), notify))
        # What it holds may be large, and no other may follow.
        self._loop = asyncio.get_running_loop()
        self._loop.call_later(_KEPT_S, self._forget)

    def again(self, since: float) -> None:
        """Do it once more, all that was done since this moment of `time.monotonic`. Called in any thread."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed: no client is left
                self._loop.call_soon_threadsafe(self._repeat, since)

    def _repeat(self, since: float) -> None:
        for at, notify in [*self._notified]:
            if at >= since:
                notify()

    def _forget(self) -> None:
        while self._notified and self._notified[0][0] <= monotonic() - _KEPT_S:
            self._notified.popleft()
