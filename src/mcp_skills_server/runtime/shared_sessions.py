"""Sessions shared by the replicas of a server through records in a common store.

A record lists the loaded skills. Each call compares it with this replica's copy, and writes changes
by compare-and-swap. While the store is down, open sessions can be read but not changed, and a new
session is local to this replica until its record is written.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from hmac import compare_digest
from sys import float_info
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

import anyio

from mcp_skills_server.errors import REPEATS, RequestError, SkillsServerError
from mcp_skills_server.runtime.quota import Owner
from mcp_skills_server.runtime.session import THIS_PROCESS, Session
from mcp_skills_server.runtime.sessions import Sessions, UnknownSessionError

if TYPE_CHECKING:
    from mcp_skills_server.runtime.runtime import Runtime

logger = logging.getLogger(__name__)

_MOST_REFUSED: Final = 64
"""The maximum number of refused writes kept per session, for the calls in progress at that time."""
_HANDLE: Final = re.compile(r"[A-Za-z0-9_-]{22,64}")
VERSION: Final = 1
_MOST_SKILLS: Final = 1000
_LONGEST: Final = 4096


class SessionRecordError(SkillsServerError, ValueError):
    """An error for a text that is not a session record of this version, and why."""


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """The state of a session that replicas share, stored as versioned JSON.

    It names skills by path without their content: each replica serves its own files.
    """

    owner: str  # the SHA-256 of the owner, in hex digits; "" for none
    since: float  # the time of the list of skills that the model was shown, in epoch seconds
    skills: tuple[tuple[str, str], ...] = ()  # paths and digests of loaded skills, the latest last
    scripts_at: str = ""  # the process of the latest script, whose machine has the output files

    def text(self) -> str:
        """Return the record as JSON."""
        out: dict[str, Any] = {"version": VERSION, "owner": self.owner, "since": self.since}
        out["skills"] = [{"path": path, "digest": digest} for path, digest in self.skills]
        if self.scripts_at:
            out["scripts_at"] = self.scripts_at
        return json.dumps(out, separators=(",", ":"))


class RecordStore(Protocol):
    """A record store common to all replicas. Failures raise `RequestError`, for the model."""

    async def read(self, name: str, group: str | None) -> str | None:
        """Return the untrusted text of a record, or None. `group` is its quota's owner."""
        ...

    async def write(self, name: str, group: str | None, text: str, *, replaces: str | None) -> None:
        """Write a record if the stored text is still `replaces`; None creates a record."""
        ...


@dataclass(slots=True)
class _RecordCopy:
    """This replica's copy of a session's record."""

    text: str | None = None
    """The text last read or written. None means not stored yet; "" forces a reload from the store,
    after a refused write."""
    change_count: int = 0  # that of the session at that time
    script_moves: int = 0  # those of the session at that time
    refused: deque[range] = field(default_factory=lambda: deque[range](maxlen=_MOST_REFUSED))
    """Ranges of `change_count` whose writes were refused."""
    lost: bool = False  # the store lost the record, and the next write creates it
    lock: anyio.Lock = field(default_factory=anyio.Lock)
    """Held while the record is read and compared, or written."""


