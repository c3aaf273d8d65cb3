"""The sessions of many callers, by handle: bounded in number and age, each for its owner alone.

A handle is minted by us, cannot be guessed, and is the only reference to the state where a
connection keeps none. An unknown handle and another's handle are answered in the same words. A
client that opens too many loses its own oldest, and no other client's.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from mcp_skills_server.errors import RequestError
from mcp_skills_server.runtime.quota import Owner, Quota, QuotaError
from mcp_skills_server.runtime.runtime import Runtime
from mcp_skills_server.runtime.session import Session

MOST: Final = 4096
IDLE_S: Final = 24 * 3600


class UnknownSessionError(RequestError):
    """There is no such session for this caller: unknown, over, or another owner's."""

    def __init__(self, handle: str) -> None:
        super().__init__(
            f"Unknown session {handle[:100]!r}: it is over or was never opened here. Call "
            "skills_load without a "
            "session to begin a new one"
        )


@dataclass(slots=True)
class _Open:
    """A session with its owner and the time of its last use, by the clock of `Sessions`."""

    session: Session
    owner: str | None
    used: float


class Sessions:
    """Open sessions. One owner has at most `share`, None for a quarter; one unused for `idle_s`
    ends."""

    def __init__(
        self,
        runtime: Runtime,
        *,
        most: int = MOST,
        idle_s: float = IDLE_S,
        now: Callable[[], float] = time.monotonic,
        share: int | None = None,
    ) -> None:
        self.runtime = runtime
        self._quota = Quota[str]("sessions", most, share, name="runtime-sessions")
        self._idle_s = idle_s
        self._now = now
        self._open: OrderedDict[str, _Open] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def new(self, since: int | None = None, runtime: Runtime | None = None) -> Session:
        """Return an unregistered session of this or the shared runtime. `keep` it once it holds
        anything."""
        return Session(runtime or self.runtime, hosted=False, since=since)

    def keep(self, session: Session, owner: str | None, counted: Owner = None) -> None:
        """Register the session by its handle, for this owner alone. A registered one stays counted
        as it was.

        It counts toward the share of `counted`; beyond it their least recently used session ends.

        Raises:
            QuotaError: all places are taken, and this caller has no session to evict. The session
                has ended.
        """
        handle = session.session_id
        if handle in self._open:
            self._quota.renew(handle)
        else:
            self._end_idle()
            try:
                going = self._quota.claim(
                    handle, counted, busy=lambda other: self._open[other].session.calls > 0
                )
            except QuotaError:
                session.close()
                raise
            for other in going:
                self.end(other)
        self._open[handle] = _Open(session, owner, self._now())
        self._open.move_to_end(handle)
        self._end_idle()

    def _end_idle(self) -> None:
        over: list[str] = []
        for handle, each in self._open.items():
            if self._now() - each.used <= self._idle_s:
                break
            if not each.session.calls:
                over.append(handle)
        for handle in over:
            self.end(handle)

    def end(self, handle: str) -> None:
        """End the session of this handle. Ignore one that is over."""
        self._quota.release(handle)
        if handle in self._open:
            self._open.pop(handle).session.close()

    def _find_local(self, handle: str, owner: str | None) -> Session | None:
        """Return this owner's session of this handle from the memory of this process, or None."""
        found = self._open.get(handle)
        if found is None or found.owner != owner:
            return None
        if self._now() - found.used > self._idle_s and not found.session.calls:
            return None
        return found.session

    def find(self, handle: str, owner: str | None) -> Session:
        """Return the session of this handle; UnknownSessionError if it is unknown, over, or another
        owner's."""
        session = self._find_local(handle, owner)
        if session is None:
            raise UnknownSessionError(handle)
        self.keep(session, owner)
        return session

    async def open(
        self,
        handle: str,
        owner: str | None,
        counted: Owner = None,  # noqa: ARG002 - for sessions that others begin
        *,
        changes: bool = False,  # noqa: ARG002
    ) -> Session:
        """Return the session of this handle, wherever sessions are kept; `changes` says that the
        call loads or unloads.

        Raises:
            UnknownSessionError: as `find`.
            RequestError: it cannot be had now.
        """
        return self.find(handle, owner)

    async def save(
        self,
        session: Session,
        owner: str | None,
        counted: Owner = None,
        *,
        change: int | None = None,  # noqa: ARG002
    ) -> None:
        """`keep` a session after a call, wherever sessions are kept.

        `change` is how often the session had `changed` once the call had; None where it changed
        nothing.

        Raises:
            QuotaError: as `keep`.
            RequestError: what the call changed cannot be kept now.
        """
        self.keep(session, owner, counted)

    def is_shared(self, session: Session) -> bool:  # noqa: ARG002
        """Return whether every replica knows this session."""
        return True

    def close(self) -> None:
        """End them all."""
        for handle, each in self._open.items():
            self._quota.release(handle)
            each.session.close()
        self._open.clear()
        self.runtime.close()
