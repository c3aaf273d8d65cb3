"""`install`, `install --list` and `doctor`: a host's file gains our entry and keeps the rest, and the entry works."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from mcp_skills_server.commands.install import doctor, install
from mcp_skills_server.errors import UsageError
from mcp_skills_server.hosts import edit, jsontext
from mcp_skills_server.hosts.table import HOSTS, Platform, location
from tables import each_row
from wire import DEADLINE, FIXTURES, Wire, write_skill

# What the hosts themselves write, or show in their documentation. Many have the form of Claude Desktop.
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
VSCODE = """// Servers of everybody
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


def machine(folder: Path) -> Platform:
    """A machine of its own below this folder."""
    return Platform.of("linux", folder / "home", folder / "project", {})


@pytest.fixture
def platform(tmp_path: Path) -> Platform:
    return machine(tmp_path)


@pytest.fixture
def skills(tmp_path: Path) -> Path:
    """A root whose path is awkward."""
    root = tmp_path / "my skïlls"
    root.mkdir()
    return root


def run(platform: Platform, *arguments: str | Path) -> Result:
    done = CliRunner().invoke(install, [str(each) for each in arguments], obj=platform)
    if done.exception is not None and not isinstance(done.exception, UsageError | SystemExit):
        raise done.exception
    return done


def told(platform: Platform, *arguments: str | Path) -> str:
    """What stands on stderr after a run that went well and printed nothing else."""
    done = run(platform, *arguments)
    assert (done.exit_code, done.stdout) == (0, ""), done.exception
    assert all(line.startswith("mcp-skills-server: ") for line in done.stderr.splitlines())
    return done.stderr


def refused(platform: Platform, *arguments: str | Path) -> str:
    """The one line that the command line prints before it exits with 2."""
    done = run(platform, *arguments)
    assert isinstance(done.exception, UsageError) and done.stdout == done.stderr == ""
    assert len(str(done.exception).splitlines()) == 1
    return str(done.exception)


def placed(platform: Platform, host: str, content: str | bytes | None = None) -> Path:
    """A host's file, with this content or the host's sample."""
    path = location(HOSTS[host], platform)
    path.parent.mkdir(parents=True, exist_ok=True)
    content = SAMPLES[host] if content is None else content
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def parsed(host: str, path: Path) -> dict[str, Any]:
    text = path.read_text(encoding="utf-8-sig")
    return tomllib.loads(text) if HOSTS[host].form == "toml" else jsontext.read(text, HOSTS[host].form)


def entry(host: str, path: Path, name: str = "skills") -> dict[str, Any]:
    return parsed(host, path)[HOSTS[host].section][name]


def words(host: str, path: Path, name: str = "skills") -> list[str]:
    """What an entry starts."""
    said = entry(host, path, name)
    return said["command"] if host == "opencode" else [said["command"], *said["args"]]


def beside(path: Path) -> list[str]:
    return sorted(each.name for each in path.parent.iterdir() if each.is_file())


@each_row("more", [[], ["--project"]])
def test_opencode_has_one_of_two_files(tmp_path: Path, skills: Path, more: list[str]) -> None:
    path = location(HOSTS["opencode"], machine(tmp_path), project=bool(more)).with_suffix(".jsonc")
    path.parent.mkdir(parents=True)
    path.write_text("{\n  // mine\n}\n", encoding="utf-8")
    told(machine(tmp_path), "opencode", skills, *more)
    assert words("opencode", path)[-1] == str(skills) and beside(path) == ["opencode.jsonc", "opencode.jsonc.bak"]


def test_a_file_can_be_named(platform: Platform, skills: Path, tmp_path: Path) -> None:
    told(platform, "cursor", skills, "--config", tmp_path / "deep" / "er" / "my mcp.json")
    assert entry("cursor", tmp_path / "deep" / "er" / "my mcp.json")
    assert not platform.home.exists()


@EVERY_HOST
def test_a_new_file_has_one_entry(platform: Platform, skills: Path, host: str) -> None:
    path, words = location(HOSTS[host], platform), [sys.executable, "serve", str(skills)]
    assert "restart" in told(platform, host, skills, "--command", sys.executable)
    wanted: dict[str, object] = {"command": words[0], "args": words[1:]}
    if HOSTS[host].shape == "stdio":
        wanted |= {"type": "stdio"}
    if host == "copilot-cli":
        wanted |= {"tools": ["*"]}
    elif host == "opencode":
        wanted = {"type": "local", "command": words, "enabled": True}
    assert parsed(host, path) == {HOSTS[host].section: {"skills": wanted}} and beside(path) == [path.name]
    raw = path.read_bytes()
    assert str(skills).encode() in raw and raw.endswith(b"\n") and not raw.endswith(b"\n\n")


