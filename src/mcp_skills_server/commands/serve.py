"""`serve`: serve skills over MCP, on stdin and stdout or over HTTP."""

from __future__ import annotations

import gc
import logging
import os
from functools import partial
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from mcp_skills_server.access.grants import EVERYBODY, LOCAL
from mcp_skills_server.commands.features.feature import Feature, Server, feature_of
from mcp_skills_server.commands.features.services import HttpServices
from mcp_skills_server.commands.features.table import (
    FEATURES,
    OAuth,
    PrometheusMetrics,
    PromptsFeature,
    Publishing,
    Replicas,
    ToolsFeature,
    UsageCounts,
)
from mcp_skills_server.commands.fields import Grouped, takes, traits_of, values_of, variable_of
from mcp_skills_server.commands.logs import log_to_stderr
from mcp_skills_server.commands.opening import OpenedRoots, make_views, make_watcher, open_served
from mcp_skills_server.commands.options import optional_roots, tokens_of
from mcp_skills_server.commands.reloading import Reloader
from mcp_skills_server.commands.running import (
    collect_from_now_on,
    end_on_signals,
    exit_now,
    on_hangup,
    print_waiting_hint,
    settle_after_load,
)
from mcp_skills_server.commands.runtime_options import ScriptsFeature, SearchByMeaning
from mcp_skills_server.commands.serve_options import ServeOptions
from mcp_skills_server.errors import UsageError
from mcp_skills_server.installation import shell_command

if TYPE_CHECKING:
    from mcp_skills_server.commands.config_file import Configuration
    from mcp_skills_server.web.app import HttpApp

logger = logging.getLogger(__name__)


@click.command(cls=Grouped)
@optional_roots
@takes(ServeOptions, *FEATURES)
@click.pass_context
def serve(
    context: click.Context, options: ServeOptions, *features: Feature, roots: tuple[str, ...]
) -> None:
    """Serve the skills below each ROOT over MCP, on stdin and stdout or over HTTP.

    A ROOT is a folder that holds skills, a skill itself, an archive (.zip, .skill, .tar, .tar.gz,
    .tar.xz), the address of a site, of a folder in git (git+https://...) or of artifacts in a
    registry (oci://...). Of two skills with the same path the one of the earlier ROOT is served.
    The environment variable MCP_SKILLS_ROOTS has the roots, separated as in PATH.

    \b
    Examples:
      mcp-skills-server serve ~/skills
      mcp-skills-server serve ./project-skills ~/skills --dialect sep-2640
      mcp-skills-server serve ~/skills --transport http --port 8000
      mcp-skills-server serve ~/skills --transport http --publish-only
      mcp-skills-server serve --lock skills.lock --frozen
      MCP_SKILLS_ROOTS=/skills mcp-skills-server serve
    """
    gc.disable()  # until the first scan is done, or HTTP is served
    end_on_signals()
    log_to_stderr(options.log_level, options.log_format, queued=True)
    server = make_server(context, roots, options, features)
    try:
        if server.http is None:
            _serve_stdio(context, server)
        else:
            _serve_http(server, server.http)
    finally:  # a thread that starts another while Python ends can crash it
        server.reloader.stop()
        server.opened.stop()
        for feature in features:
            feature.stop()
    exit_now()


