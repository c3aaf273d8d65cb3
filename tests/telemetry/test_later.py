"""Readers that see events a moment later: all of them, in order, and before anybody overtakes or ends."""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator, Sequence

import pytest

from mcp_skills_server.access.principal import Principal
from mcp_skills_server.commands.logs import LineHandler
from mcp_skills_server.telemetry import events, later
from mcp_skills_server.telemetry.events import Event
from mcp_skills_server.telemetry.log import log_requests
from wire import DEADLINE


class Gathered:
    """What a reader was given, and in which threads."""

    def __init__(self) -> None:
        self.methods: list[str] = []
        self.threads: set[int] = set()
        self.some = threading.Event()

    def __call__(self, batch: Sequence[Event]) -> None:
        self.methods += [each.method for each in batch]
        self.threads.add(threading.get_ident())
        self.some.set()


@pytest.fixture
def gathered() -> Iterator[Gathered]:
    """Reads what happens."""
    found = Gathered()
    end = later.subscribe(found)
    yield found
    end()


def ask(method: str) -> None:
    with events.observe("mcp", method):
        pass


def test_a_request_is_read_in_another_thread_without_anybody_asking(gathered: Gathered) -> None:
    for number in range(3):  # it wakes up again after it slept
        gathered.some.clear()
        ask(f"number {number}")
        assert gathered.some.wait(DEADLINE)
    assert gathered.methods == ["number 0", "number 1", "number 2"]
    assert threading.get_ident() not in gathered.threads


def test_all_of_them_are_read_in_order_once_whoever_drains(gathered: Gathered) -> None:
    def ask_often(name: str) -> None:
        for number in range(2000):
            ask(f"{name} {number}")
            if number % 100 == 0:
                later.drain()

    threads = [threading.Thread(target=ask_often, args=(name,)) for name in "abc"]
    for each in threads:
        each.start()
    for each in threads:
        each.join(DEADLINE)
    later.drain()
    assert len(gathered.methods) == 6000
    for name in "abc":
        mine = [each for each in gathered.methods if each.startswith(name)]
        assert mine == [f"{name} {number}" for number in range(2000)]


def test_an_event_is_as_it_was_when_it_happened(gathered: Gathered) -> None:
    seen: list[Event] = []
    end = later.subscribe(seen.extend)
    token = events.request_id.set("first")
    with events.Request("mcp", "x", principal=Principal("token", "ann"), host="h" * 300) as request:
        events.searched("q", 2)
        request.code = -32000
    events.request_id.reset(token)
    end()
    (found,) = seen
    assert (found.request, found.principal, found.found, found.code, len(found.host or "")) == (
        "first",
        "token:ann",
        2,
        -32000,
        200,
    )
    assert found.milliseconds < 10_000 and gathered.methods == ["x"]


def test_a_bug_of_a_reader_costs_the_others_nothing(gathered: Gathered, caplog: pytest.LogCaptureFixture) -> None:
    def broken(_: Sequence[Event]) -> None:
        raise KeyError("a bug")

    end = later.subscribe(broken)
    ask("x")
    later.drain()
    end()
    assert gathered.methods == ["x"] and "a reader of events failed" in caplog.text


def test_where_readers_do_not_keep_up_whoever_asks_has_them_read(
    gathered: Gathered, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(later, "_MOST_WAITING", 5)
    monkeypatch.setattr(later, "_sleeps", False)
    ask("first")  # wakes nobody
    for _ in range(20):
        ask("x")
    assert len(gathered.methods) >= 16 and threading.get_ident() in gathered.threads


def test_a_reader_that_drains_waits_for_nobody(gathered: Gathered) -> None:
    end = later.subscribe(lambda _: later.drain())
    ask("x")
    later.drain()
    end()
    assert gathered.methods == ["x"]


# The log


@pytest.fixture
def written() -> Iterator[tuple[logging.Handler, int]]:
    """A handler as `serve` has it, and the end of a pipe that it writes to."""
    out, into = os.pipe()
    os.set_blocking(out, False)
    logger = logging.getLogger("mcp_skills_server")
    level = logger.level
    with os.fdopen(into, "w", buffering=1) as stream:
        handler = LineHandler(stream)
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        yield handler, out
        logger.removeHandler(handler)
        logger.setLevel(level)
    os.close(out)


def test_lines_are_in_the_order_in_which_things_happened(written: tuple[logging.Handler, int]) -> None:
    _, out = written
    end = log_requests(logging.INFO)
    assert end is not None
    for number in range(5):
        ask(f"request {number}")
        logging.getLogger("mcp_skills_server.x").warning("warning %d", number)
    ask("request 5")
    end()
    lines = os.read(out, 1 << 16).decode().splitlines()
    expected = [word for number in range(5) for word in (f"request {number}:", f"warning {number}")]
    assert len(lines) == 11
    for line, begin in zip(lines, [*expected, "request 5:"], strict=True):
        assert line.startswith(begin)


class Writes(io.StringIO):
    """What was written, piece by piece."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[str] = []

    def write(self, text: str) -> int:
        self.pieces.append(text)
        return len(text)


def test_each_write_is_one_whole_line_so_that_those_of_several_processes_do_not_mix() -> None:
    stream = Writes()
    handler = LineHandler(stream)
    for number in range(100):
        handler.handle(logging.makeLogRecord({"msg": f"{number:02} " + "ü" * 190, later.BATCHED: True}))
    handler.handle(logging.makeLogRecord({"msg": "the last one"}))
    assert [piece[:2] for piece in stream.pieces] == [*(f"{number:02}" for number in range(100)), "th"]
    assert all(piece.endswith("\n") and piece.count("\n") == 1 for piece in stream.pieces)


def test_the_last_lines_are_written_at_a_normal_end_and_say_which_request() -> None:
    program = textwrap.dedent(
        """
        import sys
        from mcp_skills_server.commands.logs import log_to_stderr
        from mcp_skills_server.commands.running import leave
        from mcp_skills_server.telemetry import events
        from mcp_skills_server.telemetry.log import log_requests
        import logging
        log_to_stderr("info", "json")
        log_requests(logging.INFO)
        events.request_id.set("the id")
        for number in range(100):
            with events.observe("mcp", f"number {number}"):
                pass
        events.request_id.set(None)
        if sys.argv[1] == "leave":
            leave()
        """
    )
    for way in ("leave", "return"):
        done = subprocess.run([sys.executable, "-c", program, way], capture_output=True, text=True, check=True)
        lines = [json.loads(line) for line in done.stderr.splitlines()]
        assert [each["method"] for each in lines] == [f"number {number}" for number in range(100)]
        assert {each["request"] for each in lines} == {"the id"}
