"""MCP over HTTP before the SDK's session manager: message checks, limits of legacy sessions.

Each message is validated before the SDK sees it. An invalid one gets status 400, with the code and
id that it would get over stdio. The SDK receives the message serialized again, so that its parser
cannot read it differently.

Clients share the legacy sessions, and idle ones are evicted. The manager has no public way to end a
session, so eviction sends it the DELETE that a client would send.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from copy import copy
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast
from weakref import WeakValueDictionary

import anyio
from mcp.server.lowlevel.server import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types import HEADER_MISMATCH
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mcp_skills_server.access.principal import Principal
from mcp_skills_server.dialects import jsonrpc
from mcp_skills_server.dialects.jsonrpc import InvalidMessage, RequestId, decode_message, duplicate
from mcp_skills_server.errors import REPEATS
from mcp_skills_server.model.clients import client_of
from mcp_skills_server.server.sdk import Context, connection_of, principal, quota_owner, scope_of
from mcp_skills_server.web.bearer import Refusal
from mcp_skills_server.web.connections import client_to_evict
from mcp_skills_server.web.rates import emit_refusal, error_response, quota_refusal
from mcp_skills_server.web.settings import HttpSettings

if TYPE_CHECKING:
    from mcp.server.connection import Connection
    from mcp.server.context import CallNext, HandlerResult

logger = logging.getLogger(__name__)

OnFollow: TypeAlias = Callable[[object, Principal | None], Callable[[], object]]

_HANDSHAKE: Final = "mcp_skills_server.handshake"
"""Key in the ASGI scope of a handshake: the name that the client gives itself."""
_SESSION: Final = b"mcp-session-id"
_VERSION: Final = b"mcp-protocol-version"
_JSON: Final = b"application/json"
_STREAM: Final = b"text/event-stream"
_ENVELOPE: Final = "io.modelcontextprotocol/protocolVersion"
"""The key of `params._meta` that marks a request of the modern era."""
_ID_S: Final = 1.0
"""Seconds to wait for an earlier request of the same id, which the SDK clears late."""
_SESSION_KEY: Final = "mcp_skills_server.session"
_NOT_FOUND: Final = -32001
"""The TypeScript SDK's code of an unknown session: it makes hosts open another one."""
_KEPT_PREFIX: Final = b"kept-"
"""Prefix of session ids of clients that keep using a lost session."""
_QUOTA: Final = "sessions"
_BUSY: Final = Refusal(503, "Too many open sessions", "busy")


# Messages


class Messages:
    """ASGI middleware that validates MCP messages. Each body must arrive whole."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._under_way = WeakValueDictionary[tuple[bytes, str], asyncio.Lock]()
        """Held by a running request, by session and text of its id: the SDK does not tell "1" from
        1."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse an invalid message with 400, or pass it on."""
        if scope["type"] != "http" or scope["method"] != "POST":
            # No events are stored for replay. With this header the SDK would send no response at
            # all; without it, a stream opens.
            headers = [each for each in scope.get("headers", ()) if each[0] != b"last-event-id"]
            await self._app({**scope, "headers": headers}, receive, send)
            return
        first = await receive()
        if first["type"] != "http.request" or first.get("more_body"):
            return  # the client disconnected before the end of the body
        found = decode_message(first.get("body", b""))
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
        accept = headers.get(b"accept", b"").lower()
        if _STREAM in accept and _JSON not in accept:
            others = [header for header in scope["headers"] if header[0] != b"accept"]
            scope = {**scope, "headers": [*others, (b"accept", _JSON + b", " + _STREAM)]}
            send = _as_stream(send)
        session = headers.get(_SESSION)
        id_: RequestId | None = None
        if found.kind == "request":
            id_ = found.id
            if found.fields["method"] == "initialize":
                client = _object(_object(found.fields, "params"), "clientInfo")
                scope = {**scope, _HANDSHAKE: client.get("name")}
        body: bytes | None = jsonrpc.dump(found.fields)
        del found  # frees memory: a stream may last for days

        async def replay() -> Message:
            nonlocal body
            if body is None:
                return await receive()
            whole, body = body, None
            return {"type": "http.request", "body": whole, "more_body": False}

        if session is None or id_ is None:
            await self._app(scope, replay, send)
            return
        reserved = self._under_way.setdefault((session, str(id_)), asyncio.Lock())
        try:
            async with asyncio.timeout(_ID_S):
                await reserved.acquire()
        except TimeoutError:
            await _refuse(duplicate(id_), scope, receive, send)
            return
        try:
            await self._app(scope, replay, send)
        finally:
            reserved.release()


