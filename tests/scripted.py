"""A scripted stdio client and a server, both in this process."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from typing import Any

import anyio

from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.views import Views
from mcp_skills_server.dialects.jsonrpc import Message, decode_message
from mcp_skills_server.runtime.runtime import Runtime
from mcp_skills_server.server.attachment import Attachment
from mcp_skills_server.server.requests import Settings
from mcp_skills_server.server.stdio import Connection
from wire import DEADLINE

HANDLE = re.compile(r"(?<=Session: )[\w-]{24}(?= )|(?<=\"session\":\")[\w-]{24}(?=\")")
"""Session handles, which are random."""


class Script:
    """A client with the interface of `Pipes` that sends these lines, and keeps the replies in `received`.

    A patient client waits for the response to each line before it sends the next.
    """

    max_line = 1 << 16

    def __init__(self, lines: list[bytes], *, patient: bool) -> None:
        self.received: list[dict[str, Any]] = []
        self._lines = lines
        self._patient = patient
        self._has_received = anyio.Event()

    async def lines(self) -> AsyncIterator[bytes | None]:
        for line in self._lines:
            before = len(self.received)
            too_long = len(line) > self.max_line
            yield None if too_long else line
            if self._patient:
                found = None if too_long else decode_message(line)
                if not isinstance(found, Message) or found.kind == "request":
                    with anyio.fail_after(DEADLINE):
                        while len(self.received) == before:
                            self._has_received = anyio.Event()
                            await self._has_received.wait()
                for _ in range(8):  # let notifications and their consequences follow the response
                    await anyio.lowlevel.checkpoint()

    async def flush(self) -> None:
        """Do nothing: `send` is not buffered."""

    def send_now(self, raw: bytes) -> bool:
        assert raw.endswith(b"\n") and raw.count(b"\n") == 1
        self.received.append(json.loads(HANDLE.sub("HANDLE", raw.decode())))
        self._has_received.set()
        return True

    async def send(self, raw: bytes) -> None:
        self.send_now(raw)


async def serve_script(script: Script, registry: Registry, settings: Settings, views: Views | None = None) -> None:
    attachment = Attachment(registry, settings, None, Runtime(registry), views=views)
    async with attachment.running():
        await Connection(script, attachment).run()


def replies_to(
    lines: list[bytes], registry: Registry, settings: Settings, *, patient: bool, views: Views | None = None
) -> list[dict[str, Any]]:
    """Return the messages that a client which sends these lines receives."""
    script = Script(lines, patient=patient)

    async def run() -> None:
        with anyio.fail_after(DEADLINE):
            await serve_script(script, registry, settings, views)

    anyio.run(run)
    return script.received
