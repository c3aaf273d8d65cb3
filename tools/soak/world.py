"""The deployment of a soak: the folder that writers edit, servers and Redis that are killed, shared statistics."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import sys
import threading
import traceback
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from queue import Empty
from time import monotonic
from typing import Final

from ports import free_port
from shared.redis_servers import RealRedis
from web.http_wire import Server
from wire import COMMAND, WireError


class Score:
    """Counts and failures of all threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.counts: Counter[str] = Counter()
        self.failures: list[str] = []
        self.slowest = 0.0

    def add(self, what: str, count: int = 1) -> None:
        with self._lock:
            self.counts[what] += count

    def fail(self, what: str) -> None:
        """Record a failure. The first twenty are also printed at once."""
        with self._lock:
            self.failures.append(what)
            if len(self.failures) <= 20:
                print(f"soak: FAILED: {what}", file=sys.stderr, flush=True)


class Gate:
    """A gate for threads that disturb the servers: `quiet` keeps all of them out."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._open, self._inside = True, 0
        self.over = threading.Event()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Wait until the gate is open, and delay `quiet` until this turn ends."""
        with self._changed:
            self._changed.wait_for(lambda: self._open)
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Wait until every turn has ended, and keep the gate closed meanwhile."""
        with self._changed:
            self._open = False
            self._changed.wait_for(lambda: not self._inside)
        try:
            yield
        finally:
            with self._changed:
                self._open = True
                self._changed.notify_all()


def digest(raw: bytes) -> str:
    return "sha256:" + hashlib.sha256(raw).hexdigest()


class Folder:
    """The skills on disk, and the digests of every content ever written for a URI. One edit at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock = threading.Lock()
        self._written: defaultdict[str, set[str]] = defaultdict(set)
        self._changed_at: dict[str, float] = {}
        self._outside = path.parent / "outside"
        self._outside.mkdir()
        self._number = 0
        path.mkdir()

    def write(self, skill: str, name: str, raw: bytes) -> None:
        """Replace a file atomically, after its digest is recorded."""
        self._written[f"skill://{skill}/{name}"].add(digest(raw))
        self._changed_at[skill] = monotonic()
        fresh = self._outside / "fresh"
        fresh.write_bytes(raw)
        os.replace(fresh, self.path / skill / name)
        self._changed_at[skill] = monotonic()

    def text(self, skill: str, rng: random.Random) -> bytes:
        self._number += 1
        body = f"Edition {self._number}.\n" * rng.choice((1, 20, 2000))
        return f"---\nname: {skill}\ndescription: Edition {self._number} of {skill}.\n---\n\n{body}".encode()

    def add(self, skill: str, rng: random.Random) -> None:
        (self.path / skill).mkdir()
        for name in ("guide.md", "data.bin"):
            self.write(skill, name, rng.randbytes(rng.randrange(1, 20_000)))
        self.write(skill, "SKILL.md", self.text(skill, rng))

    def rename(self, skill: str, to: str, rng: random.Random) -> None:
        """Rename a skill's directory, and then the skill in its SKILL.md."""
        for name in ("guide.md", "data.bin", "SKILL.md"):
            self._written[f"skill://{to}/{name}"] |= self._written[f"skill://{skill}/{name}"]
        self._changed_at[skill] = self._changed_at[to] = monotonic()
        (self.path / skill).rename(self.path / to)
        self.write(to, "SKILL.md", self.text(to, rng))
        self._changed_at[skill] = monotonic()

    def remove(self, skill: str, rng: random.Random) -> None:
        self._changed_at[skill] = monotonic()
        if rng.random() < 0.5:
            (self.path / skill).rename(self._outside / skill)
            shutil.rmtree(self._outside / skill)
        else:
            shutil.rmtree(self.path / skill)
        self._changed_at[skill] = monotonic()

    def edit(self, prefix: str, rng: random.Random) -> str:
        """Edit, add, rename or remove a skill with this prefix; return which of these."""
        with self.lock:
            existing = sorted(each.name for each in self.path.iterdir() if each.name.startswith(prefix))
            unused = [each for number in range(20) if (each := f"{prefix}{number:02d}") not in existing]
            kind = rng.choices(("edit", "add", "rename", "remove"), (7, 1, 1, 1))[0]
            if (kind == "add" and unused) or len(existing) < 4:
                self.add(rng.choice(unused), rng)
                return "add"
            skill = rng.choice(existing)
            if kind == "rename" and unused:
                self.rename(skill, rng.choice(unused), rng)
            elif kind == "remove":
                self.remove(skill, rng)
            else:
                kind, name = "edit", rng.choice(("SKILL.md", "guide.md", "data.bin"))
                raw = self.text(skill, rng) if name == "SKILL.md" else rng.randbytes(rng.randrange(1, 20_000))
                self.write(skill, name, raw)
            return kind

    def written_digests(self, uri: str) -> set[str]:
        with self.lock:
            return set(self._written[uri])

    def changed_since(self, uri: str, since: float) -> bool:
        with self.lock:
            return self._changed_at.get(uri.split("/")[2], 0.0) >= since

    def current_digests(self) -> dict[str, str]:
        with self.lock:
            files = [each for each in self.path.glob("*/*") if each.is_file()]
            return {f"skill://{each.parent.name}/{each.name}": digest(each.read_bytes()) for each in files}


