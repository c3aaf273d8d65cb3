"""How long a message takes more with `acp` between an editor and an agent, beside `cat` on the way there and back.

`python -m bench.acp`. The agent answers each line with a line of the same size. Three ways lead to it: none between,
a `cat` in each direction (the least that a second process can cost; without `cat` a loop of Python), and ours with so
many skills. What is told is half of what a message there and back takes longer than with none between, the ways in
turn.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter
from typing import IO, Final

from bench.client import REPOSITORY, BenchError
from bench.generate import generate
from bench.report import Row, Run

_MS: Final = 1e3
_MB: Final = 1e6
_ROUND: Final = 20
_GOAL_MS: Final = 1.0
_PASS: Final = "import os\nwhile c := os.read(0, 65536):\n    os.write(1, c)"
AGENT: Final = """
import sys
for line in iter(sys.stdin.buffer.readline, b""):
    if b'"flood"' in line:
        for _ in range(1000):
            sys.stdout.buffer.write(b"x" * 99_999 + b"\\n")
    elif b'"session/new"' in line:
        line = b'{"jsonrpc":"2.0","id":1,"result":{"sessionId":"s"}}\\n'
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()
"""


@dataclass(slots=True)
class Way:
    """One way to the agent.

    Attributes:
        to: what is written to.
        back: what is read from.
    """

    to: IO[bytes]
    back: IO[bytes]

    def time(self, line: bytes) -> float:
        """Seconds from a line to its answer."""
        start = perf_counter()
        self.to.write(line)
        self.to.flush()
        answer = self.back.readline()
        took = perf_counter() - start
        if not answer.endswith(b"\n"):
            raise BenchError("the agent has ended")
        return took

    def flood(self) -> float:
        """Seconds of a hundred megabytes from the agent."""
        line = b'{"flood":1}\n'
        start = perf_counter()
        self.to.write(line)
        self.to.flush()
        while self.back.readline() != line:
            pass
        return perf_counter() - start


@contextmanager
def _started(*commands: list[str]) -> Iterator[Way]:
    """These programs, each writing to the next."""
    processes: list[subprocess.Popen[bytes]] = []
    for command in commands:
        source = processes[-1].stdout if processes else subprocess.PIPE
        processes.append(subprocess.Popen(command, stdin=source, stdout=subprocess.PIPE, cwd=REPOSITORY))
    to, back = processes[0].stdin, processes[-1].stdout
    assert to is not None and back is not None
    try:
        yield Way(to, back)
    finally:
        to.close()
        for process in processes:
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


def message(size: int) -> bytes:
    """A piece of an answer, as an agent sends it, of about so many bytes."""
    update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "x" * size}}
    seen = {"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": "s", "update": update}}
    return json.dumps(seen).encode() + b"\n"


SETUP: Final = b'{"jsonrpc":"2.0","id":1,"method":"session/new","params":{"cwd":"/","mcpServers":[]}}\n'


def measure(size: int, count: int, scratch: Path) -> Iterator[Row]:
    """Messages of several sizes, setups, and a flood."""
    root = scratch / "skills"
    generate(root, size)
    cat = [found] if (found := shutil.which("cat")) else [sys.executable, "-c", _PASS]
    agent = [sys.executable, "-c", AGENT]
    ours = [sys.executable, "-m", "mcp_skills_server", "acp"]
    with ExitStack() as held:
        bare = held.enter_context(_started(agent))
        cats = held.enter_context(_started(cat, agent, cat))
        pipe = held.enter_context(_started([*ours, "--", *agent]))
        full = held.enter_context(_started([*ours, str(root), "--", *agent]))
        full.time(SETUP)
        full.back.readline()  # the skills, so that they are there
        ways = (bare, cats, pipe, full)
        for what, line, times in (
            ("a message of 300 bytes", message(200), count),
            ("a message of 10 kB", message(10_000), count),
            ("a message of 1 MB", message(1_000_000), max(count // 20, 5)),
        ):
            yield from _rows(what, size, ways, [lambda way, line=line: way.time(line)] * 4, times)
        times = max(count // 10, 5)
        yield from _setups(size, (bare, cats, full), times)
        floods = [[way.flood() for _ in range(3)] for way in ways]
        speeds = [100_000_000 / median(each) / _MB for each in floods]
        yield Row("a flood, MB a second, no roots", 0, 3, speeds[2], speeds[1], "MB/s")
        yield Row("a flood, MB a second", size, 3, speeds[3], speeds[1], "MB/s")


def _rows(
    what: str, size: int, ways: tuple[Way, ...], takes: list[Callable[[Way], float]], count: int
) -> Iterator[Row]:
    bare, cats, pipe, full = _in_turn(ways, takes, count)
    for words, skills, mine in ((f"{what}, no roots", 0, pipe), (what, size, full)):
        added = (median(mine) - median(bare)) / 2 * _MS
        floor = (median(cats) - median(bare)) / 2 * _MS
        yield Row(words, skills, len(mine), added, floor, "ms", most=_GOAL_MS)
    slow = (quantiles(full, n=100)[98] - median(bare)) / 2 * _MS
    yield Row(f"{what}, p99", size, len(full), slow, (quantiles(cats, n=100)[98] - median(bare)) / 2 * _MS, "ms")


def _setups(size: int, ways: tuple[Way, Way, Way], count: int) -> Iterator[Row]:
    """The setup of a session, which is parsed and changed, to its answer; the snapshot behind it is not timed."""

    def ours(way: Way) -> float:
        took = way.time(SETUP)
        way.back.readline()
        return took

    bare, cats, full = _in_turn(ways, [lambda way: way.time(SETUP), lambda way: way.time(SETUP), ours], count)
    added = (median(full) - median(bare)) / 2 * _MS
    yield Row("a setup of a session", size, count, added, (median(cats) - median(bare)) / 2 * _MS, "ms", most=_GOAL_MS)


def _in_turn(ways: tuple[Way, ...], takes: list[Callable[[Way], float]], count: int) -> list[list[float]]:
    times: list[list[float]] = [[] for _ in ways]
    for way, take in zip(ways, takes, strict=True):
        for _ in range(3):
            take(way)
    while len(times[0]) < count:
        for place, (way, take) in enumerate(zip(ways, takes, strict=True)):
            times[place] += [take(way) for _ in range(min(_ROUND, count - len(times[place])))]
    return times


def main() -> int:
    """Measure and print one table."""
    parser = argparse.ArgumentParser(prog="python -m bench.acp", description="What a message costs more.")
    parser.add_argument("--size", type=int, default=1000, help="number of skills")
    parser.add_argument("--count", type=int, default=1000, help="messages of each kind")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to FILE")
    options = parser.parse_args()
    run = Run()
    with tempfile.TemporaryDirectory(prefix="skills-bench-") as scratch:
        rows = list(measure(options.size, options.count, Path(scratch).resolve()))
    run.tell(rows, "medians unless p99 is said, one way", options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
