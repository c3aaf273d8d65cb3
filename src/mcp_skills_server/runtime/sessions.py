"""The sessions of many callers, by handle: bounded in number and age, each for its owner alone.

A handle is minted by us, cannot be guessed, and is the only reference to the state where a connection keeps none
(MCP-11, X-15). An unknown handle and another's handle are told in the same words.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from mcp_skills_server.errors import RequestError
from mcp_skills_server.runtime.session import Runtime, Session

MOST: Final = 4096
IDLE_S: Final = 24 * 3600


class Sessions:
    """Open sessions.

    Args:
        runtime: what they share.
        most: sessions at once; beyond it the one that was unused the longest ends.
        idle_s: seconds after which an unused session ends.
        now: seconds of a clock that never goes back.
    """

    def __init__(
        self, runtime: Runtime, *, most: int = MOST, idle_s: float = IDLE_S, now: Callable[[], float] = time.monotonic
    ) -> None:
        self.runtime = runtime
        self._most = most
        self._idle_s = idle_s
        self._now = now
        self._open: OrderedDict[str, tuple[Session, str | None, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def new(self, since: int | None = None) -> Session:
        """A session that nobody can find yet. `keep` it once it holds anything. `since`: as `Session` takes it."""
        return Session(self.runtime, hosted=False, since=since)

    def keep(self, session: Session, owner: str | None) -> None:
        """Have the session found by its handle, by this owner alone; None where callers have no names."""
        self._open[session.session_id] = (session, owner, self._now())
        self._open.move_to_end(session.session_id)
        over: list[str] = []
        too_many = len(self._open) - self._most
        for handle, (old, _, used) in self._open.items():
            if len(over) >= too_many and self._now() - used <= self._idle_s:
                break
            if old is not session and not old.calls:
                over.append(handle)
        for handle in over:
            self._open.pop(handle)[0].close()

    def find(self, handle: str, owner: str | None) -> Session:
        """The session of this handle.

        Raises:
            RequestError: it is unknown, over, or another owner's.
        """
        session, whose, used = self._open.get(handle, (None, None, 0.0))
        if session is None or whose != owner or (self._now() - used > self._idle_s and not session.calls):
            raise RequestError(
                f"Unknown session {handle[:100]!r}: it is over or was never opened here. Call skills_load without a "
                "session to begin a new one"
            )
        self.keep(session, owner)
        return session

    def close(self) -> None:
        """End them all."""
        for session, _, _ in self._open.values():
            session.close()
        self._open.clear()
        self.runtime.close()
