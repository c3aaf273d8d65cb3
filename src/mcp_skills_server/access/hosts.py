"""Hosts of URLs, judged by their spelling alone: nothing is resolved."""

from __future__ import annotations

import re
import socket
from ipaddress import IPv6Address, ip_address
from typing import Final

_EMPTY_HEX: Final = re.compile(r"(?i)(?<![^.])0x(?![^.])")
"""Lone `0x` segments: browsers and some proxies read them as 0, `inet_aton` rejects them."""


def is_loopback(host: str) -> bool:
    """Tell whether a URL's host is this machine."""
    address = literal(host)
    if address is None:
        return f".{host.lower().rstrip('.')}".endswith(".localhost")
    ip = ip_address(address)
    if isinstance(ip, IPv6Address) and ip.ipv4_mapped:
        ip = ip.ipv4_mapped
    return ip.is_loopback


def literal(host: str) -> str | None:
    """Return the address that a URL's host spells, or None for a name.

    `127.1`, `0x7f000001` and `2130706433` count, too: resolvers accept these forms.
    """
    try:
        return str(ip_address(host))
    except ValueError:
        pass
    plain = host.rstrip(".")
    if not plain.isascii() or not plain.isprintable() or " " in plain:
        return None
    try:
        return socket.inet_ntoa(socket.inet_aton(_EMPTY_HEX.sub("0", plain)))
    except OSError:
        return None
