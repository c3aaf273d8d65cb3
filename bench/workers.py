"""Workers: requests a second and processor time for each, by how many processes answer, beside one without any.

`python -m bench.workers`. Who asks are two more processes on the same machine. They take little, which is a row of its
own, but they take it from the workers: read the processor time of a request beside the rate, and where the rate bends
beside the number of processors.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from http.client import HTTPConnection
from pathlib import Path
from statistics import median
from typing import Final

from bench.cheap_load import CheapLoad, Seen, ask_together
from bench.client import BenchError
from bench.generate import generate, questions
from bench.http import HELLO, Server, legacy_request, modern_request, ours, request
from bench.report import Row, Run

_CONNECTIONS: Final = 32
_EACH: Final = 640
_PATIENCE_S: Final = 60.0
_MS: Final = 1e3
_MB: Final = 1e6
_TICKS: Final = os.sysconf("SC_CLK_TCK")


class Group:
    """A server with its workers.

    Args:
        server: the process that was started.
        loads: the processes that ask.
        size: how many skills it serves.
    """

    def __init__(self, server: Server, loads: Sequence[CheapLoad], size: int) -> None:
        self.server = server
        self.loads = loads
        self.size = size

    def ask(self, requests: list[str], count: int) -> Seen:
        """Each request over a connection of its own, again and again, `count` times in all."""
        return ask_together(self.loads, self.server.port, requests, count)

    def processes(self) -> list[int]:
        """The server's and those of its workers."""
        pid = self.server.pid
        return [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]

    def cpu(self) -> float:
        """Seconds of processor time that all have taken."""
        total = 0
        for pid in self.processes():
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += int(fields[11]) + int(fields[12])
        return total / _TICKS

    def open_sessions(self, count: int) -> list[str]:
        """Legacy sessions, with hands shaken, each over a connection of its own."""
        message = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": HELLO}
        head, _, body = request(message, {}).partition("\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.split("\r\n")[1:])
        out: list[str] = []
        for _ in range(count):
            connection = HTTPConnection("127.0.0.1", self.server.port, timeout=_PATIENCE_S)
            connection.request("POST", "/mcp", body, headers)
            session = connection.getresponse().headers["Mcp-Session-Id"]
            connection.close()
            sent = [legacy_request(session, "notifications/initialized", identifier=None)]
            self.loads[0].ask(self.server.port, sent, 1)
            out.append(session)
        return out


def curve(root: Path, size: int, counts: list[int], *, quick: bool) -> Iterator[Row]:
    """Each number of workers, from its start to its end, beside the first one."""
    plain: dict[str, float] = {}
    for count in counts:
        options = ("--workers", str(count)) if count > 1 else ()
        with CheapLoad() as one, CheapLoad() as other, ours(root, *options) as server:
            group = Group(server, (one, other), size)
            group.ask([modern_request("skills/list", {})] * _CONNECTIONS, 4 * _EACH)  # all are in by then
            for row in _rows(group, quick=quick):
                yield Row(f"{row.what}, {count} workers", size, row.n, row.ours, plain.get(row.what), row.unit)
                plain.setdefault(row.what, row.ours)


def _rows(group: Group, *, quick: bool) -> Iterator[Row]:
    rounds = 3 if quick else 10
    asked = questions(group.size)
    for key, what in (("skills/list", "a page"), ("resources/read", "a file")):
        sent = [modern_request(*asked[key])] * _CONNECTIONS
        yield from _measured(group, rounds, f"modern, {what}", lambda _, sent=sent: sent)
    sessions = group.open_sessions(_CONNECTIONS)
    sent = [legacy_request(each, "skills/list", {}) for each in sessions]
    yield from _measured(group, rounds, "legacy, a page, own connections", lambda _: sent)

    def another(turn: int) -> list[str]:
        return [*sent[turn % _CONNECTIONS :], *sent[: turn % _CONNECTIONS]]

    what = "legacy, a page, each from another connection"
    yield from _measured(group, rounds * 20, what, another, _CONNECTIONS)
    yield Row(
        "memory of all processes, what they share counted for each", group.size, 1, group.server.rss() / _MB, None, "MB"
    )


def _measured(
    group: Group, rounds: int, what: str, requests: Callable[[int], list[str]], each: int = _EACH
) -> Iterator[Row]:
    group.ask(requests(0), 4 * _CONNECTIONS)
    before = group.cpu()
    seen = [group.ask(requests(turn), each) for turn in range(rounds)]
    if " 200 " not in seen[-1].first:
        raise BenchError(f"{what}: answered with {seen[-1].first}")
    cpu = group.cpu() - before
    n = rounds * each
    times = sorted(time for one in seen for time in one.times)
    yield Row(f"{what}, requests", group.size, n, median(each / one.seconds for one in seen), None, "/s")
    yield Row(f"{what}, p99", group.size, n, times[round(0.99 * (n - 1))] * _MS, None, "ms")
    yield Row(f"{what}, processor", group.size, n, cpu / n * _MS, None, "ms")
    asking = sum(one.cpu for one in seen)
    yield Row(f"{what}, processor of who asks", group.size, n, asking / n * _MS, None, "ms")


def main() -> int:
    """Measure, print one table and, when asked, write JSON."""
    parser = argparse.ArgumentParser(prog="python -m bench.workers", description="One server, and several workers.")
    parser.add_argument("--size", type=int, default=1000, help="how many skills are served (default 1000)")
    parser.add_argument("--workers", help="numbers of workers, by default 1,2 and up to twice the processors")
    parser.add_argument("--quick", action="store_true", help="fewer repeats")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to FILE")
    options = parser.parse_args()
    most = 2 * (os.cpu_count() or 1)
    counts = [int(each) for each in options.workers.split(",")] if options.workers else [1, *_doubling(most)]
    run = Run()
    with tempfile.TemporaryDirectory(prefix="skills-bench-") as scratch:
        root = Path(scratch, "skills").resolve()
        generate(root, options.size)
        print("bench: workers", file=sys.stderr, flush=True)
        rows = [*curve(root, options.size, counts, quick=options.quick)]
    run.tell(rows, f"medians unless p99 is said; floor: the first column of {counts}", options.json)
    return 0


def _doubling(most: int) -> Iterator[int]:
    count = 2
    while count <= most:
        yield count
        count *= 2


if __name__ == "__main__":
    sys.exit(main())
