"""Counts of uses by day, in a file of SQLite that processes may share. Old days are forgotten."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeAlias

from mcp_skills_server.errors import UsageError

By: TypeAlias = Literal["skill", "principal", "host"]
KEPT_DAYS: Final = 400
_DAY_S: Final = 24 * 3600
_MOST_QUESTIONS: Final = 10_000
BUSY_S: Final = 5.0
_VERSION: Final = 1
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS used (
    day INTEGER NOT NULL, action TEXT NOT NULL, skill TEXT NOT NULL, digest TEXT NOT NULL, principal TEXT NOT NULL,
    host TEXT NOT NULL, protocol TEXT NOT NULL, times INTEGER NOT NULL, last REAL NOT NULL,
    PRIMARY KEY (day, action, skill, digest, principal, host, protocol)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS served (skill TEXT PRIMARY KEY, since REAL NOT NULL, gone REAL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS questions (
    text TEXT PRIMARY KEY, times INTEGER NOT NULL, last REAL NOT NULL
) WITHOUT ROWID;
"""


class Count(NamedTuple):
    """What is counted."""

    day: int
    action: str
    skill: str
    digest: str
    principal: str
    host: str
    protocol: str


@dataclass(frozen=True, slots=True)
class Line:
    """What was counted of one skill, principal or host program.

    Attributes:
        name: which one; "" for who did not prove or say anything.
        loads: how often instructions were given.
        reads: how often another file was.
        runs: how often a script was started.
        dropped: how often it was unloaded before any other file of it was asked for.
        last: when it was last used, in seconds since 1970; None for never.
        days: loads, reads and runs of each day asked for, the oldest first.
        versions: how many different versions of it were loaded.
    """

    name: str
    loads: int = 0
    reads: int = 0
    runs: int = 0
    dropped: int = 0
    last: float | None = None
    days: tuple[int, ...] = ()
    versions: int = 0


@dataclass(frozen=True, slots=True)
class Report:
    """What was counted.

    Attributes:
        lines: the most used first; by skill also those that are served and were never used.
        searches: how often skills were searched for.
        empty: how often of these nothing was found.
        questions: what was asked for then, the most frequent first, with how often; only where that is kept.
    """

    lines: tuple[Line, ...]
    searches: int
    empty: int
    questions: tuple[tuple[str, int], ...]


