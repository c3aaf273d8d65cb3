"""Subprocess execution of scripts, with a timeout, bounded output and cleanup of all processes.

A program gets no shell, a pipe or nothing as stdin, and no other descriptors. It may fork, leave
its process group, ignore signals, write without end or keep the pipes open: its run still ends soon
after its timeout, its output stays within the cap, and all of its processes that can be found are
killed.
"""

from __future__ import annotations

import codecs
import logging
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

import anyio
from anyio import to_thread
from anyio.abc import Process

from mcp_skills_server.runtime.scripts import launch
from mcp_skills_server.runtime.scripts.launch import NOT_STARTED

logger = logging.getLogger(__name__)

GRACE_S: Final = 1.0
"""Seconds between SIGTERM and SIGKILL."""
LINGER_S: Final = 0.5
"""Seconds for which the pipes may stay open after a program has ended."""
PROGRESS_S: Final = 2.0
"""The interval of progress reports, in seconds."""
TOKEN: Final = "SKILL_RUN"  # noqa: S105
"""The environment variable that identifies the processes of a run by its token."""
KILLING_S: Final = 3.0
"""Seconds for which kills are retried."""
_STRAYS_S: Final = 1.0
_CHUNK: Final = 64 << 10
_PROBE_S: Final = 10.0
_REPORT_BYTES: Final = 64 << 10
_SIGNALLED: Final = 128
_WINDOWS: Final = sys.platform == "win32"

Progress: TypeAlias = Callable[[float], Awaitable[None]]
"""A callback, awaited every `PROGRESS_S` with the seconds that a script has been running."""
Poll: TypeAlias = Callable[["ProcessTree"], Awaitable[bool]]
"""A callback, awaited regularly with the processes of a run; a True result ends the run."""


@dataclass(frozen=True, slots=True)
class Command:
    """A program to run."""

    argv: Sequence[str]  # the absolute path of the program, and its arguments
    env: Mapping[str, str]  # the complete environment
    cwd: str
    limits: Mapping[str, int]  # by name, as `launch` takes them
    sandbox_prefix: Callable[[int, int | None], list[str]] | None = None
    """Returns the command prefix for the descriptors of status and filter."""
    seccomp: bytes | None = None  # the filter of the sandbox
    cgroup: Path | None = None  # a cgroup to join
    stdin: int | None = None  # the reading end of a pipe; None for an empty stdin


@dataclass(frozen=True, slots=True)
class ProcessResult:
    """The result of a program.

    `exit_code` is 128 plus the signal's number if a signal ended it, 127 if it was not started,
    None if the server ended it.
    """

    exit_code: int | None
    stdout: str  # up to the cap
    stderr: str
    duration_ms: int
    timed_out: bool = False
    stopped: bool = False  # `poll` ended it
    stdout_truncated: bool = False
    stderr_truncated: bool = False


class Capture:
    """A pipe whose output is kept up to `most` bytes and discarded beyond.

    A program writes to the descriptor `writer`. The exit of `held` closes both ends.
    """

    def __init__(self, most: int, held: ExitStack) -> None:
        self._reader, self.writer = os.pipe()
        held.callback(os.close, self._reader)
        held.callback(self.close_writer)
        self._most = most
        self._kept = bytearray()
        self.truncated = False  # the output was longer than the cap
        self.ended = anyio.Event()  # all copies of the writing end are closed
        if not _WINDOWS:
            os.set_blocking(self._reader, False)

    def close_writer(self) -> None:
        """Close this copy of the writing end. Safe to call twice."""
        if self.writer >= 0:
            os.close(self.writer)
            self.writer = -1

    async def drain(self) -> None:
        """Read until all copies of the writing end are closed."""
        while chunk := await self._chunk():
            left = self._most - len(self._kept)
            self._kept += chunk[:left]
            self.truncated = self.truncated or len(chunk) > left
        self.ended.set()

    async def _chunk(self) -> bytes:
        if _WINDOWS:
            return await to_thread.run_sync(os.read, self._reader, _CHUNK, abandon_on_cancel=True)
        while True:
            await anyio.wait_readable(self._reader)
            with suppress(BlockingIOError):
                return os.read(self._reader, _CHUNK)

    @property
    def text(self) -> str:
        """The output as text, without a character that the cap cut in two."""
        return codecs.getincrementaldecoder("utf-8")("replace").decode(
            bytes(self._kept), final=not self.truncated
        )


