"""`serve`: over stdin and stdout, or over HTTP."""

from __future__ import annotations

import gc
import logging
import os
import shlex
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Literal

import click
from click.core import ParameterSource

from mcp_skills_server.commands.audit_options import AuditOptions, start_audit
from mcp_skills_server.commands.config_option import (
    configuration_of,
    follow_configuration,
    issuer_of,
    quotas_of,
    tokens_of,
    worker_channel,
)
from mcp_skills_server.commands.embedding_options import EmbeddingOptions, make_embeddings
from mcp_skills_server.commands.fields import Grouped, heading_of, option, takes
from mcp_skills_server.commands.granting import check_grants, make_views
from mcp_skills_server.commands.logs import Format, Level, log_format, log_level, log_to_stderr, request_level
from mcp_skills_server.commands.metrics_options import MetricsOptions, make_metrics
from mcp_skills_server.commands.opening import open_served
from mcp_skills_server.commands.options import roots_or_lock
from mcp_skills_server.commands.proxy_options import ProxyOptions
from mcp_skills_server.commands.redis_options import RedisOptions, Shared, make_shared
from mcp_skills_server.commands.running import (
    FollowOptions,
    collecting,
    end_on_signals,
    leave,
    make_watcher,
    on_hangup,
    say_that_it_waits,
    settle_after_load,
    take_in,
)
from mcp_skills_server.commands.script_options import RuntimeOptions, execution_settings, make_runtime
from mcp_skills_server.commands.serve_options import HttpOptions, ShownOptions
from mcp_skills_server.commands.tracing_options import TracingOptions, start_tracing
from mcp_skills_server.commands.ui_options import PageOptions, make_ui
from mcp_skills_server.commands.usage_options import REDIS, Counting, UsageOptions, start_usage
from mcp_skills_server.commands.workers import WorkerOptions, divided, is_supervisor, opened_as, supervise, worker_of
from mcp_skills_server.errors import UsageError

if TYPE_CHECKING:
    from mcp_skills_server.access.quotas import QuotaSettings
    from mcp_skills_server.catalog.views import Views
    from mcp_skills_server.catalog.watch import Watcher
    from mcp_skills_server.runtime.runtime import Runtime
    from mcp_skills_server.server.requests import Settings
    from mcp_skills_server.sources.mirrors import Mirrors
    from mcp_skills_server.web.settings import HttpSettings
    from mcp_skills_server.web.workers.worker import Worker


logger = logging.getLogger(__name__)
_OVER_HTTP = "(--transport http)"
"""The end of the headings of options that do nothing over stdio."""


class RecordOptions(AuditOptions, UsageOptions, MetricsOptions, TracingOptions, PageOptions):
    """What is recorded and shown of what happens."""


class ServeOptions(
    ShownOptions,
    FollowOptions,
    EmbeddingOptions,
    RuntimeOptions,
    HttpOptions,
    WorkerOptions,
    ProxyOptions,
    RedisOptions,
    RecordOptions,
):
    """All options of `serve`."""

    transport: Literal["stdio", "http"] = option(
        "stdio", "How clients reach the server.", type=click.Choice(["stdio", "http"])
    )
    front: Literal["lean", "sdk"] = option(
        "lean",
        "What speaks MCP: our own front, or the SDK's, which is slower.",
        type=click.Choice(["lean", "sdk"]),
    )
    log_level: Level = log_level("info")
    log_format: Format = log_format()


