"""The process: how it starts, what it does with bad input, how it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from conversations import HANDSHAKE
from malformed import HALVES, MALFORMED
from mcp_skills_server.catalog.index import Index
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.transport import MAX_LINE
from tables import each_row
from wire import COMMAND, DEADLINE, FIXTURES, META, ROOT, SLOW_LOAD, SOON, VERSIONS, Era, Wire, WireError, serving


def said(**fields: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **fields}).encode()


@pytest.mark.requirement("MCP-15", "MCP-50", "MCP-51")
def test_stdout_carries_one_message_a_line_with_the_id_as_it_was_sent(era: Era) -> None:
    sent = ["text", "", 0, -5, 2**53]
    with serving(FIXTURES, "--log-level", "debug", era=era) as wire:
        for identifier in sent:
            wire.send_line(json.dumps({**wire.message("skills/list"), "id": identifier}).encode())
        assert wire.close() == 0
        assert all(line.endswith(b"\n") and json.loads(line)["jsonrpc"] == "2.0" for line in wire.lines)
        answered = [json.loads(line).get("id") for line in wire.lines]
        assert all(answered.count(identifier) == 1 for identifier in sent)


@pytest.mark.requirement("MCP-2", "MCP-3", "MCP-7", "MCP-9")
@each_row(("method", "params", "code", "requested"), [
    ("skills/list", {"_meta": {META + "clientCapabilities": 5}}, -32602, None),
    ("skills/list", {"_meta": {META + "protocolVersion": "2031-01-01"}}, -32022, "2031-01-01"),
    ("initialize", HANDSHAKE, -32022, HANDSHAKE["protocolVersion"]),
])  # fmt: skip
def test_a_modern_connection_refuses_what_is_of_no_era_or_of_the_other(
    method: str, params: dict[str, Any], code: int, requested: str | None
) -> None:
    with serving(FIXTURES, era="modern") as wire, pytest.raises(WireError) as caught:
        wire.request(method, params)
    data = None if requested is None else {"requested": requested, "supported": [VERSIONS["modern"]]}
    assert (caught.value.code, caught.value.data) == (code, data)


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
        assert (result["resultType"], result["_meta"][META + "subscriptionId"]) == ("complete", stream)
        cancelled = wire.notification(1)
        assert (cancelled["method"], cancelled["params"]["requestId"]) == ("notifications/cancelled", stream)


@each_row("method", [None, "ping", "skills/list"])
def test_a_client_that_no_longer_reads_ends_the_process_quietly(method: str | None) -> None:
    """As `mcp-skills-server serve ... | head -1` does; stdin stays open."""
    command = [*COMMAND, "serve", str(FIXTURES)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, bufsize=0, stdin=pipe, stdout=pipe, stderr=pipe, cwd=ROOT) as process:
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        process.stdin.write(said(id=0, method="initialize", params=HANDSHAKE) + b"\n")
        assert process.stdout.readline()
        process.stdout.close()
        if method is not None:
            with suppress(BrokenPipeError):  # it may have ended already
                process.stdin.write(said(id=1, method=method) + b"\n")
        assert process.wait(DEADLINE) == 0
        assert b"Traceback" not in process.stderr.read()


@pytest.mark.requirement("MCP-8")
@each_row("version", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"])
def test_every_older_version_is_spoken(version: str) -> None:
    with serving(FIXTURES, opened=False) as wire:
        seen = wire.request("initialize", {**HANDSHAKE, "protocolVersion": version})
        assert seen["protocolVersion"] == version
        wire.notify("notifications/initialized")
        assert wire.request("skills/list")["skills"] and wire.request("resources/list")["resources"]


# Messages that are none


def test_every_message_is_answered_and_the_next_request_works(era: Era) -> None:
    """Before the first request of all, too."""
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
        for method, params in HALVES:  # half a character
            answer = wire.answer(wire.start(method, params))
            assert "result" in answer or answer["error"]["code"] == -32602, answer
        assert "\ufffd" in wire.answer(wire.start("skills/get", {"name": "git \ud83d"}))["error"]["message"]
        wire.logs(b"refused a message")
        assert b"Traceback" not in wire.stderr


@pytest.mark.parametrize("ended", [True, False])
def test_a_line_that_is_too_long_is_answered_with_the_limit_and_costs_no_memory(ended: bool) -> None:
    with serving(FIXTURES) as wire:
        wire.request("skills/list")
        memory = Path(f"/proc/{wire.process.pid}/statm")
        before = int(memory.read_text().split()[1])
        assert wire.process.stdin is not None
        for _ in range(64):
            wire.process.stdin.write(b"x" * (1 << 20))
        if ended:
            wire.send_line(b"")
        wire.process.stdin.flush()
        answer = wire.answer(None)
        assert (answer["error"]["code"], answer["id"]) == (-32600, None)
        assert f"{MAX_LINE:,} bytes" in answer["error"]["message"]
        if not ended:
            wire.send_line(b"x" * 1000)
        assert wire.request("skills/list")["skills"]
        assert wire._answers[None].empty()
        assert (int(memory.read_text().split()[1]) - before) * os.sysconf("SC_PAGE_SIZE") < 48 << 20


@pytest.mark.requirement("MCP-51")
@pytest.mark.parametrize("scanned", [True, False])
def test_requests_that_are_owed_at_the_end_are_answered_once(tmp_path: Path, scanned: bool) -> None:
    os.mkfifo(gate := tmp_path / "gate")
    wire = Wire([sys.executable, "-c", SLOW_LOAD, str(gate), "serve", str(FIXTURES)])
    try:
        wire.open()
        asked = [wire.start("skills/list") for _ in range(3)]
        assert wire.process.stdin is not None
        wire.process.stdin.close()
        if scanned:
            gate.write_text("go")
            assert all(wire.answer(each)["result"]["skills"] for each in asked)
        else:
            closed = {"code": -32000, "message": "Connection closed"}
            assert [wire.answer(each)["error"] for each in asked] == [closed] * 3
        assert wire.wait() == 0
    finally:
        wire.kill()


def test_the_handshake_of_a_host_that_lists_skills_itself_needs_no_scan(tmp_path: Path) -> None:
    os.mkfifo(gate := tmp_path / "gate")
    command = [sys.executable, "-c", SLOW_LOAD, str(gate), "serve", str(FIXTURES)]
    wire = Wire(command, extension=True, host="claude-code")
    try:
        assert "instructions" not in wire.request("initialize", wire._described("capabilities"))
        with pytest.raises(OSError, match="No such device"):  # nothing reads the gate: the scan has not begun
            os.open(gate, os.O_WRONLY | os.O_NONBLOCK)
        wire.notify("notifications/initialized")
        end = time.monotonic() + DEADLINE
        while True:  # until the scan, which this starts, reads the gate
            with suppress(OSError):
                os.close(os.open(gate, os.O_WRONLY | os.O_NONBLOCK))
                break
            assert time.monotonic() < end
            time.sleep(0.01)
    finally:
        wire.kill()


# What the process imports before it answers: hosts start it for every conversation


SLOW = {
    "mcp", "mcp_types", "pydantic", "starlette", "httpx", "httpx2", "uvicorn", "opentelemetry", "jsonschema",
}  # fmt: skip
"""Not anyio: watchfiles imports it in the thread of the watch, behind the first scan. Without a watch nothing does."""
LATE = {
    "filelock", "tomllib", "yaml", "dialects.wellknown", "format.archive", "format.frontmatter",
    "runtime.search_index", "runtime.scripts", "runtime.search", "sources", "validation",
}  # fmt: skip
"""What only a start that reads, runs or searches something loads. The index is read with sqlite3."""


def test_a_start_imports_no_sdk_and_none_over_known_folders_loads_what_reads_a_skill(tmp_path: Path) -> None:
    registry = Registry([FIXTURES], index=Index(tmp_path / "known" / "index", least=1))
    registry.load()
    registry.save_index()
    requests = [{"id": 1, "method": "initialize", "params": HANDSHAKE}, {"id": 2, "method": "skills/list"}]
    said = b"".join(json.dumps({"jsonrpc": "2.0", **each}).encode() + b"\n" for each in requests)
    for cache, *more in (("new",), ("known",), ("known", "--no-watch")):
        served = ["mcp_skills_server", "serve", str(FIXTURES), "--cache-dir", str(tmp_path / cache), *more]
        command = [sys.executable, "-X", "importtime", "-m", *served]
        done = subprocess.run(command, input=said, capture_output=True, timeout=DEADLINE, check=True)
        assert [json.loads(line)["id"] for line in done.stdout.splitlines()] == [1, 2]
        imported = r"^import time:.*\|\s+(?:mcp_skills_server\.)?([\w.]+)"
        names = set(re.findall(imported, done.stderr.decode(), re.MULTILINE))
        assert "asyncio" in names and not {name.split(".")[0] for name in names} & SLOW
        assert cache == "new" or not names & LATE
        assert not more or "anyio" not in names
