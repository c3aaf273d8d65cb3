"""How a program is started, listened to, and ended with all that it started. Nothing else starts a skill's script.

No shell, nothing on stdin, no descriptor of ours. Whatever a program does - fork, leave its group, ignore signals,
write without end, keep the pipes open - its run is over soon after its time is, its output stays within its cap, and
all of its processes that can be found are killed.
"""

from __future__ import annotations

import logging
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Final

import anyio
from anyio import to_thread
from anyio.abc import Process

from mcp_skills_server.runtime.scripts import launch
from mcp_skills_server.runtime.scripts.capture import Capture
from mcp_skills_server.runtime.scripts.launch import NOT_STARTED
from mcp_skills_server.runtime.scripts.process_tree import KILLING_S, TOKEN, ProcessTree

logger = logging.getLogger(__name__)

GRACE_S: Final = 1.0
"""Between SIGTERM and SIGKILL."""
LINGER_S: Final = 0.5
"""How long output is awaited of what a program has left behind."""
_PROBE_S: Final = 10.0
_REPORT_BYTES: Final = 64 << 10
_SIGNALLED: Final = 128
_WINDOWS: Final = sys.platform == "win32"


@dataclass(frozen=True, slots=True)
class Command:
    """A program to run.

    Attributes:
        argv: the program, by absolute path, and its arguments.
        env: all of its environment.
        cwd: where it starts.
        limits: as `launch` takes them, by name.
        box: makes, of the descriptor that a sandbox reports to and that of its filter, the words that go before
            `argv`; None without one.
        calls: the sandbox's filter of system calls; None for none.
    """

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str
    limits: Mapping[str, int]
    box: Callable[[int, int | None], list[str]] | None = None
    calls: bytes | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """What a program did.

    Attributes:
        exit_code: its exit code; 128 and the signal's number if one ended it, 127 if it was never started, None if it
            did not end by itself.
        stdout: what it wrote, as text, up to the cap.
        stderr: likewise.
        duration_ms: from its start to its end.
        timed_out: its time was over.
        stopped: `beat` wanted it ended.
        stdout_truncated: it wrote more than is kept.
        stderr_truncated: likewise.
    """

    exit_code: int | None
    stdout: str
    stderr: str
    duration_ms: int
    timed_out: bool = False
    stopped: bool = False
    stdout_truncated: bool = False
    stderr_truncated: bool = False


async def execute(
    command: Command,
    *,
    timeout_s: float,
    output_bytes: int,
    beat_s: float,
    beat: Callable[[ProcessTree], Awaitable[bool]],
) -> Ended:
    """Run a program to its end. If the caller is cancelled, everything it started is killed first.

    Args:
        command: what to run.
        timeout_s: seconds after which it is ended: SIGTERM, and after `GRACE_S` SIGKILL.
        output_bytes: how much is kept of each stream; the rest is read and thrown away.
        beat_s: seconds between beats.
        beat: awaited at each beat with what is known of the program; ends it by returning True.

    Raises:
        OSError: it could not be started.
    """
    token = secrets.token_hex(16)
    with ExitStack() as held:
        out, err = Capture(output_bytes, held), Capture(output_bytes, held)
        streams = [out, err]
        words, report, calls = list(command.argv), None, None
        if command.box is not None:
            report = Capture(_REPORT_BYTES, held)
            streams.append(report)
            calls = held.enter_context(piped(command.calls))
            words = [*command.box(report.writer, calls), *words]
        started: list[_Run] = []
        # Shielded, so that there is no moment in which a process runs that nobody knows.
        with anyio.CancelScope(shield=True):
            process = await anyio.open_process(
                [*_launcher(command.limits), *words],
                stdin=subprocess.DEVNULL,
                stdout=out.writer,
                stderr=err.writer,
                env={**command.env, TOKEN: token},
                cwd=command.cwd,
                start_new_session=True,
                pass_fds=[*([report.writer] if report else []), *([] if calls is None else [calls])],
            )
            started.append(_Run(process, token, boxed=report is not None))
        run = started[0]
        for stream in streams:
            stream.close_writer()
        try:
            await run.follow(streams, timeout_s, beat_s, beat)
        finally:
            if not run.over:
                with anyio.CancelScope(shield=True):
                    await run.kill()
        return Ended(
            None if run.timed_out or run.stopped else run.exit_code(report),
            out.text,
            err.text,
            run.duration_ms,
            timed_out=run.timed_out,
            stopped=run.stopped,
            stdout_truncated=out.truncated,
            stderr_truncated=err.truncated,
        )


