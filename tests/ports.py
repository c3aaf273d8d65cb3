"""Ports for servers that must know theirs before they start. Mirrors no module: it is for many tests."""

from __future__ import annotations

import secrets
import socket
from contextlib import suppress
from typing import Final

_FIRST: Final = 20_000
_COUNT: Final = 12_000
"""Below the ports that systems give to outgoing connections: one of another test would take it."""


def free_port() -> int:
    """A port of loopback that nobody listens on."""
    while True:
        port = _FIRST + secrets.randbelow(_COUNT)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
