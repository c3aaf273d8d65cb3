"""`install`: each host's real file gains our entry, keeps everything else, and is never left broken."""

from __future__ import annotations

import errno
import json
import os
import stat
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from mcp_skills_server.commands import install as module
from mcp_skills_server.commands.install import install
from mcp_skills_server.errors import UsageError
from mcp_skills_server.hosts import disk, edit, jsontext, tomltext
from mcp_skills_server.hosts.table import HOSTS, Platform, location
from wire import DEADLINE, FIXTURES, Wire

OTHER = "other"

# What the hosts themselves write, or show in their documentation.
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
  "installMethod": "native",
  "tipsHistory": {
    "new-user-warmup": 3
  },
  "mcpServers": {
    "github": {
      "type": "http",
      "url": "https://api.githubcopilot.com/mcp/"
    }
  },
  "projects": {
    "/home/me/app": {
      "allowedTools": [],
      "mcpServers": {},
      "history": [{"display": "say \\"// no comment\\"", "pastedContents": {}}]
    }
  },
  "lastCost": 1.50,
  "emoji": "\\ud83d\\ude00 ü"
}
"""
CURSOR = """{
    "mcpServers": {
        "server-name": {
            "command": "npx",
            "args": ["-y", "mcp-server"],
            "env": {"API_KEY": "value"}
        }
    }
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
WINDSURF = """{
  "mcpServers": {
    "figma": {"serverUrl": "https://mcp.figma.com/mcp", "disabledTools": ["x"]}
  }
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
SAMPLES = {
    "claude-desktop": DESKTOP,
    "claude-code": CODE,
    "cursor": CURSOR,
    "vscode": VSCODE,
    "windsurf": WINDSURF,
    "gemini-cli": GEMINI,
    "codex": CODEX,
}
EVERY_HOST = pytest.mark.parametrize("host", HOSTS)


@pytest.fixture
def platform(tmp_path: Path) -> Platform:
    """A machine of its own below the test's folder."""
    return Platform.of("linux", tmp_path / "home", tmp_path / "project", {})


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
    assert done.exit_code == 0, done.exception
    assert done.stdout == ""
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


def beside(path: Path) -> list[str]:
    return sorted(each.name for each in path.parent.iterdir() if each.is_file())


# Where the files are.


@pytest.mark.parametrize(
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


@pytest.mark.parametrize(
    ("host", "wanted"),
    [
        ("claude-code", ".mcp.json"),
        ("cursor", ".cursor/mcp.json"),
        ("vscode", ".vscode/mcp.json"),
        ("gemini-cli", ".gemini/settings.json"),
        ("codex", ".codex/config.toml"),
        ("claude-desktop", None),
        ("windsurf", None),
    ],
)
def test_a_project_has_its_own_file(platform: Platform, skills: Path, host: str, wanted: str | None) -> None:
    if wanted is None:
        assert "--project" in refused(platform, host, skills, "--project")
        return
    told(platform, host, skills, "--project")
    assert entry(host, platform.project / wanted)["args"][-1] == str(skills)


def test_a_file_can_be_named(platform: Platform, skills: Path, tmp_path: Path) -> None:
    told(platform, "cursor", skills, "--config", tmp_path / "deep" / "er" / "my mcp.json")
    assert entry("cursor", tmp_path / "deep" / "er" / "my mcp.json")
    assert not platform.home.exists()


# What is written.


@EVERY_HOST
def test_a_new_file(platform: Platform, skills: Path, host: str) -> None:
    path = location(HOSTS[host], platform)
    assert "restart" in told(platform, host, skills, "--command", sys.executable)
    wanted = {"command": sys.executable, "args": ["serve", str(skills)]}
    typed = {"type": "stdio"} if host in {"claude-code", "vscode"} else {}
    assert parsed(host, path) == {HOSTS[host].section: {"skills": typed | wanted}}
    assert beside(path) == [path.name]
    assert path.read_bytes().endswith(b"\n") and not path.read_bytes().endswith(b"\n\n")
    assert str(skills) in path.read_text(encoding="utf-8")


@EVERY_HOST
def test_everything_else_stays_byte_for_byte(platform: Platform, skills: Path, host: str) -> None:
    path = placed(platform, host)
    before, sample = parsed(host, path), SAMPLES[host]
    told(platform, host, skills)
    after, text = parsed(host, path), path.read_text(encoding="utf-8")
    del after[HOSTS[host].section]["skills"]
    assert after == before
    # Only lines were added; where the last member had no comma, it has one now.
    rest = iter(text.splitlines())
    for line in sample.splitlines():
        assert any(line in {each, each.replace(",", "", 1)} or line.split(" //")[0] in each for each in rest), line
    told(platform, host, "--uninstall")
    assert path.read_text(encoding="utf-8") == sample


@EVERY_HOST
@pytest.mark.parametrize("shape", ["crlf", "bom", "no newline", "newlines"])
def test_the_shape_of_the_file_stays(platform: Platform, skills: Path, host: str, shape: str) -> None:
    content = SAMPLES[host].encode()
    if shape == "crlf":
        content = content.replace(b"\n", b"\r\n")
    elif shape == "bom":
        content = b"\xef\xbb\xbf" + content
    else:
        content = content.rstrip(b"\n") + (b"" if shape == "no newline" else b"\n\n\n")
    path = placed(platform, host, content)
    told(platform, host, skills)
    after = path.read_bytes()
    assert entry(host, path)["args"][-1] == str(skills)
    assert (after.count(b"\n") == after.count(b"\r\n")) == (shape == "crlf")
    assert after.startswith(b"\xef\xbb\xbf") == (shape == "bom")
    assert after.endswith(b"\n") == content.endswith(b"\n")
    told(platform, host, "--uninstall")
    assert path.read_bytes() == content


@EVERY_HOST
def test_a_second_run_changes_nothing(platform: Platform, skills: Path, host: str) -> None:
    path = placed(platform, host)
    told(platform, host, skills)
    before, files = path.stat(), beside(path)
    assert files == [path.name, path.name + ".bak"]
    assert "nothing was changed" in told(platform, host, skills)
    after = path.stat()
    assert (before.st_mtime_ns, before.st_ino) == (after.st_mtime_ns, after.st_ino)
    assert beside(path) == files


@EVERY_HOST
def test_an_update_keeps_what_the_user_added(platform: Platform, skills: Path, host: str, tmp_path: Path) -> None:
    path = placed(platform, host)
    told(platform, host, skills)
    text = path.read_text(encoding="utf-8")
    added: dict[str, object] = {"env": {"MCP_SKILLS_WATCH": "false"}, "disabled": False}
    if host == "codex":
        text = (
            text.replace("\n[mcp_servers.skills]\n", "\n[mcp_servers.skills]\ndisabled = false # for now\n")
            + '\n[mcp_servers.skills.env]\nMCP_SKILLS_WATCH = "false"\n'
        )
    else:
        for key, value in added.items():
            text = jsontext.put(text, (HOSTS[host].section, "skills", key), value, HOSTS[host].form)
    path.write_text(text, encoding="utf-8")
    (tmp_path / "more").mkdir()
    told(platform, host, skills, tmp_path / "more")
    now = entry(host, path)
    assert now["args"][-2:] == [str(skills), str(tmp_path / "more")]
    assert {key: now[key] for key in added} == added
    lines = [line for line in text.splitlines() if str(skills) not in line]
    rest = iter(path.read_text(encoding="utf-8").splitlines())
    assert all(any(line == each for each in rest) for line in lines)
    assert "nothing was changed" in told(platform, host, skills, tmp_path / "more")
    told(platform, host, "--uninstall")
    assert "skills" not in parsed(host, path).get(HOSTS[host].section, {})


def test_several_servers_by_name(platform: Platform, skills: Path) -> None:
    for name in ("skills", "team_skills-2"):
        told(platform, "codex", skills, "--name", name)
        told(platform, "cursor", skills, "--name", name)
    told(platform, "codex", "--uninstall")
    told(platform, "cursor", "--uninstall")
    for host in ("codex", "cursor"):
        assert list(parsed(host, location(HOSTS[host], platform))[HOSTS[host].section]) == ["team_skills-2"]


def test_the_roots_become_absolute(platform: Platform, skills: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(skills.parent)
    told(platform, "cursor", skills.name, ".")
    assert entry("cursor", location(HOSTS["cursor"], platform))["args"][-2:] == [str(skills), str(skills.parent)]


def test_what_was_written_starts_the_server(platform: Platform, tmp_path: Path) -> None:
    root = tmp_path / "my skïlls"
    root.symlink_to(FIXTURES)
    for host in HOSTS:
        told(platform, host, root)
        said = entry(host, location(HOSTS[host], platform))
        wire = Wire([said["command"], *said["args"]])
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


def test_a_host_that_replaces_variables_is_told_of(platform: Platform, tmp_path: Path) -> None:
    (tmp_path / "${HOME}").mkdir()
    (tmp_path / "a$b").mkdir()
    assert "'$'" in told(platform, "vscode", tmp_path / "${HOME}")
    assert "'$'" not in told(platform, "vscode", tmp_path / "a$b")
    assert "'$'" in told(platform, "gemini-cli", tmp_path / "a$b")
    assert "'$'" not in told(platform, "codex", tmp_path / "a$b")


# Without writing.


@EVERY_HOST
def test_print_shows_the_section_and_writes_nothing(platform: Platform, skills: Path, host: str) -> None:
    done = run(platform, host, skills, "--print", "--name", "mine")
    assert done.exit_code == 0 and str(location(HOSTS[host], platform)) in done.stderr
    said = tomllib.loads(done.stdout) if host == "codex" else json.loads(done.stdout)
    assert said[HOSTS[host].section]["mine"]["args"][-1] == str(skills)
    assert not platform.home.exists()


@pytest.mark.needs_program("patch")
@EVERY_HOST
@pytest.mark.parametrize("newline", [True, False])
def test_a_dry_run_prints_a_difference_that_applies(platform: Platform, skills: Path, host: str, newline: bool) -> None:
    path = placed(platform, host, SAMPLES[host].rstrip("\n") + "\n" * newline)
    before = path.read_bytes()
    done = run(platform, host, skills, "--dry-run")
    assert done.exit_code == 0 and "nothing was written" in done.stderr
    assert path.read_bytes() == before and beside(path) == [path.name]
    told(platform, host, skills)
    after = path.read_bytes()
    path.write_bytes(before)
    subprocess.run(
        ["patch", "--quiet", path], input=done.stdout.encode(), check=True, timeout=DEADLINE, capture_output=True
    )
    assert path.read_bytes() == after
    quiet = run(platform, host, skills, "--dry-run")
    assert quiet.stdout == "" and "nothing was changed" in quiet.stderr


def test_a_dry_run_makes_no_folder(platform: Platform, skills: Path) -> None:
    done = run(platform, "cursor", skills, "--dry-run")
    assert "+++ " in done.stdout and not platform.home.exists()


# Uninstall.


@EVERY_HOST
def test_uninstall_of_nothing_is_fine(platform: Platform, host: str) -> None:
    path = location(HOSTS[host], platform)
    assert "nothing to remove" in told(platform, host, "--uninstall")
    assert not platform.home.exists()
    placed(platform, host)
    assert "nothing to remove" in told(platform, host, "--uninstall")
    assert path.read_text(encoding="utf-8") == SAMPLES[host] and beside(path) == [path.name]


@pytest.mark.parametrize("more", [["--uninstall"], []])
@EVERY_HOST
def test_the_server_of_somebody_else_stays(platform: Platform, skills: Path, host: str, more: list[str]) -> None:
    name = next(iter(parsed(host, placed(platform, host))[HOSTS[host].section]))
    said = refused(platform, host, skills, "--name", name, *more)
    assert "another server" in said and "--name" in said
    assert location(HOSTS[host], platform).read_text(encoding="utf-8") == SAMPLES[host]


def test_comments_in_and_around_the_entry(platform: Platform, skills: Path) -> None:
    path = placed(platform, "vscode", '{\n  "servers": {\n    // none yet\n  }\n}\n')
    told(platform, "vscode", skills)
    assert "    // none yet\n    " in path.read_text(encoding="utf-8")
    told(platform, "vscode", "--uninstall")
    assert path.read_text(encoding="utf-8") == '{\n  "servers": {\n    // none yet\n  }\n}\n'


def test_the_comment_of_a_neighbour_stays(platform: Platform, skills: Path) -> None:
    path = placed(platform, "codex", "")
    told(platform, "codex", skills)
    other = '\n# about the other one\n[mcp_servers.other]\ncommand = "x"\n'
    path.write_text(path.read_text(encoding="utf-8") + other, encoding="utf-8")
    told(platform, "codex", "--uninstall")
    assert path.read_text(encoding="utf-8") == other


# Files that are not as they should be.

BROKEN: dict[str, tuple[str, str | bytes, str]] = {
    "json syntax": ("cursor", '{\n  "mcpServers": {,}\n}', "line 2"),
    "cut off": ("claude-code", CODE[:200], "not valid JSON"),
    "comment": ("claude-desktop", '{\n// no\n"a": 1}', "line 2"),
    "endless comment": ("vscode", '{}\n/* "a"', "line 2 never ends"),
    "trailing comma": ("gemini-cli", '{"a": 1,}', "not valid JSON"),
    "constant": ("cursor", '{"a": NaN}', "NaN"),
    "list": ("cursor", "[]", "no JSON object"),
    "text": ("cursor", '"mcpServers"', "no JSON object"),
    "section": ("cursor", '{"mcpServers": []}', "'mcpServers'"),
    "section of null": ("vscode", '{"servers": null}', "'servers'"),
    "twice": ("cursor", '{"mcpServers": {}, "mcpServers": {}}', "twice"),
    "deep": ("cursor", '{"a": ' + "[" * 200_000 + "]" * 200_000 + "}", "deep"),
    "digits": ("cursor", '{"a": ' + "1" * 5000 + "}", "not valid JSON"),
    "latin-1": ("cursor", b'{\n"a": "\xfc"}', "line 2"),
    "utf-16": ("cursor", '{"mcpServers": {}}'.encode("utf-16"), "UTF-8"),
    "too large": ("cursor", b" " * ((16 << 20) + 1), "16 MiB"),
    "toml syntax": ("codex", 'model = "x"\nmodel = "y"\n', "not valid TOML"),
    "toml section": ("codex", "mcp_servers = 1\n", "'mcp_servers'"),
    "toml array": ("codex", "[[mcp_servers]]\n", "'mcp_servers'"),
    "toml inline": ("codex", 'mcp_servers = { docs = { command = "x" } }\n', "by hand"),
    "toml latin-1": ("codex", b'model = "\xfc"\n', "line 1"),
}


@pytest.mark.parametrize("case", BROKEN)
@pytest.mark.parametrize("more", [[], ["--dry-run"]])
def test_a_broken_file_is_left_alone(platform: Platform, skills: Path, case: str, more: list[str]) -> None:
    host, content, words = BROKEN[case]
    path = placed(platform, host, content)
    before = path.read_bytes()
    said = refused(platform, host, skills, *more)
    assert said.startswith(f"{path}: ") and words in said
    assert path.read_bytes() == before and beside(path) == [path.name]


def test_our_entry_in_a_form_that_is_not_edited(platform: Platform, skills: Path) -> None:
    for content in (
        '[mcp_servers]\nskills = { command = "mcp-skills-server", args = [] }\n',
        'mcp_servers.skills.command = "mcp-skills-server"\n',
    ):
        path = placed(platform, "codex", content)
        for more in ([], ["--uninstall"]):
            assert "by hand" in refused(platform, "codex", skills, *more)
        assert path.read_text(encoding="utf-8") == content


@EVERY_HOST
@pytest.mark.parametrize("content", ["", "\n", "  \n"])
def test_an_empty_file_is_one_without_servers(platform: Platform, skills: Path, host: str, content: str) -> None:
    path = placed(platform, host, content)
    told(platform, host, skills)
    assert list(parsed(host, path)[HOSTS[host].section]) == ["skills"]


def test_not_a_regular_file(platform: Platform, skills: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").touch()
    for name in ("pipe", "loop", "home", "file/below.json"):
        platform.home.mkdir(exist_ok=True)
        said = refused(platform, "cursor", skills, "--config", tmp_path / name)
        assert said.startswith(str(tmp_path / name))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["cursor"], "folders to serve"),
        (["cursor", "no/such/folder"], "no/such/folder: no such folder"),
        (["cursor", __file__], "not a folder"),
        (["cursor", "/", "--name", "a b"], "--name"),
        (["cursor", "/", "--name", ""], "--name"),
        (["cursor", "/", "--print", "--dry-run"], "exclude each other"),
        (["cursor", "--print", "--uninstall"], "exclude each other"),
        (["cursor", "/", "--project", "--config", "x"], "exclude each other"),
        (["cursor", "/", "--config", ""], "regular file"),
    ],
)
def test_wrong_usage_is_one_line(
    platform: Platform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert words in refused(platform, *arguments)
    assert not list(tmp_path.iterdir())


def test_an_unknown_host_is_told_which_there_are(platform: Platform, skills: Path) -> None:
    done = run(platform, "emacs", skills)
    assert done.exit_code == 2 and all(host in done.stderr for host in HOSTS)


def test_a_path_that_is_not_utf8(platform: Platform, tmp_path: Path) -> None:
    root = os.fsdecode(os.fsencode(tmp_path) + b"/\xff")
    os.mkdir(root)
    assert "not UTF-8" in refused(platform, "codex", root)


# Writing.


def test_backups_are_not_written_over(platform: Platform, skills: Path) -> None:
    path = placed(platform, "cursor")
    told(platform, "cursor", skills)
    installed = path.read_bytes()
    assert "mcp.json.bak.1 beside it" in told(platform, "cursor", "--uninstall")
    assert (path.parent / "mcp.json.bak").read_text(encoding="utf-8") == CURSOR
    assert (path.parent / "mcp.json.bak.1").read_bytes() == installed
    # What is written over is what the first backup has: that is enough.
    assert "mcp.json.bak beside it" in told(platform, "cursor", skills)
    assert beside(path) == ["mcp.json", "mcp.json.bak", "mcp.json.bak.1"]


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o640])
def test_the_mode_stays(platform: Platform, skills: Path, mode: int) -> None:
    path = placed(platform, "claude-code")
    path.chmod(mode)
    told(platform, "claude-code", skills)
    assert stat.S_IMODE(path.stat().st_mode) == mode
    assert stat.S_IMODE(path.with_name(".claude.json.bak").stat().st_mode) == mode


def test_a_link_is_followed(platform: Platform, skills: Path, tmp_path: Path) -> None:
    path = placed(platform, "cursor")
    real = tmp_path / "dotfiles" / "cursor.json"
    real.parent.mkdir()
    path.rename(real)
    path.symlink_to(real)
    told(platform, "cursor", skills)
    assert path.is_symlink() and entry("cursor", real)
    assert beside(real) == ["cursor.json", "cursor.json.bak"] and beside(path) == ["mcp.json"]
    told(platform, "cursor", "--uninstall")
    real.unlink()
    for leftover in real.parent.iterdir():
        leftover.unlink()
    told(platform, "cursor", skills)
    assert path.is_symlink() and entry("cursor", real)


@pytest.mark.parametrize("call", ["replace", "fsync", "write"])
def test_a_failure_in_the_middle_leaves_the_old_file(
    platform: Platform, skills: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    path = placed(platform, "codex")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    if call == "write":
        monkeypatch.setattr(disk, "_write", full)
    else:
        monkeypatch.setattr(os, call, full)
    assert "No space left on device" in refused(platform, "codex", skills)
    monkeypatch.undo()
    assert path.read_text(encoding="utf-8") == CODEX
    assert beside(path) == ["config.toml", "config.toml.bak"][: 2 if call == "replace" else 1]
    told(platform, "codex", skills)
    assert beside(path) == ["config.toml", "config.toml.bak"]


def test_a_file_that_changes_meanwhile_is_left_alone(
    platform: Platform, skills: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = placed(platform, "claude-code")
    real: Callable[..., bytes] = edit.install

    def slow(*arguments: Any) -> bytes:
        path.write_text('{"numStartups": 185}', encoding="utf-8")
        return real(*arguments)

    monkeypatch.setattr(edit, "install", slow)
    assert "changed while" in refused(platform, "claude-code", skills)
    assert path.read_text(encoding="utf-8") == '{"numStartups": 185}' and beside(path) == [path.name]


def test_a_folder_that_may_not_be_written(platform: Platform, skills: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = placed(platform, "cursor")
    real = os.open

    def forbidding(target: Any, flags: int, *more: Any, **named: Any) -> int:
        # At the outermost boundary, because the suite may run as root, who may write everywhere.
        if flags & os.O_CREAT and Path(os.fspath(target)).parent == path.parent:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), target)
        return real(target, flags, *more, **named)

    monkeypatch.setattr(os, "open", forbidding)
    assert "Permission denied" in refused(platform, "cursor", skills)


def test_nothing_heavy_is_imported_with_the_command() -> None:
    code = (
        f"import sys, {module.__name__}, mcp_skills_server.commands.new;"
        "print([name for name in ('yaml', 'mcp', 'markdown_it', 'tomllib', 'mcp_skills_server.hosts.edit',"
        " 'mcp_skills_server.format') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=DEADLINE, check=True)
    assert done.stdout.strip() == "[]"


# The edits alone, on wild input.

KEYS = st.text(max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)
OURS = {"command": "mcp-skills-server", "args": ["serve", '/a "b" \\ \x7f ü\n']}


@given(
    st.dictionaries(KEYS, VALUES, max_size=4),
    st.none() | st.dictionaries(KEYS.filter(lambda key: key != "skills"), VALUES, max_size=3),
    st.integers(0, 4),
    st.sampled_from([None, 0, 1, 2, 4, "\t"]),
    st.sampled_from([(",", ":"), (", ", ": "), (" ,\t", " :\n ")]),
    st.sampled_from(["\n", "\r\n"]),
    st.booleans(),
)
def test_json_comes_and_goes(  # noqa: PLR0917
    rest: dict[str, Any],
    section: dict[str, Any] | None,
    place: int,
    indent: int | str | None,
    separators: tuple[str, str],
    newline: str,
    ascii_only: bool,
) -> None:
    items = [(key, value) for key, value in rest.items() if key != "servers"]
    if section is not None:
        items.insert(place, ("servers", section))
    document = dict(items)
    text = json.dumps(document, indent=indent, separators=separators, ensure_ascii=ascii_only).replace("\n", newline)
    for form in ("json", "json-comments", "jsonc"):
        with_ours = jsontext.put(text, ("servers", "skills"), OURS, form)
        wanted = {**document, "servers": {**(section or {}), "skills": OURS}}
        assert json.loads(with_ours) == wanted
        assert jsontext.put(with_ours, ("servers", "skills"), OURS, form) == with_ours
        without = jsontext.drop(with_ours, ("servers", "skills"), form)
        if section:
            assert without == text
        else:
            assert json.loads(without) == {**document, "servers": {}}


TRIVIA = st.lists(st.sampled_from([" ", "\n", "\t", '// c } , "\n', '/* { " */', "/**/", "/*\n*/"]), max_size=3).map(
    "".join
)


@given(st.lists(TRIVIA, min_size=12, max_size=12), st.booleans(), st.booleans())
def test_jsonc_comes_and_goes(trivia: list[str], comma: bool, member: bool) -> None:
    t = trivia
    inner = f'"a"{t[4]}:{t[5]}{{"x": [1,{t[6]}2]}}{t[7]}{"," if comma else ""}{t[8]}' if member else t[8]
    text = f'{t[0]}{{{t[1]}"servers"{t[2]}:{t[3]}{{{t[9]}{inner}}}{t[10]}}}{t[11]}'
    before = jsontext.read(text, "jsonc")
    with_ours = jsontext.put(text, ("servers", "skills"), OURS, "jsonc")
    assert jsontext.read(with_ours, "jsonc") == {"servers": {**before["servers"], "skills": OURS}}
    assert with_ours.count("/*") == text.count("/*") and with_ours.count("// c") == text.count("// c")
    try:
        without = jsontext.drop(with_ours, ("servers", "skills"), "jsonc")
        assert jsontext.read(without, "jsonc") == before
        assert without.count("/*") == text.count("/*") and without.count("// c") == text.count("// c")
    except UsageError as error:
        pytest.fail(str(error))


@given(
    st.lists(
        st.sampled_from(
            [
                "# a comment\n",
                "\n",
                "x1 = [\n  1, # ]\n  2,\n]\n",
                'x2 = """\n[mcp_servers.skills]\n"""\n',
                "[t1]\n",
                "[[t2]]\n",
                '[mcp_servers.other]\ncommand = "x" # y\n',
                "[mcp_servers.other.env]\n",
                "  [ t3 . 'a.b' ]  # c\n  y = {a = 1}\n",
                "[mcp_servers]\n",
            ]
        ),
        unique=True,
    ),
    st.booleans(),
    st.sampled_from(["\n", "\r\n"]),
)
def test_toml_comes_and_goes(parts: list[str], closed: bool, newline: str) -> None:
    text = "".join(parts)
    text = (text if closed else text.removesuffix("\n")).replace("\n", newline)
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    with_ours = tomltext.put(text, "mcp_servers", "skills", OURS)
    wanted = {**document, "mcp_servers": {**document.get("mcp_servers", {}), "skills": OURS}}
    assert tomllib.loads(with_ours) == wanted
    assert tomltext.put(with_ours, "mcp_servers", "skills", OURS) == with_ours
    changed = tomltext.put(with_ours, "mcp_servers", "skills", {"new": "n", "args": ["serve"], "more": ["m"]})
    expected = {**wanted["mcp_servers"], "skills": {**OURS, "new": "n", "args": ["serve"], "more": ["m"]}}
    assert tomllib.loads(changed) == {**wanted, "mcp_servers": expected}
    if text.strip():
        assert tomltext.drop(with_ours, "mcp_servers", "skills") == text
        assert tomltext.drop(changed, "mcp_servers", "skills") == text
