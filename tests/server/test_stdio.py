"""The stdio server process: start, invalid input, and shutdown."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import forkserver
from malformed import LONE_SURROGATES, MALFORMED
from mcp_skills_server.catalog.index import Index
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.model import Standing
from mcp_skills_server.transport import MAX_LINE
from tables import each_row
from web.http_wire import HELLO
from wire import COMMAND, DEADLINE, FIXTURES, META, SLOW_LOAD, Era, Wire, serving, write_skill


def message(**fields: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **fields}).encode() + b"\n"


@pytest.mark.requirement("MCP-15", "MCP-50", "MCP-51")
def test_each_line_of_stdout_is_one_message_with_the_id_of_its_request(era: Era) -> None:
    ids = ["text", "", 0, -5, 2**53]
    with serving(FIXTURES, "--log-level", "debug", era=era) as wire:
        for identifier in ids:
            wire.send_line(json.dumps({**wire.message("skills/list"), "id": identifier}).encode())
        assert wire.close() == 0
        assert all(line.endswith(b"\n") for line in wire.lines)
        answers = [json.loads(line) for line in wire.lines]
        assert all(each["jsonrpc"] == "2.0" for each in answers)
        answered = [each.get("id") for each in answers]
        assert all(answered.count(identifier) == 1 for identifier in ids)


@pytest.mark.requirement("MCP-37", "MCP-38")
@pytest.mark.parametrize("end", ["stdin", "SIGTERM", "SIGINT"])
def test_listen_stream_ends_with_result_and_notification_at_shutdown(end: str) -> None:
    with serving(FIXTURES, era="modern") as wire:
        stream = wire.listen(skillsListChanged=True)
        if end == "stdin":
            assert wire.close() == 0
        else:
            assert wire.signal(signal.Signals[end]) == 0
        result = wire.finish(stream, 1)
        assert (result["resultType"], result["_meta"][META + "subscriptionId"]) == ("complete", stream)
        cancelled = wire.notification(1)
        assert (cancelled["method"], cancelled["params"]["requestId"]) == ("notifications/cancelled", stream)


@each_row("method", [None, "ping", "skills/list"])
def test_process_ends_quietly_when_its_client_stops_reading(method: str | None) -> None:
    """As in `mcp-skills-server serve ... | head -1`; stdin stays open."""
    command = [*COMMAND, "serve", str(FIXTURES)]
    pipe = subprocess.PIPE
    process: Any = forkserver.Popen(command, bufsize=0, stdin=pipe, stdout=pipe, stderr=pipe)
    with process:
        process.stdin.write(message(id=0, method="initialize", params=HELLO))
        assert process.stdout.readline()
        process.stdout.close()
        if method is not None:
            with suppress(BrokenPipeError):  # the process may have ended already
                process.stdin.write(message(id=1, method=method))
        assert process.wait(DEADLINE) == 0
        assert b"Traceback" not in process.stderr.read()


# Invalid messages


def test_invalid_message_gets_an_error_and_the_next_request_works(era: Era) -> None:
    """Test invalid messages before and after the handshake."""
    with serving(FIXTURES, era=era, opened=False) as wire:
        wire._id = 100
        for opened in (False, True):
            for case in MALFORMED:
                wire.send_line(case.raw)
                answer = wire.answer(case.id)
                assert (answer["error"]["code"], answer["id"]) == (case.code, case.id), case.title
                if opened:
                    assert wire.request("skills/list")["skills"]
            if not opened:
                assert wire.open()["capabilities"]
        for method, params in LONE_SURROGATES:
            answer = wire.answer(wire.start(method, params))
            assert "result" in answer or answer["error"]["code"] == -32602, answer
        assert "\ufffd" in wire.answer(wire.start("skills/get", {"name": "git \ud83d"}))["error"]["message"]
        wire.wait_for_log(b"refused a message")
        assert b"Traceback" not in wire.stderr


def test_unfinished_line_that_is_too_long_is_refused_and_not_buffered() -> None:
    with serving(FIXTURES) as wire:
        wire.request("skills/list")
        memory = Path(f"/proc/{wire.process.pid}/statm")
        before = int(memory.read_text().split()[1])
        assert wire.process.stdin is not None
        for _ in range(64):
            wire.process.stdin.write(b"x" * (1 << 20))
        wire.process.stdin.flush()
        answer = wire.answer(None)
        assert (answer["error"]["code"], answer["id"]) == (-32600, None)
        assert f"{MAX_LINE:,} bytes" in answer["error"]["message"]
        wire.send_line(b"x" * 1000)
        assert wire.request("skills/list")["skills"]
        assert wire._answers[None].empty()
        pages = int(memory.read_text().split()[1]) - before
        assert pages * os.sysconf("SC_PAGE_SIZE") < 48 << 20


@contextmanager
def slow_server(folder: Path, **options: Any) -> Iterator[tuple[Wire, Path]]:
    """Yield a server whose first scan waits for a writer of a fifo, and that fifo."""
    fifo = folder / "fifo"
    os.mkfifo(fifo)
    command = [sys.executable, "-c", SLOW_LOAD, str(fifo), "serve", str(FIXTURES)]
    wire = Wire(command, **options)
    try:
        yield wire, fifo
    finally:
        wire.kill()


@pytest.mark.requirement("MCP-51")
@pytest.mark.parametrize("is_scanned", [True, False])
def test_pending_requests_are_answered_after_stdin_ends(tmp_path: Path, is_scanned: bool) -> None:
    with slow_server(tmp_path) as (wire, fifo):
        wire.open()
        ids = [wire.start("skills/list") for _ in range(3)]
        assert wire.process.stdin is not None
        wire.process.stdin.close()
        if is_scanned:
            fifo.write_text("scan")
            assert all(wire.answer(each)["result"]["skills"] for each in ids)
        else:
            closed = {"code": -32000, "message": "Connection closed"}
            assert [wire.answer(each)["error"] for each in ids] == [closed] * 3
        assert wire.wait() == 0


def test_handshake_of_a_host_with_native_skills_does_not_await_a_slow_scan(tmp_path: Path) -> None:
    with slow_server(tmp_path, extension=True, host="claude-code") as (wire, fifo):
        assert "instructions" not in wire.open()
        fifo.write_text("scan")
        assert wire.every_skill()


# Imports before the first answer: hosts start a process for every conversation


SLOW = {
    "mcp", "mcp_types", "pydantic", "starlette", "httpx", "httpx2", "uvicorn", "opentelemetry", "jsonschema",
}  # fmt: skip
"""Slow to import. Not anyio: watchfiles imports it in the watch thread, after the first scan."""
LATE = {
    "filelock", "tomllib", "yaml", "dialects.wellknown", "format.archive", "format.frontmatter",
    "runtime.search_index", "runtime.scripts", "runtime.search", "sources", "validation",
}  # fmt: skip
"""Imported only to read, run or search skills; a start with an index needs only sqlite3."""


@pytest.mark.parametrize("way", ["option", "file"])
def test_optional_root_that_is_absent_is_served_once_it_is_there(tmp_path: Path, way: str) -> None:
    write_skill(tmp_path / "one" / "a")
    late, options = tmp_path / "late", ["--optional-root", str(tmp_path / "late")]
    if way == "file":
        file = tmp_path / "c.toml"
        file.write_text(f"[[source]]\nfrom = '{tmp_path}/one'\n[[source]]\nfrom = 'late'\noptional = true\n")
        options = ["--config", str(file)]
    roots = [tmp_path / "one"] if way == "option" else []
    with serving(*roots, *options) as wire:
        assert [skill["name"] for skill in wire.every_skill()] == ["a"]
        wire.wait_for_log(f"WARNING: {late}: the optional root is absent".encode())
        write_skill(late / "b")
        wire.until("notifications/skills/list_changed")
        assert [skill["name"] for skill in wire.every_skill()] == ["a", "b"]
    with serving(*roots, tmp_path / "away", *options, opened=False) as wire:
        assert wire.wait() == 2
        assert b"away: no such file or folder" in wire.stderr


@pytest.mark.parametrize("options", [(), ("--no-watch",)])
def test_server_that_ends_at_once_leaves_an_index(tmp_path: Path, options: tuple[str, ...]) -> None:
    raw = message(id=1, method="initialize", params=HELLO) + message(id=2, method="skills/list")
    command = [*COMMAND, "serve", str(FIXTURES), "--cache-dir", str(tmp_path), *options]
    forkserver.run(command, input=raw, capture_output=True, timeout=DEADLINE, check=True)
    registry = Registry([FIXTURES], index=Index(tmp_path / "index", least=1))
    remembered = registry.remembered()
    registry.load()
    assert remembered is not None
    assert remembered.paths(Standing.VALID) == registry.snapshot.paths(Standing.VALID) != []


def test_start_imports_no_sdk_and_with_an_index_no_reader_of_skills(tmp_path: Path) -> None:
    registry = Registry([FIXTURES], index=Index(tmp_path / "known" / "index", least=1))
    registry.load()
    registry.save_index()
    handshake = message(id=1, method="initialize", params=HELLO)
    raw = handshake + message(id=2, method="skills/list")
    for cache, *options in (("new",), ("known",), ("known", "--no-watch")):
        serve = ["serve", str(FIXTURES), "--cache-dir", str(tmp_path / cache), *options]
        command = [sys.executable, "-X", "importtime", "-m", "mcp_skills_server", *serve]
        done = subprocess.run(command, input=raw, capture_output=True, timeout=DEADLINE, check=True)
        assert [json.loads(line)["id"] for line in done.stdout.splitlines()] == [1, 2]
        imported = r"^import time:.*\|\s+(?:mcp_skills_server\.)?([\w.]+)"
        names = set(re.findall(imported, done.stderr.decode(), re.MULTILINE))
        assert "asyncio" in names
        assert not {name.split(".")[0] for name in names} & SLOW
        if cache == "known":
            assert not names & LATE
        if options == ["--no-watch"]:
            assert "anyio" not in names
