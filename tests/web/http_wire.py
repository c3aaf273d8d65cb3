"""A raw HTTP client, and server processes for it.

Results of the package's own methods are validated against its schemas. A traceback in the log of a
server fails its test.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from forkserver import Popen, run
from wire import COMMAND, DEADLINE, META, ROOT, VERSIONS, Client, Era

_CLIENT_INFO = {"name": "wire", "version": "1"}
MODERN_META = {
    META + "protocolVersion": VERSIONS["modern"],
    META + "clientInfo": _CLIENT_INFO,
    META + "clientCapabilities": {},
}
HELLO = {"protocolVersion": VERSIONS["legacy"], "capabilities": {}, "clientInfo": _CLIENT_INFO}
"""The parameters of `initialize`."""
JSON = {"Content-Type": "application/json"}
MCP_HEADERS = JSON | {"Accept": "application/json, text/event-stream"}
PROBE = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
_NAME_PARAMETERS = {"resources/read": "uri", "prompts/get": "name", "tools/call": "name"}


def wait_until(condition: Callable[[], object], why: str = "the condition never held") -> None:
    """Poll until the condition returns a true value."""
    end, pause = monotonic() + DEADLINE, threading.Event()
    while not condition():
        assert monotonic() < end, why
        pause.wait(0.02)


def bearer_header(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def token_file(folder: Path, *lines: str) -> Path:
    """Write a file of tokens that no other user can read. A line has the form `name=token`."""
    file, fresh = folder / "tokens", folder / "tokens.new"
    fresh.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    fresh.chmod(0o600)
    fresh.replace(file)
    return file


class Target(ABC):
    """A server that clients address, in a process or not. Clients put `prefix` before all paths."""

    prefix = ""
    port = 0

    def __init__(self) -> None:
        self.stderr = ""
        self._log_changed = threading.Condition()

    @abstractmethod
    def exchange(
        self, method: str, path: str, body: bytes | None, headers: list[tuple[str, str]], source: str
    ) -> Reply:
        """Send a request as it is, and return the response."""

    def send(
        self,
        method: str = "POST",
        path: str = "/mcp",
        body: bytes | None = None,
        headers: list[tuple[str, str]] | Mapping[str, str | None] | None = None,
        source: str = "127.0.0.1",
    ) -> Reply:
        """Send a request from this address.

        A list of headers may repeat one. A header of None is left out.
        """
        given = headers.items() if isinstance(headers, Mapping) else headers or ()
        return self.exchange(method, path, body, [(name, value) for name, value in given if value is not None], source)

    @abstractmethod
    def open(self, method: str, body: bytes | None, headers: Mapping[str, str], source: str = "127.0.0.1") -> Stream:
        """Open an event stream of `/mcp`."""

    def log(self, line: str) -> None:
        with self._log_changed:
            self.stderr += line
            self._log_changed.notify_all()

    def wait_for_log(self, pattern: str, times: int = 1) -> re.Match[str]:
        """Wait until the log matches the pattern this many times; return the last match."""
        end = monotonic() + DEADLINE
        with self._log_changed:
            while len(found := list(re.finditer(pattern, self.stderr))) < times:
                assert self._log_changed.wait(end - monotonic()), f"{pattern!r} is not in: {self.stderr}"
            return found[-1]

    def until_ready(self) -> None:
        wait_until(lambda: self.send("GET", "/readyz").status == 200, "it was never ready")

    def rpc(self, method: str, *, token: str | None = None, **params: Any) -> dict[str, Any]:
        """Call a method of the Skills Protocol, and return the response."""
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
        headers = JSON if token is None else JSON | bearer_header(token)
        return json.loads(self.send(path="/rpc", body=body, headers=headers).body)


class Server(Target):
    """A server process, its port, and its log."""

    def __init__(self, command: list[str], environment: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self.process = Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=ROOT,
            env={**os.environ, **(environment or {})},
        )
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        try:
            self._wait_for_listener()
        except BaseException:
            self.kill()
            raise

    def _wait_for_listener(self) -> None:
        self.port = int(self.wait_for_log(r"listening on http://\S+?:(\d+)/")[1])

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log(line.decode())

    def resident(self) -> int:
        pages = Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def signal(self, number: signal.Signals) -> int:
        """Send a signal, wait for the exit, and return the exit code."""
        self.process.send_signal(number)
        code = self.process.wait(DEADLINE)
        self._thread.join(DEADLINE)
        return code

    def kill(self) -> None:
        """Kill the process, if it runs, and close its pipes."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._thread.join(DEADLINE)
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()

    def connect(self, receive_buffer: int | None = None) -> socket.socket:
        out = socket.socket()
        if receive_buffer:
            out.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        out.settimeout(DEADLINE)
        out.connect(("127.0.0.1", self.port))
        return out

    def exchange(
        self, method: str, path: str, body: bytes | None, headers: list[tuple[str, str]], source: str
    ) -> Reply:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, DEADLINE, (source, 0))
        has_host = any(name.lower() == "host" for name, _ in headers)
        try:
            connection.putrequest(method, self.prefix + path, skip_host=has_host, skip_accept_encoding=True)
            for name, value in headers:
                connection.putheader(name, value)
            if body is not None:
                connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body)
            with connection.getresponse() as response:
                return Reply(response.status, response.headers, response.read())
        finally:
            connection.close()

    def open(self, method: str, body: bytes | None, headers: Mapping[str, str], source: str = "127.0.0.1") -> Stream:
        return SocketStream(self, method, body, headers, source)


