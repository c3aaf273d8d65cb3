"""Table of hosts: the location of each configuration file on each system."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from mcp_skills_server.cli import cli
from mcp_skills_server.errors import UsageError
from mcp_skills_server.hosts.table import HOSTS, Platform, location
from tables import each_row
from wire import ROOT

FILES = {
    "claude-code": (".claude.json", ".mcp.json"),
    "cursor": (".cursor/mcp.json", ".cursor/mcp.json"),
    "windsurf": (".codeium/windsurf/mcp_config.json", None),
    "gemini-cli": (".gemini/settings.json", ".gemini/settings.json"),
    "codex": (".codex/config.toml", ".codex/config.toml"),
    "opencode": (".config/opencode/opencode.json", "opencode.json"),
    "antigravity": (".gemini/config/mcp_config.json", None),
    "qwen-code": (".qwen/settings.json", ".qwen/settings.json"),
    "copilot-cli": (".copilot/mcp-config.json", None),
    "cline": (".cline/data/settings/cline_mcp_settings.json", None),
    "kiro": (".kiro/settings/mcp.json", ".kiro/settings/mcp.json"),
    "lm-studio": (".lmstudio/mcp.json", None),
    "crush": (".config/crush/crush.json", "crush.json"),
    "zed": (".config/zed/settings.json", ".zed/settings.json"),
}
"""The user's file, which is the same on each system, and the project's."""
APPLICATIONS = {"linux": ".config", "darwin": "Library/Application Support", "win32": "AppData/Roaming"}


@each_row("system", APPLICATIONS)
def test_user_and_project_files_are_located_on_each_system(tmp_path: Path, system: str) -> None:
    platform = Platform.for_system(system, tmp_path, tmp_path / "project", {})
    desktop = {"claude-desktop": "Claude/claude_desktop_config.json", "vscode": "Code/User/mcp.json"}
    users = {host: f"{APPLICATIONS[system]}/{file}" for host, file in desktop.items()}
    users |= {host: user for host, (user, _) in FILES.items()}
    assert {host: location(row, platform) for host, row in HOSTS.items()} == {
        host: tmp_path / file for host, file in users.items()
    }
    projects = {host: file for host, (_, file) in FILES.items()}
    projects |= {"claude-desktop": None, "vscode": ".vscode/mcp.json"}
    for host, file in projects.items():
        if file is not None:
            assert location(HOSTS[host], platform, project=True) == tmp_path / "project" / file
            continue
        with pytest.raises(UsageError, match="--project"):
            location(HOSTS[host], platform, project=True)


@each_row(("system", "host", "environment", "expected"), [
    ("win32", "vscode", {"APPDATA": "/roaming"}, "/roaming/Code/User/mcp.json"),
    ("linux", "vscode", {"XDG_CONFIG_HOME": "/x"}, "/x/Code/User/mcp.json"),
    ("darwin", "vscode", {"XDG_CONFIG_HOME": "/x"}, "Library/Application Support/Code/User/mcp.json"),
    ("darwin", "opencode", {"XDG_CONFIG_HOME": "/x"}, "/x/opencode/opencode.json"),
    ("linux", "codex", {"CODEX_HOME": "/c"}, "/c/config.toml"),
    ("linux", "claude-code", {"CLAUDE_CONFIG_DIR": "/d"}, "/d/.claude.json"),
    ("linux", "codex", {"CODEX_HOME": ""}, ".codex/config.toml"),
])  # fmt: skip
def test_environment_variables_move_folders(
    tmp_path: Path, system: str, host: str, environment: dict[str, str], expected: str
) -> None:
    assert location(HOSTS[host], Platform.for_system(system, tmp_path, tmp_path, environment)) == tmp_path / expected


def test_claude_desktop_file_of_a_packaged_application_is_found(tmp_path: Path) -> None:
    platform = Platform.for_system("win32", tmp_path, tmp_path, {"LOCALAPPDATA": str(tmp_path / "local")})
    row = HOSTS["claude-desktop"]
    inside = "LocalCache/Roaming/Claude/claude_desktop_config.json"
    first, second = (tmp_path / "local" / "Packages" / name for name in ("Claude_abc", "Claude_xyz"))
    first.mkdir(parents=True)
    assert location(row, platform) == first / inside
    second.mkdir()
    with pytest.raises(UsageError, match="--config"):
        location(row, platform)
    (second / inside).parent.mkdir(parents=True)
    (second / inside).touch()
    assert location(row, platform) == second / inside


def test_install_help_lists_every_host() -> None:
    text = CliRunner().invoke(cli, ["install", "--help"]).output
    assert " ".join(text.split()).endswith(f"Hosts: {', '.join(HOSTS)}.")


def test_native_page_lists_the_folders_that_each_host_reads() -> None:
    page = (Path(__file__).parents[2] / "docs/native.md").read_text(encoding="utf-8")
    for name, host in HOSTS.items():
        row = f"| `{name}` | " + ", ".join(f"`{each}`" for each in host.native) + " |"
        assert (row in page) is bool(host.native), name


def test_page_names_the_hosts_whose_files_may_have_comments() -> None:
    page = (Path(__file__).parents[2] / "docs/hosts.md").read_text(encoding="utf-8")
    named = page.split("Comments are allowed")[1].split(".\n")[0]
    assert re.findall("`([a-z-]+)`", named) == [name for name, row in HOSTS.items() if row.form != "json"]


def test_documentation_has_the_figures_of_each_host() -> None:
    text = (ROOT / "docs" / "hosts.md").read_text(encoding="utf-8")
    _, _, section = text.partition("### What hosts cut\n")
    rows = dict(re.findall(r"^\| `([\w-]+)` \| (.*) \|$", section.partition("###")[0], re.MULTILINE))
    expected: dict[str, str] = {}
    for key, host in HOSTS.items():
        figures = [value if basis == "measured" else f"{value} (assumed)" for _, value, basis in host.context.figures()]
        expected[key] = " | ".join([host.context.version or "-", *figures])
    assert rows == expected and len(rows) == 16


def test_figures_without_a_measured_version_are_assumed() -> None:
    for host in HOSTS.values():
        assert bool(host.context.version) == bool(host.context.measured)
