"""Output and log lines: untrusted text controls no terminal and forges no line; the queue of log lines."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import mcp_skills_server
from commands.calls import run
from mcp_skills_server.commands import logs
from mcp_skills_server.commands.logs import ClientLineRateLimit, LineQueue
from mcp_skills_server.commands.printing import remark, say, say_json, say_lines, say_table
from mcp_skills_server.errors import REPEATS
from tables import each_row
from wire import DEADLINE, write_skill

HOSTILE = "a\x1b[2Jb\rc\x9bd\u202ee\x7ff\U000e0041g"


def printed(function: Callable[[Any], None], value: object) -> str:
    return CliRunner().invoke(click.Command("x", callback=lambda: function(value))).output


def test_control_characters_are_escaped_except_tabs_and_newlines() -> None:
    assert printed(say_lines, "one\n\ttwo\x1b") == "one\n\ttwo\\u{1b}\n"
    assert printed(say, HOSTILE) == printed(say_lines, HOSTILE) and printed(say, HOSTILE).rstrip("\n").isprintable()
    assert printed(remark, HOSTILE) == f"mcp-skills-server: {printed(say, HOSTILE)}"


@given(st.text(max_size=40) | st.just(HOSTILE))
def test_json_output_is_escaped_and_round_trips(text: str) -> None:
    out = printed(say_json, {"text": text, text: 1, "Grüße": "日本"})
    assert json.loads(out) == {"text": text, text: 1, "Grüße": "日本"}
    assert "Grüße" in out and "日本" in out
    assert all(line.isprintable() for line in out.split("\n"))


@each_row(("length", "cell"), [(100, "x" * 100), (101, "x" * 97 + "...")])
def test_last_cell_of_a_table_is_cut_at_100_characters(length: int, cell: str) -> None:
    rows = [("long", "x" * length), ("a", "b")]
    assert printed(lambda _: say_table(("A", "B"), rows), None) == f"A     B\nlong  {cell}\na     b\n"
    assert printed(lambda _: say_table(("A", "B"), []), None) == "A  B\n"
    assert printed(lambda _: say_table(("A", "B"), [], empty="none"), None) == "none\n"


@each_row(("cell", "columns"), [
    ("plain", 5), ("发票", 4), ("\uff46\uff55", 4), ("e\u0301te\u0301", 3), ("\u1100\u1161\u11a8", 2), ("👍", 2),
    ("⚙\ufe0f", 2), ("ก็", 1), ("Grüße", 5), ("\x1b", len("\\u{1b}")),
])  # fmt: skip
def test_cells_are_padded_by_the_columns_of_a_terminal(cell: str, columns: int) -> None:
    rows = [("x" * 12, "next"), (cell, "next")]
    last = printed(lambda _: say_table(("A", "B"), rows), None).splitlines()[-1]
    shown = cell if cell.isprintable() else "\\u{1b}"
    assert last == f"{shown}{' ' * (12 - columns)}  next"


@each_row(("text", "shown"), [
    ("发" * 50, "发" * 50), ("发" * 51, "发" * 48 + "..."), ("e\u0301" * 50, "e\u0301" * 50),
    ("e" + "\u0301" * 10_000, "e" + "\u0301" * 96 + "..."),
])  # fmt: skip
def test_last_cell_is_cut_by_the_columns_of_a_terminal(text: str, shown: str) -> None:
    assert printed(lambda _: say_table(("A", "B"), [("a", text)]), None).splitlines()[-1] == f"a  {shown}"


def log_lines(level: str, code: str, form: str = "text") -> list[str]:
    """Return the stderr of a process that runs `code` with a log of this level and form."""
    setup = "import logging\nfrom mcp_skills_server.commands.logs import log_to_stderr\n"
    setup += f"log_to_stderr({level!r}, {form!r})\n"
    words = [sys.executable, "-c", setup + textwrap.dedent(code)]
    return subprocess.run(words, capture_output=True, text=True, check=True).stderr.splitlines()


def test_log_record_is_one_line_despite_line_breaks_in_it() -> None:
    code = """
        log = logging.getLogger("mcp_skills_server.x")
        log.info("ran %s", "a\\nmcp-skills-server: ERROR: forged\\x1b[2J")
        try:
            raise ValueError("b\\x1b[2Jc")
        except ValueError:
            log.exception("failed")
        """
    first, second, *trace, last = log_lines("info", code)
    assert all(map(str.isprintable, trace))
    assert first == "mcp-skills-server: INFO: ran a\\u{a}mcp-skills-server: ERROR: forged\\u{1b}[2J"
    assert second == "mcp-skills-server: ERROR: failed" and last == "ValueError: b\\u{1b}[2Jc"


def test_json_log_record_is_one_object() -> None:
    code = """
        for number in range(3):
            if number == 2:
                __import__("mcp_skills_server.commands.logs").commands.logs._EVERY_S = 0
            logging.getLogger("other").warning("again")
        class Failure(str):
            fields = {"tool": "t", "none": None}
        try:
            raise ValueError("why")
        except ValueError:
            logging.getLogger("mcp_skills_server.x").exception(Failure("failed"))
        """
    first, second, last = map(json.loads, log_lines("info", code, "json"))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", first.pop("time"))
    assert first == {"level": "warning", "message": "again"} and second["left_out"] == 1
    assert last.pop("time") and last.pop("traceback").endswith("ValueError: why")
    assert last == {"level": "error", "message": "failed", "tool": "t"}


def test_debug_and_info_of_other_packages_are_not_logged() -> None:
    """Debug records of other packages hold whole messages, with bodies and session handles."""
    code = """
        for name in ("mcp.server.lowlevel", "mcp_skills_server.x"):
            for level in (logging.DEBUG, logging.INFO, logging.WARNING):
                logging.getLogger(name).log(level, "%s %d", name, level)
        """
    assert [line.split(": ", 2)[2] for line in log_lines("debug", code)] == [
        f"mcp.server.lowlevel {logging.WARNING}",
        *(f"mcp_skills_server.x {level}" for level in (logging.DEBUG, logging.INFO, logging.WARNING)),
    ]


HOSTILE_SKILL = r"""---
name: tables
description: "Makes tables.\e[2J\u202E\u0085 Use it for tables."
title: "T\e]0;owned\a"
version: "1\u009b2J"
---

