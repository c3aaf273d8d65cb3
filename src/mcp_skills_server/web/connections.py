"""Limits of HTTP connections: max-min fair eviction, and timeouts against slow clients.

uvicorn bounds the idle time between requests, but neither the head nor the body of one (slowloris).
Its connection limit does not tell clients apart. Here clients share connections by max-min
fairness: when all slots are taken, the client that holds the most loses its longest idle
connection. If none is idle, a new connection gets one of a few spare slots: probes are answered
there, other requests get 503.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from enum import IntEnum
from typing import Any, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from mcp_skills_server.errors import REPEATS
from mcp_skills_server.runtime.quota import owner_of

logger = logging.getLogger(__name__)

SLOT: Final = "mcp_skills_server.slot"
"""Key of the connection's slot in the `state` of a request."""
MOST_UNREAD: Final = 128 << 20
"""Bytes of unread responses buffered for all clients; a process takes up to three times as many."""
MOST_UNUSED_BODY: Final = 1 << 22
"""Bytes read of an unused request body: many clients send all before they read the response."""
_SPARE_S: Final = 2.0
"""Timeout in seconds of a request on a spare slot, of which there are few."""
_STALLED_CHECKS: Final = 4
"""Checks in a row, one per timeout, after which a client that read nothing is cut off."""
_CLIENT_SENDS: Final = (h11.IDLE, h11.SEND_BODY)
"""States of h11 in which the client must send something."""


def client_to_evict(held: Mapping[str, int], newcomer: str, able: Collection[str]) -> str | None:
    """Return the client of `able` that loses a slot to `newcomer` by max-min fairness, or None.

    Only `newcomer` itself and clients that hold more than it are considered.
    """
    mine = held.get(newcomer, 0)
    candidates = [client for client in able if client == newcomer or held[client] > mine]
    return max(candidates, key=held.__getitem__, default=None)


# Slots


class State(IntEnum):
    """The activity of a connection, in the order of eviction."""

    SILENT = 0
    """The client must send a request, and none was admitted before."""
    RESTING = 1
    """The client must send its next request, or the rest of one."""
    BUSY = 2
    """The client waits for a response, or reads a stream."""


class Slot:
    """The slot of one connection. Its owner is an address until a request is authenticated."""

    def __init__(self, slots: Slots, owner: str, close: Callable[[], object]) -> None:
        self._slots = slots
        self.owner = owner
        self.close = close
        """Closes the connection."""
        self.state = State.SILENT
        self.is_spare = False  # beyond the limit
        self.is_admitted = False  # whether a request on the connection was

    def admit(self, owner: str | None) -> bool:
        """Record an admitted request of this owner; return whether it may be answered."""
        return self._slots.admit(self, owner)


