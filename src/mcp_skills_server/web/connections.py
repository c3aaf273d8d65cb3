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
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from mcp_skills_server.access.quota import UNKNOWN_OWNER, Owner, limit_of, owner_of, owner_to_evict
from mcp_skills_server.errors import REPEATS
from mcp_skills_server.telemetry.load import Occupancy

logger = logging.getLogger(__name__)

SLOT: Final = "mcp_skills_server.slot"
"""Key of the connection's slot in the `state` of a request."""
MAX_UNREAD: Final = 128 << 20
"""Bytes of unread responses buffered for all clients; a process takes up to three times as many."""
MAX_UNUSED_BODY: Final = 1 << 22
"""Bytes read of an unused request body: many clients send all before they read the response."""
MAX_HEAD: Final = 64 << 10
"""The most bytes of a request's target and headers."""
MAX_PIPELINED: Final = 16
"""The most requests of a connection that wait for the response to an earlier one."""
_SPARE_S: Final = 2.0
"""Timeout in seconds of a request on a spare slot, of which there are few."""


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

    def __init__(self, slots: Slots, owner: Owner, close: Callable[[], object]) -> None:
        self._slots = slots
        self.owner = owner
        self.close = close
        """Closes the connection."""
        self.state = State.SILENT
        self.is_spare = False  # beyond the limit
        self.is_admitted = False  # whether a request on the connection was

    def admit(self, owner: Owner | None) -> bool:
        """Record an admitted request of this owner; return whether it may be answered."""
        return self._slots.admit(self, owner)


