"""HTTP connections: how many, whose are evicted, and timeouts for clients that send or read too
slowly.

uvicorn bounds the time between two requests. It bounds neither the head nor the body of one, and
its limit of connections does not tell clients apart. Here connections are shared by max-min
fairness: when all slots are taken, the client that holds the most gives up the connection that is
idle longest. Where none is idle, a newcomer gets one of a few spare slots, on which probes are
answered and other requests get 503.
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
"""Where a request's `state` has the slot of its connection."""
MOST_UNREAD: Final = 128 << 20
"""Bytes of answers that wait for all clients; a process takes up to three times as many."""
MOST_UNHEEDED: Final = 1 << 22
"""Bytes of an unused body that are read: many clients send all before they read the answer."""
_SPARE_S: Final = 2.0
"""Seconds for a request on a spare slot; they are few."""
_LOOKS: Final = 4
"""Checks in each request timeout, after which a client that took no byte is cut off."""
_OWED: Final = (h11.IDLE, h11.SEND_BODY)
"""The client's states in which it is for it to send something."""


def client_to_evict(held: Mapping[str, int], newcomer: str, able: Collection[str]) -> str | None:
    """Return the client of those `able` that gives a slot to `newcomer`, by max-min fairness; None
    for none.

    `newcomer` takes none of a client that holds as few, but for its own.
    """
    mine = held.get(newcomer, 0)
    givers = [client for client in able if client == newcomer or held[client] > mine]
    return max(givers, key=held.__getitem__, default=None)


# Slots


class State(IntEnum):
    """The state of a connection, in the order of eviction."""

    SILENT = 0
    """It owes a request, and none before was admitted."""
    RESTING = 1
    """It owes the next request."""
    BUSY = 2
    """It waits for an answer, or follows a stream."""


class Slot:
    """The slot of one connection. It belongs to its address until a request proves a principal.

    Attributes:
        owner: the client.
        state: what the connection does.
        is_spare: whether it is one of those beyond the limit.
        is_admitted: whether a request on it was admitted.
        close: closes the connection.
    """

    def __init__(
        self, slots: Slots, owner: str = "", close: Callable[[], None] = lambda: None
    ) -> None:
        self._slots = slots
        self.owner = owner
        self.close = close
        self.state = State.SILENT
        self.is_spare = False
        self.is_admitted = False

    def admit(self, owner: str | None) -> bool:
        """Note that a request was admitted as this owner's; return whether it may be answered."""
        return self._slots.admit(self, owner)


