"""`/mcp`: streamable HTTP on the dispatcher that stdio has, in both protocol eras.

A modern request is a session of its own: its headers must agree with its envelope, and a client
that disconnects cancels it. A legacy request belongs to a session of `sessions.py`; one GET stream
carries the session's notifications. Both are answered with JSON, or with an event stream once
something precedes the answer.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
import re
import secrets
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

import anyio
from starlette.types import Message as AsgiMessage
from starlette.types import Receive, Scope, Send

from mcp_skills_server.access.quota import Requester
from mcp_skills_server.dialects import jsonrpc
from mcp_skills_server.dialects.jsonrpc import InvalidMessage, Message, decode_message
from mcp_skills_server.errors import REPEATS
from mcp_skills_server.format.fields import mapping
from mcp_skills_server.model.clients import client_of
from mcp_skills_server.server import eras
from mcp_skills_server.server.attachment import Attachment
from mcp_skills_server.server.dispatch import Answer, McpSession, notification, refusal
from mcp_skills_server.server.eras import INITIALIZE, FaultError
from mcp_skills_server.server.notify import params_of
from mcp_skills_server.web.part import requester
from mcp_skills_server.web.rates import ConcurrencyLimits
from mcp_skills_server.web.refusals import RefusalError
from mcp_skills_server.web.sessions import KEPT_PREFIX, HttpSession, HttpSessions

logger = logging.getLogger(__name__)

SESSION: Final = b"mcp-session-id"
VERSION: Final = b"mcp-protocol-version"
METHOD: Final = b"mcp-method"
NAME: Final = b"mcp-name"
NAMED: Final[Mapping[str, str]] = {
    "tools/call": "name",
    "prompts/get": "name",
    "resources/read": "uri",
}
"""Methods whose `Mcp-Name` header repeats this parameter."""
STATUS: Final[Mapping[int, int]] = {
    jsonrpc.PARSE_ERROR: 400,
    jsonrpc.INVALID_REQUEST: 400,
    jsonrpc.INVALID_PARAMS: 400,
    eras.HEADER_MISMATCH: 400,
    eras.UNSUPPORTED_VERSION: 400,
    jsonrpc.METHOD_NOT_FOUND: 404,
    jsonrpc.QUOTA_EXCEEDED: 503,
}
"""The HTTP status of an error in the modern era, by its code; of others 200."""
_JSON: Final = b"application/json"
_STREAM: Final = b"text/event-stream"
_BASE64: Final = re.compile(r"=\?base64\?(.*)\?=")
_SESSION_NOT_FOUND: Final = -32001
"""The TypeScript SDK's code of an unknown session: it makes hosts open another one."""
_CANCELLED: Final = -32800
"""The code that answers a legacy request which its client cancelled: HTTP needs a response."""
_MAX_DIGITS: Final = 19
"""The most digits of a Content-Length that is compared."""
_PATIENCE_S: Final = 0.05
"""Seconds after which a request is watched for a disconnect of its client."""
_MAX_WAIT_S: Final = 0.5
"""Seconds that a handshake may have waited for its turn: half of what clients should wait."""
_PING_S: Final = 15.0
"""Seconds of silence after which a stream sends a comment, and a slow request becomes a stream."""
_STREAM_HEADERS: Final = (
    (b"content-type", _STREAM),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
)
_EVENT: Final = b"event: message\r\ndata: %b\r\n\r\n"
_PING: Final = b": ping\r\n\r\n"

Headers = Mapping[bytes, bytes]
"""The headers of a request by lower-case name; of a repeated one the first."""


