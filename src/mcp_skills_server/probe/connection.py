"""Connections of the probe: raw JSON-RPC messages over streamable HTTP or a command's pipes.

The SDK's client rejects or completes much of what a server may send wrong, so that its caller could
not judge it.
"""

from __future__ import annotations

import base64
import shutil
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, cast

import anyio
import httpx2
from anyio.abc import Process

from mcp_skills_server.dialects.jsonrpc import JsonError, dump, parse
from mcp_skills_server.errors import SkillsServerError, UsageError, clipped, quoted
from mcp_skills_server.sources.mcp import http_client
from mcp_skills_server.sources.source import UnacceptableError
from mcp_skills_server.transport import LineBuffer

MAX_ANSWER: Final = 32 << 20
"""The maximum size of a message in bytes: a file of 16 MiB, in Base64."""
_MAX_BEFORE: Final = 1_000
"""The most messages before an answer."""
MODERN: Final = "2026-07-28"
LEGACY: Final = "2025-11-25"
_END_S: Final = 5.0
"""Seconds in which a command ends after its stdin was closed."""
_SESSION: Final = "Mcp-Session-Id"
_HEADERS: Final = {
    "Accept": "application/json, text/event-stream",
    "Content-Type": "application/json",
}


class LostError(SkillsServerError):
    """There is no answer, and the connection is of no use any more."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What a server sent for one message: the answer, if any, and before it messages and noise.

    Attributes:
        noise: the lines or bodies that are no messages.
        status: the HTTP status; None over pipes.
    """

    answer: Mapping[str, Any] | None
    before: Sequence[Mapping[str, Any]] = ()
    noise: Sequence[str] = ()
    status: int | None = None


class Connection(ABC):
    """A connection in one era, with at most `timeout_s` for each exchange.

    Attributes:
        ends_alone: whether a command ended after its stdin was closed; None before, and of a URL.
    """

    def __init__(self, timeout_s: float) -> None:
        self.ends_alone: bool | None = None
        self._timeout_s = timeout_s
        self._status: int | None = None

    @abstractmethod
    def _messages(
        self, message: Mapping[str, Any], headers: Mapping[str, str]
    ) -> AsyncGenerator[bytes]:
        """Send a message, and yield all that comes back."""

    async def exchange(
        self, message: Mapping[str, Any], headers: Mapping[str, str], *, is_stream: bool = False
    ) -> Reply:
        """Send a message and return the reply. The answer of a stream is its first message.

        Raises:
            LostError: the server does not answer in time, or not at all.
        """
        before: list[Mapping[str, Any]] = []
        noise: list[str] = []
        try:
            with anyio.fail_after(self._timeout_s):
                async with aclosing(self._messages(message, headers)) as messages:
                    async for raw in messages:
                        if len(before) + len(noise) > _MAX_BEFORE:
                            raise LostError(f"{_MAX_BEFORE} messages came, and no answer")
                        value = _object(raw)
                        if value is None:
                            noise.append(clipped(raw.decode(errors="replace")))
                        elif "method" in value and not is_stream:
                            before.append(value)
                        else:
                            return Reply(value, before, noise, self._status)
        except TimeoutError:
            raise LostError(f"no answer within {self._timeout_s:g} s") from None
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            raise LostError("no answer, since the command closed its pipes") from None
        except (httpx2.HTTPError, httpx2.SSEError, UnacceptableError) as error:
            reason = clipped(str(error)) or type(error).__name__
            raise LostError(f"no answer ({reason})") from None
        return Reply(None, before, noise, self._status)


