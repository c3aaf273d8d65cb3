"""What the process imports before it answers: our front is there so that it is little."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from conversations import HANDSHAKE
from wire import DEADLINE, FIXTURES

SLOW = {"mcp", "mcp_types", "pydantic", "starlette", "httpx", "httpx2", "uvicorn", "opentelemetry", "jsonschema"}


@pytest.mark.parametrize(("front", "imported"), [("lean", set[str]()), ("sdk", {"mcp", "mcp_types", "pydantic"})])
def test_our_front_imports_no_sdk(front: str, imported: set[str]) -> None:
    requests = [{"id": 1, "method": "initialize", "params": HANDSHAKE}, {"id": 2, "method": "skills/list"}]
    said = b"".join(json.dumps({"jsonrpc": "2.0", **each}).encode() + b"\n" for each in requests)
    command = [sys.executable, "-X", "importtime", "-m", "mcp_skills_server", "serve", str(FIXTURES), "--front", front]
    done = subprocess.run(command, input=said, capture_output=True, timeout=DEADLINE, check=True)
    assert [json.loads(line)["id"] for line in done.stdout.splitlines()] == [1, 2]
    names = set(re.findall(r"^import time:.*\|\s+(\w+)", done.stderr.decode(), re.MULTILINE))
    assert "asyncio" in names and names & SLOW >= imported
    assert imported or not names & SLOW