class HttpError(FaultError):
    """Raised to answer a request with an error; its id is None unless it was read."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: int = jsonrpc.INVALID_REQUEST,
        id_: jsonrpc.RequestId | None = None,
        allow: bytes | None = None,
    ) -> None:
        super().__init__(code, message)
        self.status = status
        self.id = id_
        self.headers = [] if allow is None else [(b"allow", allow)]


class McpEndpoint:
    """The ASGI application of `/mcp`, whose requests hold at most `max_body` bytes."""

    def __init__(
        self,
        attachment: Attachment,
        sessions: HttpSessions,
        concurrency: ConcurrencyLimits,
        max_body: int,
    ) -> None:
        self._attachment = attachment
        self._sessions = sessions
        self._concurrency = concurrency
        self._max_body = max_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        headers: Headers = dict(reversed(scope["headers"]))
        method, reply = scope["method"], Reply(send)
        try:
            if method == "POST":
                await self._post(headers, scope, receive, reply)
            elif _is_modern(headers):  # it has neither sessions nor their streams
                raise HttpError(405, "Method Not Allowed", allow=b"POST")
            elif method == "GET":
                await self._follow(headers, requester(scope), receive, reply)
            elif method == "DELETE":
                self._sessions.close(self._session_of(headers, requester(scope)))
                await reply.send(200)
            else:
                raise HttpError(405, "Method Not Allowed", allow=b"GET, POST, DELETE")
        except HttpError as fault:
            reply.headers = fault.headers
            await reply.send(fault.status, refusal(fault.id, fault))

    async def _post(self, headers: Headers, scope: Scope, receive: Receive, reply: Reply) -> None:
        accepts_json, accepts_stream = _accepted(headers.get(b"accept", b""))
        if not accepts_stream:
            raise HttpError(406, "Not Acceptable: accept application/json, text/event-stream")
        if headers.get(b"content-type", b"").partition(b";")[0].strip().lower() != _JSON:
            raise HttpError(400, "Content-Type must be application/json")
        message = decode_message(await self._read_body(headers, receive))
        if isinstance(message, InvalidMessage):
            raise HttpError(400, message.message, code=message.code, id_=message.id)
        reply.is_stream = not accepts_json
        if _is_modern(headers):
            await self._answer_modern(message, headers, scope, receive, reply)
        else:
            await self._answer_legacy(message, headers, requester(scope), receive, reply)

    async def _read_body(self, headers: Headers, receive: Receive) -> bytearray:
        """Return the body of a request."""
        length, body = headers.get(b"content-length", b"0"), bytearray()
        fits = length.isdigit() and len(length) <= _MAX_DIGITS and int(length) <= self._max_body
        has_more, is_too_large = fits, not fits
        while has_more:
            message = await receive()
            if message["type"] == "http.disconnect":  # it would be answered without a permit
                raise HttpError(400, "the body is incomplete")
            body += message["body"]
            is_too_large = len(body) > self._max_body
            has_more = message.get("more_body", False) and not is_too_large
        if is_too_large:
            raise HttpError(413, f"the body has more than {self._max_body:,} bytes")
        return body

    async def _answer_modern(
        self, message: Message, headers: Headers, scope: Scope, receive: Receive, reply: Reply
    ) -> None:
        if message.kind == "response":
            raise HttpError(400, "the body must be a single request or notification")
        if message.kind == "notification":  # the era has none from clients; it is dropped
            version = headers[VERSION].decode("latin-1")
            if eras.era_of_version(version) is eras.MODERN:
                await reply.send(202)
            else:
                await reply.send(400, refusal(None, eras.unsupported_version(version)))
            return
        _check_headers(message, headers, scope)
        client = requester(scope)
        session = McpSession(self._attachment, client, era=eras.MODERN, is_lasting=False)
        await _answer(session, message, client, receive, reply)

    async def _answer_legacy(
        self, message: Message, headers: Headers, client: Requester, receive: Receive, reply: Reply
    ) -> None:
        is_handshake = message.kind == "request" and message.fields["method"] == INITIALIZE
        if message.kind == "request" and not is_handshake:
            version = eras.envelope_version(message.fields.get("params"))
            if version not in (None, *eras.LEGACY_VERSIONS):
                raise _mismatch(VERSION, message.id)
        if is_handshake and SESSION not in headers:
            await self._open(message, client, receive, reply)
            return
        if self._is_lost(headers, client):
            era = eras.LEGACY
            session = McpSession(self._attachment, client, era=era, is_open=True, is_lasting=False)
            try:
                await _handle(session, message, client, receive, reply)
            finally:
                session.close()  # it may have subscribed to notifications
            return
        entry = self._session_of(headers, client)
        reply.headers = [(SESSION, entry.id)]
        self._sessions.begin(entry)
        try:
            await _handle(entry.session, message, client, receive, reply)
        finally:
            self._sessions.end(entry)

    async def _open(
        self, message: Message, client: Requester, receive: Receive, reply: Reply
    ) -> None:
        """Answer a handshake, and open its session if it succeeds.

        Raises:
            RefusalError: requests wait too long, as after a restart, when all clients reconnect.
        """
        waited_s = self._concurrency.waited_s
        if waited_s > _MAX_WAIT_S:
            warning = "refused a handshake: requests wait %.1f s to be answered"
            logger.warning(warning, waited_s, extra=REPEATS)
            # Random, as clients that were refused together would come back together.
            reason = "Too many clients connect; try again in a moment"
            raise RefusalError(503, reason, "overload", retry_after_s=1 + secrets.randbelow(3))
        name = mapping(mapping(message.fields.get("params")).get("clientInfo")).get("name")
        keeps_lost = isinstance(name, str) and client_of(name).keeps_lost_session
        entry = self._sessions.open(client, keeps_lost=keeps_lost)
        reply.headers = [(SESSION, entry.id)]
        has_failed = True
        try:
            code = await _answer(entry.session, message, client, receive, reply)
            has_failed = code is not None
        finally:
            self._sessions.end(entry)
            if has_failed:
                self._sessions.close(entry)

    def _session_of(self, headers: Headers, client: Requester) -> HttpSession:
        """Return the session of a request."""
        id_ = headers.get(SESSION)
        if id_ is None:
            raise HttpError(400, "Bad Request: Missing session ID")
        entry = self._sessions.find(id_, client.principal)
        if entry is None:
            raise HttpError(404, "Session not found", code=_SESSION_NOT_FOUND)
        return entry

    async def _follow(
        self, headers: Headers, client: Requester, receive: Receive, reply: Reply
    ) -> None:
        """Send the notifications of a session until a side ends the stream (GET)."""
        if not _accepted(headers.get(b"accept", b""))[1]:
            raise HttpError(406, "Not Acceptable: accept text/event-stream")
        if self._is_lost(headers, client):  # after a 404 its client would retry
            raise HttpError(405, "Method Not Allowed", allow=b"POST")
        entry = self._session_of(headers, client)
        if entry.stream is not None:
            raise HttpError(409, "Conflict: only one stream is allowed per session")
        notifier = self._attachment.notifier
        notify_difference = notifier.rebind(entry.session, client.principal)
        queue = notifier.register(entry.session)
        reply.headers = [(SESSION, entry.id)]
        self._sessions.begin(entry)
        try:
            with anyio.CancelScope() as entry.stream:
                await reply.begin()
                notify_difference()
                reply.watch(receive, entry.stream)
                while (notice := await queue.take()) is not None:
                    await reply.notify(notice.method, params_of(notice))
            await reply.end()
        finally:
            entry.stream = None
            reply.close()
            self._sessions.end(entry)

    def _is_lost(self, headers: Headers, client: Requester) -> bool:
        """Return whether a session was lost whose client keeps using it."""
        id_ = headers.get(SESSION, b"")
        if not id_.startswith(KEPT_PREFIX):
            return False
        return self._sessions.find(id_, client.principal) is None


class Reply:
    """The response to one request: JSON, or an event stream once something precedes the answer.

    Attributes:
        headers: headers of the response beside those of its content.
        is_stream: whether the response is an event stream.
    """

    def __init__(self, send: Send) -> None:
        self.headers: list[tuple[bytes, bytes]] = []
        self.is_stream = False
        self._send = send
        self._has_begun = False
        self._turn = asyncio.Lock()
        self._watching: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Begin the event stream, if it has not begun."""
        if not self._has_begun:
            self.is_stream = True
            headers = [*_STREAM_HEADERS, *self.headers]
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})
            self._has_begun = True  # not before: `close` may cancel a wait for earlier responses

    async def notify(self, method: str, params: dict[str, Any] | None) -> None:
        """Send a notification before the answer."""
        await self._write(_EVENT % notification(method, params))

    async def answer(self, answer: Answer, status: int) -> None:
        """Send the answer: its status counts unless a stream has begun."""
        if self.is_stream:
            await self._write(_EVENT % answer.raw, is_last=True)
        else:
            await self.send(status, answer.raw)

    async def send(self, status: int, body: bytes = b"") -> None:
        """Send a response of JSON, or without a body, as to a notification."""
        headers = [*self.headers, (b"content-length", str(len(body)).encode())]
        if body:
            headers.insert(0, (b"content-type", _JSON))
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": body})

    async def end(self) -> None:
        """End the event stream."""
        await self._send({"type": "http.response.body", "body": b""})

    def watch(self, receive: Receive, scope: anyio.CancelScope | None) -> None:
        """Send comments while the stream is silent; a disconnect cancels `scope`, if given."""
        self._watching = asyncio.create_task(self._watch(receive, scope))

    def close(self) -> None:
        """End the watch for a disconnect."""
        if self._watching is not None:
            self._watching.cancel()

    async def _watch(self, receive: Receive, scope: anyio.CancelScope | None) -> None:
        while True:
            try:
                async with asyncio.timeout(_PING_S):
                    message = await receive()
            except TimeoutError:
                await self._write(_PING)
                continue
            if message["type"] == "http.disconnect":
                if scope is not None:
                    scope.cancel()
                return

    async def _write(self, event: bytes, *, is_last: bool = False) -> None:
        message: AsgiMessage = {"type": "http.response.body", "body": event}
        async with self._turn:  # a comment may come between
            await self.begin()
            await self._send({**message, "more_body": not is_last})


