"""Notifications of catalogue changes: what there is to tell, and each client's queue of what it is
owed.

A legacy client hears of everything over its connection, once it is initialized. A modern client
hears what its `subscriptions/listen` request named, on that request's own stream, and nothing else
(MCP-34). A notification says "fetch again" and carries no data; so a queue holds each one at most
once, and is bounded by what its client subscribed to. Quotas bound the streams and subscriptions of
each client. No SDK here: a `Peer` is how a transport reaches one.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final, Protocol, TypeAlias
from weakref import WeakKeyDictionary

from mcp_skills_server.access.grants import Permissions
from mcp_skills_server.access.principal import Principal
from mcp_skills_server.dialects import prompts as prompt_dialect
from mcp_skills_server.dialects import resources as resource_dialect
from mcp_skills_server.dialects import runtime
from mcp_skills_server.errors import RequestError, SkillsServerError
from mcp_skills_server.format import uris
from mcp_skills_server.model import Changes
from mcp_skills_server.runtime.quota import Owner, Quota
from mcp_skills_server.server import prompts, resources
from mcp_skills_server.server.requests import Settings

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
"""The key of `_meta` that names the stream of a message."""

_URIS: Final = "resourceSubscriptions"

_REMEMBERED_S: Final = 600.0
"""Seconds for which notifications are repeated for other replicas: fetching a large repository
takes minutes."""
_MOST_REMEMBERED: Final = 256

Notice: TypeAlias = "tuple[str, str | None]"
"""A notification method, and the URI that it is about, if it is about one."""
Send: TypeAlias = Callable[[str, "dict[str, Any] | None"], Awaitable[None]]
"""Sends a notification: its method and its parameters, None for none."""


class ClientLeftError(SkillsServerError):
    """A client has left, so that a notification cannot be sent to it."""


def _nothing() -> None:
    """Do nothing."""


class Peer(Protocol):
    """A legacy client, as its transport reaches it."""

    @property
    def connection(self) -> object:
        """An object that lasts as long as the client is there, and can be weakly referenced."""
        ...

    @property
    def principal(self) -> Principal | None:
        """The proved identity, None where none is required."""
        ...

    def at_end(self, work: Callable[[], object]) -> None:
        """Have `work` called when the connection ends; what was added last is called first."""
        ...

    async def send(self, method: str, params: dict[str, Any] | None) -> None:
        """Send a notification, or raise `ClientLeftError`."""
        ...


@dataclass(frozen=True, slots=True)
class Stream:
    """The stream that answers a `subscriptions/listen`.

    Attributes:
        id: of the request; None where it came as a notification.
        send: sends on this stream.
        shared: whether other messages share its channel, so that its end takes a message.
        principal: the proved identity, None where none is required.
    """

    id: str | int | None
    send: Send
    shared: bool
    principal: Principal | None = None


def lists(settings: Settings, *, foreign: bool = False) -> dict[str, str]:
    """Return the notification of each list that is served, by the key of the filter that asks for
    it.

    `foreign` is whether the server that we are attached to may have lists of its own.
    """
    found: dict[str, str] = {}
    if settings.tools or foreign:
        found["toolsListChanged"] = runtime.LIST_CHANGED
    if settings.prompts or foreign:
        found["promptsListChanged"] = prompt_dialect.LIST_CHANGED
    return {
        **found,
        "resourcesListChanged": resource_dialect.LIST_CHANGED,
        **settings.spoken.notifications,
    }


def notices(changes: Changes, settings: Settings, *, tools: bool) -> list[Notice]:
    """Return the notices of these changes; `tools` is whether the list of tools has changed."""
    least = settings.least
    before = {path: skill for path, skill in changes.before.items() if skill.standing >= least}
    after = {path: skill for path, skill in changes.after.items() if skill.standing >= least}
    out: list[Notice] = []
    changed = {path for path, _ in changes.files}
    if before.keys() != after.keys() or changed & before.keys():
        out += [(method, None) for method in settings.spoken.notifications.values()]
    if {path: resources.descriptor(skill) for path, skill in before.items()} != {
        path: resources.descriptor(skill) for path, skill in after.items()
    }:
        out.append((resource_dialect.LIST_CHANGED, None))
    for path, file_path in sorted(changes.files):
        if path in before or path in after:
            out.append((resource_dialect.UPDATED, uris.uri(path, file_path)))
    if tools:
        out.append((runtime.LIST_CHANGED, None))
    if settings.prompts and prompts.changed(changes, settings):
        out.append((prompt_dialect.LIST_CHANGED, None))
    return out


class Mailbox:
    """The queue of what one client is owed: each notification once, in order.

    Args:
        wants: whether the client asked for a notification.
        principal: the proved identity, None where none is required.

    Attributes:
        principal: as given.
    """

    def __init__(self, wants: Callable[[Notice], bool], principal: Principal | None = None) -> None:
        self.principal = principal
        self._wants = wants
        self._pending: dict[Notice, None] = {}
        self._changed = asyncio.Event()
        self._closed = False

    def put(self, notices: Iterable[Notice]) -> None:
        """Queue those of the notices that the client wants."""
        if not self._closed:
            self._pending |= dict.fromkeys(notice for notice in notices if self._wants(notice))
            self._changed.set()

    def close(self) -> None:
        """Queue no more. What is queued can still be taken."""
        self._closed = True
        self._changed.set()

    async def take(self) -> Notice | None:
        """Return the next notice, or None when there will be no more."""
        while not self._pending:
            if self._closed:
                return None
            self._changed = asyncio.Event()
            await self._changed.wait()
        # Out of the queue before it is sent: a change during a slow send is news again.
        notice = next(iter(self._pending))
        del self._pending[notice]
        return notice


class _Legacy:
    """A client that shook hands: its mailbox, the URIs that it watches, and its permissions when it
    began to listen."""

    def __init__(self, principal: Principal | None, permissions: Permissions | None) -> None:
        self.uris: set[str] = set()
        self.permissions = permissions
        self.mailbox = Mailbox(
            lambda notice: notice[1] is None or notice[1] in self.uris, principal
        )


class Notifier:
    """Sends every connected client the notifications that it may have.

    Args:
        settings: what the operator chose.
        permissions: returns what a principal may do, None where no grants are in force.
        between: returns the notices for a principal whose permissions change from the first to the
            second.

    Attributes:
        relays: whether events of the server that we are attached to reach listen streams too.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        permissions: Callable[[Principal | None], Permissions | None] = lambda _: None,
        between: Callable[[Permissions, Permissions], Collection[Notice]] = lambda _old, _new: (),
    ) -> None:
        self._permissions = permissions
        self._between = between
        self._settings = settings
        self.relays = False
        self._is_closing = False
        self._sent_to: set[Mailbox] = set()
        self._streams: dict[Mailbox, None] = {}
        self._places = Quota[Mailbox](
            "listen streams", MOST_STREAMS, settings.streams, name="streams"
        )
        self._watched = Quota[tuple[int, str]]("subscriptions", MOST_WATCHED)
        self._legacy: WeakKeyDictionary[Any, _Legacy] = WeakKeyDictionary()
        self._tasks: asyncio.TaskGroup | None = None
        self._telling: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Notify legacy clients while this is entered."""
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

    def publish_to_each(
        self, notices_for: Callable[[Principal | None], Collection[Notice]]
    ) -> None:
        """Notify each client of the notices for its principal. Returns at once."""
        for mailbox in (*self._sent_to, *self._streams):
            mailbox.put(notices_for(mailbox.principal))

    def close(self) -> None:
        """End every listen stream as the protocol says: what is queued, then the result of the
        request.

        A later one is acknowledged and ended in the same way.
        """
        self._is_closing = True
        for mailbox in list(self._streams):
            mailbox.close()

    def add_legacy_client(self, peer: Peer) -> None:
        """Begin to notify a legacy client."""
        if self._tasks is not None:
            client = self._client(peer)
            if client.mailbox not in self._sent_to:
                self._sent_to.add(client.mailbox)
                telling = self._tasks.create_task(self._tell(peer, client.mailbox))
                self._telling.add(telling)
                telling.add_done_callback(self._telling.discard)

    def follows(self, connection: object, principal: Principal | None) -> Callable[[], None]:
        """Have a legacy client that opens its stream notified as the principal that it proves to be
        by that.

        Its groups, and so its skills, may be others than when it shook hands. What it was sent
        meanwhile was lost.

        Returns:
            a function that notifies it of the difference, to be called when its stream is open.
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
        """Subscribe a legacy client to one resource.

        Args:
            peer: the client.
            uri: of a resource that is served, as notifications have it.
            owner: whose quota of subscriptions counts it.

        Raises:
            RequestError: it has too many.
        """
        client = self._client(peer)
        if uri in client.uris:
            return
        if len(client.uris) >= MOST_SUBSCRIPTIONS:
            raise RequestError(f"Too many subscriptions: at most {MOST_SUBSCRIPTIONS}")
        # none ends without a word
        self._watched.claim((id(client), uri), owner, busy=lambda _: True)
        client.uris.add(uri)

    def unwatch(self, peer: Peer, uri: str) -> None:
        """End the subscription of a legacy client to one resource."""
        client = self._client(peer)
        client.uris.discard(uri)
        self._watched.release((id(client), uri))

    async def listen(
        self, stream: Stream, wanted: Mapping[str, Any], owner: Owner = None
    ) -> dict[str, Any]:
        """`subscriptions/listen`: acknowledge, then notify of what the filter wants, until either
        side ends it.

        The oldest stream of an owner with too many is ended, with its result.

        Args:
            stream: where to send.
            wanted: the filter, its known fields of the types of the protocol.
            owner: whose quota of streams counts it.

        Raises:
            RequestError: it names too many resources, or the streams of others leave no place.
        """
        if stream.id is None:
            raise RequestError("subscriptions/listen must be a request")
        honoured = self._honoured(wanted)
        methods = {
            method for key, method in lists(self._settings, foreign=True).items() if key in honoured
        }
        watched = frozenset(map(uris.canonical, honoured.get(_URIS, ())))
        mailbox = Mailbox(
            lambda notice: notice[0] in methods if notice[1] is None else notice[1] in watched,
            stream.principal,
        )
        meta: dict[str, Any] = {_STREAM: stream.id}
        for oldest in self._places.claim(mailbox, owner):
            oldest.close()
        self._streams[mailbox] = None
        if self._is_closing:
            mailbox.close()
        try:
            await stream.send(
                "notifications/subscriptions/acknowledged",
                {"_meta": meta, "notifications": honoured},
            )
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

    def _honoured(self, requested: Mapping[str, Any]) -> dict[str, Any]:
        """Return the part of a filter that this server can honour.

        A URI that can never name anything here is left out, as the acknowledgement shows.
        """
        asked = dict.fromkeys(requested.get(_URIS) or ())
        watched = [
            uri
            for uri in asked
            if len(uri) <= LONGEST_URI and (self.relays or uris.segments(uri) is not None)
        ]
        if len(watched) > MOST_SUBSCRIPTIONS:
            raise RequestError(f"Too many resource subscriptions: at most {MOST_SUBSCRIPTIONS}")
        if sum(map(len, watched)) > MOST_TEXT:
            reason = (
                f"The URIs of resourceSubscriptions are too long: at most {MOST_TEXT:,} "
                "characters in all"
            )
            raise RequestError(reason)
        served = lists(self._settings, foreign=self.relays)
        #
        honoured: dict[str, Any] = {key: True for key in served if requested.get(key) is True}
        if watched:
            honoured[_URIS] = watched
        return honoured

    def _client(self, peer: Peer) -> _Legacy:
        client = self._legacy.get(peer.connection)
        if client is None:
            client = self._legacy[peer.connection] = _Legacy(
                peer.principal, self._permissions(peer.principal)
            )
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


