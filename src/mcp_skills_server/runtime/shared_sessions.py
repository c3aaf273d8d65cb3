"""Sessions shared by the replicas of a server through records in a common store.

A record lists the loaded skills. Each call compares it with this replica's copy, and writes changes
by compare-and-swap. Calls that change one session run one after the other. While the store is down,
open sessions can be read but not changed, and a new session is local to this replica until its
record is written.
"""

from __future__ import annotations

import logging
import re
import secrets
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from hmac import compare_digest
from typing import TYPE_CHECKING, Annotated, Final, Protocol, TypeAlias

import anyio
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError

from mcp_skills_server.access.quota import Owner
from mcp_skills_server.errors import REPEATS, RequestError
from mcp_skills_server.runtime.session import THIS_PROCESS, Session
from mcp_skills_server.runtime.sessions import Sessions, UnknownSessionError

if TYPE_CHECKING:
    from mcp_skills_server.runtime.runtime import Runtime

logger = logging.getLogger(__name__)

_HANDLE: Final = re.compile(r"[A-Za-z0-9_-]{22,64}")
_VERSION: Final = 2
_MAX_SKILLS: Final = 1000
_Text: TypeAlias = Annotated[str, Field(max_length=4096)]


class SessionRecord(BaseModel):
    """The state of a session that replicas share, stored as versioned JSON.

    It names skills by path without their content: each replica serves its own files. Unknown fields
    are ignored.
    """

    model_config = ConfigDict(frozen=True, strict=True)

    version: Annotated[int, Field(ge=_VERSION, le=_VERSION)]
    owner: _Text  # the SHA-256 of the owner, in hex digits; "" for none
    since: FiniteFloat  # the epoch seconds of the list of skills that the model was shown
    skills: Annotated[tuple[_Text, ...], Field(max_length=_MAX_SKILLS)]  # paths, the latest last
    given: Annotated[dict[_Text, _Text], Field(max_length=_MAX_SKILLS)] = {}
    """The paths of the versions that the conversation was given, by digest."""
    recalled: Annotated[tuple[_Text, ...], Field(max_length=_MAX_SKILLS)] = ()
    """The digests of the advisories that had a notice."""
    scripts_at: _Text = ""  # the process of the latest script, whose machine has the output files


class RecordStore(Protocol):
    """A record store common to all replicas. Failures raise `RequestError`, for the model."""

    async def read(self, name: str, group: str | None) -> str | None:
        """Return the untrusted text of a record, or None. `group` is its quota's owner."""
        ...

    async def write(
        self, name: str, group: str | None, text: str, *, replaces: str | None, share: int
    ) -> None:
        """Write a record if the stored text is still `replaces`; None creates a record.

        A record that the store lost is created again. A group has at most `share` records.
        """
        ...


@dataclass(slots=True)
class _RecordCopy:
    """This replica's copy of a session's record, as last read or written."""

    record: SessionRecord | None = None
    text: str | None = None
    """The text of the record. None means not stored yet; "" forces a reload from the store, after a
    refused write."""
    is_lost: bool = False  # the store lost the record
    change_count: int = 0  # that of the session at that time
    lock: anyio.Lock = field(default_factory=anyio.Lock)
    """Held while the record is read or written, and during a whole call that changes it."""


