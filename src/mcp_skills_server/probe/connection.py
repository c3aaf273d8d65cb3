"""Connections of the probe: JSON-RPC messages, unvalidated, over streamable HTTP or over pipes.

The SDK's client rejects or completes much of what a server may send wrong, so that its caller could
not judge it.
"""

from __future__ import annotations

import base64
import os
import shutil
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, cast

import anyio
import httpx2
from anyio.abc import Process

from mcp_skills_server.dialects.jsonrpc import JsonError, dump, parse
from mcp_skills_server.errors import UsageError, clipped, quoted
from mcp_skills_server.sources.mcp import http_client
from mcp_skills_server.sources.source import UnacceptableError
from mcp_skills_server.transport import LineBuffer

MAX_ANSWER: Final = 32 << 20
"""The maximum size of an answer in bytes: a file of 16 MiB, in Base64."""
MODERN: Final = "2026-07-28"
LEGACY: Final = "2025-11-25"
META: Final = "io.modelcontextprotocol/"
_END_S: Final = 5.0
"""Seconds in which a command ends after its stdin was closed."""
_NAMED: Final[Mapping[str, str]] = {"resources/read": "uri"}
"""The parameter that `Mcp-Name` repeats, by method."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What a server sent for one message.

    Attributes:
        answer: the response; None if there is none that could be read.
        before: the messages before it.
        noise: the lines before it that are no messages.
        status: the HTTP status; None over pipes.
        fault: why there is no answer, or "".
        is_lost: whether the connection is of no use any more.
    """

    answer: Mapping[str, Any] | None = None
    before: tuple[Mapping[str, Any], ...] = ()
    noise: tuple[str, ...] = ()
    status: int | None = None
    fault: str = ""
    is_lost: bool = False


class Connection(Protocol):
    """A connection in one era."""

    async def exchange(
        self, message: Mapping[str, Any], headers: Mapping[str, str], *, is_stream: bool = False
    ) -> Reply:
        """Send a message and return the reply; that of a stream ends with its first message."""
        ...


@dataclass(slots=True)
class _Received:
    """The messages for one request so far, and its answer once it came."""

    is_stream: bool
    answer: Mapping[str, Any] | None = None
    before: list[Mapping[str, Any]] = field(default_factory=list[Mapping[str, Any]])
    noise: list[str] = field(default_factory=list[str])

    def add(self, raw: bytes) -> bool:
        """Add a message, and return True if it is the last one."""
        try:
            value = parse(raw)
        except JsonError:
            value = None
        if not isinstance(value, dict):
            self.noise.append(clipped(raw.decode(errors="replace")))
            return False
        message = cast("dict[str, Any]", value)
        if "method" not in message:
            self.answer = message
            return True
        self.before.append(message)
        return self.is_stream

    def reply(self, fault: str, status: int | None = None, *, is_lost: bool = False) -> Reply:
        """Return the reply; `fault` is the reason if it has no answer."""
        if self.answer is not None or (self.is_stream and self.before):
            fault = ""
        before, noise = tuple(self.before), tuple(self.noise)
        return Reply(self.answer, before, noise, status, fault, is_lost and bool(fault))


class HttpConnection:
    """Streamable HTTP, a POST for each message."""

    def __init__(
        self, client: httpx2.AsyncClient, url: str, *, is_modern: bool, timeout_s: float
    ) -> None:
        self._client = client
        self._url = url
        self._is_modern = is_modern
        self._timeout_s = timeout_s
        self._session: dict[str, str] = {}

    async def exchange(
        self, message: Mapping[str, Any], headers: Mapping[str, str], *, is_stream: bool = False
    ) -> Reply:
        """Send a message and return the reply; that of a stream ends with its first message."""
        received, status = _Received(is_stream), None
        sent = {**self._headers(message), **headers}
        try:
            with anyio.fail_after(self._timeout_s):
                body = dump(message)
                async with self._client.stream(
                    "POST", self._url, content=body, headers=sent
                ) as response:
                    status = response.status_code
                    if session := response.headers.get("Mcp-Session-Id"):
                        self._session = {"Mcp-Session-Id": session, "MCP-Protocol-Version": LEGACY}
                    async for raw in _messages(response):
                        if received.add(raw):
                            break
        except TimeoutError:
            return received.reply(f"no answer within {self._timeout_s:g} s", status, is_lost=True)
        except (httpx2.HTTPError, httpx2.SSEError, UnacceptableError) as error:
            reason = clipped(str(error)) or type(error).__name__
            return received.reply(f"no answer ({reason})", status, is_lost=True)
        fault = f"no JSON-RPC response, but status {status}"
        if 300 <= status < 400:
            fault = f"status {status}, which leads elsewhere; give the address to which it leads"
        if received.noise:
            fault += f" and {quoted(received.noise[0])}"
        return received.reply(fault, status)

    async def close(self) -> None:
        """End the session, if the server opened one."""
        if self._session and not self._is_modern:
            with anyio.move_on_after(self._timeout_s):
                try:
                    await self._client.delete(self._url, headers=self._session)
                except (httpx2.HTTPError, UnacceptableError):
                    return

    def _headers(self, message: Mapping[str, Any]) -> dict[str, str]:
        accept = {
            "Accept": "application/json, text/event-stream",
            "Content-Type": "application/json",
        }
        if not self._is_modern:
            return accept | self._session
        method, params = message["method"], message.get("params") or {}
        headers = {**accept, "MCP-Protocol-Version": MODERN, "Mcp-Method": method}
        if method in _NAMED:
            name = params[_NAMED[method]]
            if not (name.isascii() and name.isprintable()):
                name = f"=?base64?{base64.b64encode(name.encode()).decode()}?="
            headers["Mcp-Name"] = name
        return headers


