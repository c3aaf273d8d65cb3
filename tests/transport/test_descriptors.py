"""stdin and stdout belong to the protocol, and who is at the other end is known."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

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
    code = "from mcp_skills_server.transport import *\nwrite(claim_stdio()[1], b'x' * (4 << 20))"
    ours, theirs = os.pipe()
    os.set_blocking(theirs, False)
    with subprocess.Popen([sys.executable, "-c", code], stdout=theirs, stderr=subprocess.PIPE) as process:
        os.close(theirs)
        with os.fdopen(ours, "rb") as pipe:
            assert len(pipe.read()) == 4 << 20
        assert process.stderr is not None and process.stderr.read() == b""
        assert process.wait(DEADLINE) == 0


def test_nothing_is_read_from_and_nothing_written_to_a_pipe_whose_other_end_is_closed() -> None:
    ours, theirs = os.pipe()
    write(theirs, b"last")
    os.close(theirs)
    assert (read(ours), read(ours)) == (b"last", b"")
    os.close(ours)
    assert read(ours) == b""
    ours, theirs = os.pipe()
    os.close(ours)
    with pytest.raises(BrokenPipeError):
        write(theirs, b"x")
    os.close(theirs)


@pytest.mark.parametrize("event", ["the reader is gone", "the writer is gone", "woken"])
def test_a_peer_that_hangs_up_or_a_wake_ends_the_wait_and_what_can_be_read_is_no_hang_up(event: str) -> None:
    reader, writer = os.pipe()
    woken, waker = os.pipe()
    ours, theirs = (writer, reader) if event == "the reader is gone" else (reader, writer)
    write(writer, b"something to read")
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(wait_for_hang_up, ours, woken)
        if event == "woken":
            os.write(waker, b"x")
        os.close(theirs)
        assert found.result(DEADLINE) is (event != "woken")
    for each in (ours, woken, waker):
        os.close(each)


@pytest.mark.skipif(sys.platform == "win32", reason="pipes block there")
def test_a_pipe_that_somebody_made_non_blocking_gets_all_of_it() -> None:
    ours, theirs = os.pipe()
    os.set_blocking(theirs, False)
    raw = bytes(range(256)) * 4096  # more than a pipe holds
    with ThreadPoolExecutor(1) as pool, os.fdopen(ours, "rb") as reader:
        pool.submit(write, theirs, raw)
        assert reader.read(len(raw)) == raw
    os.close(theirs)