class SharedSessions(Sessions):
    """The open sessions of this replica, and those of the others through records in `store`."""

    def __init__(self, runtime: Runtime, store: RecordStore, **more: Any) -> None:
        super().__init__(runtime, **more)
        self._store = store
        self._here = secrets.token_hex(8)
        self._known: dict[str, _RecordCopy] = {}

    async def open(
        self, handle: str, owner: str | None, quota_owner: Owner = None, *, changes: bool = False
    ) -> Session:
        """Return the session of this handle, updated or created from its record if needed."""
        if not _HANDLE.fullmatch(handle):
            raise UnknownSessionError(handle)
        local = self._find_local(handle, owner)
        known = self._known.get(handle)
        if known is None or local is None:
            return await self._create(handle, owner, quota_owner)
        async with known.lock:
            try:
                text = await self._store.read(handle, quota_owner)
            except RequestError:
                if changes and known.text is not None:  # another replica may have changed it, too
                    raise
                return self.find(handle, owner)  # reads need no store
            if text is None:  # the store lost the record
                known.lost = True
            elif text != known.text:
                record = self._record(text, handle, owner)
                # False if a concurrent call has a change to write: the store will refuse its write,
                # and the next call reloads the record.
                if await local.restore(record, self._here, known.change_count):
                    known.text, known.script_moves, known.lost = text, local.script_moves, False
            return self.find(handle, owner)

    async def _create(self, handle: str, owner: str | None, quota_owner: Owner) -> Session:
        """Return a session of another replica, created here from its record."""
        text = await self._store.read(handle, quota_owner)
        if text is None:
            raise UnknownSessionError(handle)
        session = Session(self.runtime, hosted=False, handle=handle)
        await session.restore(self._record(text, handle, owner), self._here, session.change_count)
        if self._find_local(handle, owner) is not None:  # a concurrent call created it
            return self.find(handle, owner)
        self.end(handle)  # a stale copy that was idle here, but not on another replica
        self.store(session, owner, quota_owner)
        self._known[handle] = _RecordCopy(text)
        return session

    async def save(
        self,
        session: Session,
        owner: str | None,
        quota_owner: Owner = None,
        *,
        change: int | None = None,
    ) -> None:
        """Store a session in memory, and its record if it changed. Raises as `Sessions.save`."""
        handle = session.session_id
        self.store(session, owner, quota_owner)
        known = self._known.setdefault(handle, _RecordCopy())
        async with known.lock:
            # Another call's `save` included this change in its refused write.
            if change is not None and any(change in each for each in known.refused):
                raise RequestError("the session's change could not be stored; call again")
            changed, moved = session.change_count, session.script_moves
            is_same = (known.change_count, known.script_moves) == (changed, moved)
            if known.text is not None and is_same and not known.lost:
                return
            at = self._here if session.scripts_at == THIS_PROCESS else session.scripts_at
            text = SessionRecord(_owner(owner), session.shown_at, session.loaded, at).text()
            old = None if known.lost else known.text
            try:
                await self._store.write(handle, quota_owner, text, replaces=old)
            except RequestError:
                if known.text is None:  # no other replica knows its handle yet
                    return
                if known.change_count != changed:
                    refused = range(known.change_count + 1, changed + 1)
                    known.refused.append(refused)
                    known.text, known.change_count = "", changed
                    if change is not None and change in refused:
                        raise
                # No error: this call's own load or unload, if any, is already written.
                return
            known.text, known.lost = text, False
            known.change_count, known.script_moves = changed, moved

    def is_shared(self, session: Session) -> bool:
        """Return True if every replica can open this session."""
        known = self._known.get(session.session_id)
        return known is None or known.text is not None

    def end(self, handle: str) -> None:
        """End a session in this replica; its record stays until the store expires it."""
        super().end(handle)
        self._known.pop(handle, None)

    def _record(self, text: str, handle: str, owner: str | None) -> SessionRecord:
        try:
            record = parse_record(text)
        except SessionRecordError as error:
            logger.warning("a shared session record is invalid: %s", error, extra=REPEATS)
            raise UnknownSessionError(handle) from None
        # As bytes: `compare_digest` rejects non-ASCII text, which a foreign record may hold.
        theirs = record.owner.encode("utf-8", "surrogatepass")
        if not compare_digest(theirs, _owner(owner).encode()):
            raise UnknownSessionError(handle)
        return record


def _owner(owner: str | None) -> str:
    """Return the hash of an owner for a record; "" for None."""
    if owner is None:
        return ""
    return sha256(owner.encode("utf-8", "surrogatepass")).hexdigest()


def shared_sessions_factory(
    store: RecordStore, share: int | None = None
) -> Callable[[Runtime], Sessions]:
    """Return a factory of `SharedSessions` with this store, and `share` sessions per owner."""
    return lambda runtime: SharedSessions(runtime, store, share=share)


def parse_record(text: str) -> SessionRecord:
    """Parse a record, ignoring unknown fields; raise SessionRecordError for an invalid one."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise SessionRecordError("not JSON") from None
    if not isinstance(found, dict):
        raise SessionRecordError("not a JSON object")
    fields = cast("dict[str, object]", found)
    version, since = fields.get("version"), fields.get("since")
    if isinstance(version, bool) or version != VERSION:
        raise SessionRecordError(f"unsupported version {ascii(version)[:20]}")
    if isinstance(since, bool) or not isinstance(since, int | float):
        raise SessionRecordError("no time")
    if not abs(since) <= float_info.max:
        raise SessionRecordError("a time without end")
    skills, at = _skills(fields.get("skills")), _text(fields, "scripts_at", "")
    return SessionRecord(_text(fields, "owner"), float(since), skills, at)


def _text(fields: dict[str, object], key: str, default: str | None = None) -> str:
    value = fields.get(key, default)
    if not isinstance(value, str) or len(value) > _LONGEST:
        raise SessionRecordError(f"no text {key!r}")
    return value


def _skills(found: object) -> tuple[tuple[str, str], ...]:
    if not isinstance(found, list) or len(cast("list[object]", found)) > _MOST_SKILLS:
        raise SessionRecordError("no list of skills")
    out: dict[str, str] = {}
    for each in cast("list[object]", found):
        if not isinstance(each, dict):
            raise SessionRecordError("a skill is not an object")
        entry = cast("dict[str, object]", each)
        out[_text(entry, "path")] = _text(entry, "digest")
    return tuple(out.items())