SHAPES: dict[str, Callable[[bytes], bytes]] = {
    "as it is": lambda raw: raw, "crlf": lambda raw: raw.replace(b"\n", b"\r\n"),
    "bom": lambda raw: b"\xef\xbb\xbf" + raw, "no newline": lambda raw: raw.rstrip(b"\n"),
    "newlines": lambda raw: raw.rstrip(b"\n") + b"\n\n\n",
}  # fmt: skip


@EVERY_HOST
@each_row("shape", SHAPES)
def test_everything_else_and_the_shape_of_the_file_stay(
    platform: Platform, skills: Path, host: str, shape: str
) -> None:
    content = SHAPES[shape](SAMPLES[host].encode())
    path = placed(platform, host, content)
    for each in path.parent.glob("*.bak*"):
        each.unlink()
    assert "nothing to remove" in told(platform, host, "--uninstall") and beside(path) == [path.name]
    before = parsed(host, path)
    told(platform, host, skills)
    after, raw = parsed(host, path), path.read_bytes()
    assert words(host, path)[-1] == str(skills)
    del after[HOSTS[host].section]["skills"]
    assert after == before
    # Only lines were added; where the last member had no comma, it has one now.
    rest = iter(raw.decode().splitlines())
    for line in content.decode().splitlines():
        assert any(line in {each, each.replace(",", "", 1)} or line.split(" //")[0] in each for each in rest), line
    assert (raw.count(b"\n") == raw.count(b"\r\n")) == (shape == "crlf")
    assert raw.startswith(b"\xef\xbb\xbf") == (shape == "bom")
    assert raw.endswith(b"\n") == content.endswith(b"\n")
    status, files = path.stat(), [path.name, path.name + ".bak"]
    assert "nothing was changed" in told(platform, host, skills) and beside(path) == files
    assert (status.st_mtime_ns, status.st_ino) == (path.stat().st_mtime_ns, path.stat().st_ino)
    told(platform, host, "--uninstall")
    assert path.read_bytes() == content


@EVERY_HOST
def test_an_update_keeps_what_the_user_added(platform: Platform, skills: Path, host: str, tmp_path: Path) -> None:
    path, section, form = placed(platform, host), HOSTS[host].section, HOSTS[host].form
    told(platform, host, skills)
    text = path.read_text(encoding="utf-8")
    added: dict[str, object] = {"env": {"MCP_SKILLS_WATCH": "false"}, "disabled": False}
    if host == "opencode":
        # The switch that a new entry sets is the user's own from then on.
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
    told(platform, host, skills, tmp_path / "more")
    assert words(host, path)[-2:] == [str(skills), str(tmp_path / "more")]
    assert entry(host, path).items() >= added.items()
    rest = iter(path.read_text(encoding="utf-8").splitlines())
    assert all(any(line == each for each in rest) for line in text.splitlines() if str(skills) not in line)
    assert "nothing was changed" in told(platform, host, skills, tmp_path / "more")
    told(platform, host, "--uninstall")
    assert "skills" not in parsed(host, path).get(section, {})


@each_row("host", ["codex", "cursor"])
def test_several_servers_by_name(platform: Platform, skills: Path, host: str) -> None:
    for name in ("skills", "team_skills-2"):
        told(platform, host, skills, "--name", name)
    told(platform, host, "--uninstall")
    assert list(parsed(host, location(HOSTS[host], platform))[HOSTS[host].section]) == ["team_skills-2"]