def _as_stream(send: Send) -> Send:
    """Send a JSON answer as an event stream: the SDK requires both types, and chooses by era."""
    is_json = False

    async def sending(message: Message) -> None:
        nonlocal is_json
        if message["type"] == "http.response.start":
            headers = dict(message["headers"])
            is_json = message["status"] == 200 and headers.get(b"content-type") == _JSON
            if is_json:
                headers.pop(b"content-length", None)
                headers[b"content-type"] = _STREAM
                message = {**message, "headers": [*headers.items()]}
        elif is_json:
            body = b"event: message\r\ndata: " + message["body"] + b"\r\n\r\n"
            message = {**message, "body": body}
        await send(message)

    return sending


def _first_headers(scope: Scope) -> dict[bytes, bytes]:
    """Return the headers of a request, of repeated ones the first."""
    return dict(reversed(scope["headers"]))


def _is_modern(headers: Mapping[bytes, bytes]) -> bool:
    return headers.get(_VERSION, b"").decode("latin-1") not in ("", *HANDSHAKE_PROTOCOL_VERSIONS)


def _is_of_another_era(found: jsonrpc.Message, headers: Mapping[bytes, bytes]) -> bool:
    """Return whether a modern request has the headers of the legacy era (MCP-42)."""
    if _is_modern(headers) or found.kind != "request" or found.fields["method"] == "initialize":
        return False
    meta = _object(_object(found.fields, "params"), "_meta")
    return _ENVELOPE in meta and meta[_ENVELOPE] not in HANDSHAKE_PROTOCOL_VERSIONS


