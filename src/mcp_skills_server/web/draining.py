"""The time between the signal to end and the end: who sends requests here learns to send them elsewhere."""

from __future__ import annotations

import logging
import signal
from collections.abc import AsyncIterator

import anyio

logger = logging.getLogger(__name__)


class Drain:
    """Whether a server is about to end. Until it does, it answers every request and is not ready.

    Args:
        seconds: how long that takes.

    Attributes:
        begun: whether it has begun.
    """

    def __init__(self, seconds: float = 0) -> None:
        self._seconds = seconds
        self.begun = False

    async def until_end(self, signals: AsyncIterator[signal.Signals]) -> None:
        """Return when the server is to end: some time after SIGTERM, at once at SIGINT or at another signal."""
        if await anext(signals) != signal.SIGTERM or not self._seconds:
            return
        self.begun = True
        logger.info("ends in %g s: answers requests, and is not ready for more (--drain)", self._seconds)
        with anyio.move_on_after(self._seconds):
            await anext(signals)