async def execute(
    command: Command,
    *,
    timeout_s: float,
    output_bytes: int,
    poll_s: float,
    poll: Poll,
    progress: Progress | None = None,
) -> ProcessResult:
    """Run a program to its end, and kill all of its processes, also on cancellation.

    Args:
        timeout_s: seconds until SIGTERM, which SIGKILL follows after `GRACE_S`.
        output_bytes: the cap of each stream; the rest is read and discarded.
        poll: called every `poll_s` seconds; ends the program by returning True.
        progress: reports the progress; its failures do not affect the program.

    Raises:
        OSError: the program could not be started.
    """
    token = secrets.token_hex(16)
    with ExitStack() as held:
        out, err, report = Capture(output_bytes, held), Capture(output_bytes, held), None
        streams = [out, err]
        if command.sandbox_prefix is not None:
            report = Capture(_REPORT_BYTES, held)
            streams.append(report)
        started: list[Process] = []
        # Shielded, so that a cancellation cannot leave a process that is not in `started`.
        with anyio.CancelScope(shield=True):
            started.append(await _start(command, token, out.writer, err.writer, report))
        run = _Run(started[0], token, sandboxed=report is not None)
        for stream in streams:
            stream.close_writer()
        try:
            await run.follow(streams, timeout_s, poll_s, poll, progress)
        finally:
            if not run.over:
                with anyio.CancelScope(shield=True):
                    await run.kill()
        return ProcessResult(
            run.exit_code(report),
            out.text,
            err.text,
            run.duration_ms,
            timed_out=run.timed_out,
            stopped=run.stopped,
            stdout_truncated=out.truncated,
            stderr_truncated=err.truncated,
        )


async def _start(
    command: Command, token: str, stdout: int, stderr: int, report: Capture | None
) -> Process:
    """Start a program; with a sandbox, which writes its status to `report`."""
    words, passed = list(command.argv), list[int]()
    with piped(command.seccomp) as seccomp:
        if command.sandbox_prefix is not None and report is not None:
            words = [*command.sandbox_prefix(report.writer, seccomp), *words]
            passed.append(report.writer)
        if seccomp is not None:
            passed.append(seccomp)
        return await anyio.open_process(
            [*_launcher(command), *words],
            stdin=subprocess.DEVNULL if command.stdin is None else command.stdin,
            stdout=stdout,
            stderr=stderr,
            env={**command.env, TOKEN: token},
            cwd=command.cwd,
            start_new_session=True,
            pass_fds=passed,
        )


@contextmanager
def piped(raw: bytes | None) -> Generator[int | None]:
    """Yield the reading end of a pipe that holds these bytes, or None; they must fit into it."""
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


def query(
    argv: Sequence[str], env: Mapping[str, str] | None = None, pass_fds: Sequence[int] = ()
) -> subprocess.CompletedProcess[str]:
    """Run a program of the operator to query it, such as for its version, with a timeout.

    Raises:
        OSError: it could not be started, or timed out.
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
        raise TimeoutError(f"{argv[0]} timed out") from None


class _Run:
    """A running program with all of its descendants."""

    def __init__(self, process: Process, token: str, *, sandboxed: bool) -> None:
        self._process = process
        self._sandboxed = sandboxed
        self._started = time.monotonic()
        self.duration_ms = 0
        self.timed_out = False
        self.stopped = False
        self._tree = ProcessTree(process.pid, token)
        self.over = False
        """Whether all of its processes have been killed."""

    async def follow(
        self,
        streams: Sequence[Capture],
        timeout_s: float,
        poll_s: float,
        poll: Poll,
        progress: Progress | None,
    ) -> None:
        """Wait until the program ends, times out or is stopped by `poll`; then kill the rest."""
        must_stop = False

        async def polling(waiting: anyio.CancelScope) -> None:
            nonlocal must_stop
            while not must_stop:
                await anyio.sleep(poll_s)
                must_stop = await poll(self._tree)
            waiting.cancel()

        async with anyio.create_task_group() as tasks:
            for stream in streams:
                tasks.start_soon(stream.drain)
            if progress is not None:
                tasks.start_soon(self._report, progress)
            with anyio.move_on_after(timeout_s) as waiting:
                tasks.start_soon(polling, waiting)
                await self._process.wait()
            ended_itself = self._process.returncode is not None
            if not ended_itself:
                self.stopped, self.timed_out = must_stop, not must_stop
                if not must_stop:  # no grace period for a run that exceeds a limit
                    await self._terminate()
            self.duration_ms = round((time.monotonic() - self._started) * 1000)
            if ended_itself:  # its descendants may still write; else they are killed at once
                await _drained(streams)
            await self.kill()
            await _drained(streams)
            tasks.cancel_scope.cancel()

    def exit_code(self, report: Capture | None) -> int | None:
        """Return the exit code of `ProcessResult`; `report` is the status of a sandbox."""
        code = self._process.returncode
        if code is None or self.timed_out or self.stopped:
            return None
        if code < 0:
            return _SIGNALLED - code
        if code > 0 and report is not None and "exit-code" not in report.text:
            # The sandbox or its exec failed: bubblewrap reports a program's own exit code.
            return NOT_STARTED
        return code

    async def _report(self, progress: Progress) -> None:
        while True:
            await anyio.sleep(PROGRESS_S)
            try:
                with anyio.move_on_after(PROGRESS_S):
                    await progress(time.monotonic() - self._started)
            except Exception:
                logger.debug("progress could not be reported", exc_info=True)

    async def _terminate(self) -> None:
        """Send SIGTERM, and wait up to `GRACE_S` for the end."""
        if _WINDOWS:
            return
        if self._sandboxed:
            await _in_thread(self._tree.terminate_inside)
        else:
            self._tree.terminate_group()
        with anyio.move_on_after(GRACE_S):
            await self._process.wait()

    async def kill(self) -> None:
        """Kill all remaining processes, and reap the program so that no zombie stays."""
        if _WINDOWS:
            with suppress(ProcessLookupError):
                self._process.kill()
        else:
            await _in_thread(self._tree.kill)
        with anyio.move_on_after(KILLING_S):
            await self._process.wait()
        if self._process.returncode is None:
            logger.warning("process %d of a script has not ended after SIGKILL", self._process.pid)
        self.over = True


def _launcher(command: Command) -> list[str]:
    if _WINDOWS:
        return []
    words = [f"{name}={number}" for name, number in command.limits.items()]
    if command.cgroup is not None:
        words.append(f"CGROUP={command.cgroup}/cgroup.procs")
    return [sys.executable, "-I", "-S", "-X", "utf8", launch.__file__, *words, "--"]


async def _in_thread(work: Callable[[], None]) -> None:
    """Run `work` in a thread outside of the pool's limit, because a kill must not wait."""
    await to_thread.run_sync(work, limiter=anyio.CapacityLimiter(1))


