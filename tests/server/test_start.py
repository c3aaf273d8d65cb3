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
    for cache in ("new", "known"):
        served = ["mcp_skills_server", "serve", str(FIXTURES), "--cache-dir", str(tmp_path / cache)]
        command = [sys.executable, "-X", "importtime", "-m", *served]
        done = subprocess.run(command, input=said, capture_output=True, timeout=DEADLINE, check=True)
        assert [json.loads(line)["id"] for line in done.stdout.splitlines()] == [1, 2]
        imported = r"^import time:.*\|\s+(?:mcp_skills_server\.)?([\w.]+)"
        names = set(re.findall(imported, done.stderr.decode(), re.MULTILINE))
        assert "asyncio" in names and not {name.split(".")[0] for name in names} & SLOW
        assert cache == "new" or not names & LATE
