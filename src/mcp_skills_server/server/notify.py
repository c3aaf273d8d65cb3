"""Notifications of catalogue changes: their derivation, and a coalescing queue for each client.

A legacy client gets all notifications over its connection, once it is initialized. A modern client
gets those that its `subscriptions/listen` request named, on that request's stream (MCP-34).
Notifications carry no data, only the advice to fetch again. A queue therefore holds each one at
most once, which bounds its length. Quotas bound each client's streams and subscriptions.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any, Final, NamedTuple, Protocol, TypeAlias
from weakref import WeakKeyDictionary

from mcp_skills_server.access.grants import Permissions
from mcp_skills_server.access.principal import Principal
from mcp_skills_server.access.quota import Owner, Quota
from mcp_skills_server.dialects import prompts as prompt_dialect
from mcp_skills_server.dialects import resources as resource_dialect
from mcp_skills_server.dialects import runtime
from mcp_skills_server.errors import RequestError, SkillsServerError
from mcp_skills_server.format import uris
from mcp_skills_server.model import Changes, Json, Skill
from mcp_skills_server.server import prompts
from mcp_skills_server.server.requests import Settings
from mcp_skills_server.telemetry.load import Occupancy

logger = logging.getLogger(__name__)

MAX_SUBSCRIPTIONS: Final = 1024
"""The most resource subscriptions of one client."""
MAX_WATCHED: Final = 64 * MAX_SUBSCRIPTIONS
"""The most resource subscriptions of all legacy clients together."""
MAX_URI: Final = 4096
"""The maximum length of a subscribed URI, in characters."""
MAX_TEXT: Final = 32 << 10
"""The maximum total length of the URIs of one stream, in characters."""
_STREAM: Final = "io.modelcontextprotocol/subscriptionId"
"""The `_meta` key with the id of a message's stream."""

_URIS: Final = "resourceSubscriptions"

_REMEMBERED_S: Final = 600.0
"""Seconds for which sent notifications may be repeated: large repositories take minutes."""
_MAX_REMEMBERED: Final = 256

Send: TypeAlias = Callable[[str, "dict[str, Any] | None"], Awaitable[None]]
"""Sends a notification with this method and params."""


class Notice(NamedTuple):
    """A notification's method, and the URI of the resource that it is about."""

    method: str
    uri: str | None = None


class ClientLeftError(SkillsServerError):
    """A notification cannot be sent because the client is gone."""


class Peer(Protocol):
    """Interface of a legacy client, implemented by each transport."""

    @property
    def connection(self) -> object:
        """A weakly referenceable object with the lifetime of the client's connection."""

    @property
    def principal(self) -> Principal | None:
        """The authenticated principal, or None."""

    def add_exit_callback(self, work: Callable[[], object]) -> None:
        """Call `work` when the connection ends, in LIFO order."""

    async def send(self, method: str, params: dict[str, Any] | None) -> None:
        """Send a notification, or raise `ClientLeftError`."""


@dataclass(frozen=True, slots=True)
class Stream:
    """The response stream of a `subscriptions/listen` request.

    Attributes:
        id: of the request; None if it was sent as a notification.
        shared: whether the channel carries other messages, so that the end needs a message.
    """

    id: str | int | None
    send: Send
    shared: bool
    principal: Principal | None = None


def list_notices(settings: Settings, *, foreign: bool = False) -> dict[str, str]:
    """Return the list-changed notification of each list, by its key in a subscription filter.

    With `foreign`, include lists that the server to which this is attached may have.
    """
    methods: dict[str, str] = {}
    if settings.tools or foreign:
        methods["toolsListChanged"] = runtime.LIST_CHANGED
    if settings.prompts or foreign:
        methods["promptsListChanged"] = prompt_dialect.LIST_CHANGED
    return {
        **methods,
        "resourcesListChanged": resource_dialect.LIST_CHANGED,
        **settings.spoken.notifications,
    }