async def _drained(streams: Sequence[Capture]) -> None:
    """Wait up to `LINGER_S` until all pipes are closed and read."""
    with anyio.move_on_after(LINGER_S):
        for stream in streams:
            await stream.ended.wait()


class ProcessTree:
    """The processes of one run: group leader `pid`, and all with `TOKEN` set to `token`."""

    def __init__(self, pid: int, token: str) -> None:
        self._pid = pid
        self._token = token
        self._strays: list[int] = []
        self._due = 0.0

    def processes(self) -> set[int]:
        """Return the descendants, and detached processes as found at most a second ago."""
        now = time.monotonic()
        if now >= self._due:  # rate-limited: the scan reads the environment of every process
            self._strays = list(processes_with(TOKEN, self._token))
            self._due = now + _STRAYS_S
        return {pid for start in (self._pid, *self._strays) for pid in with_descendants(start)}

    def terminate_group(self) -> None:
        """Send SIGTERM to the program and its process group."""
        # SIGCONT, because a stopped process handles no other signal
        _signal_group(self._pid, signal.SIGTERM, signal.SIGCONT)

    def terminate_inside(self) -> None:
        """Send SIGTERM to all but the sandbox's own process, whose end would kill the script."""
        inside = [pid for pid in processes_with(TOKEN, self._token) if pid != self._pid]
        _signal(inside, signal.SIGTERM, signal.SIGCONT)

    def kill(self) -> None:
        """Kill the run's processes until none is found, or `KILLING_S` have passed. Blocks."""
        _signal_group(self._pid, signal.SIGKILL)
        deadline = time.monotonic() + KILLING_S
        clear = 0
        # During an `exec` a process has no environment for a moment, so two empty scans in a row
        # are needed.
        while clear < 2:
            processes = list(processes_with(TOKEN, self._token))
            clear += 1
            if processes:
                clear = 0
            _signal(processes, signal.SIGKILL)
            if time.monotonic() > deadline:
                logger.warning("processes of a script have not ended after SIGKILL: %s", processes)
                return
            time.sleep(0.005)


def _signal_group(group: int, *numbers: int) -> None:
    for number in numbers:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, number)


def _signal(pids: Iterable[int], *numbers: int) -> None:
    for pid in pids:
        for number in numbers:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)


def entries(directory: str) -> list[str]:
    """Return the names in a directory; empty if it cannot be read."""
    try:
        return os.listdir(directory)
    except OSError:
        return []


def content(path: str) -> bytes:
    """Return the bytes of a file; empty if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def lines(path: str) -> list[str]:
    """Return the lines of a file; empty if it cannot be read."""
    return content(path).decode(errors="replace").splitlines()


def with_descendants(pid: int) -> Iterator[int]:
    """Yield a process and all its descendants."""
    todo, seen = [pid], {pid}
    while todo:
        here = todo.pop()
        yield here
        for task in entries(f"/proc/{here}/task"):
            for word in content(f"/proc/{here}/task/{task}/children").split():
                child = int(word)
                if child not in seen:
                    seen.add(child)
                    todo.append(child)


def processes_with(variable: str, value: str) -> Iterator[int]:
    """Yield the visible processes whose environment has this variable with this value."""
    mark = f"{variable}={value}".encode()
    for name in entries("/proc"):
        if name.isdigit() and mark in content(f"/proc/{name}/environ"):
            yield int(name)
