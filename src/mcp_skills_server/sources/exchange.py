"""One request and its answer over HTTP: within limits of bytes and time, and what goes wrong in words for people.

Where a request may go, what a status means and whether a redirect is followed is for the callers. Bodies are taken as
they are: nothing is ever decompressed here.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Final
from urllib.parse import urlsplit

import anyio
import httpcore2

from mcp_skills_server.errors import UsageError
from mcp_skills_server.model import printable
from mcp_skills_server.sources.connections import Connections
from mcp_skills_server.sources.faults import UnacceptableError, UnreachableError
from mcp_skills_server.sources.settings import Bounds
from mcp_skills_server.sources.urls import shown

_BROKEN: Final = (anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream)


class Exchange:
    """Sends requests, and counts the bytes of all that comes.

    Args:
        bounds: what a wait, and all answers together, may cost.
    """

    def __init__(self, bounds: Bounds) -> None:
        self.bytes = 0
        """Bytes of all bodies so far."""
        self._bounds = bounds
        self._counting = threading.Lock()

    @asynccontextmanager
    async def send(
        self, method: str, url: str, headers: Mapping[str, str], connections: Connections, content: bytes | None = None
    ) -> AsyncGenerator[tuple[int, dict[str, str], httpcore2.Response]]:
        """The status, the headers by name in lower case, and the answer whose body `body` reads.

        Raises:
            UnreachableError: no answer in time.
            UsageError: the proxy of the environment cannot be used.
        """
        parts = urlsplit(url)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        place = httpcore2.URL(
            scheme=parts.scheme, host=parts.hostname or "", port=parts.port, target=target.encode("ascii")
        )
        wait = self._bounds.read_s
        timeouts = {"connect": wait, "read": wait, "write": wait, "pool": self._bounds.download_s}
        sent = list(headers.items())
        extensions = {"timeout": timeouts}
        try:
            async with (
                connections.lent(url) as pool,
                pool.stream(method, place, headers=sent, content=content, extensions=extensions) as response,
            ):
                found: dict[str, str] = {}
                for raw_name, raw_value in response.headers:
                    name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
                    found[name] = f"{found[name]}, {value}" if name in found else value
                yield response.status, found, response
        except UnreachableError:
            raise
        except httpcore2.TimeoutException:
            raise silent(url, wait) from None
        except (httpcore2.ProtocolError, httpcore2.ReadError) as error:
            raise UnreachableError(f"{shown(url)} broke off or does not speak HTTP: {_first_line(error)}") from None
        except (httpcore2.NetworkError, httpcore2.ProxyError, OSError, *_BROKEN) as error:
            hint = ""
            if "WRONG_VERSION_NUMBER" in str(error):
                hint = "; it speaks plain HTTP there: write http:// for a site, oci+http:// for a registry"
            raise UnreachableError(f"{shown(url)} cannot be reached: {_first_line(error)}{hint}") from None
        except httpcore2.UnsupportedProtocol as error:
            raise UsageError(f"the proxy of the environment cannot be used: {_first_line(error)}") from None

    async def body(self, url: str, most: int, answered: Mapping[str, str], response: httpcore2.Response) -> bytes:
        """The body of an answer, at most `most` bytes.

        Raises:
            UnacceptableError: it has more, or all bodies together have more than the bounds allow.
        """
        length = answered.get("content-length", "")
        if length.isdigit() and int(length[:18]) > most:
            raise UnacceptableError(f"{shown(url)} has {length[:18]} bytes, at most {most} are taken")
        parts: list[bytes] = []
        size = 0
        async for part in response.aiter_stream():
            size += len(part)
            if size > most:
                raise UnacceptableError(f"{shown(url)} has more than {most} bytes")
            self.count(len(part))
            parts.append(part)
        return b"".join(parts)

    def count(self, size: int) -> None:
        """So many bytes of a body more. Any thread may say so.

        Raises:
            UnacceptableError: all bodies together have more than the bounds allow.
        """
        with self._counting:
            self.bytes += size
        if self.bytes > self._bounds.total_bytes:
            raise UnacceptableError(f"all downloads together have more than {self._bounds.total_bytes} bytes")


def silent(url: str, wait_s: float) -> UnreachableError:
    """No bytes came for so long."""
    return UnreachableError(f"{shown(url)} did not answer within {wait_s:g} s")


def slow(url: str, most_s: float) -> UnreachableError:
    """The whole of it took longer than this."""
    return UnreachableError(f"{shown(url)} took longer than {most_s:g} s")


def _first_line(error: Exception) -> str:
    text = printable(" ".join(str(error).split())) or type(error).__name__
    return text if len(text) <= 160 else f"{text[:157]}..."
