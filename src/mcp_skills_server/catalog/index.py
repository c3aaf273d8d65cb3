"""The index: what is known of local skills, kept between processes in one SQLite file of the cache directory.

It saves work and changes nothing that a client sees: a scan takes from it what a SKILL.md said and the digest of a file
only under the stat signature that the file has now. Everything in it may be deleted at any time. What is in it is only
as good as who may write it, so only this user may own and write the file and its folder.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import stat
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, cast

import mcp_skills_server
from mcp_skills_server.durable import why_untrusted
from mcp_skills_server.errors import SkillsServerError
from mcp_skills_server.model import SKILL_MD, Json, Problem, Reading, Skill, Standing

if TYPE_CHECKING:
    import sqlite3

logger = logging.getLogger(__name__)

LEAST_SKILLS: Final = 200
"""A smaller root is not kept unless a folder was named for the index: its scan takes a tenth of a second."""
_SHAPES_A_READING: Final = ("format", "validation", "model", "catalog", "codes.py")
"""The source that decides what a SKILL.md says and what is wrong with it."""
_NAME: Final = "skills.sqlite3"
_VERSION: Final = 3
_SCHEMA: Final = f"""
    -- The roots, each for one state of the code that reads skills. `used` is a day since 1970.
    CREATE TABLE root (id INTEGER PRIMARY KEY, path BLOB, code TEXT, used INTEGER, UNIQUE (path, code));
    -- What was known of a skill, as JSON.
    CREATE TABLE skill (
        root INTEGER REFERENCES root ON DELETE CASCADE, directory TEXT, record TEXT, PRIMARY KEY (root, directory)
    );
    -- The vectors that a model made of texts, by the digests of these. `used` is a day, too.
    CREATE TABLE vector (model TEXT, digest BLOB, vector BLOB, used INTEGER, PRIMARY KEY (model, digest));
    -- What a judge of trigger sets answered, by a digest of all that it was given.
    CREATE TABLE answer (question BLOB PRIMARY KEY, answer TEXT, used INTEGER);
    PRAGMA user_version = {_VERSION};
