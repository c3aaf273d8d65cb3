"""A publication as a tree of files for any web server: what the live server would answer, byte for byte.

The new tree is made beside the old one and takes its place by one rename, so a visitor, or whoever comes after a
crash, finds the one or the other whole. What this program did not write is never written over and never deleted: a
record beside the tree names every file of ours.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import stat
import sys
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final, Literal, cast

from mcp_skills_server.dialects.wellknown import DIRECTORY, DIRECTORY_0_1, INDEX, INDEX_MEDIA_TYPE
from mcp_skills_server.errors import UsageError
from mcp_skills_server.model import SKILL_MD, printable
from mcp_skills_server.publish.publication import Edition, Publication

KEEP_DAYS: Final = 7.0
TREE: Final = DIRECTORY.split("/")[1]
RECORD: Final = ".mcp-skills-server.json"
HEADERS: Final = "_headers"
_STAGING: Final = ".mcp-skills-server.staging"
_FORMER: Final = ".mcp-skills-server.former"
_OURS: Final = frozenset((RECORD, _STAGING, _FORMER))
_FORMAT: Final = 1
_DAY_S: Final = 86_400
_ARTIFACT: Final = re.compile(re.escape(DIRECTORY[1:]) + r"[^/]+/[0-9a-f]{64}/[^/]+")
_SAFE: Final = "  X-Content-Type-Options: nosniff\n  Access-Control-Allow-Origin: *\n"
_PAGES: Final = "  Content-Security-Policy: default-src 'none'; sandbox\n"
HEADERS_TEXT: Final = (
    "# Headers of Agent Skills Discovery for hosts that read this file, such as Netlify and Cloudflare Pages.\n"
    f"{DIRECTORY}{INDEX}\n  Content-Type: {INDEX_MEDIA_TYPE}\n  Cache-Control: public, max-age=60\n{_SAFE}"
    f"{DIRECTORY}:name/:digest/:artifact\n  Cache-Control: public, max-age=31536000, immutable\n{_SAFE}"
    f"{DIRECTORY}:name/:digest/{SKILL_MD}\n  Content-Type: text/markdown; charset=utf-8\n"
    f"{DIRECTORY_0_1}*\n  Cache-Control: public, max-age=60\n{_SAFE}{_PAGES}"
    f"{DIRECTORY_0_1}{INDEX}\n  Content-Type: {INDEX_MEDIA_TYPE}\n"
    f"{DIRECTORY_0_1}:name/{SKILL_MD}\n  Content-Type: text/markdown; charset=utf-8\n"
)
"""No header stands in two rules that fit one path, or such hosts would send both values as one (WK-31...33, WK-37)."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One file that is not as it would be published.

    Attributes:
        path: in the output folder.
        state: "missing", "different" or "left over".
    """

    path: str
    state: str

    def __str__(self) -> str:
        return printable(f"{self.path}: {self.state}")


@dataclass(slots=True)
class _Record:
    """What the file beside the tree says.

    Attributes:
        files: every file that this program wrote, or was about to.
        retired: artifacts that the index no longer names, with the time (seconds since 1970) when that was noticed.
    """

    files: frozenset[str] = frozenset()
    retired: dict[str, int] = field(default_factory=dict[str, int])

    def encode(self) -> bytes:
        """The bytes of the file: the same record, the same bytes."""
        told = {"format": _FORMAT, "retired": dict(sorted(self.retired.items())), "files": sorted(self.files)}
        return json.dumps(told, ensure_ascii=False, indent=0).encode() + b"\n"


@dataclass(slots=True)
class _Plan:
    """What is to be done.

    Attributes:
        same: files that are there already, by their path.
        differences: all that is not as it should be.
        carried: files of the old tree that the new one has too: artifacts that stay for a while, and files of others.
        record: what to write down afterwards.
    """

    same: list[str]
    differences: list[Difference]
    carried: list[str]
    record: _Record


class Site:
    """An output folder: the tree, the record, and the headers if they are wanted.

    Args:
        output: the folder; links are followed. It must be empty, absent or of this program's making.
        headers: also write `_headers`.
        keep_days: how long an artifact stays that the index no longer names, for whoever has an old index cached.
        clock: seconds since 1970.

    Raises:
        UsageError: it is of somebody else's making, or no folder.
    """

    def __init__(
        self,
        output: str,
        *,
        headers: bool = False,
        keep_days: float = KEEP_DAYS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._shown = printable(output)
        self._path = os.path.realpath(output)
        self._headers = headers
        self._keep_s = keep_days * _DAY_S
        self._clock = clock
        with self._told("read"):
            self._check_owner()

    def check(self, publication: Publication) -> list[Difference]:
        """What is not as it would be published, in path order; nothing is written.

        Artifacts that stay for a while are no difference.

        Raises:
            UsageError: the folder cannot be read.
        """
        with self._told("read"):
            plan = self._plan(publication, publication.edition(), lambda _path, _raw: None)
            return sorted(plan.differences, key=lambda each: each.path)

    def write(self, publication: Publication) -> list[Difference]:
        """Make the folder current. Returns what was not; nothing at all is touched when that is nothing.

        Raises:
            UsageError: it cannot be written, or another process is publishing there.
        """
        with self._told("written"):
            os.makedirs(self._path, exist_ok=True)
            with self._alone():
                self._recover()
                edition = publication.edition()
                staging = os.path.join(self._path, _STAGING)
                try:
                    plan = self._plan(publication, edition, lambda path, raw: _write(os.path.join(staging, path), raw))
                    if plan.differences or plan.record != self._record():
                        self._swap(plan, staging)
                finally:
                    _remove(staging)
                return sorted(plan.differences, key=lambda each: each.path)

    # What is there

    def _check_owner(self) -> None:
        if not os.path.lexists(self._path):
            return
        if not os.path.isdir(self._path):
            raise UsageError(f"{self._shown}: not a folder; give --output a folder")
        found = set(os.listdir(self._path))
        if RECORD not in found and found - {_STAGING}:
            raise UsageError(
                f"{self._shown}: the folder is not empty and not of this program's making ({RECORD} is missing), and "
                "stays as it is; give --output a folder of its own"
            )
        if os.path.islink(os.path.join(self._path, TREE)):
            raise UsageError(f"{self._shown}: {TREE} is a link there; give --output a folder of its own")
        self._record()

    def _record(self) -> _Record:
        place = os.path.join(self._path, RECORD)
        raw = _read(place)
        if raw is None:
            return _Record()
        try:
            told = cast("dict[str, Any]", json.loads(raw or b""))
            if told["format"] != _FORMAT:
                raise ValueError
            return _Record(frozenset(map(str, told["files"])), {str(k): int(v) for k, v in told["retired"].items()})
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            said = f"{self._shown}: {RECORD} there cannot be read; remove the folder, or give --output another"
            raise UsageError(said) from None

    def _there(self) -> Iterator[str]:
        """Every file of the tree, by its path in the folder; links are not followed."""
        pending = [TREE]
        while pending:
            directory = pending.pop()
            try:
                with os.scandir(os.path.join(self._path, directory)) as entries:
                    for entry in entries:
                        path = f"{directory}/{entry.name}"
                        if entry.is_dir(follow_symlinks=False):
                            pending.append(path)
                        else:
                            yield path
            except FileNotFoundError:
                continue

    # What it should be

    def _plan(self, publication: Publication, edition: Edition, put: Callable[[str, bytes], None]) -> _Plan:
        """Compare file by file; `put` gets those that are not there as they should be."""
        record = self._record()
        plan = _Plan([], [], [], _Record())
        ours: set[str] = set()
        for absolute, raw in self._expected(publication, edition):
            path = absolute.lstrip("/")
            ours.add(path)
            found = _read(os.path.join(self._path, path))
            if found == raw:
                plan.same.append(path)
                continue
            if found is not None and path not in record.files:
                raise UsageError(f"{self._shown}: {printable(path)} is not of this program's making; move it away")
            plan.differences.append(Difference(path, "missing" if found is None else "different"))
            put(path, raw)
        now = int(self._clock())
        retired: dict[str, int] = {}
        for path in self._there():
            if path in ours:
                continue
            since = min(now, record.retired.get(path, now))
            if path in record.files and _ARTIFACT.fullmatch(path) and now - since < self._keep_s:
                retired[path] = since
                plan.carried.append(path)
            elif path in record.files and not _ARTIFACT.fullmatch(path):
                plan.differences.append(Difference(path, "left over"))
            elif path not in record.files:
                plan.carried.append(path)
        if not self._headers and HEADERS in record.files and _read(os.path.join(self._path, HEADERS)) is not None:
            plan.differences.append(Difference(HEADERS, "left over"))
        plan.record = _Record(frozenset(ours | retired.keys()), retired)
        return plan

    def _expected(self, publication: Publication, edition: Edition) -> Iterator[tuple[str, bytes]]:
        yield from publication.tree(edition)
        if self._headers:
            yield HEADERS, HEADERS_TEXT.encode()

    # Putting it there

    def _swap(self, plan: _Plan, staging: str) -> None:
        for path in (*plan.same, *plan.carried):
            if path != HEADERS:
                _take_over(os.path.join(self._path, path), os.path.join(staging, path))
        before = self._record()
        # Written down before it is done: after a crash in between, all of it is still known to be ours.
        both = _Record(before.files | plan.record.files, {**before.retired, **plan.record.retired})
        self._put_record(both, staging)
        if os.path.exists(os.path.join(staging, HEADERS)):
            os.replace(os.path.join(staging, HEADERS), os.path.join(self._path, HEADERS))
        _settle()
        self._put_tree(os.path.join(staging, TREE))
        if HEADERS in before.files - plan.record.files:
            with suppress(FileNotFoundError):
                os.unlink(os.path.join(self._path, HEADERS))
        self._put_record(plan.record, staging)

    def _put_record(self, record: _Record, staging: str) -> None:
        raw = record.encode()
        place = os.path.join(self._path, RECORD)
        if _read(place) != raw:
            fresh = os.path.join(staging, RECORD)
            _write(fresh, raw)
            os.replace(fresh, place)

    def _put_tree(self, new: str) -> None:
        place, former = os.path.join(self._path, TREE), os.path.join(self._path, _FORMER)
        if not os.path.lexists(place):
            os.rename(new, place)
        elif not _exchange(new, place):
            # Where two names cannot be swapped at once, there is a moment without a tree; `_recover` ends it.
            os.rename(place, former)
            os.rename(new, place)
            _remove(former)

    def _recover(self) -> None:
        """Clear away what a run has left that was killed."""
        place, former = os.path.join(self._path, TREE), os.path.join(self._path, _FORMER)
        if os.path.lexists(former) and not os.path.lexists(place):
            os.rename(former, place)
        _remove(former)
        _remove(os.path.join(self._path, _STAGING))

    @contextmanager
    def _alone(self) -> Generator[None]:
        if sys.platform == "win32":
            yield
            return
        import fcntl

        descriptor = os.open(self._path, os.O_RDONLY)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UsageError(f"{self._shown}: another process is publishing there; wait for its end") from None
            yield
        finally:
            os.close(descriptor)

    @contextmanager
    def _told(self, doing: str) -> Generator[None]:
        try:
            yield
        except OSError as error:
            place = printable(str(error.filename)) if error.filename else self._shown
            raise UsageError(f"{self._shown}: cannot be {doing} ({error.strerror or error}: {place})") from None


def _read(path: str) -> bytes | Literal[False] | None:
    """The bytes of a regular file; None where there is nothing, False where there is something else."""
    try:
        if not stat.S_ISREG(os.lstat(path).st_mode):
            return False
        with open(path, "rb") as file:
            return file.read()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _write(path: str, raw: bytes) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "xb") as file:
        file.write(raw)


def _take_over(old: str, new: str) -> None:
    """Have a file in the new tree too, with its time, without writing it again where that can be had."""
    os.makedirs(os.path.dirname(new), exist_ok=True)
    try:
        os.link(old, new, follow_symlinks=False)
    except (OSError, NotImplementedError):
        shutil.copy2(old, new, follow_symlinks=False)


def _remove(tree: str) -> None:
    with suppress(FileNotFoundError):
        shutil.rmtree(tree)


def _settle() -> None:
    """Have what was written survive a power cut before anything refers to it; once, and not for each of many files."""
    if sys.platform != "win32":
        os.sync()


_AT_CWD: Final = -2 if sys.platform == "darwin" else -100
_EXCHANGE: Final = 2
_CANNOT: Final = frozenset((errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP))


def _exchange(one: str, other: str) -> bool:
    """Swap two names in one step. False where the system or the file system cannot."""
    if sys.platform == "win32":
        return False
    import ctypes

    library = ctypes.CDLL(None, use_errno=True)
    swap = getattr(library, "renameatx_np" if sys.platform == "darwin" else "renameat2", None)
    if swap is None:
        return False
    if swap(_AT_CWD, os.fsencode(one), _AT_CWD, os.fsencode(other), _EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in _CANNOT:
        return False
    raise OSError(number, os.strerror(number), one)
