"""Requests of the modern era, which stand alone, answered by our own front instead of the SDK's.

The rule: ours is a POST whose MCP-Protocol-Version names a modern revision, whose other headers take what we send and
agree with its body, and whose body is a request with a whole envelope for a method that we have. All else is the SDK's,
refusals too, so that each wrong request is refused in the SDK's words. `tests/front/` shows that both answer alike.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, TypeAlias, cast

import anyio
from starlette.types import Receive, Scope, Send

from mcp_skills_server.dialects.jsonrpc import INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND
from mcp_skills_server.server.attachment import Attachment
from mcp_skills_server.server.front.dispatch import Dispatcher, answer, refused
from mcp_skills_server.server.front.eras import MODERN, NOBODY
from mcp_skills_server.server.front.parameters import VERSION_KEY
from mcp_skills_server.server.front.request import FaultError, Request
from mcp_skills_server.server.messages import Message
from mcp_skills_server.server.methods import MODERN_VERSIONS
from mcp_skills_server.web.exchange import Exchange

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
            and takes_both(headers.get(b"accept", b""))
        )

    async def __call__(self, message: Message, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer it, as JSON, or as a stream if there is something to say before; no more when the client leaves."""
        exchange = Exchange(scope, send)
        fields = message.fields
        request = Request(
            message.id, fields["method"], fields.get("params"), MODERN, NOBODY, channel=exchange, admitted=True
        )
        del message, fields  # a stream may last for days
        body, status = self._dispatcher.at_once(request), 200
        if body is None:
            body, status = await self._awaited(request, exchange, receive)
        if body is not None:
            await exchange.end(b"".join(answer(request.id, body)), status)

    async def _awaited(self, request: Request, exchange: Exchange, receive: Receive) -> tuple[bytes | None, int]:
        """What the answer has beside its id, None where the client has left; and its status."""
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
        return body, status


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


@lru_cache(maxsize=16)  # a client says the same every time
def takes_both(accept: bytes) -> bool:
    """Whether an Accept header takes JSON and streams, as the protocol wants it."""
    kinds = {kind.partition(";")[0].strip().lower() for kind in accept.decode("latin-1").split(",")}
    return not kinds.isdisjoint(_TAKES_JSON) and not kinds.isdisjoint(_TAKES_STREAMS)
