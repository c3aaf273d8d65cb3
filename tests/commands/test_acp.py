"""`acp` as an editor's settings start it: how its words are read, and which server it adds."""

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
from mcp_skills_server.dialects import acp
from tables import each_row
from wire import COMMAND, DEADLINE, ROOT, write_skill

ECHO = [sys.executable, "-c", "import sys; sys.stdout.write(sys.stdin.read())"]
SETUP = b'{"jsonrpc":"2.0","id":1,"method":"session/new","params":{"cwd":"/","mcpServers":[]}}\n'


def run(*words: str | Path, **how: Any) -> subprocess.CompletedProcess[bytes]:
    command = [*COMMAND, "acp", *map(str, words)]
    return forkserver.run(command, capture_output=True, timeout=DEADLINE, check=False, **how)


def added(*words: str | Path, **how: Any) -> list[dict[str, Any]]:
    """The servers of a session that is set up."""
    done = run(*words, "--", *ECHO, input=SETUP, **how)
    assert (done.returncode, done.stderr) == (0, b""), done
    return json.loads(done.stdout)["params"]["mcpServers"]


def test_what_stands_behind_the_dashes_is_the_agent_s(tmp_path: Path) -> None:
    words = ["-c", "import sys; print(sys.argv[1:])", "--max-files", "x", "--", "--help"]
    done = run(tmp_path, "--", sys.executable, *words, input=b"")
    assert done.stdout.decode().strip() == "['--max-files', 'x', '--', '--help']"


@each_row("words", [["x"], ["x", "--"], []])
def test_without_an_agent_it_says_how_to_name_one(words: list[str]) -> None:
    done = run(*words)
    assert (done.returncode, done.stdout) == (2, b"") and done.stderr.count(b"\n") == 1 and b"behind --" in done.stderr


def test_the_server_that_is_added_serves_the_same_roots_with_the_same_options(tmp_path: Path) -> None:
    write_skill(tmp_path / "one")
    words = ["--max-files", "9", "--allow-scripts", "--no-watch", "--interpreter", ".x=/y", "--script-folder", "f"]
    (server,) = added("one", *words, cwd=tmp_path, env={**os.environ, "MCP_SKILLS_MAX_DEPTH": "3"})
    assert server["name"] == "skills" and server["command"] == os.path.abspath(sys.executable) and server["env"] == []
    head, given = server["args"][:4], server["args"][4:]
    assert head == ["-P", "-m", "mcp_skills_server", "serve"] and given[-2:] == ["--", str(tmp_path / "one")]
    wanted = {"--max-files": "9", "--max-depth": "3", "--interpreter": ".x=/y", "--script-folder": f"{tmp_path}/f"}
    assert {each: given[given.index(each) + 1] for each in wanted} == wanted
    assert sorted(given[:-2]) == sorted([*wanted, *wanted.values(), "--allow-scripts", "--no-watch"])


def test_only_what_was_given_is_handed_on(tmp_path: Path) -> None:
    (server,) = added("--grace", "9", "--log-level", "error", env={**os.environ, "MCP_SKILLS_ROOTS": str(tmp_path)})
    assert server["args"][4:] == ["--log-level", "error", "--", str(tmp_path)]


def test_a_configuration_is_handed_on_and_the_server_is_reached_over_stdio_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text("roots = ['skills']\ntransport = 'http'\nmax-files = 9\n")
    write_skill(tmp_path / "skills" / "one")
    (server,) = added("--config", "c.toml", "--max-depth", "3", cwd=tmp_path)
    given = ["--max-depth", "3", "--config", f"{tmp_path}/c.toml", "--transport", "stdio", "--", f"{tmp_path}/skills"]
    assert server["args"][4:] == given


def test_no_server_is_added_where_none_is_wanted_or_there_are_no_roots(tmp_path: Path) -> None:
    assert added(tmp_path, "--no-server") == [] and added() == []


@pytest.mark.requirement("X-34")
@pytest.mark.parametrize("watch", ["--watch", "--no-watch"])
def test_skills_are_told_with_a_watch_and_without(tmp_path: Path, watch: str) -> None:
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
    read = lines[1]["params"]["update"]["_meta"][acp.DETAILS]
    assert [each["name"] for each in read] == ["one"]


@pytest.mark.requirement("ACP-12")
def test_the_guide_links_to_the_specification_and_names_what_there_is() -> None:
    guide = (ROOT / "docs" / "acp.md").read_text(encoding="utf-8")
    assert "https://agentskills.io/specification" in guide
    seen = run("--help").stdout.decode()
    assert all(option in seen for option in re.findall(r"^\| `(--[a-z-]+)", guide, re.MULTILINE))
    announced = f'clientCapabilities._meta["{acp.META_KEY}"]'
    assert all(word in guide for word in (announced, acp.NESTED, acp.NOTIFICATION, acp.EXTENSION_METHOD, acp.DETAILS))
    examples = [json.loads(each) for each in re.findall(r"```json\n(.*?)```", guide, re.DOTALL)]
    found = [acp.parse_updates(example) for example in examples]
    details = found[-1][0][2]["_meta"][acp.DETAILS]
    assert details and all(acp.why_invalid(each) is None for each in details)
