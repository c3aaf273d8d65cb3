"""In-memory session store: sessions by handle, with a quota and an idle timeout.

The server makes the handles, which are unguessable; a stateless connection identifies its session
by the handle alone. The error for an unknown handle and for another owner's is the same. A client
beyond its quota loses its own least recently used session, never another client's.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

from mcp_skills_server.access.quota import Owner, Quota, QuotaError
from mcp_skills_server.errors import RequestError
from mcp_skills_server.runtime.offering import Offering
from mcp_skills_server.runtime.runtime import Runtime
from mcp_skills_server.runtime.session import Session
from mcp_skills_server.telemetry.load import Occupancy

MAX_SESSIONS: Final = 4096
IDLE_S: Final = 24 * 3600


class UnknownSessionError(RequestError):
    """An error for a handle that is unknown, ended, or another owner's."""

    def __init__(self, handle: str) -> None:
        super().__init__(
            f"Unknown session {handle[:100]!r}: it has ended, or never existed here. Call "
            "skills_load without a session to begin a new one"
        )


class _OpenSession(NamedTuple):
    """A session with its owner and the time of its last use, by `time.monotonic`."""

    session: Session
    owner: str | None
    used: float


class Sessions:
    """The open sessions: at most `MAX_SESSIONS`, and by default a quarter of them per owner.

    A session that is unused for `IDLE_S` seconds ends.
    """

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self._quota = Quota[str]("sessions", MAX_SESSIONS, name="runtime-sessions")
        self._open: OrderedDict[str, _OpenSession] = OrderedDict()
        self._evicted = 0

    def __len__(self) -> int:
        return len(self._open)

    @property
    def usage(self) -> Occupancy:
        """The open sessions."""
        return Occupancy(len(self._open), self._quota.total, self._evicted)

    def new(
        self,
        since: float | None = None,
        offering: Offering | None = None,
        handle: str | None = None,
    ) -> Session:
        """Return a new session without storing it; the caller calls `store` when needed."""
        offering = offering or self.runtime.whole
        return Session(offering, hosted=False, since=since, handle=handle, handle_of=self.handle_of)

    def handle_of(self, session: Session) -> str:
        """Return the handle that the model gives in its next calls."""
        return session.session_id

    def store(self, session: Session, owner: str | None, quota_owner: Owner | None = None) -> None:
        """Store a session by its handle, for this owner alone, or mark it as just used.

        A new one counts toward the quota of `quota_owner`, whose least recently used idle sessions
        are evicted if needed.

        Raises:
            QuotaError: no session can be evicted. The new session is closed.
        """
        handle = session.session_id
        if handle in self._open:
            self._quota.renew(handle)
        else:
            self._end_idle()  # first, lest they count toward the quota
            try:
                going = self._quota.claim(
                    handle, quota_owner, is_busy=lambda other: self._open[other].session.calls > 0
                )
            except QuotaError:
                session.close()
                raise
            self._evicted += len(going)
            for other in going:
                self.end(other)
        self._open[handle] = _OpenSession(session, owner, time.monotonic())
        self._open.move_to_end(handle)
        self._end_idle()

    def _end_idle(self) -> None:
        over: list[str] = []
        for handle, opened in self._open.items():
            if time.monotonic() - opened.used <= IDLE_S:
                break
            if not opened.session.calls:
                over.append(handle)
        for handle in over:
            self.end(handle)

    def end(self, handle: str) -> None:
        """End the session of this handle, if it is open."""
        self._quota.release(handle)
        if handle in self._open:
            self._open.pop(handle).session.close()

    def _find_local(self, handle: str, owner: str | None) -> Session | None:
        """Return this owner's open session of this handle from memory, or None."""
        opened = self._open.get(handle)
        if opened is None or opened.owner != owner:
            return None
        if time.monotonic() - opened.used > IDLE_S and not opened.session.calls:
            return None
        return opened.session

    def find(self, handle: str, owner: str | None) -> Session:
        """Return the owner's session of this handle, or raise UnknownSessionError."""
        session = self._find_local(handle, owner)
        if session is None:
            raise UnknownSessionError(handle)
        self.store(session, owner)
        return session

    @asynccontextmanager
    async def open(
        self,
        handle: str,
        owner: str | None,
        quota_owner: Owner | None = None,
        *,
        changes: bool = False,  # noqa: ARG002 - for `SharedSessions`
    ) -> AsyncGenerator[Session]:
        """Open the session of this handle for one call, and save it at the end of the call.

        It comes from memory or from a store of other replicas. `changes` is True for a call that
        loads or unloads skills.

        Raises:
            UnknownSessionError: as `find`.
            RequestError: the session is not available now, or at the end the change cannot be
                stored.
        """
        session = self.find(handle, owner)
        yield session
        self.store(session, owner, quota_owner)

    async def add(
        self, session: Session, owner: str | None, quota_owner: Owner | None = None
    ) -> None:
        """Store a new session, in memory and in the store of other replicas, if any.

        Raises:
            QuotaError: as `store`.
        """
        self.store(session, owner, quota_owner)

    def is_shared(self, session: Session) -> bool:  # noqa: ARG002
        """Return True unless there are other replicas, and they cannot open this session."""
        return True

    def close(self) -> None:
        """End all sessions, and close the runtime."""
        for handle in [*self._open]:
            self.end(handle)
        self.runtime.close()
