"""Options that say whether and how scripts of skills run, and what is made of them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Final, Literal

import click

from mcp_skills_server.commands.fields import Options, many, option, switch
from mcp_skills_server.errors import RequestError, UsageError

if TYPE_CHECKING:
    from mcp_skills_server.catalog.registry import Registry
    from mcp_skills_server.runtime.runtime import Runtime

_COUNT: Final = click.IntRange(min=1)


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
    script_network_of: tuple[str, ...] = many(
        "Let sandboxed scripts of the skill at this path reach the network, and no others; ORIGIN#PATH for one of a "
        "site, an archive, git or a registry. May be repeated.",
        metavar="SKILL",
    )
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
        "Pass this variable of the server's environment to scripts of the skill at this path, if its skill.toml "
        "declares it; ORIGIN#PATH for one of a site or an archive. May be repeated.",
        "--script-secret",
        metavar="SKILL:VARIABLE",
    )


class RuntimeOptions(ScriptOptions, ExecutionOptions):
    """All that says what may run."""


def _reference(given: str) -> str:
    """A skill as the policy compares it, of `[ORIGIN#]PATH`."""
    from mcp_skills_server.runtime.scripts.policy import canonical

    origin, mark, path = given.rpartition("#")
    return f"{canonical(origin)}#{path}" if mark else given


def _secrets(pairs: Sequence[str]) -> dict[str, Mapping[str, str]]:
    from mcp_skills_server.runtime.scripts.arguments import checked_env

    out: dict[str, Mapping[str, str]] = {}
    for given in pairs:
        skill, colon, name = given.rpartition(":")
        if not colon or not skill or not name:
            raise UsageError(f"--script-secret {given}: write SKILL:VARIABLE, such as billing/refunds:API_KEY")
        if name not in os.environ:
            raise UsageError(f"--script-secret {given}: no such variable in the server's environment; set it")
        reference = _reference(skill)
        try:
            out[reference] = {**out.get(reference, {}), **checked_env({name: os.environ[name]}, None)}
        except RequestError as error:
            raise UsageError(f"--script-secret: {error}") from None
    return out


def make_runtime(
    registry: Registry,
    options: RuntimeOptions,
    *,
    max_loaded: int,
    catalog_chars: int | None,
    local_root_dirs: bool = False,
    roots: Mapping[str, bool] = MappingProxyType({}),
    runs: int | None = None,
    wait_for_sandbox: bool = True,
) -> Runtime:
    """The runtime of a server's sessions.

    Args:
        registry: the skills.
        options: whether and how scripts run.
        max_loaded: skills that a session may have loaded at once.
        catalog_chars: characters of the list of skills in the instructions and in a tool's description; None for what
            suits the client.
        local_root_dirs: whether models learn the directories of skills from local folders.
        roots: whether scripts of single roots may run, by their folders.
        runs: scripts of one client at once; None for all but one of those that run at once.
        wait_for_sandbox: as for `ScriptSettings`.

    Raises:
        UsageError: scripts cannot be run as the options ask.
    """
    from mcp_skills_server.runtime.runtime import Runtime, RuntimeSettings

    settings = RuntimeSettings(
        max_loaded=max_loaded, overview_characters=catalog_chars, local_root_dirs=local_root_dirs
    )
    if not options.allow_scripts:
        for name, value in (
            ("--interpreter", options.interpreters),
            ("--script-env", options.script_env),
            ("--script-folder", options.script_folders),
            ("--script-secret", options.script_secrets),
            ("--script-network-of", options.script_network_of),
            ("--allow-code", options.allow_code),
            ("--allow-scripts-of", options.script_origins),
            ("--approvals", options.approvals),
        ):
            if value:
                raise UsageError(f"{name} says what scripts may do; give --allow-scripts too")
        if any(roots.values()):
            raise UsageError("a [[source]] has scripts = true, and scripts are off; give allow-scripts = true too")
        return Runtime(registry, settings)
    from mcp_skills_server.runtime.scripts.settings import ScriptSettings

    interpreters: dict[str, str] = {}
    for given in options.interpreters:
        extension, equals, program = given.partition("=")
        if not equals or not program or not extension.startswith("."):
            raise UsageError(f"--interpreter {given}: write .EXT=PROGRAM, such as .py=/opt/venv/bin/python")
        interpreters[extension.lower()] = program
    chosen = ScriptSettings(
        timeout_s=options.script_timeout,
        max_timeout_s=max(options.script_timeout, ScriptSettings().max_timeout_s),
        output_bytes=options.script_output,
        concurrent=options.script_concurrency,
        runs=runs,
        memory_bytes=options.script_memory,
        sandbox=options.sandbox,
        wait_for_sandbox=wait_for_sandbox,
        network=options.script_network,
        network_of=tuple(map(_reference, options.script_network_of)),
        secrets=_secrets(options.script_secrets),
        folders=options.script_folders,
        interpreters=interpreters,
        env=options.script_env,
        origins=options.script_origins,
        approvals=options.approvals,
        roots=roots,
    )
    return Runtime(registry, settings, scripts=chosen)
