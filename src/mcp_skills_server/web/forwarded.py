"""Who is behind a proxy: what `Forwarded` (RFC 7239) and `X-Forwarded-*` say, as far as it may be believed. Pure.

Each proxy adds to the right, so the lists are read from there. What a trusted proxy says of its own client is believed;
the first address that is no trusted proxy is the client's, and all to the left of it was said by that client itself.
Where the two kinds of headers name different clients, one of them came through unseen by the proxy, and neither counts.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from itertools import islice
from typing import Final, TypeAlias

from starlette.types import ASGIApp, Receive, Scope, Send

from mcp_skills_server.errors import REPEATS, UsageError
from mcp_skills_server.runtime.quota import owner_of

logger = logging.getLogger(__name__)

OWNER: Final = "mcp_skills_server.owner"
"""Where the ASGI scope has who is counted for a request that a trusted proxy handed on."""
HOST: Final = "mcp_skills_server.host"
"""Where the scope has the name by which the client called the proxy."""
PREFIX: Final = "mcp_skills_server.prefix"
"""Where the scope has what stands before all paths that clients see."""

_MOST_HOPS: Final = 32
_LONGEST: Final = 8192
"""Characters of one header line. More is no list of proxies."""
_LONGEST_NODE: Final = 128
_LONGEST_PREFIX: Final = 256
_FORWARDED: Final = b"forwarded"
_FOR, _PROTO, _HOST_NAME, _PREFIX = (b"x-forwarded-" + each for each in (b"for", b"proto", b"host", b"prefix"))
_LOOKED_AT: Final = frozenset((_FORWARDED, _FOR, _PROTO, _HOST_NAME, _PREFIX))
# An address with colons may stand without quotes: proxies write it so.
_PAIR: Final = re.compile(
    r'[ \t]*+([A-Za-z0-9!#$%&\'*+.^_`|~-]++)=(?:([^\s",;=]++)|"((?:[^"\\]|\\.)*+)")[ \t]*+(?=[,;]|\Z)', re.ASCII
)
_EMPTY: Final = re.compile(r"[ \t]*+(?=[,;]|\Z)")
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)
_PORT: Final = r"(?::(?:[0-9]{1,5}|_[A-Za-z0-9._-]{1,63}))?"
_NODE: Final = re.compile(rf"(?:\[([0-9a-f:.]+)\]|([0-9.]+)|(_[a-z0-9._-]{{1,63}})){_PORT}", re.ASCII | re.IGNORECASE)
_WELL_KNOWN: Final = "/.well-known/"
_INSERTED: Final = "/.well-known/oauth-protected-resource"
"""What stands before the path of the endpoint, and so before the prefix too (RFC 9728 3.1)."""
_PATH: Final = re.compile(r"(?:/[A-Za-z0-9._~-]++)+", re.ASCII)

_Network: TypeAlias = IPv4Network | IPv6Network
_Headers: TypeAlias = Iterable[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Client:
    """What trusted proxies say of a request.

    Attributes:
        address: the client's IP address, or the name that begins with `_` and that a proxy gave it instead.
        scheme: `http` or `https`, as the client asks for it; None where nothing says so.
        host: the Host that the client sent; None likewise.
        prefix: what was taken off its path; None likewise.
    """

    address: str
    scheme: str | None = None
    host: str | None = None
    prefix: str | None = None


class Proxies:
    """The addresses of proxies that are believed.

    Args:
        given: addresses, or networks such as `10.0.0.0/8`.

    Raises:
        UsageError: one is neither.
    """

    def __init__(self, given: Iterable[str] = ()) -> None:
        self._networks: Final = tuple(map(_network, given))

    def __bool__(self) -> bool:
        return bool(self._networks)

    def __contains__(self, address: object) -> bool:
        return isinstance(address, str) and _is_in(address, self._networks)


def checked_prefix(path: str) -> str:
    """What `--root-path` gives, without a slash at the end; "" for none.

    Raises:
        UsageError: it is no path that can stand before others.
    """
    if path in ("", "/"):
        return ""
    found = _prefix(path)
    if found is None or f"{found}/".startswith(_WELL_KNOWN):  # below which there are paths of ours
        raise UsageError(f"--root-path takes a path such as /skills, of letters, digits and -._~, not {path!r}")
    return found


def believed(peer: str | None, headers: _Headers, trusted: Proxies) -> Client | None:
    """Who sent a request that came from `peer`; None where nothing says so that may be believed.

    Args:
        peer: the address of the other end of the connection.
        headers: of the request, names in lower case.
        trusted: the proxies that are believed.
    """
    lines = [(name, value.decode("latin-1")) for name, value in headers if name in _LOOKED_AT]
    if not lines or peer is None or peer not in trusted:
        return None
    standard = [value for name, value in lines if name == _FORWARDED]
    given = {key: _listed(value for name, value in lines if name == key) for key in (_FOR, _PROTO, _HOST_NAME, _PREFIX)}
    address, hops = _walk(peer, given[_FOR], trusted)
    # A proxy that writes no list replaces the value: what there is then is of the proxy that is nearest to the client.
    scheme, host, prefix = (_at(given[key], hops) for key in (_PROTO, _HOST_NAME, _PREFIX))
    if standard:
        elements = list(islice(_elements(standard), _MOST_HOPS))
        named, hops = _walk(peer, [each.get("for", "") for each in elements], trusted)
        if given[_FOR] and named != address:
            return None
        said = elements[min(hops, len(elements) - 1)] if elements else {}
        address, scheme, host = named, scheme or said.get("proto"), host or said.get("host")
    scheme = (scheme or "").lower()
    return Client(address, scheme if scheme in ("http", "https") else None, host or None, _prefix(prefix or ""))


class Forwarding:
    """ASGI middleware that has a request look as its client sent it, and as if nothing stood before its path.

    Args:
        app: what answers.
        root_path: what stands before all paths that clients see, with or without a proxy that takes it off.
        trusted: the proxies that are believed.
    """

    def __init__(self, app: ASGIApp, root_path: str, trusted: Proxies) -> None:
        self._app = app
        self._root_path = root_path
        self._trusted = trusted

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand on the request."""
        if scope["type"] == "http":
            peer: tuple[str, int] | None = scope.get("client")
            found = believed(peer[0] if peer else None, scope["headers"], self._trusted)
            prefix, scope = self._root_path, {**scope}
            if found is not None:
                prefix = self._root_path if found.prefix is None else found.prefix
                scope["client"] = (found.address, 0)
                scope[OWNER] = owner_of(None, found.address)
                scope[HOST] = found.host
                scope["scheme"] = found.scheme or scope["scheme"]
            elif peer is not None and peer[0] in self._trusted:
                if any(name == _FORWARDED for name, _ in scope["headers"]):
                    logger.warning(
                        "Forwarded and X-Forwarded-For name two clients: the proxy lets one through", extra=REPEATS
                    )
                scope[OWNER] = owner_of(None, peer[0])
            scope[PREFIX] = prefix
            scope["path"] = _below(scope["path"], self._root_path)
        await self._app(scope, receive, send)