def exchange(connection: socket.socket, request: bytes = PROBE) -> bytes:
    """Send a request on an open connection, and return the body of the response."""
    connection.sendall(request)
    response = http.client.HTTPResponse(connection)
    response.begin()
    return response.read()


@contextmanager
def http_serving(
    *arguments: str | Path, environment: Mapping[str, str] | None = None, command: list[str] | None = None
) -> Iterator[Server]:
    """Run a server over HTTP on a free port. It must not log a traceback."""
    options = ["serve", "--transport", "http", "--port", "0", *map(str, arguments)]
    server = Server([*(command or COMMAND), *options], environment)
    try:
        yield server
    finally:
        server.kill()
    assert "Traceback" not in server.stderr, server.stderr
    assert server.process.returncode in {0, -signal.SIGKILL}


def startup_error(*arguments: str | Path, environment: Mapping[str, str] | None = None) -> str:
    """Run a `serve` that fails to start and exits with 2. Return its only line on stderr."""
    command = [*COMMAND, "serve", "--transport", "http", *map(str, arguments)]
    env = {**os.environ, **(environment or {})}
    done = run(command, capture_output=True, timeout=DEADLINE, cwd=ROOT, text=True, env=env)
    assert (done.returncode, done.stdout) == (2, ""), done
    assert done.stderr.count("\n") == 1 and "Traceback" not in done.stderr, done.stderr
    return done.stderr


def patched(code: str) -> list[str]:
    """Return the command that runs this code and then the program."""
    return [sys.executable, "-c", f"{code}\nfrom mcp_skills_server.cli import main\nmain()\n"]


def pinging(seconds: float) -> list[str]:
    """Return the command of a server that sends a comment on idle streams at this interval."""
    return patched(f"from mcp_skills_server.web import mcp; mcp._PING_S = {seconds}")


@dataclass(frozen=True)
class Reply:
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def messages(self) -> list[dict[str, Any]]:
        """Return the JSON-RPC messages of a JSON body or an event stream."""
        if self.headers.get_content_type() == "text/event-stream":
            lines = self.body.decode().splitlines()
            return [json.loads(line[5:]) for line in lines if line.startswith("data:")]
        return [json.loads(self.body)]

    @property
    def error(self) -> tuple[int, int, Any]:
        """Return the HTTP status, the JSON-RPC code, and the id of an error."""
        (message,) = self.messages
        assert message["jsonrpc"] == "2.0" and message["error"]["message"]
        return self.status, message["error"]["code"], message["id"]


class Stream(ABC):
    """An open event stream.

    Attributes:
        messages: the messages as they arrive, and None at the end.
        whole: whether the stream ended properly, with its last chunk; None while it is open.
    """

    status: int
    headers: http.client.HTTPMessage

    def __init__(self) -> None:
        self.messages: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self.comments: queue.Queue[str] = queue.Queue()
        self.whole: bool | None = None

    def take(self, line: bytes) -> None:
        """Take a line that has arrived."""
        if line.startswith(b"data:"):
            self.messages.put(json.loads(line[5:]))
        elif line.startswith(b":"):
            self.comments.put(line.decode())

    def next(self) -> dict[str, Any] | None:
        return self.messages.get(timeout=DEADLINE)

    def until(self, method: str, uri: str | None = None) -> list[tuple[str, str | None]]:
        """Return the method and URI of each notification, up to the one with these."""
        seen: list[tuple[str, str | None]] = []
        while not seen or seen[-1] != (method, uri):
            message = self.next()
            assert message is not None, f"the stream ended after {seen}"
            seen.append((message["method"], message.get("params", {}).get("uri")))
        return seen

    def rest(self) -> list[dict[str, Any]]:
        return list(iter(self.next, None))

    @abstractmethod
    def close(self) -> None:
        """Close the stream, as its client does."""


class SocketStream(Stream):
    """A stream on a connection of its own."""

    def __init__(
        self, server: Server, method: str, body: bytes | None, headers: Mapping[str, str], source: str = "127.0.0.1"
    ) -> None:
        super().__init__()
        connection = http.client.HTTPConnection("127.0.0.1", server.port, DEADLINE, (source, 0))
        connection.request(method, server.prefix + "/mcp", body, dict(headers))
        sock = connection.sock
        response = connection.getresponse()
        self.status, self.headers = response.status, response.headers
        self._connection, self._socket, self._response = connection, sock, response
        sock.settimeout(None)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            while line := self._response.readline():
                self.take(line)
            self.whole = self._response.isclosed()
        except (OSError, http.client.HTTPException, ValueError):
            self.whole = False
        self.messages.put(None)

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(DEADLINE)
        self._response.close()
        self._connection.close()


