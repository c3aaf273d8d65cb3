"""What the process imports before it answers: hosts start it for every conversation."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from conversations import HANDSHAKE
from mcp_skills_server.catalog.index import Index
from mcp_skills_server.catalog.registry import Registry
from wire import DEADLINE, FIXTURES

SLOW = {
    "mcp", "mcp_types", "pydantic", "starlette", "httpx", "httpx2", "uvicorn", "opentelemetry", "jsonschema",
}  # fmt: skip
"""Not anyio: watchfiles imports it in the thread of the watch, behind the first scan."""
LATE = {
    "filelock", "sqlite3", "tomllib", "yaml",
    *(
        f"mcp_skills_server.{name}"
        for name in (
            "dialects.wellknown", "format.archive", "format.frontmatter",
            "runtime.search_index", "runtime.scripts", "runtime.search", "sources", "validation",
        )
    ),
}  # fmt: skip
"""What a start over folders that an index knows does without: it is loaded when something is read, run or searched."""


def test_a_server_over_stdio_imports_no_sdk() -> None:
    names = {name.split(".")[0] for name in loaded()}
    assert "asyncio" in names and not names & SLOW


def test_a_start_over_known_folders_loads_nothing_that_reads_a_skill(tmp_path: Path) -> None:
    registry = Registry([FIXTURES], index=Index(tmp_path / "index", least=1))
    registry.load()
    registry.keep_index()
    assert loaded("--cache-dir", str(tmp_path)) & LATE <= {"sqlite3"}, "which the index is read with"


def loaded(*options: str) -> set[str]:
    """The modules that a server has loaded by the time it has answered a handshake and listed its skills."""
    requests = [{"id": 1, "method": "initialize", "params": HANDSHAKE}, {"id": 2, "method": "skills/list"}]
    said = b"".join(json.dumps({"jsonrpc": "2.0", **each}).encode() + b"\n" for each in requests)
    command = [sys.executable, "-X", "importtime", "-m", "mcp_skills_server", "serve", str(FIXTURES), *options]
    done = subprocess.run(command, input=said, capture_output=True, timeout=DEADLINE, check=True)
    assert [json.loads(line)["id"] for line in done.stdout.splitlines()] == [1, 2]
    return set(re.findall(r"^import time:.*\|\s+([\w.]+)", done.stderr.decode(), re.MULTILINE))