def notices(changes: Changes, settings: Settings, *, tools: bool) -> list[Notice]:
    """Return the notices of these changes; `tools` tells whether the list of tools changed."""
    least = settings.least
    before = {path: skill for path, skill in changes.before.items() if skill.standing >= least}
    after = {path: skill for path, skill in changes.after.items() if skill.standing >= least}
    out: list[Notice] = []
    changed = {path for path, _ in changes.files}
    if before.keys() != after.keys() or changed & before.keys():
        out += map(Notice, settings.spoken.notifications.values())
    if _descriptors(before) != _descriptors(after):
        out.append(Notice(resource_dialect.LIST_CHANGED))
    served = before.keys() | after.keys()
    for skill_path, file_path in sorted(changes.files):
        if skill_path in served:
            out.append(Notice(resource_dialect.UPDATED, uris.uri(skill_path, file_path)))
    if tools:
        out.append(Notice(runtime.LIST_CHANGED))
    if settings.prompts and prompts.changed(changes, settings):
        out.append(Notice(prompt_dialect.LIST_CHANGED))
    return out


def _descriptors(skills: Mapping[str, Skill]) -> dict[str, Json]:
    """Return what `resources/list` has of each skill."""
    return {path: resource_dialect.descriptor(skill) for path, skill in skills.items()}


class NoticeQueue:
    """A client's queue of notifications: FIFO, without duplicates.

    `wants` returns True for a notification that the client subscribed to.
    """

    def __init__(self, wants: Callable[[Notice], bool], principal: Principal | None = None) -> None:
        self.principal = principal
        self._wants = wants
        self._pending: dict[Notice, None] = {}
        self._changed = asyncio.Event()
        self._closed = False

    def put(self, notices: Iterable[Notice]) -> None:
        """Queue the notices that the client wants."""
        if not self._closed:
            self._pending |= dict.fromkeys(notice for notice in notices if self._wants(notice))
            self._changed.set()

    def close(self) -> None:
        """Reject further notices; queued ones can still be taken."""
        self._closed = True
        self._changed.set()

    async def take(self) -> Notice | None:
        """Return the next notice, or None once the queue is closed and empty."""
        while not self._pending:
            if self._closed:
                return None
            self._changed = asyncio.Event()
            await self._changed.wait()
        # Dequeue before sending, so that a change during a slow send is queued again.
        notice = next(iter(self._pending))
        del self._pending[notice]
        return notice


class _LegacyClient:
    """An initialized legacy client: queue, subscribed URIs, and permissions at registration."""

    def __init__(self, principal: Principal | None, permissions: Permissions | None) -> None:
        self.uris: set[str] = set()
        self.permissions = permissions
        self.queue = NoticeQueue(self._wants, principal)

    def _wants(self, notice: Notice) -> bool:
        return notice.uri is None or notice.uri in self.uris


