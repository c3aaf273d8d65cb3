"""`serve`: over stdin and stdout, or over HTTP."""

from __future__ import annotations

import gc
import logging
import shlex
from collections.abc import Sequence

import click
from click.core import ParameterSource

from mcp_skills_server.commands.features.feature import Feature, Server
from mcp_skills_server.commands.features.table import FEATURES
from mcp_skills_server.commands.fields import Grouped, takes, traits_of, values_for
from mcp_skills_server.commands.logs import log_to_stderr, request_level
from mcp_skills_server.commands.opening import make_views, make_watcher, open_served, proposals_at
from mcp_skills_server.commands.options import configuration_of, roots_or_lock
from mcp_skills_server.commands.reloading import Reloader
from mcp_skills_server.commands.running import (
    collect_from_now_on,
    end_on_signals,
    leave,
    on_hangup,
    say_that_it_waits,
    settle_after_load,
)
from mcp_skills_server.commands.runtime_options import make_runtime
from mcp_skills_server.commands.serve_options import ServeOptions
from mcp_skills_server.errors import UsageError

logger = logging.getLogger(__name__)


# Every option has an environment variable by the prefix: MCP_SKILLS_PAGE_SIZE for --page-size.
@click.command(cls=Grouped)
@roots_or_lock
@takes(ServeOptions, *FEATURES)
def serve(options: ServeOptions, *features: Feature, roots: tuple[str, ...]) -> None:
    """Serve the skills below each ROOT over MCP, on stdin and stdout or over HTTP.

    A ROOT is a folder that holds skills, a skill itself, a .zip or .tar.gz, the address of a site, of a folder in git
    (git+https://...) or of artifacts in a registry (oci://...). Of two skills with the same path the one of the earlier
    ROOT is served. Every option has an environment variable: MCP_SKILLS_PAGE_SIZE for --page-size, and MCP_SKILLS_ROOTS
    for the roots, separated as in PATH.

    \b
    Examples:
      mcp-skills-server serve ~/skills
      mcp-skills-server serve ./project-skills ~/skills --dialect sep-2640
      mcp-skills-server serve ~/skills --transport http --port 8000
      mcp-skills-server serve ~/skills --transport http --publish-only
      mcp-skills-server serve --lock skills.lock --frozen
      MCP_SKILLS_ROOTS=/skills mcp-skills-server serve
    """
    gc.disable()  # until it serves
    end_on_signals()
    log_to_stderr(options.log_level, options.log_format, queued=True)
    if options.proposals is not None and not options.tools:
        raise UsageError("--proposals offers tools, and --no-tools none; leave one of them out")
    server = _open(roots, options, features)
    if options.transport == "stdio":
        _serve_stdio(server, roots)
    else:
        from mcp_skills_server.commands.serve_http import serve_over_http

        serve_over_http(server)
    server.opened.stop()
    for each in features:
        each.stop()
    leave()


def _open(roots: tuple[str, ...], options: ServeOptions, features: Sequence[Feature]) -> Server:
    """Make the parts of the server, and start its features. The roots are not followed yet."""
    configuration, over_http = configuration_of(click.get_current_context()), options.transport == "http"
    opened = open_served(roots, options, configuration)
    registry = opened.registry
    from mcp_skills_server.access.quotas import QuotaSettings
    from mcp_skills_server.catalog.report import report_to_log
    from mcp_skills_server.runtime.runtime import RuntimeSettings
    from mcp_skills_server.server.requests import Settings
    from mcp_skills_server.telemetry.log import log_requests

    report_to_log(registry)
    settle_after_load(registry)
    quotas = QuotaSettings()
    if configuration is not None:
        quotas = configuration.quotas
    proposals = proposals_at(options.proposals, [each.path for each in registry.roots])
    settings = Settings(**values_for(Settings, options, streams=quotas.streams, proposals=proposals))
    runtime_settings = RuntimeSettings(
        max_loaded=options.max_loaded,
        overview_characters=options.catalog_chars,
        local_root_dirs=options.local_paths and not over_http,
        preferred_tags=options.prefer,
        load_dependencies=options.load_dependencies,
    )
    runtime = make_runtime(
        registry,
        options,
        runtime_settings,
        roots=opened.scripts,
        runs=quotas.runs,
        wait_for_sandbox=over_http,  # a host over stdio waits for the start, and for few seconds
    )
    log_requests(runtime.events, request_level(options.transport))
    watcher = make_watcher(registry, options)
    views = make_views(registry, configuration, local=not over_http)
    server = Server(options, features, opened, runtime, settings, watcher, views, quotas)
    for each in features:
        if over_http or not each.only_http:
            each.start(server)
    return server


def _serve_stdio(server: Server, roots: tuple[str, ...]) -> None:
    context, options = click.get_current_context(), server.options
    _warn_of_unused(context)
    reloader = Reloader(context, server.views, server.opened)
    reloader.start()
    on_hangup(reloader.ask, *(each.reopen for each in server.features))
    given = shlex.join(roots or ["--lock", str(options.lock)])
    say_that_it_waits(
        "an MCP host",
        f"mcp-skills-server install HOST {given} (has claude-code, cursor, vscode ... start it)",
        f"mcp-skills-server list {given} (what it serves)",
        f"npx @modelcontextprotocol/inspector mcp-skills-server serve {given} (a host in your browser)",
    )
    server.opened.fetch(options.first_load)
    import asyncio

    from mcp_skills_server.server.stdio import serve_stdio

    collect_from_now_on()
    asyncio.run(serve_stdio(server.runtime, server.settings, server.watcher, server.views))


def _warn_of_unused(context: click.Context) -> None:
    """Warn of options that do nothing over stdio. Tokens are among them, which protect nothing there."""
    unused = [
        parameter.opts[0]
        for parameter in context.command.params
        if traits_of(parameter).is_http_only
        and context.get_parameter_source(parameter.name or "") not in (None, ParameterSource.DEFAULT)
    ]
    found = configuration_of(context)
    if found is not None and found.oauth is not None:
        unused.append("[oauth]")
    if found is not None and any(each.startswith("quota.") for each in found.lines):
        unused.append("[quota]")
    if unused:
        logger.warning("unused without --transport http: %s", ", ".join(unused))
