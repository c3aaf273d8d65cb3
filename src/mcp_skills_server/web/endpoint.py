"""What is ours about the SDK's endpoint: whose session ends when there are too many, and what it gets wrong."""

from __future__ import annotations

import json
import logging
import math
from collections import Counter
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final
from weakref import WeakValueDictionary

import anyio
import mcp_types as types
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser, AuthorizationContext, authorization_context
from mcp.server.connection import Connection
from mcp.server.context import CallNext, HandlerResult
from mcp.server.streamable_http import StreamableHTTPServerTransport
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mcp_skills_server.access.principal import Principal
from mcp_skills_server.errors import SkillsServerError
from mcp_skills_server.model.clients import client_of
from mcp_skills_server.server.callers import counted, principal
from mcp_skills_server.server.entrance import Context, SessionPeer
from mcp_skills_server.web.over_quota import refuse
from mcp_skills_server.web.shares import giver

logger = logging.getLogger(__name__)

_ENVELOPE: Final = "io.modelcontextprotocol/protocolVersion"
"""The key of `params._meta` that makes a request one of the modern era."""
_MISMATCH: Final = "mcp-protocol-version header does not match the request envelope's protocol version"
_SESSION: Final = b"mcp-session-id"
_VERSION: Final = b"mcp-protocol-version"
_NOT_FOUND: Final = {"jsonrpc": "2.0", "id": None, "error": {"code": -32001, "message": "Session not found"}}
"""As the SDK for TypeScript answers: hosts know by this code that they have to open another session."""
_KEPT: Final = "kept-"
"""What the ids of sessions begin with whose clients never open another one."""
_opener: ContextVar[str] = ContextVar("opener")
_keeps_session: ContextVar[bool] = ContextVar("keeps_session", default=False)


class _OverShareError(SkillsServerError):
    """An owner has all the sessions that one may have, and none of them is idle."""

    def __init__(self, share: int) -> None:
        super().__init__(share)
        self.share = share


def _unheard(_connection: Connection, _principal: Principal | None) -> Callable[[], object]:
    """Nobody wants to know."""
    return lambda: None