async def _messages(response: httpx2.Response) -> AsyncIterator[bytes]:
    if response.headers.get("Content-Type", "").lower().startswith("text/event-stream"):
        async for event in httpx2.EventSource(response, MAX_ANSWER):
            if event.data:
                yield event.data.encode()
    elif body := await response.aread():
        yield body


class PipeConnection:
    """The pipes of a command.

    Attributes:
        ends_alone: whether the command ended once its stdin was closed; None before `close`.
    """

    def __init__(self, process: Process, timeout_s: float) -> None:
        self.ends_alone: bool | None = None
        self._process = process
        self._timeout_s = timeout_s
        self._buffer = LineBuffer(MAX_ANSWER)
        self._lines: deque[bytes | None] = deque()

    async def exchange(
        self, message: Mapping[str, Any], headers: Mapping[str, str], *, is_stream: bool = False
    ) -> Reply:
        """Send a message and return the reply; that of a stream ends with its first message."""
        del headers
        received = _Received(is_stream)
        stdin = self._process.stdin
        assert stdin is not None
        try:
            with anyio.fail_after(self._timeout_s):
                await stdin.send(dump(message) + b"\n")
                if "id" not in message:
                    return Reply()
                while True:
                    line = await self._next_line()
                    if line is None:
                        fault = f"an answer has more than {MAX_ANSWER:,} bytes"
                        return received.reply(fault, is_lost=True)
                    if received.add(line):
                        return received.reply("")
        except TimeoutError:
            return received.reply(f"no answer within {self._timeout_s:g} s", is_lost=True)
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            return received.reply("no answer, and the command closed its output", is_lost=True)

    async def close(self) -> None:
        """Close stdin, and kill the command if it does not end soon."""
        self.ends_alone = False
        assert self._process.stdin is not None
        with anyio.move_on_after(_END_S):
            await self._process.stdin.aclose()
            await self._process.wait()
            self.ends_alone = True
        if not self.ends_alone:
            self._process.kill()
            await self._process.wait()

    async def _next_line(self) -> bytes | None:
        assert self._process.stdout is not None
        while not self._lines:
            self._lines.extend(self._buffer.lines(await self._process.stdout.receive()))
        return self._lines.popleft()


@asynccontextmanager
async def over_http(
    url: str, token: str, *, is_modern: bool, timeout_s: float
) -> AsyncGenerator[HttpConnection]:
    """Connect to a URL. The token is sent nowhere else, and no redirect is followed."""
    async with http_client(url, token, connect_s=timeout_s, max_bytes=MAX_ANSWER) as client:
        connection = HttpConnection(client, url, is_modern=is_modern, timeout_s=timeout_s)
        try:
            yield connection
        finally:
            await connection.close()


@asynccontextmanager
async def over_pipes(words: list[str], timeout_s: float) -> AsyncGenerator[PipeConnection]:
    """Start a command that the user wrote; its stderr stays that of this process."""
    program = shutil.which(words[0])
    if program is None:
        raise UsageError(f"there is no program {quoted(words[0])}; install it, or give its path")
    try:
        process = await anyio.open_process([program, *words[1:]], stderr=None)
    except OSError as error:
        name = quoted(os.path.basename(program))
        raise UsageError(f"{name} could not be started ({error.strerror})") from None
    async with process:
        connection = PipeConnection(process, timeout_s)
        try:
            yield connection
        finally:
            with anyio.CancelScope(shield=True):
                await connection.close()
