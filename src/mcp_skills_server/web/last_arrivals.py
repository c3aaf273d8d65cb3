"""How a listening socket is closed without losing who has just connected: first the kernel lets nobody new in.

Who connects between the last `accept` and the close has asked already, and a proxy asks nobody else for it. Who has no
answer to its SYN asks again a second later, is refused then, and a proxy asks another replica. Only Linux can.
"""

from __future__ import annotations

import contextlib
import logging
import select
import socket
import struct
import sys
from array import array
from typing import Final

logger = logging.getLogger(__name__)

_SO_ATTACH_FILTER: Final = 26  # of Linux; the module socket does not name it
_NO_SYN: Final = ((0x30, 0, 0, 13), (0x54, 0, 0, 0x12), (0x15, 0, 1, 0x02), (0x06, 0, 0, 0), (0x06, 0, 0, 0xFFFFFFFF))
"""A socket filter (classic BPF): of the flags of TCP, in byte 13, SYN without ACK is dropped; all else passes."""
_MOST: Final = 128
"""Connections that are accepted at the end at most, and attempts to fill the queue."""


def drops_who_is_new(listener: socket.socket) -> bool:
    """Have the kernel drop the packets that would begin connections; whether it does. Some kernels obey root alone."""
    if sys.platform != "linux":
        return False
    steps = array("B", b"".join(struct.pack("=HBBI", *step) for step in _NO_SYN))
    program = struct.pack("@HP", len(_NO_SYN), steps.buffer_info()[0])
    try:
        listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)
    except OSError as error:
        logger.debug("the listening socket takes no filter (%s)", error)
        return False
    return True


def fill(listener: socket.socket) -> tuple[list[socket.socket], socket.socket | None]:
    """Accept all that waits, and fill the queue, which has one place then, with a connection of our own.

    The kernel drops who is new. This needs no privilege, and unlike a filter it loses who was half connected.

    Returns:
        What was accepted, and what fills the queue, to be kept until the listener is closed; None where nothing does.
    """
    last: list[socket.socket] = []
    with contextlib.suppress(OSError):
        for _ in range(_MOST):  # where nothing gets through from here, neither does the filler
            if not _accept(listener, last) or sys.platform != "linux":
                break
            listener.listen(0)
            filler = socket.socket(listener.family, listener.type)
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
            # On one machine a connection is there at once, or somebody else was before it: then it is no use.
            if select.select([], [filler], [], 0)[1] and not filler.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                return last, filler
            filler.close()
    return last, None


def _accept(listener: socket.socket, last: list[socket.socket]) -> bool:
    """Whether nothing more waits."""
    try:
        while len(last) < _MOST:
            last.append(listener.accept()[0])
    except BlockingIOError:
        return True
    return False
