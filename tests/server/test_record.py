"""`make record`: what is kept of what clients say, and what is not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tools.record import MOST_ALIKE, Said, distinct, rows, sessions, shape, thinned

from wire import DEADLINE, ROOT

MODERN = "2026-07-28"


def message(number: int, method: str = "skills/list", **params: object) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}).encode()


def test_of_requests_with_one_shape_a_few_are_kept() -> None:
    lines = [message(number, "skills/get", uri=f"skill://{number}") for number in range(9)]
    assert thinned([*lines, b"garbage", message(9)]) == [
        *map(bytes.decode, lines[:MOST_ALIKE]),
        "garbage",
        message(9).decode(),
    ]
    call = {"method": "tools/call", "params": {"name": "x", "arguments": {"a": 1}}}
    assert shape(call) != shape({**call, "params": {"name": "x", "arguments": {"b": 1}}})
    assert shape(call) != shape({**call, "params": {"name": "y", "arguments": {"a": 1}}})


def test_legacy_sessions_over_http_are_conversations_and_modern_requests_are_one() -> None:
    first, second, alone = message(1, "initialize"), message(2), message(3)
    said = [Said("", first), Said("2025-11-25", second), Said(MODERN, alone)]
    assert list(sessions([*said, *said[:1], *said[2:]])) == [[first, second], [first], [alone, alone]]
    assert list(rows("x", [[alone]], said)) == [
        {"by": "x", "lines": [alone.decode()]},
        {"by": "x", "lines": [first.decode(), second.decode()]},
        {"by": "x", "lines": [alone.decode()]},
    ]


def test_no_row_stands_twice_and_none_names_an_address_or_a_path_or_a_session() -> None:
    kept = {"by": "x", "lines": ["{}"]}
    others = [{"by": "x", "lines": [line]} for line in ("http://127.0.0.1:5/mcp", "/tmp/x", "file:///x")]
    handle = {"by": "x", "lines": [json.dumps({"session": "a" * 24})]}
    assert distinct([kept, {**kept, "by": "y"}, *others]) == [kept]
    assert distinct([handle]) == [{"by": "x", "lines": ['{"session": "HANDLE-OF-24-CHARACTERS-"}']}]


def test_a_tee_passes_everything_on_and_ends_as_its_server_does(tmp_path: Path) -> None:
    server = "import sys; sys.stdout.write(sys.stdin.read().upper()); sys.exit(3)"
    command = [sys.executable, str(ROOT / "tools" / "record.py"), "--tee", str(tmp_path), sys.executable, "-c", server]
    done = subprocess.run(command, input=b"a\nhalf", capture_output=True, timeout=DEADLINE, check=False, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (3, b"A\nHALF")
    (file,) = tmp_path.iterdir()
    assert file.read_bytes() == b"a\nhalf"
