"""`make fuzz-front`: say everything to real server processes over stdio that a client may get wrong, for minutes.

Garbage, batches, lines of 20 MB, lone surrogates, half lines, ids that stand twice, requests before and after
handshakes, two handshakes, and changes drawn by lot of what real clients say. Wanted is that no process ends, hangs,
grows or logs a bug, and that each line has the answer that JSON-RPC owes it, once. Ends with 1 otherwise; the seed
that is printed draws the same lines again.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any, Final

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from conversations import CAPABILITIES, CLIENT, ENVELOPE, HANDSHAKE, NOTIFICATIONS, REQUESTS, STATEFUL  # noqa: E402
from malformed import MALFORMED  # noqa: E402
from mcp_skills_server.server.messages import Message, judge  # noqa: E402
from mcp_skills_server.transport.framing import MAX_LINE  # noqa: E402

SKILLS = ROOT / "fixtures" / "skills"
RECORDED = ROOT / "tests" / "front" / "recorded.jsonl"
PATIENCE_S: Final = 30.0
"""Seconds after which an answer counts as never coming."""
LONG_S: Final = 45.0
"""Seconds of a process whose growth is looked at."""
MOST_GROWTH: Final = 8 << 20
"""Bytes by which a process may be larger at its end than after a third of its life."""
_JUNK: Final[list[Any]] = [
    None,
    True,
    0,
    -1,
    1.5,
    2**70,
    "",
    "x",
    "\ud83d",
    "é" * 50,
    [],
    {},
    [[]],
    {"x": {}},
    "2026-07-28",
]
_ENDS: Final = ("close", "half", "terminate")

Key = tuple[str, Any]
"""An id and its type: "1" and 1 are two."""


class FuzzError(Exception):
    """The server did what it must not do."""


# What is said. Pure, but for the dice.


def wild(dice: random.Random, corpus: list[bytes], number: int, *, modern: bool) -> list[bytes]:
    """Some lines of a client, the ids of whose requests count from `number`."""
    kind = dice.randrange(24)
    if kind < 9:
        return [_request(dice, number, modern=modern)]
    if kind < 13:
        return [_changed(dice, dice.choice(corpus))]
    if kind < 15:
        return [_cut(dice, _request(dice, number, modern=modern))]
    if kind == 15:  # one id, more than once at a time
        return [_request(dice, number, modern=modern) for _ in range(dice.randrange(2, 6))]
    if kind == 16:
        return [dice.choice(MALFORMED).raw.replace(b"\n", b" ")]
    if kind == 17:
        return [b"[" + b",".join(_request(dice, number + each, modern=modern) for each in range(3)) + b"]"]
    if kind == 18:
        return [dice.randbytes(dice.randrange(1, 3000)).replace(b"\n", b"")]
    if kind == 19:
        method, params = dice.choice(NOTIFICATIONS)
        return [_line({"method": method, **({} if params is None else {"params": params})})]
    if kind == 20:  # asked, and taken back
        request = _request(dice, number, modern=modern)
        back = _line({"method": "notifications/cancelled", "params": {"requestId": dice.choice([number, str(number)])}})
        return [request, back]
    if kind == 21:
        return [_line({"id": number, "method": "initialize", "params": HANDSHAKE})] * dice.randrange(1, 3)
    if kind == 22:
        return [
            _line(
                {"id": number, **dice.choice([{"result": {}}, {"error": {"code": 1, "message": "x"}}, {"result": 5}])}
            )
        ]
    return [_large(dice, number)]


def _line(message: dict[str, Any]) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **message}).encode()


def _request(dice: random.Random, number: int, *, modern: bool) -> bytes:
    method, params = dice.choice(REQUESTS + STATEFUL)
    out = json.loads(json.dumps(params))
    if modern != (dice.random() < 0.05):
        out["_meta"] = json.loads(json.dumps(ENVELOPE))
    if dice.random() < 0.3:
        where, key = out, "cursor"
        while where:
            key = dice.choice([*where, CAPABILITIES, CLIENT])
            inner = where.get(key)
            if not isinstance(inner, dict) or dice.random() < 0.3:
                break
            where = inner
        where[key] = dice.choice(_JUNK)
    return _line({"id": dice.choice([number, number, str(number), f"{number}.0"]), "method": method, "params": out})


def _changed(dice: random.Random, raw: bytes) -> bytes:
    """A line with a few bytes other than they were."""
    out = bytearray(raw)
    for _ in range(dice.randrange(1, 5)):
        place = dice.randrange(len(out) + 1)
        how = dice.randrange(4)
        if how == 0:
            out[place:place] = dice.choice(
                [b'"', b"{", b"}", b"[", b"\\", b",", b"0", b"\xff", b"\\ud83d", b"null", b" "]
            )
        elif how == 1:
            del out[place : place + dice.randrange(1, 9)]
        elif how == 2 and place < len(out):
            out[place] ^= 1 << dice.randrange(8)
        else:
            out[place:place] = out[place : place + dice.randrange(1, 40)]
    return bytes(out).replace(b"\n", b" ")


def _cut(dice: random.Random, raw: bytes) -> bytes:
    return raw[: dice.randrange(len(raw))]


def _large(dice: random.Random, number: int) -> bytes:
    size = dice.choice([1 << 16, 1 << 20, MAX_LINE - 200, MAX_LINE + 1, 20_000_000])
    if dice.random() < 0.3:
        return b"x" * size
    return _line({"id": number, "method": "skills/get", "params": {"name": "x" * size}})


def owed(line: bytes) -> tuple[Key | None, Any]:
    """What a line is owed: the id of its answer, None for none; and the id that it takes back, None for none."""
    if not line.strip():
        return None, None
    if len(line) > MAX_LINE:
        return key(None), None
    found = judge(line)
    if not isinstance(found, Message):
        return key(found.id), None
    if found.kind == "request":
        return key(found.id), None
    back = (found.fields.get("params") or {}).get("requestId") if found.kind == "notification" else None
    return None, back if found.fields.get("method") == "notifications/cancelled" else None


def key(id_: Any) -> Key:
    """An id as answers are counted by it."""
    return type(id_).__name__, id_


def alike(id_: Any) -> str:
    """An id as it is taken back: request 7 may be called "7"."""
    try:
        return str(int(id_))
    except (ValueError, TypeError, OverflowError):
        return str(id_)


# Whom it is said to


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
        front: which one.
        count: what is added to.
    """

    def __init__(self, front: str, count: Count) -> None:
        command = [sys.executable, "-m", "mcp_skills_server", "serve", str(SKILLS), "--front", front]
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
                self._take_back(alike(back))
            if answer is not None:
                stream = b"subscriptions/listen" in line  # whose answer comes at its end
                (self._may_come if stream else self._owed)[answer] += 1
        self._count.lines += 1
        self._write(line + b"\n", dice)

    def _take_back(self, id_: str) -> None:
        for each in [each for each in self._owed if alike(each[1]) == id_]:
            self._may_come[each] += self._owed.pop(each)

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
            self._write(_line({"method": "notifications/cancelled", "params": {"requestId": each[1]}}) + b"\n", dice)

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


