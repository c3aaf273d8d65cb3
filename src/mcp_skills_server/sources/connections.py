"""Where a connection may go: to an address that was looked at, or to the proxy that the environment names.

The address of a host is checked and then connected to as it is, so a name server that answers otherwise a moment later
gains nothing; certificates are still proved by name.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast
from urllib.parse import unquote, urlsplit

import anyio
import httpcore2

from mcp_skills_server.errors import UsageError
from mcp_skills_server.sources import addresses
from mcp_skills_server.sources.faults import UnacceptableError

if TYPE_CHECKING:
    import ssl

Resolve: TypeAlias = Callable[[str, int], Awaitable[list[str]]]
"""From a host and a port to numeric addresses."""

KEEP_ALIVE_S: Final = 4.0
"""Shorter than most servers' own, so that they seldom close a connection that is about to be used."""


async def resolve(host: str, port: int) -> list[str]:
    """The addresses of a host, as this machine finds them.

    Raises:
        OSError: there are none.
    """
    found = await anyio.getaddrinfo(host, port, type=1)  # SOCK_STREAM
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


class Connections:
    """Connections that are kept for what follows, each in a pool of one: a pool looks at every connection that it has
    whenever it is asked for one.

    A proxy that the environment names is used (`HTTPS_PROXY`, `NO_PROXY` and so on). It resolves names by itself, so
    behind one only hosts that are spelled as addresses, and those of this machine, can be checked.

    Args:
        count: how many connections at once.
        private: addresses that are not of the public internet may be connected to.
        tls: for other certificates than the system's.
        resolver: for other names than the system's.
    """

    def __init__(
        self, count: int, *, private: bool, tls: ssl.SSLContext | None = None, resolver: Resolve | None = None
    ) -> None:
        self._private = private
        self._tls = tls
        self._reading = threading.Lock()
        self._backend = _CheckedBackend(resolver or resolve, private=private)
        self._turns = anyio.Semaphore(count)
        self._free: dict[tuple[str, bool], list[httpcore2.AsyncConnectionPool]] = {}
        self._proxies = _proxies()

    async def close(self) -> None:
        """Close all of them."""
        for pool in [pool for pools in self._free.values() for pool in pools]:
            with anyio.CancelScope(shield=True):
                await pool.aclose()
        self._free.clear()

    def check(self, url: str) -> None:
        """Refuse a host that a proxy would connect to and whose spelling alone says that it is not public.

        Raises:
            UnacceptableError: it is refused.
        """
        host = urlsplit(url).hostname or ""
        if not self._private and self._proxy(url):
            address = addresses.literal(host)
            if addresses.is_loopback(host) or (address is not None and not addresses.is_public(address)):
                raise _not_public(host, address or host)

    def proxied(self, url: str) -> bool:
        """Whether a proxy is asked for this URL."""
        return bool(self._proxy(url))

    async def addresses(self, host: str, port: int, timeout_s: float) -> list[str]:
        """The numeric addresses of a host, when all of them may be connected to.

        Raises:
            UnacceptableError: one of them may not.
            OSError: none was found.
        """
        try:
            return await self._backend.addresses(host, port, timeout_s)
        except (httpcore2.ConnectTimeout, httpcore2.ConnectError) as error:
            raise OSError(str(error)) from None

    def tls(self) -> ssl.SSLContext:
        """How certificates are proved. Any thread may ask."""
        with self._reading:
            if self._tls is None:  # not for plain http: to read all certificates takes a while
                self._tls = httpcore2.default_ssl_context()
            return self._tls

    def _proxy(self, url: str) -> str:
        if not self._proxies:
            return ""
        from urllib.request import proxy_bypass

        parts = urlsplit(url)
        proxy = self._proxies.get(parts.scheme) or self._proxies.get("all") or ""
        if not proxy or proxy_bypass(parts.netloc):
            return ""
        return proxy if "://" in proxy else f"http://{proxy}"

    @asynccontextmanager
    async def lent(self, url: str) -> AsyncGenerator[httpcore2.AsyncConnectionPool]:
        """A connection for this URL, for one request at a time; where as many as there may be are in use, the next.

        Raises:
            UsageError: the proxy of the environment cannot be used.
        """
        proxy, tls = self._proxy(url), url.startswith("https:")
        async with self._turns:
            free = self._free.setdefault((proxy, tls), [])
            pool = free.pop() if free else self._opened(proxy, tls=tls)
            try:
                yield pool
            finally:
                free.append(pool)

    def _opened(self, proxy: str, *, tls: bool) -> httpcore2.AsyncConnectionPool:
        ways: dict[str, Any] = {"proxy": _proxy_of(proxy)} if proxy else {"network_backend": self._backend}
        return httpcore2.AsyncConnectionPool(
            ssl_context=self.tls() if tls else None,
            max_connections=1,
            max_keepalive_connections=1,
            keepalive_expiry=KEEP_ALIVE_S,
            **ways,
        )


