"""`serve`: over stdin and stdout, or over HTTP."""

from __future__ import annotations

import gc
import logging
import shlex
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

import click
from click.core import ParameterSource

from mcp_skills_server.commands.audit_options import AuditOptions, start_audit
from mcp_skills_server.commands.config_option import (
    configuration_of,
    follow_configuration,
    quotas_of,
)
from mcp_skills_server.commands.embedding_options import EmbeddingOptions, make_embeddings
from mcp_skills_server.commands.fields import Grouped, heading_of, option, takes
from mcp_skills_server.commands.granting import make_views
from mcp_skills_server.commands.logs import Format, Level, log_format, log_level, log_to_stderr, request_level
from mcp_skills_server.commands.metrics_options import MetricsOptions
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
from mcp_skills_server.commands.script_options import RuntimeOptions, make_runtime
from mcp_skills_server.commands.serve_options import HttpOptions, ShownOptions
from mcp_skills_server.commands.tracing_options import TracingOptions, start_tracing
from mcp_skills_server.commands.ui_options import PageOptions
from mcp_skills_server.commands.usage_options import Counting, UsageOptions, start_usage
from mcp_skills_server.errors import UsageError

if TYPE_CHECKING:
    from mcp_skills_server.access.quotas import QuotaSettings
    from mcp_skills_server.catalog.registry import Registry
    from mcp_skills_server.catalog.views import Views
    from mcp_skills_server.catalog.watch import Watcher
    from mcp_skills_server.commands.relocking import FollowedSources
    from mcp_skills_server.runtime.runtime import Runtime
    from mcp_skills_server.server.requests import Settings
    from mcp_skills_server.sources.mirrors import Mirrors
    from mcp_skills_server.telemetry.audit import AuditLog


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
    ProxyOptions,
    RedisOptions,
    RecordOptions,
):
    """All options of `serve`."""

    heading: ClassVar[str] = "The server"
    transport: Literal["stdio", "http"] = option(
        "stdio", "How clients reach the server.", type=click.Choice(["stdio", "http"])
    )
    log_level: Level = log_level("info")
    log_format: Format = log_format()


class Service(NamedTuple):
    """What is served, and what stands beside it.

    Attributes:
        registry: of the skills.
        mirrors: what is fetched; None where every root is a folder.
        sources: has them looked at, and the lock file read again.
        runtime: the tools.
        settings: of what speaks MCP.
        watcher: follows the folders; None where they are not followed.
        views: what grants leave to whom.
        quotas: how much one may take.
        shared: what replicas share; None where there is one.
        counting: of uses; None where they are not counted.
        audit: the audit log; None where there is none.
    """

    registry: Registry
    mirrors: Mirrors | None
    sources: FollowedSources
    runtime: Runtime
    settings: Settings
    watcher: Watcher | None
    views: Views
    quotas: QuotaSettings
    shared: Shared | None
    counting: Counting | None
    audit: AuditLog | None


# Every option has an environment variable by the prefix: MCP_SKILLS_PAGE_SIZE for --page-size.
@click.command(cls=Grouped, context_settings={"show_default": True})
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
    _check(options)
    service = _open(roots, options)
    end_traces = start_tracing(options)
    if service.mirrors is not None:
        service.mirrors.report_to(service.registry.note)
        service.mirrors.start(partial(take_in, service.registry))
        service.registry.await_sources = service.mirrors.first_read(options.first_load)
    code = 0
    if options.transport == "stdio":
        _serve_stdio(service, options, roots)
    else:
        from mcp_skills_server.commands.serve_http import serve_over_http

        code = serve_over_http(service, options)
    if service.mirrors is not None:
        service.mirrors.stop()
    for end in (service.counting and service.counting.stop, end_traces, service.shared and service.shared.stop):
        if end is not None:
            end()
    leave(code)


def _check(options: ServeOptions) -> None:
    """Refuse what contradicts itself, before anything is opened.

    Raises:
        UsageError: two options exclude each other.
    """
    if options.publish_only and not options.publish:
        raise UsageError("--publish-only and --no-publish leave nothing to serve; give one of them")
    if options.transport == "http":
        return
    if options.publish_only:
        raise UsageError("--publish-only publishes over HTTP; give --transport http")


def _open(roots: tuple[str, ...], options: ServeOptions) -> Service:
    """All that serving takes, whatever it goes over. Nothing is followed yet.

    Args:
        roots: as they were given.
        options: of this process.

    Raises:
        UsageError: it cannot be served so.
    """
    context, over_http = click.get_current_context(), options.transport == "http"
    registry, mirrors, scripts, sources = open_served(roots, options, configuration_of(context))
    from mcp_skills_server.catalog.report import report_to_log
    from mcp_skills_server.server.requests import Settings
    from mcp_skills_server.telemetry.log import log_requests

    report_to_log(registry)
    log_requests(request_level(options.transport))
    settle_after_load(registry)
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
    runtime = make_runtime(
        registry,
        options,
        max_loaded=options.max_loaded,
        catalog_chars=options.catalog_chars,
        local_root_dirs=options.local_paths and not over_http,
        roots=scripts,
        runs=quotas.runs,
        wait_for_sandbox=over_http,  # a host over stdio waits for the start, and for few seconds
    )
    runtime.embeddings = make_embeddings(registry, options, options.cache_dir)
    watcher = make_watcher(registry, options)
    views = make_views(registry, configuration_of(context), local=not over_http)
    shared = None
    if over_http:
        shared = make_shared(
            options,
            registry,
            mirrors,
            follows=options.watch,
            runtime_sessions=quotas.runtime_sessions,
        )
    counting = start_usage(options, registry, by_default=over_http)
    if counting is not None and not over_http:  # what other people load is no client's business
        runtime.briefing.prefer(counting.store.lately())
    audit = start_audit(options, stdout_is_free=over_http)
    return Service(registry, mirrors, sources, runtime, settings, watcher, views, quotas, shared, counting, audit)


def _serve_stdio(service: Service, options: ServeOptions, roots: tuple[str, ...]) -> None:
    context = click.get_current_context()
    _warn_of_unused(context)
    reloader = follow_configuration(context, service.views, service.sources)
    on_hangup(reloader.ask, service.audit and service.audit.reopen)
    given = shlex.join(roots or ["--lock", str(options.lock)])
    say_that_it_waits(
        "an MCP host",
        f"mcp-skills-server install HOST {given} (has claude-code, cursor, vscode ... start it)",
        f"mcp-skills-server list {given} (what it serves)",
        f"npx @modelcontextprotocol/inspector mcp-skills-server serve {given} (a host in your browser)",
    )
    import asyncio

    from mcp_skills_server.server.stdio import serve_stdio

    asyncio.run(collecting(serve_stdio, service.runtime, service.settings, service.watcher, service.views))


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
