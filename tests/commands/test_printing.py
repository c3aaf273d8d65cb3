"""What commands and the log print: foreign text steers no terminal and forges no line."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import mcp_skills_server
from commands.calls import run
from mcp_skills_server.commands.logs import ClientLineRateLimit
from mcp_skills_server.commands.printing import remark, say, say_json, say_lines, say_table
from mcp_skills_server.errors import REPEATS
from tables import each_row
from wire import write_skill

EVIL = "a\x1b[2Jb\rc\x9bd\u202ee\x7ff\U000e0041g"


def printed(function: Callable[[Any], None], value: object) -> str:
    return CliRunner().invoke(click.Command("x", callback=lambda: function(value))).output


def test_lines_and_tabs_of_a_body_stay_and_nothing_steers_a_terminal() -> None:
    assert printed(say_lines, "one\n\ttwo\x1b") == "one\n\ttwo\\u{1b}\n"
    assert printed(say, EVIL) == printed(say_lines, EVIL) and printed(say, EVIL).rstrip("\n").isprintable()
    assert printed(remark, EVIL) == f"mcp-skills-server: {printed(say, EVIL)}"


@given(st.text(max_size=40) | st.just(EVIL))
def test_json_says_the_same_and_steers_no_terminal(text: str) -> None:
    out = printed(say_json, {"text": text, text: 1, "Grüße": "日本"})
    assert json.loads(out) == {"text": text, text: 1, "Grüße": "日本"}
    assert "Grüße" in out and "日本" in out
    assert all(line.isprintable() for line in out.split("\n"))


@each_row(("length", "cell"), [(100, "x" * 100), (101, "x" * 97 + "...")])
def test_the_last_cell_of_a_table_is_cut(length: int, cell: str) -> None:
    rows = [("long", "x" * length), ("a", "b")]
    assert printed(lambda _: say_table(("A", "B"), rows), None) == f"A     B\nlong  {cell}\na     b\n"
    assert printed(lambda _: say_table(("A", "B"), []), None) == "A  B\n"
    assert printed(lambda _: say_table(("A", "B"), [], empty="none"), None) == "none\n"


def logged(level: str, code: str, form: str = "text") -> list[str]:
    """The lines that code logs from this level on."""
    setup = "import logging\nfrom mcp_skills_server.commands.logs import log_to_stderr\n"
    setup += f"log_to_stderr({level!r}, {form!r})\n"
    words = [sys.executable, "-c", setup + textwrap.dedent(code)]
    return subprocess.run(words, capture_output=True, text=True, check=True).stderr.splitlines()


def test_a_record_is_one_line() -> None:
    """A file's name in a record begins no record of its own, in a traceback neither."""
    code = """
        log = logging.getLogger("mcp_skills_server.x")
        log.info("ran %s", "a\\nmcp-skills-server: ERROR: forged\\x1b[2J")
        try:
            raise ValueError("b\\x1b[2Jc")
        except ValueError:
            log.exception("failed")
        """
    first, second, *trace, last = logged("info", code)
    assert all(map(str.isprintable, trace))
    assert first == "mcp-skills-server: INFO: ran a\\u{a}mcp-skills-server: ERROR: forged\\u{1b}[2J"
    assert second == "mcp-skills-server: ERROR: failed" and last == "ValueError: b\\u{1b}[2Jc"


def test_a_record_is_one_json_object() -> None:
    code = """
        for number in range(3):
            if number == 2:
                __import__("mcp_skills_server.commands.logs").commands.logs._EVERY_S = 0
            logging.getLogger("other").warning("again")
        try:
            raise ValueError("why")
        except ValueError:
            logging.getLogger("mcp_skills_server.x").exception("failed", extra={"fields": {"tool": "t", "none": None}})
        """
    first, second, last = map(json.loads, logged("info", code, "json"))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", first.pop("time"))
    assert first == {"level": "warning", "message": "again"} and second["left_out"] == 1
    assert last.pop("time") and last.pop("traceback").endswith("ValueError: why")
    assert last == {"level": "error", "message": "failed", "tool": "t"}


def test_debug_is_ours_alone() -> None:
    """At debug other packages log warnings only: their records hold whole messages, with bodies and handles."""
    code = """
        for name in ("mcp.server.lowlevel", "mcp_skills_server.x"):
            for level in (logging.DEBUG, logging.INFO, logging.WARNING):
                logging.getLogger(name).log(level, "%s %d", name, level)
        """
    assert [line.split(": ", 2)[2] for line in logged("debug", code)] == [
        f"mcp.server.lowlevel {logging.WARNING}",
        *(f"mcp_skills_server.x {level}" for level in (logging.DEBUG, logging.INFO, logging.WARNING)),
    ]


EVIL_SKILL = r"""---
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
def test_no_command_hands_on_what_steers_a_terminal(words: list[str], tmp_path: Path) -> None:
    write_skill(tmp_path / "tables").joinpath("SKILL.md").write_text(EVIL_SKILL, encoding="utf-8")
    (tmp_path / "folder\x1b[2J").mkdir()
    done = run(*words, cwd=tmp_path)
    printed = done.stdout + done.stderr
    assert printed and all(line.isprintable() for line in printed.split("\n"))
    if "json" in words:
        json.loads(done.stdout)


def test_every_command_prints_through_one_printer() -> None:
    """Another way to print would be a way past it. The help is click's own, and holds no foreign text."""
    sources = Path(mcp_skills_server.__file__).parent
    printing = sources / "commands" / "printing.py"
    files = [sources / "cli.py", *(each for each in (sources / "commands").rglob("*.py") if each != printing)]
    ways = re.compile(r"click\.(?:s?echo\w*)\(|(?<![\w.])print\(|sys\.stdout\.write\(")
    found = {each.relative_to(sources).as_posix() for each in files if ways.search(each.read_text(encoding="utf-8"))}
    assert found == {"cli.py"}


def test_what_clients_cause_is_said_once_a_minute() -> None:
    """10.0d: every place in another package, and of ours those that say so; all else is said each time."""
    clock = [0.0]
    seldom = ClientLineRateLimit(lambda: clock[0])

    def said(name: str, line: int, **more: object) -> list[int]:
        out: list[int] = []
        for number in range(1000):
            record = logging.makeLogRecord({"name": name, "pathname": "p", "lineno": line, "msg": str(number), **more})
            if seldom.filter(record):
                out.append(getattr(record, "left_out", -1))
        return out

    assert said("uvicorn.error", 1) == [0] == said("mcp.server", 2) == said("mcp_skills_server.web", 3, **REPEATS)
    assert said("mcp_skills_server.catalog", 4) == [-1] * 1000
    clock[0] = 59.9
    assert said("uvicorn.error", 1) == []
    clock[0] = 60
    assert said("uvicorn.error", 1) == [1999]
