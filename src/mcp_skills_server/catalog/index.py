"""Persistent index of local skills: a cache between processes, in one SQLite file.

The index saves work and never changes what a client sees: a scan takes a SKILL.md's reading and a
file's digest from it only under the file's current stat signature. Everything in it may be deleted
at any time. Its content is trusted, so only this user may own and write the file and its folder.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from sys import intern
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import mcp_skills_server
from mcp_skills_server.catalog.roots import Limits, Root
from mcp_skills_server.durable import open_database, untrusted_reason
from mcp_skills_server.errors import SkillsServerError
from mcp_skills_server.model import SKILL_MD, Json, Problem, Reading, Skill, SkillFile, Standing
from mcp_skills_server.model.digests import is_digest

if TYPE_CHECKING:
    import sqlite3

logger = logging.getLogger(__name__)

MIN_SKILLS: Final = 200
"""Default minimum of skills for a root to be kept: a smaller root is scanned in 0.1 s."""
_READING_SOURCES: Final = "*.py catalog/*.py format/**/*.py model/**/*.py validation/**/*.py"
"""Source files that decide how a skill is read and checked."""
_NAME: Final = "skills.sqlite3"
_VERSION: Final = 4
_SCHEMA: Final = f"""
    -- The roots, each for one state of the code that reads skills and of the limits.
    -- `used` is a day since 1970.
    CREATE TABLE root (
        id INTEGER PRIMARY KEY, path BLOB, code TEXT, used INTEGER, UNIQUE (path, code)
    );
    -- What was known of a skill, as JSON.
    CREATE TABLE skill (
        root INTEGER REFERENCES root ON DELETE CASCADE, directory TEXT, record TEXT,
        PRIMARY KEY (root, directory)
    );
    -- What a program or a model answered, by a digest of what it was given: vectors of texts,
    -- choices of judges.
    CREATE TABLE memo (kind TEXT, key BLOB, value BLOB, used INTEGER, PRIMARY KEY (kind, key));
    PRAGMA user_version = {_VERSION};
