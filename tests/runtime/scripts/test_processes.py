"""Processes of scripts: bounded capture of output, and killing of the whole process tree."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import anyio
import pytest

from mcp_skills_server.runtime.scripts import processes
from mcp_skills_server.runtime.scripts.processes import (
    TOKEN,
    Capture,
    ProcessTree,
    processes_with,
    query,
    with_descendants,
)
from tables import each_row
from wire import DEADLINE

pytestmark = pytest.mark.anyio


@each_row("windows", [False, True])
@each_row(
    ("written", "kept", "truncated"),
    [(b"", "", False), (b"abcd", "abcd", False), (b"abcde", "abcd", True), ("äöü".encode(), "äö", True),
     ("aäöü".encode(), "aä", True), (b"\xff", "\ufffd", False), (b"x" * (4 << 20), "xxxx", True)],
)  # fmt: skip
async def test_capture_keeps_output_up_to_its_limit(
    monkeypatch: pytest.MonkeyPatch, windows: bool, written: bytes, kept: str, truncated: bool
) -> None:
    """On Windows a thread reads the pipe. The last row exceeds the pipe's buffer."""
    monkeypatch.setattr(processes, "_WINDOWS", windows)
    with ExitStack() as stack, anyio.fail_after(30):
        capture = Capture(4, stack)

        def write() -> None:
            with os.fdopen(os.dup(capture.writer), "wb") as file:
                file.write(written)
            capture.close_writer()
            capture.close_writer()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(capture.drain)
            await anyio.to_thread.run_sync(write)
        assert (capture.text, capture.truncated, capture.ended.is_set()) == (kept, truncated, True)


def test_query_of_hanging_program_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_PROBE_S", 0.05)
    with pytest.raises(OSError, match=r"^sleep timed out$"):
        query(["sleep", "600"])


LINUX = pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="processes are found by /proc")

STRAY = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
else:
    os.fork()
os.write(1, str(os.getpid()).encode() + b" ")
time.sleep(600)
"""
"""A program with a child, and a grandchild that left its process group and lost its parent."""


@LINUX
def test_process_that_left_group_and_parent_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    token = f"{os.getpid()}-{tmp_path.name}"
    env = {**os.environ, TOKEN: token}
    command = [sys.executable, "-c", STRAY]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=env, start_new_session=True) as started:
        tree = ProcessTree(started.pid, token)
        try:
            assert started.stdout is not None
            output = b""
            while output.count(b" ") < 3:
                output += os.read(started.stdout.fileno(), 64)
            pids = {int(each) for each in output.split()}
            deadline = time.monotonic() + DEADLINE
            descendants = list(with_descendants(started.pid))
            while pids <= {*descendants} and time.monotonic() < deadline:  # a parent has not ended yet
                descendants = list(with_descendants(started.pid))
            assert descendants[0] == started.pid
            assert len(pids & {*descendants}) == 2
            assert len(pids) == 3
            assert pids == {*processes_with(TOKEN, token)}
            assert pids <= tree.processes()
            assert list(processes_with(TOKEN, f"{token}-not")) == []
            with monkeypatch.context() as patch:
                patch.setattr(processes, "_signal", lambda *_: None)
                patch.setattr(processes, "KILLING_S", 0)
                tree.kill()
            assert caplog.messages[0].startswith("processes of a script have not ended after SIGKILL: [")
        finally:
            tree.kill()
    assert len(caplog.messages) == 1
    assert list(processes_with(TOKEN, token)) == []
    assert list(with_descendants(1 << 30)) == [1 << 30]