class Slots:
    """The connection slots of a server: `limit` regular ones, and `spare` ones, at least one."""

    def __init__(self, limit: int, spare: int) -> None:
        self.limit = limit
        self.most_spare = spare
        self._taken: dict[Slot, None] = {}
        """Ordered by the start of their states: the first one in a state has been in it longest."""
        self._spare: dict[Slot, None] = {}

    def enter(self, slot: Slot) -> None:
        """Assign a slot to a new connection. `close` of an evicted one must not call back now."""
        if self._make_room(slot.owner):
            self._taken[slot] = None
            return
        slot.is_spare = True
        if len(self._spare) >= self.most_spare:
            held = Counter(each.owner for each in self._spare)
            self._evict(min(self._spare, key=lambda each: (each.state, -held[each.owner])))
        self._spare[slot] = None

    def leave(self, slot: Slot) -> None:
        """Release the slot of a connection, if it has one."""
        self._taken.pop(slot, None)
        self._spare.pop(slot, None)

    def set_state(self, slot: Slot, state: State) -> None:
        """Record the activity of a connection."""
        if state is State.RESTING and not slot.is_admitted:
            state = State.SILENT
        if state is slot.state:
            return
        slot.state = state
        for table in (self._taken, self._spare):
            if slot in table:
                del table[slot]
                table[slot] = None

    def admit(self, slot: Slot, owner: str | None) -> bool:
        """Record an admitted request of this owner; return whether it may be answered."""
        slot.is_admitted = True
        slot.owner = owner or slot.owner
        if not slot.is_spare:
            return True
        if slot in self._spare and self._make_room(slot.owner, is_admitted=True):
            self.leave(slot)
            self._taken[slot] = None
            slot.is_spare = False
            return True
        self._warn("answered a request with 503")
        return False

    def _make_room(self, newcomer: str, *, is_admitted: bool = False) -> bool:
        """Return whether a slot is free for this client, evicting a connection if needed.

        Idle connections are evicted first. An admitted client may evict a busy one of another
        client. That client must hold more than half of all slots, and more than this one then will.
        """
        if len(self._taken) < self.limit:
            return True
        held = Counter(each.owner for each in self._taken)
        for state in State:
            first: dict[str, Slot] = {}
            for each in self._taken:
                if each.state is state:
                    first.setdefault(each.owner, each)
            able = [*first]
            if state is State.BUSY:
                least = max(self.limit // 2, held[newcomer] + 1)
                others = (each for each in first if is_admitted and each != newcomer)
                able = [each for each in others if held[each] > least]
            client = client_to_evict(held, newcomer, able)
            if client is not None:
                self._warn("closed one of the client with the most")
                self._evict(first[client])
                return True
        return False

    def _warn(self, what: str) -> None:
        message = "all %s connections are in use (--max-connections); %s"
        logger.warning(message, f"{self.limit:,}", what, extra=REPEATS)

    def _evict(self, slot: Slot) -> None:
        self.leave(slot)
        slot.close()


class Unread:
    """Responses buffered in memory until their clients read them.

    A request of 300 bytes may be answered by a file of 16 MiB. When more than `most` bytes are
    buffered, the client with the most of them loses the connection that has waited longest. A
    client with more than `share` bytes also does, but keeps its newest one.
    """

    def __init__(self, most: int = MOST_UNREAD, share: int | None = None) -> None:
        self._most = most
        self._share = share
        self._waiting: dict[Slot, int] = {}

    def add(self, slot: Slot, size: int) -> None:
        """Record the bytes buffered for this connection; close connections that exceed a limit."""
        self.drop(slot)
        self._waiting[slot] = size
        mine = [each for each in self._waiting if each.owner == slot.owner]
        while (
            self._share is not None
            and len(mine) > 1
            and sum(map(self._waiting.__getitem__, mine)) > self._share
        ):
            why = f"quota unread-bytes: more than {self._share:,} bytes unread by {slot.owner}"
            self._cut_off(mine.pop(0), why)
        while sum(self._waiting.values()) > self._most:
            by_client = Counter[str]()
            for each, waiting in self._waiting.items():
                by_client[each.owner] += waiting
            [(most, _)] = by_client.most_common(1)
            oldest = next(each for each in self._waiting if each.owner == most)
            self._cut_off(oldest, f"more than {self._most >> 20} MiB unread by all clients")

    def drop(self, slot: Slot) -> None:
        """Forget the bytes buffered for a connection, if any: they were read or lost."""
        self._waiting.pop(slot, None)

    def _cut_off(self, slot: Slot, why: str) -> None:
        self.drop(slot)
        logger.warning("cut off a client that did not read its response: %s", why, extra=REPEATS)
        slot.close()


# The protocol


class _UnambiguousConnection(h11.Connection):
    """h11 connection that rejects a request whose end is ambiguous (RFC 9112, 6.3).

    h11 prefers Transfer-Encoding if there is also a Content-Length. What a proxy took for the rest
    of the body then becomes another request (request smuggling).
    """

    def next_event(self) -> Any:
        """Return the next event; refuse both headers, and Transfer-Encoding in HTTP/1.0."""
        event = super().next_event()
        if isinstance(event, h11.Request):
            names = {name for name, _ in event.headers}
            if b"transfer-encoding" in names and (
                b"content-length" in names or event.http_version < b"1.1"
            ):
                reason = "Transfer-Encoding is not allowed with Content-Length or in HTTP/1.0"
                raise h11.RemoteProtocolError(reason, error_status_hint=400)
        return event


def protocol_with_timeouts(
    seconds: float, slots: Slots, share_unread: int | None = None
) -> type[asyncio.Protocol]:
    """Return uvicorn's protocol class with slots and timeouts.

    A client has `seconds` for the head of a request and again for its body. An unused body is read
    up to `MOST_UNUSED_BODY` bytes. A response or stream may take any time while its client reads.
    `share_unread` bounds the unread bytes of one client.
    """
    unread = Unread(share=share_unread)

    class Timed(H11Protocol):
        _slot: Slot

        def __init__(self, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.conn = _UnambiguousConnection(h11.SERVER)
            self._expected: object = None
            self._send_timer: asyncio.TimerHandle | None = None
            self._unused_body = 0
            self._waiting = 0
            self._stalled_checks = 0
            self._read_timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            owner = owner_of(None, self.client[0]) if self.client else None
            self._slot = Slot(slots, owner or "", transport.abort)
            self.app_state = {**self.app_state, SLOT: self._slot}
            slots.enter(self._slot)
            self._update_send_timeout()
            self._check_reading()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            # A request that is refused before it reaches the application has no cycle.
            has_answer = not self.cycle or self.cycle.response_complete
            self._unused_body += len(data)
            if not has_answer or self.conn.their_state is not h11.SEND_BODY:
                self._unused_body = 0
            if self._unused_body > MOST_UNUSED_BODY:
                message = "closed a connection that kept sending a request after its response"
                logger.info(message, extra=REPEATS)
                self.transport.close()
            self._update_send_timeout()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._note_state()

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            slots.leave(self._slot)
            unread.drop(self._slot)
            for timer in (self._send_timer, self._read_timer):
                if timer is not None:
                    timer.cancel()

        def pause_writing(self) -> None:
            super().pause_writing()
            unread.add(self._slot, self.transport.get_write_buffer_size())

        def resume_writing(self) -> None:
            super().resume_writing()
            unread.drop(self._slot)
            self._waiting = 0

        def _note_state(self) -> None:
            # While the body is incomplete the client must send, even if the response has begun.
            state = State.BUSY
            if self.conn.their_state in _CLIENT_SENDS:
                state = State.RESTING
            slots.set_state(self._slot, state)

        def _update_send_timeout(self) -> None:
            """Restart the timeout if the client must now send another part of a request."""
            self._note_state()
            expected = (self.cycle, self.conn.their_state)
            if expected[1] in _CLIENT_SENDS and expected == self._expected:
                return
            if self._send_timer is not None:
                self._send_timer.cancel()
            self._expected = self._send_timer = None
            if expected[1] in _CLIENT_SENDS:
                self._expected = expected
                timeout = seconds
                if self._slot.is_spare:
                    timeout = min(seconds, _SPARE_S)
                self._send_timer = self.loop.call_later(timeout, self._on_send_timeout)

        def _on_send_timeout(self) -> None:
            message = "closed a connection that sent no complete request in %g s"
            logger.info(message, seconds, extra=REPEATS)
            self.transport.close()

        def _check_reading(self) -> None:
            """Abort the connection if its client read nothing for `_STALLED_CHECKS` checks."""
            waiting = 0
            if self.transport.is_closing() or self.flow.write_paused:
                waiting = self.transport.get_write_buffer_size()
            self._stalled_checks += 1
            if not 0 < self._waiting <= waiting:
                self._stalled_checks = 0
            self._waiting = waiting
            if self._stalled_checks == _STALLED_CHECKS:
                message = "cut off a client that did not read its response for %g s"
                logger.info(message, _STALLED_CHECKS * seconds, extra=REPEATS)
                self.transport.abort()
            else:
                self._read_timer = self.loop.call_later(seconds, self._check_reading)

    return Timed
