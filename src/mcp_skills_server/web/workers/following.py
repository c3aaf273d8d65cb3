"""The watcher of a worker: it looks where the supervisor looked, and never by itself.

Workers look at their own pace. A client of the modern era may hear of a change from one and then ask another that does
not have it yet, and that one's notification goes to its own clients alone. So a worker that answered meanwhile says
that it was late, and the others notify once more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any, Final

from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.watch import Watcher
from mcp_skills_server.model import Changes, Problem

_IDLE_S: Final = 0.5
"""How soon listeners hear of what requests found meanwhile."""
_REREAD_S: Final = 5.0
"""How much sooner another worker may have read grants again."""


def _pass_over(*_: object) -> None:
    """Where nobody is there to take it."""


class FollowingRegistry(Registry):
    """A registry whose supervisor has one of the same folders."""

    def keep_index(self, pause: Callable[[], bool]) -> None:
        """Nothing: the supervisor leaves what is known to the next process."""


class Following(Watcher):
    """Keeps a registry as its supervisor has it.

    Args:
        registry: loaded when the supervisor says that the folders are watched.
        late: takes since when this worker may have answered with less than others had.
    """

    def __init__(self, registry: Registry, late: Callable[[float], object] = _pass_over) -> None:
        super().__init__(registry)
        self._late = late
        self._asked = 0.0
        self._is_other = False
        registry.subscribe(self._note)
        self.messages: Final[SimpleQueue[dict[str, Any] | None]] = SimpleQueue()
        """What the supervisor says of the skills: "load", "look", "again", "note", "states" and "changes"."""
        self.states: Sequence[dict[str, Any]] = ()
        """Of the sources, as the supervisor said last."""
        self.changed: Callable[[float, Sequence[Any]], object] = _pass_over
        """Takes what the supervisor found, once this registry has it too: since when, and the scans."""
        self.again: Callable[[float], object] = _pass_over
        """Notifies clients once more of what they were notified of since a moment."""

    def asked(self) -> None:
        """A request is about to be answered that any worker may answer."""
        self._asked = monotonic()

    def regranted(self) -> None:
        """Who may read what is another matter from now on, at each worker at a moment of its own."""
        self._say_if_late(monotonic() - _REREAD_S)

    def stop(self, timeout: float = 1.0) -> None:
        """As for any watcher."""
        self._stop.set()
        self.messages.put(None)
        super().stop(timeout)

    def _follow(self) -> None:
        while not self._stop.is_set():
            try:
                self._take(self.messages.get(timeout=_IDLE_S))
            except Empty:
                pass
            except Exception:
                # Whatever it was, a catalogue that no longer follows its folder is worse than a line in the log.
                self._report("what has changed could not be looked at; looking at everything", traceback=True)
                self._load_or_refresh()
                self._say_if_late(0.0)
            self._registry.notify_deferred()

    def _take(self, message: dict[str, Any] | None) -> None:
        """Do what it says, and what has come since."""
        while message is not None:
            if message["say"] == "look" and not self._registry.loaded.is_set():
                return  # it will be loaded after that
            if message["say"] == "load":
                self._load_or_refresh()
                self.armed.set()
            elif message["say"] == "note":
                problems = [Problem(**each) for each in message["problems"]]
                self._registry.note(message["folder"], message["revision"], problems)
            elif message["say"] == "states":
                self.states = message["states"]
            elif message["say"] == "changes":
                self.changed(message["since"], message["scans"])
            elif message["say"] == "again":
                self.again(message["since"])
            else:
                since = message["at"]  # of the first of them
                paths, message = self._paths(message["paths"])
                self._is_other = False
                self._registry.refresh(paths)
                self._registry.notify_deferred()  # a request may have found it before
                if self._is_other:
                    self._say_if_late(since)
                continue
            message = None

    def _note(self, changes: Changes) -> None:
        self._is_other = self._is_other or bool(changes)

    def _say_if_late(self, since: float) -> None:
        if self._asked >= since:
            self._late(since)

    def _paths(self, paths: list[str] | None) -> tuple[list[str] | None, dict[str, Any] | None]:
        """These paths with those of later messages, and the first message that is about something else."""
        while True:
            try:
                later = self.messages.get_nowait()
            except Empty:
                return paths, None
            if later is None or later["say"] != "look":
                return paths, later
            paths = None if paths is None or later["paths"] is None else [*paths, *later["paths"]]
