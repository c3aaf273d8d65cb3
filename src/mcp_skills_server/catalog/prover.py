"""Computes digests while nobody asks, and leaves what is known to the next process, in a thread of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final

from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.model import Changes, Skill

_STEP_S: Final = 0.0005
"""Between two steps, while nobody asks."""
_CALM_S: Final = 0.01
"""After the last request: who asks one thing after the other is soon back, and would wait for the interpreter."""
_MOST_S: Final = 0.1
"""A step is put off for no longer, so that the work is done some day however much is asked."""


class Prover:
    """Hashes the files of each skill that comes, in small steps: without their digests a touch looks like an edit.

    Then it has the index written, if one is kept and enough is new.

    Args:
        registry: it may be loaded before or after `start`.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._stop = threading.Event()
        self._unproved: SimpleQueue[Skill | None] = SimpleQueue()
        self._unsubscribe: Callable[[], None] = lambda: None
        self.thread = threading.Thread(target=self._prove, name="skills-prove", daemon=True)

    def start(self) -> None:
        """Begin with what there is. Returns at once."""
        self._unsubscribe = self._registry.subscribe(self._note)
        self._note(Changes({}, self._registry.snapshot.skills))
        self.thread.start()

    def end(self) -> None:
        """Have the thread end after the step that it is at."""
        self._stop.set()
        self._unsubscribe()
        self._unproved.put(None)

    def _prove(self) -> None:
        while (skill := self._unproved.get()) is not None:
            if any(file.digest is None for file in skill.files.values()):
                self._registry.hash_files(skill)
                if self._pause():
                    return
            if self._unproved.empty():
                self._registry.keep_index(self._pause)

    def _pause(self) -> bool:
        """Let requests come first; whether it is time to stop."""
        until, seconds = time.monotonic() + _MOST_S, _STEP_S
        while not self._stop.wait(seconds):
            now = time.monotonic()
            if now >= min(until, self._registry.asked_at + _CALM_S):
                return False
            seconds = _CALM_S
        return True

    def _note(self, changes: Changes) -> None:
        for skill in changes.after.values():
            self._unproved.put(skill)