def _object(fields: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return the object at a key, or an empty one."""
    found = fields.get(key)
    return cast("Mapping[str, Any]", found) if isinstance(found, dict) else {}


async def _refuse(refusal: InvalidMessage, scope: Scope, receive: Receive, send: Send) -> None:
    logger.debug("refused a message: %s", refusal.message)
    await Response(refusal.response, 400, media_type="application/json")(scope, receive, send)


# Sessions


class _Session:
    """One legacy session. `id` is the SDK's; None until the handshake is answered."""

    def __init__(self, scope: Scope, prefix: bytes) -> None:
        self.id: bytes | None = None
        self.prefix = prefix
        self.user = scope.get("user")
        self.credential = _credential(scope)
        self.owner = quota_owner(scope) or ""
        self.connection: Connection | None = None
        self.requests = 1
        self.idle_since = 0.0

    @property
    def public_id(self) -> bytes:
        """Return the session id that the client knows."""
        return self.prefix + (self.id or b"")


class HttpSessions:
    """ASGI endpoint over the SDK's session managers that limits the number of sessions.

    An owner over its quota loses its longest idle session. Beyond the limit of all sessions, the
    owner with most does; one with more than half of them also loses busy ones.

    Args:
        on_follow: called with the connection and the principal before a session's GET stream opens;
            the function that it returns is called when the stream is open.
    """

    def __init__(self, server: Server[Any], http: HttpSettings, on_follow: OnFollow) -> None:
        self._manager = StreamableHTTPSessionManager(
            server,
            session_idle_timeout=http.session_idle,
            max_request_body_size=http.max_body,
            max_sessions=None,
        )
        self._stateless = StreamableHTTPSessionManager(
            _without_lifespan(server), stateless=True, max_request_body_size=http.max_body
        )
        self._most = http.max_sessions
        self._share = http.quotas.sessions
        self._held: set[_Session] = set()
        self._by_public_id: dict[bytes, _Session] = {}
        self._streams: set[anyio.CancelScope] = set()
        self._on_follow = on_follow
        server.middleware.append(self._note_connection)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Run both session managers."""
        async with self._manager.run(), self._stateless.run():
            yield

    def end_streams(self) -> None:
        """End all GET streams by ending their bodies."""
        for stream in self._streams:
            stream.cancel()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Route a request to its legacy session, or to the modern era."""
        headers = _first_headers(scope)
        public_id = headers.get(_SESSION)
        if _is_modern(headers):
            # the modern era has no sessions
            await self._manager.handle_request(scope, receive, send)
        elif public_id is not None:
            session = self._by_public_id.get(public_id)
            if session is not None and session.credential == _credential(scope):
                await self._serve(session, scope, receive, send)
            else:
                await self._serve_unknown(public_id, scope, receive, send)
        elif _HANDSHAKE in scope:
            await self._open(scope, receive, send)
        else:
            await self._manager.handle_request(scope, receive, send)

    async def _serve(self, session: _Session, scope: Scope, receive: Receive, send: Send) -> None:
        others = [header for header in scope["headers"] if header[0] != _SESSION]
        scope = {**scope, "headers": [*others, (_SESSION, session.id)]}
        send = _with_public_id(session, send)
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
        """Serve the GET stream of a session, which carries notifications of changes."""
        opened = None
        if session.connection is not None:
            opened = self._on_follow(session.connection, principal(scope))
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

    async def _serve_unknown(self, id_: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 404, or serve statelessly a client that never opens another session."""
        if id_ in self._by_public_id:  # the id is a credential, and not logged
            logger.warning(
                "refused a session: the credential does not match the one that created the session",
                extra=REPEATS,
            )
        if not id_.startswith(_KEPT_PREFIX) or scope["method"] == "DELETE":
            response = error_response(404, _NOT_FOUND, "Session not found")
            await response(scope, receive, send)
        elif scope["method"] == "POST":
            await self._stateless.handle_request(scope, receive, send)
        else:
            # There is no stream. After a 404 the client would retry.
            await Response(status_code=405, headers={"Allow": "POST"})(scope, receive, send)

    async def _open(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Open a session, if the limits allow another."""
        name = scope[_HANDSHAKE]
        keeps = isinstance(name, str) and client_of(name).keeps_lost_session
        session = _Session(scope, _KEPT_PREFIX if keeps else b"")
        self._held.add(session)
        send = _with_public_id(session, send)

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] < 400:
                session.id = next(
                    (value for key, value in message["headers"] if key.lower() == _SESSION), None
                )
                self._by_public_id[session.public_id] = session
            await send(message)

        try:
            refusal = await self._refusal(session, scope)
            if refusal is not None:
                await refusal(scope, receive, send)
                return
            await self._manager.handle_request({**scope, _SESSION_KEY: session}, receive, sending)
        finally:
            self._end_request(session)
            if session.id is None:
                self._held.discard(session)

    async def _refusal(self, session: _Session, scope: Scope) -> Response | None:
        """Return None if a session may open, after evicting one if needed, else the refusal."""
        owner = session.owner
        held = Counter(each.owner for each in self._held if each is not session)
        if self._share is not None and held[owner] >= self._share and not await self._evict(owner):
            return quota_refusal(scope, _QUOTA, self._share)
        if len(self._held) > self._most:
            least = max(self._most // 2, held[owner] + 1)
            able = {each.owner for each in self._held if not each.requests}
            able |= {client for client in held if held[client] > least}
            if not await self._evict(client_to_evict(held, owner, able), busy=True):
                message = "refused a session: all %d are in use (--max-sessions)"
                logger.warning(message, self._most, extra=REPEATS)
                emit_refusal(scope, _BUSY.reason)
                return _BUSY.response(None)
        return None

    def _end_request(self, session: _Session) -> None:
        session.requests -= 1
        session.idle_since = monotonic()

    async def _note_connection(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """SDK middleware: record the connection of each new session, and forget it at its end."""
        session: _Session | None = scope_of(ctx).get(_SESSION_KEY)
        if session is not None and ctx.method == "initialize" and session.connection is None:
            session.connection = connection_of(ctx)
            session.connection.exit_stack.callback(self._forget, session)
        return await call_next(ctx)

    def _forget(self, session: _Session) -> None:
        if session in self._held:
            self._held.discard(session)
            self._by_public_id.pop(session.public_id, None)
            logger.debug("a session of a legacy client ended")  # the id is a credential

    async def _evict(self, owner: str | None, *, busy: bool = False) -> bool:
        """Evict the longest idle session of an owner, or with `busy` a busy one if none is idle.

        Return whether one was evicted.
        """
        mine = [each for each in self._held if each.owner == owner and each.id is not None]
        able = [each for each in mine if busy or not each.requests]
        session = min(able, key=lambda each: (each.requests > 0, each.idle_since), default=None)
        if session is None:
            return False
        self._forget(session)  # its client gets 404 from here on, and opens another
        scope = {"type": "http", "method": "DELETE", "path": "/", "user": session.user}
        scope["headers"] = [(_SESSION, session.id)]
        await self._manager.handle_request(scope, _receive_empty, _discard)
        return True


def _without_lifespan(server: Server[Any]) -> Server[Any]:
    """Return a copy of the server without its lifespan, which the first manager runs."""

    @asynccontextmanager
    async def entered(_: Server[Any]) -> AsyncGenerator[dict[str, Any]]:
        yield {}

    out = copy(server)
    out.lifespan = entered
    return out


def _with_public_id(session: _Session, send: Send) -> Send:
    """Return a `send` that sets the session id header to the client's id of the session."""
    if not session.prefix:
        return send

    async def named(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = [header for header in message["headers"] if header[0].lower() != _SESSION]
            message = {**message, "headers": [*headers, (_SESSION, session.public_id)]}
        await send(message)

    return named


async def _receive_empty() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}


async def _discard(_: Message) -> None:
    """Discard the response to an eviction's DELETE."""


def _credential(scope: Scope) -> str | None:
    """Return the key of the principal that a session is bound to, or None."""
    who = principal(scope)
    return None if who is None else who.key
