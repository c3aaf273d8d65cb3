"""A listener of its own for probes and metrics, in threads: it does not wait behind requests."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from io import BytesIO
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from mcp_skills_server.errors import REPEATS

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

    from mcp_skills_server.web.probes import Probe

logger = logging.getLogger(__name__)

_MAX_HEAD: Final = 64 << 10
_MAX_CONNECTIONS: Final = 8
"""Concurrent connections: others wait, and take no file descriptor from `/mcp`."""
_TIMEOUT_S: Final = 2.0
"""Seconds in which the head of a request must arrive, and then the response be received."""


class ProbeListener:
    """The listener at `--probe-address`, bound when made; may raise OSError.

    Args:
        admits: decides on the Host header, against DNS rebinding; plain probes admit any.
        render: returns the body and the type of metrics for an Accept header; None without metrics.
    """

    def __init__(
        self,
        host: str,
        port: int,
        admits: Callable[[str], bool],
        render: Callable[[str], tuple[bytes, str]] | None,
    ) -> None:
        self._server = _Server(host, port)
        self._admits = admits
        self._render = render
        self._probes: Mapping[str, Probe] = {}

    def start(self, probes: Mapping[str, Probe]) -> None:
        """Answer these probes by path, and `/metrics`, from daemon threads."""
        self._probes = probes
        self._server.set_app(self._answer)
        threading.Thread(
            target=self._server.serve_forever, name="skills-probes", daemon=True
        ).start()

    def _answer(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path, host = environ["PATH_INFO"], environ.get("HTTP_HOST", "")
        probe, is_verbose = self._probes.get(path), bool(environ.get("QUERY_STRING"))
        kind, status, body = "text/plain", 404, b"Not Found\n"
        if (probe is None or is_verbose) and not self._admits(host):
            message = "refused Host %.100r at --probe-address; --allowed-host admits it"
            logger.warning(message, host, extra=REPEATS)
            status, body = 403, b"This Host is not served here; --allowed-host admits it\n"
        elif probe is not None:
            status, text = probe(None, is_verbose)
            body = f"{text}\n".encode()
        elif path == "/metrics" and self._render is not None:
            status = 200
            body, kind = self._render(environ.get("HTTP_ACCEPT", ""))
        start_response(f"{status} {HTTPStatus(status).phrase}", [("Content-Type", kind)])
        return [body]


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, host: str, port: int) -> None:
        if ":" in host:
            self.address_family = socket.AF_INET6
        self._free = threading.BoundedSemaphore(_MAX_CONNECTIONS)
        super().__init__((host, port), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a connection in a thread, once there are few."""
        self._free.acquire()
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer a connection in this thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: object, client_address: object) -> None:
        """Log no connection that was lost or idle."""


class _Handler(WSGIRequestHandler):
    def handle(self) -> None:
        """Read the head of the request, and answer it."""
        head, deadline = b"", time.monotonic() + _TIMEOUT_S
        while b"\r\n\r\n" not in head:
            self.connection.settimeout(max(0.001, deadline - time.monotonic()))
            more = self.connection.recv(_MAX_HEAD - len(head))
            if not more:
                return  # the client disconnected, or the head is too long
            head += more
        self.connection.settimeout(_TIMEOUT_S)
        self.rfile = BytesIO(head)
        super().handle()

    def address_string(self) -> str:
        """Return the address without a look-up of its name."""
        return str(self.client_address[0])

    def log_message(self, *_: object) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Log no requests."""
