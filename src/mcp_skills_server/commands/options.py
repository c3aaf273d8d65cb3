"""Options that several commands share, and what is made of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from mcp_skills_server.errors import UsageError

if TYPE_CHECKING:
    from mcp_skills_server.catalog.registry import Registry
    from mcp_skills_server.catalog.scan import Limits
    from mcp_skills_server.runtime.session import Runtime

_F = TypeVar("_F", bound=Callable[..., Any])


def limits(command: _F) -> _F:
    """The options that bound a skill."""
    for name, default, words in (
        ("depth", 6, "Levels of folders between a root and a skill."),
        ("bytes", 16 << 20, "Bytes of one skill, all files together."),
        ("files", 512, "Files of one skill."),
        ("skill-md", 1 << 20, "Bytes of a SKILL.md."),
    ):
        option = click.option(
            f"--max-{name}",
            type=click.IntRange(min=1),
            default=default,
            show_default=True,
            help=words,
        )
        command = option(command)
    return command


def roots(command: _F) -> _F:
    """The folders to look at."""
    return click.argument(
        "roots", nargs=-1, required=True, metavar="ROOT...", type=click.Path(), envvar="MCP_SKILLS_ROOTS"
    )(command)


def scripts(command: _F) -> _F:
    """The options for running scripts of skills."""
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
            type=click.Choice(["required", "auto", "off"]),
            default="auto",
            help="Run scripts in bubblewrap. auto: where it is installed and works.",
        ),
        click.option(
            "--allow-scripts/--no-allow-scripts",
            default=False,
            help="Let the model run scripts from the scripts/ directory of skills it has loaded.",
        ),
    ):
        command = option(command)
    return command


def make_runtime(registry: Registry, options: dict[str, Any]) -> Runtime:
    """What the tools run on.

    Raises:
        UsageError: scripts cannot be run the way that is asked for.
    """
    from mcp_skills_server.runtime.session import Runtime, RuntimeSettings

    settings = RuntimeSettings(max_loaded=options["max_loaded"], catalogue_tokens=options["catalog_tokens"])
    if not options["allow_scripts"]:
        return Runtime(registry, settings)
    from mcp_skills_server.runtime.scripts import ScriptSettings

    interpreters: dict[str, str] = {}
    for given in options["interpreters"]:
        extension, equals, program = given.partition("=")
        if not equals or not program or not extension.startswith("."):
            raise UsageError(f"--interpreter {given}: write .EXT=PROGRAM, such as .py=/opt/venv/bin/python")
        interpreters[extension.lower()] = program
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
    )
    return Runtime(registry, settings, scripts=chosen)


def make_registry(given: tuple[str, ...], options: dict[str, Any]) -> Registry:
    """A registry of these roots with the limits among the options, which are taken out."""
    from mcp_skills_server.catalog.registry import Registry

    return Registry(given, take_limits(options))


def take_limits(options: dict[str, Any]) -> Limits:
    """The limits among the options, which are taken out."""
    from mcp_skills_server.catalog.scan import Limits

    return Limits(*(options.pop(f"max_{name}") for name in ("skill_md", "files", "bytes", "depth")))