class RecentNotifications:
    """Repeats the notifications of the last ten minutes when another replica has caught up.

    A client that hears of a change from one replica may read the old list from a replica that is
    behind. When that one catches up, it notifies its own clients and says so, and all other
    replicas repeat what they notified theirs of.
    """

    def __init__(self, announce: Callable[[], object]) -> None:
        self._announce = announce
        self._notified: deque[tuple[float, Callable[[], None]]] = deque(maxlen=_MOST_REMEMBERED)
        self._loop: asyncio.AbstractEventLoop | None = None

    def add(self, notify: Callable[[], None], *, announced: bool = True) -> None:
        """Remember a notification that was just sent. Called in the event loop."""
        self._notified.append((monotonic(), notify))
        # What it refers to may be large, and no other notification may follow.
        self._loop = asyncio.get_running_loop()
        self._loop.call_later(_REMEMBERED_S, self._forget)
        if announced:
            self._announce()

    def repeat(self) -> None:
        """Send them once more. Called in any thread."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed: no client is left
                self._loop.call_soon_threadsafe(self._repeat)

    def _repeat(self) -> None:
        for _, notify in [*self._notified]:
            notify()

    def _forget(self) -> None:
        while self._notified and self._notified[0][0] <= monotonic() - _REMEMBERED_S:
            self._notified.popleft()


def _params(notice: Notice, meta: dict[str, Any] | None) -> dict[str, Any] | None:
    stamp: dict[str, Any] = {}
    if meta is not None:
        stamp = {"_meta": meta}
    return stamp | ({} if notice[1] is None else {"uri": notice[1]}) or None
