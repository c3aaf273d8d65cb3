"""`make soak`: real servers under all that happens to them at once, for minutes, and what must hold all the same.

One server with workers, replicas with one Redis (one of which is never killed), all on one folder. Writers edit, add,
rename and remove; clients of both eras come and go; workers, replicas and Redis are killed by lot and come back. Now
and then all is quiet, and then everybody must have heard of everything, each byte is proved, and processes are weighed.
Ends with 1 if a byte was wrong, a notice or a session was lost, an answer was missing or a process grew. The seed that
is printed draws the same lots again; what the machine makes of them differs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from queue import Empty
from time import monotonic
from typing import Any, Final

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from bench.report import table  # noqa: E402

from shared.redis_servers import RealRedis, free_port, redis_server  # noqa: E402
from web.http_wire import HttpClient, Server, client, proved  # noqa: E402
from wire import COMMAND, Era, WireError  # noqa: E402

ERAS: Final[tuple[Era, Era]] = ("legacy", "modern")
SKILLS_CHANGED: Final = "notifications/skills/list_changed"
FIXED: Final = "fixed"
"""The skill that nobody edits, for sessions of the tools."""
LAG_S: Final = 5.0
"""Seconds within which a server may not have seen an edit, or not have got over what was killed."""
QUIET_S: Final = 30.0
"""Seconds within which, after the last edit, everybody must know what is there and every process is back."""
MOST_GROWTH: Final = 16 << 20
"""Bytes by which a process may be larger at its last quiet moment than after a third of its own."""
MOST_DESCRIPTORS: Final = 8
LOST: Final = (OSError, HTTPException, AssertionError, ValueError, KeyError, Empty)
"""What a client meets when its server dies: excused then, and only then."""
_PAUSE = threading.Event()
"""Never set."""


def digest(raw: bytes) -> str:
    """As the listing says it."""
    return "sha256:" + hashlib.sha256(raw).hexdigest()


class Score:
    """What was counted and what failed, by all threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.counts: Counter[str] = Counter()
        self.failures: list[str] = []
        self.slowest = 0.0

    def add(self, what: str, count: int = 1) -> None:
        """Count something."""
        with self._lock:
            self.counts[what] += count

    def fail(self, what: str) -> None:
        """Something that must not be. The first of them are printed at once."""
        with self._lock:
            self.failures.append(what)
            if len(self.failures) <= 20:
                print(f"soak: FAILED: {what}", file=sys.stderr, flush=True)


class Gate:
    """Who disturbs does it in turns, of which there are none while all is quiet."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._open, self._inside = True, 0
        self.over = threading.Event()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Wait until it is open, and keep it from becoming quiet."""
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
        """Nobody is inside, and nobody comes in."""
        with self._changed:
            self._open = False
            self._changed.wait_for(lambda: not self._inside)
        try:
            yield
        finally:
            with self._changed:
                self._open = True
                self._changed.notify_all()