@contextmanager
def piped(raw: bytes | None) -> Generator[int | None]:
    """A descriptor to read these few bytes from, within the size of a pipe; None for None."""
    if raw is None:
        yield None
        return
    reader, writer = os.pipe()
    try:
        with os.fdopen(writer, "wb") as file:
            file.write(raw)
        yield reader
    finally:
        os.close(reader)


def ask(
    argv: Sequence[str], env: Mapping[str, str] | None = None, pass_fds: Sequence[int] = ()
) -> subprocess.CompletedProcess[str]:
    """Run a program of the operator's and wait for it, for a few seconds at most: for questions such as its version.

    Args:
        argv: the program and its arguments.
        env: all of its environment; None for ours.
        pass_fds: descriptors that it gets.

    Raises:
        OSError: it could not be started, or gave no answer in time.
    """
    try:
        return subprocess.run(  # noqa: S603 - a list, no shell, and no word of it from a client
            [*argv],
            env=env,
            cwd=os.path.abspath(os.sep),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_PROBE_S,
            start_new_session=True,
            pass_fds=pass_fds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"{argv[0]} does not answer") from None


class _Run:
    """A program that was started, and everything that it starts."""

    def __init__(self, process: Process, token: str, *, boxed: bool) -> None:
        self._process = process
        self._boxed = boxed
        self._started = time.monotonic()
        self.duration_ms = 0
        self.timed_out = False
        self.stopped = False
        self._tree = ProcessTree(process.pid, token)
        self.over = False
        """Nothing of it is left to be killed."""

    async def follow(
        self,
        streams: Sequence[Capture],
        timeout_s: float,
        beat_s: float,
        beat: Callable[[ProcessTree], Awaitable[bool]],
    ) -> None:
        """Wait for its end, or bring it about."""
        wanted = False

        async def beating(limit: anyio.CancelScope) -> None:
            nonlocal wanted
            while not wanted:
                await anyio.sleep(beat_s)
                wanted = await beat(self._tree)
            limit.cancel()

        async with anyio.create_task_group() as tasks:
            for stream in streams:
                tasks.start_soon(stream.drain)
            with anyio.move_on_after(timeout_s) as limit:
                tasks.start_soon(beating, limit)
                await self._process.wait()
            ended_itself = self._process.returncode is not None
            if not ended_itself:
                self.stopped, self.timed_out = wanted, not wanted
                if not wanted:  # what takes too much gets no time to take more
                    await self._terminate()
            self.duration_ms = round((time.monotonic() - self._started) * 1000)
            if ended_itself:
                await _closed(streams)
            await self.kill()
            await _closed(streams)
            tasks.cancel_scope.cancel()

    def exit_code(self, report: Capture | None) -> int | None:
        """How it ended: see `Ended`. `report` is what a sandbox wrote of it."""
        code = self._process.returncode
        if code is None:
            return None
        if code < 0:
            return _SIGNALLED - code
        if code > 0 and report is not None and "exit-code" not in report.text:
            return NOT_STARTED  # the sandbox, or in it the exec, failed: a program's own code would have been reported
        return code

    async def _terminate(self) -> None:
        """Ask it to end, and give it a moment for that."""
        if _WINDOWS:
            return
        if self._boxed:
            await _in_thread(self._tree.terminate_inside)
        else:
            self._tree.terminate_group()
        with anyio.move_on_after(GRACE_S):
            await self._process.wait()

    async def kill(self) -> None:
        """End everything that is left, and take note of the end so that no zombie stays."""
        if _WINDOWS:
            with suppress(ProcessLookupError):
                self._process.kill()
        else:
            await _in_thread(self._tree.kill)
        with anyio.move_on_after(KILLING_S):
            await self._process.wait()
        if self._process.returncode is None:
            logger.warning("process %d of a script does not end although it was killed", self._process.pid)
        self.over = True


def _launcher(limits: Mapping[str, int]) -> list[str]:
    if _WINDOWS:
        return []
    words = [f"{name}={number}" for name, number in limits.items()]
    return [sys.executable, "-I", "-S", "-X", "utf8", launch.__file__, *words, "--"]


async def _in_thread(work: Callable[[], None]) -> None:
    """Run this in a thread even if all the usual threads are taken: killing must not wait."""
    await to_thread.run_sync(work, limiter=anyio.CapacityLimiter(1))


async def _closed(streams: Sequence[Capture]) -> None:
    with anyio.move_on_after(LINGER_S):
        for stream in streams:
            await stream.ended.wait()
