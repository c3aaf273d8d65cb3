"""`install --list` and `doctor`: what is configured, whether it can work, and whether it does."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from mcp_skills_server.commands.install import doctor, install
from mcp_skills_server.hosts.table import HOSTS, Platform, location
from wire import write_skill


@pytest.fixture
def platform(tmp_path: Path) -> Platform:
    return Platform.of("linux", tmp_path / "home", tmp_path / "project", {})


@pytest.fixture
def skills(tmp_path: Path) -> Path:
    write_skill(tmp_path / "skills" / "one")
    return write_skill(tmp_path / "skills" / "two").parent


def run(command: object, platform: Platform, *words: str | Path) -> Result:
    return CliRunner().invoke(command, [str(each) for each in words], obj=platform, standalone_mode=False)  # type: ignore[arg-type]


def rows(platform: Platform) -> dict[str, list[str]]:
    lines = run(install, platform, "--list").stdout.splitlines()[1:]
    return {line.split()[0]: line.split(None, 3)[1:] for line in lines}


def test_the_list_has_every_host_and_what_is_stale(platform: Platform, skills: Path) -> None:
    assert rows(platform).keys() == HOSTS.keys()
    assert all(state[:2] == ["no", "-"] for state in rows(platform).values())
    for host in ("cursor", "codex", "opencode"):
        run(install, platform, host, skills)
    found = rows(platform)
    assert all(found[host][:2] == ["yes", "skills"] and "configured" in found[host][2] for host in ("cursor", "codex"))
    shutil.rmtree(skills)
    assert f"stale: {skills} is gone" in rows(platform)["opencode"][2]


def test_an_entry_is_started_and_its_skills_are_counted(platform: Platform, skills: Path) -> None:
    for host in ("cursor", "codex", "opencode"):
        run(install, platform, host, skills)
    run(install, platform, "vscode", skills, "--project", "--exclude", "two")
    done = run(doctor, platform)
    assert done.return_value == 0, done.stdout
    assert done.stdout.count("works: 2 skills") == 3 and done.stdout.count("works: 1 skill,") == 1


def test_what_does_not_work_says_why(platform: Platform, skills: Path, tmp_path: Path) -> None:
    run(install, platform, "cursor", skills)
    path = location(HOSTS["cursor"], platform)
    whole = json.loads(path.read_text(encoding="utf-8"))
    entry = whole["mcpServers"]["skills"]
    for change, reason in (
        ({"args": [*entry["args"], "--no-such-option"]}, "No such option"),
        ({"command": str(tmp_path / "mcp-skills-server")}, "stale: "),
        ({"env": {"MCP_SKILLS_DIALECT": "nonsense"}}, "MCP_SKILLS_DIALECT"),
    ):
        whole["mcpServers"]["skills"] = {**entry, **change}
        path.write_text(json.dumps(whole), encoding="utf-8")
        done = run(doctor, platform, "cursor")
        assert done.return_value == 1 and reason in done.stdout and done.stdout.count("\n") == 1, done.stdout


def test_a_server_that_never_answers_is_given_up(platform: Platform, tmp_path: Path) -> None:
    silent = tmp_path / "mcp-skills-server"
    silent.write_text(f"#!{sys.executable}\nimport sys\nsys.stderr.write('waiting\\n')\nsys.stdin.read()\n")
    silent.chmod(0o755)
    run(install, platform, "cursor", tmp_path, "--command", silent)
    done = run(doctor, platform, "cursor", "--timeout", "0.5")
    assert done.return_value == 1 and "did not answer within 0.5 s; it said: waiting" in done.stdout


def test_a_broken_file_and_no_entry_are_said(platform: Platform) -> None:
    assert run(doctor, platform).return_value == 0
    assert run(doctor, platform, "zed").return_value == 1
    path = location(HOSTS["zed"], platform)
    path.parent.mkdir(parents=True)
    path.write_text("{", encoding="utf-8")
    done = run(doctor, platform)
    assert done.return_value == 1 and str(path) in done.stdout
    assert "zed/settings.json" in " ".join(rows(platform)["zed"])