Body with an escape: @[31m
""".replace("@", "\x1b")


@each_row("words", [
    ["list", "."], ["list", ".", "--format", "json"], ["show", ".", "tables"],
    ["show", ".", "tables", "--format", "json"], ["validate", "."], ["validate", ".", "--format", "json"],
    ["validate", ".", "--format", "github"], ["list", "no\x1b[2Jsuch"],
    ["install", "cursor", "folder\x1b[2J", "--print", "--command", "x"],
])  # fmt: skip
def test_commands_escape_control_characters_of_skills(words: list[str], tmp_path: Path) -> None:
    write_skill(tmp_path / "tables").joinpath("SKILL.md").write_text(HOSTILE_SKILL, encoding="utf-8")
    (tmp_path / "folder\x1b[2J").mkdir()
    done = run(*words, cwd=tmp_path)
    printed = done.stdout + done.stderr
    assert printed and all(line.isprintable() for line in printed.split("\n"))
    if "json" in words:
        json.loads(done.stdout)


def test_commands_print_only_through_the_printing_module() -> None:
    """`cli.py` prints only help, which holds no untrusted text."""
    sources = Path(mcp_skills_server.__file__).parent
    printing = sources / "commands" / "printing.py"
    files = [sources / "cli.py", *(each for each in (sources / "commands").rglob("*.py") if each != printing)]
    ways = re.compile(r"click\.(?:s?echo\w*)\(|(?<![\w.])print\(|sys\.stdout\.write\(")
    found = {each.relative_to(sources).as_posix() for each in files if ways.search(each.read_text(encoding="utf-8"))}
    assert found == {"cli.py"}


def test_client_log_lines_are_rate_limited_to_one_a_minute() -> None:
    """Limited are lines of other packages, and those of this one that are marked as repeating."""
    clock = [0.0]
    limit = ClientLineRateLimit(lambda: clock[0])

    def left_out_counts(name: str, line: int, **extra: object) -> list[int]:
        """Log 1000 records of one place; return `left_out` of those that pass, -1 for none."""
        counts: list[int] = []
        place = {"name": name, "pathname": "p", "lineno": line, **extra}
        for number in range(1000):
            record = logging.makeLogRecord({**place, "msg": str(number)})
            if limit.filter(record):
                counts.append(getattr(record, "left_out", -1))
        return counts

    assert left_out_counts("uvicorn.error", 1) == [0]
    assert left_out_counts("mcp.server", 2) == [0]
    assert left_out_counts("mcp_skills_server.web", 3, **REPEATS) == [0]
    assert left_out_counts("mcp_skills_server.catalog", 4) == [-1] * 1000
    clock[0] = 59.9
    assert left_out_counts("uvicorn.error", 1) == []
    clock[0] = 60
    assert left_out_counts("uvicorn.error", 1) == [1999]


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


def test_blocked_stream_delays_nothing_and_dropped_lines_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logs, "_MAX_WAITING", 5)
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
    for _ in range(2):  # the first line, and then all that wait
        assert stream.written.acquire(timeout=DEADLINE)
    log("last")
    handler.close()
    handler.close()  # logging closes handlers again at exit
    kept = ["INFO: first", *(f"INFO: line {number}" for number in range(5))]
    dropped = "WARNING: 3 lines of the log were dropped: the reader of stderr is too slow"
    assert stream.text.splitlines() == [*kept, dropped, "INFO: last"]


LOGGING_PROGRAM = """
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
    done = subprocess.run([sys.executable, "-c", LOGGING_PROGRAM, str(code)], capture_output=True, check=False)
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert done.returncode == code
    assert [each["method"] for each in lines] == [f"number {n}" for n in range(100)]
    assert {each["request"] for each in lines} == {"the id"}
