"""The hosts, one row each: where a host keeps its configuration and in which form. A new host is a new row.

What differs between machines (system, home, environment) comes in as a `Platform`, so that each row can be tested for
every system on any of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from mcp_skills_server.errors import UsageError

Form = Literal["json", "json-comments", "jsonc", "toml"]
"""json: strict; json-comments: with comments; jsonc: with comments and trailing commas."""
Base = Literal["home", "applications", "packages", "claude", "codex", "project"]


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
    """

    home: Path
    applications: Path
    project: Path
    packages: Path | None
    claude: Path
    codex: Path

    @classmethod
    def of(cls, system: str, home: Path, project: Path, environment: Mapping[str, str]) -> Platform:
        """The folders on this `system`, as `sys.platform` names it."""

        def folder(variable: str, otherwise: Path) -> Path:
            return Path(environment[variable]) if environment.get(variable) else otherwise

        packages = None
        if system == "win32":
            applications = folder("APPDATA", home / "AppData" / "Roaming")
            packages = folder("LOCALAPPDATA", home / "AppData" / "Local") / "Packages"
        elif system == "darwin":
            applications = home / "Library" / "Application Support"
        else:
            applications = folder("XDG_CONFIG_HOME", home / ".config")
        return cls(
            home=home,
            applications=applications,
            project=project,
            packages=packages,
            claude=folder("CLAUDE_CONFIG_DIR", home),
            codex=folder("CODEX_HOME", home / ".codex"),
        )


@dataclass(frozen=True, slots=True)
class Place:
    """A file below one of the platform's folders. A first part with `*` stands for a folder that is there."""

    base: Base
    parts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Host:
    """One host.

    Attributes:
        title: its name as people know it.
        form: the grammar of its file.
        section: the key that holds its servers.
        user: where the user's file may be; the first that applies to the platform counts.
        project: the file of a project, None where the host knows none.
        typed: an entry names its transport.
        expands: what the host replaces in a command or an argument.
    """

    title: str
    form: Form
    section: str
    user: tuple[Place, ...]
    project: Place | None = None
    typed: bool = False
    expands: re.Pattern[str] | None = None


_BRACES: Final = re.compile(r"\$\{")
_VARIABLE: Final = re.compile(r"\$(?:\{|[A-Za-z_])")
_DESKTOP: Final = "claude_desktop_config.json"

HOSTS: Final[Mapping[str, Host]] = {
    "claude-desktop": Host(
        "Claude Desktop",
        "json",
        "mcpServers",
        (
            # The installer for Windows makes a packaged application, which sees this folder in place of %APPDATA%.
            Place("packages", ("Claude_*", "LocalCache", "Roaming", "Claude", _DESKTOP)),
            Place("applications", ("Claude", _DESKTOP)),
        ),
    ),
    "claude-code": Host(
        "Claude Code",
        "json",
        "mcpServers",
        (Place("claude", (".claude.json",)),),
        project=Place("project", (".mcp.json",)),
        typed=True,
        expands=_BRACES,
    ),
    "cursor": Host(
        "Cursor",
        "jsonc",
        "mcpServers",
        (Place("home", (".cursor", "mcp.json")),),
        project=Place("project", (".cursor", "mcp.json")),
        expands=_BRACES,
    ),
    "vscode": Host(
        "VS Code",
        "jsonc",
        "servers",
        (Place("applications", ("Code", "User", "mcp.json")),),
        project=Place("project", (".vscode", "mcp.json")),
        typed=True,
        expands=_BRACES,
    ),
    "windsurf": Host(
        "Windsurf",
        "json",
        "mcpServers",
        (Place("home", (".codeium", "windsurf", "mcp_config.json")),),
        expands=_BRACES,
    ),
    "gemini-cli": Host(
        "Gemini CLI",
        "json-comments",
        "mcpServers",
        (Place("home", (".gemini", "settings.json")),),
        project=Place("project", (".gemini", "settings.json")),
        expands=_VARIABLE,
    ),
    "codex": Host(
        "Codex",
        "toml",
        "mcp_servers",
        (Place("codex", ("config.toml",)),),
        project=Place("project", (".codex", "config.toml")),
    ),
}


def location(host: Host, platform: Platform, *, project: bool = False) -> Path:
    """The host's configuration file on this platform, whether it exists or not.

    Raises:
        UsageError: the host has no file for a project, or one of several cannot be preferred.
    """
    if project:
        if host.project is None:
            raise UsageError(f"{host.title} has no configuration for a project; leave --project out")
        return platform.project.joinpath(*host.project.parts)
    for place in host.user:
        base: Path | None = getattr(platform, place.base)
        if base is None:
            continue
        if "*" not in place.parts[0]:
            return base.joinpath(*place.parts)
        found = [folder.joinpath(*place.parts[1:]) for folder in sorted(base.glob(place.parts[0])) if folder.is_dir()]
        found = [path for path in found if path.is_file()] or found
        if len(found) > 1:
            raise UsageError(f"{host.title} is there several times, as in {found[0]}; choose a file with --config")
        if found:
            return found[0]
    raise UsageError(f"{host.title} has no known place on this system; name its file with --config")
