"""Usage statistics: counts of uses by skill, root, version, day, principal and host in SQLite.

A thread writes the counts once a second, so that no request waits for the disk. A killed process
loses at most the last second. Search text is stored only if the operator enables it. Several
processes may share the file, also with other roots: a report can be of some roots only.
"""

from __future__ import annotations

import json
import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from mcp_skills_server.durable import open_database
from mcp_skills_server.errors import REPEATS, UsageError
from mcp_skills_server.model import Changes
from mcp_skills_server.telemetry.events import CATALOGUE, NO_USES, PAGE, Event, Events

logger = logging.getLogger(__name__)

By: TypeAlias = Literal["skill", "principal", "host"]
KEPT_DAYS: Final = 400
"""Days of retention; older counts are deleted."""
DAY_S: Final = 24 * 3600
OTHER: Final = "_OTHER"
"""The name for the counts beyond a limit."""
MAX_SHOWN: Final = 100
"""Most searches without a result in a report."""
_MAX_QUESTIONS: Final = 10_000
_BUSY_S: Final = 5.0
"""Seconds that a process waits for the write lock of another one."""
_VERSION: Final = 2
_FLUSH_S: Final = 1.0
_STOP_S: Final = 5.0
_MAX_WAITING: Final = 10_000
"""Most distinct counts in the write buffer; further ones are dropped until it is flushed."""
_MAX_HOSTS: Final = 1000
"""Most distinct host names a day, a limit because clients choose them freely."""
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS used (
    day INTEGER NOT NULL, action TEXT NOT NULL, skill TEXT NOT NULL, digest TEXT NOT NULL,
    principal TEXT NOT NULL, host TEXT NOT NULL, protocol TEXT NOT NULL, root TEXT NOT NULL,
    times INTEGER NOT NULL, last REAL NOT NULL,
    PRIMARY KEY (day, action, skill, digest, principal, host, protocol, root)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS served (
    skill TEXT PRIMARY KEY, since REAL NOT NULL, gone REAL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS labels (principal TEXT PRIMARY KEY, label TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS questions (
    text TEXT PRIMARY KEY, times INTEGER NOT NULL, last REAL NOT NULL
) WITHOUT ROWID;
"""
_PERIOD: Final = """
day BETWEEN :first AND :today
AND (:roots IS NULL OR root IN (SELECT value FROM json_each(:roots)))
"""
_USED: Final = """
SELECT {by}, sum(times * (action = 'load')), sum(times * (action = 'read')),
    sum(times * (action = 'run')), sum(times * (action = 'dropped')), max(last),
    count(DISTINCT CASE WHEN action = 'load' AND '{by}' = 'skill' THEN nullif(digest, '') END)
FROM used WHERE {period} AND action NOT IN ('search', 'empty') GROUP BY 1
"""
_BY_DAY: Final = """
SELECT {by}, day, sum(times) FROM used
WHERE {period} AND action IN ('load', 'read', 'run') GROUP BY 1, 2
"""
_SEARCHES: Final = """
SELECT coalesce(sum(times * (action = 'search')), 0), coalesce(sum(times * (action = 'empty')), 0)
FROM used WHERE {period}
"""
_SERVED: Final = "SELECT skill FROM served WHERE gone IS NULL ORDER BY 1"
_LOADED: Final = """
SELECT skill FROM used WHERE {period} AND action = 'load' GROUP BY 1 ORDER BY max(last) DESC
"""
_QUESTIONS: Final = """
SELECT text, times FROM questions WHERE last >= ? ORDER BY times DESC, text LIMIT ?
"""
_ADD_USES: Final = """
INSERT INTO used VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET times = times + excluded.times, last = max(last, excluded.last)
"""
_ADD_QUESTIONS: Final = """
INSERT INTO questions VALUES (?, ?, ?)
ON CONFLICT DO UPDATE SET times = times + excluded.times, last = max(last, excluded.last)
"""


class Count(NamedTuple):
    """The key of a counter. A search counts for the first root of its server.

    `action` is that of a use, "search", or "empty" for a search without a result.
    """

    day: int
    action: str
    skill: str
    digest: str
    principal: str
    host: str
    protocol: str
    root: str = ""


class Tally(NamedTuple):
    """A count of events, and the time of the last one, in seconds since 1970."""

    times: int
    last: float


@dataclass(slots=True)
class Batch:
    """Counts that are stored in one transaction.

    `questions` counts searches without a result by text, `labels` maps principals to readable
    names, and `served` maps skills to whether they are served now.
    """

    counts: dict[Count, Tally] = field(default_factory=dict[Count, Tally])
    questions: dict[str, int] = field(default_factory=dict[str, int])
    labels: dict[str, str] = field(default_factory=dict[str, str])
    served: dict[str, bool] = field(default_factory=dict[str, bool])


@dataclass(frozen=True, slots=True)
class UsageRow:
    """The counts of one skill, principal or host program; an unknown one has the name ""."""

    name: str
    loads: int = 0
    reads: int = 0
    runs: int = 0
    dropped: int = 0  # unloaded before any other file of it was used
    last: float | None = None  # time of the last use in seconds since 1970
    versions: int = 0  # distinct loaded versions of a skill
    days: tuple[int, ...] = ()  # loads, reads and runs of each day, the oldest first
    label: str = ""  # readable name of a principal from its issuer


@dataclass(frozen=True, slots=True)
class Report:
    """A report of the counts, the most used first; one by skill ends with those never used.

    `empty` is the number of searches without a result. `questions` has their (text, number), if
    search text is stored.
    """

    lines: tuple[UsageRow, ...]
    searches: int
    empty: int
    questions: tuple[tuple[str, int], ...]


class UsageStore:
    """A store of counts in an SQLite file, created if missing; `now` returns seconds since 1970.

    UsageError says that the file cannot be opened, or is not a store of this version.
    """

    def __init__(self, file: str, *, now: Callable[[], float] = time.time) -> None:
        self.name = file
        self._now = now
        folder = Path(file).parent
        if not folder.is_dir():
            raise UsageError(f"{file}: there is no folder {folder}; make it, or name another file")
        try:
            if not Path(file).exists():
                Path(file).touch(0o600)
            with open_database(self.name, _BUSY_S) as connection:
                version: int = connection.execute("PRAGMA user_version").fetchone()[0]
                if version not in (0, _VERSION):
                    fault = "written by another version of this program"
                    raise UsageError(f"{file}: {fault}; name another file")
                _use_wal(connection)
                connection.executescript(_SCHEMA)
                connection.execute(f"PRAGMA user_version = {_VERSION}")
        except (OSError, sqlite3.Error) as error:
            fault = f"cannot be used for counts ({error})"
            raise UsageError(f"{file}: {fault}; name another file") from None

    def add(self, batch: Batch) -> None:
        """Add a batch to the counts and delete expired ones, in one transaction.

        Raises:
            sqlite3.Error: nothing was stored.
        """
        rows = [(*count, *key) for count, key in batch.counts.items()]
        now = self._now()
        gone = [(now, skill) for skill, is_served in batch.served.items() if not is_served]
        came = [(skill, now) for skill, is_served in batch.served.items() if is_served]
        questions = [(text, times, now) for text, times in batch.questions.items()]
        labels = [*batch.labels.items()]
        with open_database(self.name, _BUSY_S) as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany("UPDATE served SET gone = ? WHERE skill = ?", gone)
            connection.executemany(
                "INSERT INTO served VALUES (?, ?, NULL) ON CONFLICT DO UPDATE SET gone = NULL", came
            )
            connection.executemany(_ADD_USES, rows)
            connection.executemany(_ADD_QUESTIONS, questions)
            connection.executemany("INSERT OR REPLACE INTO labels VALUES (?, ?)", labels)
            oldest = day_of(now) - KEPT_DAYS
            if connection.execute("DELETE FROM used WHERE day < ?", (oldest,)).rowcount:
                connection.execute(
                    "DELETE FROM labels WHERE principal NOT IN (SELECT principal FROM used)"
                )
            connection.execute("DELETE FROM questions WHERE last < ?", (now - KEPT_DAYS * DAY_S,))
            connection.execute(
                "DELETE FROM questions WHERE text IN "
                "(SELECT text FROM questions ORDER BY last DESC LIMIT -1 OFFSET ?)",
                (_MAX_QUESTIONS,),
            )

    def report(
        self, by: By = "skill", days: int = 30, roots: Sequence[str] | None = None
    ) -> Report:
        """Return a report of the last days, including today; UsageError if it cannot be read.

        `roots` are those whose uses count, None for all.
        """
        chosen = self._chosen(days, roots)
        first: int = chosen["first"]
        with self._reading() as connection:
            # One transaction gives a consistent snapshot while a server writes.
            connection.execute("BEGIN")
            used = connection.execute(_USED.format(by=by, period=_PERIOD), chosen).fetchall()
            daily = connection.execute(_BY_DAY.format(by=by, period=_PERIOD), chosen).fetchall()
            answered, empty = connection.execute(
                _SEARCHES.format(period=_PERIOD), chosen
            ).fetchone()
            served: list[tuple[str]] = []
            labels: dict[str, str] = {}
            if by == "skill":
                served = connection.execute(_SERVED).fetchall()
            elif by == "principal":
                labels = dict(connection.execute("SELECT principal, label FROM labels").fetchall())
            shown = first * DAY_S, MAX_SHOWN
            questions = connection.execute(_QUESTIONS, shown).fetchall()
        by_day = {name: [0] * days for name, *_ in used}
        for name, day, times in daily:
            by_day[name][day - first] = times
        lines: list[UsageRow] = []
        for name, *counts in used:
            label = labels.get(name, "")
            lines.append(UsageRow(name, *counts, days=tuple(by_day[name]), label=label))
        lines.sort(key=lambda line: (-(line.loads + line.reads + line.runs), line.name))
        lines += [UsageRow(name, days=(0,) * days) for (name,) in served if name not in by_day]
        return Report(tuple(lines), answered + empty, empty, tuple(questions))

    def recently_loaded(self, most: int = 50, roots: Sequence[str] | None = None) -> list[str]:
        """Return the paths of the skills that were loaded in the last month, the latest first."""
        with self._reading() as connection:
            query = _LOADED.format(period=_PERIOD)
            rows = connection.execute(query, self._chosen(30, roots)).fetchmany(most)
        return [skill for (skill,) in rows]

    def _chosen(self, days: int, roots: Sequence[str] | None) -> dict[str, Any]:
        """Return the parameters of a query of the last days and these roots, None for all."""
        today = day_of(self._now())  # later days exist after the clock was set back
        names = None if roots is None else json.dumps(roots)
        return {"first": today - days + 1, "today": today, "roots": names}

    @contextmanager
    def _reading(self) -> Generator[sqlite3.Connection]:
        try:
            with open_database(self.name, _BUSY_S) as connection:
                yield connection
        except sqlite3.Error as error:
            fault = f"{self.name}: cannot be read ({error}); name a file of counts"
            raise UsageError(fault) from None


def _use_wal(connection: sqlite3.Connection) -> None:
    """Switch to WAL, retrying: `busy_timeout` fails if several processes create the file."""
    until = time.monotonic() + _BUSY_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise
            time.sleep(0.01)


def day_of(moment: float) -> int:
    """Return the number of the UTC day of a time, counted from 1970."""
    return int(moment // DAY_S)


def spark(days: Sequence[int]) -> str:
    """Return a sparkline of the numbers."""
    most = max(days, default=0)
    bars = " ▁▂▃▄▅▆▇█"
    return "".join(bars[(day > 0) + day * 8 // (most + 1)] for day in days)


class Usage:
    """A counter of uses with a write buffer that is flushed to the store once a second.

    With `questions`, the text of searches without a result is stored. `roots` names the roots of
    the server. `lost` counts the uses that were dropped since the start because the buffer was
    full.
    """

    def __init__(
        self, store: UsageStore, *, questions: bool = False, roots: Sequence[str] = ("",)
    ) -> None:
        self._store = store
        self._roots = roots or ("",)
        self._root_of: dict[str, int] = {}
        self._keeps_questions = questions
        self._lock = threading.Lock()
        self._waiting = Batch()
        self._unstored: Batch | None = None
        """The batch that is being stored, or retried after a failure."""
        self._day = 0
        self._hosts: set[str] = set()
        self._dropped = 0
        self.lost = 0
        self._stopping = threading.Event()
        self._fails = False
        """True once the current failure to write was logged."""

    def start(self, events: Events) -> Callable[[], None]:
        """Subscribe to the events of a server; return a function that flushes and stops."""
        end = events.subscribe(self.record, questions=self._keeps_questions)
        work = partial(self._flush_periodically, end)
        thread = threading.Thread(target=work, name="skills-usage", daemon=True)
        thread.start()

        def stop() -> None:
            self._stopping.set()
            thread.join(_STOP_S)

        return stop

    def on_changes(self, changes: Changes) -> None:
        """Record the skills that are served, as a listener of the registry."""
        with self._lock:
            self._waiting.served |= dict.fromkeys(changes.before, False)
            self._waiting.served |= dict.fromkeys(changes.after, True)
            for path in changes.before:
                self._root_of.pop(path, None)
            self._root_of |= {path: skill.root for path, skill in changes.after.items()}

    def record(self, event: Event) -> None:
        """Count an event."""
        if event.protocol not in (CATALOGUE, PAGE):
            with self._lock:
                self._count(event)

    def _count(self, event: Event) -> None:
        labels, questions = self._waiting.labels, self._waiting.questions
        if event.principal and event.label and len(labels) < _MAX_WAITING:
            labels[event.principal] = event.label
        day = day_of(event.time)
        host = self._bounded_host(event.host or "", day)
        count = Count(day, "", "", "", event.principal or "", host, event.protocol, self._roots[0])
        for use in event.uses:
            if use.action not in NO_USES and event.counts(use):
                root = self._roots[self._root_of.get(use.skill, 0)]
                used = count._replace(action=use.action, skill=use.skill, digest=use.digest)
                self._add(used._replace(root=root), event.time)
        if event.found is None:
            return
        if event.found:
            self._add(count._replace(action="search"), event.time)
            return
        self._add(count._replace(action="empty"), event.time)
        text = event.question
        if self._keeps_questions and text and (text in questions or len(questions) < _MAX_WAITING):
            questions[text] = questions.get(text, 0) + 1

    def _add(self, count: Count, moment: float) -> None:
        counts = self._waiting.counts
        known = counts.get(count)
        if known is not None:
            counts[count] = Tally(known.times + 1, max(known.last, moment))
        elif len(counts) < _MAX_WAITING:
            counts[count] = Tally(1, moment)
        else:
            if not self._dropped:
                full = f"the buffer of {_MAX_WAITING:,} counts is full"
                words = "%s: %s; further uses are not counted until it is written"
                logger.error(words, self._store.name, full)
            self._dropped += 1
            self.lost += 1

    @property
    def waiting(self) -> int:
        """Return the number of distinct counts in the write buffer."""
        with self._lock:
            return len(self._waiting.counts) + len((self._unstored or Batch()).counts)

    def _bounded_host(self, host: str, today: int) -> str:
        if self._day != today:
            self._day = today
            self._hosts.clear()
        if host not in self._hosts:
            if len(self._hosts) >= _MAX_HOSTS:
                return OTHER
            self._hosts.add(host)
        return host

    def flush(self) -> None:
        """Store the buffered counts, or keep them for a retry if that fails."""
        try:
            while True:
                with self._lock:
                    if self._unstored is None and self._waiting != Batch():
                        self._unstored, self._waiting = self._waiting, Batch()
                if self._unstored is None:
                    break
                self._store.add(self._unstored)
                self._unstored = None
        except sqlite3.Error as error:
            if not self._fails:
                words = "%s: uses cannot be counted (%s); requests go on"
                logger.error(words, self._store.name, error)
                self._fails = True
            return
        except Exception:  # a bug must not end the thread
            logger.exception("uses could not be written", extra=REPEATS)
            return
        if self._fails or self._dropped:
            with self._lock:
                dropped, self._dropped = self._dropped, 0
            self._fails = False
            lost = ""
            if dropped:
                lost = f"; {dropped:,} uses were lost meanwhile"
            logger.warning("%s: uses are counted again%s", self._store.name, lost)

    def _flush_periodically(self, end: Callable[[], None]) -> None:
        while not self._stopping.wait(_FLUSH_S):
            self.flush()
        end()
        self.flush()
        if self._unstored is not None:
            logger.error("%s: the last counts could not be written and are lost", self._store.name)
