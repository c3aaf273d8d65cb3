"""Skills on their way from the threads that make them to the one that puts them into their places."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Final

from mcp_skills_server.sources.folder import Staged

_ENOUGH: Final = 256
_WAITED_FOR: Final = frozenset((1, _ENOUGH))
"""Numbers of skills at which the one that takes has something to do. To wake it at each costs a change of threads."""
_GATHERING_S: Final = 0.1
"""After a batch the next waits for so many skills, or so long: each commit waits for the disk."""


class Gathering:
    """What was staged and is not committed yet. Any thread may put; one takes."""

    def __init__(self) -> None:
        self._staged: list[Staged] = []
        self._ended = False
        self._changed = threading.Condition()

    def put(self, staged: Staged) -> None:
        """One more."""
        with self._changed:
            self._staged.append(staged)
            if len(self._staged) in _WAITED_FOR:
                self._changed.notify()

    def end(self) -> None:
        """No more will come."""
        with self._changed:
            self._ended = True
            self._changed.notify()

    def batches(self) -> Iterator[list[Staged]]:
        """As much at once as has come since the last time, until the end; it blocks."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._staged or self._ended)
                batch, self._staged = self._staged, []
            if not batch:
                return
            yield batch
            with self._changed:
                self._changed.wait_for(lambda: self._ended or len(self._staged) >= _ENOUGH, _GATHERING_S)
