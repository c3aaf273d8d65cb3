"""`Pipes` in a process of its own: reading, writing, backpressure, and shutdown."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from wire import DEADLINE

LARGE = b"large" * 100_000
LINES = [b"%06d" % number for number in range(30_000)]
ECHO = """
import asyncio, os, sys
from mcp_skills_server.transport import Pipes

async def main():
    pipes = Pipes()
    async def echo(line):
        if line == b"large":
            line *= 100_000
        await pipes.send(line + b"\\n")
    async def work():
        try:
            async with asyncio.TaskGroup() as tasks:
                async for line in pipes.lines():
                    tasks.create_task(echo(line))
        finally:
            print("cleaned up", file=sys.stderr, flush=True)
    async def before_signalled():
        print("signalled", file=sys.stderr, flush=True)
    await pipes.serve(work, before_signalled)

asyncio.run(main())
if sys.argv[1:]:
    os._exit(0)  # as every command does: a blocked write keeps a thread alive
"""


@contextmanager
def running(program: str, *arguments: str) -> Iterator[Any]:
    command, pipe = [sys.executable, "-c", program, *arguments], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0) as process:
        try:
            yield process
        finally:
            process.kill()


def stderr_at_exit(process: Any) -> list[bytes]:
    assert process.wait(DEADLINE) == 0
    return process.stderr.read().splitlines()


def test_regular_files_serve_as_stdin_and_stdout(tmp_path: Path) -> None:
    """The event loop cannot poll a regular file."""
    (tmp_path / "lines").write_bytes(b"\n".join([*LINES, b"large"]))
    command = [sys.executable, "-c", ECHO]
    with (tmp_path / "lines").open("rb") as source, (tmp_path / "answers").open("wb") as target:
        subprocess.run(command, stdin=source, stdout=target, stderr=subprocess.PIPE, check=True)
    assert (tmp_path / "answers").read_bytes().splitlines() == [*LINES, LARGE]


def test_client_may_write_all_lines_before_it_reads() -> None:
    with running(ECHO) as process:
        unsent = b"".join(line + b"\n" for line in LINES)
        while unsent:
            unsent = unsent[process.stdin.write(unsent) or 0 :]
        process.stdin.close()
        assert process.stdout.read().splitlines() == LINES
        assert stderr_at_exit(process) == [b"cleaned up"]


WITHOUT_POLLING = """
import asyncio
def refuse(*_):
    raise NotImplementedError
for name in ("add_reader", "add_writer", "add_signal_handler", "remove_signal_handler"):
    setattr(asyncio.SelectorEventLoop, name, refuse)
"""


def test_event_loop_without_polling_serves_lines_as_on_windows() -> None:
    with running(WITHOUT_POLLING + ECHO) as process:
        for line in (b"one\n", b"two\n"):
            process.stdin.write(line)
            assert process.stdout.readline() == line
        process.stdin.close()
        assert stderr_at_exit(process) == [b"cleaned up"]


def test_socket_serves_as_stdin_and_stdout() -> None:
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-c", ECHO]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=subprocess.PIPE)
    with ours, process:
        theirs.close()
        ours.sendall(b"large\nsmall\n" * 3)
        ours.shutdown(socket.SHUT_WR)
        with ours.makefile("rb") as answers:
            assert sorted(answers.read().splitlines()) == sorted([LARGE, b"small"] * 3)
        assert stderr_at_exit(process) == [b"cleaned up"]


@pytest.mark.parametrize("line", [b"small\n", b"large\n"])
def test_write_to_a_lost_reader_ends_the_process_without_traceback(line: bytes) -> None:
    with running(ECHO) as process:
        process.stdout.close()
        process.stdin.write(line)
        assert stderr_at_exit(process) == [b"cleaned up"]


def test_client_that_stops_reading_does_not_delay_the_exit() -> None:
    with running(ECHO, "exit") as process:
        process.stdin.write(b"large\n" * 4)
        assert process.stdout.read(5) == b"large"
        process.send_signal(signal.SIGTERM)
        assert stderr_at_exit(process) == [b"signalled", b"cleaned up"]


FLOOD = """
import asyncio, sys
from mcp_skills_server.transport import Pipes

async def main():
    pipes = Pipes()
    async def work():
        lines = 0
        async for _ in pipes.lines():
            lines += 1
            pipes.send_now(bytes(1 << 20))
        print(lines, file=sys.stderr, flush=True)
        await asyncio.wait_for(pipes.flush(), 60)
    await pipes.serve(work)

asyncio.run(main())
"""
"""A program that answers each line with 1 MiB."""


def test_reading_pauses_while_too_much_output_is_unsent() -> None:
    with running(FLOOD) as process:
        process.stdin.write(b"line\n" * 200)
        process.stdin.close()
        lines = int(process.stderr.readline())  # reading ends, since stdin is closed
        assert 32 <= lines <= 40
        received = sum(map(len, iter(lambda: process.stdout.read(1 << 20), b"")))
        assert received == lines << 20
        assert process.wait(DEADLINE) == 0


def test_client_that_reads_late_receives_all_output() -> None:
    with running(FLOOD) as process:
        process.stdin.write(b"line\n" * 200)
        left = 200 << 20
        while left and (part := process.stdout.read(min(left, 1 << 20))):
            left -= len(part)
        assert left == 0
        process.stdin.close()
        assert process.wait(DEADLINE) == 0


SEND_TWICE = """
import asyncio, sys
from mcp_skills_server.transport import Pipes

async def main():
    pipes = Pipes()
    pipes.send_now(bytes(1 << 20))
    print("full", file=sys.stderr, flush=True)
    for _ in range(2):
        try:
            await asyncio.wait_for(pipes.send(b"more"), 10)
        except BrokenPipeError:
            print("broken pipe", file=sys.stderr, flush=True)

asyncio.run(main())
"""


def test_each_send_to_a_lost_reader_raises_broken_pipe() -> None:
    with running(SEND_TWICE) as process:
        assert process.stderr.readline() == b"full\n"
        process.stdout.close()
        assert stderr_at_exit(process) == [b"broken pipe", b"broken pipe"]
