"""stdin and stdout belong to the protocol, and who is at the other end is known."""

from __future__ import annotations

import os
import subprocess
import sys
from threading import Event, Thread

import pytest

from mcp_skills_server.transport import read, wait_for_hang_up, write
from wire import DEADLINE

CLAIM = """
import os, subprocess, sys
print("printed before")
from mcp_skills_server.transport import claim_stdio, read, write
stdin, stdout = claim_stdio()
print("printed", repr(sys.stdin.read()), flush=True)
subprocess.run([sys.executable, "-c", "print('a child')"])
write(stdout, read(stdin))
"""


def test_prints_and_children_do_not_reach_the_protocol() -> None:
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command = [sys.executable, "-c", CLAIM]
    done = subprocess.run(command, input=b"a message\n", capture_output=True, check=True, env=buffered)
    assert done.stdout == b"a message\n"
    assert done.stderr.split(b"\n")[:3] == [b"printed before", b"printed ''", b"a child"]


def test_a_large_message_goes_out_whole_where_the_parent_made_stdout_non_blocking() -> None:
    """A parent in Node.js does so."""
    code = (
        "from mcp_skills_server.transport import claim_stdio, write\n"
        "_, out = claim_stdio()\n"
        "write(2, b'begun')\n"
        "write(out, b'x' * (4 << 20))"
    )
    ours, theirs = os.pipe()
    os.set_blocking(theirs, False)
    with subprocess.Popen([sys.executable, "-c", code], stdout=theirs, stderr=subprocess.PIPE) as process:
        os.close(theirs)
        assert process.stderr is not None
        assert process.stderr.read(5) == b"begun"
        with os.fdopen(ours, "rb") as pipe:
            assert len(pipe.read()) == 4 << 20
        assert process.stderr.read() == b""
        assert process.wait(DEADLINE) == 0


def test_nothing_is_read_where_nothing_can_be_read() -> None:
    ours, theirs = os.pipe()
    write(theirs, b"last")
    os.close(theirs)
    assert (read(ours), read(ours)) == (b"last", b"")
    os.close(ours)
    assert read(ours) == b""


def test_a_write_that_nobody_reads_is_a_broken_pipe() -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    with pytest.raises(BrokenPipeError):
        write(theirs, b"x")
    os.close(theirs)


@pytest.mark.parametrize("end", ["reader", "writer"])
def test_a_peer_that_hangs_up_ends_the_wait(end: str) -> None:
    reader, writer = os.pipe()
    ours, theirs = (writer, reader) if end == "reader" else (reader, writer)
    found: list[bool] = []
    thread = Thread(target=lambda: found.append(wait_for_hang_up(ours)), daemon=True)
    thread.start()
    os.close(theirs)
    thread.join(DEADLINE)
    assert found == [True]
    os.close(ours)


def test_a_wait_can_be_woken_and_what_can_be_read_is_no_hang_up() -> None:
    reader, writer = os.pipe()
    woken, waker = os.pipe()
    write(writer, b"something to read")
    found: list[bool] = []
    done = Event()

    def wait() -> None:
        found.append(wait_for_hang_up(reader, woken))
        done.set()

    Thread(target=wait, daemon=True).start()
    os.write(waker, b"x")
    assert done.wait(DEADLINE)
    assert found == [False]
    for each in (reader, writer, woken, waker):
        os.close(each)


@pytest.mark.skipif(sys.platform == "win32", reason="pipes block there")
def test_a_pipe_that_somebody_made_non_blocking_gets_all_of_it() -> None:
    ours, theirs = os.pipe()
    os.set_blocking(theirs, False)
    raw = bytes(range(256)) * 4096  # more than a pipe holds
    writer = Thread(target=write, args=(theirs, raw))
    writer.start()
    got = b""
    while len(got) < len(raw) and (chunk := os.read(ours, 65536)):
        got += chunk
    writer.join(DEADLINE)
    os.close(ours)
    os.close(theirs)
    assert got == raw
