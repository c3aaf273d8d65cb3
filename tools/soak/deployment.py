"""The servers and Redis: how they are started, killed and started again."""

from __future__ import annotations

import os
import random
import signal
import threading
import traceback
from contextlib import ExitStack, suppress
from http.client import HTTPException
from pathlib import Path
from queue import Empty
from time import monotonic
from typing import Final

from tools.soak.folder import Folder
from tools.soak.score import Gate, Score

from shared.redis_servers import RealRedis, free_port
from web.http_wire import Server
from wire import COMMAND, WireError

FIXED: Final = "fixed"
"""The skill that nobody edits, for sessions of the tools."""
LAG_S: Final = 5.0
"""Seconds within which a server may not have seen an edit, or not have got over what was killed."""
LOST: Final = (OSError, HTTPException, AssertionError, ValueError, KeyError, Empty, WireError)
"""What a client meets when its server dies: excused then, and only then."""
PAUSE: Final = threading.Event()
"""Never set."""


class Target:
    """A server that may be killed and comes back at its port.

    Args:
        name: what it is called in figures.
        arguments: of `serve`.
        workers: how many of its children answer; then it is they who are killed.
    """

    def __init__(self, name: str, score: Score, *arguments: str | Path, workers: int = 0) -> None:
        self.name, self._score, self.workers = name, score, workers
        self.port = free_port()
        self.disturbed = 0.0
        more = ["--workers", str(workers)] if workers else []
        serve = ["serve", "--transport", "http", "--port", str(self.port), "--session-idle", "5"]
        self._command = [*COMMAND, *serve, *map(str, arguments), *more]
        self.server = Server(self._command)

    def processes(self) -> list[int]:
        """The server's, then its children's."""
        pid = self.server.process.pid
        with suppress(OSError):
            return [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]
        return [pid]

    def kill(self, dice: random.Random) -> None:
        """With -9: one of the workers, whom the server replaces, or the process, which stays away for a moment."""
        self.disturbed = float("inf")
        if self.workers:
            if children := self.processes()[1:]:
                with suppress(ProcessLookupError):
                    os.kill(dice.choice(children), signal.SIGKILL)
        else:
            self.end()
            PAUSE.wait(dice.choice((0, 0.5, 2)))
            self.server = Server(self._command)
        self.disturbed = monotonic()

    def excuses(self, since: float) -> bool:
        """Whether a client that began then may have lost its answer."""
        return self.disturbed + LAG_S >= since

    def end(self) -> None:
        """Leave nothing behind, and read what it said."""
        if self.workers:
            with suppress(Exception):
                self.server.signal(signal.SIGTERM)
        self.server.kill()
        if "Traceback" in self.server.stderr:
            self._score.fail(f"{self.name} logged a bug: {self.server.stderr[-1500:]}")


class Deployment:
    """The folder, the servers and Redis; what kills them, and which losses of clients that excuses."""

    def __init__(self, scratch: Path, seed: int) -> None:
        self.score, self.gate, self.seed = Score(), Gate(), seed
        self.folder = Folder(scratch / "skills")
        dice = random.Random(seed)
        self.folder.add(FIXED, dice)
        for number in range(24):
            self.folder.edit("ab"[number % 2], dice)
        self.redis_disturbed = 0.0

    def start(self, redis: RealRedis, stack: ExitStack) -> None:
        """Start the servers."""
        self.redis = redis
        self.targets: list[Target] = []
        shared = (self.folder.path, "--redis", redis.url)
        for name, given, workers in (
            ("workers", (self.folder.path,), 2),
            ("replica 1", shared, 0),
            ("replica 2", shared, 0),
            ("never killed", shared, 0),
        ):
            self.targets.append(Target(name, self.score, *given, workers=workers))
            stack.callback(self.targets[-1].end)

    def lost(self, target: Target, began: float, what: str, error: BaseException) -> None:
        """A client did not get its answer: excused where its server was killed meanwhile, and the client heard so."""
        if target.excuses(began) and not isinstance(error, TimeoutError):
            self.score.add("answers lost with their process")
        else:
            where = " > ".join(f"{each.name}:{each.lineno}" for each in traceback.extract_tb(error.__traceback__))
            about = f"{monotonic() - target.disturbed:.1f} s after the last kill, processes {target.processes()}"
            said = "".join(target.server.stderr.splitlines(keepends=True)[-12:])
            self.score.fail(f"{what} at {target.name}: {error!r}; {about}; {where}\n{said}")

    def disturb(self, dice: random.Random) -> None:
        """Kill something and have it come back."""
        what = dice.choice(("workers", "workers", "replica 1", "replica 2", "redis"))
        self.score.add(f"killed: {what}")
        if what != "redis":
            next(each for each in self.targets if each.name == what).kill(dice)
            return
        self.redis_disturbed = float("inf")
        self.redis.stop()
        PAUSE.wait(dice.choice((0, 1, 4)))
        self.redis.start()
        self.redis_disturbed = monotonic()
