"""Counts of uses of skills by principal, host program and version. A reader of events.

A thread writes them once a second, so that no request waits for the disk; the last second before a process is killed
may be lost. Nothing that a person typed is kept unless the operator asks for it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from mcp_skills_server.errors import REPEATS
from mcp_skills_server.model import Changes
from mcp_skills_server.telemetry.events import CATALOGUE, PAGE, PROPOSING, Event, Events
from mcp_skills_server.telemetry.usage_store import OTHER, Batch, Count, NotStoredError, Sum, UsageStore, day_of

logger = logging.getLogger(__name__)

_EVERY_S: Final = 1.0
_END_S: Final = 5.0
_MOST_WAITING: Final = 10_000
"""Different counts that wait to be written; where the store does not keep up, further ones are not counted."""

_MOST_HOSTS: Final = 1000
"""Names of host programs of one day; clients make them up."""


class Usage:
    """Counts what happens, and writes it once a second.

    With `questions`, the text of searches that found nothing is kept.

    Attributes:
        lost: uses that were not counted since the start, because too many waited.
    """

    def __init__(self, store: UsageStore, *, questions: bool = False) -> None:
        self._store = store
        self._keeps_questions = questions
        self._lock = threading.Lock()
        self._waiting = Batch()
        self._unstored: Batch | None = None
        """A batch that could not be stored and is tried again."""
        self._day = 0
        self._hosts: set[str] = set()
        self._dropped = 0
        self.lost = 0
        self._stopping = threading.Event()
        self._fails = False
        """Whether the log has a line of it that nothing can be written."""

    def start(self, events: Events) -> Callable[[], None]:
        """Count every event of a server from now on. Returns a function that writes the rest and ends that."""
        events.keeps_questions = self._keeps_questions
        end = events.subscribe(self.take)
        thread = threading.Thread(target=self._write_on, args=(end,), name="skills-usage", daemon=True)
        thread.start()

        def stop() -> None:
            self._stopping.set()
            thread.join(_END_S)

        return stop

    def serves(self, changes: Changes) -> None:
        """Note what is served; a listener of the registry."""
        with self._lock:
            self._waiting.served |= dict.fromkeys(changes.before, False) | dict.fromkeys(changes.after, True)

    def take(self, event: Event) -> None:
        """Count an event."""
        if event.protocol not in (CATALOGUE, PAGE):
            with self._lock:
                self._count(event)

    def _count(self, event: Event) -> None:
        labels, questions = self._waiting.labels, self._waiting.questions
        if event.principal and event.label and len(labels) < _MOST_WAITING:
            labels[event.principal] = event.label
        about = event.principal or "", self._known(event.host or "", day_of(event.time)), event.protocol
        for use in event.uses:
            counted_at = "ok"
            if use.action == "run":
                counted_at = "begun"
            if use.action and use.action not in PROPOSING and event.outcome == counted_at:
                self._add(event.time, use.action, use.skill, use.digest, about)
        if event.found is None:
            return
        if event.found:
            self._add(event.time, "search", "", "", about)
            return
        self._add(event.time, "empty", "", "", about)
        text = event.question
        if self._keeps_questions and text and (text in questions or len(questions) < _MOST_WAITING):
            questions[text] = questions.get(text, 0) + 1

    def _add(self, moment: float, action: str, skill: str, digest: str, about: tuple[str, str, str]) -> None:
        counts = self._waiting.counts
        count = Count(day_of(moment), action, skill, digest, *about)
        known = counts.get(count)
        if known is not None:
            counts[count] = Sum(known.times + 1, max(known.last, moment))
        elif len(counts) < _MOST_WAITING:
            counts[count] = Sum(1, moment)
        else:
            if not self._dropped:
                logger.error(
                    "%s: %s different counts wait already; further ones are not counted until they are written",
                    self._store.name,
                    f"{_MOST_WAITING:,}",
                )
            self._dropped += 1
            self.lost += 1

    @property
    def waiting(self) -> int:
        """Return how many different counts wait to be written."""
        with self._lock:
            return sum(len(each.counts) for each in (self._waiting, self._unstored) if each is not None)

    def _known(self, host: str, today: int) -> str:
        if self._day != today:
            self._day = today
            self._hosts.clear()
        if host not in self._hosts:
            if len(self._hosts) >= _MOST_HOSTS:
                return OTHER
            self._hosts.add(host)
        return host

    def flush(self) -> None:
        """Write what waits. Where that fails, it waits on."""
        try:
            while (batch := self._next()) is not None:
                self._store.add(batch)
                self._unstored = None
        except NotStoredError as error:
            if not self._fails:
                logger.error("%s: uses cannot be counted (%s); requests go on", self._store.name, error)
                self._fails = True
            return
        if self._fails or self._dropped:
            with self._lock:
                dropped, self._dropped = self._dropped, 0
            self._fails = False
            lost = ""
            if dropped:
                lost = f"; {dropped:,} uses meanwhile were not"
            logger.warning("%s: uses are counted again%s", self._store.name, lost)

    def _next(self) -> Batch | None:
        """Return the batch that is to be stored, None if nothing waits."""
        with self._lock:
            if self._unstored is None and self._waiting != Batch():
                self._unstored, self._waiting = self._waiting, Batch()
            return self._unstored

    def _write_on(self, end: Callable[[], None]) -> None:
        while not self._stopping.wait(_EVERY_S):
            self._try_to_flush()
        end()
        self._try_to_flush()
        if self._unstored is not None:
            logger.error("%s: what was counted last could not be written, and is lost", self._store.name)

    def _try_to_flush(self) -> None:
        try:
            self.flush()
        except Exception:  # a bug must not end the counting
            logger.exception("uses could not be written", extra=REPEATS)
