"""MCP over HTTP in front of the SDK's session manager: messages are judged, and legacy sessions
have limits.

A message is judged before the SDK sees it, and refused with the code and id that it would get over
stdio, and the status 400. The SDK gets it serialized again, so that its parser cannot read it
differently.

Legacy sessions are shared among clients, and idle ones are evicted. The manager has no public way
to end a session, so one is ended by the DELETE that its client would send.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from copy import copy
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, cast

import anyio
from mcp.server.lowlevel.server import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types import HEADER_MISMATCH
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mcp_skills_server.access.principal import Principal
from mcp_skills_server.dialects import jsonrpc
from mcp_skills_server.dialects.jsonrpc import InvalidMessage, RequestId, duplicate, judge
from mcp_skills_server.errors import REPEATS
from mcp_skills_server.model.clients import client_of
from mcp_skills_server.server.entrance import Context, connection_of, counted, principal, scope_of
from mcp_skills_server.web.connections import client_to_evict
from mcp_skills_server.web.rates import refuse, send_error

if TYPE_CHECKING:
    from mcp.server.connection import Connection
    from mcp.server.context import CallNext, HandlerResult

logger = logging.getLogger(__name__)

_HANDSHAKE: Final = "mcp_skills_server.handshake"
"""Where the ASGI scope of a POST that is a handshake has what the client calls itself."""
_SESSION: Final = b"mcp-session-id"
_VERSION: Final = b"mcp-protocol-version"
_ENVELOPE: Final = "io.modelcontextprotocol/protocolVersion"
"""The key of `params._meta` that makes a request one of the modern era."""
_ID_S: Final = 1.0
"""Seconds to wait for an earlier request of the same id, which the SDK clears late."""
_SESSION_KEY: Final = "mcp_skills_server.session"
_NOT_FOUND: Final = {
    "jsonrpc": "2.0",
    "id": None,
    "error": {"code": -32001, "message": "Session not found"},
}
"""The TypeScript SDK's answer: hosts know by this code to open another session."""
_KEPT: Final = b"kept-"
"""Prefix of session ids whose clients never open another one."""
_QUOTA: Final = "sessions"


# Messages


class Messages:
    """ASGI middleware around the SDK's endpoint. It takes whole bodies."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._under_way: dict[tuple[bytes, str], anyio.Event] = {}
        """Requests by session and text of the id: the SDK keeps "1" and 1 in one place."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a message, or hand it on."""
        if scope["type"] != "http" or scope["method"] != "POST":
            # No events are kept. The SDK would answer this header with nothing at all; without it a
            # stream opens.
            headers = [
                header for header in scope.get("headers", ()) if header[0] != b"last-event-id"
            ]
            await self._app({**scope, "headers": headers}, receive, send)
            return
        first = await receive()
        if first["type"] != "http.request" or first.get("more_body"):
            return  # the client left in the middle of it
        found = judge(first.get("body", b""))
        del first
        headers = _first_headers(scope)
        if not isinstance(found, InvalidMessage) and _is_of_another_era(found, headers):
            reason = (
                "mcp-protocol-version header does not match the request envelope's protocol version"
            )
            found = InvalidMessage(HEADER_MISMATCH, reason, found.id)
        if isinstance(found, InvalidMessage):
            await _refuse(found, scope, receive, send)
            return
        session = headers.get(_SESSION)
        id_: RequestId | None = None
        if found.kind == "request":
            id_ = found.id
            if found.fields["method"] == "initialize":
                scope = {
                    **scope,
                    _HANDSHAKE: _object(_object(found.fields, "params"), "clientInfo").get("name"),
                }
        body: bytes | None = jsonrpc.dump(found.fields)
        del found  # a stream may last for days

        async def replay() -> Message:
            nonlocal body
            if body is None:
                return await receive()
            whole, body = body, None
            return {"type": "http.request", "body": whole, "more_body": False}

        if session is None or id_ is None:
            await self._app(scope, replay, send)
            return
        async with self._reserved(session, id_) as is_free:
            if is_free:
                await self._app(scope, replay, send)
            else:
                await _refuse(duplicate(id_), scope, receive, send)

    @asynccontextmanager
    async def _reserved(self, session: bytes, id_: RequestId) -> AsyncGenerator[bool]:
        """Reserve an id of a session; False if another request keeps it for a second."""
        place = session, str(id_)
        with anyio.move_on_after(_ID_S):
            while (other := self._under_way.get(place)) is not None:
                await other.wait()
        if place in self._under_way:
            yield False
            return
        mine = self._under_way[place] = anyio.Event()
        try:
            yield True
        finally:
            del self._under_way[place]
            mine.set()


def _first_headers(scope: Scope) -> dict[bytes, bytes]:
    """Return the headers of a request; of one that stands twice the first counts."""
    return dict(reversed(scope["headers"]))