# Every option has an environment variable by the prefix: MCP_SKILLS_PAGE_SIZE for --page-size.
@click.command(cls=Grouped, context_settings={"auto_envvar_prefix": "MCP_SKILLS", "show_default": True})
@roots_or_lock
@takes(ServeOptions)
def serve(options: ServeOptions, roots: tuple[str, ...]) -> None:
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
    log_to_stderr(options.log_level, options.log_format)
    context = click.get_current_context()
    channel, leads = worker_channel(), is_supervisor(options)
    if channel is not None:
        options = divided(options, channel.post)
    registry, mirrors, scripts = open_served(roots, options, configuration_of(context), **opened_as(channel, leads))
    from mcp_skills_server.catalog.report import report_to_log
    from mcp_skills_server.server.requests import Settings
    from mcp_skills_server.telemetry.log import log_requests

    if channel is None:
        report_to_log(registry)
    log_requests(request_level(options.transport))
    settle_after_load(registry)
    worker = worker_of(channel, registry)
    mark = worker.post.mark if worker is not None else ""
    quotas = quotas_of(context)  # over a pipe there is one client, who has the whole
    settings = Settings(
        dialect=options.dialect,
        page_size=options.page_size,
        prompt_page_size=options.prompt_page_size,
        tools=options.tools,
        prompts=options.prompts,
        prompt_choice=options.prompt_choice,
        streams=quotas.streams,
    )
    if options.publish_only and not options.publish:
        raise UsageError("--publish-only and --no-publish leave nothing to serve; give one of them")
    runtime = make_runtime(
        registry,
        options,
        max_loaded=options.max_loaded,
        catalog_chars=options.catalog_chars,
        roots=scripts,
        mark=mark,
        runs=quotas.runs,
    )
    runtime.embeddings = make_embeddings(registry, options, options.cache_dir)
    watcher = make_watcher(registry, options) if worker is None else worker.watcher
    views = make_views(registry, configuration_of(context), local=options.transport == "stdio")
    over_http = options.transport == "http"
    shared = None
    if over_http:
        shared = make_shared(
            options,
            registry,
            mirrors,
            follows=options.watch and worker is None,
            says=worker is None,
            runtime_sessions=quotas.runtime_sessions,
        )
    elif options.usage == REDIS:
        raise UsageError("--usage redis counts what replicas serve over HTTP; over stdio give sqlite:FILE")
    link = shared.link if shared is not None else None
    counting = start_usage(options, registry, by_default=over_http, link=link)
    end_traces = start_tracing(options)
    reopen = start_audit(options, stdout_is_free=over_http)
    if mirrors is not None:
        mirrors.report_to(registry.note)
        mirrors.start(partial(take_in, registry))
    code = 0
    if options.transport == "stdio":
        if options.publish_only:
            raise UsageError("--publish-only publishes over HTTP; give --transport http")
        _warn_of_unused(context)
        read_again = follow_configuration(context, views, mirrors)
        if read_again or reopen:
            on_hangup(read_again, reopen)
        given = shlex.join(roots or ["--lock", str(options.lock)])
        say_that_it_waits(
            "an MCP host",
            f"mcp-skills-server install HOST {given} (has claude-code, cursor, vscode ... start it)",
            f"mcp-skills-server list {given} (what it serves)",
            f"npx @modelcontextprotocol/inspector mcp-skills-server serve {given} (a host in your browser)",
        )
        _over_stdio(runtime, settings, watcher, views, options.front)
    else:
        http, read_again = _http_settings(views, mirrors, options, worker, shared, counting=counting, quotas=quotas)
        if shared is not None:
            shared.start()
        if leads:
            counts = partial(make_metrics, options, registry, http.sites)
            code = supervise(runtime, watcher, http, options.workers, [read_again, reopen], counts=counts)
        else:
            on_hangup(read_again, reopen)
            _over_http(runtime, settings, watcher, http, views)
    if mirrors is not None:
        mirrors.stop()
    # What was counted last goes through the link.
    for end in (counting and counting.stop, end_traces, shared and shared.stop):
        if end is not None:
            end()
    leave(code)


def _warn_of_unused(context: click.Context) -> None:
    """Name the options that were given and do nothing over stdio; tokens are among them, and keep nobody out there."""
    unused = [
        parameter.opts[0]
        for parameter in context.command.params
        if heading_of(parameter).endswith(_OVER_HTTP)
        and context.get_parameter_source(parameter.name or "") not in (None, ParameterSource.DEFAULT)
    ]
    found = configuration_of(context)
    if found is not None and found.oauth is not None:
        unused.append("[oauth]")
    if found is not None and any(each.startswith("quota.") for each in found.lines):
        unused.append("[quota]")
    if unused:
        logger.warning("unused without --transport http: %s", ", ".join(unused))


def _over_stdio(runtime: Runtime, settings: Settings, watcher: Watcher | None, views: Views, front: str) -> None:
    if settings.tools and not views.are_restricted:
        # A host asks at once what there is: it is looked for while the rest is imported.
        threading.Thread(target=runtime.briefing.look, name="skills-look", daemon=True).start()
    import anyio

    if front == "sdk" or sys.platform == "win32":  # whose pipes no event loop can wait for
        from mcp_skills_server.server.app import serve_stdio
    else:
        from mcp_skills_server.server.front.stdio import serve_stdio
    anyio.run(collecting, serve_stdio, runtime, settings, watcher, views)


