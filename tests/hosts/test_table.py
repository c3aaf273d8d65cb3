"""Where each host keeps its file, on each system."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from mcp_skills_server.cli import cli
from mcp_skills_server.errors import UsageError
from mcp_skills_server.hosts import edit, jsontext
from mcp_skills_server.hosts.table import HOSTS, Host, Platform, location
from tables import each_row


@each_row(
    ("system", "host", "wanted"),
    [
        ("linux", "claude-desktop", ".config/Claude/claude_desktop_config.json"),
        ("darwin", "claude-desktop", "Library/Application Support/Claude/claude_desktop_config.json"),
        ("win32", "claude-desktop", "AppData/Roaming/Claude/claude_desktop_config.json"),
        ("linux", "vscode", ".config/Code/User/mcp.json"),
        ("darwin", "vscode", "Library/Application Support/Code/User/mcp.json"),
        ("win32", "vscode", "AppData/Roaming/Code/User/mcp.json"),
        *(
            (system, host, file)
            for system in ("linux", "darwin", "win32")
            for host, file in (
                ("claude-code", ".claude.json"),
                ("cursor", ".cursor/mcp.json"),
                ("windsurf", ".codeium/windsurf/mcp_config.json"),
                ("gemini-cli", ".gemini/settings.json"),
                ("codex", ".codex/config.toml"),
                ("opencode", ".config/opencode/opencode.json"),
                ("antigravity", ".gemini/config/mcp_config.json"),
                ("qwen-code", ".qwen/settings.json"),
                ("copilot-cli", ".copilot/mcp-config.json"),
                ("cline", ".cline/data/settings/cline_mcp_settings.json"),
                ("kiro", ".kiro/settings/mcp.json"),
                ("lm-studio", ".lmstudio/mcp.json"),
                ("crush", ".config/crush/crush.json"),
                ("zed", ".config/zed/settings.json"),
            )
        ),
    ],
)
def test_each_host_has_its_place_on_each_system(tmp_path: Path, system: str, host: str, wanted: str) -> None:
    platform = Platform.of(system, tmp_path, tmp_path / "project", {})
    assert location(HOSTS[host], platform) == tmp_path / wanted


def test_the_environment_moves_folders(tmp_path: Path) -> None:
    def at(system: str, host: str, **environment: str) -> Path:
        return location(HOSTS[host], Platform.of(system, tmp_path, tmp_path, environment))

    assert at("win32", "vscode", APPDATA="/roaming") == Path("/roaming/Code/User/mcp.json")
    assert at("linux", "vscode", XDG_CONFIG_HOME="/x") == Path("/x/Code/User/mcp.json")
    assert at("darwin", "vscode", XDG_CONFIG_HOME="/x") == tmp_path / "Library/Application Support/Code/User/mcp.json"
    assert at("darwin", "opencode", XDG_CONFIG_HOME="/x") == Path("/x/opencode/opencode.json")
    assert at("linux", "codex", CODEX_HOME="/c") == Path("/c/config.toml")
    assert at("linux", "claude-code", CLAUDE_CONFIG_DIR="/d") == Path("/d/.claude.json")
    assert at("linux", "codex", CODEX_HOME="") == tmp_path / ".codex/config.toml"


def test_claude_desktop_as_a_packaged_application(tmp_path: Path) -> None:
    platform = Platform.of("win32", tmp_path, tmp_path, {"LOCALAPPDATA": str(tmp_path / "local")})
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


def test_a_new_host_is_one_row(tmp_path: Path) -> None:
    row = Host("Other", user=("home/.other/mcp.json",), form="jsonc", section="servers")
    assert location(row, Platform.of("linux", tmp_path, tmp_path, {})) == tmp_path / ".other" / "mcp.json"
    command = ["/bin/mcp-skills-server"]
    raw = edit.install(
        b'{\n  "theme": "dark", // mine\n}\n', row, "skills", edit.entry_for(row, command, ["/s"]), command
    )
    assert b'"theme": "dark", // mine\n' in raw
    entry = {"command": "/bin/mcp-skills-server", "args": ["serve", "/s"]}
    assert jsontext.read(raw.decode(), "jsonc")["servers"] == {"skills": entry}
    assert edit.uninstall(raw, row, "skills", command) is not None


def test_every_row_is_offered_by_install() -> None:
    text = CliRunner().invoke(cli, ["install", "--help"]).output
    assert " ".join(text.split()).endswith(f"Hosts: {', '.join(HOSTS)}.")


def test_the_page_names_the_folders_that_each_host_reads_by_itself() -> None:
    page = (Path(__file__).parents[2] / "docs/native.md").read_text(encoding="utf-8")
    for name, host in HOSTS.items():
        row = f"| `{name}` | " + ", ".join(f"`{each}`" for each in host.native) + " |"
        assert (row in page) is bool(host.native), name
