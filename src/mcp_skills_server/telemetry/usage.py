"""Which skills are used: by whom, by which host program, in which version, and when last. A reader of events.

Written once a second by a thread, so that no request waits for the disk; what happened within the last second before a
process is killed may be lost. Nothing that a person typed is kept unless the operator asks for it.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Final

from mcp_skills_server.errors import REPEATS
from mcp_skills_server.model import Changes
from mcp_skills_server.telemetry.events import CATALOGUE, PAGE, Event, subscribe
from mcp_skills_server.telemetry.usage_store import BUSY_S, Count, UsageStore, day_of

logger = logging.getLogger(__name__)

_EVERY_S: Final = 1.0
_MOST_WAITING: Final = 10_000
"""Different counts that wait to be written; where the disk does not keep up, further ones are not counted."""


class Usage:
    """Counts what happens, and writes it once a second.

    Args:
        store: where to.
        questions: keep the text of searches that found nothing.
    """

    def __init__(self, store: UsageStore, *, questions: bool = False) -> None:
        self._store = store
        self._keeps_questions = questions
        self._lock = threading.Lock()
        self._waiting: Counter[Count] = Counter()
        self._last: dict[Count, float] = {}
        self._questions: OrderedDict[str, None] = OrderedDict()
        self._came: set[str] = set()
        self._gone: set[str] = set()
        self._stopping = threading.Event()
        self._fails = False

    def start(self) -> Callable[[], None]:
        """Count every event from now on. Returns what writes the rest and ends that."""
        end = subscribe(self.take)
        thread = threading.Thread(target=self._write_on, name="skills-usage", daemon=True)
        thread.start()

        def stop() -> None:
            end()
            self._stopping.set()
            thread.join(BUSY_S)

        return stop

    def serves(self, changes: Changes) -> None:
        """Note what is served; a listener of the registry."""
        with self._lock:
            gone, came = changes.before.keys() - changes.after.keys(), changes.after.keys()
            self._came = (self._came - gone) | came
            self._gone = (self._gone - came) | gone

    def take(self, event: Event) -> None:
        """Count an event."""
        if event.protocol in {CATALOGUE, PAGE}:
            return
        principal, host, day = event.principal or "", event.host or "", day_of(event.time)
        counts = [
            Count(day, use.action, use.skill, use.digest, principal, host, event.protocol)
            for use in event.uses
            if use.action and event.outcome == ("begun" if use.action == "run" else "ok")
        ]
        if event.found is not None:
            action = "search" if event.found else "empty"
            counts.append(Count(day, action, "", "", principal, host, event.protocol))
        if not counts:
            return
        with self._lock:
            for each in counts:
                if each in self._waiting or len(self._waiting) < _MOST_WAITING:
                    self._waiting[each] += 1
                    self._last[each] = event.time
            if self._keeps_questions and event.found == 0 and event.question:
                self._questions[event.question] = None
                while len(self._questions) > _MOST_WAITING:
                    self._questions.popitem(last=False)

    def flush(self) -> None:
        """Write what waits. Where that fails, it waits on."""
        with self._lock:
            waiting, self._waiting = self._waiting, Counter()
            last, self._last = self._last, {}
            questions, self._questions = self._questions, OrderedDict()
            came, self._came = self._came, set()
            gone, self._gone = self._gone, set()
        if not (waiting or questions or came or gone):
            return
        try:
            if came or gone:
                self._store.serve(came, gone)
            self._store.add(((each, times, last[each]) for each, times in waiting.items()), questions)
        except sqlite3.Error as error:
            if not self._fails:
                logger.error("%s: uses cannot be counted (%s); requests go on", self._store.file, error)
            self._fails = True
            with self._lock:
                self._waiting.update(waiting)
                self._last = last | self._last
                self._came |= came - self._gone
                self._gone |= gone - self._came
            return
        if self._fails:
            self._fails = False
            logger.warning("%s: uses are counted again", self._store.file)

    def _write_on(self) -> None:
        while not self._stopping.wait(_EVERY_S):
            try:
                self.flush()
            except Exception:  # a bug must not end the counting
                logger.exception("uses could not be written", extra=REPEATS)
        self.flush()
