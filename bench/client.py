"""A lean client: JSON lines over pipes, blocking reads, the same for every server that is measured."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import Any, Final, Literal, TypeAlias

Era: TypeAlias = Literal["legacy", "modern"]

ERAS: Final[tuple[Era, ...]] = ("legacy", "modern")
REPOSITORY: Final = Path(__file__).resolve().parent.parent
_WHO: Final = {"name": "bench", "version": "0"}
_META: Final = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": _WHO,
    "io.modelcontextprotocol/clientCapabilities": {},
}
_PATIENCE_S: Final = 60.0


class BenchError(Exception):
    """A server did not answer as it should, so there is nothing to measure."""


class Client:
    """One server process and the pipes to it. Leaving the context closes its stdin and waits for its end.

    Args:
        command: the program and its arguments.
        era: which protocol to speak.
        environment: the variables of the process, by default ours.
        patience: seconds to wait for an answer.
    """

    def __init__(
        self,
        command: Sequence[str],
        era: Era,
        environment: Mapping[str, str] | None = None,
        patience: float = _PATIENCE_S,
    ) -> None:
        self.era: Era = era
        self._patience = patience
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115, it lives as long as the process
        self._last_id = 0
        self._buffer = b""
        self.started = perf_counter()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            cwd=REPOSITORY,
            env=environment,
            bufsize=0,
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        self._in, self._out = self._stdin.fileno(), self._stdout.fileno()
        self._poll = select.poll()
        self._poll.register(self._out, select.POLLIN | select.POLLHUP)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._stdout.close()
        self._errors.close()

    def shake_hands(self) -> dict[str, Any]:
        """The result of the first request of the era."""
        if self.era == "legacy":
            hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": _WHO}
            return self.ask("initialize", hello)
        return self.ask("server/discover", {})

    def say_initialized(self) -> None:
        """Tell a legacy server that it may begin; the modern era knows no such word."""
        if self.era == "legacy":
            self._write(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')

    def ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """The result of a request."""
        _, line = self.time(self.prepare(method, params))
        answer = json.loads(line)
        if "result" not in answer:
            raise BenchError(f"{method}: {line[:500]!r}")
        return answer["result"]

    def prepare(self, method: str, params: dict[str, Any]) -> bytes:
        """A request as bytes that lack nothing but their id."""
        if self.era == "modern":
            params = {**params, "_meta": _META}
        return json.dumps({"method": method, "params": params}, separators=(",", ":")).encode()[1:] + b"\n"

    def time(self, prepared: bytes) -> tuple[float, bytes]:
        """Send a prepared request; returns the seconds until the whole answer was here, and the answer."""
        self._last_id += 1
        line = b'{"jsonrpc":"2.0","id":%d,%b' % (self._last_id, prepared)
        begins = b'{"jsonrpc":"2.0","id":%d,' % self._last_id
        ends = b'"id":%d}' % self._last_id  # some write the result first
        start = perf_counter()
        self._write(line)
        while not ((answer := self._line(self._patience)).startswith(begins) or answer.endswith(ends)):
            pass  # a notification
        return perf_counter() - start, answer

    def pipeline(self, prepared: bytes, count: int, window: int = 64) -> float:
        """Send a prepared request `count` times, up to `window` of them unanswered; the seconds until all are answered.

        Raises:
            BenchError: an answer is an error.
        """
        lines = [b'{"jsonrpc":"2.0","id":%d,%b' % (self._last_id + each, prepared) for each in range(1, count + 1)]
        self._last_id += count
        sent = answered = 0
        start = perf_counter()
        while answered < count:
            if sent < count and sent - answered <= window // 2:
                self._write(b"".join(lines[sent : sent + window // 2]))
                sent = min(count, sent + window // 2)
                continue
            line = self._line(self._patience)
            if b'"result":' in line:
                answered += 1
            elif b'"error":' in line:
                raise BenchError(f"an answer among many is an error: {line[:500]!r}")
        return perf_counter() - start

    def send(self, prepared: bytes) -> None:
        """Send a prepared request whose answer is not waited for."""
        self._last_id += 1
        self._write(b'{"jsonrpc":"2.0","id":%d,%b' % (self._last_id, prepared))

    def wait_for(self, method: str, seconds: float = _PATIENCE_S) -> float:
        """Wait for a notification; returns the moment at which it was here."""
        wanted = b'"method":"%b"' % method.encode()
        while True:
            line = self._line(seconds)
            now = perf_counter()
            if wanted in line:
                return now

    def drain(self, quiet: float) -> None:
        """Read and forget until nothing has come for so many seconds."""
        try:
            while True:
                self._line(quiet)
        except TimeoutError:
            return

    def rss(self) -> int:
        """Bytes of memory that the server holds now."""
        return resident(self._process.pid)

    @contextmanager
    def on_one_processor(self) -> Generator[None]:
        """Have server and client take turns on one processor: no time goes by until another one wakes up."""
        before = os.sched_getaffinity(0)
        self._stay_on({min(before)})
        try:
            yield
        finally:
            self._stay_on(before)

    def _stay_on(self, processors: set[int]) -> None:
        for thread in ("0", *os.listdir(f"/proc/{self._process.pid}/task")):
            with suppress(ProcessLookupError):  # it has just ended
                os.sched_setaffinity(int(thread), processors)

    def _write(self, raw: bytes) -> None:
        os.write(self._in, raw)

    def _line(self, patience: float) -> bytes:
        head, newline, rest = self._buffer.partition(b"\n")
        if newline:
            self._buffer = rest
            return head
        parts = [head]
        while True:
            if not self._poll.poll(patience * 1000):
                self._buffer = b"".join(parts)
                raise TimeoutError(f"nothing came for {patience} s")
            chunk = os.read(self._out, 1 << 18)
            if not chunk:
                self._errors.seek(0)
                raise BenchError(f"the server ended: {self._errors.read()[-2000:].decode(errors='replace')}")
            head, newline, rest = chunk.partition(b"\n")
            parts.append(head)
            if newline:
                self._buffer = rest
                return b"".join(parts)


def resident(pid: int) -> int:
    """Bytes of memory that a process and those that it started hold now."""
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    started = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    return pages * os.sysconf("SC_PAGE_SIZE") + sum(resident(int(each)) for each in started)


def ours(root: Path, era: Era, *options: str) -> Client:
    """Our server over a folder."""
    return Client([sys.executable, "-m", "mcp_skills_server", "serve", str(root), *options], era)


def floor(era: Era, constants: Path | None = None) -> Client:
    """The floor, answering the constants of a file."""
    return Client([sys.executable, "-m", "bench.floor", *([str(constants)] if constants else [])], era)
