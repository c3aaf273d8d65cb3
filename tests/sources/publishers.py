"""An HTTP server whose routes send any bytes, as an honest, broken or hostile publisher would.

A route is a whole response in bytes, or a function that takes the request and yields bytes.
Stalled routes end when the server is closed.
"""

from __future__ import annotations

import hashlib
import json
import socket
import socketserver
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from http.client import parse_headers
from typing import Any, Self
from urllib.parse import quote

from mcp_skills_server.dialects.wellknown import DIRECTORY, DIRECTORY_0_1, SCHEMA
from mcp_skills_server.format import archive

INDEX = f"{DIRECTORY}index.json"
INDEX_0_1 = f"{DIRECTORY_0_1}index.json"


@dataclass(frozen=True)
class ReceivedRequest:
    """A request: its path has the query, and its header names are in lower case."""

    path: str
    headers: Mapping[str, str]
    method: str
    body: bytes


Route = bytes | Callable[[ReceivedRequest], Iterable[bytes]]


def respond_with(body: bytes = b"", status: int = 200, *, length: int | None = None, **headers: str) -> bytes:
    """Return a response. `length` may be false; headers are given as `content_type="text/html"`."""
    fields = {"content-length": str(len(body) if length is None else length)}
    fields |= {name.replace("_", "-"): value for name, value in headers.items()}
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"HTTP/1.1 {status} Reason\r\n{head}\r\n".encode("latin-1") + body


def redirect(to: str, status: int = 302) -> bytes:
    return respond_with(b"", status, location=to)


def skill_md(name: str, body: str = "Read on.") -> bytes:
    return f"---\nname: {name}\ndescription: Does {name}.\n---\n\n{body}\n".encode()


def digest(raw: bytes) -> str:
    return "sha256:" + hashlib.sha256(raw).hexdigest()


def entry(name: str, raw: bytes, url: str, **changed: Any) -> dict[str, Any]:
    """Return an entry of an index 0.2.0."""
    kind = "skill-md" if raw.startswith(b"---") else "archive"
    fields = {"name": name, "type": kind, "description": f"Does {name}.", "url": url}
    return {**fields, "digest": digest(raw), **changed}


def index_of(entries: Iterable[Any]) -> bytes:
    return json.dumps({"$schema": SCHEMA, "skills": list(entries)}).encode()


class _Connection(socketserver.StreamRequestHandler):
    """Handler of one connection, which ends after a route that is a function."""

    timeout = 8.0  # a client on a busy machine reads slowly

    def __init__(self, site: Publisher, *given: Any) -> None:
        self._site = site
        super().__init__(*given)

    def handle(self) -> None:
        self._site.connections.append(self.connection)
        with suppress(OSError):
            while request := self._request():
                self._site.requests.append(request)
                self._site.reached.set()
                route = self._site._route(request)
                for piece in [route] if isinstance(route, bytes) else route(request):
                    self.wfile.write(piece)
                if not isinstance(route, bytes):
                    return

    def _request(self) -> ReceivedRequest | None:
        first = self.rfile.readline().decode("latin-1").split()
        if not first:
            return None
        headers = {name.lower(): value for name, value in parse_headers(self.rfile).items()}
        return ReceivedRequest(first[1], headers, first[0], self.rfile.read(int(headers.get("content-length", 0))))


class _Server(socketserver.ThreadingTCPServer):
    request_queue_size = 128


