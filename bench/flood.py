"""A flood: how long others wait while one principal asks as fast as it can, with and without a quota of requests.

`python -m bench.flood`. The quiet figure is that of the others alone. Whoever floods is a process on the same machine
and takes its processors too: the middle row has the same flood at another server, and what the last row has beyond it
is what the server itself makes others wait.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Final

from bench.client import REPOSITORY, BenchError
from bench.generate import generate, questions
from bench.http import Load, Server, modern_request
from bench.report import Row, Run

_FLOODERS: Final = 32
_OTHERS: Final = 4
_ROUNDS: Final = 5
_TOKENS: Final = {
    "flood": "made-up-token-of-flood-00001",
    **{f"other{n}": f"made-up-token-of-other{n}" for n in range(4)},
}
_MS: Final = 1e3


def borne(request: str, name: str) -> str:
    """The request with this principal's token."""
    return request.replace("\r\n", f"\r\nAuthorization: Bearer {_TOKENS[name]}\r\n", 1)


def p99(times: list[float]) -> float:
    """The slowest hundredth begins here, in milliseconds."""
    return sorted(times)[round(0.99 * (len(times) - 1))] * _MS


def processor(pid: int) -> float:
    """Seconds of processor time that a process has taken."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Flood:
    """One principal that asks as fast as it can, from a process of its own."""

    def __init__(self, server: Server, request: str) -> None:
        self.asked, self.seconds, self.answer = 0, 0.0, b""
        self._over = threading.Event()
        self._server, self._request = server, request
        self._load = Load()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        began = perf_counter()
        while not self._over.is_set():
            # A quota answers at once, so that this is as fast as the refusals are.
            seen = self._load.ask(self._server, [self._request] * _FLOODERS, 640)
            self.asked += len(seen.times)
            self.answer = seen.answer
        self.seconds = perf_counter() - began

    def __enter__(self) -> Flood:
        self._load.__enter__()
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()
        self._load.__exit__(None, None, None)


@contextmanager
def serving(folder: Path, quota: int | None) -> Iterator[Server]:
    """Our server for these principals, with so many requests a minute for each."""
    lines = "".join(f"{name}={token}\n" for name, token in _TOKENS.items())
    (folder / "tokens").write_text(lines)
    (folder / "tokens").chmod(0o600)
    table = f"[quota]\nrequests-per-minute = {quota}\n" if quota else ""
    file = folder / "config.toml"
    file.write_text(f"roots = ['skills']\ntoken-file = 'tokens'\n{table}")
    arguments = ("serve", "--config", str(file), "--transport", "http", "--port", "0", "--usage", "off")
    with Server("-m", "mcp_skills_server", *arguments) as server:
        yield server


def supported(folder: Path) -> bool:
    """Whether this version has quotas."""
    file = folder / "quota.toml"
    file.write_text("[quota]\nrequests-per-minute = 600\n")
    command = [sys.executable, "-m", "mcp_skills_server", "config", "check", str(file)]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, check=False).returncode == 0


def measure(folder: Path, size: int, count: int) -> Iterator[Row]:
    """The others alone, while the flood goes elsewhere, and in the flood; without and with a quota."""
    asked = questions(size)
    read = [borne(modern_request(*asked["resources/read"]), f"other{number}") for number in range(_OTHERS)]
    page = borne(modern_request(*asked["skills/list"]), "flood")
    quota = 4 * _ROUNDS * count  # twice what each of the others asks in all
    for most in (None, quota) if supported(folder) else (None,):
        words = "no quota" if most is None else f"{most:,} requests a minute"
        with serving(folder, most) as server, serving(folder, most) as elsewhere, Load() as others:
            for each in (server, elsewhere):  # all are warm then, and the quota of who floods is used up
                others.ask(each, [page] * _FLOODERS, 640 + (most or 0))
            times: dict[str, list[float]] = {"alone": [], "elsewhere": [], "here": []}
            asks: list[float] = []
            cpu: list[float] = []
            refused = 0
            for _ in range(_ROUNDS):  # in turn, so that whatever else the machine does is in all of them
                times["alone"] += _slowly(others, server, read, count)
                with Flood(elsewhere, page):
                    times["elsewhere"] += _slowly(others, server, read, count)
                before = processor(server.pid)
                with Flood(server, page) as flood:
                    times["here"] += _slowly(others, server, read, count)
                refused += b" 429 " in flood.answer.partition(b"\r\n")[0]
                asks.append(flood.asked / flood.seconds)
                cpu.append((processor(server.pid) - before) / (flood.asked + count * _OTHERS) * _MS)
            if most is not None and not refused:
                raise BenchError("the flood was never over its quota")
            n, quiet = len(times["alone"]), p99(times["alone"])
            yield Row(f"{words}: others alone, p99", size, n, quiet, None, "ms")
            what = f"{words}: others, and the flood at another server, p99"
            yield Row(what, size, n, p99(times["elsewhere"]), quiet, "ms")
            what = f"{words}: others in a flood of {median(asks):,.0f}/s, p99"
            yield Row(what, size, n, p99(times["here"]), quiet, "ms", most_ratio=3.0)
            yield Row(
                f"{words}: processor time of the server, a request in the flood", size, n, median(cpu), None, "ms"
            )


def _slowly(others: Load, server: Server, requests: list[str], count: int) -> list[float]:
    """`count` requests of each, with pauses, so that nobody of them is near the quota."""
    out: list[float] = []
    for _ in range(count):
        _PAUSE.wait(0.02)
        seen = others.ask(server, requests, len(requests))
        if b" 200 " not in seen.answer.partition(b"\r\n")[0]:
            raise BenchError(f"the others were refused: {seen.answer[:200]!r}")
        out += seen.times
    return out


_PAUSE: Final = threading.Event()
"""Never set."""


def main() -> int:
    """Measure, print one table and, when asked, write JSON."""
    parser = argparse.ArgumentParser(prog="python -m bench.flood", description="One floods, others ask.")
    parser.add_argument("--size", type=int, default=1000, help="how many skills are served (default 1000)")
    parser.add_argument("--count", type=int, default=100, help="how often each of the others asks, in each of 5 rounds")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to FILE")
    options = parser.parse_args()
    run = Run()
    with tempfile.TemporaryDirectory(prefix="skills-bench-") as scratch:
        folder = Path(scratch).resolve()
        generate(folder / "skills", options.size)
        rows = [*measure(folder, options.size, options.count)]
    run.tell(rows, "wall time of the others' requests; floor: the others alone on the same server", options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