# Conversations


def converse(server: Server, dice: random.Random, corpus: list[bytes], goes_on: Callable[[int], bool]) -> Iterator[int]:
    """Talk while it goes on; after each round its number."""
    modern, number = dice.random() < 0.5, 1000
    if dice.random() < 0.7:  # it begins as it should
        for line in opening(modern=modern):
            server.say(line, dice)
    turn = 0
    while goes_on(turn):
        for _ in range(dice.randrange(1, 12)):
            number += 10
            for line in wild(dice, corpus, number, modern=modern):
                server.say(line, dice)
        server.settle()
        server.leave_streams(dice)
        yield turn
        turn += 1


def opening(*, modern: bool) -> list[bytes]:
    """How a client of an era begins."""
    if modern:
        return [_line({"id": "first", "method": "server/discover", "params": {"_meta": ENVELOPE}})]
    first = _line({"id": "first", "method": "initialize", "params": HANDSHAKE})
    return [first, _line({"method": "notifications/initialized"})]


def corpus() -> list[bytes]:
    """What real clients said, as it was recorded, and one of each of our own."""
    rows = [json.loads(line) for line in RECORDED.read_text(encoding="utf-8").splitlines()]
    said = {line.encode() for row in rows for line in row.get("lines") or [row["body"]]}
    return [*sorted(said), *(_line({"id": 7, "method": method, "params": params}) for method, params in REQUESTS)]


def grown(front: str, dice: random.Random, lines: list[bytes], seconds: float, count: Count) -> None:
    """A long conversation.

    Raises:
        FuzzError: the process does what it must not, or has grown.
    """
    server = Server(front, count)
    try:
        begun = monotonic()
        sizes: list[tuple[float, int, int]] = []
        for turn in converse(server, dice, lines, lambda _: monotonic() - begun < seconds):
            if turn % 10 == 0:
                sizes.append((monotonic() - begun, *server.held()))
        third = [each for each in sizes if seconds / 3 <= each[0] < seconds * 2 / 3]
        last = [each for each in sizes if each[0] >= seconds * 2 / 3]
        if third and last:
            growth = min(each[1] for each in last) - min(each[1] for each in third)
            count.grown.append(growth)
            if growth > MOST_GROWTH:
                raise FuzzError(f"it grew by {growth:,} bytes in {seconds * 2 / 3:.0f} s")
            if min(each[2] for each in last) > max(each[2] for each in third):
                raise FuzzError(f"it holds {last[-1][2]} descriptors, and held {third[0][2]}")
        server.end("close")
    finally:
        server.kill()


def short(front: str, dice: random.Random, lines: list[bytes], count: Count) -> None:
    """A short conversation with some end.

    Raises:
        FuzzError: the process does what it must not.
    """
    server = Server(front, count)
    try:
        most = dice.randrange(1, 8)
        for _ in converse(server, dice, lines, lambda turn: turn < most):
            pass
        server.end(dice.choice(_ENDS))
    finally:
        server.kill()


def main() -> int:
    """Talk for so many minutes; 1 if something was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10, help="how long (default 10)")
    parser.add_argument("--front", choices=("lean", "sdk"), default="lean", help="which front (default lean)")
    parser.add_argument("--seed", type=int, default=None, help="draw the same lines again")
    options = parser.parse_args()
    seed: int = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 32)
    print(f"fuzz-front: --front {options.front} --seed {seed}", flush=True)
    dice, count, lines = random.Random(seed), Count(), corpus()
    found: list[str] = []
    end = monotonic() + options.minutes * 60
    while (left := end - monotonic()) > 0:
        try:
            if left > LONG_S and count.processes % 15 == 0:
                grown(options.front, dice, lines, LONG_S, count)
            else:
                short(options.front, dice, lines, count)
        except FuzzError as error:
            found.append(str(error))
            print(f"FOUND  process {count.processes}: {error}", flush=True)
    growth = ", ".join(f"{each / (1 << 20):+.1f}" for each in count.grown) or "none was long enough"
    print(
        f"fuzz-front: {count.lines:,} lines to {count.processes:,} processes, {count.answers:,} answers and "
        f"{count.notifications:,} notifications; growth in MiB: {growth}; {len(found)} found"
    )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