def make_server(
    context: click.Context,
    roots: tuple[str, ...],
    options: ServeOptions,
    features: tuple[Feature, ...],
) -> Server:
    """Build the services of the server, and start its features. The roots are not followed yet."""
    from mcp_skills_server.catalog.report import report_to_log
    from mcp_skills_server.runtime.runtime import Runtime
    from mcp_skills_server.server.requests import Settings
    from mcp_skills_server.telemetry.log import log_requests

    over_http = options.transport == "http"
    tools = feature_of(features, ToolsFeature)
    opened = open_served(roots, options)
    registry = opened.registry
    recent = feature_of(features, UsageCounts).open_store(registry, over_http=over_http)
    settings = Settings(
        options.dialect,
        options.page_size,
        tools=tools.tools,
        preferred_tags=tools.prefer,
        preferred_paths=(*recent,),
        proposals=tools.proposals(options.proposals, registry),
        **values_of(
            feature_of(features, PromptsFeature), "prompts", "prompt_choice", "prompt_page_size"
        ),
    )
    report_to_log(registry, least=settings.least)
    settle_after_load(registry)
    runtime = Runtime(
        registry,
        tools.runtime_settings(recent, over_http=over_http),
        scripts=feature_of(features, ScriptsFeature).script_settings(
            opened.scripts, over_http=over_http
        ),
        embeddings=feature_of(features, SearchByMeaning).start_embeddings(
            registry, options.cache_dir
        ),
    )
    # Over a pipe all requests are from one user.
    if over_http:
        log_requests(runtime.events, logging.INFO, options.access_log)
    else:
        log_requests(runtime.events)
    watcher = make_watcher(registry, options)
    views = make_views(registry, options.config, local=not over_http)
    http = None
    if over_http:
        http = _make_http_services(context, options, features, opened)
    reloader = Reloader(context, views, opened, http)
    server = Server(options, features, opened, runtime, settings, watcher, views, reloader, http)
    for feature in features:
        feature.start(server)
    return server


def _make_http_services(
    context: click.Context,
    options: ServeOptions,
    features: tuple[Feature, ...],
    opened: OpenedRoots,
) -> HttpServices:
    """Build what only a server over HTTP has; UsageError says that an option is invalid."""
    from mcp_skills_server.access.quota import Quotas
    from mcp_skills_server.access.tokens import Tokens
    from mcp_skills_server.web.forwarded import checked_prefix, trusted_networks
    from mcp_skills_server.web.front import FrontSettings
    from mcp_skills_server.web.policy import make_policy
    from mcp_skills_server.web.rates import ClientLimits

    for parameter in context.command.params:
        variable, wanted = variable_of(parameter), traits_of(parameter).if_empty
        if wanted and os.environ.get(variable) == "":
            raise UsageError(
                f"{variable} is set but empty; give {wanted}, or unset it for a server without"
            )
    tokens = Tokens(tokens_of(options.token_file, options.tokens))
    issuer = feature_of(features, OAuth).resource_server(options.config)
    if not tokens and issuer is None:
        _refuse_principals(options.config)
    policy = make_policy(options.host, options.allowed_host, options.allowed_origin, tokens, issuer)
    shared = feature_of(features, Replicas).share(opened, watch=options.watch)
    quotas = Quotas(() if options.config is None else options.config.quotas)
    front = FrontSettings(
        policy,
        ClientLimits(quotas, shared.take_requests),
        root_path=checked_prefix(options.root_path),
        proxies=trusted_networks(options.trusted_proxy),
    )
    return HttpServices(front, tokens, shared)


def _serve_stdio(context: click.Context, server: Server) -> None:
    _warn_of_unused(context, server.options.config)
    given = shell_command(server.opened.given or ["--lock", str(server.options.lock)])
    print_waiting_hint(
        "an MCP host",
        f"mcp-skills-server install HOST {given} (has claude-code, cursor, vscode ... start it)",
        f"mcp-skills-server list {given} (what it serves)",
        f"npx @modelcontextprotocol/inspector mcp-skills-server serve {given} (a host in your "
        "browser)",
    )
    _follow(server)
    import asyncio

    from mcp_skills_server.server.stdio import serve_stdio

    asyncio.run(serve_stdio(server.runtime, server.settings, server.watcher, server.views))


def _follow(server: Server) -> None:
    """Start to follow the operator's files and the remote roots."""
    server.reloader.start()
    on_hangup(server.reloader.request_reload, *(feature.reopen for feature in server.features))
    server.opened.start(server.options.first_load)


