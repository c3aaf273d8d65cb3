"""How long a client may take to send a request, or to read an answer: nobody may hold a connection for ever.

uvicorn bounds what comes between two requests, and neither the first one nor one that has begun. Here a connection has
the same time for the head of a request and again for its body; a body that nobody wants is read for some megabytes and
no more. An answer may take as long as it likes, and a stream too; but a client that leaves more than a buffer full
unread loses the connection, and with it the memory that it holds. One on a spare place has less time for its request.
What each does is noted in its place, so that one that waits can go when the places are taken.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from typing import Any, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from mcp_skills_server.runtime.quota import owner_of
from mcp_skills_server.web.counted import Counted
from mcp_skills_server.web.framing import OneEnd
from mcp_skills_server.web.places import PLACE, Place, Places, State
from mcp_skills_server.web.unread import MOST_BYTES, Unread

logger = logging.getLogger(__name__)

_OWED: Final = (h11.IDLE, h11.SEND_BODY)
"""The client's states in which it is for it to send something."""
_SPARE_S: Final = 2.0
"""Seconds for a request on a spare place; they are few."""
_LEAST_RATE: Final = 1024
"""Bytes a second that a client must read of what waits for it."""
MOST_UNHEEDED: Final = 1 << 22
"""Bytes of a body that are read although they change nothing: many a client sends all before it reads the answer."""
_LOOKS: Final = 4
"""How many times the patience. What a client reads shows here by leaps: its kernel asks for more by the megabyte."""


def _unread(transport: asyncio.Transport) -> int:
    """Bytes that the client has not taken yet, of what was written to it."""
    waiting = transport.get_write_buffer_size()
    if waiting and sys.platform == "linux":
        import fcntl
        import termios

        # The kernel takes more from us only when a good part of its own buffer, megabytes perhaps, is empty again.
        with contextlib.suppress(OSError):
            queued = fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, bytes(4))
            waiting += int.from_bytes(queued, sys.byteorder)
    return waiting


def protocol_with_timeouts(
    seconds: float, places: Places, most_unread: int = MOST_BYTES, share_unread: int | None = None
) -> type[asyncio.Protocol]:
    """uvicorn's protocol, which takes a place, and closes a connection that owes a part of a request for so long."""
    lines = Counted(logger.info)
    unread = Unread(Counted(logger.warning), most_unread, share_unread)

    class Patient(H11Protocol):
        def __init__(self, *, app_state: dict[str, Any], **kwargs: Any) -> None:
            self._place = Place()
            super().__init__(app_state={**app_state, PLACE: self._place}, **kwargs)
            self.conn = OneEnd(h11.SERVER)
            self._since: object = None
            self._timer: asyncio.TimerHandle | None = None
            self._waiting = 0
            self._idle = 0
            self._unheeded = 0
            self._reading: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            places.enter(self._place, owner_of(None, self.client[0] if self.client else None) or "", transport.abort)
            self._look()
            self._look_at_reading()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            # One that was refused before anything answers for it has no cycle.
            unheeded = self.conn.their_state is h11.SEND_BODY and (not self.cycle or self.cycle.response_complete)
            self._unheeded = self._unheeded + len(data) if unheeded else 0
            if self._unheeded > MOST_UNHEEDED:
                lines.tell("closed a connection that went on and on with a request that had its answer")
                self.transport.close()
            self._look()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._note()

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            self._place.leave()
            unread.drop(self._place)
            self._stop()
            if self._reading is not None:
                self._reading.cancel()

        def pause_writing(self) -> None:
            super().pause_writing()
            unread.add(self._place, self.transport.get_write_buffer_size())

        def resume_writing(self) -> None:
            super().resume_writing()
            unread.drop(self._place)
            self._waiting = 0  # nearly all was read; what waits at the next look is something else

        def _look(self) -> None:
            """Begin to wait when another part of a request is owed than before."""
            self._note()
            owed = (self.cycle, self.conn.their_state)
            if owed[1] not in _OWED:
                self._stop()
            elif owed != self._since:
                self._stop()
                self._since = owed
                patience = min(seconds, _SPARE_S) if self._place.spare else seconds
                self._timer = self.loop.call_later(patience, self._give_up)

        def _note(self) -> None:
            """A request whose body is still to come waits for its client, whatever was begun of it."""
            self._place.is_(State.RESTING if self.conn.their_state in _OWED else State.BUSY)

        def _look_at_reading(self) -> None:
            """End it if hardly anything was read look after look, though nothing was added to what waits."""
            held = self.transport.is_closing() or self.flow.write_paused
            waiting = _unread(self.transport) if held else 0
            hardly = waiting and self._waiting and self._waiting - waiting < _LEAST_RATE * seconds
            self._idle = self._idle + 1 if hardly else 0
            if self._idle == _LOOKS:
                lines.tell(f"cut off a client that did not read its answer for {_LOOKS * seconds:g} s")
                self.transport.abort()
                return
            self._waiting = waiting
            self._reading = self.loop.call_later(seconds, self._look_at_reading)

        def _stop(self) -> None:
            self._since = None
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

        def _give_up(self) -> None:
            lines.tell(f"closed a connection that sent no whole request in {seconds:g} s")
            self.transport.close()

    return Patient