class Slots:
    """The connection slots of a server: `limit` regular ones, and `spare` ones, at least one."""

    def __init__(self, limit: int, spare: int, option: str = "--max-connections") -> None:
        self.limit = limit
        self._option = option
        self.most_spare = spare
        self._taken: dict[Slot, None] = {}
        """Ordered by the start of their states: the first one in a state has been in it longest."""
        self._spare: dict[Slot, None] = {}
        self._evicted = 0

    def enter(self, slot: Slot) -> None:
        """Assign a slot to a new connection. `close` of an evicted one must not call back now."""
        if self._make_room(slot.owner):
            self._taken[slot] = None
            return
        slot.is_spare = True
        if len(self._spare) >= self.most_spare:
            held = Counter(spare.owner for spare in self._spare)
            self._evict(min(self._spare, key=lambda spare: (spare.state, -held[spare.owner])))
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

    def admit(self, slot: Slot, owner: Owner | None) -> bool:
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

    def _make_room(self, newcomer: Owner, *, is_admitted: bool = False) -> bool:
        """Return whether a slot is free for this client, evicting a connection if needed.

        Idle connections are evicted first. An admitted client may evict a busy one of another
        client. That client must hold more than half of all slots, and more than this one then will.
        """
        if len(self._taken) < self.limit:
            return True
        held = Counter(slot.owner for slot in self._taken)
        for state in State:
            longest: dict[Owner, Slot] = {}  # of each client the slot longest in this state
            for slot in self._taken:
                if slot.state is state:
                    longest.setdefault(slot.owner, slot)
            able = [*longest]
            if state is State.BUSY:
                least = max(self.limit // 2, held[newcomer] + 1)
                others = [client for client in longest if is_admitted and client != newcomer]
                able = [client for client in others if held[client] > least]
            client = owner_to_evict(held, newcomer, able)
            if client is not None:
                self._warn("closed one of the client with the most")
                self._evict(longest[client])
                return True
        return False

    def _warn(self, what: str) -> None:
        message = "all %s connections are in use (%s); %s"
        logger.warning(message, f"{self.limit:,}", self._option, what, extra=REPEATS)

    @property
    def usage(self) -> Occupancy:
        """The connections, without those on spare slots."""
        return Occupancy(len(self._taken), self.limit, self._evicted)

    def _evict(self, slot: Slot) -> None:
        self._evicted += 1
        self.leave(slot)
        slot.close()


class Unread:
    """Responses buffered in memory until their clients read them.

    A request of 300 bytes may be answered by a file of 16 MiB. When more than `most` bytes are
    buffered, the client with the most of them loses the connection that has waited longest. A
    client over its own limit also does, but keeps its newest one.
    """

    def __init__(self, most: int = MAX_UNREAD) -> None:
        self._most = most
        self._waiting: dict[Slot, int] = {}

    def add(self, slot: Slot, size: int) -> None:
        """Record the bytes buffered for this connection; close connections that exceed a limit."""
        self.drop(slot)
        self._waiting[slot] = size
        mine = [waiter for waiter in self._waiting if waiter.owner == slot.owner]
        share = limit_of(slot.owner, "unread-bytes")
        while (
            share is not None
            and len(mine) > 1
            and sum(map(self._waiting.__getitem__, mine)) > share
        ):
            why = f"quota unread-bytes: more than {share:,} bytes unread by {slot.owner}"
            self._cut_off(mine.pop(0), why)
        while sum(self._waiting.values()) > self._most:
            by_client = Counter[Owner]()
            for waiter, waiting in self._waiting.items():
                by_client[waiter.owner] += waiting
            [(most, _)] = by_client.most_common(1)
            oldest = next(waiter for waiter in self._waiting if waiter.owner == most)
            self._cut_off(oldest, f"more than {self._most >> 20} MiB unread by all clients")

    def drop(self, slot: Slot) -> None:
        """Forget the bytes buffered for a connection, if any: they were read or lost."""
        self._waiting.pop(slot, None)

    def _cut_off(self, slot: Slot, why: str) -> None:
        self.drop(slot)
        logger.warning("cut off a client that did not read its response: %s", why, extra=REPEATS)
        slot.close()


# The protocol


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """The limits of all connections of a server.

    Attributes:
        request_s: seconds for the head of a request, and again for its body.
    """

    slots: Slots
    unread: Unread
    request_s: float


class LimitedProtocol(HttpToolsProtocol):
    """uvicorn's protocol with slots and time limits, and without ambiguous requests.

    A client has a time limit for the head of a request and again for its body. An unused body is
    read up to `MAX_UNUSED_BODY` bytes. A response or stream may take any time while its client
    reads.

    llhttp refuses two lengths, bare line feeds and folded lines. What it accepts, and a proxy might
    read in another way (request smuggling), is refused here: see `_check_head`.
    """

    parser: Any  # uvicorn says that it may be None, which it is once the connection is lost

    def __init__(self, *, limits: ConnectionLimits, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._limits = limits
        self._head_bytes = 0
        self._unreported = 0  # bytes parsed since the last callback
        self._plain_head = b""  # of a request that offers an upgrade, without the offer
        self._is_receiving_body = False
        self._is_broken = False  # a request after which nothing more is parsed
        self._unused = 0  # bytes received of a body that nobody reads
        # the request that the client must send, and whether its body is what is missing
        self._awaited: tuple[object, bool] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a slot, and start the time limit of the first request."""
        super().connection_made(transport)
        owner = owner_of(None, self.client[0]) if self.client else None
        self._slot = Slot(self._limits.slots, owner or UNKNOWN_OWNER, transport.abort)
        self.app_state = {**self.app_state, SLOT: self._slot}
        self._limits.slots.enter(self._slot)
        self._note_progress()

    def connection_lost(self, exc: Exception | None) -> None:
        """Release what the connection holds."""
        super().connection_lost(exc)
        self._limits.slots.leave(self._slot)
        self._limits.unread.drop(self._slot)
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        """Parse data, and cut off a client that sends too much of an unused body."""
        if self._is_broken or (self._is_receiving_body and not self._is_answering()):
            self._unused += len(data)
        if not self._is_broken:
            self._unset_keepalive_if_required()
            self._parse(data)
        if self._unused > MAX_UNUSED_BODY:
            message = "closed a connection that kept sending a request after its response"
            logger.info(message, extra=REPEATS)
            self.transport.close()
        self._note_progress()

    def _parse(self, data: bytes) -> None:
        """Parse data. An upgrade is not accepted, and its request read without the offer."""
        self._unreported += len(data)
        try:
            while data:
                try:
                    self.parser.feed_data(data)
                    data = b""
                except HttpParserUpgrade as upgrade:  # llhttp skipped the body
                    self.parser = HttpRequestParser(self)
                    data = self._plain_head + data[upgrade.args[0] :]
            # The parser keeps an incomplete header, of any length, to itself.
            if self._unreported > MAX_HEAD:
                raise HttpParserError
        except HttpParserError:
            message = "Invalid HTTP request received."
            logger.warning(message, extra=REPEATS)
            self.send_400_response(message)

    def send_400_response(self, msg: str) -> None:
        """Refuse a malformed request; close after the responses to earlier ones, if any."""
        self._is_broken = True
        if self._is_answering() and not self._is_receiving_body:
            return  # the malformed request has not begun to be answered
        if self.pipeline:
            self.pipeline.popleft()  # the malformed request waits for the response to another one
        elif self._is_answering() and self.cycle.response_started:
            self.transport.close()
        else:
            if self._is_answering():
                self.cycle.disconnected = True
                self.cycle.message_event.set()
            super().send_400_response(msg)

    def on_message_begin(self) -> None:
        """Begin to count the head of a request."""
        super().on_message_begin()
        self._head_bytes = self._unused = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count the bytes of a header; strip white space that llhttp leaves behind its value.

        Trailers are dropped: merged into the headers they would replace those that a proxy set.
        """
        self._count(name + b": " + value)
        if not self._is_receiving_body:
            super().on_header(name, value.strip(b" \t"))

    def on_headers_complete(self) -> None:
        """Refuse an ambiguous request, or pass it on."""
        self._count(self.url)
        self._check_head()
        if self.parser.should_upgrade():
            version = self.parser.get_http_version().encode()
            lines = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, version)]
            lines += [b"%b: %b" % field for field in self.headers if field[0] != b"upgrade"]
            self._plain_head = b"\r\n".join((*lines, b"", b""))
            return
        super().on_headers_complete()
        self._is_receiving_body = True

    def on_body(self, body: bytes) -> None:
        """Pass on a part of the body."""
        self._unreported = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Note that the request has arrived."""
        if self.parser.should_upgrade():
            return
        super().on_message_complete()
        self._is_receiving_body = False

    def on_response_complete(self) -> None:
        """Wait for the next request, unless a malformed one followed."""
        is_last = self._is_broken and not self.pipeline
        super().on_response_complete()
        if is_last:
            self.transport.close()
        self._note_progress()

    def pause_writing(self) -> None:
        """Count the bytes that the client has not read."""
        super().pause_writing()
        self._limits.unread.add(self._slot, self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """Forget the bytes that the client has read."""
        super().resume_writing()
        self._limits.unread.drop(self._slot)

    def _is_answering(self) -> bool:
        return bool(self.cycle) and not self.cycle.response_complete

    def _count(self, part: bytes) -> None:
        self._unreported = 0
        self._head_bytes += len(part)
        if self._head_bytes > MAX_HEAD:
            raise HttpParserError(f"the head has more than {MAX_HEAD:,} bytes")

    def _check_head(self) -> None:
        """Refuse a request that another parser may read differently (RFC 9112, 3.2 and 6.3)."""
        version = self.parser.get_http_version()
        if version not in {"1.0", "1.1"} or self.parser.get_method() == b"CONNECT":
            raise HttpParserError("neither HTTP/1.0 nor HTTP/1.1, or a tunnel")
        values: dict[bytes, list[bytes]] = {b"host": [], b"transfer-encoding": []}
        for name, value in self.headers:
            if name in values:
                values[name].append(value)
        hosts, encodings = values[b"host"], values[b"transfer-encoding"]
        if len(hosts) > 1 or (version == "1.1" and not hosts):
            raise HttpParserError("Host must be given once")
        if encodings and (version == "1.0" or [part.lower() for part in encodings] != [b"chunked"]):
            raise HttpParserError("Transfer-Encoding must be chunked, in HTTP/1.1")
        if len(self.pipeline) >= MAX_PIPELINED:
            raise HttpParserError(f"more than {MAX_PIPELINED} requests wait for a response")

    def _note_progress(self) -> None:
        """Record the state of the connection, and limit the time for what the client must send."""
        # While the body is incomplete the client must send, even if the response has begun.
        is_awaited = self._is_receiving_body or not self._is_answering()
        state = State.RESTING if is_awaited else State.BUSY
        self._limits.slots.set_state(self._slot, state)
        awaited = (self.cycle, self._is_receiving_body) if is_awaited else None
        if awaited is not None and awaited == self._awaited:
            return
        self._awaited = awaited
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if awaited is not None:
            seconds = self._limits.request_s
            if self._slot.is_spare:
                seconds = min(seconds, _SPARE_S)
            self._timer = self.loop.call_later(seconds, self._on_timeout)

    def _on_timeout(self) -> None:
        message = "closed a connection that sent no complete request in %g s"
        logger.info(message, self._limits.request_s, extra=REPEATS)
        self.transport.close()
