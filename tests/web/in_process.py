"""`serve` and `ui` over HTTP in this process, for tests that are not about sockets, signals or processes."""

from __future__ import annotations

import hashlib
import http.client
import itertools
import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch
from urllib.parse import unquote

import anyio
from anyio.from_thread import BlockingPortal, start_blocking_portal
from starlette.types import ASGIApp, Message, Scope

from dispatching import built_server
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.views import Views
from mcp_skills_server.catalog.watch import Watcher
from mcp_skills_server.commands import serve
from mcp_skills_server.commands.features.feature import Server
from mcp_skills_server.commands.logs import ClientLineRateLimit
from mcp_skills_server.runtime.runtime import Runtime
from mcp_skills_server.server.attachment import Attachment
from mcp_skills_server.server.requests import Settings
from mcp_skills_server.web.app import HttpApp, make_app, mcp_part
from mcp_skills_server.web.front import FrontSettings
from mcp_skills_server.web.policy import make_policy
from mcp_skills_server.web.probes import Probes
from mcp_skills_server.web.ui.app import WebPage
from mcp_skills_server.web.ui.session import PageSessions
from web.http_wire import Reply, Stream, Target, wait_until
from wire import DEADLINE

_ports = itertools.count(1)
APPS: dict[str, App] = {}
"""The applications by the origin of their page, for `fetch`."""


class Response(Stream):
    """The response of the application to a request, as it arrives."""

    def __init__(self, portal: BlockingPortal, app: ASGIApp, scope: Scope, body: bytes) -> None:
        super().__init__()
        self.headers, self.body = http.client.HTTPMessage(), b""
        self._app, self._request = app, [body]
        self._portal, self._has_left = portal, portal.call(anyio.Event)
        self._has_started = threading.Event()
        self._ended = portal.start_task_soon(self._run, scope)
        assert self._has_started.wait(DEADLINE)

    async def _receive(self) -> Message:
        if self._request:
            return {"type": "http.request", "body": self._request.pop(), "more_body": False}
        await self._has_left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            for name, value in message.get("headers", ()):
                self.headers[name.decode()] = value.decode("latin-1")
            self._has_started.set()
            return
        whole, seen = self.body + message.get("body", b""), self.body.rfind(b"\n") + 1
        self.body = whole
        if self.headers.get_content_type() == "text/event-stream":
            for line in whole[seen : whole.rfind(b"\n") + 1].splitlines():
                self.take(line)
        self.whole = None if message.get("more_body") else True

    async def _run(self, scope: Scope) -> None:
        try:
            await self._app(scope, self._receive, self._send)
        finally:
            self.whole = self.whole or False
            self._has_started.set()
            self.messages.put(None)

    def wait(self) -> Reply:
        self._ended.result(DEADLINE)
        return Reply(self.status, self.headers, self.body)

    def close(self) -> None:
        self._portal.call(self._has_left.set)
        self._ended.result(DEADLINE)


class App(Target, logging.Handler):
    """An application, and the log of its package."""

    def __init__(self, portal: BlockingPortal, app: HttpApp, port: int) -> None:
        Target.__init__(self)
        logging.Handler.__init__(self)
        self.addFilter(ClientLineRateLimit())
        self._portal, self._app = portal, app
        self.port = port or next(_ports)
        self.origin = f"http://127.0.0.1:{self.port}"
        self.server: Server | None = None

    def emit(self, record: logging.LogRecord) -> None:
        self.log(f"{record.levelname}: {record.getMessage()}\n")

    def _request(
        self, method: str, path: str, body: bytes | None, given: Sequence[tuple[str, str]], source: str
    ) -> Response:
        headers = [(name.lower().encode(), value.encode("latin-1")) for name, value in given]
        if b"host" not in dict(headers):
            headers.append((b"host", self.origin.removeprefix("http://").encode()))
        if body is not None:
            headers.append((b"content-length", str(len(body)).encode()))
        raw, _, query = path.partition("?")
        scope = {
            "type": "http", "method": method, "path": unquote(raw), "raw_path": raw.encode(),
            "query_string": query.encode(), "headers": headers, "client": (source, 1),
            "server": ("127.0.0.1", self.port), "scheme": "http", "root_path": "", "http_version": "1.1",
            "asgi": {"version": "3.0"},
        }  # fmt: skip
        return Response(self._portal, self._app.front, scope, body or b"")

    def exchange(
        self, method: str, path: str, body: bytes | None, headers: list[tuple[str, str]], source: str
    ) -> Reply:
        reply = self._request(method, path, body, headers, source).wait()
        return Reply(reply.status, reply.headers, b"") if method == "HEAD" else reply

    def open(self, method: str, body: bytes | None, headers: Mapping[str, str], source: str = "127.0.0.1") -> Response:
        return self._request(method, "/mcp", body, [*headers.items()], source)

    def reload(self) -> None:
        """Reload the files of the operator, as SIGHUP does, in a thread that may hang."""
        assert self.server is not None
        thread = threading.Thread(target=self.server.reloader.reload, daemon=True)
        thread.start()
        thread.join(DEADLINE)
        assert not thread.is_alive(), "the reload hangs"
        for feature in self.server.features:
            if feature.reopen is not None:
                feature.reopen()

    def end_streams(self) -> None:
        """End all streams, as the shutdown does."""
        self._portal.call(self._app.end_streams)


