"""The benchmark's client for all servers: raw bytes over pipes or sockets, blocking reads, no SDK."""

from __future__ import annotations

import json
import os
import re
import select
import selectors
import socket
import subprocess
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter, sleep
from typing import Any, Final, Literal, Self, TypeAlias

Era: TypeAlias = Literal["legacy", "modern"]

ERAS: Final[tuple[Era, ...]] = ("legacy", "modern")
REPOSITORY: Final = Path(__file__).resolve().parent.parent
_CLIENT: Final = {"name": "bench", "version": "0"}
_META: Final = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": _CLIENT,
    "io.modelcontextprotocol/clientCapabilities": {},
}
_HELLO: Final = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": _CLIENT}
_TIMEOUT_S: Final = 300.0
_PIPELINED: Final = 64
_CONNECTIONS: Final = 32


class BenchError(Exception):
    """A server did not respond as expected, so it cannot be measured."""


class Client(ABC):
    """A server process and a connection to it. Leaving the context ends the process.

    Args:
        command: the program and its arguments.
        era: the protocol to speak.
        environment: the variables of the process.
    """

    def __init__(self, command: Sequence[str], era: Era, environment: Mapping[str, str], stdin: int) -> None:
        self.era: Era = era
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115, it lives as long as the process
        self.started = perf_counter()
        self._process = subprocess.Popen(
            command,
            stdin=stdin,
            stdout=stdin,  # both are pipes or both /dev/null
            stderr=self._errors,
            cwd=REPOSITORY,
            env=environment,
            bufsize=0,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()

    @abstractmethod
    def close(self) -> None:
        """Stop the server."""

    @abstractmethod
    def prepare(self, method: str, params: Mapping[str, Any]) -> bytes:
        """Return a request as bytes."""

    @abstractmethod
    def time(self, prepared: bytes) -> tuple[float, bytes]:
        """Send a prepared request; return the seconds until the complete response, and its JSON."""

    @abstractmethod
    def rate(self, prepared: Sequence[bytes], count: int) -> float:
        """Send `count` of these requests in turn, pipelined; return requests a second."""

    def request(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the result of a request.

        Raises:
            BenchError: the response is an error.
        """
        return result_of(self.time(self.prepare(method, params))[1])

    def open(self) -> float:
        """Send the first request of the era; return the seconds from process start to response."""
        legacy = self.era == "legacy"
        self.request(*(("initialize", _HELLO) if legacy else ("server/discover", {})))
        return perf_counter() - self.started

    def resident(self) -> int:
        return _resident(self._process.pid)

    def _ended(self) -> BenchError:
        self._errors.seek(0)
        return BenchError(f"the server ended: {self._errors.read()[-1000:].decode(errors='replace')}")

    def _message(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        return {"method": method, "params": {**params, "_meta": _META} if self.era == "modern" else dict(params)}


class StdioClient(Client):
    """A client over stdio."""

    def __init__(self, command: Sequence[str], era: Era, environment: Mapping[str, str]) -> None:
        super().__init__(command, era, environment, subprocess.PIPE)
        assert self._process.stdin is not None and self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        self._poll = select.poll()
        self._poll.register(self._stdout, select.POLLIN | select.POLLHUP)
        self._last_id = 0
        self._buffer = b""

    def close(self) -> None:
        self._stdin.close()

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self._stdout.close()

    def open(self) -> float:
        """Send the first request of the era, and `initialized` in the legacy era."""
        seconds = super().open()
        if self.era == "legacy":
            self._stdin.write(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')
        return seconds

    def prepare(self, method: str, params: Mapping[str, Any]) -> bytes:
        return json.dumps(self._message(method, params), separators=(",", ":")).encode()[1:] + b"\n"

    def time(self, prepared: bytes) -> tuple[float, bytes]:
        self.send(prepared)
        start = self._sent
        begins = b'{"jsonrpc":"2.0","id":%d,' % self._last_id
        ends = b'"id":%d}' % self._last_id  # some write the result first
        while not ((answer := self._line(_TIMEOUT_S)).startswith(begins) or answer.endswith(ends)):
            pass
        return perf_counter() - start, answer

    def rate(self, prepared: Sequence[bytes], count: int) -> float:
        """Pipeline up to 64 requests."""
        lines = [self._numbered(prepared[number % len(prepared)]) for number in range(count)]
        sent = answered = 0
        start = perf_counter()
        while answered < count:
            if sent < count and sent - answered <= _PIPELINED // 2:
                self._stdin.write(b"".join(lines[sent : sent + _PIPELINED // 2]))
                sent += _PIPELINED // 2
                continue
            line = self._line(_TIMEOUT_S)
            if b'"error":' in line[:100]:
                raise BenchError(f"one of many responses is an error: {line[:500]!r}")
            answered += b'"result":' in line
        return count / (perf_counter() - start)

    def send(self, prepared: bytes) -> None:
        """Send a request without waiting for its response."""
        line = self._numbered(prepared)
        self._sent = perf_counter()
        self._stdin.write(line)

    def wait_for(self, method: str) -> float:
        """Wait for a notification; return the time of its arrival."""
        wanted = b'"method":"%b"' % method.encode()
        while wanted not in self._line(_TIMEOUT_S):
            pass
        return perf_counter()

    def drain(self, quiet_s: float) -> None:
        """Discard messages until none has arrived for this many seconds."""
        try:
            while True:
                self._line(quiet_s)
        except TimeoutError:
            return

    def _numbered(self, prepared: bytes) -> bytes:
        self._last_id += 1
        return b'{"jsonrpc":"2.0","id":%d,%b' % (self._last_id, prepared)

    def _line(self, timeout_s: float) -> bytes:
        parts: list[bytes] = []
        head, newline, rest = self._buffer.partition(b"\n")
        while not newline:
            parts.append(head)
            if not self._poll.poll(timeout_s * 1000):
                self._buffer = b"".join(parts)
                raise TimeoutError(f"nothing came for {timeout_s} s")
            chunk = os.read(self._stdout.fileno(), 1 << 18)
            if not chunk:
                raise self._ended()
            head, newline, rest = chunk.partition(b"\n")
        self._buffer = rest
        return b"".join((*parts, head))


class HttpClient(Client):
    """A client over HTTP in the modern era, for a server on loopback.

    Args:
        port: the port, which the command names too.
    """

    def __init__(self, command: Sequence[str], port: int, environment: Mapping[str, str]) -> None:
        super().__init__(command, "modern", environment, subprocess.DEVNULL)
        self._port = port
        self._sockets: list[socket.socket] = []
        while not self._sockets:
            try:
                self._sockets.append(socket.create_connection(("127.0.0.1", port)))
            except ConnectionRefusedError:
                if self._process.poll() is not None or perf_counter() - self.started > _TIMEOUT_S:
                    error = self._ended()
                    self.__exit__()
                    raise error from None
                sleep(0.001)

    def close(self) -> None:
        for each in self._sockets:
            each.close()
        self._process.terminate()

    def prepare(self, method: str, params: Mapping[str, Any]) -> bytes:
        body = json.dumps({"jsonrpc": "2.0", "id": 1, **self._message(method, params)}, separators=(",", ":"))
        lines = [
            "POST /mcp HTTP/1.1",
            "Host: localhost",
            "Accept: application/json, text/event-stream",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
            "MCP-Protocol-Version: 2026-07-28",
            f"Mcp-Method: {method}",
        ]
        if method == "resources/read":
            lines.append(f"Mcp-Name: {params['uri']}")
        return ("\r\n".join(lines) + "\r\n\r\n" + body).encode()

    def time(self, prepared: bytes) -> tuple[float, bytes]:
        start = perf_counter()
        self._sockets[0].sendall(prepared)
        received = b""
        while not is_whole(received):
            received += self._receive(self._sockets[0])
        return perf_counter() - start, body_of(received)

    def rate(self, prepared: Sequence[bytes], count: int) -> float:
        """Send requests on 32 connections, one at a time on each."""
        while len(self._sockets) < _CONNECTIONS:
            self._sockets.append(socket.create_connection(("127.0.0.1", self._port)))
        received = dict.fromkeys(self._sockets, b"")
        sent = answered = 0
        with selectors.DefaultSelector() as selector:
            for each in self._sockets:
                selector.register(each, selectors.EVENT_READ)
            start = perf_counter()
            for each in self._sockets[:count]:
                each.sendall(prepared[sent % len(prepared)])
                sent += 1
            while answered < count:
                for key, _ in selector.select(_TIMEOUT_S):
                    each: socket.socket = key.fileobj
                    received[each] += self._receive(each)
                    if not is_whole(received[each]):
                        continue
                    if b'"result":' not in received[each]:
                        raise BenchError(f"one of many responses is an error: {received[each][:500]!r}")
                    answered += 1
                    received[each] = b""
                    if sent < count:
                        each.sendall(prepared[sent % len(prepared)])
                        sent += 1
        return count / (perf_counter() - start)

    def _receive(self, connection: socket.socket) -> bytes:
        chunk = connection.recv(1 << 18)
        if not chunk:
            raise BenchError("the connection was lost")
        return chunk


def is_whole(received: bytes) -> bool:
    """Return whether a response is complete."""
    head, separator, body = received.partition(b"\r\n\r\n")
    if not separator:
        return False
    length = re.search(rb"\r\ncontent-length: *(\d+)", head, re.IGNORECASE)
    return len(body) >= int(length[1]) if length else body.endswith(b"0\r\n\r\n")


def body_of(response: bytes) -> bytes:
    """Return the JSON of a response: its body, or the one event of its stream."""
    head, _, body = response.partition(b"\r\n\r\n")
    if b"chunked" in head.lower():
        whole, rest = b"", body
        while rest:
            length, _, rest = rest.partition(b"\r\n")
            whole, rest = whole + rest[: int(length, 16)], rest[int(length, 16) + 2 :]
        body = whole
    found = re.search(rb"^(?:data: *)?(\{.*\})\s*$", body, re.MULTILINE)
    return found[1] if found else b"{}"


def result_of(answer: bytes) -> dict[str, Any]:
    """Return the result of a response.

    Raises:
        BenchError: the response is an error.
    """
    parsed: dict[str, Any] = json.loads(answer)
    if "result" not in parsed:
        raise BenchError(f"no result: {answer[:500]!r}")
    return parsed["result"]


def _resident(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    return pages * os.sysconf("SC_PAGE_SIZE") + sum(_resident(int(each)) for each in children)
