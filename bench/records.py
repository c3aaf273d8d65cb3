"""What records of requests cost over HTTP: `skills/get` with nothing, with usage counted, with the log line, with both.

`python -m bench.records`. Servers that differ in nothing else are asked in turn over one connection each, in rounds
whose order changes, so that what the machine does meanwhile meets all of them.
"""

from __future__ import annotations

import argparse
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

from bench.client import REPOSITORY, BenchError
from bench.generate import generate, questions
from bench.http import Load, modern_request

_QUIET: Final = ("--log-level", "warning")
_SKILLS: Final = 100
_START_S: Final = 30.0


def variants(scratch: Path, redis: str | None) -> dict[str, tuple[str, ...]]:
    """By name the options of each server."""
    counted = ("--usage", f"sqlite:{scratch}/usage.db")
    found: dict[str, tuple[str, ...]] = {
        "nothing": (*_QUIET, "--usage", "off"),
        "nothing again": (*_QUIET, "--usage", "off"),
        "usage": (*_QUIET, *counted),
        "log": ("--usage", "off"),
        "usage, log": counted,
    }
    if redis is not None:
        found["Redis"] = (*_QUIET, "--usage", "off", "--redis", redis)
        found["usage in Redis"] = (*_QUIET, "--usage", "redis", "--redis", redis)
    return found


@dataclass(slots=True)
class Listener:
    """A server that listens: its port, and its process."""

    port: int
    pid: int


@contextmanager
def serving(root: Path, *options: str) -> Iterator[Listener]:
    """Our server over a folder. With this log level it says nowhere that it listens, so it is tried."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    command = ["-m", "mcp_skills_server", "serve", str(root), "--transport", "http", "--port", str(port), *options]
    process = subprocess.Popen(
        [sys.executable, *command], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd=REPOSITORY
    )
    assert process.stderr is not None
    # A line a request: a pipe that nobody reads would stop it.
    threading.Thread(target=process.stderr.read, daemon=True).start()
    try:
        end = time.monotonic() + _START_S
        while True:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            if process.poll() is not None or time.monotonic() > end:
                raise BenchError("the server does not listen")
            time.sleep(0.05)
        yield Listener(port, process.pid)
    finally:
        process.kill()
        process.wait()


def cpu(pid: int) -> float:
    """Seconds of CPU that all threads of a process have had."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((each / "schedstat").read_text(encoding="ascii").split()[0]) for each in tasks) / 1e9


def main() -> None:
    """Measure, and print one table."""
    parser = argparse.ArgumentParser(prog="python -m bench.records")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--count", type=int, default=300, help="requests of a round")
    parser.add_argument("--redis", metavar="URL", help="count in this Redis too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="skills-bench-") as folder, ExitStack() as stack:
        scratch = Path(folder)
        generate(root := scratch / "skills", _SKILLS)
        load = stack.enter_context(Load())
        servers = {
            name: stack.enter_context(serving(root, *given)) for name, given in variants(scratch, options.redis).items()
        }
        asked = modern_request(*questions(_SKILLS)["skills/get name"])
        times: dict[str, list[float]] = {name: [] for name in servers}
        middles: dict[str, list[float]] = {name: [] for name in servers}
        spent = dict.fromkeys(servers, 0.0)
        for server in servers.values():
            load.ask(server, [asked], options.count)
        names = [*servers]
        for number in range(options.rounds):
            turn = number % len(names)
            for name in (*names[turn:], *names[:turn]):
                before = cpu(servers[name].pid)
                seen = load.ask(servers[name], [asked], options.count)
                spent[name] += cpu(servers[name].pid) - before
                times[name] += seen.times
                middles[name].append(median(seen.times))
        base = middles["nothing"]
        print(f"{'server':16}{'p10 us':>9}{'p50 us':>9}{'p99 us':>9}{'p50 beside nothing':>20}{'CPU us a request':>18}")
        for name in names:
            whole = sorted(times[name])
            ratio = median(mine / other for mine, other in zip(middles[name], base, strict=True))
            each = spent[name] / len(whole) * 1e6
            print(
                f"{name:16}{whole[len(whole) // 10] * 1e6:9.0f}{median(whole) * 1e6:9.0f}"
                f"{whole[len(whole) * 99 // 100] * 1e6:9.0f}"
                f"{(ratio - 1) * 100:+19.1f}%{each:18.0f}"
            )


if __name__ == "__main__":
    main()