def _over_http(runtime: Runtime, settings: Settings, watcher: Watcher | None, http: HttpSettings, views: Views) -> None:
    import anyio

    from mcp_skills_server.web.serving import serve_http

    anyio.run(collecting, serve_http, runtime, settings, http, watcher, views)


def _http_settings(
    views: Views,
    mirrors: Mirrors | None,
    options: ServeOptions,
    worker: Worker | None,
    shared: Shared | None,
    *,
    counting: Counting | None,
    quotas: QuotaSettings,
) -> tuple[HttpSettings, Callable[[], object] | None]:
    """What the operator chose for HTTP, and what has tokens and configuration read again, if there are any.

    Raises:
        UsageError: it cannot be served so.
    """
    from mcp_skills_server.access.quotas import Rates
    from mcp_skills_server.access.tokens import Tokens
    from mcp_skills_server.runtime.sessions import Sessions
    from mcp_skills_server.web.discovery import PREFIXES
    from mcp_skills_server.web.forwarded import Proxies, checked_prefix
    from mcp_skills_server.web.guards import make_policy
    from mcp_skills_server.web.refresh import PATH, checked_secret
    from mcp_skills_server.web.settings import HttpSettings

    # An empty value is a mistake in a deployment, and must not open the server.
    for variable, what in (
        ("MCP_SKILLS_TOKEN_FILE", "tokens"),
        ("MCP_SKILLS_TOKENS", "tokens"),
        ("MCP_SKILLS_OAUTH_ISSUER", "an issuer"),
        ("MCP_SKILLS_OAUTH_AUDIENCE", "an audience"),
    ):
        if os.environ.get(variable) == "":
            raise UsageError(f"{variable} is set but empty; give {what}, or unset it for a server without")
    tokens = Tokens(tokens_of(options.token_file, options.tokens))
    context = click.get_current_context()
    issuer = issuer_of(context)
    check_grants(configuration_of(context), [*tokens, *([] if issuer is None else [issuer])])
    rates = Rates(quotas)
    read_again = follow_configuration(
        context, views, mirrors, tokens, rates=rates, request_level=request_level(options.transport)
    )
    policy = make_policy(options.host, options.allowed_host, options.allowed_origin, tokens, issuer)
    sources = worker or mirrors
    refresh = None
    if options.refresh_secret is not None:
        if sources is None:
            raise UsageError(
                "--refresh-secret is for sources that are fetched, and every ROOT is a folder; leave it out"
            )
        look = shared.look if shared is not None and worker is None else sources.look
        refresh = checked_secret(options.refresh_secret), look
        policy = replace(policy, open_below=(PATH,))  # it has a proof of its own
    sites = sources.states if sources is not None else list
    shown = None
    if worker is not None:
        shown = make_metrics(options, views.registry, sites, worker.post.metrics, worker.post.number)
    elif not is_supervisor(options):  # which counts when there is a place for it
        shown = make_metrics(options, views.registry, sites, usage=counting and counting.usage)
    http = HttpSettings(
        host=options.host,
        port=options.port,
        policy=replace(policy, open_below=(*policy.open_below, *PREFIXES)) if options.publish_open else policy,
        session_idle=options.session_idle,
        max_sessions=options.max_sessions,
        max_body=options.max_body,
        max_connections=options.max_connections,
        request_timeout=options.request_timeout,
        publish=options.publish,
        publish_only=options.publish_only,
        publish_grace=options.publish_grace,
        rpc=execution_settings(options) if options.rpc else None,
        sites=sites,
        lean=options.front == "lean",
        metrics=shown if options.metrics else None,
        refresh=refresh,
        root_path=checked_prefix(options.root_path),
        proxies=Proxies(options.trusted_proxy),
        keep_alive=options.keep_alive,
        drain=options.drain,
        worker=worker,
        quotas=quotas,
        rates=rates,
        sessions=partial(Sessions, share=quotas.runtime_sessions),
        ui=make_ui(counting and counting.store) if options.ui else None,
    )
    if shared is not None:
        http = replace(http, sessions=shared.sessions, shared=lambda: [shared.link.state], take_shared=shared.take)
    if worker is not None and read_again is not None:
        read_again()  # what has changed since the supervisor read it
    return http, read_again