class HttpConnection(Connection):
    """Streamable HTTP: a POST for each message."""

    def __init__(
        self, client: httpx2.AsyncClient, url: str, *, is_modern: bool, timeout_s: float
    ) -> None:
        super().__init__(timeout_s)
        self._client = client
        self._url = url
        self._is_modern = is_modern
        self._session: dict[str, str] = {}

    async def _messages(
        self, message: Mapping[str, Any], headers: Mapping[str, str]
    ) -> AsyncGenerator[bytes]:
        sent = {**_HEADERS, **self._session, **headers}
        if self._is_modern:
            named = _named(message["method"], message["params"])
            sent = {**_HEADERS, "MCP-Protocol-Version": MODERN, **named, **headers}
        request = self._client.stream("POST", self._url, content=dump(message), headers=sent)
        async with request as response:
            self._status = response.status_code
            if _SESSION in response.headers:
                session = response.headers[_SESSION]
                self._session = {_SESSION: session, "MCP-Protocol-Version": LEGACY}
            kind = response.headers.get("Content-Type", "")
            if kind.lower().startswith("text/event-stream"):
                async for event in httpx2.EventSource(response, MAX_ANSWER):
                    yield event.data.encode()
            elif body := await response.aread():
                yield body

    async def close(self) -> None:
        """End the session that the server opened, if any."""
        if self._session and not self._is_modern:
            with anyio.move_on_after(self._timeout_s):
                await self._client.delete(self._url, headers=self._session)


class PipeConnection(Connection):
    """The pipes of a command: a line for each message."""

    def __init__(self, process: Process, timeout_s: float) -> None:
        super().__init__(timeout_s)
        self._process = process
        self._buffer = LineBuffer(MAX_ANSWER)
        self._lines: deque[bytes | None] = deque()

    async def _messages(
        self, message: Mapping[str, Any], headers: Mapping[str, str]
    ) -> AsyncGenerator[bytes]:
        del headers
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            raise LostError("the command has no pipes")
        await stdin.send(dump(message) + b"\n")
        while "id" in message:
            while not self._lines:
                self._lines.extend(self._buffer.lines(await stdout.receive()))
            line = self._lines.popleft()
            if line is None:
                raise LostError(f"an answer has more than {MAX_ANSWER:,} bytes")
            yield line

    async def close(self) -> None:
        """Close stdin, and kill the command if it does not end soon."""
        if self._process.stdin is not None:
            await self._process.stdin.aclose()
        with anyio.move_on_after(_END_S):
            await self._process.wait()
        self.ends_alone = self._process.returncode is not None
        if not self.ends_alone:
            self._process.kill()
        await self._process.aclose()


@asynccontextmanager
async def over_http(
    url: str, token: str, *, is_modern: bool, timeout_s: float
) -> AsyncGenerator[Connection]:
    """Connect to a URL. The token is sent nowhere else, and no redirect is followed."""
    async with http_client(url, token, connect_s=timeout_s, max_bytes=MAX_ANSWER) as client:
        connection = HttpConnection(client, url, is_modern=is_modern, timeout_s=timeout_s)
        yield connection
        await connection.close()


@asynccontextmanager
async def over_pipes(words: Sequence[str], *, timeout_s: float) -> AsyncGenerator[Connection]:
    """Start a command that the user wrote. Its stderr is that of this process."""
    if shutil.which(words[0]) is None:
        raise UsageError(f"there is no program {quoted(words[0])}; install it, or give its path")
    try:
        process = await anyio.open_process(words, stderr=None)
    except OSError as error:
        reason = f"could not be started ({error.strerror})"
        raise UsageError(f"{quoted(words[0])} {reason}; check its permissions") from None
    connection = PipeConnection(process, timeout_s)
    try:
        yield connection
    finally:
        with anyio.CancelScope(shield=True):
            await connection.close()


def _object(raw: bytes) -> Mapping[str, Any] | None:
    """Decode a JSON object of at most 100 levels; None for anything else."""
    try:
        value = parse(raw)
    except JsonError:
        return None
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def _named(method: str, params: Mapping[str, Any]) -> dict[str, str]:
    """Return the headers that repeat a modern request's method, and the URI that it reads."""
    if method != "resources/read":
        return {"Mcp-Method": method}
    uri = params["uri"]
    if not (uri.isascii() and uri.isprintable()):
        uri = f"=?base64?{base64.b64encode(uri.encode()).decode()}?="
    return {"Mcp-Method": method, "Mcp-Name": uri}
