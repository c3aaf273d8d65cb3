"""A worker: what it does as its supervisor says, and that it ends with it."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.web.workers.channel import Channel, Post
from mcp_skills_server.web.workers.following import Following
from mcp_skills_server.web.workers.loads import Loads

if TYPE_CHECKING:
    from mcp_skills_server.sources.follower import SourceState

logger = logging.getLogger(__name__)

_ENDING_S: Final = 4.0
"""How long a worker may take to end after its supervisor is gone."""


class Worker:
    """One of several processes that accept from one socket.

    Args:
        channel: to the supervisor.
        registry: what it serves.

    Attributes:
        post: which of the workers it is.
        watcher: keeps the registry as the supervisor has it; somebody else starts it.
        listener: the socket that all workers accept from.
        open_sessions: how many legacy sessions there are, for which there will be requests.
        is_end_of_all: whether the supervisor has all workers end. One that is asked by somebody else ends alone.
    """

    def __init__(self, channel: Channel, registry: Registry) -> None:
        self._channel = channel
        self._registry = registry
        self.post: Final[Post] = channel.post
        self.watcher: Final = Following(registry, lambda since: channel.send("late", since=since))
        self.listener: Final[socket.socket] = channel.post.open_listener()
        self.open_sessions: Callable[[], int] = int
        self._loads = Loads(channel.post.loads)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._accept: Callable[[], None] | None = None
        self._is_alone = False
        self.is_end_of_all = False
        threading.Thread(target=self._listen, name="skills-channel", daemon=True).start()

    def started(self, accept: Callable[[], None]) -> None:
        """Say that all is ready but the skills. Called in the event loop, and so is `accept` when it is time."""
        self._loop, self._accept = asyncio.get_running_loop(), accept
        self._channel.send("started")
        threading.Thread(target=self._say_when_loaded, name="skills-loaded", daemon=True).start()

    def is_next(self, connections: int) -> bool:
        """Whether the next connection is for this worker, which has so many."""
        return self._loads.put(self.post.number, connections + self.open_sessions())

    def look(self) -> int:
        """Have all sources looked at now; how many there are."""
        self._channel.send("look")
        return len(self.watcher.states)

    def states(self) -> list[SourceState]:
        """The state of everything that is fetched, as the supervisor said last."""
        from mcp_skills_server.sources.follower import SourceState

        return [SourceState(**each) for each in self.watcher.states]

    def _say_when_loaded(self) -> None:
        self._registry.loaded.wait()
        self._channel.send("loaded")

    def _listen(self) -> None:
        while (message := self._channel.receive()) is not None:
            if message["say"] == "accept":
                self._begin()
            elif message["say"] == "end":
                self.is_end_of_all = True
            else:
                self.watcher.messages.put(message)
        self._is_alone = True
        logger.warning("worker %d: the supervisor is gone; ending", self.post.number + 1)
        os.kill(os.getpid(), signal.SIGINT)  # at once: nobody is there to wait for it to drain
        threading.Event().wait(_ENDING_S)
        os._exit(1)

    def close(self) -> None:
        """At the end: remove what the supervisor made for its workers, if it is gone and nobody else needs it."""
        folder, of_all = os.path.dirname(self.post.path), self.post.of_all
        with suppress(OSError):  # another worker was faster
            if self._is_alone and {*os.listdir(folder)} <= {*map(os.path.basename, of_all)}:
                shutil.rmtree(folder)

    def _begin(self) -> None:
        loop, accept = self._loop, self._accept
        if loop is None or accept is None:
            return

        def begin() -> None:
            accept()
            self._channel.send("accepting")

        with suppress(RuntimeError):  # the loop is closed: the server has ended
            loop.call_soon_threadsafe(begin)
