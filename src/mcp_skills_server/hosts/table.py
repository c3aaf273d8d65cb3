"""The hosts, one row each: where a host keeps its configuration and in which form. A new host is a
new row.

What differs between machines (system, home, environment) comes in as a `Platform`, so that each row
can be tested for every system on any of them.
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
"""Of an entry. plain: `command` and `args`; stdio: these and `"type": "stdio"`; local: `"type":
"local"` and one list, `command`, of all the words."""


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
            return Path(environment.get(variable) or otherwise)

        xdg = folder("XDG_CONFIG_HOME", home / ".config")
        applications, packages = xdg, None
        if system == "win32":
            applications = folder("APPDATA", home / "AppData" / "Roaming")
            packages = folder("LOCALAPPDATA", home / "AppData" / "Local") / "Packages"
        elif system == "darwin":
            applications = home / "Library" / "Application Support"
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
class Remote:
    """A host's notation for a server that it reaches by URL.

    Attributes:
        url: the key of the URL.
        more: what else such an entry holds.
        variable: how a header refers to an environment variable, with VAR for its name; "" where
            none is known.
        token_key: the key that names the variable of a bearer token, for a host that has one in
            place of a header.
    """

    url: str = "url"
    more: Mapping[str, object] = field(default_factory=dict[str, object])
    variable: str = ""
    token_key: str | None = None


_HTTP: Final = {"type": "http"}


@dataclass(frozen=True, slots=True)
class Host:
    """One host.

    Attributes:
        title: its name as people know it.
        user: where the user's file may be: the name of a folder of the platform, then the path in
            it; `*` in the first name stands for a folder that is there. Of several places the first
            one that is there counts, or the last.
        project: where a project's file may be, from its folder; nothing where the host knows none.
        form: the grammar of its file.
        section: the key that holds its servers.
        shape: of an entry.
        new: switches that a new entry begins with; of an entry that is there they stay as the user
            set them.
        trust: what `--trust` adds to an entry, None where the host has no such switch in it.
        expands: what the host replaces in a command or an argument.
        remote: how it reaches a server by URL; None where its file has no such entry.
        native: folders of skills that the host reads without a server, below the home folder or a
            project.
    """

    title: str
    user: tuple[str, ...]
    project: tuple[str, ...] = ()
    form: Form = "json"
    section: str = "mcpServers"
    shape: Shape = "plain"
    new: Mapping[str, object] = field(default_factory=dict[str, object])
    trust: Mapping[str, object] | None = None
    expands: re.Pattern[str] | None = None
    remote: Remote | None = None
    native: tuple[str, ...] = ()


_BRACES: Final = re.compile(r"\$\{")
_VARIABLE: Final = re.compile(r"\$(?:\{|[A-Za-z_])")
_OPENCODE: Final = re.compile(r"\{(?:env|file):")

HOSTS: Final[Mapping[str, Host]] = {
    "claude-desktop": Host(
        "Claude Desktop",
        # The installer for Windows makes a packaged application, which sees the first folder in
        # place of %APPDATA%.
        user=(
            "packages/Claude_*/LocalCache/Roaming/Claude/claude_desktop_config.json",
            "applications/Claude/claude_desktop_config.json",
        ),
    ),
    "claude-code": Host(
        "Claude Code",
        user=("claude/.claude.json",),
        project=(".mcp.json",),
        shape="stdio",
        expands=_BRACES,
        remote=Remote(more=_HTTP, variable="${VAR}"),
        native=(".claude/skills",),
    ),
    "cursor": Host(
        "Cursor",
        user=("home/.cursor/mcp.json",),
        project=(".cursor/mcp.json",),
        form="jsonc",
        expands=_BRACES,
        remote=Remote(variable="${env:VAR}"),
        native=(".cursor/skills", ".agents/skills", ".claude/skills", ".codex/skills"),
    ),
    "vscode": Host(
        "VS Code",
        user=("applications/Code/User/mcp.json",),
        project=(".vscode/mcp.json",),
        form="jsonc",
        section="servers",
        shape="stdio",
        expands=_BRACES,
        remote=Remote(more=_HTTP, variable="${env:VAR}"),
        native=(".github/skills", ".copilot/skills", ".agents/skills", ".claude/skills"),
    ),
    "windsurf": Host(
        "Windsurf",
        user=("home/.codeium/windsurf/mcp_config.json",),
        expands=_BRACES,
        remote=Remote("serverUrl", variable="${env:VAR}"),
        native=(".codeium/windsurf/skills", ".windsurf/skills"),
    ),
    "gemini-cli": Host(
        "Gemini CLI",
        user=("home/.gemini/settings.json",),
        project=(".gemini/settings.json",),
        form="json-comments",
        trust={"trust": True},
        expands=_VARIABLE,
        remote=Remote("httpUrl", variable="${VAR}"),
        native=(".gemini/skills", ".agents/skills"),
    ),
    "codex": Host(
        "Codex",
        user=("codex/config.toml",),
        project=(".codex/config.toml",),
        form="toml",
        section="mcp_servers",
        remote=Remote(token_key="bearer_token_env_var"),  # noqa: S106 - a key, no secret
        native=(".agents/skills", ".codex/skills"),
    ),
    "opencode": Host(
        "opencode",
        # It reads both and the second wins, so an entry in the first could be hidden by one in the
        # second.
        user=("xdg/opencode/opencode.jsonc", "xdg/opencode/opencode.json"),
        project=("opencode.jsonc", "opencode.json"),
        form="jsonc",
        section="mcp",
        shape="local",
        new={"enabled": True},
        expands=_OPENCODE,
        remote=Remote(more={"type": "remote"}, variable="{env:VAR}"),
        native=(".config/opencode/skills", ".opencode/skills", ".agents/skills", ".claude/skills"),
    ),
    "antigravity": Host(
        "Antigravity", user=("home/.gemini/config/mcp_config.json",), remote=Remote("serverUrl")
    ),
    "qwen-code": Host(
        "Qwen Code",
        user=("home/.qwen/settings.json",),
        project=(".qwen/settings.json",),
        form="json-comments",
        trust={"trust": True},
        expands=_VARIABLE,
        remote=Remote("httpUrl", variable="${VAR}"),
        native=(".qwen/skills",),
    ),
    "copilot-cli": Host(
        "Copilot CLI",
        user=("home/.copilot/mcp-config.json",),
        shape="stdio",
        new={"tools": ["*"]},
        expands=_BRACES,
        remote=Remote(more=_HTTP, variable="${VAR}"),
        native=(".copilot/skills", ".github/skills", ".claude/skills"),
    ),
    "cline": Host(
        "Cline",
        user=("home/.cline/data/settings/cline_mcp_settings.json",),
        remote=Remote(more={"type": "streamableHttp"}),
        native=(".cline/skills", ".claude/skills"),
    ),
    "kiro": Host(
        "Kiro",
        user=("home/.kiro/settings/mcp.json",),
        project=(".kiro/settings/mcp.json",),
        expands=_BRACES,
        remote=Remote(variable="${VAR}"),
        native=(".kiro/skills",),
    ),
    "lm-studio": Host("LM Studio", user=("home/.lmstudio/mcp.json",), remote=Remote()),
    "crush": Host(
        "Crush",
        user=("xdg/crush/crush.json",),
        project=("crush.json",),
        section="mcp",
        shape="stdio",
        expands=_VARIABLE,
        remote=Remote(more=_HTTP, variable="$VAR"),
        native=(".config/crush/skills", ".crush/skills"),
    ),
    "zed": Host(
        "Zed",
        user=("xdg/zed/settings.json",),
        project=(".zed/settings.json",),
        form="jsonc",
        section="context_servers",
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
    places = [f"project/{each}" for each in host.project] if project else host.user
    for place in places:
        name, _, path = place.partition("/")
        base: Path | None = getattr(platform, name)
        if base is None:
            continue
        first, _, rest = path.partition("/")
        if "*" not in first:
            if place == places[-1] or (base / path).is_file():
                return base / path
            continue
        found = [folder / rest for folder in sorted(base.glob(first)) if folder.is_dir()]
        found = [path for path in found if path.is_file()] or found
        if len(found) > 1:
            raise UsageError(
                f"{host.title} is there several times, as in {found[0]}; choose a file with "
                "--config"
            )
        if found:
            return found[0]
    raise UsageError(f"{host.title} has no known place on this system; name its file with --config")


def is_native(host: Host, folder: str | Path, home: str | Path) -> bool:
    """Return whether the host finds skills of this folder without a server, directly or by
    links."""
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