FIXED: Final = "fixed"
"""The skill that is never edited, for sessions of the tools."""
LAG_S: Final = 5.0
"""Seconds in which a server may lag behind an edit, or recover from a kill."""
CONNECTION_ERRORS: Final = (OSError, HTTPException, AssertionError, ValueError, KeyError, Empty, WireError)
"""Errors of a client whose server was killed; at any other time they are failures."""
NEVER: Final = threading.Event()
"""An event that is never set, for interruptible sleeps."""


class Target:
    """A server that may be killed and is restarted at its port.

    Args:
        name: its name in the statistics.
        arguments: those of `serve`.
    """

    def __init__(self, name: str, score: Score, *arguments: str | Path) -> None:
        self.name, self._score = name, score
        self.port = free_port()
        self.killed_at = 0.0
        serve = ["serve", "--transport", "http", "--port", str(self.port), "--session-idle", "5"]
        self._command = [*COMMAND, *serve, *map(str, arguments)]
        self.server = Server(self._command)

    def processes(self) -> list[int]:
        pid = self.server.process.pid
        with suppress(OSError):
            return [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]
        return [pid]

    def kill(self, rng: random.Random) -> None:
        self.killed_at = float("inf")
        self.end()
        NEVER.wait(rng.choice((0, 0.5, 2)))
        self.server = Server(self._command)
        self.killed_at = monotonic()

    def may_lose_response(self, since: float) -> bool:
        """Return whether a kill may have lost the response to a request sent at `since`."""
        return self.killed_at + LAG_S >= since

    def end(self) -> None:
        """Kill the server, and record a failure if it logged a traceback."""
        self.server.kill()
        if "Traceback" in self.server.stderr:
            self._score.fail(f"{self.name} logged a bug: {self.server.stderr[-1500:]}")


class Deployment:
    """The folder, the servers and Redis, their kills, and the lost responses that kills excuse."""

    def __init__(self, scratch: Path, seed: int) -> None:
        self.score, self.gate, self.seed = Score(), Gate(), seed
        self.folder = Folder(scratch / "skills")
        rng = random.Random(seed)
        self.folder.add(FIXED, rng)
        for number in range(24):
            self.folder.edit("ab"[number % 2], rng)
        self.redis_killed_at = 0.0

    def start(self, redis: RealRedis, stack: ExitStack) -> None:
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

    def record_lost_response(self, target: Target, began: float, what: str, error: BaseException) -> None:
        """Record a lost response, a failure unless its server was killed and the connection broke."""
        if target.may_lose_response(began) and not isinstance(error, TimeoutError):
            self.score.add("responses lost to a kill")
        else:
            where = " > ".join(f"{each.name}:{each.lineno}" for each in traceback.extract_tb(error.__traceback__))
            about = f"{monotonic() - target.killed_at:.1f} s after the last kill, processes {target.processes()}"
            log = "".join(target.server.stderr.splitlines(keepends=True)[-12:])
            self.score.fail(f"{what} at {target.name}: {error!r}; {about}; {where}\n{log}")

    def kill_random(self, rng: random.Random) -> None:
        what = rng.choice(("alone", "replica 1", "replica 2", "redis"))
        self.score.add(f"killed: {what}")
        if what != "redis":
            next(each for each in self.targets if each.name == what).kill(rng)
            return
        self.redis_killed_at = float("inf")
        self.redis.stop()
        NEVER.wait(rng.choice((0, 1, 4)))
        self.redis.start()
        self.redis_killed_at = monotonic()
