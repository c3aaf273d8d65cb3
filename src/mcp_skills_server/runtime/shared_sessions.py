"""Sessions that every replica of a server can go on with: in memory as always, and a record of each
that all can read.

The record says what is loaded, and every call compares it with what this replica remembers. Where
it cannot be read, a session that is known here goes on reading; what would change it is refused
with the reason. A session that begins then is this replica's alone until its record can be written.
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
from mcp_skills_server.runtime.session import HERE, Session
from mcp_skills_server.runtime.sessions import Sessions, UnknownSessionError

if TYPE_CHECKING:
    from mcp_skills_server.runtime.runtime import Runtime

logger = logging.getLogger(__name__)

_MOST_REFUSED: Final = 64
"""Refusals that are remembered of a session, for the calls that were under way by then."""
_HANDLE: Final = re.compile(r"[A-Za-z0-9_-]{22,64}")
VERSION: Final = 1
_MOST_SKILLS: Final = 1000
_LONGEST: Final = 4096


class SessionRecordError(SkillsServerError, ValueError):
    """A text is no record of a session, or one of another version. The message says which."""


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """A session as replicas hand it on: small JSON with a version, foreign text where it is read.

    It names skills by path and holds nothing of them: a replica serves what it has itself.

    Attributes:
        owner: the hash of whose it is.
        since: when the model was shown the catalogue, in seconds of the wall clock.
        skills: path and digest of each loaded skill, the latest last.
        scripts_at: the process in which a script ran last; "" where none did. Its files are on that
            machine only.
    """

    owner: str
    since: float
    skills: tuple[tuple[str, str], ...] = ()
    scripts_at: str = ""

    def text(self) -> str:
        """Return the record as it is written."""
        out: dict[str, Any] = {"version": VERSION, "owner": self.owner, "since": self.since}
        out["skills"] = [{"path": path, "digest": digest} for path, digest in self.skills]
        if self.scripts_at:
            out["scripts_at"] = self.scripts_at
        return json.dumps(out, separators=(",", ":"))


class RecordStore(Protocol):
    """A store of records that all replicas see. It raises `RequestError`, whose message is for the
    model."""

    async def read(self, name: str, group: str | None) -> str | None:
        """Return the text of this name, which is foreign; None where there is none."""
        ...

    async def write(self, name: str, group: str | None, text: str, *, replaces: str | None) -> None:
        """Write a text in the place of the one that was read, None for a new one."""
        ...


@dataclass(slots=True)
class _Known:
    """The copy of a session's record that this replica has.

    Attributes:
        text: as it was read or written last; None of a new one, "" where it is to be taken as it is
            there.
        changed: the session's count of changes by then.
        refused: the changes that were refused, by the session's count; those before and between
            were written.
        moved: the same of processes that scripts ran in.
        lost: the record is no longer there, and has to be written anew.
        lock: held while the record is read and compared, or written.
    """

    text: str | None = None
    changed: int = 0
    refused: deque[range] = field(default_factory=lambda: deque[range](maxlen=_MOST_REFUSED))
    moved: int = 0
    lost: bool = False
    lock: anyio.Lock = field(default_factory=anyio.Lock)


class SharedSessions(Sessions):
    """Open sessions of this replica, and the way to those of the others by their records in
    `store`."""

    def __init__(self, runtime: Runtime, store: RecordStore, **more: Any) -> None:
        super().__init__(runtime, **more)
        self._store = store
        self._here = secrets.token_hex(8)
        self._known: dict[str, _Known] = {}

    async def open(
        self, handle: str, owner: str | None, counted: Owner = None, *, changes: bool = False
    ) -> Session:
        """Return the session of this handle, from wherever it was last used."""
        if not _HANDLE.fullmatch(handle):
            raise UnknownSessionError(handle)
        local = self._find_local(handle, owner)
        known = self._known.get(handle)
        if known is None or local is None:
            return await self._bring(handle, owner, counted)
        async with known.lock:
            try:
                text = await self._store.read(handle, counted)
            except RequestError:
                if changes and known.text is not None:  # another replica may have changed it, too
                    raise
                return self.find(handle, owner)  # reads go on
            if text is None:  # it was lost there, and not here
                known.lost = True
            elif text != known.text:
                record = self._record(text, handle, owner)
                # Where a call is about to write a change of its own, that is refused, and the next
                # call gets this.
                if await local.restore(record, self._here, known.changed):
                    known.text, known.moved, known.lost = text, local.moved, False
            return self.find(handle, owner)

    async def _bring(self, handle: str, owner: str | None, counted: Owner) -> Session:
        """Return a session that another replica has begun."""
        text = await self._store.read(handle, counted)
        if text is None:
            raise UnknownSessionError(handle)
        session = Session(self.runtime, hosted=False, handle=handle)
        await session.restore(self._record(text, handle, owner), self._here, session.changed)
        if self._find_local(handle, owner) is not None:  # another call has brought it meanwhile
            return self.find(handle, owner)
        self.end(handle)  # one that was idle here for too long, and not elsewhere
        self.keep(session, owner, counted)
        self._known[handle] = _Known(text)
        return session

    async def save(
        self,
        session: Session,
        owner: str | None,
        counted: Owner = None,
        *,
        change: int | None = None,
    ) -> None:
        """Keep a session, and have the other replicas know of it."""
        handle = session.session_id
        self.keep(session, owner, counted)
        known = self._known.setdefault(handle, _Known())
        async with known.lock:
            # by the save of another call
            if change is not None and any(change in each for each in known.refused):
                raise RequestError("the session could not be kept as this call left it; call again")
            changed, moved = session.changed, session.moved
            if known.text is not None and (known.changed, known.moved, known.lost) == (
                changed,
                moved,
                False,
            ):
                return
            at = self._here if session.scripts_at == HERE else session.scripts_at
            text = SessionRecord(_owner(owner), session.began, session.loaded, at).text()
            try:
                await self._store.write(
                    handle, counted, text, replaces=None if known.lost else known.text
                )
            except RequestError:
                if known.text is None:  # no other replica knows its handle yet
                    return
                if known.changed != changed:
                    refused = range(known.changed + 1, changed + 1)
                    known.refused.append(refused)
                    known.text, known.changed = "", changed
                    if change is not None and change in refused:
                        raise
                # what this call loaded or unloaded is written, and what else it did is with what
                # does
                return
            known.text, known.changed, known.moved, known.lost = text, changed, moved, False

    def is_shared(self, session: Session) -> bool:
        """Return whether every replica knows this session."""
        known = self._known.get(session.session_id)
        return known is None or known.text is not None

    def end(self, handle: str) -> None:
        """End a session here; its record stays for as long as it is kept."""
        super().end(handle)
        self._known.pop(handle, None)

    def _record(self, text: str, handle: str, owner: str | None) -> SessionRecord:
        try:
            record = parsed(text)
        except SessionRecordError as error:
            logger.warning(
                "a session cannot be read from what replicas share: it is %s", error, extra=REPEATS
            )
            raise UnknownSessionError(handle) from None
        # As bytes: of text that is no ASCII, as foreign text may be, compare_digest takes none.
        if not compare_digest(
            record.owner.encode("utf-8", "surrogatepass"), _owner(owner).encode()
        ):
            raise UnknownSessionError(handle)
        return record


def _owner(owner: str | None) -> str:
    """Return what stands in a record for an owner."""
    if owner is None:
        return ""
    return sha256(owner.encode("utf-8", "surrogatepass")).hexdigest()


def sharing(store: RecordStore, share: int | None = None) -> Callable[[Runtime], Sessions]:
    """Makes the sessions of a runtime whose records are in this store; one owner has `share` of
    them in memory."""
    return lambda runtime: SharedSessions(runtime, store, share=share)


def parsed(text: str) -> SessionRecord:
    """Return the record that a text is, or raise SessionRecordError. Unknown fields are ignored."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise SessionRecordError("no JSON") from None
    if not isinstance(found, dict):
        raise SessionRecordError("no JSON object")
    fields = cast("dict[str, object]", found)
    version, since = fields.get("version"), fields.get("since")
    if isinstance(version, bool) or version != VERSION:
        raise SessionRecordError(f"of version {ascii(version)[:20]}")
    if (
        isinstance(since, bool)
        or not isinstance(since, int | float)
        or not abs(since) <= float_info.max
    ):
        raise SessionRecordError("without a time")
    return SessionRecord(
        _text(fields, "owner"),
        float(since),
        _skills(fields.get("skills")),
        _text(fields, "scripts_at", ""),
    )


def _text(fields: dict[str, object], key: str, default: str | None = None) -> str:
    value = fields.get(key, default)
    if not isinstance(value, str) or len(value) > _LONGEST:
        raise SessionRecordError(f"without {key!r}")
    return value


def _skills(found: object) -> tuple[tuple[str, str], ...]:
    if not isinstance(found, list) or len(cast("list[object]", found)) > _MOST_SKILLS:
        raise SessionRecordError("without skills")
    out: dict[str, str] = {}
    for each in cast("list[object]", found):
        if not isinstance(each, dict):
            raise SessionRecordError("with a skill that is none")
        entry = cast("dict[str, object]", each)
        out[_text(entry, "path")] = _text(entry, "digest")
    return tuple(out.items())