def test_the_roots_become_absolute(platform: Platform, skills: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(skills.parent)
    site = "https://skills.example"
    told(platform, "cursor", skills.name, ".", site)
    assert entry("cursor", location(HOSTS["cursor"], platform))["args"][-3:] == [str(skills), str(skills.parent), site]


@each_row(("host", "folder", "twice"), [
    ("claude-code", "home/.claude/skills", True), ("claude-code", "home/.claude/skills/pdf", True),
    ("claude-code", "project/.claude/skills", True), ("claude-code", "home/.agents/skills", False),
    ("claude-code", "home/.claude/skills-of-mine", False), ("opencode", "home/.config/opencode/skills", True),
    ("claude-desktop", "home/.claude/skills", False),
])  # fmt: skip
def test_a_folder_that_the_host_reads_by_itself(tmp_path: Path, host: str, folder: str, twice: bool) -> None:
    platform = machine(tmp_path)
    (tmp_path / folder).mkdir(parents=True)
    for more in ([], ["--dry-run"]):
        done = run(platform, host, tmp_path / folder, *more)
        assert done.exit_code == 0 and ("will have them twice" in done.stderr) is twice
    assert "twice" not in told(platform, host, tmp_path / folder, "--uninstall")


def test_a_folder_that_the_host_reaches_by_a_link(platform: Platform, tmp_path: Path) -> None:
    shared, native = tmp_path / "dotfiles/skills", platform.home / ".claude/skills"
    (shared / "pdf").mkdir(parents=True)
    native.mkdir(parents=True)
    assert "twice" not in told(platform, "claude-code", shared)
    (native / "pdf").symlink_to(shared / "pdf")
    assert "Claude Code reads skills of this folder by itself" in told(platform, "claude-code", shared)
    (native / "pdf").unlink()
    native.rmdir()
    native.symlink_to(shared)
    assert "twice" in told(platform, "claude-code", shared)


def test_what_was_written_starts_the_server(platform: Platform, tmp_path: Path) -> None:
    root = tmp_path / "my skïlls"
    root.symlink_to(FIXTURES)
    for host in HOSTS:
        told(platform, host, root)
    (started,) = {tuple(words(host, location(HOSTS[host], platform))) for host in HOSTS}
    wire = Wire([*started])
    try:
        wire.open()
        assert len(wire.request("skills/list", {})["skills"]) > 10
    finally:
        wire.kill()


def test_the_command(platform: Platform, skills: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def command(*arguments: str | Path) -> list[str]:
        told(platform, "cursor", skills, *arguments)
        said = entry("cursor", location(HOSTS["cursor"], platform))
        return [said["command"], *said["args"][:-1]]

    program = tmp_path / "bin" / "mcp-skills-server"
    program.parent.mkdir()
    program.touch(mode=0o755)
    assert command() == [os.path.abspath(sys.executable), "-m", "mcp_skills_server", "serve"]
    monkeypatch.setattr(sys, "argv", [str(program), "install"])
    assert command() == [str(program), "serve"]
    monkeypatch.setenv("PATH", str(program.parent))
    monkeypatch.setattr(sys, "argv", ["mcp-skills-server", "install"])
    assert command() == [str(program), "serve"]
    assert command("--command", "mcp-skills-server") == ["mcp-skills-server", "serve"]
    monkeypatch.chdir(tmp_path)
    assert command("--command", "bin/mcp-skills-server") == [str(program), "serve"]
    assert "no such file" in refused(platform, "cursor", skills, "--command", "bin/nothing")


@each_row(("host", "name", "said"), [
    ("vscode", "${HOME}", "'$'"), ("vscode", "a$b", None), ("gemini-cli", "a$b", "'$'"), ("codex", "${HOME}", None),
    ("opencode", "{file:x}", "'{'"),
])  # fmt: skip
def test_a_host_that_replaces_variables_is_told_of(tmp_path: Path, host: str, name: str, said: str | None) -> None:
    (tmp_path / name).mkdir()
    warned = told(machine(tmp_path), host, tmp_path / name)
    assert said in warned if said else "may replace" not in warned


def test_trust_is_a_switch_of_its_own(platform: Platform, skills: Path) -> None:
    path = placed(platform, "gemini-cli")
    told(platform, "gemini-cli", skills)
    assert "trust" not in entry("gemini-cli", path)
    for more in (["--trust"], []):
        told(platform, "gemini-cli", skills, *more)
        assert entry("gemini-cli", path)["trust"] is True
    told(platform, "gemini-cli", "--uninstall")
    assert path.read_text(encoding="utf-8") == GEMINI
    said = refused(platform, "cursor", skills, "--trust")
    assert "Cursor" in said and "docs/hosts.md" in said


@EVERY_HOST
def test_print_shows_the_section_and_writes_nothing(platform: Platform, skills: Path, host: str) -> None:
    done = run(platform, host, skills, "--print", "--name", "mine")
    assert done.exit_code == 0 and str(location(HOSTS[host], platform)) in done.stderr
    said = tomllib.loads(done.stdout) if HOSTS[host].form == "toml" else json.loads(done.stdout)
    mine = said[HOSTS[host].section]["mine"]
    assert mine["command" if host == "opencode" else "args"][-1] == str(skills)
    assert mine.get("enabled") == (True if host == "opencode" else None) and not platform.home.exists()


@pytest.mark.needs_program("patch")
@EVERY_HOST
@each_row("newline", [True, False])
def test_a_dry_run_prints_a_difference_that_applies(tmp_path: Path, skills: Path, host: str, newline: bool) -> None:
    platform = machine(tmp_path)
    path = placed(platform, host, SAMPLES[host].rstrip("\n") + "\n" * newline)
    before = path.read_bytes()
    done = run(platform, host, skills, "--dry-run")
    assert "nothing was written" in done.stderr and path.read_bytes() == before and beside(path) == [path.name]
    told(platform, host, skills)
    after = path.read_bytes()
    path.write_bytes(before)
    subprocess.run(["patch", "--quiet", path], input=done.stdout.encode(), check=True, timeout=DEADLINE)
    assert path.read_bytes() == after
    quiet = run(platform, host, skills, "--dry-run")
    assert quiet.stdout == "" and "nothing was changed" in quiet.stderr


@EVERY_HOST
def test_the_server_of_somebody_else_stays(platform: Platform, skills: Path, host: str) -> None:
    name = next(iter(parsed(host, placed(platform, host))[HOSTS[host].section]))
    for more in (["--uninstall"], []):
        said = refused(platform, host, skills, "--name", name, *more)
        assert "another server" in said and "--name" in said
    assert location(HOSTS[host], platform).read_text(encoding="utf-8") == SAMPLES[host]


@each_row(("host", "content", "words"), [
    ("cursor", '{\n  "mcpServers": {,}\n}', "line 2"), ("claude-code", CODE[:200], "not valid JSON"),
    ("claude-desktop", '{\n// no\n"a": 1}', "line 2"), ("vscode", '{}\n/* "a"', "line 2 is not closed"),
    ("gemini-cli", '{"a": 1,}', "not valid JSON"), ("cursor", '{"a": NaN}', "NaN"),
    ("cursor", "[]", "not a JSON object"), ("vscode", '{"servers": null}', "'servers'"),
    ("cursor", '{"mcpServers": {}, "mcpServers": {}}', "twice"),
    ("cursor", '{"a": ' + "[" * 200_000 + "]" * 200_000 + "}", "deep"),
    ("cursor", '{"a": ' + "1" * 5000 + "}", "not valid JSON"), ("codex", b'\xef\xbb\xbf\na = "\xfc"\n', "line 2"),
    ("cursor", '{"mcpServers": {}}'.encode("utf-16"), "UTF-8"), ("cursor", b" " * ((16 << 20) + 1), "16 MiB"),
    ("codex", "a = " + "[" * 5000, "deep"),
    ("codex", 'model = "x"\nmodel = "y"\n', "not valid TOML"), ("codex", "[[mcp_servers]]\n", "'mcp_servers'"),
    ("codex", 'mcp_servers = { docs = { command = "x" } }\n', "by hand"),
])  # fmt: skip
def test_a_broken_file_is_left_alone(
    platform: Platform, skills: Path, host: str, content: str | bytes, words: str
) -> None:
    path = placed(platform, host, content)
    before = path.read_bytes()
    for more in ([], ["--dry-run"]):
        said = refused(platform, host, skills, *more)
        assert said.startswith(f"{path}: ") and words in said and "; " in said.replace(words, "", 1)  # and what to do
    assert path.read_bytes() == before and beside(path) == [path.name]


@each_row(
    "content",
    [
        '[mcp_servers]\nskills = { command = "mcp-skills-server", args = [] }\n',
        'mcp_servers.skills.command = "mcp-skills-server"\n',
    ],
)
def test_our_entry_in_a_form_that_is_not_edited(platform: Platform, skills: Path, content: str) -> None:
    path = placed(platform, "codex", content)
    for more in ([], ["--uninstall"]):
        assert "by hand" in refused(platform, "codex", skills, *more)
    assert path.read_text(encoding="utf-8") == content


@each_row("content", ["", "\n", "  \n"])
@each_row("host", ["cursor", "gemini-cli", "vscode", "codex"])
def test_an_empty_file_is_one_without_servers(platform: Platform, skills: Path, host: str, content: str) -> None:
    path, section = placed(platform, host, content), HOSTS[host].section
    told(platform, host, skills)
    assert list(parsed(host, path)[section]) == ["skills"]
    told(platform, host, "--uninstall")
    assert not parsed(host, path).get(section)


@each_row("name", ["pipe", "loop", "home", "file/below.json"])
def test_not_a_regular_file(tmp_path: Path, skills: Path, name: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").touch()
    (tmp_path / "home").mkdir()
    said = refused(machine(tmp_path), "cursor", skills, "--config", tmp_path / name)
    assert said.startswith(str(tmp_path / name)) and said.endswith("; name the host's file with --config")


@each_row(("arguments", "words"), [
    (["cursor"], "folders to serve"), (["cursor", "no/such/folder"], "no/such/folder: no such file or folder"),
    (["cursor", __file__], "not a folder"), (["cursor", "/", "--include", os.fsdecode(b"\xff")], "not UTF-8"),
    (["cursor", "/", "--name", "a b"], "--name"), (["cursor", "/", "--print", "--dry-run"], "exclude each other"),
    (["cursor", "--print", "--uninstall"], "exclude each other"),
    (["gemini-cli", "--trust", "--uninstall"], "exclude each other"),
    (["cursor", "/", "--project", "--config", "x"], "exclude each other"),
    (["cursor", "/", "--config", ""], "regular file"), (["cursor", "--url", URL, "ROOT"], "exclude each other"),
    (["cursor", "/", "--command", ""], "no such file"), (["cursor", URL], "this is an MCP endpoint, not a site"),
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
def test_wrong_usage_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert words in refused(machine(tmp_path), *arguments) and not list(tmp_path.iterdir())
    assert "Missing argument 'HOST'" in run(machine(tmp_path)).stderr


def test_backups_are_not_written_over(platform: Platform, skills: Path) -> None:
    path = placed(platform, "cursor")
    told(platform, "cursor", skills)
    installed = path.read_bytes()
    assert "mcp.json.bak.1 beside it" in told(platform, "cursor", "--uninstall")
    assert (path.parent / "mcp.json.bak").read_text(encoding="utf-8") == DESKTOP
    assert (path.parent / "mcp.json.bak.1").read_bytes() == installed
    # What is written over is what the first backup has: that is enough.
    assert "mcp.json.bak beside it" in told(platform, "cursor", skills)
    assert beside(path) == ["mcp.json", "mcp.json.bak", "mcp.json.bak.1"]


@each_row("mode", [None, 0o600, 0o644])
def test_the_mode_stays_and_a_new_file_is_for_whom_the_mask_lets(
    tmp_path: Path, skills: Path, mode: int | None
) -> None:
    platform = machine(tmp_path)
    path = location(HOSTS["claude-code"], platform)
    if mode is not None:
        placed(platform, "claude-code").chmod(mode)
    mask = os.umask(0o077)
    try:
        told(platform, "claude-code", skills)
    finally:
        os.umask(mask)
    assert {stat.S_IMODE(each.stat().st_mode) for each in path.parent.glob(".claude.json*")} == {mode or 0o600}


def test_a_link_is_followed(platform: Platform, skills: Path, tmp_path: Path) -> None:
    path, real = placed(platform, "cursor"), tmp_path / "dotfiles" / "cursor.json"
    real.parent.mkdir()
    path.rename(real)
    path.symlink_to(real)
    told(platform, "cursor", skills)
    assert path.is_symlink() and entry("cursor", real)
    assert beside(real) == ["cursor.json", "cursor.json.bak"] and beside(path) == ["mcp.json"]
    real.unlink()
    told(platform, "cursor", skills)
    assert path.is_symlink() and entry("cursor", real)


@each_row("call", ["replace", "fsync"])
def test_a_failure_in_the_middle_leaves_the_old_file(
    tmp_path: Path, skills: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    path = placed(machine(tmp_path), "codex")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, call, full)
    assert "No space left on device" in refused(machine(tmp_path), "codex", skills)
    assert path.read_text(encoding="utf-8") == CODEX and beside(path) == ["config.toml"]


def test_a_file_that_changes_meanwhile_is_left_alone(
    platform: Platform, skills: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, real = placed(platform, "claude-code"), edit.install

    def slow(*arguments: Any) -> bytes:
        path.write_text('{"numStartups": 185}', encoding="utf-8")
        return real(*arguments)

    monkeypatch.setattr(edit, "install", slow)
    assert "changed while" in refused(platform, "claude-code", skills)
    assert path.read_text(encoding="utf-8") == '{"numStartups": 185}' and beside(path) == [path.name]


@each_row("host", REMOTE)
def test_a_host_reaches_a_server_by_url_in_its_own_shape(platform: Platform, skills: Path, host: str) -> None:
    path = placed(platform, host)
    before = parsed(host, path)
    told(platform, host, "--url", URL, "--token-env", "TOKEN")
    assert entry(host, path) == REMOTE[host]
    for other in ([skills], ["--url", URL + "2"], ["--uninstall"]):
        assert "another server" in refused(platform, host, *other)
    told(platform, host, "--uninstall", "--url", URL)
    assert parsed(host, path) == before
    told(platform, host, skills)  # a server of its own gives way to the URL, and leaves nothing behind
    told(platform, host, "--url", URL, "--token-env", "TOKEN")
    assert entry(host, path) == REMOTE[host]


@pytest.fixture
def two(tmp_path: Path) -> Path:
    write_skill(tmp_path / "skills" / "one")
    return write_skill(tmp_path / "skills" / "two").parent


def call(command: object, platform: Platform, *words: str | Path) -> Result:
    return CliRunner().invoke(command, [str(each) for each in words], obj=platform, standalone_mode=False)  # type: ignore[arg-type]


def rows(platform: Platform) -> dict[str, list[str]]:
    lines = call(install, platform, "--list").stdout.splitlines()[1:]
    return {line.split()[0]: line.split(None, 3)[1:] for line in lines}


def test_the_list_has_every_host_and_what_is_stale(platform: Platform, two: Path) -> None:
    assert rows(platform).keys() == HOSTS.keys()
    assert all(state[:2] == ["no", "-"] for state in rows(platform).values())
    location(HOSTS["zed"], platform).parent.mkdir(parents=True)
    assert rows(platform)["zed"][:2] == ["yes", "-"]
    for host in ("cursor", "codex", "opencode"):
        call(install, platform, host, two)
    found = rows(platform)
    assert all(found[host][:2] == ["yes", "skills"] and "configured" in found[host][2] for host in ("cursor", "codex"))
    shutil.rmtree(two)
    assert f"stale: {two} is gone" in rows(platform)["opencode"][2]


def test_an_entry_is_started_and_its_skills_are_counted(platform: Platform, two: Path) -> None:
    for host in ("cursor", "codex", "opencode"):
        call(install, platform, host, two)
    call(install, platform, "vscode", two, "--project", "--exclude", "two")
    done = call(doctor, platform)
    assert done.return_value == 0, done.stdout
    assert done.stdout.count("works: 2 skills, ") == 3 and done.stdout.count("works: 1 skill, ") == 1
    assert len(re.findall(r", \d\d?\.\d s from start to list\n", done.stdout)) == done.stdout.count("\n") == 4


def test_what_does_not_work_says_why(platform: Platform, two: Path, tmp_path: Path) -> None:
    call(install, platform, "cursor", two)
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
        done = call(doctor, platform, "cursor")
        assert done.return_value == 1 and reason in done.stdout and done.stdout.count("\n") == 1, done.stdout


def test_a_server_that_never_answers_is_given_up(platform: Platform, tmp_path: Path) -> None:
    silent = tmp_path / "mcp-skills-server"
    silent.write_text(f"#!{sys.executable}\nimport sys\nsys.stderr.write('1\\n\\n2\\n3\\n4\\n')\nsys.stdin.read()\n")
    silent.chmod(0o755)
    call(install, platform, "cursor", tmp_path, "--command", silent)
    done = call(doctor, platform, "cursor", "--timeout", "0.5")
    assert done.return_value == 1 and "did not answer within 0.5 s; it said: 2 / 3 / 4\n" in done.stdout


def test_a_broken_file_and_no_entry_are_said(platform: Platform) -> None:
    for words, code, host in (([], 0, "HOST"), (["zed"], 1, "zed")):
        done = call(doctor, platform, *words)
        said = f"no entry for this server; 'install {host} DIR' writes one\n"
        assert (done.return_value, done.stdout) == (code, said)
    path = location(HOSTS["zed"], platform)
    path.parent.mkdir(parents=True)
    path.write_text("{", encoding="utf-8")
    done = call(doctor, platform)
    assert done.return_value == 1 and str(path) in done.stdout and done.stdout.count("\n") == 1
    assert "zed/settings.json" in " ".join(rows(platform)["zed"])