class Slots:
    """Slots of a server: up to `limit` connections at once, and at least one spare."""

    def __init__(self, limit: int, spare: int) -> None:
        self._limit = limit
        self._most_spare = spare
        self._taken: dict[Slot, None] = {}
        """In the order in which their states began: the first in a state is in it longest."""
        self._spare: dict[Slot, None] = {}

    def enter(self, slot: Slot) -> None:
        """Give a new connection a slot. An evicted one's `close` must not call back at once."""
        if self._has_room(slot.owner):
            self._taken[slot] = None
            return
        slot.is_spare = True
        if len(self._spare) >= self._most_spare:
            held = Counter(each.owner for each in self._spare)
            self._evict(min(self._spare, key=lambda each: (each.state, -held[each.owner])))
        self._spare[slot] = None

    def leave(self, slot: Slot) -> None:
        """Take back the slot of a connection. One that has none is passed over."""
        self._taken.pop(slot, None)
        self._spare.pop(slot, None)

    def set_state(self, slot: Slot, state: State) -> None:
        """Note what a connection does now."""
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
        """Note that a request was admitted as this owner's; return whether it may be answered."""
        slot.is_admitted = True
        slot.owner = owner or slot.owner
        if not slot.is_spare:
            return True
        if slot in self._spare and self._has_room(slot.owner, is_admitted=True):
            self.leave(slot)
            self._taken[slot] = None
            slot.is_spare = False
            return True
        self._warn("answered a request with 503")
        return False

    def _has_room(self, newcomer: str, *, is_admitted: bool = False) -> bool:
        """Return whether there is a slot for this client, evicting a connection if need be.

        An idle one goes first. An admitted client may get a busy one: of another client that holds
        more than half, and more than this one then will.
        """
        if len(self._taken) < self._limit:
            return True
        held = Counter(each.owner for each in self._taken)
        for state in State:
            first: dict[str, Slot] = {}
            for each in self._taken:
                if each.state is state:
                    first.setdefault(each.owner, each)
            able = [*first]
            if state is State.BUSY:
                least = max(self._limit // 2, held[newcomer] + 1)
                able = [
                    each
                    for each in first
                    if is_admitted and each != newcomer and held[each] > least
                ]
            client = client_to_evict(held, newcomer, able)
            if client is not None:
                self._warn("closed one of the client that holds the most")
                self._evict(first[client])
                return True
        return False

    def _warn(self, what: str) -> None:
        logger.warning(
            "all %s places for connections are taken (--max-connections); %s",
            f"{self._limit:,}",
            what,
            extra=REPEATS,
        )

    def _evict(self, slot: Slot) -> None:
        self.leave(slot)
        slot.close()


class Unread:
    """Answers that wait in memory until their clients read them.

    A request of 300 bytes may be answered by a file of 16 MiB. When more than `most` bytes wait,
    the client for whom most of it waits loses the connection whose answer waits longest; beyond its
    own `share` a client does, too. One answer may always wait.
    """

    def __init__(self, most: int = MOST_UNREAD, share: int | None = None) -> None:
        self._most = most
        self._share = share
        self._waiting: dict[Slot, int] = {}

    def add(self, slot: Slot, size: int) -> None:
        """Note that so many bytes wait for this connection. Others may be closed for it."""
        self.drop(slot)
        self._waiting[slot] = size
        mine = [each for each in self._waiting if each.owner == slot.owner]
        while (
            self._share is not None
            and len(mine) > 1
            and sum(map(self._waiting.__getitem__, mine)) > self._share
        ):
            self._end(
                mine.pop(0),
                f"quota unread-bytes: more than {self._share:,} waited for {slot.owner}",
            )
        while sum(self._waiting.values()) > self._most:
            by_client = Counter[str]()
            for each, waiting in self._waiting.items():
                by_client[each.owner] += waiting
            [(most, _)] = by_client.most_common(1)
            oldest = next(each for each in self._waiting if each.owner == most)
            self._end(oldest, f"more than {self._most >> 20} MiB waited in all")

    def drop(self, slot: Slot) -> None:
        """Note that they were read, or are lost. Skip a connection for which none wait."""
        self._waiting.pop(slot, None)

    def _end(self, slot: Slot, why: str) -> None:
        self.drop(slot)
        logger.warning("cut off a client that left its answer unread: %s", why, extra=REPEATS)
        slot.close()


# The protocol


class _OneEnd(h11.Connection):
    """A connection of h11's on which each request says once where it ends (RFC 9112, 6.3).

    h11 takes the Transfer-Encoding where there is a Content-Length as well, and the rest of what a
    proxy took for the body becomes another request.
    """

    def next_event(self) -> Any:
        """Return what comes next; refuse both headers, and an encoding that the version lacks."""
        event = super().next_event()
        if isinstance(event, h11.Request):
            names = {name for name, _ in event.headers}
            if b"transfer-encoding" in names and (
                b"content-length" in names or event.http_version < b"1.1"
            ):
                reason = "Transfer-Encoding stands beside Content-Length, or in HTTP/1.0"
                raise h11.RemoteProtocolError(reason, error_status_hint=400)
        return event


def protocol_with_timeouts(
    seconds: float, slots: Slots, share_unread: int | None = None
) -> type[asyncio.Protocol]:
    """Return uvicorn's protocol with slots and timeouts.

    A client has so many seconds for the head of a request and again for its body. An unwanted body
    is read for some megabytes and no more. An answer may take as long as it likes, a stream too, as
    long as its client reads; of answers that it leaves unread, `share_unread` bytes wait.
    """
    unread = Unread(share=share_unread)

    class Timed(H11Protocol):
        def __init__(self, *, app_state: dict[str, Any], **kwargs: Any) -> None:
            self._slot = Slot(slots)
            super().__init__(app_state={**app_state, SLOT: self._slot}, **kwargs)
            self.conn = _OneEnd(h11.SERVER)
            self._since: object = None
            self._timer: asyncio.TimerHandle | None = None
            self._unheeded = 0
            self._waiting = 0
            self._looks = 0
            self._reading: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            if self.client:
                self._slot.owner = owner_of(None, self.client[0]) or ""
            self._slot.close = transport.abort
            slots.enter(self._slot)
            self._watch_sending()
            self._watch_reading()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            # One that was refused before anything answers for it has no cycle.
            is_unheeded = self.conn.their_state is h11.SEND_BODY and (
                not self.cycle or self.cycle.response_complete
            )
            self._unheeded += len(data)
            if not is_unheeded:
                self._unheeded = 0
            if self._unheeded > MOST_UNHEEDED:
                logger.info(
                    "closed a connection that went on and on with a request that had its answer",
                    extra=REPEATS,
                )
                self.transport.close()
            self._watch_sending()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._note_state()

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            slots.leave(self._slot)
            unread.drop(self._slot)
            for timer in (self._timer, self._reading):
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
            # A request whose body is still to come waits for its client, whatever was begun of it.
            slots.set_state(
                self._slot, State.RESTING if self.conn.their_state in _OWED else State.BUSY
            )

        def _watch_sending(self) -> None:
            """Begin to wait when another part of a request is owed than before."""
            self._note_state()
            owed = (self.cycle, self.conn.their_state)
            if owed[1] in _OWED and owed == self._since:
                return
            if self._timer is not None:
                self._timer.cancel()
            self._since = self._timer = None
            if owed[1] in _OWED:
                self._since = owed
                patience = seconds
                if self._slot.is_spare:
                    patience = min(seconds, _SPARE_S)
                self._timer = self.loop.call_later(patience, self._give_up)

        def _give_up(self) -> None:
            logger.info(
                "closed a connection that sent no whole request in %g s", seconds, extra=REPEATS
            )
            self.transport.close()

        def _watch_reading(self) -> None:
            """Cut off a client that took nothing of what waits for it, look after look."""
            waiting = 0
            if self.transport.is_closing() or self.flow.write_paused:
                waiting = self.transport.get_write_buffer_size()
            self._looks += 1
            if not 0 < self._waiting <= waiting:
                self._looks = 0
            self._waiting = waiting
            if self._looks == _LOOKS:
                logger.info(
                    "cut off a client that did not read its answer for %g s",
                    _LOOKS * seconds,
                    extra=REPEATS,
                )
                self.transport.abort()
            else:
                self._reading = self.loop.call_later(seconds, self._watch_reading)

    return Timed
