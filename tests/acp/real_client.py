"""An ACP client written with the Python SDK, which keeps received messages, parsed and raw.

The SDK is imported late, since each process of pytest would import it at collection, which takes a second.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from mcp_skills_server.dialects import acp as dialect
from wire import DEADLINE

if TYPE_CHECKING:
    from acp.connection import StreamEvent


class RealClient:
    def __init__(self) -> None:
        self.updates: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()
        self.extensions: asyncio.Queue[tuple[str, dict[str, Any]]] = asyncio.Queue()
        self.raw: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    def spawn(self, *command: str) -> Any:
        import acp

        # By default the SDK kills the process after 2 s, the default grace period of our proxy.
        options = {"stderr": None, "shutdown_timeout": 2 * DEADLINE}
        client: Any = self
        observers = [self.observe]
        return acp.spawn_agent_process(client, *command, observers=observers, transport_kwargs=options)

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
        await self.updates.put((session_id, update))

    async def ext_notification(self, method: str, params: dict[str, Any]) -> None:
        await self.extensions.put((method, params))

    async def observe(self, event: StreamEvent) -> None:
        from acp.connection import StreamDirection

        if event.direction is StreamDirection.INCOMING:
            await self.raw.put(event.message)

    async def next_update(self) -> Any:
        return (await asyncio.wait_for(self.updates.get(), DEADLINE))[1]

    async def next_message(self) -> dict[str, Any]:
        return await asyncio.wait_for(self.raw.get(), DEADLINE)

    async def next_extension(self) -> tuple[str, list[str]]:
        """Return the session id and the skill names of the next extension notification."""
        method, params = await asyncio.wait_for(self.extensions.get(), DEADLINE)
        assert f"_{method}" == dialect.EXTENSION_METHOD
        return params["sessionId"], [each["name"] for each in params["availableSkills"]]
