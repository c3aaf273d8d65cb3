"""Requests of the modern era, which stand alone, answered by our own front instead of the SDK's.

The rule: ours is a POST whose MCP-Protocol-Version names a modern revision, whose other headers take what we send and
agree with its body, and whose body is a request with a whole envelope for a method that we have. All else is the SDK's,
refusals too, so that each wrong request is refused in the SDK's words. `tests/front/` shows that both answer alike.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any, Final, TypeAlias, cast

import anyio
from starlette.types import Receive, Scope, Send

from mcp_skills_server.dialects import jsonrpc
from mcp_skills_server.dialects.jsonrpc import INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND
from mcp_skills_server.server.attachment import Attachment
from mcp_skills_server.server.callers import bearer, counted, principal
from mcp_skills_server.server.front.dispatch import Dispatcher, refused
from mcp_skills_server.server.front.eras import MODERN, NOBODY
from mcp_skills_server.server.front.parameters import VERSION_KEY
from mcp_skills_server.server.front.request import FaultError, Request
from mcp_skills_server.server.messages import Message
from mcp_skills_server.server.methods import MODERN_VERSIONS

PING_S: Final = 15.0
"""Seconds without a word after which an answer becomes a stream, and a stream says that it is still there."""
_GRACE_S: Final = 0.02
"""Seconds after which a request is worth a task that waits for its client to leave. Most take less."""
_VERSION, _METHOD, _NAME = b"mcp-protocol-version", b"mcp-method", b"mcp-name"
_ONCE: Final = frozenset({_VERSION, _METHOD, _NAME})
_LOOKED_AT: Final = _ONCE | {b"accept", b"content-type"}
_NAMED: Final[Mapping[str, str]] = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
"""By method the parameter that `Mcp-Name` repeats."""
_ENCODED: Final = b"=?base64?"
_JSON: Final = "application/json"
_TAKES_JSON: Final = frozenset({"*/*", _JSON, "application/*"})
_TAKES_STREAMS: Final = frozenset({"*/*", "text/event-stream", "text/*"})
_STATUS: Final[Mapping[int, int]] = {INVALID_PARAMS: 400, INVALID_REQUEST: 400, METHOD_NOT_FOUND: 404}
"""By code of an error its status, where that is not 200."""
_PING: Final = b": ping\r\n\r\n"
_STREAM_HEADERS: Final = (
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"connection", b"keep-alive"),
    (b"x-accel-buffering", b"no"),
)

_Headers: TypeAlias = dict[bytes, bytes]


class Modern:
    """Answers the requests of the modern era.

    Args:
        attachment: the skills that are served. Somebody else keeps it running.
    """

    def __init__(self, attachment: Attachment) -> None:
        self._dispatcher: Final = Dispatcher(attachment)

    def takes(self, scope: Scope, message: Message) -> bool:
        """Whether a POST with this message is one of ours."""
        headers = _headers(scope)
        version = None if headers is None else headers.get(_VERSION, b"").decode("latin-1")
        if headers is None or version not in MODERN_VERSIONS or message.kind != "request":
            return False
        method: str = message.fields["method"]
        params = cast("Mapping[str, Any]", message.fields.get("params") or {})
        return (
            self._dispatcher.answers(method, MODERN)
            and headers.get(_METHOD) == method.encode()
            and MODERN.refusal(method, params) is None
            and params["_meta"][VERSION_KEY] == version
            and (method not in _NAMED or _names(headers.get(_NAME), params.get(_NAMED[method])))
            and _is_json(headers.get(b"content-type", b""))
            and _takes_both(headers.get(b"accept", b""))
        )

    async def __call__(self, message: Message, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer it, as JSON, or as a stream if there is something to say before; no more when the client leaves."""
        exchange = _Exchange(scope, send)
        fields = message.fields
        request = Request(
            message.id, fields["method"], fields.get("params"), MODERN, NOBODY, channel=exchange, admitted=True
        )
        del message, fields  # a stream may last for days
        body, status = None, 200
        async with anyio.create_task_group() as tasks:

            async def watch() -> None:
                await exchange.keep_alive(receive)
                tasks.cancel_scope.cancel()

            def begin() -> None:
                exchange.is_watched = True
                tasks.start_soon(watch)

            watching = asyncio.get_running_loop().call_later(_GRACE_S, begin)
            try:
                body = await self._dispatcher.result(request)
            except FaultError as error:
                body, status = refused(error.fault), _STATUS.get(error.fault.code, 200)
            finally:
                watching.cancel()
                request.done = True
            if exchange.is_watched:
                tasks.cancel_scope.cancel()
        if body is not None:
            await exchange.end(b'{"jsonrpc":"2.0","id":' + jsonrpc.dump(request.id) + body + b"}", status)


