"""The servers and Redis: how they are started, killed and started again."""

from __future__ import annotations

import random
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
    """

    def __init__(self, name: str, score: Score, *arguments: str | Path) -> None:
        self.name, self._score = name, score
        self.port = free_port()
        self.disturbed = 0.0
        serve = ["serve", "--transport", "http", "--port", str(self.port), "--session-idle", "5"]
        self._command = [*COMMAND, *serve, *map(str, arguments)]
        self.server = Server(self._command)

    def processes(self) -> list[int]:
        """The server's, then its children's."""
        pid = self.server.process.pid
        with suppress(OSError):
            return [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]
        return [pid]

    def kill(self, dice: random.Random) -> None:
        """Kill the process with SIGKILL, and start it again after a moment."""
        self.disturbed = float("inf")
        self.end()
        PAUSE.wait(dice.choice((0, 0.5, 2)))
        self.server = Server(self._command)
        self.disturbed = monotonic()

    def excuses(self, since: float) -> bool:
        """Whether a client that began then may have lost its answer."""
        return self.disturbed + LAG_S >= since

    def end(self) -> None:
        """Leave nothing behind, and read what it said."""
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
        for name, given in (
            ("alone", (self.folder.path,)),
            ("replica 1", shared),
            ("replica 2", shared),
            ("never killed", shared),
        ):
            self.targets.append(Target(name, self.score, *given))
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
        what = dice.choice(("alone", "replica 1", "replica 2", "redis"))
        self.score.add(f"killed: {what}")
        if what != "redis":
            next(each for each in self.targets if each.name == what).kill(dice)
            return
        self.redis_disturbed = float("inf")
        self.redis.stop()
        PAUSE.wait(dice.choice((0, 1, 4)))
        self.redis.start()
        self.redis_disturbed = monotonic()