class Notifier:
    """Delivers notifications to the connected clients that may have them.

    Args:
        permissions: returns the permissions of a principal, or None without grants.
        between: returns the notices for a change from the first permissions to the second.
        relays: whether streams also carry events of the server to which this is attached.
    """

    def __init__(
        self,
        settings: Settings,
        permissions: Callable[[Principal | None], Permissions | None] = lambda _: None,
        between: Callable[[Permissions, Permissions], Collection[Notice]] = lambda _old, _new: (),
        *,
        relays: bool = False,
    ) -> None:
        self._permissions = permissions
        self._between = between
        self._settings = settings
        self.relays = relays
        self._is_closing = False
        self._legacy_queues: dict[NoticeQueue, None] = {}
        self._deliveries: dict[NoticeQueue, asyncio.Task[None]] = {}
        self._streams: dict[NoticeQueue, None] = {}
        self._watched = Quota[tuple[int, str]]("subscriptions", MAX_WATCHED)
        self._legacy: WeakKeyDictionary[Any, _LegacyClient] = WeakKeyDictionary()
        self._tasks: asyncio.TaskGroup | None = None

    @property
    def usage(self) -> Occupancy:
        """The open streams."""
        return Occupancy(len(self._settings.streams), self._settings.streams.total)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Notify legacy clients in this context."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            try:
                yield
            finally:
                self._tasks = None
                for delivery in self._deliveries.values():
                    delivery.cancel()

    def publish(self, notices: Collection[Notice]) -> None:
        """Queue notices for all clients, without waiting."""
        self.publish_to_each(lambda _: notices)

    def publish_to_each(
        self, notices_for: Callable[[Principal | None], Collection[Notice]]
    ) -> None:
        """Queue for each client the notices of its principal, without waiting."""
        for queue in (*self._legacy_queues, *self._streams):
            queue.put(notices_for(queue.principal))

    def close(self) -> None:
        """End all streams gracefully: send queued notifications, then the request's result, if any.

        Later streams are acknowledged and ended in the same way.
        """
        self._is_closing = True
        for queue in (*self._streams, *self._legacy_queues):
            queue.close()

    def register(self, peer: Peer) -> NoticeQueue:
        """Queue the notifications of a legacy client from now on; return its queue."""
        queue = self._client(peer).queue
        self._legacy_queues[queue] = None
        if self._is_closing:
            queue.close()
        return queue

    def add_legacy_client(self, peer: Peer) -> None:
        """Start to notify a legacy client by its `send`."""
        if self._tasks is not None:
            queue = self.register(peer)
            if queue not in self._deliveries:
                self._deliveries[queue] = self._tasks.create_task(self._deliver(peer, queue))

    def rebind(self, connection: object, principal: Principal | None) -> Callable[[], None]:
        """Rebind a legacy client to the principal that opened its stream.

        That principal's groups, and so its skills, may differ from those at the handshake.
        Notifications sent in between were lost.

        Return a function that notifies the client of the difference; call it once the stream is
        open.
        """
        client = self._legacy.get(connection)
        if client is None or client.queue.principal == principal:
            return lambda: None
        # If grants changed in between, the client may or may not know the newer ones.
        before = {client.permissions, self._permissions(client.queue.principal)}
        client.queue.principal = principal

        def tell() -> None:
            now = client.permissions = self._permissions(principal)
            for old in before:
                if old is not None and now is not None and old != now:
                    client.queue.put(self._between(old, now))

        return tell

    def watch(self, peer: Peer, uri: str, owner: Owner | None = None) -> None:
        """Subscribe a legacy client to one resource.

        `uri` is the canonical URI of a served resource; the subscription is charged to `owner`.

        Raises:
            RequestError: the client, its owner or the server has too many subscriptions.
        """
        client = self._client(peer)
        if uri in client.uris:
            return
        if len(client.uris) >= MAX_SUBSCRIPTIONS:
            raise RequestError(f"Too many subscriptions: at most {MAX_SUBSCRIPTIONS}")
        # busy: a subscription is never evicted silently
        self._watched.claim((id(client), uri), owner, is_busy=lambda _: True)
        client.uris.add(uri)

    def unwatch(self, peer: Peer, uri: str) -> None:
        """End the subscription of a legacy client to one resource."""
        client = self._client(peer)
        client.uris.discard(uri)
        self._watched.release((id(client), uri))

    async def listen(
        self, stream: Stream, wanted: Mapping[str, Any], owner: Owner | None = None
    ) -> dict[str, Any]:
        """Serve `subscriptions/listen`: acknowledge, then send notifications until a side ends it.

        Args:
            wanted: the filter, whose known fields have the types of the protocol.
            owner: the owner whose quota counts the stream.

        Raises:
            RequestError: the filter has too many resources.
            QuotaError: the owner or the server has too many streams; none is ended for a new one.
        """
        if stream.id is None:
            raise RequestError("subscriptions/listen must be a request")
        accepted = self._accepted_filter(wanted)
        offered = list_notices(self._settings, foreign=self.relays)
        methods = {method for key, method in offered.items() if key in accepted}
        watched = frozenset(map(uris.canonical, accepted.get(_URIS, ())))

        def wants(notice: Notice) -> bool:
            return notice.uri in watched or (notice.uri is None and notice.method in methods)

        queue = NoticeQueue(wants, stream.principal)
        meta: dict[str, Any] = {_STREAM: stream.id}
        self._settings.streams.open(queue, owner)
        self._streams[queue] = None
        if self._is_closing:
            queue.close()
        try:
            acknowledged = {"_meta": meta, "notifications": accepted}
            await stream.send("notifications/subscriptions/acknowledged", acknowledged)
            del accepted, acknowledged, wanted  # free memory: a stream may last for days
            while (notice := await queue.take()) is not None:
                await stream.send(notice.method, params_of(notice, meta))
            if stream.shared:
                # The channel stays open, so a message signals the end of the stream (MCP-38).
                ended = {"requestId": stream.id, "reason": "the server closed the stream"}
                await stream.send("notifications/cancelled", ended)
        finally:
            self._streams.pop(queue, None)
            self._settings.streams.release(queue)
        return {"_meta": meta, "resultType": "complete"}

    def _accepted_filter(self, requested: Mapping[str, Any]) -> dict[str, Any]:
        """Return the part of a filter that this server honours, which the acknowledgement shows.

        URIs that can never identify a resource here are omitted.
        """
        asked = dict.fromkeys(requested.get(_URIS) or ())
        short = [uri for uri in asked if len(uri) <= MAX_URI]
        # other servers' URIs are kept for the handler that this one relays
        watched = [uri for uri in short if self.relays or uris.segments(uri) is not None]
        if len(watched) > MAX_SUBSCRIPTIONS:
            raise RequestError(f"Too many resource subscriptions: at most {MAX_SUBSCRIPTIONS}")
        if sum(map(len, watched)) > MAX_TEXT:
            most = f"at most {MAX_TEXT:,} characters in all"
            raise RequestError(f"The URIs of resourceSubscriptions are too long: {most}")
        served = list_notices(self._settings, foreign=self.relays)
        # only what the filter asks for, even of the lists of extensions
        accepted: dict[str, Any] = {key: True for key in served if requested.get(key) is True}
        if watched:
            accepted[_URIS] = watched
        return accepted

    def _client(self, peer: Peer) -> _LegacyClient:
        client = self._legacy.get(peer.connection)
        if client is None:
            permissions = self._permissions(peer.principal)
            client = self._legacy[peer.connection] = _LegacyClient(peer.principal, permissions)
            peer.add_exit_callback(partial(self._forget, peer.connection, client))
        return client

    def _forget(self, connection: object, client: _LegacyClient) -> None:
        self._legacy.pop(connection, None)
        for uri in client.uris:
            self._watched.release((id(client), uri))
        self._legacy_queues.pop(client.queue, None)
        client.queue.close()

    async def _deliver(self, peer: Peer, queue: NoticeQueue) -> None:
        try:
            while (notice := await queue.take()) is not None:
                await peer.send(notice.method, params_of(notice))
        except ClientLeftError as error:
            logger.debug("%s", error)
        finally:
            self._deliveries.pop(queue, None)
            self._legacy_queues.pop(queue, None)


