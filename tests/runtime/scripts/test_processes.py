"""Output is kept up to a cap; all that a program has started is found and killed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import anyio
import pytest

from mcp_skills_server.runtime.scripts import processes
from mcp_skills_server.runtime.scripts.processes import (
    TOKEN,
    Capture,
    ProcessTree,
    content,
    entries,
    lines,
    processes_with,
    with_descendants,
)
from tables import each_row

pytestmark = pytest.mark.anyio


@each_row("windows", [False, True])
@each_row(
    ("written", "kept", "truncated"),
    [(b"", "", False), (b"abcd", "abcd", False), (b"abcde", "abcd", True), ("äöü".encode(), "äö", True),
     ("aäöü".encode(), "aä", True), (b"\xff", "\ufffd", False)],
)  # fmt: skip
async def test_a_stream_is_kept_up_to_its_cap(
    monkeypatch: pytest.MonkeyPatch, windows: bool, written: bytes, kept: str, truncated: bool
) -> None:
    """Pipes are read in a thread where they cannot be waited for."""
    monkeypatch.setattr(processes, "_WINDOWS", windows)
    with ExitStack() as held, anyio.fail_after(30):
        capture = Capture(4, held)
        os.write(capture.writer, written)
        capture.close_writer()
        capture.close_writer()
        await capture.drain()
        assert (capture.text, capture.truncated, capture.ended.is_set()) == (kept, truncated, True)


async def test_more_than_a_pipe_holds_is_read_while_it_is_written() -> None:
    with ExitStack() as held, anyio.fail_after(30):
        capture = Capture(10, held)

        def write() -> None:
            for _ in range(64):
                os.write(capture.writer, b"x" * 65536)
            capture.close_writer()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(capture.drain)
            await anyio.to_thread.run_sync(write)
        assert capture.text == "x" * 10 and capture.truncated


# The processes of a run

LINUX = pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="processes are found by /proc")

CHILD = "import os, time, sys\nif os.fork(): pass\nsys.stdout.write('x'); sys.stdout.flush()\ntime.sleep(600)"
STRAY = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
os.write(1, str(os.getpid()).encode() + b" ")
time.sleep(600)
"""


@LINUX
def test_what_left_the_group_and_the_family_is_found_and_killed(tmp_path: Path) -> None:
    token = f"{os.getpid()}-{tmp_path.name}"
    env = {**os.environ, TOKEN: token}
    with subprocess.Popen(
        [sys.executable, "-c", STRAY], stdout=subprocess.PIPE, env=env, start_new_session=True
    ) as started:
        tree = ProcessTree(started.pid, token)
        try:
            assert started.stdout is not None
            seen = b""
            while seen.count(b" ") < 2:
                seen += os.read(started.stdout.fileno(), 64)
            pids = {int(each) for each in seen.split()}
            assert started.pid in pids and len(pids) == 2 and pids <= tree.processes()
        finally:
            tree.kill()
    assert list(processes_with(TOKEN, token)) == []


@pytest.fixture
def parent() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", CHILD], stdout=subprocess.PIPE, start_new_session=True) as started:
        assert started.stdout is not None
        while len(os.read(started.stdout.fileno(), 1)) < 1 or len(list(with_descendants(started.pid))) < 2:
            assert started.poll() is None
        yield started
        os.killpg(started.pid, 9)


@LINUX
def test_a_family_is_all_that_descends_from_a_process(parent: subprocess.Popen[bytes]) -> None:
    found = list(with_descendants(parent.pid))
    assert found[0] == parent.pid and len(found) == 2
    assert list(with_descendants(1 << 30)) == [1 << 30]


@LINUX
def test_processes_are_found_by_a_variable_of_their_environment_and_its_whole_value_begins_it() -> None:
    code = "import os, time; os.write(1, b'x'); time.sleep(600)"
    env = {**os.environ, "F_MARK": f"of-{os.getpid()}"}
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=env) as started:
        try:
            assert started.stdout is not None and os.read(started.stdout.fileno(), 1) == b"x"
            assert list(processes_with("F_MARK", f"of-{os.getpid()}")) == [started.pid]
            assert list(processes_with("F_MARK", f"of-{os.getpid()}-not")) == []
        finally:
            started.kill()
    assert list(processes_with("F_MARK", f"of-{os.getpid()}")) == []


def test_what_cannot_be_read_is_nothing(tmp_path: Path) -> None:
    assert (entries(str(tmp_path / "no")), content(str(tmp_path / "no")), lines(str(tmp_path / "no"))) == ([], b"", [])
    (tmp_path / "file").write_bytes(b"a\n\xffb\n")
    assert lines(str(tmp_path / "file")) == ["a", "\ufffdb"] and entries(str(tmp_path)) == ["file"]
