"""A flood: how long others wait while one principal asks as fast as it can, with and without a quota of requests.

`python -m bench.flood`. The quiet figure is that of the others alone. The server has a half of the processors for
itself; the other half is for who asks, the others and the flood, so that the flood does not take the server's. What it
takes from the others' own process is in the middle row, which has the same flood at another server among them.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
from bisect import bisect
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Final

from bench.cheap_load import CheapLoad, Seen, halves, pin
from bench.client import REPOSITORY, BenchError
from bench.generate import generate, questions
from bench.http import Server, modern_request
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

    def __init__(self, load: CheapLoad, server: Server, request: str) -> None:
        self._load, self._server, self._request = load, server, request
        self.seen: Seen | None = None

    def __enter__(self) -> Flood:
        self._load.begin(self._server.port, [self._request] * _FLOODERS)
        return self

    def __exit__(self, *error: object) -> None:
        self._load.end()
        self.seen = self._load.seen()


@contextmanager
def serving(folder: Path, quota: int | None, processors: set[int]) -> Iterator[Server]:
    """Our server for these principals, with so many requests a minute for each, on these processors."""
    lines = "".join(f"{name}={token}\n" for name, token in _TOKENS.items())
    (folder / "tokens").write_text(lines)
    (folder / "tokens").chmod(0o600)
    table = f"[quota]\nrequests-per-minute = {quota}\n" if quota else ""
    file = folder / "config.toml"
    file.write_text(f"roots = ['skills']\ntoken-file = 'tokens'\n{table}")
    arguments = ("serve", "--config", str(file), "--transport", "http", "--port", "0", "--usage", "off")
    with Server("-m", "mcp_skills_server", *arguments) as server:
        pin(server.pid, processors)
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
    servers, askers = halves()
    quota = 4 * _ROUNDS * count  # twice what each of the others asks in all
    for most in (None, quota) if supported(folder) else (None,):
        words = "no quota" if most is None else f"{most:,} requests a minute"
        with (
            serving(folder, most, servers) as server,
            serving(folder, most, askers) as elsewhere,
            CheapLoad(askers) as others,
            CheapLoad(askers) as flooding,
        ):
            for each in (server, elsewhere):  # all are warm then, and the quota of who floods is used up
                flooding.ask(each.port, [page] * _FLOODERS, 640 + (most or 0))
            times: dict[str, list[float]] = {"alone": [], "elsewhere": [], "here": []}
            asks: list[float] = []
            before_mine: list[float] = []
            cpu: list[float] = []
            refused = 0
            for _ in range(_ROUNDS):  # in turn, so that whatever else the machine does is in all of them
                times["alone"] += _slowly(others, server, read, count)
                with Flood(flooding, elsewhere, page):
                    times["elsewhere"] += _slowly(others, server, read, count)
                before = processor(server.pid)
                with Flood(flooding, server, page) as flood:
                    ends: list[float] = []
                    here = _slowly(others, server, read, count, ends)
                assert flood.seen is not None
                times["here"] += here
                before_mine += _meanwhile(here, ends, flood.seen.ends)
                asked_for = len(flood.seen.times)
                refused += " 429 " in flood.seen.first
                asks.append(asked_for / flood.seen.seconds)
                cpu.append((processor(server.pid) - before) / (asked_for + count * _OTHERS) * _MS)
            if most is not None and not refused:
                raise BenchError("the flood was never over its quota")
            n, quiet = len(times["alone"]), p99(times["alone"])
            yield Row(f"{words}: others alone, p99", size, n, quiet, None, "ms")
            what = f"{words}: others, and the flood at another server, p99"
            yield Row(what, size, n, p99(times["elsewhere"]), quiet, "ms")
            what = f"{words}: others in a flood of {median(asks):,.0f}/s, p99"
            yield Row(what, size, n, p99(times["here"]), quiet, "ms", most_ratio=3.0)
            what = f"{words}: requests of the flood that are answered before one of the others, "
            for part, whole in ((0.5, "median"), (0.99, "p99")):
                place = sorted(before_mine)[round(part * (len(before_mine) - 1))]
                yield Row(what + whole, size, n, place, None, "")
            yield Row(
                f"{words}: processor time of the server, a request in the flood", size, n, median(cpu), None, "ms"
            )


def _slowly(
    others: CheapLoad, server: Server, requests: list[str], count: int, ends: list[float] | None = None
) -> list[float]:
    """`count` requests of each, with pauses, so that nobody of them is near the quota; `ends` gets when they ended."""
    out: list[float] = []
    for _ in range(count):
        _PAUSE.wait(0.02)
        seen = others.ask(server.port, requests, len(requests))
        if " 200 " not in seen.first:
            raise BenchError(f"the others were refused: {seen.first}")
        out += seen.times
        if ends is not None:
            ends += seen.ends
    return out


def _meanwhile(times: list[float], ends: list[float], flood: list[float]) -> list[float]:
    """How many requests of the flood were answered between each of the others' requests and its answer."""
    return [float(bisect(flood, end) - bisect(flood, end - time)) for time, end in zip(times, ends, strict=True)]


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
