"""A protocol of lines in a process of its own: every way in which it ends."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

import pytest

from wire import DEADLINE

ECHO = """
import asyncio, os, sys
from mcp_skills_server.transport import Pipes

async def main():
    pipes = Pipes(1 << 20)
    async def one(line):
        await pipes.send(b"too long\\n" if line is None else line * (100_000 if line == b"much" else 1) + b"\\n")
    async def work():
        try:
            async with asyncio.TaskGroup() as tasks:
                async for line in pipes.lines():
                    if line == b"wait":
                        await pipes.send(b"waiting\\n")
                        await asyncio.get_running_loop().create_future()
                    tasks.create_task(one(line))
        finally:
            print("cleaned up", file=sys.stderr, flush=True)
    async def before():
        print("signalled", file=sys.stderr, flush=True)
    await pipes.serve(work, before)

asyncio.run(main())
if sys.argv[1:]:
    os._exit(0)  # as every command does: a write that nobody reads holds a thread
"""


@contextmanager
def echo(*words: str, program: str = ECHO) -> Iterator[tuple[subprocess.Popen[bytes], IO[bytes], IO[bytes]]]:
    command = [sys.executable, "-c", program, *words]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
    ) as process:
        try:
            yield process, cast("IO[bytes]", process.stdin), cast("IO[bytes]", process.stdout)
        finally:
            process.kill()


def ended(process: subprocess.Popen[bytes]) -> list[bytes]:
    """What it said at its end, which was in order."""
    assert process.wait(DEADLINE) == 0
    return cast("IO[bytes]", process.stderr).read().splitlines()


@pytest.mark.parametrize("last", [b"two\n", b"two"])
def test_the_end_of_stdin_ends_it_after_the_last_line(last: bytes) -> None:
    with echo() as (process, stdin, stdout):
        stdin.write(b"one\n\n" + last)
        stdin.close()
        assert sorted(stdout.read().splitlines()) == [b"one", b"two"]
        assert ended(process) == [b"cleaned up"]


LINES = [b"%06d" % number for number in range(30_000)]


def test_lines_from_a_file_are_read_and_what_is_written_to_one_is_whole(tmp_path: Path) -> None:
    """Which the event loop cannot wait for."""
    (tmp_path / "lines").write_bytes(b"\n".join([*LINES, b"much"]))
    with (tmp_path / "lines").open("rb") as source, (tmp_path / "answers").open("wb") as target:
        subprocess.run([sys.executable, "-c", ECHO], stdin=source, stdout=target, stderr=subprocess.PIPE, check=True)
    assert (tmp_path / "answers").read_bytes().splitlines() == [*LINES, b"much" * 100_000]


def test_a_client_may_say_all_that_it_has_before_it_reads() -> None:
    with echo() as (process, stdin, stdout):
        sent = b"".join(line + b"\n" for line in LINES)
        while sent:
            sent = sent[stdin.write(sent) or 0 :]
        stdin.close()
        assert stdout.read().splitlines() == LINES
        assert ended(process) == [b"cleaned up"]


NO_WATCH = """
import asyncio
def refuse(*_):
    raise NotImplementedError
for name in ("add_reader", "add_writer", "add_signal_handler", "remove_signal_handler"):
    setattr(asyncio.SelectorEventLoop, name, refuse)
"""


def test_an_event_loop_that_can_wait_for_no_pipe_serves_all_the_same() -> None:
    """As on Windows."""
    with echo(program=NO_WATCH + ECHO) as (process, stdin, stdout):
        for line in (b"one\n", b"two\n"):
            stdin.write(line)
            assert stdout.readline() == line
        stdin.close()
        assert ended(process) == [b"cleaned up"]


def test_a_socket_is_written_as_a_pipe_is() -> None:
    ours, theirs = socket.socketpair()
    with (
        ours,
        subprocess.Popen([sys.executable, "-c", ECHO], stdin=theirs, stdout=theirs, stderr=subprocess.PIPE) as process,
    ):
        theirs.close()
        ours.sendall(b"much\nsmall\n" * 3)
        ours.shutdown(socket.SHUT_WR)
        with ours.makefile("rb") as answers:
            assert sorted(answers.read().splitlines()) == sorted([b"much" * 100_000, b"small"] * 3)
        assert ended(process) == [b"cleaned up"]


def test_a_line_that_is_too_long_is_answered_and_large_messages_are_not_mixed() -> None:
    with echo() as (process, stdin, stdout):
        stdin.write(b"x" * (1 << 20) + b"y\n")
        stdin.write(b"much\nsmall\n" * 3)
        stdin.close()
        found = stdout.read().splitlines()
        assert sorted(found) == sorted([b"too long", *[b"much" * 100_000, b"small"] * 3])
        assert ended(process) == [b"cleaned up"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, None])
def test_a_signal_or_a_reader_that_has_gone_ends_it_though_nothing_is_written(number: signal.Signals | None) -> None:
    with echo() as (process, stdin, stdout):
        stdin.write(b"wait\n")
        assert stdout.read(8) == b"waiting\n"
        if number is None:
            stdout.close()
            assert ended(process) == [b"cleaned up"]
        else:
            process.send_signal(number)
            assert ended(process) == [b"signalled", b"cleaned up"]


@pytest.mark.parametrize("line", [b"small\n", b"much\n"])
def test_a_message_that_nobody_reads_ends_it_quietly(line: bytes) -> None:
    with echo() as (process, stdin, stdout):
        stdout.close()
        stdin.write(line)
        assert ended(process) == [b"cleaned up"]


def test_a_peer_that_does_not_read_does_not_keep_the_process() -> None:
    with echo("leave") as (process, stdin, stdout):
        stdin.write(b"much\n" * 4)
        assert stdout.read(4) == b"much"
        process.send_signal(signal.SIGTERM)
        assert ended(process) == [b"signalled", b"cleaned up"]


FLOODED = """
import asyncio, sys
from mcp_skills_server.transport import Pipes

async def main():
    pipes = Pipes()
    async def work():
        taken = 0
        async for _ in pipes.lines():
            taken += 1
            pipes.send_now(bytes(1 << 20))
        print(taken, file=sys.stderr, flush=True)
        await asyncio.wait_for(pipes.flush(), 60)
    await pipes.serve(work)

asyncio.run(main())
"""
FLOOD = 200


def test_who_reads_no_answers_is_heard_no_further() -> None:
    with echo(program=FLOODED) as (process, stdin, stdout):
        stdin.write(b"line\n" * FLOOD)
        stdin.close()
        assert process.stderr is not None
        taken = int(process.stderr.readline())  # nobody is there who could go on reading
        assert 32 <= taken <= 40
        assert sum(map(len, iter(lambda: stdout.read(1 << 20), b""))) == taken << 20
        assert process.wait(DEADLINE) == 0


def test_who_reads_answers_late_gets_all_of_them() -> None:
    with echo(program=FLOODED) as (process, stdin, stdout):
        stdin.write(b"line\n" * FLOOD)
        left = FLOOD << 20
        while left and (part := stdout.read(min(left, 1 << 20))):
            left -= len(part)
        assert left == 0
        stdin.close()
        assert process.wait(DEADLINE) == 0


GONE = """
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
            print("gone", file=sys.stderr, flush=True)

asyncio.run(main())
"""


def test_who_has_gone_before_all_was_sent_is_told_of_at_each_message() -> None:
    with echo(program=GONE) as (process, _, stdout):
        assert process.stderr is not None and process.stderr.readline() == b"full\n"
        stdout.close()
        assert ended(process) == [b"gone", b"gone"]
