"""Free ports for servers that need a fixed port before they start."""

from __future__ import annotations

import secrets
import socket
from contextlib import suppress
from typing import Final

_FIRST: Final = 20_000
_COUNT: Final = 12_000
"""Below the ephemeral ports, which an outgoing connection of another test could take."""


def free_port() -> int:
    while True:
        port = _FIRST + secrets.randbelow(_COUNT)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
