"""Log queue of a server: order, and dropped lines if stderr is not read."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading

import pytest

from mcp_skills_server.commands import logs
from mcp_skills_server.commands.logs import LineQueue
from mcp_skills_server.telemetry.events import Events, Request
from mcp_skills_server.telemetry.log import log_requests
from tables import each_row
from wire import DEADLINE


class Stream:
    """A stream that blocks until `open` is set, as a pipe blocks until it is read."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.called = threading.Event()
        self.written = threading.Semaphore(0)
        self.text = ""

    def write(self, text: str) -> int:
        self.called.set()
        assert self.open.wait(DEADLINE)
        self.text += text
        self.written.release()
        return len(text)

    def flush(self) -> None:
        pass


def test_lines_are_in_the_order_of_events(caplog: pytest.LogCaptureFixture) -> None:
    stream = Stream()
    server = Events()
    logger = logging.getLogger("mcp_skills_server")
    stream.open.set()
    caplog.set_level(logging.INFO, logger.name)
    handler = LineQueue(stream)  # type: ignore[arg-type]
    logger.addHandler(handler)
    log_requests(server, logging.INFO)
    for number in range(50):
        with server.serving(), Request("mcp", f"request {number}"):
            pass
        logging.getLogger("mcp_skills_server.x").warning("warning %d%s", number, ":")
    logger.removeHandler(handler)
    handler.close()
    words = [each.partition(":")[0] for each in stream.text.splitlines()]
    assert words == [word for number in range(50) for word in (f"request {number}", f"warning {number}")]


def test_blocked_stream_delays_nothing_and_dropped_lines_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logs, "_MOST_WAITING", 5)
    stream = Stream()
    handler = LineQueue(stream)  # type: ignore[arg-type]
    handler.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))

    def log(text: str) -> None:
        handler.handle(logging.makeLogRecord({"msg": text, "levelname": "INFO"}))

    log("first")
    assert stream.called.wait(DEADLINE)
    for number in range(8):
        log(f"line {number}")
    stream.open.set()
    for _ in range(6):
        assert stream.written.acquire(timeout=DEADLINE)
    log("last")
    handler.close()
    handler.close()  # logging closes handlers again at exit
    kept = ["INFO: first", *(f"INFO: line {number}" for number in range(5))]
    dropped = "WARNING: 3 lines of the log were dropped: the reader of stderr is too slow"
    assert stream.text.splitlines() == [*kept, dropped, "INFO: last"]


PROGRAM = """
import logging, sys
from mcp_skills_server.commands.logs import log_to_stderr
from mcp_skills_server.commands.running import exit_now
from mcp_skills_server.telemetry import events
from mcp_skills_server.telemetry.log import log_requests
log_to_stderr("info", "json", queued=True)
server = events.Events()
log_requests(server, logging.INFO)
events.request_id.set("the id")
for number in range(100):
    with server.serving(), events.Request("mcp", f"number {number}"):
        pass
events.request_id.set(None)
if sys.argv[1] == "3":
    exit_now(3)
"""


@each_row("code", [3, 0])
def test_last_lines_are_written_at_exit_with_the_request_id(code: int) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(code)], capture_output=True, check=False)
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert done.returncode == code
    assert [each["method"] for each in lines] == [f"number {n}" for n in range(100)]
    assert {each["request"] for each in lines} == {"the id"}
