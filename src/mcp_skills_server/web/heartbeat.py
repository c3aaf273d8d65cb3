"""The lag of the event loop: how late its timers run."""

from __future__ import annotations

import asyncio
from collections import deque
from time import monotonic
from typing import Final

_INTERVAL_S: Final = 1.0
_KEPT: Final = 60


class Heartbeat:
    """Measures the lag of an event loop once a second; any thread may read it."""

    def __init__(self) -> None:
        self._due = 0.0
        self._lags = deque[float](maxlen=_KEPT)

    def start(self) -> None:
        """Start to measure; call it in the event loop."""
        self._due = monotonic() + _INTERVAL_S
        asyncio.get_running_loop().call_later(_INTERVAL_S, self._beat)

    @property
    def lag_s(self) -> float:
        """The lateness of the next beat, now."""
        return max(0.0, monotonic() - self._due) if self._due else 0.0

    @property
    def max_lag_s(self) -> float:
        """The maximum of the last minute."""
        return max((self.lag_s, *self._lags))

    def _beat(self) -> None:
        self._lags.append(self.lag_s)
        self.start()