class RecentNotifications:
    """Repeats the notifications of the last ten minutes when another replica has caught up.

    A client notified by one replica may fetch the old list from a replica that is behind. Once that
    replica catches up, it notifies its own clients and announces this to the other replicas, which
    then repeat their notifications.
    """

    def __init__(self, announce: Callable[[], object]) -> None:
        self._announce = announce
        self._notified: deque[tuple[float, Callable[[], None]]] = deque(maxlen=_MAX_REMEMBERED)
        self._loop: asyncio.AbstractEventLoop | None = None

    def add(self, notify: Callable[[], None], *, announce: bool = True) -> None:
        """Store a notification to repeat, `announce` that to other replicas; in the event loop."""
        self._notified.append((monotonic(), notify))
        self._loop = asyncio.get_running_loop()
        # The timer frees memory even if no other notification follows.
        self._loop.call_later(_REMEMBERED_S, self._forget)
        if announce:
            self._announce()

    def repeat(self) -> None:
        """Send the stored notifications again; callable from any thread."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed: no client is left
                self._loop.call_soon_threadsafe(self._repeat)

    def _repeat(self) -> None:
        for _, notify in [*self._notified]:
            notify()

    def _forget(self) -> None:
        while self._notified and self._notified[0][0] <= monotonic() - _REMEMBERED_S:
            self._notified.popleft()


def params_of(notice: Notice, meta: dict[str, Any] | None = None) -> dict[str, Any] | None:
    """Return the params of a notification; `meta` is that of its stream, if any."""
    params = {"_meta": meta, "uri": notice.uri}
    return {key: value for key, value in params.items() if value is not None} or None