async def _handle(
    session: McpSession, message: Message, client: Requester, receive: Receive, reply: Reply
) -> None:
    """Handle a message of a legacy session."""
    if message.kind == "request":
        await _answer(session, message, client, receive, reply)
        return
    if message.kind == "notification":
        params: Mapping[str, Any] = message.fields.get("params") or {}
        session.requester = client
        session.receive_notification(message.fields["method"], params)
    await reply.send(202)


async def _answer(
    session: McpSession, message: Message, client: Requester, receive: Receive, reply: Reply
) -> int | None:
    """Answer a request; return the code of its error, None for a result."""
    request = session.start(message, client, reply.notify, is_pipe=False)
    if isinstance(request, InvalidMessage):
        raise HttpError(400, request.message, code=request.code, id_=request.id)
    is_modern = request.era.modern
    cancelled = FaultError(_CANCELLED, "Request cancelled")
    answer = Answer(refusal(request.id, cancelled), _CANCELLED)  # unless the work is completed
    with anyio.CancelScope() as work:
        request.cancel = work.cancel
        # A disconnect ends a modern request (MCP-49), and none of a legacy session.
        ended = work if is_modern else None
        timer = asyncio.get_running_loop().call_later(_PATIENCE_S, reply.watch, receive, ended)
        try:
            answer = await session.answer(request)
        finally:
            timer.cancel()
            reply.close()
            session.finish(request)
    if work.cancelled_caught and is_modern:
        return _CANCELLED  # the client is gone
    status = 200
    if is_modern and answer.code is not None:
        status = STATUS.get(answer.code, 200)
        if status == 503:
            reply.headers.append((b"retry-after", b"10"))
    await reply.answer(answer, status)
    return answer.code


