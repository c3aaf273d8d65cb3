"""Skill announcements for agents written with the Python SDK of the Agent Client Protocol (ACP).

The SDK's objects are duck-typed, and it is imported for the first update, so this package does not
depend on it. Updates are those of the proxy; the agent loads skills with a `Runtime` or over MCP.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol

from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.watch import Watcher
from mcp_skills_server.dialects import acp
from mcp_skills_server.dialects.acp import AvailableSkill, UpdateForms
from mcp_skills_server.model import Json, printable

logger = logging.getLogger(__name__)

_LATEST: Final = 1
"""The ACP version of the SDK."""


class AgentConnection(Protocol):
    """Interface: the methods of the SDK's `AgentSideConnection` in use."""

    async def session_update(self, session_id: str, update: Any, /) -> None:
        """Send `session/update`."""

    async def ext_notification(self, method: str, params: dict[str, Any], /) -> None:
        """Send an extension notification; the connection prefixes the method with `_`."""


@dataclass
class _AnnouncedSession:
    connection: AgentConnection
    commands: dict[str, Any]
    announced: tuple[AvailableSkill, ...] | None = None


class AcpSkills:
    """Announcements of an agent's skills to its clients, now and after each change.

    Make one for each connection, in the agent's event loop. Call `close`, or use it as a context
    manager.

    Args:
        roots: folders of skills, or a registry that is kept current elsewhere.

    Raises:
        UsageError: a root does not exist, is not a folder, or is unreadable.
    """

    def __init__(self, roots: Sequence[str | os.PathLike[str]] | Registry) -> None:
        self._watcher: Watcher | None = None
        if isinstance(roots, Registry):
            self.registry = roots
        else:
            self.registry = Registry(roots)
            self._watcher = Watcher(self.registry)
        self._forms = UpdateForms()
        self._sessions: dict[str, _AnnouncedSession] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._sending = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._unsubscribe = self.registry.subscribe(self._changed)
        self._loaded = self.registry.loaded.is_set()
        if self._watcher is not None:
            self._watcher.start()

    def __enter__(self) -> AcpSkills:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop all announcements, and the watch."""
        self._unsubscribe()
        self._sessions.clear()
        for task in self._tasks:
            task.cancel()
        if self._watcher is not None:
            self._watcher.stop()

    def capability(self) -> dict[str, Json]:
        """Return the `_meta` of the agent's capabilities for the `initialize` response."""
        return acp.capability()

    def initialized(self, capabilities: object, version: int = _LATEST) -> None:
        """Record the client's capabilities from `initialize`, as SDK object or JSON."""
        self._forms = acp.accepted_forms(version, _plain(capabilities))

    def updates(
        self, session_id: str, commands: Sequence[Any] = ()
    ) -> list[tuple[str, dict[str, Any]]]:
        """Return (method, params) of notifications with all skills and the agent's own commands."""
        return acp.notifications(session_id, self._skills(), self._forms, _update(commands))

    def announce(
        self, connection: AgentConnection, session_id: str, commands: Sequence[Any] = ()
    ) -> None:
        """Announce all skills of a session to its client now, and again after each change.

        Call it in `new_session` and `load_session`; it sends after their responses. Call it again
        if the agent's own commands (SDK objects or JSON) change. The agent's own update in its
        place would remove the skills at the client.
        """
        self._loop = asyncio.get_running_loop()
        self._sessions[session_id] = _AnnouncedSession(connection, _update(commands))
        self._begin()

    def forget(self, session_id: str) -> None:
        """Drop a session that has ended."""
        self._sessions.pop(session_id, None)

    def _skills(self) -> tuple[AvailableSkill, ...]:
        return acp.available(self.registry.snapshot).skills

    def _changed(self, _: object) -> None:
        self._loaded = True
        loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):  # closed loop: no client is left
                loop.call_soon_threadsafe(self._begin)

    def _begin(self) -> None:
        task = asyncio.get_running_loop().create_task(self._announce())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _announce(self) -> None:
        """Update sessions with an older list; the lock keeps updates in order."""
        async with self._sending:
            if not self._loaded:
                return  # the end of the first scan calls this again
            skills = self._skills()
            for session_id, session in list(self._sessions.items()):
                if self._sessions.get(session_id) is not session or session.announced == skills:
                    continue
                session.announced = skills
                try:
                    await self._send(session, session_id, skills)
                except Exception as error:
                    shown = printable(session_id)
                    logger.warning("skills are not announced to session %s: %s", shown, error)

    async def _send(
        self, session: _AnnouncedSession, session_id: str, skills: Sequence[AvailableSkill]
    ) -> None:
        from acp.schema import AvailableCommandsUpdate

        # The SDK has no type for the draft's own update, and sends only updates with a type.
        forms = UpdateForms(nested=False, extension=self._forms.extension)
        for method, params in acp.notifications(session_id, skills, forms, session.commands):
            if method == acp.UPDATE:
                update = AvailableCommandsUpdate.model_validate(params["update"])
                await session.connection.session_update(session_id, update)
            else:
                await session.connection.ext_notification(method.removeprefix("_"), params)


def _update(commands: Sequence[Any]) -> dict[str, Any]:
    return {acp.COMMANDS_UPDATE: {"availableCommands": [_plain(command) for command in commands]}}


def _plain(value: Any) -> Any:
    """Return an SDK object as JSON values."""
    dump = getattr(value, "model_dump", None)
    if dump is None:
        return value
    return dump(mode="json", by_alias=True, exclude_none=True)
