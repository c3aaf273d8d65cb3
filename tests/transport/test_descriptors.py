"""Descriptors of stdin and stdout: claim, read, write, and hang-up."""

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


def test_prints_and_child_output_go_to_stderr_after_the_claim() -> None:
    buffered = {**os.environ, "PYTHONUNBUFFERED": ""}
    command = [sys.executable, "-c", CLAIM]
    done = subprocess.run(command, input=b"a message\n", capture_output=True, check=True, env=buffered)
    assert done.stdout == b"a message\n"
    assert done.stderr.split(b"\n")[:3] == [b"printed before", b"printed ''", b"a child"]


def test_claim_makes_a_non_blocking_stdout_blocking() -> None:
    """A parent in Node.js makes its pipes non-blocking."""
    code = "from mcp_skills_server.transport import *\nwrite(claim_stdio()[1], b'x' * (4 << 20))"
    ours, theirs = os.pipe()
    os.set_blocking(theirs, False)
    with subprocess.Popen([sys.executable, "-c", code], stdout=theirs, stderr=subprocess.PIPE) as process:
        os.close(theirs)
        with os.fdopen(ours, "rb") as pipe:
            assert len(pipe.read()) == 4 << 20
        assert process.stderr is not None and process.stderr.read() == b""
        assert process.wait(DEADLINE) == 0


def test_read_returns_nothing_and_write_raises_on_a_closed_pipe() -> None:
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


@pytest.mark.parametrize("event", ["reader hangs up", "writer hangs up", "wake"])
def test_hang_up_or_wake_but_not_data_ends_the_wait(event: str) -> None:
    reader, writer = os.pipe()
    wake, waker = os.pipe()
    ours, theirs = reader, writer
    if event == "reader hangs up":
        ours, theirs = writer, reader
    write(writer, b"data")
    with ThreadPoolExecutor(1) as pool:
        wait = pool.submit(wait_for_hang_up, ours, wake)
        if event == "wake":
            os.write(waker, b"x")
        os.close(theirs)
        assert wait.result(DEADLINE) is (event != "wake")
    for each in (ours, wake, waker):
        os.close(each)


@pytest.mark.skipif(sys.platform == "win32", reason="pipes block there")
def test_write_to_a_non_blocking_pipe_writes_all_bytes() -> None:
    ours, theirs = os.pipe()
    os.set_blocking(theirs, False)
    raw = bytes(range(256)) * 4096  # more than a pipe holds
    with ThreadPoolExecutor(1) as pool, os.fdopen(ours, "rb") as reader:
        pool.submit(write, theirs, raw)
        assert reader.read(len(raw)) == raw
    os.close(theirs)