def _below(path: str, prefix: str) -> str:
    """Return the path without this prefix, if it has it."""
    before = _INSERTED if path.startswith(_INSERTED + "/") else ""
    if prefix and path.startswith(f"{before}{prefix}/"):
        return before + path[len(before) + len(prefix) :]
    return path


def _network(given: str) -> _Network:
    try:
        return ip_network(given.strip())
    except ValueError as error:
        reason = " (it has bits beyond its length)" if "host bits" in str(error) else ""
        raise UsageError(
            f"--trusted-proxy takes an address or a network such as 10.0.0.0/8, not {given!r}{reason}"
        ) from None


@lru_cache(maxsize=4096)  # the same few proxies and, for a while, the same clients
def _is_in(address: str, networks: tuple[_Network, ...]) -> bool:
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(parsed, IPv6Address) and parsed.ipv4_mapped is not None:
        parsed = parsed.ipv4_mapped
    return any(parsed in each for each in networks)


def _walk(peer: str, nodes: Sequence[str], trusted: Proxies) -> tuple[str, int]:
    """The client's address, and how many proxies stand between it and the nearest one. `nodes` begin at the nearest."""
    client = peer
    for hops, node in enumerate(nodes):
        address = _address(node)
        if address is None:  # its proxy does not know it, or hides it: that proxy stands for it
            return client, hops
        client = address
        if address not in trusted:
            return client, hops
    return client, max(len(nodes) - 1, 0)


def _address(node: str) -> str | None:
    """The address of a node, without its port; its name where it is hidden; None where it is neither."""
    return _canonical(node) if len(node) <= _LONGEST_NODE else None


@lru_cache(maxsize=4096)
def _canonical(node: str) -> str | None:
    found = _NODE.fullmatch(node)
    if found is not None and found[3]:
        return found[3]
    bare = (found[1] or found[2]) if found is not None else node
    try:
        parsed = ip_address(bare)
    except ValueError:
        return None
    if isinstance(parsed, IPv6Address):
        if parsed.scope_id is not None:
            return None
        parsed = parsed.ipv4_mapped or parsed
    return str(parsed)


def _listed(lines: Iterable[str]) -> list[str]:
    """The members of a header that is a list, the last one first, as many as there can be proxies."""
    out: list[str] = []
    for line in reversed(list(lines)):
        out += (each.strip() for each in reversed(line[-_LONGEST:].rsplit(",", _MOST_HOPS)))
        if len(out) > _MOST_HOPS:
            break
    return out[:_MOST_HOPS]


def _at(values: Sequence[str], hops: int) -> str | None:
    return values[min(hops, len(values) - 1)] if values else None


def _elements(lines: Sequence[str]) -> Iterator[dict[str, str]]:
    """The elements of `Forwarded`, the last one first, up to a line that is malformed."""
    for line in reversed(lines):
        elements = _parsed(line)
        if elements is None:
            yield {}
            return
        yield from reversed(elements)


def _parsed(line: str) -> list[dict[str, str]] | None:
    """The elements of one line, None where it is malformed. Of a parameter that stands twice the last counts."""
    if len(line) > _LONGEST:
        return None
    elements: list[dict[str, str]] = [{}]
    at = 0
    while True:
        found = _PAIR.match(line, at)
        if found is not None:
            value = found[2] if found[2] is not None else _ESCAPED.sub(r"\1", found[3])
            elements[-1][found[1].lower()] = value
        else:
            found = _EMPTY.match(line, at)
        if found is None:
            return None
        at = found.end()
        if at == len(line):
            return [each for each in elements if each]
        if line[at] == ",":
            elements.append({})
        at += 1


def _prefix(path: str) -> str | None:
    """A prefix of paths without a slash at the end, None where it is none."""
    path = path.removesuffix("/")
    sound = len(path) <= _LONGEST_PREFIX and _PATH.fullmatch(path) is not None
    return path if sound and not {".", ".."} & {*path.split("/")} else None
