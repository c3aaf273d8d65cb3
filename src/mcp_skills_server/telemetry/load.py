"""The load of a server: the lag of its event loop, and how much of limited resources is in use."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Final, NamedTuple

_INTERVAL_S: Final = 1.0
_KEPT: Final = 60


class Occupancy(NamedTuple):
    """The use of a limited resource: the amount, its limit, and how often a holder was evicted."""

    used: int
    limit: int
    evicted: int = 0


class Load:
    """Measures how late the timers of the event loop run, once a second. Any thread may read it.

    Attributes:
        usage: returns the use of each limited resource, by its name.
    """

    def __init__(self) -> None:
        self.usage: dict[str, Callable[[], Occupancy]] = {}
        self._due = 0.0
        self._lags = deque[float](maxlen=_KEPT)

    def start(self) -> None:
        """Start to measure; call it in the event loop."""
        self._due = monotonic() + _INTERVAL_S
        asyncio.get_running_loop().call_later(_INTERVAL_S, self._beat)

    @property
    def lag_s(self) -> float:
        """The lateness of the next measurement, now."""
        return max(0.0, monotonic() - self._due) if self._due else 0.0

    @property
    def max_lag_s(self) -> float:
        """The maximum of the last minute."""
        return max((self.lag_s, *self._lags))

    def _beat(self) -> None:
        self._lags.append(self.lag_s)
        self.start()
