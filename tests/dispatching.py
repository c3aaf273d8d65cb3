"""A client whose requests are dispatched in this process: for rules of the protocol, which no transport changes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import anyio
import click
from anyio.from_thread import BlockingPortal, start_blocking_portal

from mcp_skills_server.access.quota import LOCAL_REQUESTER
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.watch import Watcher
from mcp_skills_server.commands import serve
from mcp_skills_server.commands.features.feature import Feature, Server
from mcp_skills_server.commands.features.table import FEATURES
from mcp_skills_server.commands.fields import Grouped, takes
from mcp_skills_server.commands.options import optional_roots
from mcp_skills_server.commands.serve_options import ServeOptions
from mcp_skills_server.dialects.jsonrpc import InvalidMessage, Message, decode_message
from mcp_skills_server.runtime.runtime import Runtime, RuntimeSettings
from mcp_skills_server.runtime.session_tickets import TicketSessions
from mcp_skills_server.server.attachment import Attachment
from mcp_skills_server.server.dispatch import McpSession
from mcp_skills_server.server.requests import Settings
from wire import Era, NotifiedClient


class Direct(NotifiedClient):
    """A client of one session, whose messages pass no transport."""

    def __init__(self, portal: BlockingPortal, attachment: Attachment, *, era: Era, **how: Any) -> None:
        super().__init__(era, **how)
        self.session = McpSession(attachment, send=self._keep)
        self._portal, self._events = portal, attachment.events
        self._answers: dict[int, Future[bytes]] = {}

    async def _keep(self, method: str, params: dict[str, Any] | None) -> None:
        self.notifications.put({"jsonrpc": "2.0", "method": method} | ({} if params is None else {"params": params}))

    def start(self, method: str, params: Mapping[str, Any] | None = None) -> int:
        message = self.message(method, params)
        self._answers[message["id"]] = self._portal.start_task_soon(self._exchange, json.dumps(message).encode())
        return message["id"]

    def exchange(self, message: Mapping[str, Any]) -> dict[str, Any]:
        return json.loads(self._portal.call(self._exchange, json.dumps(message).encode()))

    async def _exchange(self, raw: bytes) -> bytes:
        message = decode_message(raw)
        if isinstance(message, InvalidMessage):
            return message.response
        request = self.session.start(message, LOCAL_REQUESTER, self._keep, is_pipe=True)
        if isinstance(request, InvalidMessage):
            return request.response
        answer = b""  # a cancelled request gets none
        with anyio.CancelScope() as work, self._events.serving():
            request.cancel = work.cancel
            answer = (await self.session.answer(request)).raw
        self.session.finish(request)
        return answer

    def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        message = decode_message(json.dumps({"jsonrpc": "2.0", "method": method, "params": params or {}}).encode())
        assert isinstance(message, Message)
        self._portal.call(self.session.receive_notification, method, message.fields["params"])


@contextmanager
def dispatching(
    *roots: Path,
    registry: Registry | None = None,
    era: Era = "legacy",
    extension: bool = False,
    opened: bool = True,
    host: str = "wire",
    watch: bool = False,
    runtime: RuntimeSettings | None = None,
    **settings: Any,
) -> Iterator[Direct]:
    """Dispatch a client's requests about these roots, after the handshake if `opened`; `settings` of `Settings`.

    A loaded registry may stand for the roots.
    """
    if registry is None:
        registry = Registry(roots)
        registry.load()
    watcher = Watcher(registry) if watch else None
    attachment = Attachment(registry, Settings(**settings), watcher, Runtime(registry, runtime))
    with _connected(attachment, era=era, extension=extension, host=host) as client:
        client.dialect = settings.get("dialect", "auto")
        if opened:
            client.open()
        yield client


@contextmanager
def _connected(attachment: Attachment, **how: Any) -> Iterator[Direct]:
    with ExitStack() as stack:
        portal = stack.enter_context(start_blocking_portal())
        stack.enter_context(portal.wrap_async_context_manager(attachment.running()))
        client = Direct(portal, attachment, **how)
        stack.callback(portal.call, client.session.close)
        stack.callback(portal.call, attachment.notifier.close)
        yield client


@click.command(cls=Grouped)
@optional_roots
@takes(ServeOptions, *FEATURES)
@click.pass_context
def _build(context: click.Context, options: ServeOptions, *features: Feature, roots: tuple[str, ...]) -> Server:
    return serve.make_server(context, roots, options, features)


@contextmanager
def built_server(*arguments: str | Path, environment: Mapping[str, str] | None = None) -> Iterator[Server]:
    """Build what `serve` with these arguments builds. The caller follows the roots."""
    with ExitStack() as stack:
        stack.enter_context(patch.object(serve, "settle_after_load"))  # it would freeze the objects of all tests
        with patch.dict(os.environ, environment or {}):
            context = _build.make_context("serve", [*map(str, arguments)])
            server: Server = _build.invoke(stack.enter_context(context))
        for feature in server.features:
            stack.callback(feature.stop)
        stack.callback(server.opened.stop)
        yield server


@contextmanager
def local_serving(
    *arguments: str | Path,
    era: Era = "legacy",
    extension: bool = False,
    opened: bool = True,
    host: str = "wire",
    environment: Mapping[str, str] | None = None,
) -> Iterator[Direct]:
    """Do what `serving` does without a process and pipes."""
    with built_server(*arguments, environment=environment) as server:
        options, registry = server.options, server.opened.registry
        attachment = Attachment(
            registry, server.settings, server.watcher, server.runtime, sessions=TicketSessions, views=server.views
        )
        server.opened.start(options.first_load)
        with _connected(attachment, era=era, extension=extension, host=host) as client:
            client.dialect = options.dialect
            if opened:
                client.open()
            yield client