"""
_BUSY_S: Final = 5.0
_DAY_S: Final = 86400
_UNUSED_DAYS: Final = 30
_OF_THE_MOMENT: Final = frozenset(("unreadable", "skill-md-too-large"))
"""Problems of a SKILL.md whose bytes were not read: the next process must try."""

Digests: TypeAlias = "Mapping[str, tuple[str, str]]"
"""The digest of each file and the signature that it stands for, by its place below the root. Not yet judged."""


class UnusableFileError(SkillsServerError):
    """The file must not be used. The message says why."""


class StoredSkill(NamedTuple):
    """The record of one skill.

    Attributes:
        digests: of its files.
        signature: of the SKILL.md that was read, "" where none was.
        reading: what it said, None where that is not known. Its problems have no place.
    """

    digests: Digests
    signature: str
    reading: Reading | None


_NOTHING: Final = StoredSkill({}, "", None)


class StoredSkills:
    """The skills of one root as the index has them, decoded one by one when they are asked for.

    Args:
        records: by directory below the root.
    """

    def __init__(self, records: Mapping[str, str]) -> None:
        self._records = records

    def __len__(self) -> int:
        return len(self._records)

    def __contains__(self, directory: str) -> bool:
        return directory in self._records

    @property
    def directories(self) -> Iterable[str]:
        """Directories of all skills, below the root."""
        return self._records

    def skill(self, directory: str) -> StoredSkill:
        """Return what was known of the skill in this directory; a record that means nothing is as good as none."""
        record = self._records.get(directory)
        if record is None:
            return _NOTHING
        try:
            return _decode(json.loads(record))
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
            return _NOTHING


class Index:
    """The index of one user. Any thread and any number of processes may use it.

    A file that is damaged, of another format or that others may write is replaced, with one line in the log. Where the
    folder cannot be written, nothing is kept.

    Args:
        folder: where the file lies; it is made when there is something to keep.
        least: the fewest skills that a root must have to be kept.
    """

    def __init__(self, folder: Path, least: int = LEAST_SKILLS) -> None:
        self.path = folder / _NAME
        self.least = least
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._is_given_up = False

    def skills(self, root_path: str) -> StoredSkills | None:
        """Return what an earlier process left of a root, None where there is nothing.

        Args:
            root_path: the root, absolute and resolved.
        """
        query = "SELECT directory, record FROM skill JOIN root ON root = id WHERE path = ? AND code = ?"
        found = self._do(lambda connection: connection.execute(query, _key(root_path)).fetchall(), create=False)
        if not found:
            return None
        known = {directory: record for directory, record in found if isinstance(directory, str)}
        return StoredSkills(known)

    def save(self, root_path: str, changed: Iterable[Skill], gone: Iterable[str]) -> bool:
        """Keep skills of a root, in one transaction. Return whether they were kept.

        Args:
            root_path: the root, absolute and resolved.
            changed: the skills that are new or have changed.
            gone: the directories of skills that are no longer there.
        """
        records = [(skill.directory, encode(skill)) for skill in changed]

        def write(connection: sqlite3.Connection) -> bool:
            connection.execute("BEGIN IMMEDIATE")
            root = _root_id(connection, root_path)
            connection.executemany(
                "DELETE FROM skill WHERE root = ? AND directory = ?", ((root, directory) for directory in gone)
            )
            rows = ((root, directory, record) for directory, record in records if record is not None)
            connection.executemany("REPLACE INTO skill VALUES (?, ?, ?)", rows)
            return True

        return self._do(write, create=True) is True

    def vectors(self, model: str, digests: Iterable[bytes]) -> dict[bytes, bytes]:
        """Return the vectors that are known of these texts, by the digests of the texts.

        Args:
            model: the key of the model.
            digests: of the texts.
        """

        today = int(time.time()) // _DAY_S

        def read(connection: sqlite3.Connection) -> dict[bytes, bytes]:
            query = "SELECT vector FROM vector WHERE model = ? AND digest = ?"
            found = {each: connection.execute(query, (model, each)).fetchone() for each in digests}
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany(
                "UPDATE vector SET used = ? WHERE model = ? AND digest = ? AND used < ?",
                ((today, model, each, today) for each, row in found.items() if row),
            )
            return {digest: row[0] for digest, row in found.items() if row and isinstance(row[0], bytes)}

        return self._do(read, create=False) or {}

    def keep_vectors(self, model: str, vectors: Mapping[bytes, bytes]) -> None:
        """Keep more vectors, by the digests of their texts; those unused for a month go."""
        today = int(time.time()) // _DAY_S
        rows = [(model, digest, vector, today) for digest, vector in vectors.items()]

        def write(connection: sqlite3.Connection) -> None:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("DELETE FROM vector WHERE used < ?", (today - _UNUSED_DAYS,))
            connection.executemany("INSERT OR REPLACE INTO vector VALUES (?, ?, ?, ?)", rows)

        self._do(write, create=True)

    def forget_vectors(self, model: str) -> None:
        """Drop the vectors of a model that has become another one."""
        self._do(lambda connection: connection.execute("DELETE FROM vector WHERE model = ?", (model,)), create=False)

    def answer(self, question: bytes) -> str | None:
        """Return the answer that is kept for the digest of a question, None where there is none."""
        query = "SELECT answer FROM answer WHERE question = ?"
        found = self._do(lambda connection: connection.execute(query, (question,)).fetchone(), create=False)
        if found:
            return str(found[0])
        return None

    def keep_answer(self, question: bytes, answer: str) -> None:
        """Keep an answer for a month."""
        today = int(time.time()) // _DAY_S

        def write(connection: sqlite3.Connection) -> None:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("DELETE FROM answer WHERE used < ?", (today - _UNUSED_DAYS,))
            connection.execute("INSERT OR REPLACE INTO answer VALUES (?, ?, ?)", (question, answer, today))

        self._do(write, create=True)

    def close(self) -> None:
        """Give back the file."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
            self._connection = None

    def _do(self, work: Callable[[sqlite3.Connection], Any], *, create: bool) -> Any:
        """Return what `work` returns in one transaction; None where there is no file to use."""
        with self._lock:
            if self._is_given_up:
                return None
            try:
                if self._connection is None and not self._is_there(create=create):
                    return None
            except OSError as error:
                if error.errno in (errno.ELOOP, errno.EISDIR):
                    self._discard("it is a link or a folder")
                return None
            except UnusableFileError as error:
                self._discard(str(error))
                return None
            import sqlite3  # late: a start without an index needs none

            try:
                connection = self._connection or self._open()
                with connection:
                    return work(connection)
            except UnusableFileError as error:
                self._discard(str(error))
            except sqlite3.DatabaseError as error:
                passing = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY)
                if error.sqlite_errorcode & 0xFF in passing:
                    logger.debug("the index %s cannot be used now: %s", self.path, error)
                else:
                    self._discard(f"it is damaged ({error})")
            return None

    def _is_there(self, *, create: bool) -> bool:
        """Tell whether there is a file that this user alone can have written; `create` makes it where there is none.

        Raises:
            OSError: it cannot be opened or made.
            UnusableFileError: another user may have written it.
        """
        folder = self.path.parent
        if create:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not os.access(folder, os.W_OK):
                return False
            _check_owner(os.lstat(folder), "its folder", stat.S_ISDIR)
            os.close(os.open(self.path, os.O_CREAT | os.O_RDWR | getattr(os, "O_NOFOLLOW", 0), 0o600))
        try:
            _check_owner(os.lstat(folder), "its folder", stat.S_ISDIR)
            _check_owner(os.lstat(self.path), "it", stat.S_ISREG)
        except FileNotFoundError:
            return False
        return True

    def _open(self) -> sqlite3.Connection:
        """Open the file.

        Raises:
            UnusableFileError: it has another format.
            sqlite3.Error: it is damaged, or locked for too long.
        """
        import sqlite3

        connection = sqlite3.connect(self.path, timeout=_BUSY_S, check_same_thread=False, isolation_level=None)
        try:
            _prepare(connection)
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        return connection

    def _discard(self, reason: str) -> None:
        """Delete the file, to be built anew. What cannot be deleted is not tried again."""
        self.close()
        then = "it is built anew"
        for suffix in ("", "-wal", "-shm"):
            try:
                os.unlink(f"{self.path}{suffix}")
            except FileNotFoundError:
                continue
            except OSError:
                then, self._is_given_up = "remove it", True
        logger.info("the index of an earlier start, %s, is not used: %s; %s", self.path, reason, then)


