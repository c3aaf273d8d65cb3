"""`serve`: over stdin and stdout, or over HTTP."""

from __future__ import annotations

import gc
import logging
import os
import shlex
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from mcp_skills_server.access.grants import EVERYBODY, LOCAL
from mcp_skills_server.commands.features.endpoints import OAuth
from mcp_skills_server.commands.features.feature import Feature, Server
from mcp_skills_server.commands.features.table import FEATURES
from mcp_skills_server.commands.fields import Grouped, takes, traits_of, values_of, variables_of
from mcp_skills_server.commands.logs import log_to_stderr, request_level
from mcp_skills_server.commands.opening import make_views, make_watcher, open_served, proposals_at
from mcp_skills_server.commands.options import roots_or_lock, tokens_of
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

if TYPE_CHECKING:
    from mcp_skills_server.commands.config_file import Configuration

logger = logging.getLogger(__name__)


@click.command(cls=Grouped)
@roots_or_lock
@takes(ServeOptions, *FEATURES)
@click.pass_context
def serve(context: click.Context, options: ServeOptions, *features: Feature, roots: tuple[str, ...]) -> None:
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
    server = _make_server(roots, options, features)
    if options.transport == "stdio":
        _serve_stdio(context, server, roots)
    else:
        _serve_http(context, server)
    server.opened.stop()
    for each in features:
        each.stop()
    leave()


def _make_server(roots: tuple[str, ...], options: ServeOptions, features: tuple[Feature, ...]) -> Server:
    """Make the parts of the server, and start its features. The roots are not followed yet."""
    configuration, over_http = options.config, options.transport == "http"
    opened = open_served(roots, options)
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
    shown = values_of(options, "dialect", "page_size", "prompt_page_size", "tools", "prompts", "prompt_choice")
    settings = Settings(**shown, streams=quotas.streams, proposals=proposals)
    runtime = make_runtime(
        registry,
        options,
        RuntimeSettings(
            max_loaded=options.max_loaded,
            overview_characters=options.catalog_chars,
            local_root_dirs=options.local_paths and not over_http,
            preferred_tags=options.prefer,
            load_dependencies=options.load_dependencies,
        ),
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


def _serve_stdio(context: click.Context, server: Server, roots: tuple[str, ...]) -> None:
    _warn_of_unused(context, server.options.config)
    given = shlex.join(roots or ["--lock", str(server.options.lock)])
    say_that_it_waits(
        "an MCP host",
        f"mcp-skills-server install HOST {given} (has claude-code, cursor, vscode ... start it)",
        f"mcp-skills-server list {given} (what it serves)",
        f"npx @modelcontextprotocol/inspector mcp-skills-server serve {given} (a host in your browser)",
    )
    _follow(server, Reloader(context, server.views, server.opened))
    import asyncio

    from mcp_skills_server.server.stdio import serve_stdio

    collect_from_now_on()
    asyncio.run(serve_stdio(server.runtime, server.settings, server.watcher, server.views))


def _follow(server: Server, reloader: Reloader) -> None:
    """Follow the files of the operator and the remote roots."""
    reloader.start()
    on_hangup(reloader.ask, *(each.reopen for each in server.features))
    server.opened.fetch(server.options.first_load)


def _warn_of_unused(context: click.Context, configuration: Configuration | None) -> None:
    """Warn of options that do nothing over stdio. Tokens are among them, which protect nothing there."""
    unused = [
        parameter.opts[0]
        for parameter in context.command.params
        if traits_of(parameter).is_http_only
        and context.get_parameter_source(parameter.name or "") not in (None, ParameterSource.DEFAULT)
    ]
    if configuration is not None and configuration.oauth is not None:
        unused.append("[oauth]")
    if configuration is not None and any(each.startswith("quota.") for each in configuration.lines):
        unused.append("[quota]")
    if unused:
        logger.warning("unused without --transport http: %s", ", ".join(unused))


def _serve_http(context: click.Context, server: Server) -> None:
    """Serve over HTTP until a signal ends the process.

    Raises:
        UsageError: the options cannot be served.
    """
    import anyio

    from mcp_skills_server.access.quotas import Rates
    from mcp_skills_server.access.tokens import Tokens
    from mcp_skills_server.runtime.sessions import Sessions
    from mcp_skills_server.web.forwarded import checked_prefix, trusted_networks
    from mcp_skills_server.web.guards import make_policy
    from mcp_skills_server.web.serving import serve_http
    from mcp_skills_server.web.settings import HttpSettings

    options, sources = server.options, server.opened.mirrors
    for parameter in context.command.params:
        variable, wanted = variables_of(parameter)[0], traits_of(parameter).if_empty
        if wanted and os.environ.get(variable) == "":
            raise UsageError(f"{variable} is set but empty; give {wanted}, or unset it for a server without")
    tokens = server.tokens = Tokens(tokens_of(options.token_file, options.tokens))
    issuer = server.feature(OAuth).resource_server
    if not tokens and issuer is None:
        _refuse_principals(options.config)
    rates = Rates(server.quotas)
    reloader = server.reloader = Reloader(context, server.views, server.opened, tokens, rates)
    own = ("host", "port", "session_idle", "max_sessions", "max_body", "max_connections", "request_timeout")
    http = HttpSettings(
        **values_of(options, *own, "keep_alive", "drain", "allow_empty"),
        policy=make_policy(options.host, options.allowed_host, options.allowed_origin, tokens, issuer),
        root_path=checked_prefix(options.root_path),
        proxies=trusted_networks(options.trusted_proxy),
        quotas=server.quotas,
        rates=rates,
        sessions=partial(Sessions, share=server.quotas.runtime_sessions),
        states=lambda: [state for each in (reloader, *server.features) if (state := each.state())],
    )
    if sources is not None:
        http = replace(http, sites=sources.states, look=sources.look)
    parts = [part for each in server.features if (part := each.part(server)) is not None]
    _follow(server, reloader)
    collect_from_now_on()
    anyio.run(partial(serve_http, parts=parts), server.runtime, server.settings, http, server.watcher, server.views)


def _refuse_principals(configuration: Configuration | None) -> None:
    """Refuse grants to principals where no client can authenticate, for there are neither tokens nor an issuer."""
    if configuration is None or configuration.grants is None:
        return
    for grant, line in zip(configuration.grants, configuration.grant_lines, strict=True):
        if not {EVERYBODY, LOCAL}.issuperset(grant.who):
            raise UsageError(
                f"{configuration.file}:{line}: grant.who: no client can prove who it is; give token-file or [oauth], "
                f'or write who = ["{EVERYBODY}"]'
            )
