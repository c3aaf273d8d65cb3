"""Readers of events that may see them a moment later: no request waits for them, and they get many at once.

To put an event down costs one `append`. A thread hands on what waits five times a second, and sleeps while nothing
does. Whoever must not overtake the readers, or shows what they have, calls `drain` first.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

from mcp_skills_server.errors import REPEATS

if TYPE_CHECKING:
    from mcp_skills_server.telemetry.events import Event

logger = logging.getLogger(__name__)

Make: TypeAlias = Callable[[], "Event"]
"""Makes an event of what was noted when it happened."""
BatchReader: TypeAlias = Callable[[Sequence["Event"]], None]
BATCHED: Final = "batched"
"""The attribute of a record of the log that others follow at once: a handler may leave it until `flush`."""

_EVERY_S: Final = 0.2
_BATCH: Final = 32
"""Events that are handed on before others may run: the thread has the interpreter for so long."""
_PAUSE_S: Final = 0.0005
_MOST_WAITING: Final = 10_000
"""Where the readers do not keep up, whoever puts down one more hands them on."""

readers: Final[dict[object, BatchReader]] = {}
_waiting: Final[deque[Make]] = deque()
_handing_on: Final = threading.RLock()  # for a handler of a signal that logs in the midst of it
_wake: Final = threading.Event()
_thread: threading.Thread | None = None
_sleeps = False
_hands_on: int | None = None
"""The thread in which readers are at work."""


def subscribe(reader: BatchReader) -> Callable[[], None]:
    """Have `reader` called with what happens from now on, within a fifth of a second, from any thread but never twice
    at a time. What it raises is logged.

    Returns what hands on what waits, and ends the subscription.
    """
    global _thread  # noqa: PLW0603 - readers are of the whole process
    token = object()
    readers[token] = reader
    with _handing_on:
        if _thread is None:
            _thread = threading.Thread(target=_run, name="skills-events", daemon=True)
            _thread.start()
            atexit.register(drain)

    def end() -> None:
        drain()
        readers.pop(token, None)

    return end


def put(make: Make) -> None:
    """Have every reader called with this event later."""
    global _sleeps  # noqa: PLW0603
    _waiting.append(make)
    if _sleeps:
        _sleeps = False
        _wake.set()
    elif len(_waiting) >= _MOST_WAITING:
        drain()


def drain() -> None:
    """Hand on now what waits, before this returns. Does nothing where a reader calls it."""
    while _waiting and _hand_on():
        pass


def _hand_on() -> bool:
    """Hand on the oldest events that wait; False where a reader called this."""
    global _hands_on  # noqa: PLW0603
    if _hands_on == threading.get_ident():
        return False
    with _handing_on:
        _hands_on = threading.get_ident()
        try:
            batch = [_waiting.popleft()() for _ in range(min(_BATCH, len(_waiting)))]
            for reader in list(readers.values()):
                try:
                    reader(batch)
                except Exception:  # a bug of one reader must not cost the others the events
                    logger.exception("a reader of events failed", extra=REPEATS)
        finally:
            _hands_on = None
    return True


def _run() -> None:
    global _sleeps  # noqa: PLW0603
    while True:
        _sleeps = True
        if not _waiting:
            _wake.wait()
        _wake.clear()
        _sleeps = False
        time.sleep(_EVERY_S)
        while _waiting and _hand_on():
            time.sleep(_PAUSE_S)
