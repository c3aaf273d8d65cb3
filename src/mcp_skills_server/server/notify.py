"""Changes -> the notifications that each connected client may receive.

A legacy client hears of everything over its connection, once it is initialized. A modern client hears
what its `subscriptions/listen` request named, on that request's own stream, and nothing else (MCP-34). A
notification says "fetch again"; so a client that reads slowly is owed each one at most once, and what it is owed is
bounded by what it subscribed to. Of what a client asks for only that is kept which this server can come to serve, and
nobody's streams or subscriptions are at another's cost. No SDK here: a front says how a client is reached.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, Protocol, TypeAlias
from weakref import WeakKeyDictionary

from mcp_skills_server.access.grants import Permissions
from mcp_skills_server.access.principal import Principal
from mcp_skills_server.dialects import prompts, resources, runtime
from mcp_skills_server.errors import RequestError, SkillsServerError
from mcp_skills_server.format.uris import canonical, segments
from mcp_skills_server.runtime.quota import Owner, Quota
from mcp_skills_server.server.mailbox import Mailbox
from mcp_skills_server.server.notices import Notice

logger = logging.getLogger(__name__)

MOST_SUBSCRIPTIONS: Final = 1024
"""URIs that one client may watch."""
MOST_STREAMS: Final = 1024
"""`subscriptions/listen` streams that may be open at once."""
MOST_WATCHED: Final = 64 * MOST_SUBSCRIPTIONS
"""Subscriptions of all legacy clients together."""
LONGEST_URI: Final = 4096
"""Characters of a URI that may be watched."""
MOST_TEXT: Final = 32 << 10
"""Characters of all URIs that one stream may name."""
_STREAM: Final = "io.modelcontextprotocol/subscriptionId"
"""What tells in `_meta` which stream a message belongs to."""

Send: TypeAlias = Callable[[str, "dict[str, Any] | None"], Awaitable[None]]
"""Sends a notification: its method and its parameters, None for none."""


class ClientLeftError(SkillsServerError):
    """A client has left, so that a notification cannot be sent to it."""


def _nothing() -> None:
    """There is nothing to tell."""


class Peer(Protocol):
    """A legacy client, as the front reaches it."""

    @property
    def connection(self) -> object:
        """What lasts as long as the client is there, and can be weakly referenced."""
        ...

    @property
    def principal(self) -> Principal | None:
        """Whom the client proved to be, None where nobody has to."""
        ...

    def at_end(self, work: Callable[[], object]) -> None:
        """Have `work` called when the connection ends; what was added last is called first."""
        ...

    async def send(self, method: str, params: dict[str, Any] | None) -> None:
        """Send a notification, or raise `ClientLeftError`: nobody is there to hear it."""
        ...


class Stream:
    """The stream that answers a `subscriptions/listen`.

    Attributes:
        id: of the request; None where it came as a notification.
        send: sends on this stream.
        shared: whether other messages share its channel, so that its end has to be said.
        principal: whom the client proved to be, None where nobody has to.
    """

    __slots__ = ("id", "principal", "send", "shared")  # no dataclass: to make the class takes half a millisecond

    def __init__(self, id_: str | int | None, send: Send, shared: bool, principal: Principal | None = None) -> None:
        self.id = id_
        self.send = send
        self.shared = shared
        self.principal = principal


class _Legacy:
    """A client that shook hands: its mailbox, the URIs that it watches, and what it might when it began to listen."""

    def __init__(self, principal: Principal | None, permissions: Permissions | None) -> None:
        self.uris: set[str] = set()
        self.permissions = permissions
        self.mailbox = Mailbox(lambda notice: notice[1] is None or notice[1] in self.uris, principal)


class Notifier:
    """Sends every connected client the notifications that it may have.

    Args:
        extensions: notifications that the SDK does not know, by the key of the filter that asks for them.
        tools: whether there are tools.
        prompts: whether there are prompts.
        streams: listen streams that one owner may have; None for a quarter of all.
        permissions: what a principal may, None where everybody may everything.
        between: what there is for whoever had the first permissions and has the second now.

    Attributes:
        extensions: as given.
        relays: whether events of the server that we are attached to reach listen streams too.
    """

    def __init__(
        self,
        extensions: Mapping[str, str],
        *,
        tools: bool = False,
        prompts: bool = False,
        streams: int | None = None,
        permissions: Callable[[Principal | None], Permissions | None] = lambda _: None,
        between: Callable[[Permissions, Permissions], Collection[Notice]] = lambda _old, _new: (),
    ) -> None:
        self._permissions = permissions
        self._between = between
        self.extensions = extensions
        self._tools = tools
        self._prompts = prompts
        self.relays = False
        self._is_closing = False
        self._sent_to: set[Mailbox] = set()
        self._streams: dict[Mailbox, None] = {}
        self._places = Quota[Mailbox]("listen streams", MOST_STREAMS, streams, name="streams")
        self._watched = Quota[tuple[int, str]]("subscriptions", MOST_WATCHED)
        self._legacy: WeakKeyDictionary[Any, _Legacy] = WeakKeyDictionary()
        self._tasks: asyncio.TaskGroup | None = None
        self._telling: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """While this is entered, legacy clients are notified."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            try:
                yield
            finally:
                self._tasks = None
                for each in self._telling:
                    each.cancel()

    def publish(self, notices: Iterable[Notice]) -> None:
        """Notify everyone. Returns at once."""
        found = list(notices)
        self.publish_to_each(lambda _: found)

    def publish_to_each(self, notices_for: Callable[[Principal | None], Collection[Notice]]) -> None:
        """Notify each client of what there is for its principal. Returns at once."""
        for mailbox in (*self._sent_to, *self._streams):
            mailbox.put(notices_for(mailbox.principal))

    def close(self) -> None:
        """End every listen stream as the protocol says: what is owed, then the result of the request.

        One that is asked for later is acknowledged, and ended in the same way.
        """
        self._is_closing = True
        for mailbox in list(self._streams):
            mailbox.close()

    def add_legacy_client(self, peer: Peer) -> None:
        """A legacy client is ready for notifications."""
        if self._tasks is not None:
            client = self._client(peer)
            if client.mailbox not in self._sent_to:
                self._sent_to.add(client.mailbox)
                telling = self._tasks.create_task(self._tell(peer, client.mailbox))
                self._telling.add(telling)
                telling.add_done_callback(self._telling.discard)

    def follows(self, connection: object, principal: Principal | None) -> Callable[[], None]:
        """A legacy client opens its stream, and hears on it what is for whom it proves to be by that.

        That may be somebody with other groups than when it shook hands, whose skills are others. What it was sent
        meanwhile reached nobody.

        Returns:
            what tells it so, to be called when its stream is open.
        """
        client = self._legacy.get(connection)
        if client is None or client.mailbox.principal == principal:
            return _nothing
        # When grants changed meanwhile too, it may have heard of that or not.
        before = {client.permissions, self._permissions(client.mailbox.principal)}
        client.mailbox.principal = principal

        def tell() -> None:
            now = client.permissions = self._permissions(principal)
            for each in before:
                if each is not None and now is not None and each != now:
                    client.mailbox.put(self._between(each, now))

        return tell

    def watch(self, peer: Peer, uri: str, owner: Owner = None) -> None:
        """A legacy client wants to hear of one resource.

        Args:
            peer: the client.
            uri: of a resource that is served, as notifications have it.
            owner: among whose subscriptions it counts.

        Raises:
            RequestError: it watches too many.
        """
        client = self._client(peer)
        if uri in client.uris:
            return
        if len(client.uris) >= MOST_SUBSCRIPTIONS:
            raise RequestError(f"Too many subscriptions: at most {MOST_SUBSCRIPTIONS}")
        self._watched.claim((id(client), uri), owner, busy=lambda _: True)  # none ends without a word
        client.uris.add(uri)

    def unwatch(self, peer: Peer, uri: str) -> None:
        """A legacy client no longer wants to hear of one resource."""
        client = self._client(peer)
        client.uris.discard(uri)
        self._watched.release((id(client), uri))

    async def listen(self, stream: Stream, wanted: Mapping[str, Any], owner: Owner = None) -> dict[str, Any]:
        """`subscriptions/listen`: acknowledge, then tell what was asked for, until either side ends it.

        An owner who opens too many streams has its oldest one ended, with its result.

        Args:
            stream: where to tell it.
            wanted: the filter, its known fields of the types of the protocol.
            owner: among whose streams it counts.

        Raises:
            RequestError: it names too many resources, or others have left no place for a stream.
        """
        if stream.id is None:
            raise RequestError("subscriptions/listen must be a request")
        honoured = _honoured(
            wanted,
            extensions=self.extensions,
            tools=self._tools or self.relays,
            prompts=self._prompts or self.relays,
            foreign=self.relays,
        )
        methods, uris = _wanted(honoured, self.extensions)
        mailbox = Mailbox(
            lambda notice: notice[0] in methods if notice[1] is None else notice[1] in uris, stream.principal
        )
        meta: dict[str, Any] = {_STREAM: stream.id}
        for oldest in self._places.claim(mailbox, owner):
            oldest.close()
        self._streams[mailbox] = None
        if self._is_closing:
            mailbox.close()
        try:
            await stream.send("notifications/subscriptions/acknowledged", {"_meta": meta, "notifications": honoured})
            del honoured, wanted  # a stream may last for days; what it needs is in its mailbox
            while (notice := await mailbox.take()) is not None:
                await stream.send(notice[0], _params(notice, meta))
            if stream.shared:
                # No stream closes with the request, so its end is a message of its own (MCP-38).
                ended = {"requestId": stream.id, "reason": "the server ends the stream"}
                await stream.send("notifications/cancelled", ended)
        finally:
            self._streams.pop(mailbox, None)
            self._places.release(mailbox)
        return {"_meta": meta, "resultType": "complete"}

    def _client(self, peer: Peer) -> _Legacy:
        client = self._legacy.get(peer.connection)
        if client is None:
            client = self._legacy[peer.connection] = _Legacy(peer.principal, self._permissions(peer.principal))
            peer.at_end(client.mailbox.close)
            peer.at_end(lambda: self._forget(client))
            peer.at_end(lambda: self._legacy.pop(peer.connection, None))
        return client

    def _forget(self, client: _Legacy) -> None:
        for uri in client.uris:
            self._watched.release((id(client), uri))
        client.uris.clear()

    async def _tell(self, peer: Peer, mailbox: Mailbox) -> None:
        try:
            while (notice := await mailbox.take()) is not None:
                await peer.send(notice[0], _params(notice, None))
        except ClientLeftError as error:
            logger.debug("%s", error)
        finally:
            self._sent_to.discard(mailbox)


