"""Whom it is said to: a server process, and the answers that it owes."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Final

from tools.fuzz_stdio.lines import ROOT, Key, key, line_of, owed

SKILLS = ROOT / "fixtures" / "skills"
PATIENCE_S: Final = 30.0
"""Seconds after which an answer counts as never coming."""


class FuzzError(Exception):
    """The server did what it must not do."""


@dataclass
class Count:
    """What was seen."""

    processes: int = 0
    lines: int = 0
    answers: int = 0
    notifications: int = 0
    grown: list[int] = field(default_factory=list)


class Server:
    """A server process and the answers that it owes.

    Args:
        count: what is added to.
    """

    def __init__(self, count: Count) -> None:
        command = [sys.executable, "-m", "mcp_skills_server", "serve", str(SKILLS)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe)
        self._count = count
        self._owed: Counter[Key] = Counter()
        self._may_come: Counter[Key] = Counter()
        self._gone: set[Key] = set()
        self._heard = threading.Condition()
        self._wrong: list[str] = []
        self._log = b""
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._read, self._read_log)]
        for thread in self._threads:
            thread.start()
        count.processes += 1

    def say(self, line: bytes, dice: random.Random) -> None:
        """Write a line, cut where the dice say."""
        answer, back = owed(line)
        with self._heard:
            if back is not None:
                self._take_back(key(back))
            if answer is not None:
                stream = b"subscriptions/listen" in line  # whose answer comes at its end
                (self._may_come if stream else self._owed)[answer] += 1
        self._count.lines += 1
        self._write(line + b"\n", dice)

    def _take_back(self, id_: Key) -> None:
        if id_ in self._owed:
            self._may_come[id_] += self._owed.pop(id_)

    def _write(self, raw: bytes, dice: random.Random) -> None:
        assert self.process.stdin is not None
        cut = dice.randrange(len(raw) + 1) if dice.random() < 0.3 else 0
        for part in (raw[:cut], raw[cut:]):
            if part:
                self.process.stdin.write(part)
                self.process.stdin.flush()

    def settle(self) -> None:
        """Wait until it has answered.

        Raises:
            FuzzError: it does not, or said what nobody asked for.
        """
        until = monotonic() + PATIENCE_S
        with self._heard:
            while (missing := list(self._owed)) and not self._wrong:
                if self.process.poll() is not None:
                    raise FuzzError(
                        f"it ended with {self.process.returncode}: {self._log[-2000:].decode(errors='replace')}"
                    )
                if not self._heard.wait(min(1.0, max(0.0, until - monotonic()))) and monotonic() > until:
                    raise FuzzError(f"no answer to {missing[:5]}")
            if self._wrong:
                raise FuzzError(self._wrong[0])

    def leave_streams(self, dice: random.Random) -> None:
        """Take back what may be open still."""
        with self._heard:
            still = [*self._may_come]
            self._may_come.clear()
            self._gone.update(still)
        for each in still:
            self._write(line_of({"method": "notifications/cancelled", "params": {"requestId": each[1]}}) + b"\n", dice)

    def held(self) -> tuple[int, int]:
        """Bytes of memory and open descriptors."""
        pages = Path(f"/proc/{self.process.pid}/statm").read_text(encoding="ascii").split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE"), len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def end(self, how: str) -> None:
        """End the conversation.

        Raises:
            FuzzError: the process does not end as it should, or logged a bug.
        """
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            if how == "half":
                self.process.stdin.write(b'{"jsonrpc":"2.0","id":"end","meth')
                with self._heard:
                    self._owed[key(None)] += 1
            elif how == "terminate":
                self.process.send_signal(signal.SIGTERM)
            self.process.stdin.close()
        except BrokenPipeError:
            if how != "terminate":
                raise FuzzError(f"it ended by itself: {self._log[-2000:].decode(errors='replace')}") from None
        try:
            code = self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise FuzzError(f"it did not end ({how})") from None
        for thread in self._threads:
            thread.join(PATIENCE_S)
        if how == "half" and self._owed:
            raise FuzzError(f"it ended without an answer to {list(self._owed)[:5]}")
        if code or b"Traceback" in self._log:
            raise FuzzError(f"it ended with {code} ({how}): {self._log[-2000:].decode(errors='replace')}")
        if self._wrong:
            raise FuzzError(self._wrong[0])

    def kill(self) -> None:
        """Leave no process behind."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None and not stream.closed:
                with suppress(OSError):
                    stream.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            wrong = self._take(line)
            with self._heard:
                if wrong:
                    self._wrong.append(wrong)
                self._heard.notify_all()
        with self._heard:
            self._heard.notify_all()

    def _take(self, line: bytes) -> str | None:
        try:
            message = json.loads(line.decode())
        except ValueError:
            return f"no JSON: {line[:300]!r}"
        if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
            return f"no JSON-RPC: {line[:300]!r}"
        if "method" in message:
            self._count.notifications += 1
            return f"a request of the server's: {line[:300]!r}" if "id" in message else None
        if ("result" in message) == ("error" in message) or "id" not in message:
            return f"no answer: {line[:300]!r}"
        self._count.answers += 1
        if not self._was_owed(key(message["id"])):
            return f"an answer that nobody asked for: {line[:300]!r}"
        if message.get("error", {}).get("code") == -32603:
            return f"a bug: {line[:300]!r}"
        return None

    def _was_owed(self, id_: Key) -> bool:
        with self._heard:
            for each in (self._owed, self._may_come):
                if each[id_] > 0:
                    each[id_] -= 1
                    if not each[id_]:
                        del each[id_]
                    return True
                del each[id_]
            return id_ in self._gone

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._log = (self._log + line)[-(1 << 20) :]
