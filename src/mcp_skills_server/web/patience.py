"""How long a client may take to send a request: one that trickles must not hold a connection for ever.

uvicorn bounds what comes between two requests, and neither the first one nor one that has begun. Here a connection has
the same time for the head of a request and again for its body. Answers, and streams above all, may take as long as they
like.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

logger = logging.getLogger(__name__)

_OWED: Final = (h11.IDLE, h11.SEND_BODY)
"""The client's states in which it is for it to send something."""


def patient(seconds: float) -> type[asyncio.Protocol]:
    """uvicorn's protocol, which closes a connection that owes the head or the body of a request for so long."""

    class Patient(H11Protocol):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._since: object = None
            self._timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            self._look()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._look()

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            self._stop()

        def _look(self) -> None:
            """Begin to wait when another part of a request is owed than before."""
            owed = (self.cycle, self.conn.their_state)
            if owed[1] not in _OWED:
                self._stop()
            elif owed != self._since:
                self._stop()
                self._since = owed
                self._timer = self.loop.call_later(seconds, self._give_up)

        def _stop(self) -> None:
            self._since = None
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

        def _give_up(self) -> None:
            logger.info("closed a connection that sent no whole request in %g s", seconds)
            self.transport.close()

    return Patient