# Headers


def _mismatch(
    header: bytes, id_: jsonrpc.RequestId, reason: str = "does not match the request body"
) -> HttpError:
    message = f"{header.decode()} header {reason}"
    return HttpError(400, message, code=eras.HEADER_MISMATCH, id_=id_)


@lru_cache(maxsize=64)
def _accepted(accept: bytes) -> tuple[bool, bool]:
    """Return whether an Accept header admits JSON, and whether it admits an event stream."""
    types = {part.partition(b";")[0].strip().lower() for part in accept.split(b",")}
    has_json = not types.isdisjoint((_JSON, b"application/*", b"*/*"))
    return has_json, not types.isdisjoint((_STREAM, b"text/*", b"*/*"))


def _is_modern(headers: Headers) -> bool:
    version = headers.get(VERSION)
    return version is not None and version.decode("latin-1") not in eras.LEGACY_VERSIONS


def _check_headers(message: Message, headers: Headers, scope: Scope) -> None:
    """Refuse a modern request whose headers differ from its body (MCP-42)."""
    routing = [name for name, _ in scope["headers"] if name in (VERSION, METHOD, NAME)]
    for name in routing:
        if routing.count(name) > 1:
            raise _mismatch(name, message.id, "appears more than once")
    method, params = message.fields["method"], message.fields.get("params")
    version = eras.envelope_version(params)
    if version is None:
        return  # the envelope is invalid, and refused as on every transport
    if headers[VERSION].decode("latin-1") != version:
        raise _mismatch(VERSION, message.id)
    if headers.get(METHOD, b"").decode("latin-1") != method:
        raise _mismatch(METHOD, message.id)
    if method in NAMED:
        named = mapping(params).get(NAMED[method])
        if named is not None and _decoded(headers.get(NAME)) != named:
            raise _mismatch(NAME, message.id)
    if method == INITIALIZE:
        unknown = eras.unknown(method)
        raise HttpError(404, str(unknown), code=unknown.code, id_=message.id)


def _decoded(header: bytes | None) -> str | None:
    """Return the value of a header that may be in base64; None for one that is malformed."""
    if header is None:
        return None
    text = header.decode("latin-1")
    encoded = _BASE64.fullmatch(text)
    if encoded is None:
        return text
    try:
        raw = base64.b64decode(encoded[1], validate=True)
        if base64.b64encode(raw).decode() != encoded[1]:  # two spellings of one name
            return None
        return raw.decode("utf-8")
    except (binascii.Error, UnicodeDecodeError):
        return None