def _warn_of_unused(context: click.Context, configuration: Configuration | None) -> None:
    """Warn of options without effect over stdio, such as tokens, which protect nothing there."""
    missing = (None, ParameterSource.DEFAULT)
    unused = [
        param.opts[0]
        for param in context.command.params
        if traits_of(param).is_http_only
        and context.get_parameter_source(param.name or "") not in missing
    ]
    if configuration is not None:
        tables = {"[oauth]": configuration.oauth, "[quota]": configuration.quotas}
        unused += [name for name, given in tables.items() if given]
    if unused:
        logger.warning("no effect without --transport http: %s", ", ".join(unused))


def _serve_http(server: Server, http: HttpServices) -> None:
    """Serve over HTTP until a signal ends the process."""
    import anyio

    from mcp_skills_server.dialects import wellknown
    from mcp_skills_server.web.serving import ListenSettings, serve_http

    options, path = server.options, "/mcp"
    if server.feature(Publishing).publish_only:
        path = wellknown.DIRECTORY + wellknown.INDEX
    listen = ListenSettings(
        options.host,
        options.port,
        path,
        **values_of(options, "max_connections", "request_timeout", "keep_alive"),
        probes=server.feature(PrometheusMetrics).address,
    )
    app = make_http_app(server, http)
    _follow(server)
    collect_from_now_on()
    anyio.run(serve_http, app, listen, server.settings.streams)


def make_http_app(server: Server, http: HttpServices) -> HttpApp:
    """Build the HTTP application of a server, with the parts of its features."""
    from mcp_skills_server.runtime.sessions import Sessions
    from mcp_skills_server.server import eras
    from mcp_skills_server.server.attachment import Attachment
    from mcp_skills_server.server.dispatch import McpSession
    from mcp_skills_server.telemetry.load import Occupancy
    from mcp_skills_server.web.app import make_app, mcp_part
    from mcp_skills_server.web.mcp import McpEndpoint
    from mcp_skills_server.web.probes import Probes
    from mcp_skills_server.web.sessions import HttpSessions

    options, views, registry = server.options, server.views, server.opened.registry
    is_open = http.front.policy.is_open
    attachment = Attachment(
        registry,
        server.settings,
        server.watcher,
        server.runtime,
        sessions=http.shared.make_tool_sessions or Sessions,
        views=views,
        recent=http.shared.recent,
    )
    sessions = HttpSessions(
        partial(McpSession, attachment, era=eras.LEGACY), options.max_sessions, options.session_idle
    )
    server.load.usage.update(
        sessions=lambda: sessions.usage,
        streams=lambda: attachment.notifier.usage,
        tool_sessions=lambda: attachment.sessions.usage,
        cache_bytes=lambda: Occupancy(views.parts.weight(), views.parts.most),
    )
    endpoint = None
    if not server.feature(Publishing).publish_only:
        concurrency = http.front.limits.concurrency
        endpoint = McpEndpoint(attachment, sessions, concurrency, options.max_body)
    feature_parts = (feature.part(server, http) for feature in server.features)
    parts = [mcp_part(attachment, endpoint), *filter(None, feature_parts)]

    probes = Probes(
        registry,
        lambda who: (who is not None or is_open) and views.is_admin(who),
        load=server.load,
        drain_s=options.drain,
        site_states=server.opened.source_states,
        status_lines=server.states,
        allow_empty=options.allow_empty,
    )
    return make_app(parts, probes, http.front, server.runtime.events)


def _refuse_principals(configuration: Configuration | None) -> None:
    """Refuse tables for principals if no client can authenticate: no tokens and no issuer."""
    if configuration is None:
        return
    tables = {"grant": configuration.grants or (), "quota": configuration.quotas}
    for name, rows in tables.items():
        for number, table in enumerate(rows):
            if not {EVERYBODY, LOCAL}.issuperset(table.who):
                where = configuration.place(name, number)
                hint = f'give token-file or [oauth], or write who = ["{EVERYBODY}"]'
                raise UsageError(f"{where}: {name}.who: no client can prove who it is; {hint}")
