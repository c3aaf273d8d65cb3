"""A client whose requests are dispatched in this process: for rules of the protocol, which no transport changes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import anyio
from anyio.from_thread import BlockingPortal, start_blocking_portal

from mcp_skills_server.access.quota import LOCAL_REQUESTER
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.dialects.jsonrpc import InvalidMessage, Message, decode_message
from mcp_skills_server.runtime.runtime import Runtime
from mcp_skills_server.server.attachment import Attachment
from mcp_skills_server.server.dispatch import McpSession
from mcp_skills_server.server.requests import Settings
from wire import DEADLINE, Client, Era


class Direct(Client):
    """A client of one session, whose messages pass no transport."""

    def __init__(self, portal: BlockingPortal, attachment: Attachment, dialect: str, *, era: Era, **how: Any) -> None:
        super().__init__(era, **how)
        self.dialect = dialect
        self.session = McpSession(attachment, send=self._keep)
        self.notifications: list[dict[str, Any]] = []
        self._portal = portal

    async def _keep(self, method: str, params: dict[str, Any] | None) -> None:
        self.notifications.append({"method": method, "params": params})

    def exchange(self, message: Mapping[str, Any]) -> dict[str, Any]:
        return json.loads(self._portal.call(self._exchange, json.dumps(message).encode()))

    async def _exchange(self, raw: bytes) -> bytes:
        message = decode_message(raw)
        if isinstance(message, InvalidMessage):
            return message.response
        request = self.session.start(message, LOCAL_REQUESTER, self._keep, is_shared=True)
        if isinstance(request, InvalidMessage):
            return request.response
        with anyio.fail_after(DEADLINE):
            answer = await self.session.answer(request)
        self.session.finish(request)
        return answer.raw

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
    **settings: Any,
) -> Iterator[Direct]:
    """Dispatch a client's requests about these roots, after the handshake if `opened`; `settings` of `Settings`.

    A loaded registry may stand for the roots.
    """
    if registry is None:
        registry = Registry(roots)
        registry.load()
    attachment = Attachment(registry, Settings(**settings), None, Runtime(registry))
    with ExitStack() as stack:
        portal = stack.enter_context(start_blocking_portal())
        stack.enter_context(portal.wrap_async_context_manager(attachment.running()))
        dialect = settings.get("dialect", "auto")
        client = Direct(portal, attachment, dialect, era=era, extension=extension, host=host)
        stack.callback(portal.call, client.session.close)
        if opened:
            client.open()
        yield client
