"""Options that several commands share, and what is made of them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

import click

from mcp_skills_server.commands.caches import cache_folder, index_files
from mcp_skills_server.commands.fields import Options, flag, many, option, switch
from mcp_skills_server.commands.logs import log_to_stderr
from mcp_skills_server.errors import RequestError, UsageError

if TYPE_CHECKING:
    from mcp_skills_server.catalog.gates import Gate
    from mcp_skills_server.catalog.registry import MirroredRoot, Registry
    from mcp_skills_server.catalog.roots import Limits
    from mcp_skills_server.rpc.methods import ExecutionSettings
    from mcp_skills_server.runtime.runtime import Runtime
    from mcp_skills_server.sources.mirrors import Mirrors

_F = TypeVar("_F", bound=Callable[..., Any])
_COUNT = click.IntRange(min=1)


class RootType(click.Path):
    """A folder, an archive, or the address of a site."""

    def split_envvar_value(self, rv: str) -> list[str]:
        """The roots of a variable, separated as in PATH; not within `https://host:8443`, nor before a tag of oci://."""
        found = [each for each in re.split(rf"{re.escape(os.pathsep)}(?!//|\d+(?:[/{os.pathsep}]|$))", rv) if each]
        out: list[str] = []
        for each in found:
            if out and os.pathsep == ":" and _continues(out[-1], each):
                out[-1] += f":{each}"
            else:
                out.append(each)
        return out


def _continues(root: str, text: str) -> bool:
    """Whether what follows a root and a colon is the tag of an artifact, or the rest of its digest."""
    name = root.rpartition("/")[2]
    is_open = ":" not in name or name.endswith("@sha256")
    return root.lower().startswith(("oci://", "oci+http://")) and is_open and "/" not in text


def roots(command: _F) -> _F:
    """The argument for the folders, archives and sites that hold skills."""
    return _roots(command, required=True, metavar="ROOT...")


def roots_or_lock(command: _F) -> _F:
    """The same where a lock file may name them."""
    return _roots(command, required=False, metavar="[ROOT...]")


def _roots(command: _F, **how: Any) -> _F:
    return click.argument("roots", nargs=-1, type=RootType(), envvar="MCP_SKILLS_ROOTS", **how)(command)


class LimitOptions(Options):
    """What bounds a skill, and where skills may lie."""

    heading: ClassVar[str] = "Which skills there are"
    max_skill_md: int = option(1 << 20, "Bytes of a SKILL.md.", type=_COUNT, show_default=True)
    max_files: int = option(512, "Files of one skill.", type=_COUNT, show_default=True)
    max_bytes: int = option(16 << 20, "Bytes of one skill, all files together.", type=_COUNT, show_default=True)
    max_depth: int = option(
        32, "How many levels below a root a skill may lie.", type=click.IntRange(min=1, max=64), show_default=True
    )
    hidden: bool = switch(
        False,
        "Also look for skills in folders whose names begin with a dot, such as .claude/skills.",
        envvar="MCP_SKILLS_HIDDEN",
    )


class SiteOptions(Options):
    """How roots are fetched that are sites."""

    heading: ClassVar[str] = "Roots that are sites"
    cache_dir: str | None = option(
        None,
        "Where skills of sites are kept, what a restart and publish need not read again; by default the user's cache.",
        type=click.Path(file_okay=False),
        metavar="DIR",
    )
    cache_size: int = option(
        10 << 30,
        "What copies of sites may take there; what was not used for the longest goes first, what is served never.",
        type=_COUNT,
        metavar="BYTES",
    )
    allow_private: bool = flag("Fetch from private and loopback addresses, too.")
    allow_http: bool = flag("Fetch from sites over plain http, too.")
    fetch_origins: tuple[str, ...] = many(
        "Another origin that skills of a site may be fetched from. May be repeated.", "--fetch-origin", metavar="ORIGIN"
    )


class RootOptions(LimitOptions, SiteOptions):
    """How the roots of a command are read."""


