"""`acp`: a proxy between an editor and an agent."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Final

import click
from click.core import ParameterSource

from mcp_skills_server.commands.fields import Grouped, located, seconds, switch, takes
from mcp_skills_server.commands.logs import Level, log_level, log_to_stderr
from mcp_skills_server.commands.opening import make_views, open_served
from mcp_skills_server.commands.options import FollowOptions, optional_roots
from mcp_skills_server.commands.reloading import Reloader
from mcp_skills_server.commands.running import exit_now, print_waiting_hint
from mcp_skills_server.commands.runtime_options import (
    AllowOptions,
    EmbeddingOptions,
    SandboxOptions,
)
from mcp_skills_server.commands.serve import serve

if TYPE_CHECKING:
    from mcp_skills_server.catalog.views import Views

_AGENT: Final = "mcp_skills_server.agent"
_SPLIT: Final = "--"


class _BeforeTheAgent(Grouped):
    """A command that parses the words before `--`; those after it are the agent's command line."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        split = args.index(_SPLIT) if _SPLIT in args else len(args)
        ctx.meta[_AGENT] = args[split + 1 :]
        return super().parse_args(ctx, args[:split])

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "-- AGENT [ARGUMENT]..."]


class AcpOptions(FollowOptions, EmbeddingOptions, AllowOptions, SandboxOptions):
    """All options of `acp`. Those of `serve` are passed on to the server that the agent starts."""

    server: bool = switch(
        True,
        "Give each session one more MCP server, this one, so that the agent can load the skills.",
    )
    grace: float = seconds(
        2, "How long an agent may be silent, once the editor has gone, before it is ended."
    )
    log_level: Level = log_level("warning")


@click.command(cls=_BeforeTheAgent)
@optional_roots
@takes(AcpOptions)
@click.pass_context
def acp(context: click.Context, options: AcpOptions, roots: tuple[str, ...]) -> None:
    """Proxy an editor to an agent that speaks ACP on stdio, and add the skills below each ROOT.

    The editor starts this in place of the agent. It gets the list of skills in each session and
    whenever they change, and the agent gets one more MCP server, which serves them. All other bytes
    pass as they are. The exit code is the agent's. Options for scripts and limits are passed on to
    that server.

    \b
    Examples:
      mcp-skills-server acp ~/skills -- my-agent --acp
      mcp-skills-server acp ./project-skills ~/skills -- npx @zed-industries/claude-code-acp
    """
    agent: list[str] = context.meta[_AGENT]
    if not agent:
        raise click.UsageError(
            "Which agent? Write its command behind --, as in: acp ~/skills -- my-agent.", context
        )
    log_to_stderr(options.log_level)
    from mcp_skills_server.acp.proxy import SkillsOffer, run

    with ExitStack() as opened:

        def open_skills() -> tuple[Views, Callable[[], None]]:
            catalog = open_served(roots, options)
            opened.callback(catalog.stop)
            views = make_views(catalog.registry, options.config, local=True)
            Reloader(context, views, catalog).start()
            return views, partial(catalog.load_and_follow, options)

        offer = None
        if roots or options.lock is not None:
            command = _server_command(context, roots) if options.server else []
            offer = SkillsOffer(command, open_skills)
        print_waiting_hint("an editor that speaks ACP")
        code = run(agent, offer, grace=options.grace)
    exit_now(code)


def _server_command(context: click.Context, roots: Sequence[str]) -> list[str]:
    """Return the command line of a server with these roots and the options given here.

    The server starts in another folder. Options are passed as words even if they came from the
    environment, which an agent may withhold. -P keeps that folder out of `sys.path`.
    """
    absolute = [os.path.abspath(root) if os.path.exists(root) else root for root in roots]
    own = [os.path.abspath(sys.executable), "-P", "-m", "mcp_skills_server", serve.name or ""]
    # The server reads the configuration file itself, but its transport must be stdio.
    transport = [] if context.params["config"] is None else ["--transport", "stdio"]
    return [*own, *_given(context), *transport, _SPLIT, *absolute]


def _given(context: click.Context) -> Iterator[str]:
    """Yield, as words of a command line, the given options that `serve` has too."""
    known = {param.name: param for param in serve.params}
    for parameter in context.command.params:
        name = parameter.name or ""
        given = context.get_parameter_source(name) in (
            ParameterSource.COMMANDLINE,
            ParameterSource.ENVIRONMENT,
        )
        if not isinstance(parameter, click.Option) or name not in known or not given:
            continue
        value = context.params[name]
        for single in value if parameter.multiple else [value]:
            if parameter.is_flag:
                yield (parameter.opts if single else parameter.secondary_opts)[0]
            else:
                yield from (parameter.opts[0], located(parameter, str(single), os.getcwd()))