class Folder:
    """The skills on the disk, and every content that was ever written for a URI. One lock: an edit at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock = threading.Lock()
        self._ever: defaultdict[str, set[str]] = defaultdict(set)
        self._touched: dict[str, float] = {}
        self._away = path.parent / "away"
        self._away.mkdir()
        self._number = 0
        path.mkdir()

    def write(self, skill: str, name: str, raw: bytes) -> None:
        """One file, at once. What it will be is known before it is there."""
        self._ever[f"skill://{skill}/{name}"].add(digest(raw))
        self._touched[skill] = monotonic()
        fresh = self._away / "fresh"
        fresh.write_bytes(raw)
        os.replace(fresh, self.path / skill / name)
        self._touched[skill] = monotonic()

    def text(self, skill: str, dice: random.Random) -> bytes:
        """Some SKILL.md."""
        self._number += 1
        body = f"Edition {self._number}.\n" * dice.choice((1, 20, 2000))
        return f"---\nname: {skill}\ndescription: Edition {self._number} of {skill}.\n---\n\n{body}".encode()

    def add(self, skill: str, dice: random.Random) -> None:
        """A skill, file after file."""
        (self.path / skill).mkdir()
        for name in ("guide.md", "data.bin"):
            self.write(skill, name, dice.randbytes(dice.randrange(1, 20_000)))
        self.write(skill, "SKILL.md", self.text(skill, dice))

    def rename(self, skill: str, to: str, dice: random.Random) -> None:
        """It has another path, and a moment later the name that belongs to it."""
        for name in ("guide.md", "data.bin", "SKILL.md"):
            self._ever[f"skill://{to}/{name}"] |= self._ever[f"skill://{skill}/{name}"]
        self._touched[skill] = self._touched[to] = monotonic()
        (self.path / skill).rename(self.path / to)
        self.write(to, "SKILL.md", self.text(to, dice))
        self._touched[skill] = monotonic()

    def remove(self, skill: str, dice: random.Random) -> None:
        """At once, or file after file."""
        self._touched[skill] = monotonic()
        if dice.random() < 0.5:
            (self.path / skill).rename(self._away / skill)
            shutil.rmtree(self._away / skill)
        else:
            shutil.rmtree(self.path / skill)
        self._touched[skill] = monotonic()

    def edit(self, prefix: str, dice: random.Random) -> str:
        """Do one of these to one of the skills of this prefix; which one it was."""
        with self.lock:
            there = sorted(each.name for each in self.path.iterdir() if each.name.startswith(prefix))
            absent = [each for number in range(20) if (each := f"{prefix}{number:02d}") not in there]
            kind = dice.choices(("edit", "add", "rename", "remove"), (7, 1, 1, 1))[0]
            if (kind == "add" and absent) or len(there) < 4:
                self.add(dice.choice(absent), dice)
                return "add"
            skill = dice.choice(there)
            if kind == "rename" and absent:
                self.rename(skill, dice.choice(absent), dice)
            elif kind == "remove":
                self.remove(skill, dice)
            else:
                kind, name = "edit", dice.choice(("SKILL.md", "guide.md", "data.bin"))
                raw = self.text(skill, dice) if name == "SKILL.md" else dice.randbytes(dice.randrange(1, 20_000))
                self.write(skill, name, raw)
            return kind

    def ever(self, uri: str) -> set[str]:
        """Digests of all that stood there at any time."""
        with self.lock:
            return set(self._ever[uri])

    def touched(self, uri: str, since: float) -> bool:
        """Whether its skill was changed after this moment."""
        with self.lock:
            return self._touched.get(uri.split("/")[2], 0.0) >= since

    def truth(self) -> dict[str, str]:
        """What is there, by URI."""
        with self.lock:
            files = [each for each in self.path.glob("*/*") if each.is_file()]
            return {f"skill://{each.parent.name}/{each.name}": digest(each.read_bytes()) for each in files}


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
            _PAUSE.wait(dice.choice((0, 0.5, 2)))
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


class Follower(threading.Thread):
    """A client that stays, hears of changes, and knows only what it fetched upon them."""

    def __init__(self, target: Target, era: Era, soak: Soak) -> None:
        super().__init__(daemon=True)
        self.target, self.era, self._soak = target, era, soak
        self.known: dict[str, str] = {}

    def run(self) -> None:
        """Until all is over."""
        while not self._soak.gate.over.is_set():
            try:
                with client(self.target.server, self.era) as one:
                    self._follow(one)
            except (*LOST, WireError) as error:
                self.known = {}
                self._soak.lost(self.target, monotonic(), f"a stream of {self.era}", error)
            _PAUSE.wait(0.2)

    def _follow(self, one: HttpClient) -> None:
        stream = one.hear()
        self._fetch(one)
        while not self._soak.gate.over.is_set():
            try:
                message = stream.messages.get(timeout=0.5)
            except Empty:
                continue
            if message is None or "method" not in message:
                raise ConnectionResetError("the stream ended")
            self._soak.score.add("notices")
            if message["method"] == SKILLS_CHANGED:
                self._fetch(one)

    def _fetch(self, one: HttpClient) -> None:
        entries = one.every_skill()
        self.known = {each["uri"]: each["digest"] for entry in entries for each in entry["resources"]}


class Soak:
    """All that runs, and what it must keep."""

    def __init__(self, scratch: Path, seed: int) -> None:
        self.score, self.gate, self.seed = Score(), Gate(), seed
        self.folder = Folder(scratch / "skills")
        dice = random.Random(seed)
        self.folder.add(FIXED, dice)
        for number in range(24):
            self.folder.edit("ab"[number % 2], dice)
        self.redis_disturbed = 0.0
        self.weights: defaultdict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)

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
        """A client did not get its answer: excused where its server was killed meanwhile."""
        if target.excuses(began):
            self.score.add("answers lost with their process")
        else:
            where = " > ".join(f"{each.name}:{each.lineno}" for each in traceback.extract_tb(error.__traceback__))
            about = f"{monotonic() - target.disturbed:.1f} s after the last kill, processes {target.processes()}"
            said = "".join(target.server.stderr.splitlines(keepends=True)[-12:])
            self.score.fail(f"{what} at {target.name}: {error!r}; {about}; {where}\n{said}")

    # What disturbs

    def repeat(self, work: Callable[[random.Random], None], seed: int, most_s: float) -> None:
        """Do it in turns until all is over."""
        dice = random.Random(f"{self.seed} {seed}")
        while not self.gate.over.is_set():
            with self.gate.turn():
                work(dice)
            self.gate.over.wait(dice.random() * most_s)

    def write(self, dice: random.Random) -> None:
        """Some edits, one after the other."""
        for _ in range(dice.choice((1, 1, 1, 5))):
            self.score.add(f"files: {self.folder.edit(dice.choice('ab'), dice)}")

    def visit(self, dice: random.Random) -> None:
        """Come, list, read, perhaps listen, and leave with or without a word."""
        target, era, began = dice.choice(self.targets), dice.choice(ERAS), monotonic()
        try:
            with client(target.server, era) as one:
                if dice.random() < 0.3:
                    one.hear()
                entries = one.every_skill()
                for entry in dice.sample(entries, min(3, len(entries))):
                    self._read(one, dice.choice(entry["resources"]), began)
                if era == "legacy" and dice.random() < 0.5:
                    one.delete()
            self.score.add(f"clients that came and went, {era}")
        except (*LOST, WireError) as error:
            self.lost(target, began, f"a visit by {era}", error)

    def _read(self, one: HttpClient, resource: dict[str, Any], began: float) -> None:
        uri = resource["uri"]
        if resource["digest"] not in self.folder.ever(uri):
            self.score.fail(f"the listing of {uri} has a digest that no writer wrote")
        try:
            raw = one.read(uri)
        except WireError as error:
            if not self.folder.touched(uri, began - LAG_S):
                raise
            self.score.add(f"reads of what had just been changed: {error.code}")
            return
        if digest(raw) == resource["digest"]:
            self.score.add("reads proved by their digest")
        elif digest(raw) in self.folder.ever(uri) and self.folder.touched(uri, began - LAG_S):
            self.score.add("reads of another edition than was listed")
        else:
            self.score.fail(f"wrong bytes of {uri}: {len(raw)} bytes, {digest(raw)}")

    def converse(self, dice: random.Random) -> None:
        """A session of the tools that goes on at whatever replica there is."""
        began, handle = monotonic(), None
        for _ in range(dice.randrange(3, 12)):
            target, asked = dice.choice(self.targets[1:]), monotonic()
            one = HttpClient(target.server, "modern")
            given = {"names": [FIXED]} if handle is None else {"session": handle, "skill": FIXED, "path": "SKILL.md"}
            call = {"name": "skills_load" if handle is None else "skills_read", "arguments": given}
            try:
                result = one.request("tools/call", call)
            except (*LOST, WireError) as error:
                self.lost(target, asked, "a session", error)
                continue
            if not result.get("isError"):
                handle = handle or result["structuredContent"]["session"]
                self.score.add("steps of sessions")
            elif self.redis_disturbed + LAG_S >= began or target.excuses(asked):
                self.score.add("steps of sessions without Redis")
                return
            else:
                self.score.fail(f"a session was lost at {target.name}: {result['content'][0]['text']}")
                return

    def disturb(self, dice: random.Random) -> None:
        """Kill something and have it come back."""
        what = dice.choice(("workers", "workers", "replica 1", "replica 2", "redis"))
        self.score.add(f"killed: {what}")
        if what != "redis":
            next(each for each in self.targets if each.name == what).kill(dice)
            return
        self.redis_disturbed = float("inf")
        self.redis.stop()
        _PAUSE.wait(dice.choice((0, 1, 4)))
        self.redis.start()
        self.redis_disturbed = monotonic()

    # What must hold

    def judge(self, followers: list[Follower]) -> None:
        """All is quiet: everybody knows everything, each byte is proved, sessions begin, and processes are weighed."""
        truth, began = self.folder.truth(), monotonic()
        behind = [*followers]
        while behind and monotonic() < began + QUIET_S:
            _PAUSE.wait(0.02)
            behind = [each for each in behind if each.known != truth]
            if not behind:
                self.score.slowest = max(self.score.slowest, monotonic() - began)
        for each in behind:
            self.score.fail(
                f"a notice was lost: {each.era} at {each.target.name} does not know of {_apart(each, truth)}"
            )
        for target in self.targets:
            for era in ERAS:
                self._prove(target, era, truth)
        for target in self.targets[1:]:
            self._begins(target, began + QUIET_S)
        for target in self.targets:
            for number, pid in enumerate(target.processes()):
                what = target.name if not target.workers else ("supervisor", "worker")[number > 0]
                with suppress(OSError):
                    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
                    descriptors = len(os.listdir(f"/proc/{pid}/fd"))
                    self.weights[what, pid].append((pages * os.sysconf("SC_PAGE_SIZE"), descriptors))

    def _prove(self, target: Target, era: Era, truth: dict[str, str]) -> None:
        try:
            with client(target.server, era) as one:
                entries = one.every_skill()
                if {each["uri"]: each["digest"] for entry in entries for each in entry["resources"]} != truth:
                    self.score.fail(f"{target.name} lists by {era} what is not there")
                self.score.add("reads proved by their digest", sum(proved(one, entry) for entry in entries))
                if era == "legacy":
                    one.delete()
        except (*LOST, WireError) as error:
            self.score.fail(f"while all was quiet, {target.name} by {era}: {error!r}")

    def _begins(self, target: Target, until: float) -> None:
        call = {"name": "skills_load", "arguments": {"names": [FIXED]}}
        while True:
            with suppress(*LOST, WireError):
                if not HttpClient(target.server, "modern").request("tools/call", call).get("isError"):
                    return
            if monotonic() > until:
                self.score.fail(f"{target.name} begins no session though Redis is there")
                return
            _PAUSE.wait(0.1)

    def weigh(self) -> list[tuple[str, ...]]:
        """A row for each process that lived long enough, and a failure for each that grew."""
        rows: list[tuple[str, ...]] = []
        for (name, pid), seen in self.weights.items():
            if len(seen) < 3:
                continue
            (first, held), (last, holds) = seen[len(seen) // 3], seen[-1]
            rows.append((name, str(len(seen)), f"{first / 1e6:.1f}", f"{last / 1e6:.1f}", str(held), str(holds)))
            if last - first > MOST_GROWTH or holds - held > MOST_DESCRIPTORS:
                self.score.fail(f"{name} ({pid}) grew: {first:,} to {last:,} bytes, {held} to {holds} descriptors")
        return rows


def _apart(follower: Follower, truth: dict[str, str]) -> str:
    known = follower.known
    uris = [uri for uri in {*known, *truth} if known.get(uri) != truth.get(uri)]
    return f"{len(uris)} of {len(truth)} files, such as {sorted(uris)[:3]}"


def run(soak: Soak, minutes: float, dice: random.Random) -> None:
    """Disturb, be quiet and judge, again and again."""
    gate, end = soak.gate, monotonic() + minutes * 60
    followers = [Follower(target, era, soak) for target in soak.targets for era in ERAS]
    works = ((soak.write, 0.3), (soak.write, 0.3), (soak.visit, 0.2), (soak.visit, 0.2), (soak.converse, 0.3))
    threads: list[threading.Thread] = [*followers]
    for number, (work, most_s) in enumerate(works):
        threads.append(threading.Thread(target=soak.repeat, args=(work, number, most_s), daemon=True))
    for thread in threads:
        thread.start()
    while monotonic() < end:
        stint = min(end, monotonic() + dice.uniform(10, 25))
        while monotonic() < stint:
            soak.disturb(dice)
            _PAUSE.wait(dice.uniform(0.5, 6))
        with gate.quiet():
            soak.judge(followers)
        soak.score.add("quiet moments")
        print(f"soak: {max(0, end - monotonic()):.0f} s to go, {len(soak.score.failures)} failures", file=sys.stderr)
    gate.over.set()
    for thread in threads:
        thread.join(QUIET_S)


def main() -> int:
    """Run, print figures, and say by the exit code whether all held."""
    parser = argparse.ArgumentParser(prog="make soak", description="Servers, clients, writers and death, for minutes.")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=None, help="draw the same lots again")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write what was counted to FILE")
    options = parser.parse_args()
    if shutil.which("redis-server") is None:
        print("soak: there is no redis-server on PATH; install it", file=sys.stderr)
        return 2
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 32)
    print(f"soak: {options.minutes:g} minutes, --seed {seed}", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(prefix="skills-soak-") as scratch, ExitStack() as stack:
        for variable in ("XDG_CACHE_HOME", "XDG_STATE_HOME"):
            os.environ[variable] = str(Path(scratch, variable))
        soak = Soak(Path(scratch).resolve(), seed)
        soak.start(stack.enter_context(redis_server(Path(scratch, "redis"))), stack)
        run(soak, options.minutes, random.Random(seed))
    rows = soak.weigh()
    score = soak.score
    print(table([("what", "count"), *((what, f"{count:,}") for what, count in sorted(score.counts.items()))], {1}))
    print()
    print(
        table(
            [("process", "quiet moments", "MB then", "MB at the end", "descriptors then", "at the end"), *rows],
            range(1, 6),
        )
    )
    print(
        f"\nafter the last edit everybody knew everything within {score.slowest:.2f} s; {len(score.failures)} failures"
    )
    if options.json is not None:
        about = {"seed": seed, "minutes": options.minutes, "counts": score.counts, "failures": score.failures}
        options.json.write_text(json.dumps({**about, "processes": rows, "slowest_s": score.slowest}, indent=2) + "\n")
    return 1 if score.failures else 0


if __name__ == "__main__":
    sys.exit(main())