@contextmanager
def running(app: HttpApp, port: int = 0) -> Iterator[App]:
    """Run an application in an event loop of its own, and record the log."""
    with ExitStack() as stack:
        stack.callback(_join_search)
        portal = stack.enter_context(start_blocking_portal())
        opened = App(portal, app, port)
        APPS[opened.origin] = opened
        stack.callback(APPS.pop, opened.origin)
        logger = logging.getLogger("mcp_skills_server")
        stack.callback(logger.setLevel, logger.level)
        logger.setLevel(logging.DEBUG)
        stack.callback(logger.removeHandler, opened)
        logger.addHandler(opened)
        stack.enter_context(portal.wrap_async_context_manager(app.running()))
        stack.callback(opened.end_streams)
        yield opened


@contextmanager
def app_serving(
    *arguments: str | Path,
    environment: Mapping[str, str] | None = None,
    ready: bool = True,
    gate: threading.Event | None = None,
) -> Iterator[App]:
    """Do what `http_serving` does without a process; wait until the server is `ready`.

    With a `gate` the first scan waits for this event, and the server is not ready.
    """
    load = Registry.load

    def load_behind_gate(registry: Registry, *more: Any) -> None:
        assert gate is None or gate.wait(DEADLINE)
        load(registry, *more)

    with ExitStack() as stack:
        stack.enter_context(patch.object(Registry, "load", load_behind_gate))
        http = ("--transport", "http", "--port", "0")
        server = stack.enter_context(built_server(*http, *arguments, environment=environment))
        assert server.http is not None
        app = stack.enter_context(running(serve.make_http_app(server, server.http), server.options.port))
        app.server = server
        server.opened.start(server.options.first_load)
        if ready and gate is None:
            app.until_ready()
            if "--ui" in arguments:
                wait_until(lambda: b"checking " not in app.send("GET", "/ui/problems").body, "never checked")
        yield app
        if gate is not None:
            gate.set()


@contextmanager
def local_page(*roots: Path, **settings: Any) -> Iterator[tuple[str, str]]:
    """Do what `ui` does, and sign in. Yield the origin, for `fetch`, and the session cookie."""
    secret = "made-up-one-time-secret"
    registry = Registry(roots)
    runtime, views, chosen = Runtime(registry), Views(registry), Settings(**settings)
    front = FrontSettings(make_policy("127.0.0.1", (), (), ()))
    secret_hash = hashlib.sha256(secret.encode()).digest()
    page = WebPage(runtime, chosen, views, PageSessions(front.policy, front.limits.quotas, secret_hash=secret_hash))
    attachment = Attachment(registry, chosen, Watcher(registry), runtime, views=views)
    built = make_app([mcp_part(attachment), page.part()], Probes(registry, lambda _: False), front, runtime.events)
    with running(built) as app:
        app.until_ready()
        reply = app.send("GET", f"/ui/enter?once={secret}")
        cookie = (reply.headers["Set-Cookie"] or "").partition(";")[0]
        wait_until(lambda: b"checking " not in app.send("GET", "/ui/problems", headers={"Cookie": cookie}).body)
        yield app.origin, cookie


def _join_search() -> None:
    """Wait for the thread that prepares the search, which reads the roots."""
    for thread in threading.enumerate():
        if thread.name == "skills-search":
            thread.join(DEADLINE)
