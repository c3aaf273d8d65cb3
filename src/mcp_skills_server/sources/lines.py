"""Plain answers, quickly: many small downloads from one origin, each by a thread that keeps a connection.

Plain is status 200 with one Content-Length, at once and as asked for. All else (redirects, errors, other framing, a
proxy, a server that breaks off) is left to `exchange`, which asks anew and has the words for it: GET changes nothing.
Addresses are checked as for every other connection.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeAlias
from urllib.parse import urlsplit

from anyio import from_thread

from mcp_skills_server.sources.connections import KEEP_ALIVE_S, Connections, tries
from mcp_skills_server.sources.exchange import silent, slow
from mcp_skills_server.sources.settings import Bounds

if TYPE_CHECKING:
    import ssl

Plain: TypeAlias = "tuple[dict[str, str], bytes]"
"""Headers by name in lower case, and the body."""

_Origin: TypeAlias = tuple[str, str, int]

_MOST_HEAD: Final = 1 << 16
_PIECE: Final = 1 << 18
_PATIENCE: Final = 3
"""So many answers that are not plain, and an origin is not asked here any more: each is asked for twice."""
_OK: Final = re.compile(rb"HTTP/1\.1 200(?: [^\r\n]*)?")
_NAME: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_LENGTH: Final = re.compile("[0-9]{1,15}")


class Lines:
    """The connections of threads that `anyio.to_thread` has started. Any of them may ask at once.

    Args:
        connections: knows which addresses may be connected to, and how.
        bounds: what an answer may cost.
        count: hears of the bytes of bodies as they come, and may raise.
    """

    def __init__(self, connections: Connections, bounds: Bounds, count: Callable[[int], None]) -> None:
        self._connections = connections
        self._bounds = bounds
        self._count = count
        self._free: dict[_Origin, list[_Line]] = {}
        self._open: set[_Line] = set()
        self._odd: dict[_Origin, int] = {}
        self._stopped = False

    def get(self, url: str, headers: Mapping[str, str], most: int) -> Plain | None:
        """What this URL answers, at most `most` bytes; None where that is for `exchange` to ask.

        Raises:
            UnacceptableError: the address of its host is none that may be connected to, or `count` refuses.
            UnreachableError: nothing came in time.
        """
        parts = urlsplit(url)
        host, secure = parts.hostname or "", parts.scheme == "https"
        origin = (parts.scheme, host, parts.port or (443 if secure else 80))
        if self._odd.get(origin, 0) >= _PATIENCE or self._connections.proxied(url):
            return None
        free = self._free.setdefault(origin, [])
        asked = _request(parts.path or "/", parts.query, _host(host, parts.port, secure=secure), headers)
        deadline = time.monotonic() + self._bounds.download_s
        found: Plain | None = None
        was_closed = False
        try:
            line = free.pop()  # at once, so that no two threads have it
        except IndexError:
            line = None
        if line is not None and not line.is_usable():
            self._drop(line)
            line = None
        kept = line is not None
        try:
            line = line or self._opened(origin)
            if line is not None:
                found = line.ask(asked, most, deadline, self._count)
        except TimeoutError:
            if time.monotonic() >= deadline:
                raise slow(url, self._bounds.download_s) from None
            raise silent(url, self._bounds.read_s) from None
        except OSError:
            was_closed = kept  # where it was not, the other way says what is wrong
        finally:
            if line is not None and (found is None or not line.is_kept):
                self._drop(line)
            elif line is not None:
                free.append(line)
        if was_closed:  # perhaps before it was asked; each time there is one kept connection less
            return self.get(url, headers, most)
        if found is None:
            self._odd[origin] = self._odd.get(origin, 0) + 1
        return found

    def stop(self) -> None:
        """End what threads wait for: these get None, and from then on all do."""
        self._stopped = True
        for line in list(self._open):
            line.shut()

    def close(self) -> None:
        """Close all connections. No thread may be waiting any more."""
        self._stopped = True
        for line in list(self._open):
            self._drop(line)
        self._free.clear()

    def _opened(self, origin: _Origin) -> _Line | None:
        scheme, host, port = origin
        tls = self._connections.tls() if scheme == "https" else None
        found = tries(from_thread.run(self._connections.addresses, host, port, self._bounds.read_s))
        for address in found:
            with suppress(OSError):  # the other way says what is wrong, where all fail
                made = _connected(address, port, host, tls, self._bounds.read_s / len(found))
                line = _Line(made, self._bounds.read_s)
                self._open.add(line)
                if not self._stopped:
                    return line
                self._drop(line)
        return None

    def _drop(self, line: _Line) -> None:
        self._open.discard(line)
        line.close()


class _Line:
    """One connection, for one thread at a time."""

    def __init__(self, made: socket.socket, read_s: float) -> None:
        self._socket = made
        self._read_s = read_s
        self._wait_s: float | None = None
        self._used_at = time.monotonic()
        self.is_kept = True

    def is_usable(self) -> bool:
        """Whether it is likely that the server has not closed it."""
        return time.monotonic() - self._used_at < KEEP_ALIVE_S

    def ask(self, asked: bytes, most: int, deadline: float, count: Callable[[int], None]) -> Plain | None:
        """The answer to a request where it is plain.

        Raises:
            OSError: it broke off; TimeoutError where it did not come in time.
        """
        self._wait(deadline)
        self._socket.sendall(asked)
        raw = bytearray()
        while (end := raw.find(b"\r\n\r\n", 0, _MOST_HEAD)) < 0:
            if len(raw) >= _MOST_HEAD:
                return None
            raw += self._piece(deadline)
        headers = _plain_headers(bytes(raw[:end]))
        length = int(headers["content-length"]) if headers else 0
        if headers is None or length > most:
            return None
        del raw[: end + 4]
        count(len(raw))
        while len(raw) < length:
            piece = self._piece(deadline)
            count(len(piece))
            raw += piece
        self._used_at = time.monotonic()
        # What follows the body is no answer to anything that was asked.
        self.is_kept = len(raw) == length and "close" not in headers.get("connection", "").lower()
        return headers, bytes(raw[:length])

    def _wait(self, deadline: float) -> None:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        wait_s = min(self._read_s, left)
        if wait_s != self._wait_s:  # each time is a call of the system
            self._socket.settimeout(wait_s)
            self._wait_s = wait_s

    def _piece(self, deadline: float) -> bytes:
        self._wait(deadline)
        piece = self._socket.recv(_PIECE)
        if not piece:
            raise ConnectionError
        return piece

    def shut(self) -> None:
        with suppress(OSError):  # under TLS, too: a thread may be reading, and so its state stays as it is
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def close(self) -> None:
        with suppress(OSError):
            self._socket.close()


def _connected(address: str, port: int, host: str, tls: ssl.SSLContext | None, wait_s: float) -> socket.socket:
    made = socket.create_connection((address, port), wait_s)
    try:
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return tls.wrap_socket(made, server_hostname=host) if tls else made
    except BaseException:
        made.close()
        raise


def _host(host: str, port: int | None, *, secure: bool) -> str:
    name = f"[{host}]" if ":" in host else host
    return name if port is None or port == (443 if secure else 80) else f"{name}:{port}"


def _request(path: str, query: str, host: str, headers: Mapping[str, str]) -> bytes:
    target = f"{path}?{query}" if query else path
    lines = (f"GET {target} HTTP/1.1", f"Host: {host}", *(f"{name}: {value}" for name, value in headers.items()))
    return "\r\n".join((*lines, "", "")).encode("ascii")


def _plain_headers(head: bytes) -> dict[str, str] | None:
    """The headers of a plain answer by name in lower case; None of any other."""
    status, *fields = head.split(b"\r\n")
    if not _OK.fullmatch(status):
        return None
    found: dict[str, str] = {}
    for field in fields:
        raw_name, colon, raw_value = field.partition(b":")
        if not colon or not _NAME.fullmatch(raw_name):
            return None
        name, value = raw_name.decode("ascii").lower(), raw_value.strip(b" \t").decode("latin-1")
        found[name] = f"{found[name]}, {value}" if name in found else value
    plain = "transfer-encoding" not in found and _LENGTH.fullmatch(found.get("content-length", ""))
    return found if plain else None
