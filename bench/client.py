"""A lean client: JSON lines over pipes, blocking reads, the same for every server that is measured."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
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
        arguments: what follows `python`.
        era: which protocol to speak.
    """

    def __init__(self, arguments: list[str], era: Era) -> None:
        self.era: Era = era
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115, it lives as long as the process
        self._last_id = 0
        self._buffer = b""
        self.started = perf_counter()
        self._process = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            cwd=REPOSITORY,
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

    def shake_hands(self) -> None:
        """The first request of the era, answered."""
        if self.era == "legacy":
            hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": _WHO}
            self.ask("initialize", hello)
        else:
            self.ask("server/discover", {})

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
        start = perf_counter()
        self._write(line)
        while not (answer := self._line(_PATIENCE_S)).startswith(begins):
            pass  # a notification
        return perf_counter() - start, answer

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
        pages = Path(f"/proc/{self._process.pid}/statm").read_text(encoding="ascii").split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

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


def ours(root: Path, era: Era, *options: str) -> Client:
    """Our server over a folder."""
    return Client(["-m", "mcp_skills_server", "serve", str(root), *options], era)


def floor(era: Era, constants: Path | None = None) -> Client:
    """The floor, answering the constants of a file."""
    return Client(["-m", "bench.floor", *([str(constants)] if constants else [])], era)
