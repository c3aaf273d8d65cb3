"""What all threads count, and the gate that makes them be quiet."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager


class Score:
    """What was counted and what failed, by all threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.counts: Counter[str] = Counter()
        self.failures: list[str] = []
        self.slowest = 0.0

    def add(self, what: str, count: int = 1) -> None:
        """Count something."""
        with self._lock:
            self.counts[what] += count

    def fail(self, what: str) -> None:
        """Something that must not be. The first of them are printed at once."""
        with self._lock:
            self.failures.append(what)
            if len(self.failures) <= 20:
                print(f"soak: FAILED: {what}", file=sys.stderr, flush=True)


class Gate:
    """Who disturbs does it in turns, of which there are none while all is quiet."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._open, self._inside = True, 0
        self.over = threading.Event()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Wait until it is open, and keep it from becoming quiet."""
        with self._changed:
            self._changed.wait_for(lambda: self._open)
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Nobody is inside, and nobody comes in."""
        with self._changed:
            self._open = False
            self._changed.wait_for(lambda: not self._inside)
        try:
            yield
        finally:
            with self._changed:
                self._open = True
                self._changed.notify_all()
