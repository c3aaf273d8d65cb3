"""Which worker answers: most requests any, and what has a state in one worker that one.

Ids of legacy sessions, handles of the tools and names of blobs end with the number of the worker that minted them. The
number is a hint and proves nothing: whatever it says, the request is judged by the worker that it comes to as if it had
come there by itself, and what is not there is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, Protocol, cast
from weakref import ref

from starlette.types import ASGIApp, Receive, Scope, Send

from mcp_skills_server.dialects.runtime import SESSION as HANDLE
from mcp_skills_server.server.messages import Message
from mcp_skills_server.web.workers.handover import give

CONNECTION: Final = "mcp_skills_server.connection"
"""Where a request's `state` has a weak reference to its connection, if that can be given away."""

_SESSION_ID: Final = b"mcp-session-id"
_NUMBER: Final = re.compile(r"_w(\d{1,3})\Z", re.ASCII)
_BLOB: Final = re.compile(rb'"blob:[0-9a-f]{32}_w(\d{1,3})"')
_NOT_REPEATED: Final = frozenset((b"content-length", b"transfer-encoding", b"expect"))
"""The body goes along whole, and the client has heard that it is wanted."""


def mark(number: int) -> str:
    """What the ids of this worker end with."""
    return f"_w{number}"


def worker_of(identifier: object) -> int | None:
    """The worker that an id names; None where it names none, or is no id at all."""
    found = _NUMBER.search(identifier) if isinstance(identifier, str) else None
    return None if found is None else int(found[1])


class Connection(Protocol):
    """A connection that can be given away while a request of it has no answer."""

    async def hold(self) -> tuple[int, bytes] | None:
        """Read no more, and send what was answered; the descriptor, and what was read that belongs to later requests.

        None while a part of the request is still to come, which would be taken for a request of its own.
        """
        ...

    def resume(self) -> None:
        """Go on after all."""
        ...

    def leave(self) -> None:
        """Have nothing to do with it any more."""
        ...


class Routes:
    """Sends requests to the workers that have what they are about.

    Args:
        own: the number of this worker.
        count: how many workers there are, numbered from 0.
        paths: where worker N takes connections: this, with N put in for {}.
    """

    def __init__(self, own: int, count: int, paths: str) -> None:
        self._own = own
        self._count = count
        self._paths = paths

    async def message(self, message: Message, body: bytes, scope: Scope, receive: Receive) -> bool:
        """Give a POST of MCP to the worker that has its session, or its handle; whether it has left."""
        session = _session_of(scope)
        if session is not None:
            return await self.to(worker_of(session), scope, body, receive)
        if message.kind != "request" or message.fields["method"] != "tools/call":
            return False
        params: object = message.fields.get("params")
        given = cast("Mapping[str, Any]", params).get("arguments") if isinstance(params, dict) else None
        handle = cast("Mapping[str, Any]", given).get(HANDLE) if isinstance(given, dict) else None
        return await self.to(worker_of(handle), scope, body, receive)

    async def session(self, scope: Scope, receive: Receive) -> bool:
        """Give a GET or a DELETE of MCP to the worker that has its session; whether it has left."""
        return await self.to(worker_of(_session_of(scope)), scope, b"", receive)

    async def call(self, body: bytes, scope: Scope, receive: Receive) -> bool:
        """Give a POST of the Skills Protocol to the worker that has the first blob it names; whether it has left."""
        found = _BLOB.search(body)
        return found is not None and await self.to(int(found[1]), scope, body, receive)

    async def to(self, number: int | None, scope: Scope, body: bytes, receive: Receive) -> bool:
        """Give a request, with its body where it has one, to this worker; whether it has left."""
        if number is None or number == self._own or number >= self._count:
            return False
        reference: ref[Connection] | None = scope.get("state", {}).get(CONNECTION)
        connection = reference() if reference is not None else None
        held = await connection.hold() if connection is not None else None
        if connection is None or held is None:
            return False
        descriptor, later = held
        if not await give(self._paths.format(number), descriptor, _request(scope, body) + later):
            connection.resume()
            return False
        connection.leave()
        while (await receive())["type"] != "http.disconnect":
            pass
        return True


class ByFirst:
    """ASGI: has requests without a body answered by the first worker, and here while it is away.

    Args:
        routes: what gives them to it.
        app: answers here.
    """

    def __init__(self, routes: Routes, app: ASGIApp) -> None:
        self._routes = routes
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Give it away, or answer it."""
        if not await self._routes.to(0, scope, b"", receive):
            await self._app(scope, receive, send)


def _session_of(scope: Scope) -> str | None:
    return next((value.decode("latin-1") for name, value in scope["headers"] if name == _SESSION_ID), None)


def _request(scope: Scope, body: bytes) -> bytes:
    """The request once more, as its client might have sent it."""
    query: bytes = scope["query_string"]
    target: bytes = scope["raw_path"] + (b"?" + query if query else b"")
    version: str = scope["http_version"]
    headers = [(name, value) for name, value in scope["headers"] if name not in _NOT_REPEATED]
    if body:
        headers.append((b"content-length", str(len(body)).encode()))
    first = b"%b %b HTTP/%b\r\n" % (scope["method"].encode(), target, version.encode())
    return b"".join((first, *(b"%b: %b\r\n" % each for each in headers), b"\r\n", body))
