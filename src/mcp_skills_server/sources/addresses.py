"""SSRF filter: which addresses a stranger's URL may lead to.

A publisher, a redirect or a name server may name an address inside the operator's network, where
routers, databases and cloud metadata answer every request. Names are judged by what they resolve
to, and by nothing else. Pure.
"""

from __future__ import annotations

import re
import socket
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final
from urllib.parse import urlsplit

from mcp_skills_server.dialects import wellknown
from mcp_skills_server.errors import UsageError
from mcp_skills_server.format.uris import bare
from mcp_skills_server.model import printable

# By hand and not by `is_global`, which has changed its mind between versions of Python.
_NOT_PUBLIC_4: Final = (
    IPv4Network("0.0.0.0/8"),  # this network
    IPv4Network("10.0.0.0/8"),  # private
    IPv4Network("100.64.0.0/10"),  # carriers' own
    IPv4Network("127.0.0.0/8"),  # loopback
    IPv4Network("169.254.0.0/16"),  # link-local, and the metadata of clouds
    IPv4Network("172.16.0.0/12"),  # private
    IPv4Network("192.0.0.0/24"),  # protocols
    IPv4Network("192.0.2.0/24"),  # documentation
    IPv4Network("192.88.99.0/24"),  # 6to4 relays, given up
    IPv4Network("192.168.0.0/16"),  # private
    IPv4Network("198.18.0.0/15"),  # benchmarks
    IPv4Network("198.51.100.0/24"),  # documentation
    IPv4Network("203.0.113.0/24"),  # documentation
    IPv4Network("224.0.0.0/4"),  # multicast
    IPv4Network("240.0.0.0/4"),  # reserved, and broadcast
)
_PUBLIC_6: Final = IPv6Network("2000::/3")
_NOT_PUBLIC_6: Final = (
    IPv6Network("2001::/23"),  # protocols, and Teredo
    IPv6Network("2001:db8::/32"),  # documentation
    IPv6Network("2002::/16"),  # 6to4
    IPv6Network("3fff::/20"),  # documentation
)
_NAT64: Final = IPv6Network("64:ff9b::/96")
_EMPTY_HEX: Final = re.compile(r"(?i)(?<![^.])0x(?![^.])")
"""`0x` alone is 0 to browsers and to some proxies, and nothing to `inet_aton`."""


def is_public(address: str) -> bool:
    """Tell whether a numeric address is one of the public internet; False for what is no address.

    Private, loopback, link-local, multicast and reserved ones are not, nor tunnels that carry
    another address inside. Two carry one openly and are judged by it: IPv4-mapped addresses and
    NAT64, by which whole networks reach IPv4.
    """
    try:
        found = ip_address(address)
    except ValueError:
        return False
    if isinstance(found, IPv6Address):
        inner = found.ipv4_mapped or (
            IPv4Address(int(found) & 0xFFFFFFFF) if found in _NAT64 else None
        )
        if inner is None:
            return found in _PUBLIC_6 and not any(found in network for network in _NOT_PUBLIC_6)
        found = inner
    return not any(found in network for network in _NOT_PUBLIC_4)


def is_loopback(host: str) -> bool:
    """Tell whether a host of a URL means this machine by its very spelling."""
    address = literal(host)
    if address is None:
        return f".{host.lower().rstrip('.')}".endswith(".localhost")
    found = ip_address(address)
    if isinstance(found, IPv6Address) and found.ipv4_mapped:
        found = found.ipv4_mapped
    return found.is_loopback


def literal(host: str) -> str | None:
    """Return the address that the host of a URL spells, or None for a name.

    `127.1`, `0x7f000001` and `2130706433` spell one too: resolvers read them so.
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


def shown(url: str) -> str:
    """Return a URL for people: without secrets, at most a line."""
    plain = printable(bare(url))
    return plain if len(plain) <= 120 else f"{plain[:117]}..."


def relative_to_site(site: str, message: str) -> str:
    """Shorten the site's own URLs in a message to their paths, for a line that begins with the
    site's name.

    What is no site has no such addresses: its messages stay as they are.
    """
    if not wellknown.is_site(site):
        return message
    parts = urlsplit(wellknown.absolute(site, site))
    top = f"{parts.scheme}://{parts.netloc}/"
    return " ".join(
        word[len(top) - 1 :] if word.startswith(top) else word for word in message.split(" ")
    )


def check_fetchable(url: str) -> None:
    """Raise UsageError, without a secret of it, unless this is an http or https URL."""
    try:
        wellknown.absolute(url, url)
    except ValueError as error:
        raise UsageError(
            f"'{shown(url)}': {error}; give the URL of a site or of its index.json"
        ) from None
