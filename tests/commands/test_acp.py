"""`acp`: its command line, and the MCP server that it adds to sessions."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import forkserver
from dialects.build import AVAILABLE_SKILL
from mcp_skills_server.dialects import acp
from tables import each_row
from wire import COMMAND, DEADLINE, ROOT, write_skill

ECHO = [sys.executable, "-c", "import sys; sys.stdout.write(sys.stdin.read())"]
SETUP = b'{"jsonrpc":"2.0","id":1,"method":"session/new","params":{"cwd":"/","mcpServers":[]}}\n'


def run(*words: str | Path, **how: Any) -> subprocess.CompletedProcess[bytes]:
    command = [*COMMAND, "acp", *map(str, words)]
    return forkserver.run(command, capture_output=True, timeout=DEADLINE, check=False, **how)


def servers_of_new_session(*words: str | Path, **how: Any) -> list[dict[str, Any]]:
    """Return the MCP servers that the agent is given for a new session."""
    done = run(*words, "--", *ECHO, input=SETUP, **how)
    assert (done.returncode, done.stderr) == (0, b""), done
    return json.loads(done.stdout)["params"]["mcpServers"]


def test_words_after_the_dashes_are_the_agents_command_line(tmp_path: Path) -> None:
    words = ["-c", "import sys; print(sys.argv[1:])", "--max-files", "x", "--", "--help"]
    done = run(tmp_path, "--", sys.executable, *words, input=b"")
    assert done.stdout.decode().strip() == "['--max-files', 'x', '--', '--help']"


@each_row("words", [["x"], ["x", "--"], []])
def test_missing_agent_is_reported_in_one_line(words: list[str]) -> None:
    done = run(*words)
    assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (2, b"", 1)
    assert b"behind --" in done.stderr


def test_added_server_gets_the_same_roots_and_options(tmp_path: Path) -> None:
    write_skill(tmp_path / "one")
    words = ["--max-files", "9", "--allow-scripts", "--no-watch", "--interpreter", ".x=/y", "--script-folder", "f"]
    (server,) = servers_of_new_session("one", *words, cwd=tmp_path, env={**os.environ, "MCP_SKILLS_MAX_DEPTH": "3"})
    args = server.pop("args")
    assert server == {"name": "skills", "command": os.path.abspath(sys.executable), "env": []}
    assert args[:4] == ["-P", "-m", "mcp_skills_server", "serve"]
    assert args[-2:] == ["--", str(tmp_path / "one")]
    options = args[4:-2]
    expected = {"--max-files": "9", "--max-depth": "3", "--interpreter": ".x=/y", "--script-folder": f"{tmp_path}/f"}
    assert {each: options[options.index(each) + 1] for each in expected} == expected
    assert sorted(options) == sorted([*expected, *expected.values(), "--allow-scripts", "--no-watch"])


def test_added_server_gets_no_defaults(tmp_path: Path) -> None:
    (server,) = servers_of_new_session(
        "--grace", "9", "--log-level", "error", env={**os.environ, "MCP_SKILLS_ROOTS": str(tmp_path)}
    )
    assert server["args"][4:] == ["--log-level", "error", "--", str(tmp_path)]


def test_added_server_gets_the_configuration_with_stdio_transport(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text("roots = ['skills']\ntransport = 'http'\nmax-files = 9\n")
    write_skill(tmp_path / "skills" / "one")
    (server,) = servers_of_new_session("--config", "c.toml", "--max-depth", "3", cwd=tmp_path)
    options = ["--max-depth", "3", "--config", f"{tmp_path}/c.toml", "--transport", "stdio"]
    assert server["args"][4:] == [*options, "--", f"{tmp_path}/skills"]


def test_no_server_is_added_with_no_server_or_without_roots(tmp_path: Path) -> None:
    assert servers_of_new_session(tmp_path, "--no-server") == [] and servers_of_new_session() == []


@pytest.mark.requirement("X-34")
@pytest.mark.parametrize("watch", ["--watch", "--no-watch"])
def test_session_lists_skills_with_and_without_a_watch(tmp_path: Path, watch: str) -> None:
    write_skill(tmp_path / "one")
    agent = """
import json, sys
for line in sys.stdin:
    print(json.dumps({"id": json.loads(line)["id"], "result": {"sessionId": "s"}}), flush=True)
"""
    words = [*COMMAND, "acp", str(tmp_path), watch, "--", sys.executable, "-c", agent]
    with forkserver.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(SETUP)
        process.stdin.flush()
        lines = [json.loads(process.stdout.readline()) for _ in range(2)]
        process.stdin.close()
        assert process.wait(DEADLINE) == 0
    skills = lines[1]["params"]["update"]["_meta"][acp.DETAILS]
    assert [each["name"] for each in skills] == ["one"]


@pytest.mark.requirement("ACP-12")
def test_guide_links_to_the_specification_and_names_options_and_fields() -> None:
    guide = (ROOT / "docs" / "acp.md").read_text(encoding="utf-8")
    assert "https://agentskills.io/specification" in guide
    text = run("--help").stdout.decode()
    assert all(option in text for option in re.findall(r"^\| `(--[a-z-]+)", guide, re.MULTILINE))
    announced = f'clientCapabilities._meta["{acp.META_KEY}"]'
    assert all(word in guide for word in (announced, acp.NESTED, acp.NOTIFICATION, acp.EXTENSION_METHOD, acp.DETAILS))
    examples = [json.loads(each) for each in re.findall(r"```json\n(.*?)```", guide, re.DOTALL)]
    found = [update for update in map(acp.parse_update, examples) if update is not None]
    details = found[-1].fields["_meta"][acp.DETAILS]
    assert details and all(map(AVAILABLE_SKILL.is_valid, details))