class _CheckedBackend(httpcore2.AsyncNetworkBackend):
    """Connects to an address that was looked at, never to a name that could be resolved anew."""

    def __init__(self, resolver: Resolve, *, private: bool) -> None:
        self._resolve = resolver
        self._private = private
        self._plain = cast("httpcore2.AsyncNetworkBackend", httpcore2.AnyIOBackend())

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109, the base class has it
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """A connection to one of the host's addresses, when all of them may be connected to."""
        found = tries(await self.addresses(host, port, timeout))
        each_s = None if timeout is None else timeout / max(1, len(found))
        failed: Exception = httpcore2.ConnectError(f"the name {host} has no address")
        for address in found:
            try:
                return await self._plain.connect_tcp(address, port, each_s, local_address, socket_options)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                failed = error
        raise failed

    async def addresses(self, host: str, port: int, timeout: float | None) -> list[str]:  # noqa: ASYNC109
        """The host's addresses, when all of them may be connected to."""
        try:
            with anyio.fail_after(timeout):
                found = await self._resolve(host, port)
        except TimeoutError:
            raise httpcore2.ConnectTimeout(f"no address for {host}") from None
        except (OSError, UnicodeError):
            raise httpcore2.ConnectError(f"the name {host} cannot be resolved") from None
        bad = None if self._private else addresses.refused(found)
        if bad is not None:
            raise _not_public(host, bad)
        return found


def _proxies() -> dict[str, str]:
    """The proxies of the environment, and where a system has settings of them, those; by scheme."""
    if sys.platform == "linux" and not any(name.lower().endswith("_proxy") for name in os.environ):
        return {}
    from urllib.request import getproxies  # and with it a client of HTTP

    return getproxies()


def tries(found: list[str]) -> list[str]:
    """Those of a host's addresses that are tried, one after the other."""
    return found[:4]


def _not_public(host: str, address: str) -> UnacceptableError:
    what = f"{host} leads" if host == address else f"{host} leads to {address},"
    where = "to an address that is not of the public internet" if host == address else "which is not public"
    return UnacceptableError(f"{what} {where}; --allow-private allows it")


def _proxy_of(given: str) -> httpcore2.Proxy:
    parts = urlsplit(given)
    try:
        port = parts.port
    except ValueError:
        port = 0
    if parts.scheme not in {"http", "https", "socks5", "socks5h"} or not parts.hostname or port == 0:
        raise UsageError(
            "the proxy of the environment is no http, https or socks5 URL; correct HTTPS_PROXY or unset it"
        )
    if parts.scheme.startswith("socks") and find_spec("socksio") is None:
        raise UsageError("the proxy of the environment is SOCKS, which needs the package socksio")
    auth = (unquote(parts.username), unquote(parts.password or "")) if parts.username else None
    return httpcore2.Proxy(httpcore2.URL(scheme=parts.scheme, host=parts.hostname, port=port, target="/"), auth=auth)