def _check_owner(found: os.stat_result, what: str, is_kind: Callable[[int], bool]) -> None:
    """Refuse what another user may have written.

    Raises:
        UnusableFileError: this user does not own it alone, or it is of another kind.
    """
    if not is_kind(found.st_mode):
        raise UnusableFileError(f"{what} is a link or of another kind")
    reason = why_untrusted(found)
    if reason:
        raise UnusableFileError(f"{what} {reason}")


def _prepare(connection: sqlite3.Connection) -> None:
    """Make the tables of a new file, and check the format of another."""
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA synchronous = NORMAL")
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version == _VERSION:
        return
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("BEGIN IMMEDIATE")  # of several processes that find a new file, one makes the tables
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version == 0 and not connection.execute("SELECT 1 FROM sqlite_master").fetchone():
        for statement in _SCHEMA.split(";"):
            connection.execute(statement)
        version = _VERSION
    connection.execute("COMMIT")
    if version != _VERSION:
        raise UnusableFileError("it has another format")


def _key(root_path: str) -> tuple[bytes, str]:
    return os.fsencode(root_path), _code_mark()


def _root_id(connection: sqlite3.Connection, root_path: str) -> int:
    """Return the number of a root, which is in use from now on; drop the roots that no server used for a month."""
    today = int(time.time()) // _DAY_S
    connection.execute("DELETE FROM root WHERE used < ?", (today - _UNUSED_DAYS,))
    statement = "INSERT INTO root (path, code, used) VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET used = excluded.used"
    connection.execute(statement, (*_key(root_path), today))
    (found,) = connection.execute("SELECT id FROM root WHERE path = ? AND code = ?", _key(root_path)).fetchone()
    return int(found)


def encode(skill: Skill) -> str | None:
    """Return the record of a skill, None where nothing can be said of it.

    A file that was so young at its scan that a later write could leave the same signature is left out.
    """
    files = {
        file.location: (file.digest, file.signature)
        for file in skill.files.values()
        if file.mtime_reliable and file.digest and file.signature
    }
    manifest, reading = skill.files.get(SKILL_MD), skill.reading
    read: list[Any] | None = None
    if manifest is not None and manifest.location in files:
        problems = [(each.code, each.severity, each.message, each.hint, each.line) for each in reading.problems]
        if not any(code in _OF_THE_MOMENT for code, *_ in problems):
            read = [manifest.signature, reading.frontmatter, reading.heading, int(reading.standing), problems]
            read += [reading.headings, reading.opening]
    if read is None and not files:
        return None
    try:
        return json.dumps([files, read], separators=(",", ":"))
    except (ValueError, TypeError, RecursionError):  # a number of thousands of digits, say
        return None


def _decode(record: Any) -> StoredSkill:
    digests, read = record
    if not isinstance(digests, dict):
        raise ValueError
    digests = cast("Digests", digests)
    if read is None:
        return StoredSkill(digests, "", None)
    signature, fields, heading, standing, problems, headings, opening = read
    reading = Reading(
        cast("dict[str, Json]", fields),
        _text_or_none(heading),
        Standing(standing),
        tuple(map(_problem, problems)),
        tuple(str(each) for each in headings),
        str(opening),
    )
    return StoredSkill(digests, str(signature), reading)


def _problem(fields: Sequence[Any]) -> Problem:
    code, severity, message, hint, line = fields
    if severity not in ("error", "warning", "note") or not (line is None or isinstance(line, int)):
        raise ValueError
    return Problem(str(code), severity, str(message), str(hint), line)


def _text_or_none(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    raise ValueError


@cache
def _code_mark() -> str:
    """Return a text that changes with the code that reads skills: by version and time stamps of the source.

    The source is looked at once, near the start: a process goes on with the code that it began with.
    """
    top = Path(mcp_skills_server.__file__).parent
    marks: list[tuple[str, int, int]] = []
    for name in _SHAPES_A_READING:
        place = top / name
        for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            with suppress(OSError):  # in an archive of Python code the version alone counts
                found = path.stat()
                marks.append((path.relative_to(top).as_posix(), found.st_size, found.st_mtime_ns))
    return hashlib.sha256(repr((mcp_skills_server.__version__, marks)).encode()).hexdigest()[:32]
