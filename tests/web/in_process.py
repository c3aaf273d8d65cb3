"""The HTTP application in this process, for tests that are not about sockets, signals, processes or options."""

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
from urllib.parse import unquote

import anyio
from anyio.from_thread import BlockingPortal, start_blocking_portal
from starlette.types import ASGIApp, Message, Scope

from mcp_skills_server.access.quotas import Quotas
from mcp_skills_server.access.tokens import Tokens
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.report import report_to_log
from mcp_skills_server.catalog.watch import Watcher
from mcp_skills_server.commands.config_file import parse
from mcp_skills_server.commands.opening import make_views
from mcp_skills_server.commands.options import tokens_of
from mcp_skills_server.runtime.runtime import Runtime
from mcp_skills_server.server.requests import Settings
from mcp_skills_server.telemetry.log import log_requests
from mcp_skills_server.web.app import McpPart, make_app
from mcp_skills_server.web.part import Part
from mcp_skills_server.web.policy import make_policy
from mcp_skills_server.web.probes import Drain
from mcp_skills_server.web.published import Publisher
from mcp_skills_server.web.rpc import SkillsProtocolEndpoint
from mcp_skills_server.web.settings import HttpSettings, UiSettings
from mcp_skills_server.web.ui.app import PagePart
from web.http_wire import Reply, Stream, Target, wait_until
from wire import DEADLINE

_numbers = itertools.count(1)
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
    """The application, and the log of its package."""

    def __init__(self, portal: BlockingPortal, app: ASGIApp, parts: Sequence[Part]) -> None:
        Target.__init__(self)
        logging.Handler.__init__(self)
        self._portal, self._app, self._parts = portal, app, parts
        self.port = next(_numbers)
        self.origin = f"http://127.0.0.1:{self.port}"

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
        return Response(self._portal, self._app, scope, body or b"")

    def exchange(
        self, method: str, path: str, body: bytes | None, headers: list[tuple[str, str]], source: str
    ) -> Reply:
        reply = self._request(method, path, body, headers, source).wait()
        return Reply(reply.status, reply.headers, b"") if method == "HEAD" else reply

    def open(self, method: str, body: bytes | None, headers: Mapping[str, str], source: str = "127.0.0.1") -> Response:
        return self._request(method, "/mcp", body, [*headers.items()], source)

    def end_streams(self) -> None:
        """End all streams, as the shutdown does."""
        for part in self._parts:
            self._portal.call(part.end_streams)


class _HeldRegistry(Registry):
    """A registry whose first scan waits."""

    gate: threading.Event

    def load(self, *arguments: Any) -> None:
        assert self.gate.wait(DEADLINE)
        super().load(*arguments)


@contextmanager
def app_serving(
    *roots: Path,
    page: UiSettings | bool = False,
    publish: Mapping[str, Any] | None = {},
    grace_s: float = 86400,
    host: str = "127.0.0.1",
    hosts: Sequence[str] = (),
    origins: Sequence[str] = (),
    tokens: str | None = None,
    configuration: str = "",
    gate: threading.Event | None = None,
    http: Mapping[str, Any] = {},
    **settings: Any,
) -> Iterator[App]:
    """Serve and follow these roots.

    Args:
        page: whether there is the page, or its settings.
        publish: options of the `Publisher`; None for none.
        tokens: a comma-separated list of `name=token`.
        configuration: a file with grants and quotas.
        gate: an event for which the first scan waits. The application is yielded before.
        http: fields of `HttpSettings`.
        settings: fields of `Settings`.
    """
    configured = parse(configuration.encode(), "config.toml")
    known = Tokens(tokens_of(None, tokens))
    with ExitStack() as stack:
        registry = Registry(roots)
        if gate is not None:
            registry = _HeldRegistry(roots)
            registry.gate = gate
        runtime, chosen = Runtime(registry), Settings(**settings)
        report_to_log(registry, least=chosen.least)
        log_requests(runtime.events, logging.INFO)
        views = make_views(registry, configured, local=False)
        policy = make_policy(host, hosts, origins, known)
        over_http = HttpSettings(host, 0, policy, quotas=Quotas(configured.quotas), **http)
        parts: list[Part] = [SkillsProtocolEndpoint(runtime, views, allow_code=False)]
        if publish is not None:
            parts.append(Publisher(views, **{"is_open": False, "alone": False, "grace_s": grace_s, **publish}))
        if page:
            parts.append(PagePart(runtime, chosen, UiSettings() if page is True else page, views))
        for part in parts:
            over_http = part.configure(over_http)
        parts = [McpPart(runtime, chosen, over_http, Watcher(registry), views), *parts]
        app = make_app(runtime, over_http, views, parts, Drain(0))
        stack.callback(_join_search)
        portal = stack.enter_context(start_blocking_portal())
        portal.call(app.start)
        opened = App(portal, app, parts)
        logger = logging.getLogger("mcp_skills_server")
        stack.callback(logger.setLevel, logger.level)
        logger.setLevel(logging.DEBUG)
        stack.callback(logger.removeHandler, opened)
        logger.addHandler(opened)
        APPS[opened.origin] = opened
        stack.callback(APPS.pop, opened.origin)
        for part in parts:
            stack.enter_context(portal.wrap_async_context_manager(part.running()))
        if gate is None:
            opened.until_ready()
        if page and gate is None:
            wait_until(lambda: b"checking " not in opened.send("GET", "/ui/problems").body, "never checked")
        yield opened
        if gate is not None:
            gate.set()
        opened.end_streams()


@contextmanager
def local_page(*roots: Path, **settings: Any) -> Iterator[tuple[str, str]]:
    """Serve the page of `ui`, and sign in. Yield its origin, for `fetch`, and the session cookie."""
    secret = "made-up-one-time-secret"
    page = UiSettings(hashlib.sha256(secret.encode()).digest(), only=True)
    with app_serving(*roots, page=page, publish=None, **settings) as app:
        reply = app.send("GET", f"/ui/enter?once={secret}")
        cookie = (reply.headers["Set-Cookie"] or "").partition(";")[0]
        wait_until(lambda: b"checking " not in app.send("GET", "/ui/problems", headers={"Cookie": cookie}).body)
        yield app.origin, cookie


def _join_search() -> None:
    """Wait for the thread that prepares the search, which reads the roots."""
    for thread in threading.enumerate():
        if thread.name == "skills-search":
            thread.join(DEADLINE)
