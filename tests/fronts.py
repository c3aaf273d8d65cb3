"""Both fronts of the server, led through the same conversation in one process over lines."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio

from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.views import Views
from mcp_skills_server.catalog.watch import Watcher
from mcp_skills_server.runtime.runtime import Runtime
from mcp_skills_server.server import messages
from mcp_skills_server.server.app import make_server
from mcp_skills_server.server.attach import attach
from mcp_skills_server.server.attachment import Attachment
from mcp_skills_server.server.exchange import Exchange
from mcp_skills_server.server.front.connection import Connection
from mcp_skills_server.server.messages import Message
from mcp_skills_server.server.requests import Settings
from wire import write_skill

DEADLINE = 20.0
HANDLE = re.compile(r"(?<=Session: )[\w-]{24}(?= )|(?<=\"session\":\")[\w-]{24}(?=\")")
"""Session handles, which are drawn by lot."""


def two_skills(folder: Path) -> Registry:
    """A folder of two skills, written and read: the ones of `conversations`."""
    write_skill(folder / "a", body="# Thing\n\nSee [the guide](guide.md) \u2028 für 表.\n", guide_md="guide")
    (folder / "a" / "data.bin").write_bytes(bytes(range(256)))
    (folder / "b").mkdir()
    (folder / "b" / "SKILL.md").write_text(
        "---\nname: b\ndescription: Makes tea.\nmetadata:\n  nothing: null\narguments:\n"
        "  - name: topic\n    title: Topic\n---\n{{topic}}\n",
        encoding="utf-8",
    )
    out = Registry([folder])
    out.load()
    return out


class Loaded(Watcher):
    """Follows nothing: the folder has been read."""

    def start(self) -> None:
        """There is nothing to begin."""

    def stop(self, timeout: float | None = None) -> None:
        """Nor to end."""


class Script:
    """A client that says these lines, as `Pipes`.

    Args:
        lines: what it says.
        patient: it waits for what each line calls for before it says the next.

    Attributes:
        said: what it was told.
        in_turn: how much of that in turn, before it had no more to say.
    """

    max_line = 1 << 16

    def __init__(self, lines: list[bytes], *, patient: bool) -> None:
        self.said: list[dict[str, Any]] = []
        self.in_turn = 0
        self._lines = lines
        self._patient = patient
        self._heard = anyio.Event()

    async def judged(self, judge: Callable[[bytes | None], Any]) -> AsyncIterator[Any]:
        """As `Pipes.judged`."""
        for line in self._lines:
            before = len(self.said)
            too_long = len(line) > self.max_line
            if (left := judge(None if too_long else line)) is not None:
                yield left
            if self._patient:
                found = None if too_long else messages.judge(line)
                if not isinstance(found, Message) or found.kind == "request":
                    with anyio.fail_after(DEADLINE):
                        while len(self.said) == before:
                            self._heard = anyio.Event()
                            await self._heard.wait()
                for _ in range(20):  # what is owed beside the answer, and what a notification sets off
                    await anyio.lowlevel.checkpoint()
                self.in_turn = len(self.said)

    async def flush(self) -> None:
        """As `Pipes.flush`."""

    def send_now(self, raw: bytes) -> bool:
        """As `Pipes.send_now`."""
        assert raw.endswith(b"\n") and raw.count(b"\n") == 1
        self.said.append(json.loads(HANDLE.sub("HANDLE", raw.decode())))
        self._heard.set()
        return True


async def by_the_sdk(script: Script, registry: Registry, settings: Settings, views: Views | None = None) -> None:
    """A conversation with the SDK's front, as `server.app.serve_stdio` leads it."""
    server = make_server()
    attachment = attach(server, registry, settings, watch=Loaded(registry), runtime=Runtime(registry), views=views)
    exchange = Exchange(script)
    inward, read_stream = anyio.create_memory_object_stream[Any](0)
    write_stream, outward = anyio.create_memory_object_stream[Any](0)

    async def read() -> None:
        with suppress(anyio.BrokenResourceError):
            async with inward:
                await exchange.read(inward)
                attachment.notifier.close()
                await exchange.settle(1.5)

    async with outward, anyio.create_task_group() as pumps:
        pumps.start_soon(read)
        pumps.start_soon(exchange.write, outward)
        await server.run(read_stream, write_stream, server.create_initialization_options())


async def by_ours(script: Script, registry: Registry, settings: Settings, views: Views | None = None) -> None:
    """The same with the front that knows no SDK."""
    attachment = Attachment(registry, settings, Loaded(registry), Runtime(registry), views=views)
    async with attachment.running():
        await Connection(script, attachment).run()


def talk(
    front: Callable[..., Any], lines: list[bytes], registry: Registry, settings: Settings, *, patient: bool
) -> Script:
    """A client after a conversation with a front."""
    script = Script(lines, patient=patient)

    async def hold() -> None:
        with anyio.fail_after(DEADLINE):
            await front(script, registry, settings)

    anyio.run(hold)
    return script


def shown(script: Script) -> tuple[list[str], Counter[str]]:
    """What a client was told: in order as far as it waited, then without the order in which requests overlapped."""
    messages = [json.dumps(each, sort_keys=True) for each in script.said]
    return messages[: script.in_turn], Counter(messages[script.in_turn :])
