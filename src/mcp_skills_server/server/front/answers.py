"""The methods that our front answers: those for skills by their handlers, and the protocol's own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

from mcp_skills_server.access.principal import Principal
from mcp_skills_server.catalog.view import View, retry_when_stale
from mcp_skills_server.format.dependencies import Served
from mcp_skills_server.server import methods
from mcp_skills_server.server.attachment import Attachment
from mcp_skills_server.server.front import eras
from mcp_skills_server.server.front.eras import DISCOVER, INITIALIZE, PING, Client
from mcp_skills_server.server.front.request import Channel, Params, Request
from mcp_skills_server.server.front.shapes import is_set
from mcp_skills_server.server.notify import Peer, Stream
from mcp_skills_server.server.requests import Caller, Handler

Answer: TypeAlias = Callable[[Request], Awaitable[dict[str, Any]]]
_T = TypeVar("_T")

_FROM_VIEW: Final = frozenset({"skills/list", "skills/get", "resources/list", "resources/read"})
"""Methods of which the answer says what is in the view, and asking leaves nothing behind."""


class Answers:
    """What answers each method.

    Args:
        attachment: the skills that are served.
        peer: the client, where one connection carries all its requests; None where each request stands alone, and no
            handshake or subscription can outlast one.
    """

    def __init__(self, attachment: Attachment, peer: Peer | None) -> None:
        self._attachment = attachment
        self._peer = peer
        settings = attachment.settings
        self._handlers: dict[str, Handler] = {
            **methods.SKILLS,
            **methods.RESOURCES,
            **(methods.PROMPTS if settings.prompts else {}),
        }
        self._last: tuple[Client | None, Channel | None, Caller | None] = None, None, None
        """Who asked last to be answered at once: mostly the same one asks again."""
        self._asked_more = False
        """Whether the last one was answered from more than its view: from tools, which the operator may change."""
        self._readers = dict(self._handlers)
        if settings.tools:
            self._readers["tools/list"] = attachment.tools.list_tools

    def table(self) -> dict[str, Answer]:
        """By method what answers it."""
        attachment = self._attachment
        settings, tools = attachment.settings, attachment.tools
        lasting: dict[str, Answer] = {}
        if self._peer is not None:
            lasting = {
                INITIALIZE: self._initialize,
                PING: _nothing,
                "resources/subscribe": partial(self._subscribe, self._peer),
                "resources/unsubscribe": partial(self._unsubscribe, self._peer),
            }
        table: dict[str, Answer] = {
            **lasting,
            DISCOVER: self._discover,
            "subscriptions/listen": self._listen,
            **{method: partial(self._call, handler, attachment.ready) for method, handler in self._handlers.items()},
        }
        if settings.tools:
            table["tools/list"] = partial(self._call, tools.list_tools, attachment.glimpse_and_begin)
            table["tools/call"] = partial(self._call, tools.call_tool, attachment.ready)
        return table

    def at_once(self, request: Request) -> dict[str, Any] | None:
        """The result of a request that has what it needs at hand; None where its answer has to be awaited.

        The handlers that are tried here only look: one that would have to wait is given up, and called anew.

        Raises:
            Exception: whatever the handler raises; awaited, it may be answered all the same.
        """
        attachment, handler = self._attachment, self._readers.get(request.method)
        if handler is None or not attachment.is_ready:
            return None
        client, channel, caller = self._last
        if client is not request.client or channel is not request.channel or caller is None:
            caller = self._caller(request)
            if request.channel.is_shared:  # and not over with this request
                self._last = request.client, request.channel, caller
        view = self.view(caller.principal)
        self._asked_more = False
        result = _finished(handler(view, attachment.settings, caller, request.params or {}))
        if request.method in _FROM_VIEW and not self._asked_more:
            request.made_from = view
        return result

    def view(self, principal: Principal | None) -> View:
        """What a request sees that is answered at once, or not at all."""
        return View(self._attachment.views.of(principal), last_try=False)

    async def _call(self, handler: Handler, ready: Callable[[], Awaitable[None]], request: Request) -> dict[str, Any]:
        attachment = self._attachment
        await ready()
        caller, params = self._caller(request, partial(_report, request)), request.params or {}
        return await retry_when_stale(
            attachment.views.of(caller.principal), lambda view: handler(view, attachment.settings, caller, params)
        )

    def _caller(self, request: Request, progress: Callable[[float], Awaitable[None]] | None = None) -> Caller:
        channel = request.channel
        connection = None if request.era.modern else channel.connection
        return Caller(
            request.client.extensions,
            served=self._served,
            principal=channel.principal,
            counted=channel.counted,
            connection=connection,
            progress=progress,
            audience=connection or channel.audience,
            client=request.client.name,
        )

    async def _served(self, view: View) -> Served:
        self._asked_more = True
        return methods.served(self._attachment, view)

    async def _initialize(self, request: Request) -> dict[str, Any]:
        given = request.params or {}
        shown = eras.handshake(given, self._capabilities(changes=False))
        client = eras.client_of(given.get("clientInfo"), given.get("capabilities"), shown["protocolVersion"])
        return await self._attachment.declared(shown, request.channel.principal, client.name, client.extensions)

    async def _discover(self, request: Request) -> dict[str, Any]:
        shown = eras.discovery(self._capabilities(changes=True))
        return await self._attachment.declared(
            shown, request.channel.principal, request.client.name, request.client.extensions
        )

    def _capabilities(self, *, changes: bool) -> dict[str, Any]:
        """What the protocol itself calls for; the skills add theirs."""
        settings = self._attachment.settings
        lists = {"prompts": settings.prompts, "resources": True, "tools": settings.tools}
        shown: dict[str, Any] = {key: {"listChanged": changes} for key, offered in lists.items() if offered}
        return {"completions": {}, **shown}

    async def _subscribe(self, peer: Peer, request: Request) -> dict[str, Any]:
        await methods.subscribe(self._attachment, peer, (request.params or {})["uri"], request.channel.counted)
        return {}

    async def _unsubscribe(self, peer: Peer, request: Request) -> dict[str, Any]:
        methods.unsubscribe(self._attachment, peer, (request.params or {})["uri"])
        return {}

    async def _listen(self, request: Request) -> dict[str, Any]:
        # Acknowledged after the first scan, so that a notification follows whatever changes after it.
        await self._attachment.ready()
        given, request.params = request.params or {}, None  # a stream may last for days
        channel = request.channel
        stream = Stream(request.id, channel.send, channel.is_shared, channel.principal)
        listening = self._attachment.notifier.listen(stream, _wanted(given), channel.counted)
        del given
        return await listening


_FLAGS: Final = frozenset({"toolsListChanged", "promptsListChanged", "resourcesListChanged"})


def _wanted(params: Params) -> dict[str, Any]:
    return {key: is_set(value) if key in _FLAGS else value for key, value in params["notifications"].items()}


def _finished(work: Coroutine[Any, Any, _T]) -> _T | None:
    """What a coroutine returns that never waits; None for one that does, which is given up."""
    try:
        work.send(None)
    except StopIteration as end:
        return end.value
    work.close()
    return None


async def _nothing(_: Request) -> dict[str, Any]:
    return {}


async def _report(request: Request, seconds: float) -> None:
    meta: Params = (request.params or {}).get("_meta") or {}
    token = meta.get("progressToken")
    if isinstance(token, str | int) and not isinstance(token, bool) and not request.done:
        said = {"progressToken": token, "progress": seconds, "message": f"running for {seconds:.0f} s"}
        await request.channel.send("notifications/progress", said)