def _canonical(_context: click.Context, _parameter: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    """Origins in the spelling that is compared, whatever folder another server is started in."""
    if not value:
        return ()
    from mcp_skills_server.runtime.scripts.policy import canonical

    return tuple(map(canonical, value))


class ApprovalOptions(Options):
    """Where approvals are kept."""

    heading: ClassVar[str] = "Running scripts"
    approvals: str | None = option(
        None,
        "The file that lists approved skills; by default in the user's state directory.",
        envvar="MCP_SKILLS_APPROVALS",
        type=click.Path(dir_okay=False),
        metavar="FILE",
    )


class ScriptOptions(ApprovalOptions):
    """Whether and how scripts of skills run."""

    heading: ClassVar[str] = "Running scripts"
    allow_scripts: bool = switch(
        False,
        "Let clients run what skills of your own folders bring: scripts of loaded skills, and actions by the Skills "
        "Protocol.",
    )
    script_origins: tuple[str, ...] = many(
        "Run approved skills of this site or archive, too, named as 'show' does. May be repeated.",
        "--allow-scripts-of",
        callback=_canonical,
        metavar="ORIGIN",
    )
    sandbox: Literal["required", "off"] = option(
        "required",
        "Run scripts in bubblewrap. off: without, with all rights of the server's user, who must not be root.",
        type=click.Choice(["required", "off"]),
    )
    script_timeout: float = option(
        60,
        "Time of a script, unless the call says otherwise.",
        type=click.FloatRange(min=0, min_open=True),
        metavar="SECONDS",
    )
    script_output: int = option(
        256 << 10, "What is kept of a script's stdout, and of its stderr.", type=_COUNT, metavar="BYTES"
    )
    script_memory: int = option(2 << 30, "Memory of a script.", type=click.IntRange(min=1 << 20), metavar="BYTES")
    script_concurrency: int = option(4, "Scripts at once.", type=_COUNT)
    script_network: bool = switch(False, "Let sandboxed scripts reach the network.")
    script_env: tuple[str, ...] = many(
        "A variable that callers may set for scripts, beside those that a skill declares. May be repeated.",
        metavar="VARIABLE",
    )
    script_folders: tuple[str, ...] = many(
        "A folder that sandboxed scripts may read and write. May be repeated.",
        "--script-folder",
        type=click.Path(),
        metavar="DIR",
    )
    interpreters: tuple[str, ...] = many(
        "Run scripts of this extension with this program, such as .py=/opt/venv/bin/python. May be repeated.",
        "--interpreter",
        metavar=".EXT=PROGRAM",
    )


class ExecutionOptions(Options):
    """What the Skills Protocol may run where scripts are allowed."""

    heading: ClassVar[str] = "Running scripts"
    allow_code: bool = switch(False, "Skills Protocol: let run_code run what comes with a call. Needs --allow-scripts.")
    script_secrets: tuple[str, ...] = many(
        "Skills Protocol: pass this variable of the server's environment to the skill at this path, if its skill.toml "
        "declares it; ORIGIN#PATH for one of a site or an archive. May be repeated.",
        "--script-secret",
        metavar="SKILL:VARIABLE",
    )


class RuntimeOptions(ScriptOptions, ExecutionOptions):
    """All that says what may run."""


def execution_settings(options: ExecutionOptions) -> ExecutionSettings:
    """What the Skills Protocol may run.

    Raises:
        UsageError: a variable is not set, or its name cannot be passed on.
    """
    from mcp_skills_server.rpc.methods import ExecutionSettings

    return ExecutionSettings(code=options.allow_code, secrets=_secrets(options.script_secrets))


def _secrets(pairs: Sequence[str]) -> dict[str, Mapping[str, str]]:
    from mcp_skills_server.runtime.scripts.arguments import checked_env
    from mcp_skills_server.runtime.scripts.policy import canonical

    out: dict[str, Mapping[str, str]] = {}
    for given in pairs:
        skill, colon, name = given.rpartition(":")
        if not colon or not skill or not name:
            raise UsageError(f"--script-secret {given}: write SKILL:VARIABLE, such as billing/refunds:API_KEY")
        if name not in os.environ:
            raise UsageError(f"--script-secret {given}: no such variable in the server's environment; set it")
        origin, mark, path = skill.rpartition("#")
        reference = f"{canonical(origin)}#{path}" if mark else skill
        try:
            out[reference] = {**out.get(reference, {}), **checked_env({name: os.environ[name]}, None)}
        except RequestError as error:
            raise UsageError(f"--script-secret: {error}") from None
    return out


def make_runtime(registry: Registry, options: RuntimeOptions, *, max_loaded: int, catalog_chars: int) -> Runtime:
    """The runtime of a server's sessions.

    Args:
        registry: the skills.
        options: whether and how scripts run.
        max_loaded: skills that a session may have loaded at once.
        catalog_chars: characters of the list of skills in the instructions and in a tool's description.

    Raises:
        UsageError: scripts cannot be run as the options ask.
    """
    from mcp_skills_server.runtime.runtime import Runtime, RuntimeSettings

    settings = RuntimeSettings(max_loaded=max_loaded, overview_characters=catalog_chars)
    if not options.allow_scripts:
        for name, value in (
            ("--interpreter", options.interpreters),
            ("--script-env", options.script_env),
            ("--script-folder", options.script_folders),
            ("--script-secret", options.script_secrets),
            ("--allow-code", options.allow_code),
            ("--allow-scripts-of", options.script_origins),
            ("--approvals", options.approvals),
        ):
            if value:
                raise UsageError(f"{name} says what scripts may do; give --allow-scripts too")
        return Runtime(registry, settings)
    from mcp_skills_server.runtime.scripts.settings import ScriptSettings

    interpreters: dict[str, str] = {}
    for given in options.interpreters:
        extension, equals, program = given.partition("=")
        if not equals or not program or not extension.startswith("."):
            raise UsageError(f"--interpreter {given}: write .EXT=PROGRAM, such as .py=/opt/venv/bin/python")
        interpreters[extension.lower()] = program
    _secrets(options.script_secrets)  # wrong usage is one line: it is reported before a sandbox is tried
    chosen = ScriptSettings(
        timeout_s=options.script_timeout,
        max_timeout_s=max(options.script_timeout, ScriptSettings().max_timeout_s),
        output_bytes=options.script_output,
        concurrent=options.script_concurrency,
        memory_bytes=options.script_memory,
        sandbox=options.sandbox,
        network=options.script_network,
        folders=options.script_folders,
        interpreters=interpreters,
        env=options.script_env,
        origins=options.script_origins,
        approvals=options.approvals,
    )
    return Runtime(registry, settings, scripts=chosen)


def open_folder(given: str, options: LimitOptions) -> Registry:
    """A registry of one folder of the operator's own, not yet loaded.

    Raises:
        UsageError: it is no folder.
    """
    from mcp_skills_server.catalog.registry import Registry

    return Registry([given], _limits(options))


def make_registry(
    given: Sequence[str], options: RootOptions, *, proved: bool = False, indexed: bool = False
) -> Registry:
    """A registry of these roots, sites fetched now.

    Args:
        given: the roots.
        options: how they are read.
        proved: a copy of an earlier time will not do.
        indexed: as for `open_roots`.

    Raises:
        UsageError: a root does not exist or cannot be read or fetched.
    """
    if not all(map(os.path.isdir, given)):
        log_to_stderr("warning")
    registry, mirrors = open_roots(given, options, indexed=indexed)
    if mirrors is not None:
        mirrors.fetch(proved=proved)
    return registry


def open_roots(
    given: Sequence[str],
    options: RootOptions,
    *,
    indexed: bool = False,
    pins: Sequence[str | None] = (),
    gates: Callable[[Sequence[str]], Sequence[Gate]] = lambda _: (),
) -> tuple[Registry, Mirrors | None]:
    """A registry of these roots, and what keeps those current that are no folders, if there are such.

    Args:
        given: the roots.
        options: how they are read.
        indexed: begin with what an earlier process knew of them, and leave it to the next where a watcher follows them.
        pins: for each root the revision that is wanted, None for the newest; () for the newest of all.
        gates: makes what refuses skills of the folders that the roots are read from.

    Raises:
        UsageError: a root does not exist or cannot be read or fetched.
    """
    from mcp_skills_server.catalog.gates import all_of
    from mcp_skills_server.catalog.registry import Registry

    limits = _limits(options)
    mirrors: Mirrors | None = None
    folders: list[str | MirroredRoot] = [*given]
    if not all(os.path.isdir(root) for root in given):
        mirrors = _mirrors(options)
        folders = [mirrors.root(root, pin) for root, pin in zip(given, pins or [None] * len(given), strict=True)]
    gate = all_of(gates([os.path.abspath(each if isinstance(each, str) else each.path) for each in folders]))
    files = index_files(options.cache_dir) if indexed else None
    return Registry(folders, limits, index_files=files, gate=gate), mirrors


def _limits(options: LimitOptions) -> Limits:
    from mcp_skills_server.catalog.roots import Limits

    return Limits(options.max_skill_md, options.max_files, options.max_bytes, options.max_depth, options.hidden)


def _mirrors(options: RootOptions) -> Mirrors:
    from mcp_skills_server.dialects import wellknown
    from mcp_skills_server.sources.mirrors import Mirrors
    from mcp_skills_server.sources.settings import FetchSettings, OriginPolicy, SourceSettings

    origins = frozenset(wellknown.origin(each) for each in options.fetch_origins)
    trust = OriginPolicy(origins, private=options.allow_private, http=options.allow_http)
    cache = cache_folder(options.cache_dir)
    return Mirrors(SourceSettings(cache, options.hidden, FetchSettings(trust=trust), cache_bytes=options.cache_size))
