"""A registry attached to a server: methods, first scan, watch, and notifications of changes.

This module does not use the SDK. Each transport converts its requests into a `Caller` and params,
and maps errors to its own.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Collection, Container, Mapping
from contextlib import asynccontextmanager, suppress
from functools import cache, partial
from typing import Any, Final

from mcp_skills_server.access.grants import Grants, Permissions
from mcp_skills_server.access.principal import Principal
from mcp_skills_server.access.quota import Owner
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.threads import in_thread
from mcp_skills_server.catalog.views import View, Views, retry_when_stale
from mcp_skills_server.catalog.watch import Watcher
from mcp_skills_server.dialects import runtime
from mcp_skills_server.errors import NotServedError
from mcp_skills_server.format import uris
from mcp_skills_server.format.dependencies import Served
from mcp_skills_server.format.fields import mapping
from mcp_skills_server.model import Changes, Json
from mcp_skills_server.runtime.runtime import Runtime
from mcp_skills_server.runtime.sessions import Sessions
from mcp_skills_server.server import listing, notify, prompts, resources, skills
from mcp_skills_server.server.notify import Notice, Notifier, Peer, RecentNotifications
from mcp_skills_server.server.requests import Caller, Handler, Params, Result, Settings
from mcp_skills_server.server.tools import Tools

_SCAN_AWAITED_S: Final = 1.0
"""Seconds that handshake and `tools/list` wait for the first scan: some thousand skills."""
_TOOLS: Final = Notice(runtime.LIST_CHANGED)
_LIST_TOOLS: Final = "tools/list"


async def _complete(view: View, settings: Settings, caller: Caller, params: Params) -> Result:
    """Complete an argument of a prompt, or the resource template (`completion/complete`)."""
    complete = resources.complete
    if settings.prompts and params["ref"].get("type") == "ref/prompt":
        complete = prompts.complete_argument
    return await complete(view, settings, caller, params)


class Attachment:
    """A registry attached to a server, the result of `attach`.

    `running` is entered in the server's lifespan. The handshake or the first request starts the
    first scan. Until it ends, a handshake with a list of skills and `tools/list` use the index, or
    wait for a moment; all other requests about skills wait for the end.

    Attributes:
        handlers: by method.
        is_ready: whether the first scan has ended.
    """

    def __init__(
        self,
        registry: Registry,
        settings: Settings,
        watcher: Watcher | None,
        runtime: Runtime | None,
        *,
        sessions: Callable[[Runtime], Sessions] = Sessions,
        views: Views | None = None,
        recent: RecentNotifications | None = None,
        relays: bool = False,
    ) -> None:
        """Attach a registry, which a `watcher` keeps current.

        `recent` repeats notifications for clients of other replicas. `relays` is that of Notifier.
        """
        self.registry = registry
        self.views = views or Views(registry)
        self.settings = settings
        self.sessions = sessions(runtime or Runtime(registry))
        self.events = self.sessions.runtime.events
        self.tools = Tools(self.sessions, settings.proposals)
        self.handlers: dict[str, Handler] = {
            "skills/list": skills.list_skills,
            "skills/get": skills.get_skill,
            "resources/directory/read": resources.read_directory,
            "resources/list": resources.list_resources,
            "resources/templates/list": resources.list_templates,
            "resources/read": resources.read_resource,
            "completion/complete": _complete,
        }
        if settings.tools:
            self.handlers[_LIST_TOOLS] = self.tools.list_tools
            self.handlers["tools/call"] = self.tools.call_tool
        if settings.prompts:
            self.handlers["prompts/list"] = prompts.list_prompts
            root_dir = self.sessions.runtime.whole.briefing.root_dir
            self.handlers["prompts/get"] = partial(prompts.get_prompt, root_dir=root_dir)
        self.notifier = Notifier(
            settings, self.views.permissions, self._notices_between, relays=relays
        )
        self._tools_shown: list[list[dict[str, Json]]] | None = None
        self._watcher = watcher
        self.is_ready = False
        self._recent = recent
        self._ready = asyncio.Event()
        self._begun = False

    def view(self, principal: Principal | None) -> View:
        """Return the current view of a principal."""
        return View(self.views.for_principal(principal))

    async def call(self, method: str, caller: Caller, params: Params) -> Result:
        """Return the result of a method for the view of its caller, after the first scan."""
        handler = self.handlers[method]
        if method == _LIST_TOOLS:
            await self.wait_for_listable()
        else:
            await self.ready()
        skill_set, settings = self.views.for_principal(caller.principal), self.settings
        return await retry_when_stale(
            skill_set, lambda view: handler(view, settings, caller, params)
        )

    async def subscribe(self, peer: Peer, uri: str, owner: Owner | None = None) -> None:
        """Subscribe a legacy client to a resource (`resources/subscribe`, legacy era only).

        Raises:
            NotServedError: the resource does not exist.
            RequestError: the client has too many subscriptions.
        """
        await self.ready()
        canonical = resources.canonical(self.view(peer.principal), self.settings, uri)
        if canonical is None:
            raise NotServedError(uri)
        self.notifier.watch(peer, canonical, owner)

    def unsubscribe(self, peer: Peer, uri: str) -> None:
        """End a subscription (`resources/unsubscribe`); ignore a URI without one."""
        self.notifier.unwatch(peer, uris.canonical(uri))

    def begin(self) -> None:
        """Start the first scan and the watch, once; later calls do nothing."""
        if self._begun:
            return
        self._begun = True
        loop = asyncio.get_running_loop()

        def soon(work: Callable[..., None], *arguments: object) -> None:
            with suppress(RuntimeError):  # the loop is closed: no client is left
                loop.call_soon_threadsafe(work, *arguments)

        self.registry.subscribe(lambda changes: soon(self._publish, changes))
        self.views.on_replaced(lambda before, now: soon(self._publish_new_grants, before, now))

        def scan() -> None:
            try:
                if self._watcher is not None:
                    self._watcher.start()
                else:
                    self.registry.load()
            finally:  # a watcher's start ends before its first scan, which may fail
                self.registry.loaded.wait()
                soon(self._finish_first_scan)

        threading.Thread(target=scan, name="skills-load", daemon=True).start()

    async def ready(self) -> None:
        """Start the first scan if necessary, and wait for its end."""
        if not self.is_ready:
            self.begin()
            await self._ready.wait()

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Notify clients of changes in this context; at its end stop watch and sessions."""
        async with self.notifier.running():
            try:
                yield
            finally:
                if self._watcher is not None:
                    self._watcher.stop(timeout=0.2)
                self.sessions.close()

    async def wait_for_listable(self) -> None:
        """Wait for skills to list: those of the index, or the first scan for at most a second.

        The index knows neither grants nor sources that were never read. With grants, or with
        sources that the operator awaits, wait for the end of the scan.
        """
        if self.is_ready:
            return
        if self.views.grants is not None or self.registry.awaits_sources:
            await self.ready()
            return
        if not await in_thread(self.sessions.runtime.whole.briefing.remember):
            self.begin()
            with suppress(TimeoutError):
                async with asyncio.timeout(_SCAN_AWAITED_S):
                    await self._ready.wait()
        if not self.is_ready and self._tools_shown is None:
            self._tools_shown = self.tools.tool_variants(self.registry)
        self.begin()  # only now, as the scan slows down the rendering

    async def advertise(
        self,
        result: dict[str, Any],
        principal: Principal | None,
        client: str | None,
        extensions: Mapping[str, Any],
    ) -> dict[str, Any]:
        """Advertise our capabilities and instructions in a handshake's result.

        Without grants this waits for a moment at most. The instructions of the server to which this
        is attached come first. Ours do not name the skills that the host shows by itself.
        """
        settings = self.settings
        capabilities = settings.spoken.with_capabilities(result.get("capabilities") or {})
        _merge(capabilities, "resources", {"subscribe": True, "listChanged": True})
        for key, offered in (("tools", settings.tools), ("prompts", settings.prompts)):
            if offered:
                _merge(capabilities, key, {"listChanged": True})
        if settings.tools and runtime.apps.is_declared(extensions):
            _merge(capabilities, "extensions", {runtime.apps.EXTENSION: {}})
        instructions = pending = None
        if settings.tools:
            await self.wait_for_listable()
            skill_set = self.views.for_principal(principal)
            host = listing.host_listing(skill_set, settings, client, extensions)
            instructions = self.tools.instructions(skill_set, host, client)
            if host is None:
                pending = runtime.unread_notice(skill_set.unread_sources())
        text = "\n\n".join(filter(None, (result.get("instructions"), instructions, pending)))
        return {**result, "capabilities": capabilities, **({"instructions": text} if text else {})}

    def _finish_first_scan(self) -> None:
        self.is_ready = True
        self._ready.set()
        # After tasks that wait for the scan: they answer first, and streams they open are notified.
        asyncio.get_running_loop().call_soon(self._compare_tools)
        if self._recent is not None:
            # A client of this replica may still read from a replica with older skills, which
            # announces when it has caught up; this one has nothing to announce.
            lists = [*map(Notice, notify.list_notices(self.settings).values())]
            self._recent.add(lambda: self.notifier.publish(lists), announce=False)

    def _compare_tools(self) -> None:
        """Notify clients if the first scan changed the tools that they were shown before it."""
        # A client may since have been shown other tools, so the next change is compared with none.
        shown, self._tools_shown = self._tools_shown, None
        if shown is not None and shown != self.tools.tool_variants(self.registry):
            self.notifier.publish([_TOOLS])

    def _publish(self, changes: Changes) -> None:
        """Notify the principals that have skills among the changed ones."""
        tools_are_same = False
        if self.is_ready and self.views.grants is None and self._may_change_tools(changes):
            now = self.tools.tool_variants(self.registry)
            tools_are_same, self._tools_shown = now == self._tools_shown, now

        @cache
        def notices_for(permissions: Permissions | None) -> list[Notice]:
            notices = self._notices(self.views.visible_changes(changes, permissions))
            if tools_are_same:
                notices = [notice for notice in notices if notice != _TOOLS]
            return notices

        self._notify(lambda who: notices_for(self.views.permissions(who)))

    def _publish_new_grants(self, before: Grants, now: Grants) -> None:
        """Notify the principals whose permissions differ."""
        between = cache(self._notices_between)
        self._notify(lambda who: between(before.permissions(who), now.permissions(who)))

    def _notify(self, notices_for: Callable[[Principal | None], Collection[Notice]]) -> None:
        # Clients know no skills before the first scan, so no change either.
        if not self.is_ready:
            return
        work = partial(self.notifier.publish_to_each, notices_for)
        work()
        if self._recent is not None:
            self._recent.add(work)

    def _notices(self, left: Changes) -> list[Notice]:
        # May notify in vain: an exact comparison would render the tools for each set of grants.
        if left:
            return notify.notices(left, self.settings, tools=self._may_change_tools(left))
        return []

    def _may_change_tools(self, changes: Changes) -> bool:
        """Tell whether changes of skills may change the descriptions of the tools."""
        return self.settings.tools and runtime.changed(changes.before, changes.after)

    def _notices_between(self, old: Permissions, new: Permissions) -> list[Notice]:
        """Return the notices for a principal whose permissions change from `old` to `new`."""
        notices = self._notices(self.views.difference(old, new))
        if self.settings.tools and _TOOLS not in notices:
            before = self.tools.tool_variants(self.views.granted(old))
            if before != self.tools.tool_variants(self.views.granted(new)):
                notices.append(_TOOLS)
        return notices


def _merge(capabilities: dict[str, Json], key: str, ours: dict[str, Json]) -> None:
    capabilities[key] = mapping(capabilities.get(key)) | ours


def server_features(
    attachment: Attachment,
    view: View,
    tools: frozenset[str] = frozenset(),
    others: Container[str] = (),
    uris: Container[str] = (),
) -> Served:
    """Return the server's other features: our tools and prompts, and the server's own.

    Args:
        tools: names of the server's own tools.
        others: names of its own prompts.
        uris: of its own resources.
    """
    if attachment.settings.tools:
        tools |= {str(tool["name"]) for tool in attachment.tools.definitions(view.skill_set)}
    if attachment.settings.prompts:
        others = prompts.Names(view, attachment.settings, others)
    return Served(tools=tools, prompts=others, resources=uris)
