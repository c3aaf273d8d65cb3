"""The process: how it starts, what it does with bad input, how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tables import each_row
from wire import COMMAND, DEADLINE, FIXTURES, ROOT, SLOW_LOAD, SOON, Era, Wire, WireError, serving, write_skill


def test_the_handshake_is_answered_before_the_first_scan_ends(tmp_path: Path, era: Era) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    wire = Wire([sys.executable, "-c", SLOW_LOAD, str(gate), "serve", str(FIXTURES)], era=era)
    try:
        assert wire.open()["capabilities"]
        waiting = wire.start("skills/list")
        if era == "legacy":
            assert wire.request("ping") == {}
        assert wire._answers[waiting].empty()
        gate.write_text("go")
        assert wire.finish(waiting)["skills"]
    finally:
        wire.kill()


@pytest.mark.requirement("MCP-50")
def test_stdout_carries_one_message_a_line_and_nothing_else(era: Era) -> None:
    with serving(FIXTURES, "--log-level", "debug", era=era) as wire:
        wire.every_skill()
        assert wire.close() == 0
        for line in wire.lines:
            assert line.endswith(b"\n") and json.loads(line)["jsonrpc"] == "2.0"


def test_a_line_without_end_costs_no_memory_and_the_next_request_works() -> None:
    with serving(FIXTURES) as wire:
        wire.request("skills/list")
        before = _resident(wire.process.pid)
        assert wire.process.stdin is not None
        for _ in range(64):
            wire.process.stdin.write(b"x" * (1 << 20))
        wire.send_line(b"")
        assert wire.request("skills/list")["skills"]
        assert _resident(wire.process.pid) - before < 48 << 20


def _resident(pid: int) -> int:
    pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def test_an_unknown_method_is_told(wire: Wire) -> None:
    with pytest.raises(WireError) as caught:
        wire.request("skills/none")
    assert caught.value.code == -32601


@pytest.mark.requirement("MCP-15")
def test_ids_come_back_as_they_were_sent() -> None:
    sent = ["text", "", 0, -5, 2**53]
    with serving(FIXTURES) as wire:
        for identifier in sent:
            wire.send_line(json.dumps({"jsonrpc": "2.0", "id": identifier, "method": "skills/list"}).encode())
        wire.close()
        answered = [json.loads(line).get("id") for line in wire.lines]
        assert all(answered.count(identifier) == 1 for identifier in sent)


@pytest.mark.requirement("MCP-2")
def test_a_modern_request_without_its_envelope_is_refused() -> None:
    with serving(FIXTURES, era="modern") as wire:
        half = {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}
        message = {"jsonrpc": "2.0", "id": "half", "method": "skills/list", "params": {"_meta": half}}
        wire._answers["half"] = __import__("queue").Queue()
        wire.send_line(json.dumps(message).encode())
        assert wire._answers["half"].get(timeout=DEADLINE)["error"]["code"] == -32602


@pytest.mark.requirement("MCP-3")
def test_an_unknown_protocol_version_is_refused_with_those_that_are_known() -> None:
    with serving(FIXTURES, era="modern") as wire, pytest.raises(WireError) as caught:
        wire.request("skills/list", {"_meta": {"io.modelcontextprotocol/protocolVersion": "2031-01-01"}})
    assert caught.value.code == -32022
    assert caught.value.data["requested"] == "2031-01-01"
    assert "2026-07-28" in caught.value.data["supported"]


@pytest.mark.requirement("MCP-51")
def test_closing_stdin_ends_the_process_with_0(era: Era) -> None:
    with serving(FIXTURES, era=era) as wire:
        wire.request("skills/list")
        assert wire.close() == 0


@pytest.mark.requirement("MCP-51")
def test_requests_that_came_before_the_end_of_stdin_are_answered() -> None:
    with serving(FIXTURES) as wire:
        asked = [wire.start("skills/list") for _ in range(20)]
        assert wire.close() == 0
        for identifier in asked:
            assert wire.finish(identifier, 1)["skills"]


@each_row("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_process_with_0_and_waits_for_nobody(era: Era, number: signal.Signals) -> None:
    with serving(FIXTURES, era=era) as wire:
        wire.request("skills/list")
        begun = time.monotonic()
        assert wire.signal(number) == 0
        assert time.monotonic() - begun < SOON
        assert b"Traceback" not in wire.stderr


@pytest.mark.requirement("MCP-37", "MCP-38")
@pytest.mark.parametrize("end", ["stdin", "sigterm"])
def test_listen_streams_end_as_the_protocol_says(end: str) -> None:
    with serving(FIXTURES, era="modern") as wire:
        stream = wire.listen(skillsListChanged=True)
        assert (wire.close() if end == "stdin" else wire.signal(signal.SIGTERM)) == 0
        result = wire.finish(stream, 1)
        assert result["resultType"] == "complete"
        assert result["_meta"]["io.modelcontextprotocol/subscriptionId"] == stream
        cancelled = wire.notification(1)
        assert cancelled["method"] == "notifications/cancelled"
        assert cancelled["params"]["requestId"] == stream


def test_a_client_that_stops_reading_does_not_keep_the_process(tmp_path: Path) -> None:
    for number in range(60):
        write_skill(tmp_path / f"skill-{number:02}", description="d" * 1000, body="# T\n")
    process = subprocess.Popen(
        [*COMMAND, "serve", str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=ROOT,
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        first = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
        process.stdin.write(
            json.dumps({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": first}).encode() + b"\n"
        )
        for number in range(1, 40):
            process.stdin.write(json.dumps({"jsonrpc": "2.0", "id": number, "method": "skills/list"}).encode() + b"\n")
        process.stdin.flush()
        assert process.stdout.readline()
        process.terminate()
        begun = time.monotonic()
        assert process.wait(DEADLINE) == 0
        assert time.monotonic() - begun < SOON
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stdin.close()


@each_row("size", ["nothing", "small", "large"])
def test_a_client_that_no_longer_reads_ends_the_process_quietly(size: str) -> None:
    """As `mcp-skills-server serve ... | head -1` does; stdin stays open."""
    process = subprocess.Popen(
        [*COMMAND, "serve", str(FIXTURES)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
    )
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    try:
        first = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
        hello = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": first}
        process.stdin.write(json.dumps(hello).encode() + b"\n")
        process.stdin.flush()
        assert process.stdout.readline()
        process.stdout.close()
        if size != "nothing":
            method = "ping" if size == "small" else "skills/list"
            with suppress(BrokenPipeError):  # it may have ended already
                process.stdin.write(json.dumps({"jsonrpc": "2.0", "id": 1, "method": method}).encode() + b"\n")
                process.stdin.flush()
        assert process.wait(DEADLINE) == 0
        assert b"Traceback" not in process.stderr.read()
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
        with suppress(BrokenPipeError):
            process.stdin.close()


def test_stdin_may_be_a_file(tmp_path: Path) -> None:
    first = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    lines = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": first},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "skills/list"},
    ]
    script = tmp_path / "requests.jsonl"
    script.write_text("\n".join(map(json.dumps, lines)))  # and no line break at the end
    with script.open() as stdin:
        done = subprocess.run(
            [*COMMAND, "serve", str(FIXTURES)],
            stdin=stdin,
            capture_output=True,
            timeout=DEADLINE,
            cwd=ROOT,
            check=False,
        )
    assert done.returncode == 0
    assert {json.loads(line)["id"] for line in done.stdout.splitlines()} == {1, 2}


def test_the_modern_era_may_begin_without_a_handshake() -> None:
    with serving(FIXTURES, era="modern", opened=False) as wire:
        assert wire.request("skills/list")["skills"]


@pytest.mark.requirement("MCP-7", "MCP-9")
def test_a_modern_connection_refuses_the_old_handshake() -> None:
    with serving(FIXTURES, era="modern") as wire, pytest.raises(WireError) as caught:
        wire.request(
            "initialize",
            {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}},
        )
    assert caught.value.code == -32022
    assert caught.value.data["supported"] == ["2026-07-28"]


@pytest.mark.requirement("MCP-8")
@each_row("version", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"])
def test_every_older_version_is_spoken(version: str) -> None:
    with serving(FIXTURES, opened=False) as wire:
        seen = wire.request(
            "initialize", {"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
        )
        assert seen["protocolVersion"] == version
        wire.notify("notifications/initialized")
        assert wire.request("skills/list")["skills"]
        assert wire.request("resources/list")["resources"]