class UsageStore:
    """The counts of a file, made if it is not there.

    Args:
        file: its path; processes may share it.
        now: seconds since 1970.

    Raises:
        UsageError: it cannot be opened, or is no such file.
    """

    def __init__(self, file: str, *, now: Callable[[], float] = time.time) -> None:
        self.file = file
        self._now = now
        try:
            if not Path(file).exists():
                Path(file).touch(0o600)
            with closing(self._connect()) as connection, connection:
                version: int = connection.execute("PRAGMA user_version").fetchone()[0]
                if version not in (0, _VERSION):
                    raise UsageError(f"{file}: written by another version of this program; name another file")
                connection.execute("PRAGMA journal_mode = WAL")
                connection.executescript(_SCHEMA)
                connection.execute(f"PRAGMA user_version = {_VERSION}")
        except (OSError, sqlite3.Error) as error:
            raise UsageError(f"{file}: cannot be used for counts ({error}); name another file") from None

    def add(self, counts: Iterable[tuple[Count, int, float]], questions: Iterable[str] = ()) -> None:
        """Add to the counts, in one transaction, and forget what is older than is kept.

        Raises:
            sqlite3.Error: they cannot be written.
        """
        rows = [(*count, times, last) for count, times, last in counts]
        now = self._now()
        with closing(self._connect()) as connection, connection:
            connection.executemany(
                "INSERT INTO used VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET "
                "times = times + excluded.times, last = max(last, excluded.last)",
                rows,
            )
            connection.executemany(
                "INSERT INTO questions VALUES (?, 1, ?) ON CONFLICT DO UPDATE SET "
                "times = times + 1, last = max(last, excluded.last)",
                [(text, now) for text in questions],
            )
            connection.execute("DELETE FROM used WHERE day < ?", (day_of(now) - KEPT_DAYS,))
            connection.execute("DELETE FROM questions WHERE last < ?", (now - KEPT_DAYS * _DAY_S,))
            connection.execute(
                "DELETE FROM questions WHERE text IN (SELECT text FROM questions ORDER BY last DESC LIMIT -1 OFFSET ?)",
                (_MOST_QUESTIONS,),
            )

    def serve(self, came: Iterable[str], gone: Iterable[str] = ()) -> None:
        """Note which skills are served from now on and which no longer are.

        Raises:
            sqlite3.Error: it cannot be written.
        """
        now = self._now()
        with closing(self._connect()) as connection, connection:
            connection.executemany("UPDATE served SET gone = ? WHERE skill = ?", [(now, each) for each in gone])
            connection.executemany(
                "INSERT INTO served VALUES (?, ?, NULL) ON CONFLICT DO UPDATE SET gone = NULL",
                [(each, now) for each in came],
            )

    def report(self, by: By = "skill", days: int = 30) -> Report:
        """What was counted in the last days.

        Raises:
            UsageError: it cannot be read.
        """
        first = day_of(self._now()) - days + 1
        try:
            with closing(self._connect()) as connection:
                rows = connection.execute(
                    f"SELECT {by}, action, day, sum(times), max(last) FROM used "  # noqa: S608 - one of three words
                    "WHERE day >= ? AND action NOT IN ('search', 'empty') GROUP BY 1, 2, 3",
                    (first,),
                ).fetchall()
                versions = dict(
                    connection.execute(
                        "SELECT skill, count(DISTINCT digest) FROM used WHERE day >= ? AND action = 'load' GROUP BY 1",
                        (first,),
                    ).fetchall()
                    if by == "skill"
                    else ()
                )
                served = [
                    each for (each,) in connection.execute("SELECT skill FROM served WHERE gone IS NULL").fetchall()
                ]
                searches = dict(
                    connection.execute(
                        "SELECT action, sum(times) FROM used WHERE day >= ? AND action IN ('search', 'empty') "
                        "GROUP BY 1",
                        (first,),
                    ).fetchall()
                )
                questions = connection.execute(
                    "SELECT text, times FROM questions WHERE last >= ? ORDER BY times DESC, text LIMIT 100",
                    (first * _DAY_S,),
                ).fetchall()
        except sqlite3.Error as error:
            raise UsageError(f"{self.file}: cannot be read ({error}); name a file of counts") from None
        found: dict[str, dict[str, int]] = {}
        last: dict[str, float] = {}
        spread: dict[str, list[int]] = {}
        for name, action, day, times, moment in rows:
            counted = found.setdefault(name, {})
            counted[action] = counted.get(action, 0) + times
            last[name] = max(last.get(name, 0.0), moment)
            if action in ("load", "read", "run"):
                spread.setdefault(name, [0] * days)[day - first] += times
        lines = [
            Line(
                name,
                counted.get("load", 0),
                counted.get("read", 0),
                counted.get("run", 0),
                counted.get("dropped", 0),
                last[name],
                tuple(spread.get(name, [0] * days)),
                versions.get(name, 0),
            )
            for name, counted in found.items()
        ]
        lines.sort(key=lambda each: (-(each.loads + each.reads + each.runs), each.name))
        if by == "skill":
            lines += [Line(each, days=(0,) * days) for each in sorted(served) if each not in found]
        return Report(
            tuple(lines),
            searches.get("search", 0) + searches.get("empty", 0),
            searches.get("empty", 0),
            tuple(questions),
        )

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.file, timeout=BUSY_S)
        connection.execute("PRAGMA synchronous = NORMAL")
        return connection


def day_of(moment: float) -> int:
    """The day of a moment in UTC, counted from 1970."""
    return int(moment // _DAY_S)


def spark(days: Sequence[int]) -> str:
    """Numbers as a line of bars."""
    most = max(days, default=0)
    return "".join(" " if not each else "▁▂▃▄▅▆▇█"[min(7, each * 8 // (most + 1))] for each in days)