class HttpClient(Client):
    """A client over HTTP. A legacy one has a session after its handshake."""

    def __init__(
        self, server: Target, era: Era, *, token: str | None = None, extension: bool = False, source: str = "127.0.0.1"
    ) -> None:
        super().__init__(era, extension=extension)
        self.server = server
        self._source = source
        self.session: str | None = None
        self._authorization = bearer_header(token) if token else {}
        self._streams: list[Stream] = []

    def headers(self, message: Mapping[str, Any] | None = None) -> dict[str, str]:
        out = MCP_HEADERS | self._authorization
        if self.era == "legacy":
            if self.session:
                out |= {"Mcp-Session-Id": self.session, "MCP-Protocol-Version": VERSIONS["legacy"]}
            return out
        out |= {"MCP-Protocol-Version": VERSIONS["modern"]}
        if message is not None:
            out["Mcp-Method"] = message["method"]
            key, params = _NAME_PARAMETERS.get(message["method"], ""), message.get("params", {})
            if key in params:
                out["Mcp-Name"] = params[key]
        return out

    def post(self, message: Any, headers: Mapping[str, str | None] | None = None) -> Reply:
        given = {**self.headers(message), **(headers or {})}
        return self.server.send(body=json.dumps(message).encode(), headers=given, source=self._source)

    def head(self, message: Mapping[str, Any], *more: str) -> bytes:
        lines = [f"{name}: {value}" for name, value in self.headers(message).items()]
        return "\r\n".join(["POST /mcp HTTP/1.1", "Host: localhost", *lines, *more, "", ""]).encode()

    def raw(self, message: Mapping[str, Any]) -> bytes:
        body = json.dumps(message).encode()
        return self.head(message, f"Content-Length: {len(body)}") + body

    def exchange(self, message: Mapping[str, Any]) -> dict[str, Any]:
        reply = self.post(message)
        (answer,) = reply.messages  # without any notification
        assert answer["id"] == message["id"]
        if "result" in answer:
            assert reply.status == 200
            assert ("Mcp-Session-Id" in reply.headers) == (self.era == "legacy")
        if message["method"] == "initialize":
            self.session = reply.headers["Mcp-Session-Id"]
        return answer

    def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        reply = self.post({"jsonrpc": "2.0", "method": method, "params": params or {}})
        assert (reply.status, reply.body) == (202, b"")

    def _open(self, method: str, body: bytes | None, headers: Mapping[str, str]) -> Stream:
        self._streams.append(self.server.open(method, body, headers, self._source))
        return self._streams[-1]

    def follow(self) -> Stream:
        return self._open("GET", None, self.headers())

    def listen(self, identifier: str | int = "listening", **wanted: Any) -> Stream:
        """Open a `subscriptions/listen` stream, and wait for its acknowledgement."""
        message = {**self.message("subscriptions/listen", {"notifications": wanted}), "id": identifier}
        stream = self._open("POST", json.dumps(message).encode(), self.headers(message))
        first = stream.next()
        assert stream.status == 200 and first is not None
        assert first["method"] == "notifications/subscriptions/acknowledged"
        assert first["params"]["_meta"][META + "subscriptionId"] == identifier
        return stream

    def hear(self, *uris: str) -> Stream:
        """Subscribe to all list changes and to these URIs, as the era requires."""
        self.every_skill()
        if self.era == "modern":
            kinds = (f"{each}ListChanged" for each in ("skills", "resources", "tools", "prompts"))
            return self.listen(**dict.fromkeys(kinds, True), resourceSubscriptions=list(uris))
        for uri in uris:
            self.request("resources/subscribe", {"uri": uri})
        return self.follow()

    def delete(self) -> Reply:
        return self.server.send("DELETE", headers=self.headers())

    def close(self) -> None:
        """Close all streams, without ending the session."""
        for stream in self._streams:
            stream.close()


@contextmanager
def client(server: Target, era: Era, *, opened: bool = True, **options: Any) -> Iterator[HttpClient]:
    """Yield a client of this era after its handshake. Close its streams at the end."""
    out = HttpClient(server, era, **options)
    try:
        if opened:
            out.open()
        yield out
    finally:
        out.close()


def verify_files(reader: HttpClient, entry: Mapping[str, Any]) -> int:
    """Read each file of an entry, check its size and digest, and return the number of files."""
    for each in entry["resources"]:
        raw = reader.read(each["uri"])
        assert (len(raw), "sha256:" + hashlib.sha256(raw).hexdigest()) == (each["size"], each["digest"])
    return len(entry["resources"])
