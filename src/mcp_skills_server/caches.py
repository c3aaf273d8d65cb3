"""A thread-safe LRU cache, bounded by the weight of its values."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

_K = TypeVar("_K")
_V = TypeVar("_V")


class LruCache(Generic[_K, _V]):
    """Thread-safe LRU cache, bounded by the weight of its values, which are made on a miss.

    `make` is called under the lock, so it must be quick. Evicted values are closed.
    """

    def __init__(
        self,
        make: Callable[[_K], _V],
        most: int,
        *,
        weigh: Callable[[_V], int] = lambda _: 1,
        close: Callable[[_V], object] = lambda _: None,
    ) -> None:
        self._make = make
        self._weigh = weigh
        self.most = most
        self._close = close
        self._lock = threading.Lock()
        self._values: OrderedDict[_K, _V] = OrderedDict()

    def weight(self) -> int:
        """Return the weight of all values."""
        return sum(map(self._weigh, [*self._values.values()]))

    def get(self, key: _K) -> _V:
        """Return the value of this key, made on a miss."""
        evicted: list[_V] = []
        with self._lock:
            if key not in self._values:
                self._values[key] = self._make(key)
                total = self.weight()
                while total > self.most and len(self._values) > 1:
                    _, oldest = self._values.popitem(last=False)
                    total -= self._weigh(oldest)
                    evicted.append(oldest)
            self._values.move_to_end(key)
            value = self._values[key]
        for old in evicted:
            self._close(old)
        return value
