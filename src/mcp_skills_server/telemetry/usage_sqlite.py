"""Counts of uses in a file of SQLite, into which several processes may write."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from mcp_skills_server.errors import UsageError
from mcp_skills_server.telemetry.usage_store import (
    DAY_S,
    KEPT_DAYS,
    MOST_SHOWN,
    Batch,
    By,
    NotStoredError,
    Report,
    Row,
    day_of,
    make_report,
)

_MOST_QUESTIONS: Final = 10_000
_BUSY_S: Final = 5.0
"""How long one process waits for the others that write."""
_AGAIN_S: Final = 0.01
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


class SqliteStore:
    """The counts of a file, made if it is not there.

    Args:
        file: its path; processes may share it.
        now: seconds since 1970.

    Raises:
        UsageError: it cannot be opened, or is no such file.
    """

    def __init__(self, file: str, *, now: Callable[[], float] = time.time) -> None:
        self.name = file
        self._now = now
        try:
            if not Path(file).exists():
                Path(file).touch(0o600)
            with closing(self._connect()) as connection, connection:
                version: int = connection.execute("PRAGMA user_version").fetchone()[0]
                if version not in (0, _VERSION):
                    raise UsageError(f"{file}: written by another version of this program; name another file")
                _use_wal(connection)
                connection.executescript(_SCHEMA)
                connection.execute(f"PRAGMA user_version = {_VERSION}")
        except (OSError, sqlite3.Error) as error:
            raise UsageError(f"{file}: cannot be used for counts ({error}); name another file") from None

    def add(self, batch: Batch) -> None:
        """Add to the counts, in one transaction, and forget what is older than is kept."""
        rows = [(*count, *found) for count, found in batch.counts.items()]
        now = self._now()
        with self._writing() as connection:
            connection.executemany(
                "INSERT INTO used VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET "
                "times = times + excluded.times, last = max(last, excluded.last)",
                rows,
            )
            connection.executemany(
                "INSERT INTO questions VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET "
                "times = times + excluded.times, last = max(last, excluded.last)",
                [(text, times, now) for text, times in batch.questions.items()],
            )
            connection.execute("DELETE FROM used WHERE day < ?", (day_of(now) - KEPT_DAYS,))
            connection.execute("DELETE FROM questions WHERE last < ?", (now - KEPT_DAYS * DAY_S,))
            connection.execute(
                "DELETE FROM questions WHERE text IN (SELECT text FROM questions ORDER BY last DESC LIMIT -1 OFFSET ?)",
                (_MOST_QUESTIONS,),
            )

    def serve(self, came: Iterable[str], gone: Iterable[str] = ()) -> None:
        """Note which skills are served from now on and which no longer are."""
        now = self._now()
        with self._writing() as connection:
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
                rows = [
                    Row(*each)
                    for each in connection.execute(
                        f"SELECT {by}, action, day, sum(times), max(last) FROM used "  # noqa: S608 - one of three words
                        "WHERE day >= ? GROUP BY 1, 2, 3",
                        (first,),
                    )
                ]
                versions = dict(
                    connection.execute(
                        "SELECT skill, count(DISTINCT nullif(digest, '')) FROM used "
                        "WHERE day >= ? AND action = 'load' GROUP BY 1",
                        (first,),
                    ).fetchall()
                    if by == "skill"
                    else ()
                )
                served = [
                    each for (each,) in connection.execute("SELECT skill FROM served WHERE gone IS NULL").fetchall()
                ]
                questions = connection.execute(
                    "SELECT text, times FROM questions WHERE last >= ? ORDER BY times DESC, text LIMIT ?",
                    (first * DAY_S, MOST_SHOWN),
                ).fetchall()
        except sqlite3.Error as error:
            raise UsageError(f"{self.name}: cannot be read ({error}); name a file of counts") from None
        return make_report(by, first, days, rows, versions=versions, served=served, questions=questions)

    @contextmanager
    def _writing(self) -> Generator[sqlite3.Connection]:
        """One transaction."""
        try:
            with closing(self._connect()) as connection, connection:
                yield connection
        except sqlite3.Error as error:
            raise NotStoredError(str(error)) from None

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.name, timeout=_BUSY_S)
        connection.execute("PRAGMA synchronous = NORMAL")
        return connection


def _use_wal(connection: sqlite3.Connection) -> None:
    """Have a file written ahead. For this alone SQLite waits for nobody: processes that begin with a new file do it."""
    until = time.monotonic() + _BUSY_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise
            time.sleep(_AGAIN_S)
