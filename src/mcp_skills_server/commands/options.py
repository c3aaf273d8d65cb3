"""Options that several commands share, and what is made of them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from mcp_skills_server.commands.logs import log_to_stderr
from mcp_skills_server.errors import RequestError, UsageError

if TYPE_CHECKING:
    from mcp_skills_server.catalog.registry import Registry
    from mcp_skills_server.rpc.methods import ExecutionSettings
    from mcp_skills_server.runtime.runtime import Runtime
    from mcp_skills_server.sources.mirrors import Mirrors

_ONLY_SCRIPTS: Final = {
    "--interpreter": "interpreters",
    "--script-env": "script_env",
    "--script-folder": "script_folders",
    "--script-secret": "script_secrets",
    "--allow-code": "allow_code",
    "--allow-scripts-of": "script_origins",
    "--approvals": "approvals",
}
"""Options that are nothing without --allow-scripts, with the parameter of each."""

_F = TypeVar("_F", bound=Callable[..., Any])


def limits(command: _F) -> _F:
    """The options that bound a skill, and the one for where skills may lie."""
    command = click.option(
        "--hidden/--no-hidden",
        default=False,
        envvar="MCP_SKILLS_HIDDEN",
        help="Also look for skills in folders whose names begin with a dot, such as .claude/skills.",
    )(command)
    for name, default, most, words in (
        ("depth", 32, 64, "How many levels below a root a skill may lie."),
        ("bytes", 16 << 20, None, "Bytes of one skill, all files together."),
        ("files", 512, None, "Files of one skill."),
        ("skill-md", 1 << 20, None, "Bytes of a SKILL.md."),
    ):
        option = click.option(
            f"--max-{name}",
            type=click.IntRange(min=1, max=most),
            default=default,
            show_default=True,
            help=words,
        )
        command = option(command)
    return command


class RootType(click.Path):
    """A folder, an archive, or the address of a site."""

    def split_envvar_value(self, rv: str) -> list[str]:
        """The roots of a variable, separated as in PATH; not within `https://host:8443`."""
        return [each for each in re.split(rf"{re.escape(os.pathsep)}(?!//|\d+(?:[/{os.pathsep}]|$))", rv) if each]


def roots(command: _F) -> _F:
    """What to look at: folders, and with `sites` what is none."""
    argument = click.argument(
        "roots", nargs=-1, required=True, metavar="ROOT...", type=RootType(), envvar="MCP_SKILLS_ROOTS"
    )
    return sites(argument(command))


def sites(command: _F) -> _F:
    """The options for roots that are sites."""
    for option in (
        click.option(
            "--fetch-origin",
            "fetch_origins",
            multiple=True,
            metavar="ORIGIN",
            help="Another origin that skills of a site may be fetched from. May be repeated.",
        ),
        click.option("--allow-http", is_flag=True, help="Fetch from sites over plain http, too."),
        click.option("--allow-private", is_flag=True, help="Fetch from private and loopback addresses, too."),
        click.option(
            "--cache-dir",
            type=click.Path(file_okay=False),
            metavar="DIR",
            help="Where skills of sites are kept, and what publish need not read again; by default the user's cache.",
        ),
    ):
        command = option(command)
    return command


def _canonical(_context: click.Context, _parameter: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    """Origins in the spelling that is compared, whatever folder another server is started in."""
    from mcp_skills_server.runtime.scripts.policy import canonical

    return tuple(map(canonical, value))


def approvals_file(command: _F) -> _F:
    """The option for where approvals are kept."""
    return click.option(
        "--approvals",
        type=click.Path(dir_okay=False),
        metavar="FILE",
        help="Where it stands which skills were approved; by default in the user's state directory.",
    )(command)


def scripts(command: _F) -> _F:
    """The options for running scripts of skills."""
    command = approvals_file(command)
    for option in (
        click.option(
            "--interpreter",
            "interpreters",
            multiple=True,
            metavar=".EXT=PROGRAM",
            help="Run scripts of this extension with this program, such as .py=/opt/venv/bin/python. May be repeated.",
        ),
        click.option(
            "--script-folder",
            "script_folders",
            multiple=True,
            type=click.Path(),
            metavar="DIR",
            help="A folder that sandboxed scripts may read and write. May be repeated.",
        ),
        click.option(
            "--script-env",
            "script_env",
            multiple=True,
            metavar="VARIABLE",
            help="A variable that callers may set for scripts, beside those that a skill declares. May be repeated.",
        ),
        click.option(
            "--script-network/--no-script-network", default=False, help="Let sandboxed scripts reach the network."
        ),
        click.option("--script-concurrency", type=click.IntRange(min=1), default=4, help="Scripts at once."),
        click.option(
            "--script-memory",
            type=click.IntRange(min=1 << 20),
            default=2 << 30,
            metavar="BYTES",
            help="Memory of a script.",
        ),
        click.option(
            "--script-output",
            type=click.IntRange(min=1),
            default=256 << 10,
            metavar="BYTES",
            help="What is kept of a script's stdout, and of its stderr.",
        ),
        click.option(
            "--script-timeout",
            type=click.FloatRange(min=0, min_open=True),
            default=60,
            metavar="SECONDS",
            help="Time of a script, unless the call says otherwise.",
        ),
        click.option(
            "--sandbox",
            type=click.Choice(["required", "off"]),
            default="required",
            help="Run scripts in bubblewrap. off: without, with all rights of the server's user, who must not be root.",
        ),
        click.option(
            "--allow-scripts-of",
            "script_origins",
            multiple=True,
            callback=_canonical,
            metavar="ORIGIN",
            help="Run approved skills of this site or archive, too, named as 'show' does. May be repeated.",
        ),
        click.option(
            "--allow-scripts/--no-allow-scripts",
            default=False,
            help="Let clients run what skills of your own folders bring: scripts of loaded skills, and actions by the "
            "Skills Protocol.",
        ),
    ):
        command = option(command)
    return command


def execution(command: _F) -> _F:
    """The options for what the Skills Protocol may run where scripts are allowed."""
    for option in (
        click.option(
            "--script-secret",
            "script_secrets",
            multiple=True,
            metavar="SKILL:VARIABLE",
            help="Skills Protocol: hand this variable of the server's environment to the skill at this path, if its "
            "skill.toml declares it; ORIGIN#PATH for one of a site or an archive. May be repeated.",
        ),
        click.option(
            "--allow-code/--no-allow-code",
            default=False,
            help="Skills Protocol: let run_code run what comes with a call. Needs --allow-scripts.",
        ),
    ):
        command = option(command)
    return command


def execution_settings(options: dict[str, Any]) -> ExecutionSettings:
    """What the Skills Protocol may run.

    Raises:
        UsageError: there is no such variable, or it is none to hand on.
    """
    from mcp_skills_server.rpc.methods import ExecutionSettings

    return ExecutionSettings(code=options["allow_code"], secrets=_secrets(options))


def _secrets(options: dict[str, Any]) -> dict[str, Mapping[str, str]]:
    from mcp_skills_server.runtime.scripts.arguments import checked_env
    from mcp_skills_server.runtime.scripts.policy import canonical

    out: dict[str, Mapping[str, str]] = {}
    for given in options["script_secrets"]:
        skill, colon, name = given.rpartition(":")
        if not colon or not skill or not name:
            raise UsageError(f"--script-secret {given}: write SKILL:VARIABLE, such as billing/refunds:API_KEY")
        if name not in os.environ:
            raise UsageError(f"--script-secret {given}: no such variable in the server's environment; set it")
        origin, mark, path = skill.rpartition("#")
        whose = f"{canonical(origin)}#{path}" if mark else skill
        try:
            out[whose] = {**out.get(whose, {}), **checked_env({name: os.environ[name]}, None)}
        except RequestError as error:
            raise UsageError(f"--script-secret: {error}") from None
    return out


def make_runtime(registry: Registry, options: dict[str, Any]) -> Runtime:
    """What the tools run on.

    Raises:
        UsageError: scripts cannot be run the way that is asked for.
    """
    from mcp_skills_server.runtime.runtime import Runtime, RuntimeSettings

    settings = RuntimeSettings(max_loaded=options["max_loaded"], overview_characters=options["catalog_chars"])
    if not options["allow_scripts"]:
        for name, key in _ONLY_SCRIPTS.items():
            if options.get(key):
                raise UsageError(f"{name} says what scripts may do; give --allow-scripts too")
        return Runtime(registry, settings)
    from mcp_skills_server.runtime.scripts.settings import ScriptSettings

    interpreters: dict[str, str] = {}
    for given in options["interpreters"]:
        extension, equals, program = given.partition("=")
        if not equals or not program or not extension.startswith("."):
            raise UsageError(f"--interpreter {given}: write .EXT=PROGRAM, such as .py=/opt/venv/bin/python")
        interpreters[extension.lower()] = program
    if "script_secrets" in options:
        _secrets(options)  # wrong usage is one line: it is reported before a sandbox is tried, which may log one
    timeout, usual = float(options["script_timeout"]), ScriptSettings()
    chosen = ScriptSettings(
        timeout_s=timeout,
        max_timeout_s=max(timeout, usual.max_timeout_s),
        output_bytes=options["script_output"],
        concurrent=options["script_concurrency"],
        memory_bytes=options["script_memory"],
        sandbox=options["sandbox"],
        network=options["script_network"],
        folders=options["script_folders"],
        interpreters=interpreters,
        env=tuple(options["script_env"]),
        origins=tuple(options["script_origins"]),
        approvals=options["approvals"],
    )
    return Runtime(registry, settings, scripts=chosen)


def make_registry(given: Sequence[str], options: dict[str, Any]) -> Registry:
    """A registry of these roots, sites fetched now.

    Raises:
        UsageError: a root is not there or cannot be had.
    """
    if not all(map(os.path.isdir, given)):
        log_to_stderr("warning")
    registry, mirrors = open_roots(given, options)
    if mirrors is not None:
        mirrors.fetch()
    return registry


def open_roots(given: Sequence[str], options: dict[str, Any]) -> tuple[Registry, Mirrors | None]:
    """A registry of these roots, and what keeps those current that are no folders, if there are such.

    Raises:
        UsageError: a root is not there or cannot be had.
    """
    from mcp_skills_server.catalog.registry import Registry
    from mcp_skills_server.catalog.roots import Limits

    measures = {name: options[f"max_{name}"] for name in ("skill_md", "files", "bytes", "depth")}
    limits = Limits(**measures, hidden=options["hidden"])
    if all(os.path.isdir(root) for root in given):
        return Registry(given, limits), None
    from pathlib import Path

    from mcp_skills_server.dialects import wellknown
    from mcp_skills_server.directories import cache_directory
    from mcp_skills_server.sources.mirrors import Mirrors
    from mcp_skills_server.sources.settings import FetchSettings, OriginPolicy, SourceSettings

    origins = frozenset(wellknown.origin(each) for each in options["fetch_origins"])
    trust = OriginPolicy(origins, private=options["allow_private"], http=options["allow_http"])
    cache = Path(options["cache_dir"]) if options["cache_dir"] else cache_directory()
    mirrors = Mirrors(SourceSettings(cache, limits.hidden, FetchSettings(trust=trust)))
    return Registry([mirrors.root(root) for root in given], limits), mirrors
