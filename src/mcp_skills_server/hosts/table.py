"""Table of the supported hosts: where each keeps its configuration, and in which form.

A new host is a new row. A `Platform` has what differs between machines (system, home, environment),
so that each row can be tested for every system on any of them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, Literal

from mcp_skills_server.errors import UsageError

Form = Literal["json", "json-comments", "jsonc", "toml"]
"""json: strict; json-comments: with comments; jsonc: with comments and trailing commas."""
Shape = Literal["plain", "stdio", "local"]
"""The fields of an entry. plain: `command` and `args`; stdio: these and `"type": "stdio"`; local:
`"type": "local"` and `command`, a list of all words."""


@dataclass(frozen=True, slots=True)
class Platform:
    """Folders of one user on one machine."""

    home: Path
    applications: Path
    """Settings of desktop applications."""
    project: Path
    packages: Path | None
    """Data of packaged applications on Windows, None elsewhere."""
    claude: Path
    """The folder of Claude Code's `.claude.json`."""
    codex: Path
    xdg: Path
    """Settings of programs that follow the XDG base directories on every system."""

    @classmethod
    def for_system(
        cls, system: str, home: Path, project: Path, environment: Mapping[str, str]
    ) -> Platform:
        """Return the folders for a `system`, a value of `sys.platform`."""

        def folder(variable: str, otherwise: Path) -> Path:
            return Path(environment.get(variable) or otherwise)

        xdg = folder("XDG_CONFIG_HOME", home / ".config")
        applications, packages = xdg, None
        if system == "win32":
            applications = folder("APPDATA", home / "AppData" / "Roaming")
            packages = folder("LOCALAPPDATA", home / "AppData" / "Local") / "Packages"
        elif system == "darwin":
            applications = home / "Library" / "Application Support"
        claude, codex = folder("CLAUDE_CONFIG_DIR", home), folder("CODEX_HOME", home / ".codex")
        return cls(home, applications, project, packages, claude, codex, xdg)


@dataclass(frozen=True, slots=True)
class Remote:
    """A host's notation for a server that it reaches by URL."""

    url: str = "url"
    """The key of the URL."""
    more: Mapping[str, object] = field(default_factory=dict[str, object])
    """Further members of such an entry."""
    variable: str = ""
    """A header's reference to an environment variable, with VAR for its name; "" if unknown."""
    token_key: str | None = None
    """The key that names the variable of a bearer token, in hosts without headers."""


_HTTP: Final = {"type": "http"}


@dataclass(frozen=True, slots=True)
class HostContext:
    """The part of a server that a host shows its model; the defaults are assumed."""

    client: str = ""
    """The client's name in its MCP handshake, "" if unknown."""
    version: str = ""
    """The measured version of the host (`make hosts`), "" for none."""
    instructions: Literal["all", "first line", "none"] = "all"
    """The part of the server's instructions that is shown unasked."""
    tools: Literal["all", "names", "none"] = "all"
    """The part of the tools that is shown unasked; the host searches for the rest."""
    text_characters: int | None = None
    """The length at which the instructions are cut; None for no cut."""
    result_characters: int = 40_000
    """The length at which the result of a tool is cut."""
    measured: tuple[str, ...] = ()
    """The figures of these four that were measured with the real program; others are assumed."""

    def figures(self) -> list[tuple[str, str, str]]:
        """Return the name and the value of each figure, and "measured" or "assumed"."""
        out: list[tuple[str, str, str]] = []
        for name in _FIGURES:
            value = getattr(self, name)
            shown = f"{value:,}" if isinstance(value, int) else value or "no cut"
            out.append((name, shown, "measured" if name in self.measured else "assumed"))
        return out


_FIGURES: Final = ("instructions", "tools", "text_characters", "result_characters")
_measured: Final = partial(HostContext, measured=_FIGURES)


@dataclass(frozen=True, slots=True)
class Host:
    """An MCP host and its configuration file."""

    title: str
    user: tuple[str, ...]
    """Candidates for the user's file: a field of `Platform`, then the path in that folder.

    `*` in the path's first name matches an existing folder, which decides. Otherwise the first file
    that exists is chosen, or else the last candidate.
    """
    project: tuple[str, ...] = ()
    """Candidates for a project's file, relative to the project; empty if unsupported."""
    form: Form = "json"
    section: str = "mcpServers"
    """The key that holds its servers."""
    shape: Shape = "plain"
    new: Mapping[str, object] = field(default_factory=dict[str, object])
    """Switches of a new entry; in an existing entry they stay as the user set them."""
    trust: Mapping[str, object] | None = None
    """Members that `--trust` adds to an entry, None if the host has no such switch."""
    expands: re.Pattern[str] | None = None
    """Matches placeholders that the host expands in a command or an argument."""
    remote: Remote | None = None
    """The notation of a server by URL; None if its file has no such entry."""
    native: tuple[str, ...] = ()
    """Folders of skills that the host reads itself, below the home folder or a project."""
    context: HostContext = HostContext()


