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

    Args:
        store: where to.
        questions: keep the text of searches that found nothing.

    Attributes:
        lost: uses that were not counted since the start, because too many waited.
    """

    def __init__(self, store: UsageStore, *, questions: bool = False) -> None:
        self._store = store
        self._keeps_questions = questions
        self._lock = threading.Lock()
        self._waiting: dict[Count, Sum] = {}
        self._questions: dict[str, int] = {}
        self._labels: dict[str, str] = {}
        self._hosts: tuple[int, set[str]] = 0, set()
        self._dropped = 0
        self.lost = 0
        self._unstored: Batch | None = None
        """A batch that could not be stored and is tried again."""
        self._came: set[str] = set()
        self._gone: set[str] = set()
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
            gone, came = changes.before.keys() - changes.after.keys(), changes.after.keys()
            self._came = (self._came - gone) | came
            self._gone = (self._gone - came) | gone

    def take(self, event: Event) -> None:
        """Count an event."""
        if event.protocol not in (CATALOGUE, PAGE):
            with self._lock:
                self._count(event)

    def _count(self, event: Event) -> None:
        if event.principal and event.label and len(self._labels) < _MOST_WAITING:
            self._labels[event.principal] = event.label
        about = event.principal or "", self._known(event.host or "", day_of(event.time)), event.protocol
        for use in event.uses:
            if (
                use.action
                and use.action not in PROPOSING
                and event.outcome == ("begun" if use.action == "run" else "ok")
            ):
                self._add(event.time, use.action, use.skill, use.digest, about)
        if event.found is not None:
            self._add(event.time, "search" if event.found else "empty", "", "", about)
            if self._keeps_questions and event.found == 0 and event.question:
                self._ask(event.question)

    def _add(self, moment: float, action: str, skill: str, digest: str, about: tuple[str, str, str]) -> None:
        count = Count(day_of(moment), action, skill, digest, *about)
        known = self._waiting.get(count)
        if known is not None:
            self._waiting[count] = Sum(known.times + 1, max(known.last, moment))
        elif len(self._waiting) < _MOST_WAITING:
            self._waiting[count] = Sum(1, moment)
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
        waiting, unstored = len(self._waiting), self._unstored
        if unstored is not None:
            waiting += len(unstored.counts)
        return waiting

    def _known(self, host: str, today: int) -> str:
        day, hosts = self._hosts
        if day != today:
            hosts = set[str]()
            self._hosts = today, hosts
        if host not in hosts:
            if len(hosts) >= _MOST_HOSTS:
                return OTHER
            hosts.add(host)
        return host

    def _ask(self, text: str) -> None:
        if text in self._questions or len(self._questions) < _MOST_WAITING:
            self._questions[text] = self._questions.get(text, 0) + 1

    def flush(self) -> None:
        """Write what waits. Where that fails, it waits on."""
        with self._lock:
            came, self._came = self._came, set()
            gone, self._gone = self._gone, set()
        try:
            if came or gone:
                self._store.serve(came, gone)
                came, gone = set[str](), set[str]()
            while (batch := self._next()) is not None:
                self._store.add(batch)
                self._unstored = None
        except NotStoredError as error:
            if not self._fails:
                logger.error("%s: uses cannot be counted (%s); requests go on", self._store.name, error)
                self._fails = True
            with self._lock:
                self._came |= came - self._gone
                self._gone |= gone - self._came
            return
        if self._fails or self._dropped:
            with self._lock:
                dropped, self._dropped = self._dropped, 0
            self._fails = False
            lost = f"; {dropped:,} uses meanwhile were not" if dropped else ""
            logger.warning("%s: uses are counted again%s", self._store.name, lost)

    def _next(self) -> Batch | None:
        """Return the batch that is to be stored, None if nothing waits."""
        if self._unstored is None:
            with self._lock:
                waiting, self._waiting = self._waiting, {}
                questions, self._questions = self._questions, {}
                labels, self._labels = self._labels, {}
            if waiting or questions or labels:
                self._unstored = Batch(waiting, questions, labels)
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
