"""A load that takes little of the processors that it shares with the server: kept bytes out, answers counted.

What `bench/http.py` asks with is an event loop of Python that takes a third of what the server does. Here each process
has one `epoll` and reads of an answer only where it ends; there may be several, and each may keep to some processors.
"""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import Any, Final

from bench.client import REPOSITORY, BenchError

_PATIENCE_S: Final = 60.0
_CHUNK: Final = 1 << 18
_IN_CHUNKS: Final = -1
"""Instead of a length: an answer that ends with its last chunk."""


def halves() -> tuple[set[int], set[int]]:
    """The processors of this machine, for servers and for who asks; all for both where there is only one."""
    every = sorted(os.sched_getaffinity(0))
    middle = (len(every) + 1) // 2
    return {*every[:middle]}, {*every[middle:]} or {*every}


def pin(pid: int, processors: Collection[int]) -> None:
    """Have all threads of a process, and what they start, run on these processors alone."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread.name), processors)


@dataclass(frozen=True, slots=True)
class Seen:
    """What a load saw.

    Attributes:
        times: seconds from the request to the end of its answer, each.
        ends: when that end came, in order, by the clock of `perf_counter`, which all processes share.
        seconds: how long all of it took.
        first: the first line of the last answer.
        cpu: seconds of processor time that asking took.
    """

    times: list[float]
    ends: list[float]
    seconds: float
    first: str
    cpu: float


class CheapLoad:
    """A process that asks, over connections that it keeps open to each server.

    Args:
        processors: what it runs on; all where none are given.
    """

    def __init__(self, processors: Collection[int] = ()) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.cheap_load"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=REPOSITORY
        )
        if processors:
            pin(self._process.pid, processors)

    def __enter__(self) -> CheapLoad:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(_PATIENCE_S)
        self._process.stdout.close()

    def begin(self, port: int, requests: Sequence[str], count: int | None = None) -> None:
        """Have each request sent over a connection of its own, again and again, `count` times in all or until `end`."""
        self._say({"port": port, "requests": [*requests], "count": count})

    def end(self) -> None:
        """Have what was begun without a count come to its end."""
        self._say(None)

    def seen(self) -> Seen:
        """What came of it, when it is over.

        Raises:
            BenchError: a connection was lost.
        """
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        found = json.loads(line) if line else {"error": "the load ended"}
        if "error" in found:
            raise BenchError(found["error"])
        return Seen(**found)

    def ask(self, port: int, requests: Sequence[str], count: int) -> Seen:
        """`begin`, and what came of it."""
        self.begin(port, requests, count)
        return self.seen()

    def _say(self, job: dict[str, Any] | None) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(job).encode() + b"\n")
        self._process.stdin.flush()


def ask_together(loads: Sequence[CheapLoad], port: int, requests: Sequence[str], count: int) -> Seen:
    """Have several loads ask at once, each over its part of the connections, `count` times in all."""
    for number, load in enumerate(loads):
        load.begin(port, requests[number :: len(loads)], count // len(loads))
    every = [load.seen() for load in loads]
    return Seen(
        [time for seen in every for time in seen.times],
        sorted(end for seen in every for end in seen.ends),
        max(seen.seconds for seen in every),
        every[-1].first,
        sum(seen.cpu for seen in every),
    )


class _Connection:
    """A request that is sent again and again."""

    __slots__ = ("request", "since", "socket", "text", "whole")

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.request = b""
        self.since, self.text, self.whole = 0.0, b"", 0

    def send(self) -> None:
        self.text, self.whole = b"", 0
        self.since = perf_counter()
        self.socket.sendall(self.request)

    def is_lost(self) -> bool:
        """Whether the server has closed it, since nothing was asked over it for so long."""
        with suppress(BlockingIOError):
            return not self.socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        return False

    def is_over(self) -> bool:
        """Read; whether the answer is whole."""
        chunk = self.socket.recv(_CHUNK)
        if not chunk:
            raise BenchError(f"a connection was lost after {self.text[:300]!r}")
        self.text = self.text + chunk if self.text else chunk
        if not self.whole and (head := self.text.find(b"\r\n\r\n")) >= 0:
            at = self.text.lower().find(b"content-length:", 0, head)
            self.whole = _IN_CHUNKS if at < 0 else head + 4 + int(self.text[at + 15 : self.text.find(b"\r", at)])
        if self.whole == _IN_CHUNKS:
            return self.text.endswith(b"\r\n0\r\n\r\n")
        return 0 < self.whole <= len(self.text)


class _Asking:
    """The process: jobs in on stdin, what was seen out on stdout."""

    def __init__(self) -> None:
        self._connections: dict[tuple[int, int], _Connection] = {}

    def run(self) -> None:
        while line := sys.stdin.buffer.raw.readline():  # type: ignore[attr-defined] # unbuffered, for epoll
            if (job := json.loads(line)) is None:
                continue  # of a job that has ended with an error
            try:
                found: dict[str, Any] = self._job(**job)
            except (BenchError, OSError) as error:
                self._connections.clear()
                found = {"error": repr(error)}
            sys.stdout.write(json.dumps(found) + "\n")
            sys.stdout.flush()

    def _job(self, port: int, requests: list[str], count: int | None) -> dict[str, Any]:
        used: dict[int, _Connection] = {}
        for number, request in enumerate(requests):
            one = self._connections.get((port, number))
            if one is None or one.is_lost():
                one = _Connection(port)
            self._connections[port, number] = used[one.socket.fileno()] = one
            one.request = request.encode()
        began, cpu, first = perf_counter(), os.times(), b""
        times: list[float] = []
        ends: list[float] = []
        with select.epoll() as poll:
            for descriptor in used:
                poll.register(descriptor, select.EPOLLIN)
            if count is None:
                poll.register(0, select.EPOLLIN)
            left, open_ones = count or sys.maxsize, 0
            for one in [*used.values()][:left]:
                one.send()
                left, open_ones = left - 1, open_ones + 1
            while open_ones:
                ready = poll.poll(_PATIENCE_S)
                if not ready:
                    raise BenchError(f"{open_ones} answers did not come")
                for descriptor, _ in ready:
                    if not descriptor:
                        sys.stdin.buffer.raw.readline()  # type: ignore[attr-defined]
                        poll.unregister(0)
                        left = 0
                    elif (one := used[descriptor]).is_over():
                        ends.append(perf_counter())
                        times.append(ends[-1] - one.since)
                        first, open_ones = one.text, open_ones - 1
                        if left > 0:
                            one.send()
                            left, open_ones = left - 1, open_ones + 1
        now = os.times()
        return {
            "times": times,
            "ends": ends,
            "seconds": perf_counter() - began,
            "first": first.partition(b"\r\n")[0].decode("latin-1"),
            "cpu": now.user + now.system - cpu.user - cpu.system,
        }


if __name__ == "__main__":
    _Asking().run()