_BRACES: Final = re.compile(r"\$\{")
_VARIABLE: Final = re.compile(r"\$(?:\{|[A-Za-z_])")
_OPENCODE: Final = re.compile(r"\{(?:env|file):")

HOSTS: Final[Mapping[str, Host]] = {
    "claude-desktop": Host(
        "Claude Desktop",
        # The Windows installer makes a packaged application, for which Windows redirects
        # %APPDATA% to the first folder.
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
        context=_measured("claude-code", "2.1.332", tools="names", text_characters=4_096),
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
        context=_measured("gemini-cli-mcp-client", "0.61.0"),
    ),
    "codex": Host(
        "Codex",
        user=("codex/config.toml",),
        project=(".codex/config.toml",),
        form="toml",
        section="mcp_servers",
        remote=Remote(token_key="bearer_token_env_var"),  # noqa: S106 - a key, no secret
        native=(".agents/skills", ".codex/skills"),
        context=_measured("codex-mcp-client", "0.171.0", instructions="first line", tools="none"),
    ),
    "opencode": Host(
        "opencode",
        # opencode reads both files, and entries of opencode.jsonc override those of opencode.json.
        user=("xdg/opencode/opencode.jsonc", "xdg/opencode/opencode.json"),
        project=("opencode.jsonc", "opencode.json"),
        form="jsonc",
        section="mcp",
        shape="local",
        new={"enabled": True},
        expands=_OPENCODE,
        remote=Remote(more={"type": "remote"}, variable="{env:VAR}"),
        native=(".config/opencode/skills", ".opencode/skills", ".agents/skills", ".claude/skills"),
        context=_measured("opencode", "1.18.33", result_characters=51_200),
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
        context=HostContext(
            "qwen-code",
            "0.24.4",
            tools="names",
            result_characters=8_000,
            measured=("instructions",),
        ),
    ),
    "copilot-cli": Host(
        "Copilot CLI",
        user=("home/.copilot/mcp-config.json",),
        shape="stdio",
        new={"tools": ["*"]},
        expands=_BRACES,
        remote=Remote(more=_HTTP, variable="${VAR}"),
        native=(".copilot/skills", ".github/skills", ".claude/skills"),
        context=HostContext(
            "copilot",
            "1.0.102",
            instructions="none",
            result_characters=8_000,
            measured=("instructions", "tools"),
        ),
    ),
    "cline": Host(
        "Cline",
        user=("home/.cline/data/settings/cline_mcp_settings.json",),
        remote=Remote(more={"type": "streamableHttp"}),
        native=(".cline/skills", ".claude/skills"),
        context=HostContext(
            "@cline/core",
            "3.0.65",
            instructions="none",
            result_characters=8_000,
            measured=("instructions", "tools", "result_characters"),
        ),
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
        UsageError: the host has no file for this project or system, or several candidates exist.
    """
    if project and not host.project:
        raise UsageError(f"{host.title} has no configuration for a project; leave --project out")
    candidates = [f"project/{relative}" for relative in host.project] if project else host.user
    for candidate in candidates:
        name, _, path = candidate.partition("/")
        base: Path | None = getattr(platform, name)
        if base is None:
            continue
        first, _, rest = path.partition("/")
        if "*" not in first:
            if candidate == candidates[-1] or (base / path).is_file():
                return base / path
            continue
        files = [folder / rest for folder in sorted(base.glob(first)) if folder.is_dir()]
        files = [file for file in files if file.is_file()] or files
        if len(files) > 1:
            several = f"has several configuration files, such as {files[0]}"
            raise UsageError(f"{host.title} {several}; choose one with --config")
        if files:
            return files[0]
    raise UsageError(f"{host.title} has no known file on this system; name it with --config")


def is_native(host: Host, folder: str | Path, home: str | Path) -> bool:
    """Return True if the host reads the skills of this folder by itself, directly or by links."""
    given, real = Path(os.path.abspath(folder)), Path(os.path.realpath(folder))
    for native in host.native:
        # A native folder of any project counts: the host may be started in that project.
        if any(f"/{native}/" in f"{path.as_posix()}/" for path in (given, real)):
            return True
        own = Path(home, native)
        if real.is_relative_to(os.path.realpath(own)):
            return True
        with suppress(OSError):  # `npx skills add` links single skills from there
            if any(Path(os.path.realpath(child)).is_relative_to(real) for child in own.iterdir()):
                return True
    return False