"""
_BUSY_S: Final = 5.0
_DAY_S: Final = 86400
_UNUSED_DAYS: Final = 30
_TRANSIENT_CODES: Final = frozenset(("unreadable", "skill-md-too-large"))
"""Problems of a SKILL.md whose bytes were not read: the next process must retry."""


class IndexedSkills(NamedTuple):
    """The skills of a root by directory, and by location the signatures that prove their files."""

    skills: Mapping[str, Skill]
    signatures: Mapping[str, str]


class UnusableFileError(SkillsServerError):
    """The file must not be used; the message states why."""


class Index:
    """Skill index of one user. Safe for threads and for concurrent processes.

    A file that is damaged, of another format or writable by others is replaced, with one log line.
    `folder` is made on the first write; where it cannot be written, nothing is kept. A root is
    kept once it has at least `least` skills.
    """

    def __init__(self, folder: Path, least: int = MIN_SKILLS) -> None:
        self.path = folder / _NAME
        self.least = least
        self._lock = threading.Lock()
        self._is_given_up = False

    def skills(self, root: Root, limits: Limits) -> IndexedSkills | None:
        """Return the skills that an earlier process found in a root, or None.

        Each has only the files whose bytes their stat signatures prove. Undecodable records are
        skipped.
        """
        query = (
            "SELECT directory, record FROM skill JOIN root ON root = id WHERE path = ? AND code = ?"
        )

        def read(connection: sqlite3.Connection) -> IndexedSkills | None:
            skills: dict[str, Skill] = {}
            signatures: dict[str, str] = {}
            # row by row: all records at once would double the memory of a start
            for directory, record in connection.execute(query, _key(root, limits)):
                with suppress(ValueError, TypeError, LookupError, AttributeError, RecursionError):
                    decoded = json.loads(record)
                    skills[directory] = _decode(root.index, directory, decoded, signatures)
            return IndexedSkills(skills, signatures) if skills else None

        return self._do(read, create=False)

    def save(
        self,
        root: Root,
        limits: Limits,
        changed: Iterable[Skill],
        gone: Iterable[str],
        signatures: Mapping[str, str],
    ) -> bool:
        """Save the changed skills of a root in one transaction; tell whether they were saved.

        `gone` are the directories of skills that are no longer there; `signatures` are by location
        those that prove the bytes of a file.
        """

        def write(connection: sqlite3.Connection) -> bool:
            number = _root_id(connection, _key(root, limits))
            connection.executemany(
                "DELETE FROM skill WHERE root = ? AND directory = ?",
                ((number, directory) for directory in gone),
            )
            records = ((skill.directory, encode(skill, signatures)) for skill in changed)
            rows = ((number, directory, record) for directory, record in records if record)
            connection.executemany("REPLACE INTO skill VALUES (?, ?, ?)", rows)
            return True

        return self._do(write, create=True) is True

    def memos(self, kind: str, keys: Iterable[bytes]) -> dict[bytes, bytes]:
        """Return the cached values of these keys, and mark them as used today.

        `kind` is the producer of the values, such as the key of a model. The keys are digests of
        the inputs that the values were computed from.
        """

        def read(connection: sqlite3.Connection) -> dict[bytes, bytes]:
            query = "SELECT value FROM memo WHERE kind = ? AND key = ?"
            rows = {key: connection.execute(query, (kind, key)).fetchone() for key in keys}
            today, used = _today(), [key for key, row in rows.items() if row]
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany(
                "UPDATE memo SET used = ? WHERE kind = ? AND key = ? AND used < ?",
                ((today, kind, key, today) for key in used),
            )
            return {key: rows[key][0] for key in used if isinstance(rows[key][0], bytes)}

        return self._do(read, create=False) or {}

    def save_memos(self, kind: str, values: Mapping[bytes, bytes]) -> bool:
        """Cache values, and tell whether that worked; evict all that were unused for a month."""
        rows = [(kind, key, value, _today()) for key, value in values.items()]

        def write(connection: sqlite3.Connection) -> bool:
            connection.execute("DELETE FROM memo WHERE used < ?", (_today() - _UNUSED_DAYS,))
            connection.executemany("REPLACE INTO memo VALUES (?, ?, ?, ?)", rows)
            return True

        return self._do(write, create=True) is True

    def forget_memos(self, kind: str) -> None:
        """Evict the values of a kind, whose producer has changed."""
        query = "DELETE FROM memo WHERE kind = ?"
        self._do(lambda connection: connection.execute(query, (kind,)), create=False)

    def _do(self, work: Callable[[sqlite3.Connection], Any], *, create: bool) -> Any:
        """Run `work` in one transaction and return its result; None without a usable file."""
        with self._lock:
            if self._is_given_up or not (create or os.path.lexists(self.path)):
                return None
            try:
                import sqlite3  # late import: a start without an index needs no sqlite3
            except ImportError:  # some Pythons lack it
                self._is_given_up = True
                return None
            try:
                self._check_file(create=create)
                # Closed after each transaction, since no owner of an index knows its last one.
                with open_database(self.path, _BUSY_S) as connection:
                    _prepare(connection)
                    if create:
                        connection.execute("BEGIN IMMEDIATE")
                    return work(connection)
            except OSError:
                return None  # this user may not write there
            except UnusableFileError as error:
                self._discard(str(error))
            except sqlite3.DatabaseError as error:
                passing = (
                    sqlite3.SQLITE_BUSY,
                    sqlite3.SQLITE_LOCKED,
                    sqlite3.SQLITE_FULL,
                    sqlite3.SQLITE_READONLY,
                    sqlite3.SQLITE_IOERR,  # such as no space for the shared memory of the log
                )
                if getattr(error, "sqlite_errorcode", 0) & 0xFF in passing:
                    logger.debug("the index %s cannot be used now: %s", self.path, error)
                else:
                    self._discard(f"it is damaged ({error})")
            return None

    def _check_file(self, *, create: bool) -> None:
        """Check that only this user can have written the file; `create` makes it if missing.

        Raises:
            OSError: the file is missing, or cannot be made.
            UnusableFileError: another user may have written it.
        """
        folder = self.path.parent
        if create:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_owner(os.lstat(folder), "its folder", stat.S_ISDIR)
        if create:
            with suppress(FileExistsError):
                os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        _check_owner(os.lstat(self.path), "it", stat.S_ISREG)

    def _discard(self, reason: str) -> None:
        """Delete the file, to be rebuilt; stop using the index if deletion fails."""
        remedy = "it is rebuilt"
        for suffix in ("", "-wal", "-shm"):
            try:
                os.unlink(f"{self.path}{suffix}")
            except FileNotFoundError:
                continue
            except OSError:
                remedy, self._is_given_up = "remove it", True
        line = "the index of an earlier start, %s, is not used: %s; %s"
        logger.info(line, self.path, reason, remedy)


def _check_owner(status: os.stat_result, what: str, is_kind: Callable[[int], bool]) -> None:
    """Reject a file or folder that another user may have written.

    Raises:
        UnusableFileError: this user is not its only writer, or it is of another kind.
    """
    if not is_kind(status.st_mode):
        raise UnusableFileError(f"{what} is a link or of another kind")
    reason = untrusted_reason(status)
    if reason:
        raise UnusableFileError(f"{what} {reason}")


def _prepare(connection: sqlite3.Connection) -> None:
    """Create the tables of a new file, or check the format of an old one."""
    connection.execute("PRAGMA foreign_keys = ON")
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version == _VERSION:
        return
    connection.execute("PRAGMA journal_mode = WAL")
    # serialize processes that find a new file: one creates the tables
    connection.execute("BEGIN IMMEDIATE")
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version == 0 and not connection.execute("SELECT 1 FROM sqlite_master").fetchone():
        for statement in _SCHEMA.split(";"):
            connection.execute(statement)
        version = _VERSION
    connection.execute("COMMIT")
    if version != _VERSION:
        raise UnusableFileError("it has another format")


def _today() -> int:
    """Return the number of days since 1970."""
    return int(time.time()) // _DAY_S


def _key(root: Root, limits: Limits) -> tuple[bytes, str]:
    return os.fsencode(root.path), f"{code_mark()} {tuple(limits)}"


def _root_id(connection: sqlite3.Connection, key: tuple[bytes, str]) -> int:
    """Return the id of a root and mark it as used today; evict roots unused for a month."""
    connection.execute("DELETE FROM root WHERE used < ?", (_today() - _UNUSED_DAYS,))
    statement = """
        INSERT INTO root (path, code, used) VALUES (?, ?, ?)
        ON CONFLICT DO UPDATE SET used = excluded.used RETURNING id
    """
    (root_id,) = connection.execute(statement, (*key, _today())).fetchone()
    return int(root_id)


def encode(skill: Skill, signatures: Mapping[str, str]) -> str | None:
    """Return the JSON record of a skill, or None if its SKILL.md must be read again.

    The record omits a file without a signature that proves its bytes.
    """
    files = [
        (path, file.location, file.size, signatures[file.location], file.digest)
        for path, file in skill.files.items()
        if file.location in signatures
    ]
    reading = skill.reading
    is_transient = any(problem.code in _TRANSIENT_CODES for problem in reading.problems)
    if is_transient or not any(path == SKILL_MD for path, *_ in files):
        return None
    try:
        return json.dumps([skill.path, skill.standing, files, reading], separators=(",", ":"))
    except (ValueError, TypeError, RecursionError):  # a number of thousands of digits, say
        return None


def _decode(root: int, directory: Any, record: Any, signatures: dict[str, str]) -> Skill:
    """Decode a record into a Skill, and add its files' signatures to `signatures`.

    `Index.skills` suppresses the errors of a malformed record.
    """
    path, standing, files, read = record
    frontmatter, heading, standing_alone, problems, headings, opening = read
    if not isinstance(directory, str) or not isinstance(frontmatter, dict):
        raise TypeError
    reading = Reading(
        cast("dict[str, Json]", frontmatter),
        None if heading is None else str(heading),
        Standing(standing_alone),
        tuple(map(_decode_problem, problems)),
        tuple(map(str, headings)),
        str(opening),
    )
    known: dict[str, SkillFile] = {}
    for name, location, size, signature, digest in files:
        if is_digest(digest):
            file = SkillFile(root, str(location), int(size), digest)
            known[intern(str(name))] = file
            signatures[file.location] = str(signature)
    return Skill(str(path), root, directory, reading, known, (), Standing(standing))


def decode_problems(raw: bytes) -> list[Problem]:
    """Decode JSON of Problems; ValueError or TypeError if it is malformed."""
    return [*map(_decode_problem, json.loads(raw))]


def _decode_problem(fields: Sequence[Any]) -> Problem:
    code, severity, message, hint, line, path, skill, column = fields
    has_numbers = isinstance(line, int | None) and isinstance(column, int | None)
    if severity not in ("error", "warning", "note") or not has_numbers:
        raise ValueError
    texts = str(message), str(hint)
    return Problem(str(code), severity, *texts, line, str(path), str(skill), column)


@cache
def code_mark() -> str:
    """Return a fingerprint of the code that reads skills: versions, sizes and time stamps.

    Computed once, near the start: a process keeps running the code that it loaded.
    """
    top, marks = Path(mcp_skills_server.__file__).parent, list[tuple[str, int, int]]()
    for path in sorted(file for pattern in _READING_SOURCES.split() for file in top.glob(pattern)):
        with suppress(OSError):  # an upgrade is under way
            status = path.stat()
            marks.append((path.relative_to(top).as_posix(), status.st_size, status.st_mtime_ns))
    versions = mcp_skills_server.__version__, sys.version
    return hashlib.sha256(repr((versions, marks)).encode()).hexdigest()[:32]
