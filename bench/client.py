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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, sleep
from typing import Any, Final, Literal, Self, TypeAlias

Era: TypeAlias = Literal["legacy", "modern"]

ERAS: Final[tuple[Era, ...]] = ("legacy", "modern")
REPOSITORY: Final = Path(__file__).resolve().parent.parent
_CLIENT: Final = {"name": "bench", "version": "0"}
_MODERN_VERSION: Final = "2026-07-28"
_META: Final = {
    "io.modelcontextprotocol/protocolVersion": _MODERN_VERSION,
    "io.modelcontextprotocol/clientInfo": _CLIENT,
    "io.modelcontextprotocol/clientCapabilities": {},
}
_LEGACY_VERSION: Final = "2025-06-18"
_HELLO: Final = {"protocolVersion": _LEGACY_VERSION, "capabilities": {}, "clientInfo": _CLIENT}
_TIMEOUT_S: Final = 300.0
_PIPELINED: Final = 64
CONNECTIONS: Final = 16
_IDLE_S: Final = 1.0
"""Seconds after which a connection is not used again: servers close idle ones, some after five."""
_NAMED: Final = {"resources/read": "uri", "tools/call": "name"}
"""Methods whose `Mcp-Name` header repeats this parameter in the modern era."""


class BenchError(Exception):
    """A server did not respond as expected, so it cannot be measured."""


