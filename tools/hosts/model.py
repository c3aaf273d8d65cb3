"""The scripted model: one HTTP server on loopback that speaks the APIs and records every request."""

from __future__ import annotations

import gzip
import json
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tools.hosts import answers, apis


@dataclass
class Recorded:
    """A request as it came. `api` is None for what asks the model for no turn."""

    method: str
    path: str
    body: Any
    api: apis.Api | None
    seen: apis.Seen | None


@dataclass
class Model:
    """What the server has seen, and what decides a turn."""

    decide: Callable[[apis.Seen], apis.Turn]
    requests: list[Recorded] = field(default_factory=list[Recorded])
    faults: list[str] = field(default_factory=list[str])
    lock: threading.Lock = field(default_factory=threading.Lock)
    url: str = ""

    def turns(self) -> list[Recorded]:
        """The requests of the conversation itself, which offer tools; the others ask for titles and the like."""
        return [each for each in self.requests if each.seen is not None and each.seen.tools]


@contextmanager
def serving(decide: Callable[[apis.Seen], apis.Turn]) -> Iterator[Model]:
    """The model at a free port of loopback, until the block ends."""
    model = Model(decide)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            model.requests.append(Recorded("GET", self.path, None, None, None))
            if "/models" in self.path:
                self._answer("application/json", b'{"object":"list","data":[],"models":[]}')
            else:
                self._answer("application/json", b"{}", 404)

        def do_HEAD(self) -> None:
            self._answer("application/json", b"")

        def do_POST(self) -> None:
            raw = self._body()
            try:
                body = json.loads(raw)
            except ValueError:
                body = None
            api = apis.api_of(self.path) if isinstance(body, dict) else None
            try:
                with model.lock:
                    self._turn(api, body)
            except Exception as error:  # what a host sends is its own; the run reports it by name
                model.faults.append(f"{self.path}: {error!r}")
                self._answer("application/json", b'{"error":{"message":"the scripted model failed"}}', 400)

        def _turn(self, api: apis.Api | None, body: Any) -> None:
            seen = apis.read(api, body) if api else None
            model.requests.append(Recorded("POST", self.path, body, api, seen))
            if api is None or seen is None:
                self._answer("application/json", b'{"input_tokens":1,"totalTokens":1}')
                return
            turn = model.decide(seen) if seen.tools else apis.Turn("{}")
            self._answer(*answers.write(api, self.path, body, turn, len(model.requests)))

        def _body(self) -> bytes:
            if "chunked" in self.headers.get("Transfer-Encoding", ""):
                raw = b""
                while size := int(self.rfile.readline().split(b";")[0], 16):
                    raw += self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()
            else:
                raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            encoding = self.headers.get("Content-Encoding", "")
            if encoding == "gzip":
                return gzip.decompress(raw)
            return zlib.decompress(raw) if encoding == "deflate" else raw

        def _answer(self, kind: str, raw: bytes, status: int = 200) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            del format, args

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    model.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield model
    finally:
        server.shutdown()
        server.server_close()
