"""The sessions of legacy clients over HTTP: found by id and principal, limited, closed when idle.

Clients share the sessions by max-min fairness. An owner over its quota loses its longest idle
session. Beyond the limit of all sessions the owner with most loses one; if it has more than half of
them, even one in use.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from time import monotonic
from typing import Final

import anyio

from mcp_skills_server.access.principal import Principal
from mcp_skills_server.access.quota import UNKNOWN_OWNER, Owner, Requester, limit_of, owner_to_evict
from mcp_skills_server.errors import REPEATS
from mcp_skills_server.server.dispatch import McpSession
from mcp_skills_server.telemetry.load import Occupancy
from mcp_skills_server.web.refusals import RefusalError, over_quota

logger = logging.getLogger(__name__)

KEPT_PREFIX: Final = b"kept-"
"""Prefix of the ids of clients that keep using a lost session."""
_QUOTA: Final = "sessions"


class HttpSession:
    """A session with its id for the client.

    Attributes:
        credential: the key of the principal that may use it; None for anybody.
        requests: the number of requests that use it now, its GET stream included.
        stream: cancels its GET stream; None without one.
    """

    def __init__(self, id_: bytes, session: McpSession, requester: Requester) -> None:
        self.id = id_
        self.session = session
        self.owner = requester.owner or UNKNOWN_OWNER
        self.credential = _credential(requester.principal)
        self.requests = 1
        self.idle_since = 0.0
        self.stream: anyio.CancelScope | None = None


class HttpSessions:
    """The table of sessions.

    Args:
        make: makes the session of a requester.
        limit: of all sessions.
        idle_s: the idle timeout in seconds.
    """

    def __init__(self, make: Callable[[Requester], McpSession], limit: int, idle_s: float) -> None:
        self._make = make
        self._limit = limit
        self._idle_s = idle_s
        self._by_id: dict[bytes, HttpSession] = {}
        self._held: dict[Owner, dict[HttpSession, None]] = {}
        """The sessions of each owner; those that rest are in the order in which they began to."""
        self._idle: dict[HttpSession, None] = {}
        """Sessions without a request, the longest idle one first."""
        self._timer: asyncio.TimerHandle | None = None
        self._evicted = 0

    @property
    def usage(self) -> Occupancy:
        """The open sessions."""
        return Occupancy(len(self._by_id), self._limit, self._evicted)

    def open(self, requester: Requester, *, keeps_lost: bool) -> HttpSession:
        """Open a session, in use, after evicting another one if needed.

        `keeps_lost` is for a client that never opens another session after a 404.

        Raises:
            RefusalError: no session can be evicted.
        """
        self._make_room(requester)
        prefix = KEPT_PREFIX if keeps_lost else b""
        id_ = prefix + secrets.token_hex(16).encode()
        entry = HttpSession(id_, self._make(requester), requester)
        self._by_id[id_] = entry
        self._held.setdefault(entry.owner, {})[entry] = None
        return entry

    def find(self, id_: bytes, principal: Principal | None) -> HttpSession | None:
        """Return the session of this id, if this principal may use it."""
        entry = self._by_id.get(id_)
        if entry is not None and entry.credential != _credential(principal):
            # The id is a credential, and not logged.
            logger.warning(
                "refused a session: the credential does not match the one that created the session",
                extra=REPEATS,
            )
            return None
        return entry

    def begin(self, entry: HttpSession) -> None:
        """Note the start of a request."""
        entry.requests += 1
        self._idle.pop(entry, None)

    def end(self, entry: HttpSession) -> None:
        """Note the end of a request; close the session once it has been idle for long."""
        entry.requests -= 1
        if entry.requests or entry.id not in self._by_id:
            return
        entry.idle_since = monotonic()
        self._idle[entry] = None
        mine = self._held[entry.owner]
        del mine[entry]
        mine[entry] = None  # the last of its owner to be evicted
        if self._timer is None:
            self._wait_for_idle(self._idle_s)

    def close(self, entry: HttpSession) -> None:
        """Close a session: its id is unknown from here on, and its requests are cancelled."""
        if self._by_id.pop(entry.id, None) is None:
            return
        self._idle.pop(entry, None)
        mine = self._held[entry.owner]
        del mine[entry]
        if not mine:
            del self._held[entry.owner]
        entry.session.close()
        if entry.stream is not None:
            entry.stream.cancel()
        logger.debug("a session of a legacy client ended")

    def _wait_for_idle(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._close_idle)

    def _close_idle(self) -> None:
        self._timer = None
        oldest = monotonic() - self._idle_s
        for entry in [*self._idle]:
            if entry.idle_since > oldest:
                self._wait_for_idle(entry.idle_since - oldest)
                return
            self.close(entry)

    def _make_room(self, requester: Requester) -> None:
        owner = requester.owner or UNKNOWN_OWNER
        share = limit_of(owner, _QUOTA)
        # more than one is over a limit that was lowered meanwhile
        while share is not None and len(self._held.get(owner, ())) >= share:
            if not self._evict(owner, busy=False):
                raise over_quota(requester, _QUOTA, share)
        if len(self._by_id) < self._limit:
            return
        held = {holder: len(sessions) for holder, sessions in self._held.items()}
        # A session in use is lost only by an owner with more than half of all, and with more than
        # the newcomer will have: otherwise the two would evict each other in turns.
        least = max(self._limit // 2, held.get(owner, 0) + 1)
        able = {entry.owner for entry in self._idle}
        able |= {holder for holder, count in held.items() if count > least}
        holder = owner_to_evict(held, owner, able)
        if holder is None or not self._evict(holder, busy=True):
            message = "refused a session: all %d are in use (--max-sessions)"
            logger.warning(message, self._limit, extra=REPEATS)
            raise RefusalError(503, "Too many open sessions", "busy")

    def _evict(self, owner: Owner, *, busy: bool) -> bool:
        """Evict the longest idle session of an owner, or with `busy` its first one if none is idle.

        Return whether one was evicted. Its client gets 404, and opens another.
        """
        mine = self._held[owner]
        victim = next((entry for entry in mine if not entry.requests), None)
        if victim is None and busy:
            victim = next(iter(mine))
        if victim is None:
            return False
        self._evicted += 1
        self.close(victim)
        return True


def _credential(principal: Principal | None) -> str | None:
    """Return the key of the principal that a session is bound to, or None."""
    return None if principal is None else principal.key
