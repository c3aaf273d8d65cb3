"""Changes -> the notifications that each connected client may receive.

A legacy client hears of everything over its connection, once it is initialized. A modern client hears
what its `subscriptions/listen` request named, on that request's own stream, and nothing else (MCP-34). A
notification says "fetch again"; so a client that reads slowly is owed each one at most once, and what it is owed is
bounded by what it subscribed to. Of what a client asks for only that is kept which this server can come to serve, and
nobody's streams or subscriptions are at another's cost.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, cast
from weakref import WeakKeyDictionary

import anyio
import mcp_types as types
from anyio.abc import TaskGroup
from mcp.server.connection import Connection
from mcp.server.context import ServerRequestContext
from mcp.server.session import ServerSession
from mcp.shared.subscriptions import SUBSCRIPTION_ID_META_KEY

from mcp_skills_server.dialects import prompts, resources, runtime
from mcp_skills_server.errors import RequestError
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


class _Legacy:
    """A client that shook hands: its mailbox and the URIs that it watches."""

    def __init__(self) -> None:
        self.uris: set[str] = set()
        self.mailbox = Mailbox(lambda notice: notice[1] is None or notice[1] in self.uris)


class Notifier:
    """Sends every connected client the notifications that it may have.

    Args:
        extensions: notifications that the SDK does not know, by the key of the filter that asks for them.
        tools: whether there are tools.
        prompts: whether there are prompts.

    Attributes:
        extensions: as given.
        relays: whether events of the server that we are attached to reach listen streams too, through `relay`.
    """

    def __init__(self, extensions: Mapping[str, str], *, tools: bool = False, prompts: bool = False) -> None:
        self.extensions = extensions
        self._tools = tools
        self._prompts = prompts
        self.relays = False
        self._sent_to: set[Mailbox] = set()
        self._streams: set[Mailbox] = set()
        self._places = Quota[Mailbox]("listen streams", MOST_STREAMS)
        self._watched = Quota[tuple[int, str]]("subscriptions", MOST_WATCHED)
        self._legacy: WeakKeyDictionary[Connection, _Legacy] = WeakKeyDictionary()
        self._tasks: TaskGroup | None = None

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """While this is entered, legacy clients are notified."""
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            try:
                yield
            finally:
                self._tasks = None
                tasks.cancel_scope.cancel()

    def publish(self, notices: Iterable[Notice]) -> None:
        """Notify everyone. Returns at once."""
        notices = list(notices)
        for mailbox in (*self._sent_to, *self._streams):
            mailbox.put(notices)

    def relay(self, notice: Notice) -> None:
        """Tell listen streams what the server that we are attached to has to say; legacy clients hear it from it."""
        for mailbox in self._streams:
            mailbox.put([notice])

    def close(self) -> None:
        """End every listen stream as the protocol says: what is owed, then the result of the request."""
        for mailbox in list(self._streams):
            mailbox.close()

    def add_legacy_client(self, session: ServerSession) -> None:
        """A legacy client is ready for notifications."""
        if self._tasks is not None:
            client = self._client(session)
            if client.mailbox not in self._sent_to:
                self._sent_to.add(client.mailbox)
                self._tasks.start_soon(self._tell, session, client.mailbox)

    def watch(self, session: ServerSession, uri: str, owner: Owner = None) -> None:
        """A legacy client wants to hear of one resource.

        Args:
            session: of the client.
            uri: of a resource that is served, as notifications have it.
            owner: among whose subscriptions it counts.

        Raises:
            RequestError: it watches too many.
        """
        client = self._client(session)
        if uri in client.uris:
            return
        if len(client.uris) >= MOST_SUBSCRIPTIONS:
            raise RequestError(f"Too many subscriptions: at most {MOST_SUBSCRIPTIONS}")
        self._watched.claim((id(client), uri), owner, busy=lambda _: True)  # none ends without a word
        client.uris.add(uri)

    def unwatch(self, session: ServerSession, uri: str) -> None:
        """A legacy client no longer wants to hear of one resource."""
        client = self._client(session)
        client.uris.discard(uri)
        self._watched.release((id(client), uri))

    async def listen(
        self,
        ctx: ServerRequestContext[Any, Any],
        params: types.SubscriptionsListenRequestParams,
        owner: Owner = None,
    ) -> types.SubscriptionsListenResult:
        """`subscriptions/listen`: acknowledge, then tell what was asked for, until either side ends it.

        An owner who opens too many streams has its oldest one ended, with its result.

        Raises:
            RequestError: it names too many resources, or others have left no place for a stream.
        """
        if ctx.request_id is None:
            raise RequestError("subscriptions/listen must be a request")
        honoured = _honoured(
            params.notifications,
            extensions=self.extensions,
            tools=self._tools or self.relays,
            prompts=self._prompts or self.relays,
            foreign=self.relays,
        )
        methods, uris = _wanted(honoured, self.extensions)
        mailbox = Mailbox(lambda notice: notice[0] in methods if notice[1] is None else notice[1] in uris)
        meta: dict[str, Any] = {SUBSCRIPTION_ID_META_KEY: ctx.request_id}
        for oldest in self._places.claim(mailbox, owner):
            oldest.close()
        self._streams.add(mailbox)
        try:
            acknowledged = types.SubscriptionsAcknowledgedNotification(
                params=types.SubscriptionsAcknowledgedNotificationParams(notifications=honoured, _meta=meta)
            )
            await ctx.session.send_notification(acknowledged, related_request_id=ctx.request_id)
            del acknowledged, honoured, params  # a stream may last for days; what it needs is in its mailbox
            while (notice := await mailbox.take()) is not None:
                await ctx.session.send_notification(_notification(notice, meta), related_request_id=ctx.request_id)
            if ctx.request is None:
                # On stdio no stream closes with the request, so its end is a message of its own (MCP-38).
                cancelled = types.CancelledNotification(
                    params=types.CancelledNotificationParams(
                        request_id=ctx.request_id, reason="the server ends the stream"
                    )
                )
                await ctx.session.send_notification(cancelled, related_request_id=ctx.request_id)
        finally:
            self._streams.discard(mailbox)
            self._places.release(mailbox)
        return types.SubscriptionsListenResult(_meta=meta)

    def _client(self, session: ServerSession) -> _Legacy:
        # The session is made anew for each message; what lasts, and what tells of its end, is the connection.
        connection = session._connection  # pyright: ignore[reportPrivateUsage]
        client = self._legacy.get(connection)
        if client is None:
            client = self._legacy[connection] = _Legacy()
            connection.exit_stack.callback(client.mailbox.close)
            connection.exit_stack.callback(self._forget, client)
            connection.exit_stack.callback(self._legacy.pop, connection, None)
        return client

    def _forget(self, client: _Legacy) -> None:
        for uri in client.uris:
            self._watched.release((id(client), uri))
        client.uris.clear()

    async def _tell(self, session: ServerSession, mailbox: Mailbox) -> None:
        try:
            while (notice := await mailbox.take()) is not None:
                await session.send_notification(_notification(notice, None))
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            logger.debug("a client left while it was being notified")
        finally:
            self._sent_to.discard(mailbox)


def _honoured(
    requested: types.SubscriptionFilter,
    *,
    extensions: Mapping[str, str],
    tools: bool,
    prompts: bool,
    foreign: bool,
) -> types.SubscriptionFilter:
    """The part of a filter that this server can keep.

    A URI that can never name anything here is left out, as the acknowledgement shows.
    """
    asked = dict.fromkeys(requested.resource_subscriptions or ())
    uris = [uri for uri in asked if len(uri) <= LONGEST_URI and (foreign or segments(uri) is not None)]
    if len(uris) > MOST_SUBSCRIPTIONS:
        raise RequestError(f"Too many resource subscriptions: at most {MOST_SUBSCRIPTIONS}")
    if sum(map(len, uris)) > MOST_TEXT:
        raise RequestError(f"The URIs of resourceSubscriptions are too long: at most {MOST_TEXT:,} characters in all")
    given = requested.model_extra or {}
    extra: dict[str, Any] = {key: True for key in extensions if given.get(key) is True}
    return types.SubscriptionFilter(
        tools_list_changed=True if tools and requested.tools_list_changed else None,
        prompts_list_changed=True if prompts and requested.prompts_list_changed else None,
        resources_list_changed=True if requested.resources_list_changed else None,
        resource_subscriptions=uris or None,
        **extra,
    )


def _wanted(honoured: types.SubscriptionFilter, extensions: Mapping[str, str]) -> tuple[set[str], frozenset[str]]:
    """The notifications without a URI that a client asked for, and the URIs that it watches."""
    asked = (
        (honoured.tools_list_changed, runtime.LIST_CHANGED),
        (honoured.prompts_list_changed, prompts.LIST_CHANGED),
        (honoured.resources_list_changed, resources.LIST_CHANGED),
    )
    methods = {method for wanted, method in asked if wanted}
    methods |= {extensions[key] for key in honoured.model_extra or {}}
    return methods, frozenset(map(canonical, honoured.resource_subscriptions or ()))


def _notification(notice: Notice, meta: dict[str, Any] | None) -> types.ServerNotification:
    method, uri = notice
    if uri is not None:
        return types.ResourceUpdatedNotification(params=types.ResourceUpdatedNotificationParams(uri=uri, _meta=meta))
    params = None if meta is None else types.NotificationParams(_meta=meta)
    kind = _KINDS.get(method)
    made = _ListChanged(method=method, params=params) if kind is None else kind(params=params)
    return cast("types.ServerNotification", made)


class _ListChanged(types.Notification[types.NotificationParams | None, str]):
    """A notification that the SDK does not know."""


_KINDS: Final[dict[str, Callable[..., Any]]] = {
    resources.LIST_CHANGED: types.ResourceListChangedNotification,
    runtime.LIST_CHANGED: types.ToolListChangedNotification,
    prompts.LIST_CHANGED: types.PromptListChangedNotification,
}