class Sessions(StreamableHTTPSessionManager):
    """The SDK's sessions of legacy clients. At the limit, the owner with most loses the one it left alone longest.

    Args:
        share: sessions that one owner may have; None for all that nobody else wants. Beyond it the owner loses the one
            of its own that it left alone longest, or gets no other.

    Attributes:
        on_follow: called before the stream of a session is opened on which its client hears of changes, with the
            connection and whom the opener proved to be; what it returns is called when the stream is open.
    """

    def __init__(self, *args: Any, share: int | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._share = share
        self._owners: dict[str, str] = {}
        self._connections: WeakValueDictionary[str, Connection] = WeakValueDictionary()
        self.on_follow: Callable[[Connection, Principal | None], Callable[[], object]] = _unheard

    @property
    def transports(self) -> list[StreamableHTTPServerTransport]:
        """Those of all sessions that are open."""
        return list(self._server_instances.values())

    async def middleware(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """Middleware of the SDK's server: note the sessions whose handshake is over."""
        result = await call_next(ctx)
        if ctx.method == "notifications/initialized":
            connection = SessionPeer(ctx).connection
            if connection.session_id is not None:
                self._connections[connection.session_id] = connection
        return result

    def open_to(self, session: str, scope: Scope) -> Connection | None:
        """The connection of an open session whose handshake is over; None if another opened it than asks here."""
        transport = self._server_instances.get(session)
        if transport is None or transport.is_terminated or not self._is_open_to(session, scope):
            return None
        if transport.idle_scope is not None and transport.idle_scope.cancel_called:
            return None
        return self._connections.get(session)

    def touch(self, session: str) -> None:
        """A request of an open session was answered elsewhere: its idle time begins anew, where it runs."""
        scope = self._server_instances[session].idle_scope
        if scope is not None and scope.deadline < math.inf and self.session_idle_timeout is not None:
            scope.deadline = anyio.current_time() + self.session_idle_timeout

    async def _handle_stateful_request(self, scope: Scope, receive: Receive, send: Send) -> None:
        _opener.set(counted(scope) or "")
        session = _header(scope, _SESSION)
        if session is not None and not self._is_open_to(session, scope):
            await self._serve_unknown(session, scope, receive, send)
            return
        if session is not None and scope["method"] == "GET":
            connection = self.open_to(session, scope)
            if connection is not None:
                send = _calling(send, self.on_follow(connection, principal(scope)))
        try:
            await super()._handle_stateful_request(scope, receive, send)
        except _OverShareError as error:
            await refuse(scope, send, "sessions", error.share)

    def _is_open_to(self, session: str, scope: Scope) -> bool:
        user = scope.get("user")
        requestor = authorization_context(user) if isinstance(user, AuthenticatedUser) else None
        return session in self._server_instances and requestor == self._session_owners.get(session)

    async def _serve_unknown(self, session: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 404, or without a session where the client never opens another one: after a restart, say."""
        if session in self._server_instances:  # the id is a key to the session, and stays out of the log
            logger.warning("refused a session: the credential does not match the one that created the session")
        if not session.startswith(_KEPT) or scope["method"] == "DELETE":
            await JSONResponse(_NOT_FOUND, status_code=404)(scope, receive, send)
        elif scope["method"] == "POST":
            await self._handle_stateless_request(_header(scope, _VERSION), scope, receive, send)
        else:
            # There is no stream. 404 would have the client try again.
            await Response(status_code=405, headers={"Allow": "POST"})(scope, receive, send)

    def _admit_session(self, requestor: AuthorizationContext | None) -> StreamableHTTPServerTransport | None:
        opener = _opener.get()
        if self._share is not None and opener and sum(each == opener for each in self._owners.values()) >= self._share:
            mine = [session for session in self._idle() if self._owners[session] == opener]
            if not mine:
                raise _OverShareError(self._share)
            self._end(mine[0])
        if self.max_sessions is not None and len(self._server_instances) >= self.max_sessions:
            self._end_one_for(opener)
        transport = super()._admit_session(requestor)
        if transport is not None and transport.mcp_session_id is not None:
            if _keeps_session.get():
                self._rename(transport, _KEPT + transport.mcp_session_id)
            self._owners[transport.mcp_session_id] = opener
        return transport

    def _rename(self, transport: StreamableHTTPServerTransport, name: str) -> None:
        old, transport.mcp_session_id = transport.mcp_session_id or "", name
        self._server_instances[name] = self._server_instances.pop(old)
        if old in self._session_owners:
            self._session_owners[name] = self._session_owners.pop(old)

    async def _discard_session(self, session_id: str, transport: StreamableHTTPServerTransport) -> None:
        if self._owners.pop(session_id, None) is not None:
            logger.debug("a session of a legacy client ended")  # not its id, which is a key to it
        await super()._discard_session(session_id, transport)

    def _idle(self) -> list[str]:
        """Sessions that can go, the one that was left alone longest first."""
        # The clock of a session stands still while a request of it is answered or a stream is open.
        idle = {
            session: scope.deadline
            for session, transport in self._server_instances.items()
            if (scope := transport.idle_scope) is not None and scope.deadline < math.inf
        }
        return sorted(idle, key=idle.__getitem__)

    def _end_one_for(self, opener: str) -> None:
        idle = self._idle()
        by_owner = Counter(self._owners.values())
        idle_owners = {self._owners[session] for session in idle}
        gives = giver(by_owner, opener, idle_owners.__contains__)
        if gives is None:
            return
        self._end(next(session for session in idle if self._owners[session] == gives))

    def _end(self, session: str) -> None:
        transport = self._server_instances.pop(session)  # so that its client gets 404 from now on, and opens another
        self._session_owners.pop(session, None)
        del self._owners[session]
        if transport.idle_scope is not None:
            transport.idle_scope.cancel()  # as the end of its time would


def _calling(send: Send, opened: Callable[[], object]) -> Send:
    """Sends, and calls `opened` when that has begun a stream."""

    async def sending(message: Message) -> None:
        await send(message)
        if message["type"] == "http.response.start" and message["status"] == 200:
            opened()

    return sending


def _header(scope: Scope, wanted: bytes) -> str | None:
    return next((value.decode("latin-1") for name, value in scope["headers"] if name == wanted), None)


class Endpoint:
    """The SDK's endpoint, and what it leaves out: it goes by the headers alone, and trips over half a request."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand on what is whole and agrees with itself."""
        if scope["type"] != "http" or scope["method"] != "POST":
            # No events are kept. The SDK would answer this header with nothing at all; without it a stream opens.
            headers = [header for header in scope.get("headers", ()) if header[0] != b"last-event-id"]
            await self._app({**scope, "headers": headers}, receive, send)
            return
        first: Message | None = await receive()  # the whole body, since it comes through the limit
        if first["type"] != "http.request" or first.get("more_body"):
            return  # the client left in the middle of it: nobody reads an answer
        version = next((value for name, value in scope["headers"] if name == b"mcp-protocol-version"), b"")
        body: bytes = first.get("body", b"")
        if version.decode("latin-1") in ("", *HANDSHAKE_PROTOCOL_VERSIONS) and (found := _modern_request(body)):
            error = {"code": types.HEADER_MISMATCH, "message": _MISMATCH}
            answer = JSONResponse({"jsonrpc": "2.0", "id": found["id"], "error": error}, status_code=400)
            await answer(scope, receive, send)
            return

        _keeps_session.set(client_of(_opening_client(body)).keeps_lost_session)

        async def replay() -> Message:
            nonlocal first
            message, first = first, None
            return await receive() if message is None else message

        await self._app(scope, replay, send)


def _modern_request(body: bytes) -> dict[str, Any] | None:
    """The request of the modern era that this is, if it is one, whatever its headers say (MCP-42)."""
    if b"protocolVersion" not in body:
        return None
    try:
        request = json.loads(body)
        version = request["params"]["_meta"][_ENVELOPE]
        is_request = type(request["id"]) in (str, int) and request["method"] != "initialize"
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    return request if is_request and version not in HANDSHAKE_PROTOCOL_VERSIONS else None


def _opening_client(body: bytes) -> str | None:
    """Return the name of the client whose handshake this is."""
    if b'"initialize"' not in body:
        return None
    try:
        message = json.loads(body)
        name = message["params"]["clientInfo"]["name"] if message["method"] == "initialize" else None
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    return name if isinstance(name, str) else None
