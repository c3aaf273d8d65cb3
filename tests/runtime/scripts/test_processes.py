"""What a program writes is kept up to a cap, and the rest is read and forgotten."""

from __future__ import annotations

import os
from contextlib import ExitStack

import anyio
import pytest

from mcp_skills_server.runtime.scripts import processes
from mcp_skills_server.runtime.scripts.processes import Capture
from tables import each_row

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


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
