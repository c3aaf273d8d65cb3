"""A server in a container: its start, its processes, its end."""

from __future__ import annotations

import ctypes
import fcntl
import http.client
import os
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tools.image.client import Client, open_streams
from tools.image.settings import DEADLINE
from tools.image.steps import ImageError, Steps

ENDING: Final = 2.0
"""Seconds that the server may take to end."""
CLONE_NEWNET: Final = 0x40000000


def own_network() -> None:
    """Leave this machine's network: from here on there is a loopback of our own and nothing else.

    Raises:
        ImageError: that is not allowed.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET):
        raise ImageError(f"no network namespace: {os.strerror(ctypes.get_errno())}")
    flags, up = 0x8914, 0x1  # SIOCSIFFLAGS, IFF_UP
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, flags, struct.pack("16sh", b"lo", up))


@dataclass
class Running:
    """A server in a container."""

    process: subprocess.Popen[bytes]
    pid: int
    log: Path
    seconds: float
    """From the start of the container until it was ready."""

    def status(self, key: str) -> list[str]:
        """A line of /proc/PID/status."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(f"{key}:"):
                return line.split()[1:]
        return []

    def processors(self) -> float:
        """Seconds of processors that it and the processes below it have taken so far."""
        ticks = 0
        for pid in (self.pid, *children(self.pid)):
            ticks += sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]))
        return ticks / os.sysconf("SC_CLK_TCK")


def children(pid: int) -> list[int]:
    """Processes that a process started."""
    out: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*"):
        with suppress(OSError):
            out += map(int, (task / "children").read_text().split())
    return out


def _server_below(pid: int) -> int | None:
    """The process of the server below the one that runs the container."""
    for child in children(pid):
        with suppress(OSError):
            line = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
            if b"/app/bin/mcp-skills-server" in line[:2] and os.readlink(f"/proc/{child}/exe").find("/python3") >= 0:
                return child
        found = _server_below(child)
        if found is not None:
            return found
    return None


@contextmanager
def started(command: Sequence[str], log: Path) -> Generator[Running]:
    """Start a container and wait until it is ready."""
    begun = time.monotonic()
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
    pid: int | None = None
    try:
        end = begun + DEADLINE
        while True:
            if process.poll() is not None or time.monotonic() > end:
                raise ImageError(f"the server did not get ready (exit code {process.poll()}):\n{log.read_text()}")
            pid = pid or _server_below(process.pid)
            with suppress(OSError, http.client.HTTPException):
                if pid is not None and Client().get("/readyz")[0] == 200:
                    break
            time.sleep(0.02)
        yield Running(process, pid, log, time.monotonic() - begun)
    finally:
        for each in (pid, process.pid):
            if each is not None and process.poll() is None:
                with suppress(ProcessLookupError):
                    os.kill(each, signal.SIGKILL)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(5)


def end_and_check(server: Running, client: Client, steps: Steps) -> None:
    """SIGTERM, with a stream of each era open."""
    streams = open_streams(client)
    now, most = (int(server.status(key)[0]) / 1024 for key in ("VmRSS", "VmHWM"))
    steps.saw(f"memory: {now:.0f} MiB, at the most {most:.0f} MiB")
    begun = time.monotonic()
    os.kill(server.pid, signal.SIGTERM)
    try:
        code = server.process.wait(DEADLINE)
    except subprocess.TimeoutExpired:
        raise ImageError("SIGTERM did not end it") from None
    took = time.monotonic() - begun
    steps.check(code == 0, f"SIGTERM, with a stream of each era open: exit code {code}")
    steps.check(took < ENDING, f"after {took:.2f} s")
    for era, stream in streams.items():
        try:
            received = stream.read()
        except http.client.IncompleteRead:
            raise ImageError(f"the {era} stream was cut off in the middle") from None
        said = next((line[5:].decode() for line in received.splitlines() if line.startswith(b"data:")), " nothing")
        steps.check(era == "legacy" or '"result"' in said, f"the {era} stream ended properly, its last word:{said}")
    reported = server.log.read_text().splitlines()
    for line in reported:
        if ": ok in " not in line:  # one for each request
            steps.saw(f"    {line}")
    wrong = [line for line in reported if line.startswith(("mcp-skills-server: ERROR", "Traceback"))]
    steps.check(not wrong, "no error in its log, above")