class SharedSessions(Sessions):
    """The open sessions of this replica, and those of the others through records in `store`."""

    def __init__(self, runtime: Runtime, store: RecordStore) -> None:
        super().__init__(runtime)
        self._store = store
        self._here = secrets.token_hex(8)
        self._known: dict[str, _RecordCopy] = {}

    @asynccontextmanager
    async def open(
        self,
        handle: str,
        owner: str | None,
        quota_owner: Owner | None = None,
        *,
        changes: bool = False,
    ) -> AsyncGenerator[Session]:
        """Open the session of this handle, updated or created from its record if needed."""
        if not _HANDLE.fullmatch(handle):
            raise UnknownSessionError(handle)
        if handle not in self._known or self._find_local(handle, owner) is None:
            await self._create(handle, owner, quota_owner)
        known = self._known[handle]
        async with known.lock:
            try:
                text = await self._store.read(handle, _group(quota_owner))
            except RequestError:
                if changes and known.text is not None:  # another replica may have changed it, too
                    raise
                text = known.text  # reads need no store
            session = self.find(handle, owner)
            if text is None:  # the store lost the record, and the next write creates it
                known.is_lost = known.is_lost or known.text is not None
                known.record = known.text = None
            elif text != known.text:
                record = self._record(text, handle, owner)
                session.loaded.paths = record.skills
                session.loaded.versions.update(record.given)
                session.loaded.reported.update(record.recalled)
                session.since = _on_clock(record.since, time.time(), time.monotonic())
                session.scripts_at = record.scripts_at
                if record.scripts_at == self._here:
                    session.scripts_at = THIS_PROCESS
                known.record, known.text, known.is_lost = record, text, False
                known.change_count = session.loaded.change_count
            if changes:
                yield session
                self.store(session, owner, quota_owner)
                await self._save(known, session, owner, quota_owner)
                return
        yield session
        self.store(session, owner, quota_owner)
        async with known.lock:
            with suppress(RequestError):  # this call itself changed no skill
                await self._save(known, session, owner, quota_owner)

    async def add(
        self, session: Session, owner: str | None, quota_owner: Owner | None = None
    ) -> None:
        """Store a new session in memory, and its record. Raises as `Sessions.add`."""
        self.store(session, owner, quota_owner)
        known = self._known[session.session_id] = _RecordCopy()
        async with known.lock:
            await self._save(known, session, owner, quota_owner)

    async def _create(self, handle: str, owner: str | None, quota_owner: Owner | None) -> None:
        """Create a session of another replica here, without the content of its record."""
        text = await self._store.read(handle, _group(quota_owner))
        if text is None:
            raise UnknownSessionError(handle)
        self._record(text, handle, owner)
        if handle not in self._known or self._find_local(handle, owner) is None:
            self.end(handle)  # a stale copy that was idle here, but not on another replica
            session = Session(self.runtime.whole, hosted=False, handle=handle)
            self.store(session, owner, quota_owner)
            self._known[handle] = _RecordCopy()

    async def _save(
        self, known: _RecordCopy, session: Session, owner: str | None, quota_owner: Owner | None
    ) -> None:
        """Write the record of a session if it changed; raise RequestError if a change is lost."""
        count, record = session.loaded.change_count, known.record
        if record is None or known.change_count != count:
            record = SessionRecord(
                version=_VERSION,
                owner=_hash_of(owner),
                since=_on_clock(session.since, time.monotonic(), time.time()),
                skills=session.loaded.paths,
                given=session.loaded.versions,
                recalled=tuple(session.loaded.reported)[:_MAX_SKILLS],
            )
        at = self._here if session.scripts_at == THIS_PROCESS else session.scripts_at
        record = record.model_copy(update={"scripts_at": at})
        if record != known.record:
            text, share = record.model_dump_json(), self._quota.limit(quota_owner)
            try:
                await self._store.write(
                    session.session_id, _group(quota_owner), text, replaces=known.text, share=share
                )
            except RequestError:
                is_local = known.text is None and not known.is_lost
                if is_local or known.change_count == count:
                    return  # no other replica knows its handle yet, or no skill has changed
                known.text, known.change_count = "", count
                raise
            known.record, known.text, known.is_lost = record, text, False
        known.change_count = count

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
            record = SessionRecord.model_validate_json(text)
        except ValidationError as error:
            reason = error.errors()[0]["msg"]
            logger.warning("a shared session record is invalid: %s", reason, extra=REPEATS)
            raise UnknownSessionError(handle) from None
        # As bytes: `compare_digest` rejects non-ASCII text, which a foreign record may hold.
        if not compare_digest(record.owner.encode(), _hash_of(owner).encode()):
            raise UnknownSessionError(handle)
        return record


def _on_clock(at: float, now: float, now_there: float) -> float:
    """Convert a time to another clock, by the present time of both.

    Replicas share only the wall clock, whose jumps must not affect the times of a process.
    """
    return now_there - (now - at)


def _group(owner: Owner | None) -> str | None:
    """Return the group of an owner's records; None for clients without an owner."""
    return None if owner is None else owner.key


def _hash_of(owner: str | None) -> str:
    """Return the hash of an owner for a record; "" for None."""
    if owner is None:
        return ""
    return sha256(owner.encode("utf-8", "surrogatepass")).hexdigest()