_LISTS: Final = (
    ("toolsListChanged", runtime.LIST_CHANGED),
    ("promptsListChanged", prompts.LIST_CHANGED),
    ("resourcesListChanged", resources.LIST_CHANGED),
)
"""The lists of the protocol itself: what asks for news of each, and the notification."""
_URIS: Final = "resourceSubscriptions"


def _honoured(
    requested: Mapping[str, Any], *, extensions: Mapping[str, str], tools: bool, prompts: bool, foreign: bool
) -> dict[str, Any]:
    """The part of a filter that this server can keep.

    A URI that can never name anything here is left out, as the acknowledgement shows.
    """
    asked = dict.fromkeys(requested.get(_URIS) or ())
    uris = [uri for uri in asked if len(uri) <= LONGEST_URI and (foreign or segments(uri) is not None)]
    if len(uris) > MOST_SUBSCRIPTIONS:
        raise RequestError(f"Too many resource subscriptions: at most {MOST_SUBSCRIPTIONS}")
    if sum(map(len, uris)) > MOST_TEXT:
        raise RequestError(f"The URIs of resourceSubscriptions are too long: at most {MOST_TEXT:,} characters in all")
    kept = zip((key for key, _ in _LISTS), (tools, prompts, True), strict=True)
    honoured: dict[str, Any] = {key: True for key, offered in kept if offered and requested.get(key)}
    if uris:
        honoured[_URIS] = uris
    return honoured | {key: True for key in extensions if requested.get(key) is True}


def _wanted(honoured: Mapping[str, Any], extensions: Mapping[str, str]) -> tuple[set[str], frozenset[str]]:
    """The notifications without a URI that a client asked for, and the URIs that it watches."""
    methods = {method for key, method in (*_LISTS, *extensions.items()) if key in honoured}
    return methods, frozenset(map(canonical, honoured.get(_URIS, ())))


def _params(notice: Notice, meta: dict[str, Any] | None) -> dict[str, Any] | None:
    stamp: dict[str, Any] = {} if meta is None else {"_meta": meta}
    return stamp | ({} if notice[1] is None else {"uri": notice[1]}) or None
