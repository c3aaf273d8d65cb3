"""SSRF filter: decide which addresses a stranger's URL may lead to. Pure.

A publisher, a redirect or a name server may name an address inside the operator's network, where
routers, databases and cloud metadata answer every request. A name is judged by its addresses.
"""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final
from urllib.parse import urlsplit

from mcp_skills_server.dialects import wellknown
from mcp_skills_server.errors import UsageError
from mcp_skills_server.format.uris import bare
from mcp_skills_server.model import printable

# Listed by hand, because `is_global` differs between versions of Python.
_NOT_PUBLIC_4: Final = (
    *map(IPv4Network, ("0.0.0.0/8", "127.0.0.0/8")),  # this network and this machine
    *map(IPv4Network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")),  # private
    IPv4Network("100.64.0.0/10"),  # carrier-grade NAT
    IPv4Network("169.254.0.0/16"),  # link-local, and the metadata of clouds
    *map(IPv4Network, ("192.0.0.0/24", "192.88.99.0/24", "198.18.0.0/15")),  # protocols, benchmarks
    *map(IPv4Network, ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24")),  # documentation
    *map(IPv4Network, ("224.0.0.0/4", "240.0.0.0/4")),  # multicast, reserved, and broadcast
)
_PUBLIC_6: Final = IPv6Network("2000::/3")
_NOT_PUBLIC_6: Final = (
    *map(IPv6Network, ("2001::/23", "2002::/16")),  # protocols and Teredo, 6to4
    *map(IPv6Network, ("2001:db8::/32", "3fff::/20")),  # documentation
)
_NAT64: Final = IPv6Network("64:ff9b::/96")


def is_public(address: str) -> bool:
    """Tell whether a numeric address is on the public internet; False for malformed ones.

    Private, loopback, link-local, multicast and reserved addresses are not, nor are tunnels that
    carry another address. IPv4-mapped addresses and NAT64, by which whole networks reach IPv4, are
    judged by the embedded IPv4 address.
    """
    try:
        ip = ip_address(address)
    except ValueError:
        return False
    if isinstance(ip, IPv6Address) and (ip.ipv4_mapped or ip in _NAT64):
        ip = IPv4Address(int(ip) & 0xFFFFFFFF)
    if isinstance(ip, IPv6Address):
        return ip in _PUBLIC_6 and not any(ip in network for network in _NOT_PUBLIC_6)
    return not any(ip in network for network in _NOT_PUBLIC_4)


def shown(url: str) -> str:
    """Return a URL for display: without secrets, at most 120 characters."""
    plain = printable(bare(url))
    return plain if len(plain) <= 120 else f"{plain[:117]}..."


def relative_to_site(site: str, message: str) -> str:
    """Shorten the site's own URLs in a message to paths; unchanged if `site` is no URL.

    For a line that begins with the site's name.
    """
    if not wellknown.is_site(site):
        return message
    parts = urlsplit(wellknown.absolute(site, site))
    top = f"{parts.scheme}://{parts.netloc}/"
    return re.sub(rf"(?<![^ ]){re.escape(top)}", "/", message)


def check_fetchable(url: str) -> None:
    """Raise UsageError, with the URL redacted, unless it is an http or https URL."""
    try:
        wellknown.absolute(url, url)
    except ValueError as error:
        raise UsageError(f"'{shown(url)}': {error}; give the URL of a site or an index") from None
