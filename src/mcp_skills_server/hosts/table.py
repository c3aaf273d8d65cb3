"""The hosts, one row each: where a host keeps its configuration and in which form. A new host is a new row.

What differs between machines (system, home, environment) comes in as a `Platform`, so that each row can be tested for
every system on any of them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from mcp_skills_server.errors import UsageError

Form = Literal["json", "json-comments", "jsonc", "toml"]
"""json: strict; json-comments: with comments; jsonc: with comments and trailing commas."""
Shape = Literal["plain", "stdio", "local"]
"""Of an entry. plain: `command` and `args`; stdio: these and `"type": "stdio"`; local: `"type": "local"` and one list,
`command`, of all the words."""
Base = Literal["home", "applications", "packages", "claude", "codex", "xdg", "project"]


@dataclass(frozen=True, slots=True)
class Platform:
    """The folders of one machine and user.

    Attributes:
        home: the user's home.
        applications: where desktop applications keep their settings.
        project: the project that `--project` means.
        packages: where Windows keeps what packaged applications write, None elsewhere.
        claude: the folder of Claude Code's `.claude.json`.
        codex: Codex's folder.
        xdg: where programs that follow the XDG rule on every system keep their settings.
    """

    home: Path
    applications: Path
    project: Path
    packages: Path | None
    claude: Path
    codex: Path
    xdg: Path

    @classmethod
    def of(cls, system: str, home: Path, project: Path, environment: Mapping[str, str]) -> Platform:
        """Return the folders on this `system`, as `sys.platform` names it."""

        def folder(variable: str, otherwise: Path) -> Path:
            return Path(environment[variable]) if environment.get(variable) else otherwise

        packages = None
        xdg = folder("XDG_CONFIG_HOME", home / ".config")
        if system == "win32":
            applications = folder("APPDATA", home / "AppData" / "Roaming")
            packages = folder("LOCALAPPDATA", home / "AppData" / "Local") / "Packages"
        elif system == "darwin":
            applications = home / "Library" / "Application Support"
        else:
            applications = xdg
        return cls(
            home=home,
            applications=applications,
            project=project,
            packages=packages,
            claude=folder("CLAUDE_CONFIG_DIR", home),
            codex=folder("CODEX_HOME", home / ".codex"),
            xdg=xdg,
        )


@dataclass(frozen=True, slots=True)
class FilePlace:
    """A file below one of the platform's folders. A first part with `*` stands for a folder that is there.

    With `if_there` the place counts only where that file exists.
    """

    base: Base
    parts: tuple[str, ...]
    if_there: bool = False


@dataclass(frozen=True, slots=True)
class Remote:
    """A host's notation for a server that it reaches by URL.

    Attributes:
        url: the key of the URL.
        more: what else such an entry holds.
        variable: how a header refers to an environment variable, with VAR for its name; "" where none is known.
        token_key: the key that names the variable of a bearer token, for a host that has one in place of a header.
    """

    url: str = "url"
    more: Mapping[str, object] = field(default_factory=dict[str, object])
    variable: str = ""
    token_key: str | None = None


@dataclass(frozen=True, slots=True)
class Host:
    """One host.

    Attributes:
        title: its name as people know it.
        form: the grammar of its file.
        section: the key that holds its servers.
        user: where the user's file may be; the first that applies to the platform counts.
        project: where a project's file may be, nothing where the host knows none.
        shape: of an entry.
        new: switches that a new entry begins with; of an entry that is there they stay as the user set them.
        trust: what `--trust` adds to an entry, None where the host has no such switch in it.
        expands: what the host replaces in a command or an argument.
        remote: how it reaches a server by URL; None where its file has no such entry.
        native: folders of skills that the host reads without a server, below the home folder or a project.
    """

    title: str
    form: Form
    section: str
    user: tuple[FilePlace, ...]
    project: tuple[FilePlace, ...] = ()
    shape: Shape = "plain"
    new: Mapping[str, object] = field(default_factory=dict[str, object])
    trust: Mapping[str, object] | None = None
    expands: re.Pattern[str] | None = None
    remote: Remote | None = None
    native: tuple[str, ...] = ()


_BRACES: Final = re.compile(r"\$\{")
_VARIABLE: Final = re.compile(r"\$(?:\{|[A-Za-z_])")
_OPENCODE: Final = re.compile(r"\{(?:env|file):")
_DESKTOP: Final = "claude_desktop_config.json"

HOSTS: Final[Mapping[str, Host]] = {
    "claude-desktop": Host(
        "Claude Desktop",
        "json",
        "mcpServers",
        (
            # The installer for Windows makes a packaged application, which sees this folder in place of %APPDATA%.
            FilePlace("packages", ("Claude_*", "LocalCache", "Roaming", "Claude", _DESKTOP)),
            FilePlace("applications", ("Claude", _DESKTOP)),
        ),
    ),
    "claude-code": Host(
        "Claude Code",
        "json",
        "mcpServers",
        (FilePlace("claude", (".claude.json",)),),
        project=(FilePlace("project", (".mcp.json",)),),
        shape="stdio",
        expands=_BRACES,
        remote=Remote(more={"type": "http"}, variable="${VAR}"),
        native=(".claude/skills",),
    ),
    "cursor": Host(
        "Cursor",
        "jsonc",
        "mcpServers",
        (FilePlace("home", (".cursor", "mcp.json")),),
        project=(FilePlace("project", (".cursor", "mcp.json")),),
        expands=_BRACES,
        remote=Remote(variable="${env:VAR}"),
        native=(".cursor/skills", ".agents/skills", ".claude/skills", ".codex/skills"),
    ),
    "vscode": Host(
        "VS Code",
        "jsonc",
        "servers",
        (FilePlace("applications", ("Code", "User", "mcp.json")),),
        project=(FilePlace("project", (".vscode", "mcp.json")),),
        shape="stdio",
        expands=_BRACES,
        remote=Remote(more={"type": "http"}, variable="${env:VAR}"),
        native=(".github/skills", ".copilot/skills", ".agents/skills", ".claude/skills"),
    ),
    "windsurf": Host(
        "Windsurf",
        "json",
        "mcpServers",
        (FilePlace("home", (".codeium", "windsurf", "mcp_config.json")),),
        expands=_BRACES,
        remote=Remote("serverUrl", variable="${env:VAR}"),
        native=(".codeium/windsurf/skills", ".windsurf/skills"),
    ),
    "gemini-cli": Host(
        "Gemini CLI",
        "json-comments",
        "mcpServers",
        (FilePlace("home", (".gemini", "settings.json")),),
        project=(FilePlace("project", (".gemini", "settings.json")),),
        trust={"trust": True},
        expands=_VARIABLE,
        remote=Remote("httpUrl", variable="${VAR}"),
        native=(".gemini/skills", ".agents/skills"),
    ),
    "codex": Host(
        "Codex",
        "toml",
        "mcp_servers",
        (FilePlace("codex", ("config.toml",)),),
        project=(FilePlace("project", (".codex", "config.toml")),),
        remote=Remote(token_key="bearer_token_env_var"),  # noqa: S106 - a key, no secret
        native=(".agents/skills", ".codex/skills"),
    ),
    "opencode": Host(
        "opencode",
        "jsonc",
        "mcp",
        # It reads both and the second wins, so an entry in the first could be hidden by one in the second.
        (
            FilePlace("xdg", ("opencode", "opencode.jsonc"), if_there=True),
            FilePlace("xdg", ("opencode", "opencode.json")),
        ),
        project=(
            FilePlace("project", ("opencode.jsonc",), if_there=True),
            FilePlace("project", ("opencode.json",)),
        ),
        shape="local",
        new={"enabled": True},
        expands=_OPENCODE,
        remote=Remote(more={"type": "remote"}, variable="{env:VAR}"),
        native=(".config/opencode/skills", ".opencode/skills", ".agents/skills", ".claude/skills"),
    ),
    "antigravity": Host(
        "Antigravity",
        "json",
        "mcpServers",
        (FilePlace("home", (".gemini", "config", "mcp_config.json")),),
        remote=Remote("serverUrl"),
    ),
    "qwen-code": Host(
        "Qwen Code",
        "json-comments",
        "mcpServers",
        (FilePlace("home", (".qwen", "settings.json")),),
        project=(FilePlace("project", (".qwen", "settings.json")),),
        trust={"trust": True},
        expands=_VARIABLE,
        remote=Remote("httpUrl", variable="${VAR}"),
        native=(".qwen/skills",),
    ),
    "copilot-cli": Host(
        "Copilot CLI",
        "json",
        "mcpServers",
        (FilePlace("home", (".copilot", "mcp-config.json")),),
        shape="stdio",
        new={"tools": ["*"]},
        expands=_BRACES,
        remote=Remote(more={"type": "http"}, variable="${VAR}"),
        native=(".copilot/skills", ".github/skills", ".claude/skills"),
    ),
    "cline": Host(
        "Cline",
        "json",
        "mcpServers",
        (FilePlace("home", (".cline", "data", "settings", "cline_mcp_settings.json")),),
        remote=Remote(more={"type": "streamableHttp"}),
        native=(".cline/skills", ".claude/skills"),
    ),
    "kiro": Host(
        "Kiro",
        "json",
        "mcpServers",
        (FilePlace("home", (".kiro", "settings", "mcp.json")),),
        project=(FilePlace("project", (".kiro", "settings", "mcp.json")),),
        expands=_BRACES,
        remote=Remote(variable="${VAR}"),
        native=(".kiro/skills",),
    ),
    "lm-studio": Host(
        "LM Studio", "json", "mcpServers", (FilePlace("home", (".lmstudio", "mcp.json")),), remote=Remote()
    ),
    "crush": Host(
        "Crush",
        "json",
        "mcp",
        (FilePlace("xdg", ("crush", "crush.json")),),
        project=(FilePlace("project", ("crush.json",)),),
        shape="stdio",
        expands=_VARIABLE,
        remote=Remote(more={"type": "http"}, variable="$VAR"),
        native=(".config/crush/skills", ".crush/skills"),
    ),
    "zed": Host(
        "Zed",
        "jsonc",
        "context_servers",
        (FilePlace("xdg", ("zed", "settings.json")),),
        project=(FilePlace("project", (".zed", "settings.json")),),
        remote=Remote(),
    ),
}


def location(host: Host, platform: Platform, *, project: bool = False) -> Path:
    """Return the host's configuration file on this platform, whether it exists or not.

    Raises:
        UsageError: the host has no file for a project, or one of several cannot be preferred.
    """
    if project and not host.project:
        raise UsageError(f"{host.title} has no configuration for a project; leave --project out")
    for place in host.project if project else host.user:
        base: Path | None = getattr(platform, place.base)
        if base is None:
            continue
        if "*" not in place.parts[0]:
            path = base.joinpath(*place.parts)
            if place.if_there and not path.is_file():
                continue
            return path
        found = [folder.joinpath(*place.parts[1:]) for folder in sorted(base.glob(place.parts[0])) if folder.is_dir()]
        found = [path for path in found if path.is_file()] or found
        if len(found) > 1:
            raise UsageError(f"{host.title} is there several times, as in {found[0]}; choose a file with --config")
        if found:
            return found[0]
    raise UsageError(f"{host.title} has no known place on this system; name its file with --config")


def is_native(host: Host, folder: str | Path, home: str | Path) -> bool:
    """Return whether the host finds skills of this folder without a server, directly or by links."""
    given, real = Path(os.path.abspath(folder)), Path(os.path.realpath(folder))
    for native in host.native:
        # Any project's: the host may be started in each of them.
        if any(f"/{native}/" in f"{path.as_posix()}/" for path in (given, real)):
            return True
        own = Path(home, native)
        if real.is_relative_to(os.path.realpath(own)):
            return True
        with suppress(OSError):  # `npx skills add` links single skills from there
            if any(Path(os.path.realpath(each)).is_relative_to(real) for each in own.iterdir()):
                return True
    return False