def _is_modern(headers: Mapping[bytes, bytes]) -> bool:
    return headers.get(_VERSION, b"").decode("latin-1") not in ("", *HANDSHAKE_PROTOCOL_VERSIONS)


def _is_of_another_era(found: jsonrpc.Message, headers: Mapping[bytes, bytes]) -> bool:
    """Return whether a modern request comes with the headers of the legacy era (MCP-42)."""
    if _is_modern(headers) or found.kind != "request" or found.fields["method"] == "initialize":
        return False
    meta = _object(_object(found.fields, "params"), "_meta")
    return _ENVELOPE in meta and meta[_ENVELOPE] not in HANDSHAKE_PROTOCOL_VERSIONS


def _object(fields: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return the object at a key; an empty one where there is none."""
    found = fields.get(key)
    return cast("Mapping[str, Any]", found) if isinstance(found, dict) else {}


async def _refuse(refusal: InvalidMessage, scope: Scope, receive: Receive, send: Send) -> None:
    logger.debug("refused a message: %s", refusal.message)
    await Response(refusal.answer, 400, media_type="application/json")(scope, receive, send)


# Sessions


class _Session:
    """One legacy session. `id` is the SDK's; None until the handshake is answered."""

    def __init__(self, scope: Scope, prefix: bytes) -> None:
        self.id: bytes | None = None
        self.prefix = prefix
        self.user = scope.get("user")
        self.opener = _credential(scope)
        self.owner = counted(scope) or ""
        self.connection: Connection | None = None
        self.requests = 1
        self.idle_since = 0.0

    @property
    def name(self) -> bytes:
        """Return the id that the client knows."""
        return self.prefix + (self.id or b"")


class HttpSessions:
    """Passes requests on to the SDK, and keeps the number of sessions within its limits.

    Args:
        server: what the sessions are of.
        idle_timeout: seconds without a request after which a session ends.
        max_body: bytes of a request.
        most: sessions at once. Beyond it the owner with most loses the one that is idle longest.
        share: sessions of one owner at once; None for no such limit.

    Attributes:
        on_follow: called before the stream of a session is opened on which its client hears of
            changes, with the connection and the principal that opens it; the function that it
            returns is called when the stream is open.
    """

    def __init__(
        self,
        server: Server[Any],
        *,
        idle_timeout: float,
        max_body: int,
        most: int,
        share: int | None = None,
    ) -> None:
        self._manager = StreamableHTTPSessionManager(
            server,
            session_idle_timeout=idle_timeout,
            max_request_body_size=max_body,
            max_sessions=None,
        )
        self._stateless = StreamableHTTPSessionManager(
            _without_lifespan(server), stateless=True, max_request_body_size=max_body
        )
        self._most = most
        self._share = share
        self._held: set[_Session] = set()
        self._by_name: dict[bytes, _Session] = {}
        self._streams: set[anyio.CancelScope] = set()
        self.on_follow: Callable[[object, Principal | None], Callable[[], object]] | None = None
        server.middleware.append(self._note_connection)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Serve while this is entered."""
        async with self._manager.run(), self._stateless.run():
            yield

    def end_streams(self) -> None:
        """End each GET stream with the end of its body."""
        for stream in self._streams:
            stream.cancel()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request of either era."""
        headers = _first_headers(scope)
        name = headers.get(_SESSION)
        if _is_modern(headers):
            # the modern era, which has no sessions
            await self._manager.handle_request(scope, receive, send)
        elif name is not None:
            session = self._by_name.get(name)
            if session is not None and session.opener == _credential(scope):
                await self._serve(session, scope, receive, send)
            else:
                await self._serve_unknown(name, scope, receive, send)
        elif _HANDSHAKE in scope:
            await self._open(scope, receive, send)
        else:
            await self._manager.handle_request(scope, receive, send)

    async def _serve(self, session: _Session, scope: Scope, receive: Receive, send: Send) -> None:
        scope = {
            **scope,
            "headers": [header for header in scope["headers"] if header[0] != _SESSION],
        }
        scope["headers"].append((_SESSION, session.id))
        send = _renaming(session, send)
        session.requests += 1
        if scope["method"] == "DELETE":
            self._forget(session)  # its id is unknown from here on
        try:
            if scope["method"] == "GET":
                await self._follow(session, scope, receive, send)
            else:
                await self._manager.handle_request(scope, receive, send)
        finally:
            self._end_request(session)

    async def _follow(self, session: _Session, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the stream on which a client hears of changes."""
        opened = None
        if self.on_follow is not None and session.connection is not None:
            opened = self.on_follow(session.connection, principal(scope))
        started = False

        async def sending(message: Message) -> None:
            nonlocal started
            await send(message)
            if message["type"] == "http.response.start" and message["status"] == 200:
                started = True
                if opened is not None:
                    opened()

        with anyio.CancelScope() as stream:
            self._streams.add(stream)
            try:
                await self._manager.handle_request(scope, receive, sending)
            finally:
                self._streams.discard(stream)
        if stream.cancelled_caught and started:
            await send({"type": "http.response.body", "body": b""})

    async def _serve_unknown(self, name: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 404, or without a session where the client never opens another one."""
        if name in self._by_name:  # the id is a key to the session, and stays out of the log
            logger.warning(
                "refused a session: the credential does not match the one that created the session",
                extra=REPEATS,
            )
        if not name.startswith(_KEPT) or scope["method"] == "DELETE":
            await JSONResponse(_NOT_FOUND, status_code=404)(scope, receive, send)
        elif scope["method"] == "POST":
            await self._stateless.handle_request(scope, receive, send)
        else:
            # There is no stream. 404 would have the client try again.
            await Response(status_code=405, headers={"Allow": "POST"})(scope, receive, send)

    async def _open(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Open a session, if the limits allow another."""
        name = scope[_HANDSHAKE]
        keeps = isinstance(name, str) and client_of(name).keeps_lost_session
        session = _Session(scope, _KEPT if keeps else b"")
        self._held.add(session)
        send = _renaming(session, send)

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] < 400:
                session.id = next(
                    (value for key, value in message["headers"] if key.lower() == _SESSION), None
                )
                self._by_name[session.name] = session
            await send(message)

        try:
            if await self._is_within_limits(session, scope, send):
                await self._manager.handle_request(
                    {**scope, _SESSION_KEY: session}, receive, sending
                )
        finally:
            self._end_request(session)
            if session.id is None:
                self._held.discard(session)

    async def _is_within_limits(self, session: _Session, scope: Scope, send: Send) -> bool:
        """Evict an idle session if need be. Where none is, answer the request, and return False."""
        owner = session.owner
        held = Counter(each.owner for each in self._held if each is not session)
        if self._share is not None and held[owner] >= self._share and not await self._evict(owner):
            await refuse(scope, send, _QUOTA, self._share)
            return False
        if len(self._held) > self._most:
            giver = client_to_evict(
                held, owner, {each.owner for each in self._held if not each.requests}
            )
            if not await self._evict(giver):
                logger.warning(
                    "refused a session: all %d are in use (--max-sessions)",
                    self._most,
                    extra=REPEATS,
                )
                await send_error(
                    send, 503, {"code": jsonrpc.INTERNAL_ERROR, "message": "Too many open sessions"}
                )
                return False
        return True

    def _end_request(self, session: _Session) -> None:
        session.requests -= 1
        session.idle_since = monotonic()

    async def _note_connection(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """Middleware of the SDK's server: note each new session's connection, and its end."""
        session: _Session | None = scope_of(ctx).get(_SESSION_KEY)
        if session is not None and ctx.method == "initialize" and session.connection is None:
            session.connection = connection_of(ctx)
            session.connection.exit_stack.callback(self._forget, session)
        return await call_next(ctx)

    def _forget(self, session: _Session) -> None:
        if session in self._held:
            self._held.discard(session)
            self._by_name.pop(session.name, None)
            logger.debug("a session of a legacy client ended")  # not its id, which is a key to it

    async def _evict(self, owner: str | None) -> bool:
        """Evict the longest idle session of an owner; return whether there was one."""
        idle = [each for each in self._held if each.owner == owner and not each.requests]
        session = min(idle, key=lambda each: each.idle_since, default=None)
        if session is None:
            return False
        self._forget(session)  # its client gets 404 from here on, and opens another
        headers = [(_SESSION, session.id)]
        scope = {
            "type": "http",
            "method": "DELETE",
            "path": "/",
            "headers": headers,
            "user": session.user,
        }
        await self._manager.handle_request(scope, _receive_empty, _discard)
        return True


def _without_lifespan(server: Server[Any]) -> Server[Any]:
    """Return the server for a second manager, while the first one holds its lifespan."""

    @asynccontextmanager
    async def entered(_: Server[Any]) -> AsyncGenerator[dict[str, Any]]:
        yield {}

    out = copy(server)
    out.lifespan = entered
    return out


def _renaming(session: _Session, send: Send) -> Send:
    """Return a `send` that puts the session's id of the client into the headers."""
    if not session.prefix:
        return send

    async def named(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = [header for header in message["headers"] if header[0].lower() != _SESSION]
            message = {**message, "headers": [*headers, (_SESSION, session.name)]}
        await send(message)

    return named


async def _receive_empty() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}


async def _discard(_: Message) -> None:
    """Drop an answer that no client asked for."""


def _credential(scope: Scope) -> str | None:
    """Return what a session is bound to: the key of the principal that opened it."""
    who = principal(scope)
    return None if who is None else who.key