class _Exchange:
    """One request on its way: how its client is reached, by JSON at the end or by a stream from the first word on."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self.owner = bearer(scope)
        self.principal = principal(scope)
        self.counted = counted(scope)
        self.audience: object | None = None
        self.is_shared = False
        self.is_gone = False
        self.is_watched = False
        self._send = send
        self._sending = anyio.Lock(fast_acquire=True)
        self._is_stream = False
        self._is_over = False
        self._silent_since = anyio.current_time()

    async def send(self, method: str, params: dict[str, Any] | None) -> None:
        """Send a notification."""
        body = b"" if params is None else b',"params":' + jsonrpc.dump(params)
        await self._event(_event(b'{"jsonrpc":"2.0","method":' + jsonrpc.dump(method) + body + b"}"))

    async def end(self, answer: bytes, status: int) -> None:
        """Send the answer, after which there is nothing."""
        self._is_over = True
        async with self._sending:
            if self._is_stream:
                await self._send({"type": "http.response.body", "body": _event(answer), "more_body": False})
                return
            length = str(len(answer)).encode()
            headers = [(b"content-length", length), (b"content-type", _JSON.encode())]
            await self._send({"type": "http.response.start", "status": status, "headers": headers})
            await self._send({"type": "http.response.body", "body": answer})

    async def keep_alive(self, receive: Receive) -> None:
        """Say now and then that the request is worked on. Returns when its client leaves."""
        while True:
            with anyio.CancelScope(deadline=self._silent_since + PING_S):
                while (await receive())["type"] != "http.disconnect":
                    pass
                return
            if anyio.current_time() >= self._silent_since + PING_S:
                await self._event(_PING)

    async def _event(self, raw: bytes) -> None:
        async with self._sending:
            if self._is_over:
                return
            if not self._is_stream:
                await self._send({"type": "http.response.start", "status": 200, "headers": list(_STREAM_HEADERS)})
                self._is_stream = True
            await self._send({"type": "http.response.body", "body": raw, "more_body": True})
            self._silent_since = anyio.current_time()


def _event(message: bytes) -> bytes:
    # In ASCII: some clients take U+2028 for the end of a line.
    data = message if message.isascii() else json.dumps(jsonrpc.parse(message), separators=(",", ":")).encode()
    return b"event: message\r\ndata: " + data + b"\r\n\r\n"


def _headers(scope: Scope) -> _Headers | None:
    """The headers that are looked at, the first where one stands twice; None if one does that may not."""
    out: _Headers = {}
    for name, value in scope["headers"]:
        if name in _LOOKED_AT:
            if name not in out:
                out[name] = value
            elif name in _ONCE:
                return None
    return out


def _names(header: bytes | None, named: object) -> bool:
    """Whether `Mcp-Name` repeats the parameter as it is. One in Base64 is for the SDK to read."""
    if named is None:
        return True
    return header is not None and not header.startswith(_ENCODED) and header.decode("latin-1") == named


def _is_json(content_type: bytes) -> bool:
    return content_type[: len(_JSON)].lower() == _JSON.encode()


def _takes_both(accept: bytes) -> bool:
    kinds = {kind.partition(";")[0].strip().lower() for kind in accept.decode("latin-1").split(",")}
    return not kinds.isdisjoint(_TAKES_JSON) and not kinds.isdisjoint(_TAKES_STREAMS)
