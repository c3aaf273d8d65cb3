"""The HTTP application in this process, for tests that are not about sockets, signals, processes or options."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import httpx2
from anyio.from_thread import BlockingPortal, start_blocking_portal
from starlette.types import ASGIApp

from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.views import Views
from mcp_skills_server.catalog.watch import Watcher
from mcp_skills_server.rpc.methods import Methods
from mcp_skills_server.runtime.runtime import Runtime
from mcp_skills_server.server import eras
from mcp_skills_server.server.attachment import Attachment
from mcp_skills_server.server.dispatch import McpSession
from mcp_skills_server.server.requests import Settings
from mcp_skills_server.web.app import make_app, mcp_part
from mcp_skills_server.web.front import FrontSettings
from mcp_skills_server.web.mcp import McpEndpoint
from mcp_skills_server.web.part import Part
from mcp_skills_server.web.policy import make_policy
from mcp_skills_server.web.probes import Probes
from mcp_skills_server.web.published import publishing_part
from mcp_skills_server.web.rpc import rpc_part
from mcp_skills_server.web.sessions import HttpSessions
from mcp_skills_server.web.ui.app import WebPage
from mcp_skills_server.web.ui.session import PageSessions
from web.http_wire import Reply, wait_until
from wire import DEADLINE


class App:
    """The application with the requests of `Server`, whose responses are whole: it has no streams."""

    prefix = ""

    def __init__(self, portal: BlockingPortal, app: ASGIApp) -> None:
        self._portal = portal
        self._app = app

    def send(
        self,
        method: str = "POST",
        path: str = "/mcp",
        body: bytes | None = None,
        headers: list[tuple[str, str]] | Mapping[str, str | None] | None = None,
        source: str = "127.0.0.1",
    ) -> Reply:
        """Send a request from this address; a header of None is left out."""
        given = list(headers.items()) if isinstance(headers, Mapping) else list(headers or ())
        sent = [(name, value) for name, value in given if value is not None]
        request = httpx2.Request(method, f"http://localhost{path}", headers=sent, content=body)
        return self._portal.call(self._exchange, request, source)

    async def _exchange(self, request: httpx2.Request, source: str) -> Reply:
        transport = httpx2.ASGITransport(self._app, client=(source, 0))
        response = await transport.handle_async_request(request)
        headers = http.client.HTTPMessage()
        for name, value in response.headers.multi_items():
            headers[name] = value
        return Reply(response.status_code, headers, await response.aread())


@contextmanager
def app_serving(
    *roots: Path, page: bool = False, grace_s: float = 86400, origins: tuple[str, ...] = (), **settings: object
) -> Iterator[App]:
    """Serve and follow these roots, with the page or without; `settings` of `Settings`."""
    with ExitStack() as stack:
        registry = stack.enter_context(Registry(roots))
        runtime, views, chosen = Runtime(registry), Views(registry), Settings(**settings)  # type: ignore[arg-type]
        front = FrontSettings(make_policy("127.0.0.1", (), origins, ()))
        attachment = Attachment(registry, chosen, Watcher(registry), runtime, views=views)
        sessions = HttpSessions(partial(McpSession, attachment, era=eras.LEGACY), 1000, 1800)
        parts: list[Part] = [
            mcp_part(attachment, McpEndpoint(attachment, sessions, front.limits.concurrency, 1 << 20)),
            publishing_part(views, front.policy, is_open=False, alone=False, grace_s=grace_s),
            rpc_part(Methods(runtime, views=views), front.limits.rate, 1 << 20),
        ]
        if page:
            parts.append(WebPage(runtime, chosen, views, PageSessions(front.policy, front.limits.quotas)).part())
        app = make_app(parts, Probes(registry, views.is_admin), front, runtime.events)
        stack.callback(_join_search)
        portal = stack.enter_context(start_blocking_portal())
        stack.enter_context(portal.wrap_async_context_manager(app.running()))
        opened = App(portal, app.front)
        wait_until(lambda: opened.send("GET", "/readyz").status == 200, "it was never ready")
        if page:
            wait_until(lambda: b"checking " not in opened.send("GET", "/ui/problems").body, "never checked")
        yield opened


def _join_search() -> None:
    """Wait for the thread that prepares the search, which reads the roots."""
    for thread in threading.enumerate():
        if thread.name == "skills-search":
            thread.join(DEADLINE)
