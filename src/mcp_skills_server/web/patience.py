"""How long a client may take to send a request, or to read an answer: nobody may hold a connection for ever.

uvicorn bounds what comes between two requests, and neither the first one nor one that has begun. Here a connection has
the same time for the head of a request and again for its body. An answer may take as long as it likes, and a stream
too; but a client that leaves more than a buffer full unread loses the connection, and with it the memory that it holds.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from typing import Any, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

logger = logging.getLogger(__name__)

_OWED: Final = (h11.IDLE, h11.SEND_BODY)
"""The client's states in which it is for it to send something."""
_LEAST_RATE: Final = 1024
"""Bytes a second that a client must read of what waits for it."""
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


def patient(seconds: float) -> type[asyncio.Protocol]:
    """uvicorn's protocol, which closes a connection that owes the head or the body of a request for so long."""

    class Patient(H11Protocol):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._since: object = None
            self._timer: asyncio.TimerHandle | None = None
            self._waiting = 0
            self._idle = 0
            self._reading: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            self._look()
            self._look_at_reading()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._look()

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            self._stop()
            if self._reading is not None:
                self._reading.cancel()

        def resume_writing(self) -> None:
            super().resume_writing()
            self._waiting = 0  # nearly all was read; what waits at the next look is something else

        def _look(self) -> None:
            """Begin to wait when another part of a request is owed than before."""
            owed = (self.cycle, self.conn.their_state)
            if owed[1] not in _OWED:
                self._stop()
            elif owed != self._since:
                self._stop()
                self._since = owed
                self._timer = self.loop.call_later(seconds, self._give_up)

        def _look_at_reading(self) -> None:
            """End it if hardly anything was read look after look, though nothing was added to what waits."""
            held = self.transport.is_closing() or self.flow.write_paused
            waiting = _unread(self.transport) if held else 0
            hardly = waiting and self._waiting and self._waiting - waiting < _LEAST_RATE * seconds
            self._idle = self._idle + 1 if hardly else 0
            if self._idle == _LOOKS:
                logger.info("cut off a client that did not read its answer for %g s", _LOOKS * seconds)
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
            logger.info("closed a connection that sent no whole request in %g s", seconds)
            self.transport.close()

    return Patient
