"""Connections of the probe: raw JSON-RPC messages over streamable HTTP or a command's pipes.

The SDK's client rejects or completes much of what a server may send wrong, so that its caller could
not judge it.
"""

from __future__ import annotations

import base64
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, cast

import anyio
import httpx2
from anyio.abc import ByteReceiveStream, ByteSendStream, Process
from anyio.streams.buffered import BufferedByteReceiveStream

from mcp_skills_server.dialects.jsonrpc import JsonError, dump, parse
from mcp_skills_server.errors import SkillsServerError, clipped
from mcp_skills_server.format.fields import mapping
from mcp_skills_server.server.eras import LEGACY_VERSIONS, MODERN_VERSIONS
from mcp_skills_server.sources.source import UnacceptableError

Fields: TypeAlias = Mapping[str, Any]

MAX_ANSWER: Final = 32 << 20
"""The maximum size of a message in bytes: a file of 16 MiB, in Base64."""
MODERN: Final = MODERN_VERSIONS[-1]
LEGACY: Final = LEGACY_VERSIONS[-1]
_MAX_BEFORE: Final = 1_000
"""The most messages before an answer."""
_END_S: Final = 5.0
"""Seconds in which a command ends after its stdin was closed."""
_SESSION: Final = "Mcp-Session-Id"
_HEADERS: Final = {
    "Accept": "application/json, text/event-stream",
    "Content-Type": "application/json",
}


class LostError(SkillsServerError):
    """There is no answer, and the connection is of no use any more."""


@dataclass(slots=True)
class ProbeCall:
    """A message that was sent, and what came back: an answer, and before it messages and noise.

    Attributes:
        noise: the lines or bodies that are no messages.
        status: the HTTP status; None over pipes.
    """

    message: Fields
    answer: Fields = field(default_factory=dict[str, Any])
    before: list[Fields] = field(default_factory=list[Fields])
    noise: list[str] = field(default_factory=list[str])
    status: int | None = None

    @property
    def name(self) -> str:
        """The method, with the URI if it has one."""
        method, uri = self.message["method"], self.message["params"].get("uri")
        return f"{method} {uri}" if uri else method

    @property
    def error(self) -> Fields:
        """The error, or an empty object."""
        return mapping(self.answer.get("error"))

    @property
    def result(self) -> Fields | None:
        """The result, or None."""
        result = self.answer.get("result")
        return cast("Fields", result) if isinstance(result, dict) else None

    @property
    def said(self) -> str:
        """The answer in a few words."""
        said = f"error {self.error.get('code')}" if self.error else "no response"
        if self.result is not None:
            said = "a result"
        return said if self.status is None else f"{said}, status {self.status}"


class ProbeConnection(ABC):
    """A connection in one era, with at most `timeout_s` for each exchange."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s

    @abstractmethod
    def _messages(self, call: ProbeCall, headers: Mapping[str, str]) -> AsyncGenerator[bytes]:
        """Send the message of a call, set its status, and yield all that comes back."""

    async def exchange(
        self, sent: Fields, headers: Mapping[str, str], *, is_stream: bool = False
    ) -> ProbeCall:
        """Send a message. The answer of a stream is its first message.

        Raises:
            LostError: the server does not answer in time, or not at all.
        """
        call = ProbeCall(sent)
        try:
            with anyio.fail_after(self._timeout_s):
                async with aclosing(self._messages(call, headers)) as messages:
                    async for raw in messages:
                        message = _decoded(raw)
                        if message and (is_stream or "method" not in message):
                            call.answer = message
                            break
                        if message:
                            call.before.append(message)
                        else:
                            call.noise.append(clipped(raw.decode(errors="replace")))
                        if len(call.before) + len(call.noise) > _MAX_BEFORE:
                            raise LostError(f"{_MAX_BEFORE:,} messages came, and no answer")
        except TimeoutError:
            raise LostError(f"no answer within {self._timeout_s:g} s") from None
        except anyio.DelimiterNotFound:
            raise LostError(f"an answer has more than {MAX_ANSWER:,} bytes") from None
        except (anyio.IncompleteRead, anyio.BrokenResourceError, anyio.ClosedResourceError):
            raise LostError("no answer, since the command closed its pipes") from None
        except (httpx2.HTTPError, httpx2.SSEError, UnacceptableError) as error:
            reason = clipped(str(error)) or type(error).__name__
            raise LostError(f"no answer ({reason})") from None
        return call


def _decoded(raw: bytes) -> Fields:
    """Decode a message; what is no JSON object of at most 100 levels is an empty one."""
    try:
        return mapping(parse(raw))
    except JsonError:
        return {}


def _header_value(text: str) -> str:
    """Return a text as MCP writes it in a header: in Base64 unless it is printable ASCII."""
    if text.isascii() and text.isprintable() and text == text.strip():
        return text
    return f"=?base64?{base64.b64encode(text.encode()).decode()}?="


class HttpConnection(ProbeConnection):
    """Streamable HTTP: a POST for each message."""

    def __init__(
        self, client: httpx2.AsyncClient, url: str, *, is_modern: bool, timeout_s: float
    ) -> None:
        super().__init__(timeout_s)
        self._client = client
        self._url = url
        self._is_modern = is_modern
        self._session: dict[str, str] = {}

    async def _messages(self, call: ProbeCall, headers: Mapping[str, str]) -> AsyncGenerator[bytes]:
        method, uri = call.message["method"], call.message["params"].get("uri", "")
        sent = _HEADERS | self._session
        if self._is_modern:
            sent = {**_HEADERS, "MCP-Protocol-Version": MODERN, "Mcp-Method": method}
        if self._is_modern and method == "resources/read":
            sent["Mcp-Name"] = _header_value(uri)
        body = dump(call.message)
        request = self._client.stream("POST", self._url, content=body, headers={**sent, **headers})
        async with request as response:
            call.status = response.status_code
            if session := response.headers.get(_SESSION):
                self._session = {_SESSION: session, "MCP-Protocol-Version": LEGACY}
            if response.headers.get("Content-Type", "").startswith("text/event-stream"):
                async for event in httpx2.EventSource(response, MAX_ANSWER):
                    yield event.data.encode()
            elif content := await response.aread():
                yield content

    async def close(self) -> None:
        """End the session that the server opened, if any. A failure is no fault: it need not."""
        if self._session and not self._is_modern:
            failures = suppress(httpx2.HTTPError, UnacceptableError)
            with failures, anyio.move_on_after(self._timeout_s):
                await self._client.delete(self._url, headers=self._session)


class PipeConnection(ProbeConnection):
    """The pipes of a command: a line for each message."""

    def __init__(self, process: Process, timeout_s: float) -> None:
        super().__init__(timeout_s)
        self._process = process
        self._stdin = cast("ByteSendStream", process.stdin)  # it is a pipe, as is stdout
        self._stdout = BufferedByteReceiveStream(cast("ByteReceiveStream", process.stdout))

    async def _messages(self, call: ProbeCall, headers: Mapping[str, str]) -> AsyncGenerator[bytes]:
        del headers
        await self._stdin.send(dump(call.message) + b"\n")
        while "id" in call.message:
            line = await self._stdout.receive_until(b"\n", MAX_ANSWER)
            if line.strip():
                yield line

    async def close(self) -> bool:
        """Close stdin. Return whether the command then ended; after 5 s it is killed."""
        await self._stdin.aclose()
        with anyio.move_on_after(_END_S):
            await self._process.wait()
        has_ended = self._process.returncode is not None
        if not has_ended:
            self._process.kill()
        await self._process.aclose()
        return has_ended