@dataclass(frozen=True, slots=True)
class Load:
    """The figures of requests on several connections.

    Attributes:
        rate: requests a second.
        processor: processor time of the server for each request, in seconds.
        times: seconds of each request, sorted.
    """

    rate: float
    processor: float
    times: Sequence[float]

    def percentile(self, percent: float) -> float:
        return self.times[round(percent / 100 * (len(self.times) - 1))]


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

    def peak(self) -> int:
        """Return the most bytes of memory that the process has had, without its children."""
        status = Path(f"/proc/{self._process.pid}/status").read_text(encoding="ascii")
        return int(status.partition("VmHWM:")[2].split()[0]) * 1024

    def processor(self) -> float:
        """Return the seconds of processor time of the process and its children."""
        return _processor(self._process.pid)

    @contextmanager
    def on_its_own_core(self) -> Iterator[None]:
        """Keep the server on one core and its clients on the others, if there are others."""
        cores = os.sched_getaffinity(0)
        first = {min(cores)}
        _pin(self._process.pid, first)
        os.sched_setaffinity(0, cores - first or first)
        try:
            yield
        finally:
            os.sched_setaffinity(0, cores)
            _pin(self._process.pid, cores)

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
        """Send `count` of these requests in turn, up to 64 pipelined; return requests a second."""
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
    """A client over HTTP, for a server on loopback. In the legacy era it has one session, if the server opens one.

    Args:
        port: the port, which the command names too.
    """

    def __init__(self, command: Sequence[str], era: Era, port: int, environment: Mapping[str, str]) -> None:
        super().__init__(command, era, environment, subprocess.DEVNULL)
        self.port = port
        self._connections: list[socket.socket] = []
        """The open streams, then the connection for single requests."""
        self._used = perf_counter()
        self._last_id = 0
        self._headers = {"MCP-Protocol-Version": _MODERN_VERSION} if era == "modern" else dict[str, str]()
        while not self._connections:
            try:
                self._connections.append(self._connect())
            except ConnectionRefusedError:
                if self._process.poll() is not None or perf_counter() - self.started > _TIMEOUT_S:
                    error = self._ended()
                    self.__exit__()
                    raise error from None
                sleep(0.001)

    def close(self) -> None:
        for connection in self._connections:
            connection.close()
        self._process.terminate()

    def signal(self, number: int) -> None:
        """Send a signal to the server."""
        self._process.send_signal(number)

    def open(self) -> float:
        """Send the first request of the era; in the legacy era open a session."""
        if self.era == "modern":
            return super().open()
        self.open_session()
        seconds = perf_counter() - self.started
        self._exchange(self._post({"method": "notifications/initialized"}))
        return seconds

    def open_session(self) -> float:
        """Open a legacy session and use it from here on; return the seconds of `initialize`."""
        self._headers = {}
        hello = self.prepare("initialize", _HELLO)
        start = perf_counter()
        response = self._exchange(hello)
        seconds = perf_counter() - start
        result_of(body_of(response))
        self._headers = {"MCP-Protocol-Version": _LEGACY_VERSION, **session_of(response)}
        return seconds

    def open_stream(self) -> None:
        """Open a stream of notifications: GET in a new legacy session, or `subscriptions/listen`.

        Returns after the first bytes of the stream.
        """
        if self.era == "modern":
            request = self.prepare("subscriptions/listen", {"notifications": {"skillsListChanged": True}})
        else:
            self.open_session()
            request = self._head("GET", {}, b"")
        stream = self._connect()
        self._connections.insert(0, stream)
        stream.sendall(request)
        if not (received := self._receive(stream)).startswith(b"HTTP/1.1 200"):
            raise BenchError(f"no stream: {received[:200]!r}")

    def prepare(self, method: str, params: Mapping[str, Any]) -> bytes:
        """Return a request as bytes, with an id of its own and the session that is open now."""
        self._last_id += 1
        return self._post({"id": self._last_id, **self._message(method, params)})

    def _post(self, message: Mapping[str, Any]) -> bytes:
        body = json.dumps({"jsonrpc": "2.0", **message}, separators=(",", ":")).encode()
        headers = {"Content-Type": "application/json", "Content-Length": str(len(body))}
        if self.era == "modern":
            headers["Mcp-Method"] = message["method"]
            if message["method"] in _NAMED:
                headers["Mcp-Name"] = message["params"][_NAMED[message["method"]]]
        return self._head("POST", headers, body)

    def _head(self, verb: str, headers: Mapping[str, str], body: bytes) -> bytes:
        """Return a request, with the headers of the era and of the session."""
        lines = [f"{verb} /mcp HTTP/1.1", "Host: localhost", "Accept: application/json, text/event-stream"]
        lines += [f"{name}: {value}" for name, value in {**headers, **self._headers}.items()]
        return ("\r\n".join(lines) + "\r\n\r\n").encode() + body

    def time(self, prepared: bytes) -> tuple[float, bytes]:
        start = perf_counter()
        response = self._exchange(prepared)
        return perf_counter() - start, body_of(response)

    def load(self, prepared: Sequence[bytes], count: int, connections: int = CONNECTIONS) -> Load:
        """Send `count` of these requests in turn on several connections, one at a time on each."""
        received = {self._connect(): b"" for _ in range(min(count, connections))}
        begun: dict[socket.socket, float] = {}
        times: list[float] = []
        sent = 0
        with self.on_its_own_core(), selectors.DefaultSelector() as selector:
            before, start = self.processor(), perf_counter()
            for connection in received:
                selector.register(connection, selectors.EVENT_READ)
                begun[connection] = perf_counter()
                connection.sendall(prepared[sent % len(prepared)])
                sent += 1
            while len(times) < count:
                for key, _ in selector.select(_TIMEOUT_S):
                    connection: socket.socket = key.fileobj
                    received[connection] += self._receive(connection)
                    if not is_whole(received[connection]):
                        continue
                    times.append(perf_counter() - begun[connection])
                    if b'"result":' not in received[connection]:
                        raise BenchError(f"one of many responses is an error: {received[connection][:500]!r}")
                    received[connection] = b""
                    if sent < count:
                        begun[connection] = perf_counter()
                        connection.sendall(prepared[sent % len(prepared)])
                        sent += 1
            seconds, processor = perf_counter() - start, self.processor() - before
        for connection in received:
            connection.close()
        return Load(count / seconds, processor / count, sorted(times))

    def _connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port))

    def _exchange(self, request: bytes) -> bytes:
        if perf_counter() - self._used > _IDLE_S:
            self._connections.pop().close()
            self._connections.append(self._connect())
        self._connections[-1].sendall(request)
        response = b""
        while not is_whole(response):
            response += self._receive(self._connections[-1])
        self._used = perf_counter()
        return response

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


def session_of(response: bytes) -> dict[str, str]:
    """Return the header of the session that a response opens, or nothing if it opens none."""
    id_ = re.search(rb"\r\nmcp-session-id: *(\S+)", response.partition(b"\r\n\r\n")[0], re.IGNORECASE)
    return {"Mcp-Session-Id": id_[1].decode()} if id_ else {}


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
    return pages * os.sysconf("SC_PAGE_SIZE") + sum(map(_resident, _children(pid)))


def _processor(pid: int) -> float:
    """Return seconds of all threads, which the scheduler counts in nanoseconds."""
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    own = sum(int(thread.read_text(encoding="ascii").split()[0]) for thread in threads)
    return own / 1e9 + sum(map(_processor, _children(pid)))


def _pin(pid: int, cores: set[int]) -> None:
    """Keep all threads of a process on these cores."""
    for thread in os.listdir(f"/proc/{pid}/task"):
        os.sched_setaffinity(int(thread), cores)


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()]
