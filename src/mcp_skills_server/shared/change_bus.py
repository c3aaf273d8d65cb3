"""Publish/subscribe between replicas: one that notices a change makes the others rescan or poll.

A message only names what to rescan, so an attacker who can write to Redis can cause scans and no
more. Messages are throttled to one scan a second, and a replica scans after a reconnection, when
messages may have been missed.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from functools import partial
from typing import Final, Literal, TypeAlias, cast

from mcp_skills_server.errors import REPEATS
from mcp_skills_server.model.decoding import load_json
from mcp_skills_server.shared.link import Link

logger = logging.getLogger(__name__)

Where: TypeAlias = Literal["sources", "folders", "clients"]
SOURCES: Final = "sources"
FOLDERS: Final = "folders"
CLIENTS: Final = "clients"
"""Sent by a replica that has notified its clients: other replicas' clients may have read old state
from it until then."""
_SCAN_S: Final = 1.0
_SHARE: Final = 4
"""Minimum pause after a scan, as a multiple of the scan's duration."""
_MESSAGE_S: Final = 0.2
"""Minimum seconds between two messages, which coalesces an edit of many files."""
_MAX_LENGTH: Final = 512
_is_scanning: Final = ContextVar("_is_scanning", default=False)


class ChangeBus:
    """Notifies other replicas of changes, and rescans when they do.

    Args:
        link: the connection to Redis, not yet started.
        handlers: the function to call in a thread, by each of `SOURCES`, `FOLDERS` and `CLIENTS`
            that this replica follows.
    """

    def __init__(self, link: Link, handlers: Mapping[Where, Callable[[], object]]) -> None:
        self._link = link
        self._us = secrets.token_hex(8)
        self._scans: dict[str, _Throttled] = {
            where: _Throttled(partial(self._scan_in_thread, work), _SCAN_S)
            for where, work in handlers.items()
        }
        self._messages: dict[Where, _Throttled] = {}

    def start(self) -> None:
        """Connect and listen for messages."""
        self._link.start(self._on_message, self._on_reconnect)

    def stop(self) -> None:
        """Stop listening."""
        self._link.stop()

    @property
    def is_scanning(self) -> bool:
        """Tell whether this thread scans because of a message, so replicas know the change."""
        return _is_scanning.get()

    def notify(self, where: Where) -> None:
        """Notify the other replicas, without waiting; lost while Redis is down. Thread-safe."""
        self._link.call_soon(self._notify, where)

    def _notify(self, where: Where) -> None:
        if where not in self._messages:
            self._messages[where] = _Throttled(partial(self._publish, where), _MESSAGE_S)
        self._messages[where].ask()

    async def _publish(self, where: Where) -> None:
        await self._link.publish(json.dumps({"changed": where, "from": self._us}))

    def _on_message(self, message: bytes) -> None:
        """Schedule the scan that a message from another replica names."""
        fields = _parsed(message)
        if fields is None:
            text = "%s: a message that no replica wrote; keep other programs off the keys %s*"
            settings = self._link.settings
            logger.warning(text, settings.shown, settings.prefix, extra=REPEATS)
            return
        if fields["from"] != self._us and fields["changed"] in self._scans:
            self._scans[fields["changed"]].ask()

    def _on_reconnect(self) -> None:
        """Scan everything and notify the others: messages were lost during the disconnection."""
        for where, throttled in self._scans.items():
            throttled.ask()
            self._notify(cast("Where", where))

    async def _scan_in_thread(self, work: Callable[[], object]) -> None:
        _is_scanning.set(True)  # in this task alone, and in its thread
        await asyncio.to_thread(work)


class _Throttled:
    """Throttle of an async function: it runs at once, but not again before a pause is over.

    The pause is at least `pause_s`, and at least four times the run's duration. For one event loop.
    """

    def __init__(self, work: Callable[[], Awaitable[object]], pause_s: float) -> None:
        self._work = work
        self._pause_s = pause_s
        self._asked = False
        self._task: asyncio.Task[None] | None = None

    def ask(self) -> None:
        """Request a run."""
        self._asked = True
        if self._task is None:
            self._task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        try:
            while self._asked:
                self._asked = False
                began = asyncio.get_running_loop().time()
                try:
                    await self._work()
                except Exception:  # one failure must not stop later runs
                    logger.exception("the scan after a message failed")
                took = asyncio.get_running_loop().time() - began
                await asyncio.sleep(max(self._pause_s, _SHARE * took))
        finally:
            self._task = None


def _parsed(message: bytes) -> dict[str, str] | None:
    """Return a message's fields, or None if it is malformed."""
    if len(message) > _MAX_LENGTH:
        return None
    try:
        fields = load_json(message)
        return {key: str(fields[key]) for key in ("changed", "from")}
    except (ValueError, TypeError, KeyError):
        return None
