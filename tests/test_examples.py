"""The programs of examples/ do what their documentation says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

import forkserver
from mcp_skills_server import Registry, Runtime, ScriptSettings
from wire import DEADLINE, ROOT

LOOP = ROOT / "examples" / "agent_loop.py"


def loop() -> Any:
    spec = spec_from_file_location("agent_loop", LOOP)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules["agent_loop"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.anyio
@pytest.mark.requirement("RT-4", "RT-5", "RT-6", "RT-7", "RT-21", "RT-23")
async def test_agent_loop_follows_linear_flow(sandbox_mode: Any) -> None:
    """History is append-only; loaded skills are only at the top of the next call."""
    example = loop()
    model = example.ScriptedModel(iter(example.MOVES))
    registry = Registry([example.HERE / "skills", example.HERE / "more-skills"])
    async with Runtime(registry, scripts=ScriptSettings(timeout_s=20, sandbox=sandbox_mode)) as runtime:
        messages = await example.converse(runtime, model, "How many words?")
    assert [message["role"] for message in messages] == ["user", *["assistant", "tool"] * 5, "assistant"]
    results = [message["result"] for message in messages if message["role"] == "tool"]
    assert not any(result.get("isError") for result in results)
    assert results[3]["structuredContent"]["stdout"] == "3\n"
    assert all("MUST call skills_load" in seen and "<available_skills>" in seen for seen in model.seen)
    shown = [re.findall(r'<skill name="([^"]+)">', seen) for seen in model.seen]
    assert shown == [[], [], *[["count-words"]] * 3, ["summarise-ticket"]]
    assert not any("session" in tool["inputSchema"]["properties"] for tool in runtime.session().tools())


def test_agent_loop_runs_as_documented(sandbox_mode: str) -> None:
    options = {"off": ["--no-sandbox"], "required": []}[sandbox_mode]
    command = [sys.executable, str(LOOP), *options]
    done = forkserver.run(command, capture_output=True, text=True, check=True, timeout=DEADLINE)
    assert "Three words." in done.stdout and not done.stderr


def test_team_walk_runs_as_documented(tmp_path: Path) -> None:
    environment = {**os.environ, "SERVER": f"{sys.executable} -m mcp_skills_server", "TMPDIR": str(tmp_path)}
    words = ["sh", str(ROOT / "examples" / "team" / "walk.sh")]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=6 * DEADLINE, env=environment)
    assert done.returncode == 0, done.stderr
    out = done.stdout
    assert out.count("it started") == 2
    assert "  changed  refund-policy" in out
    assert '-> "Decides whether a customer gets a refund, and writes the answer. Use for everything."' in out
    assert "script changed: scripts/amount.py" in out
    assert out.endswith("changed  refund-policy\nnothing is new\n")
    assert not os.listdir(tmp_path)


def test_database_source_runs_as_documented(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "examples" / "database_source.py"), str(tmp_path / "skills.db")]
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    done = forkserver.run(command, capture_output=True, text=True, check=True, timeout=DEADLINE, env=environment)
    assert done.stdout == "tea: Makes tea. Use when somebody wants tea.\n" and not done.stderr