class Publisher:
    """A site on a free port. `requests` has all so far; `headers` are those of the index."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.routes: dict[str, Route] = {}
        self.entries: list[Any] = []
        self.headers: dict[str, str] = {}
        self.requests: list[ReceivedRequest] = []
        self.connections: list[socket.socket] = []
        self.closing = threading.Event()
        self.reached = threading.Event()
        self._server = _Server(("127.0.0.1", 0), partial(_Connection, self))
        self._scheme = "http"
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
            self._scheme = "https"
        self.port = self._server.socket.getsockname()[1]
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self._server.shutdown()
        for connection in self.connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self.port}"

    @property
    def paths(self) -> list[str]:
        return [each.path for each in self.requests]

    def add(self, name: str, raw: bytes | None = None, route: Route | None = None, **changed: Any) -> bytes:
        """Publish a skill, by default a lone SKILL.md; `route` is its response, by default the bytes."""
        raw = skill_md(name) if raw is None else raw
        self.entries = [each for each in self.entries if not isinstance(each, dict) or each.get("name") != name]
        self.entries.append(entry(name, raw, f"/a/{name}", **changed))
        self.routes[f"/a/{name}"] = respond_with(raw) if route is None else route
        return raw

    def pack(self, name: str, files: Mapping[str, tuple[bytes, bool]], **changed: Any) -> bytes:
        """Publish a skill as an archive."""
        return self.add(name, archive.pack(files)[1], **changed)

    def list_files(self, skills: Mapping[str, Mapping[str, bytes]]) -> None:
        """Replace the index by one of version 0.1.0 with these files, by skill and path."""
        listed = [{"name": name, "description": f"Does {name}.", "files": [*files]} for name, files in skills.items()]
        self.routes[INDEX] = respond_with(b"", 404)
        self.routes[INDEX_0_1] = respond_with(json.dumps({"skills": listed}).encode())
        for name, files in skills.items():
            for path, raw in files.items():
                self.routes[f"{DIRECTORY_0_1}{name}/{quote(path)}"] = respond_with(raw)

    def _route(self, request: ReceivedRequest) -> Route:
        path = request.path.partition("?")[0]
        if path == INDEX and path not in self.routes:
            body = index_of(self.entries)
            tag = f'"{digest(body)}"'
            if request.headers.get("if-none-match") == tag:
                return respond_with(b"", 304, etag=tag, **self.headers)
            return respond_with(body, content_type="application/json", etag=tag, **self.headers)
        return self.routes.get(path, respond_with(b"Nothing here.", 404))

    def stall(self, start: bytes = b"") -> Callable[[ReceivedRequest], Iterator[bytes]]:
        """Return a route that sends `start`, and then nothing."""

        def route(_: ReceivedRequest) -> Iterator[bytes]:
            yield start
            self.closing.wait()

        return route

    def drip(self, response: bytes, seconds: float = 0.05) -> Callable[[ReceivedRequest], Iterator[bytes]]:
        """Return a route that sends one byte at a time."""

        def route(_: ReceivedRequest) -> Iterator[bytes]:
            for byte in response:
                yield bytes([byte])
                if self.closing.wait(seconds):
                    return

        return route


def respond_and_close(response: bytes) -> Callable[[ReceivedRequest], Iterator[bytes]]:
    """Return a route that sends `response` and closes the connection."""

    def route(_: ReceivedRequest) -> Iterator[bytes]:
        yield response

    return route


def endless(start: bytes, part: bytes) -> Callable[[ReceivedRequest], Iterator[bytes]]:
    """Return a route that sends `part` for ever."""

    def route(_: ReceivedRequest) -> Iterator[bytes]:
        yield start
        while True:
            yield part

    return route


def with_tools(tools: Mapping[str, Any], *, is_legacy: bool = False) -> Route:
    """Return the answers of an MCP server with tools of these input schemas, in one era, as JSON or as a stream."""
    server = {"name": "tools", "version": "1"}
    hello: dict[str, Any] = {
        "resultType": "complete", "supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}},
        "ttlMs": 0, "cacheScope": "private", "_meta": {"io.modelcontextprotocol/serverInfo": server},
    }  # fmt: skip
    if is_legacy:
        hello = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": server}
    methods = {"initialize"} if is_legacy else {"server/discover"}

    def answer(request: ReceivedRequest) -> list[bytes]:
        message = json.loads(request.body or b"{}")
        if request.method != "POST" or "id" not in message:
            return [respond_with(status=405 if request.method == "GET" else 202, connection="close")]
        reply: dict[str, Any] = {"error": {"code": -32601, "message": "Method not found"}}
        if message["method"] in methods:
            reply = {"result": hello}
        elif message["method"] == "tools/list":
            listed = [{"name": name, "inputSchema": schema} for name, schema in tools.items()]
            reply = {"result": {"resultType": "complete", "tools": listed, "ttlMs": 0, "cacheScope": "private"}}
        body = json.dumps({"jsonrpc": "2.0", "id": message["id"], **reply}).encode()
        if is_legacy:
            stream = b"event: message\ndata: " + body + b"\n\n"
            return [respond_with(stream, content_type="text/event-stream", mcp_session_id="s1", connection="close")]
        return [respond_with(body, content_type="application/json", connection="close")]

    return answer
