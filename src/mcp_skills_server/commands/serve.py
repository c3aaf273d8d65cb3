"""`serve`: over stdin and stdout, or over HTTP."""

from __future__ import annotations

import gc
import logging
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import click
from click.core import ParameterSource

from mcp_skills_server.commands.fields import (
    Grouped,
    Options,
    choice,
    count,
    file,
    flag,
    many,
    option,
    seconds,
    switch,
    takes,
    traits_of,
)
from mcp_skills_server.commands.logs import Format, Level, log_format, log_level, log_to_stderr, request_level
from mcp_skills_server.commands.opening import OpenedRoots, make_views, make_watcher, open_served, proposals_at
from mcp_skills_server.commands.options import FollowOptions, ProposalOptions, configuration_of, roots_or_lock
from mcp_skills_server.commands.records import AuditOptions, Counting, UsageOptions, start_audit, start_usage
from mcp_skills_server.commands.reloading import Reloader
from mcp_skills_server.commands.running import (
    collect_from_now_on,
    end_on_signals,
    leave,
    on_hangup,
    say_that_it_waits,
    settle_after_load,
)
from mcp_skills_server.commands.runtime_options import EmbeddingOptions, RuntimeOptions, make_embeddings, make_runtime
from mcp_skills_server.dialects.table import AUTO, names
from mcp_skills_server.errors import UsageError, missing_extra

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcp_skills_server.access.quotas import QuotaSettings
    from mcp_skills_server.catalog.views import Views
    from mcp_skills_server.catalog.watch import Watcher
    from mcp_skills_server.runtime.runtime import Runtime
    from mcp_skills_server.server.requests import Settings
    from mcp_skills_server.telemetry.audit import AuditLog
    from mcp_skills_server.telemetry.events import Events

logger = logging.getLogger(__name__)


class ShownOptions(Options):
    """The listings, tools and prompts of clients."""

    heading: ClassVar[str] = "What clients are shown"
    dialect: str = option(
        AUTO,
        "What skills/list and skills/get speak. auto: all of them, to each client what it can take.",
        type=click.Choice(names()),
    )
    tools: bool = switch(True, "Offer tools to load, read and search skills, for hosts that know no skills.")
    prompts: bool = switch(True, "Offer each skill as a prompt, a slash command in most hosts.")
    prompt_choice: tuple[str, ...] = many(
        "Only skills whose name or path fits appear as prompts, such as 'acme/*'. May be repeated.",
        "--prompt",
        metavar="PATTERN",
    )
    catalog_chars: int | None = option(
        None,
        "How long the instructions, and the description of skills_load, may be. By default 4000, since hosts cut what "
        "is over 4,096, and 10000 for those that are known to cut nothing.",
        type=click.IntRange(min=0),
        metavar="CHARACTERS",
    )
    prefer: tuple[str, ...] = many(
        "Skills with this tag are described to models before others where not all descriptions fit. May be repeated.",
        metavar="TAG",
    )
    max_loaded: int = count(8, "Skills that a session may have loaded at once.")
    load_dependencies: bool = switch(
        False, "Load with a skill those that its dependencies.skills names, too, one level deep."
    )
    local_paths: bool = switch(
        True, "Over stdio, tell models the directory of a skill of a local folder, whose scripts their shell can run."
    )
    page_size: int = option(50, "Entries of one page of a listing.", type=click.IntRange(1, 1000))
    prompt_page_size: int = count(1000, "Prompts of one page; some hosts show the first page alone.")


class HttpOptions(Options):
    """The HTTP server, its routes and its clients."""

    heading: ClassVar[str] = "Over HTTP (--transport http)"
    host: str = option("127.0.0.1", "The address to listen on.")
    port: int = option(8000, "The port; 0 takes one that is free.", type=click.IntRange(0, 65535))
    allow_empty: bool = flag("Be ready although there is no skill yet in any folder; without it /readyz says 503.")
    allowed_host: tuple[str, ...] = many(
        "A name that the Host header may have. May be repeated; * for any. The names of this machine may pass without "
        "it where --host is one of them.",
        metavar="NAME",
    )
    allowed_origin: tuple[str, ...] = many(
        "An origin that browsers may come from, such as https://app.example. May be repeated; * for any.",
        metavar="ORIGIN",
    )
    token_file: str | None = option(
        None,
        "Clients must send a token of this file, which has lines name=token, and after the token expires=2027-01-31 "
        "and groups=a,b if you like. Read again when it changes.",
        type=click.Path(),
        metavar="FILE",
        is_live=True,
        if_empty="tokens",
    )
    tokens: str | None = option(
        None,
        "The same lines as a value; meant for MCP_SKILLS_TOKENS.",
        metavar="LINES",
        is_secret=True,
        is_live=True,
        if_empty="tokens",
    )
    oauth_issuer: str | None = option(
        None,
        "Take the access tokens of this OAuth 2.1 issuer, as its metadata spells it. The table [oauth] of a "
        "configuration says more.",
        metavar="URL",
        in_file=False,
        if_empty="an issuer",
    )
    oauth_audience: str | None = option(
        None, "What aud of those tokens must name.", metavar="TEXT", in_file=False, if_empty="an audience"
    )
    oauth_resource: str | None = option(
        None,
        "The URL by which clients know the endpoint, where that is not the audience.",
        metavar="URL",
        in_file=False,
    )
    session_idle: float = seconds(1800, "Close a legacy session that was not used for so long.", least=1)
    max_sessions: int = count(1000, "Legacy sessions at once. Then the client with most loses its oldest idle one.")
    max_connections: int = count(
        1000,
        "Connections at once. Then the client with most loses its oldest idle one. The process's limit of open files "
        "bounds it too.",
    )
    request_timeout: float = seconds(
        30, "Close a connection that takes so long to send a request's head, or its body.", above=True
    )
    max_body: int = count(1 << 20, "Size of a request.", metavar="BYTES")
    publish: bool = switch(True, "Publish the skills below /.well-known/agent-skills too, to whom MCP is open.")
    publish_only: bool = flag("Publish the skills and answer no MCP.")
    publish_open: bool = flag("Ask no token for what is published, as /mcp does where tokens are given.")
    publish_grace: float = seconds(3600, "Keep what an index has named for so long after it changed.")
    refresh_secret: str | None = option(
        None,
        "Answer webhooks of GitHub, GitLab, Gitea or Forgejo at /refresh, which prove that they know this secret: "
        "sources are then looked at now. Meant for MCP_SKILLS_REFRESH_SECRET.",
        metavar="SECRET",
        is_secret=True,
    )
    rpc: bool = switch(True, "Answer the Skills Protocol at /rpc too, to whom MCP is open.")
    metrics: bool = flag("Show metrics for Prometheus at /metrics, to whom MCP is open. Needs the extra [metrics].")
    metrics_address: str | None = option(
        None,
        "Show metrics at this address instead, such as 127.0.0.1:9464, to clients that reach it by an IP address or "
        "by a name of --allowed-host.",
        metavar="HOST:PORT",
    )
    ui: bool = flag("Show the skills to people at /ui, to whom MCP is open.")


class ProxyOptions(Options):
    """The server behind reverse proxies."""

    heading: ClassVar[str] = "Behind a proxy (--transport http)"
    keep_alive: int = count(
        5,
        "Close a connection that had no request for so long. A proxy must give its connections up before.",
        metavar="SECONDS",
    )
    root_path: str = option(
        "",
        "What stands before all paths that clients see, such as /skills, if a proxy takes it off or not.",
        metavar="PATH",
    )
    trusted_proxy: tuple[str, ...] = many(
        "The address or network of a proxy, such as 10.0.0.0/8, that is believed when it says for whom it asks "
        "(X-Forwarded-For and -Proto). May be repeated.",
        metavar="CIDR",
    )
    drain: float = seconds(0, "After SIGTERM answer requests for so long, and say at /readyz that it ends.")


class TracingOptions(Options):
    """Traces by OpenTelemetry."""

    heading: ClassVar[str] = "Records"
    traces: bool = flag(
        "Send a span for each request by OTLP over HTTP, to where OTEL_EXPORTER_OTLP_ENDPOINT says. Needs the extra "
        "[otel]."
    )


def start_tracing(options: TracingOptions, events: Events) -> Callable[[], None] | None:
    """Trace a server's requests. Return the function that sends the rest within a second; None without `--traces`.

    Raises:
        UsageError: the extra is not installed.
    """
    if not options.traces:
        return None
    try:
        from mcp_skills_server.telemetry.tracing import Tracing, make_provider
    except ImportError:
        raise missing_extra("traces", "otel") from None
    from mcp_skills_server.dialects import runtime

    provider, stop = make_provider()
    Tracing(provider, known_methods(), runtime.canonical).start(events)
    return stop


class RedisType(click.ParamType[str]):
    """An address of Redis. A wrong one is refused without showing it: it may hold a password."""

    name = "redis"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:  # noqa: ARG002
        """Return the address as it is."""
        from mcp_skills_server.shared.address import redis_settings

        redis_settings(value)
        return value


class RedisOptions(Options):
    """The state that replicas share."""

    heading: ClassVar[str] = "Shared by replicas (--transport http)"
    redis: str | None = option(
        None,
        "Share sessions of the tools and the count of requests with other "
        "replicas through this Redis, and look again when another one has seen a change: "
        "redis://HOST:PORT/DB, rediss:// with TLS, unix:///PATH. Needs the extra "
        "[redis].",
        type=RedisType(),
        metavar="URL",
    )
    redis_password: str | None = option(
        None, "Its password; meant for MCP_SKILLS_REDIS_PASSWORD.", metavar="PASSWORD", is_secret=True
    )
    redis_prefix: str = option("mcp-skills:", "What its keys begin with, another one for each server.", metavar="TEXT")
    redis_ca: str | None = file(
        "The authorities that its certificate must be from, in PEM, instead of those of the system."
    )


class ServeOptions(
    ShownOptions,
    FollowOptions,
    EmbeddingOptions,
    ProposalOptions,
    RuntimeOptions,
    HttpOptions,
    ProxyOptions,
    RedisOptions,
    AuditOptions,
    UsageOptions,
    TracingOptions,
):
    """All options of `serve`."""

    heading: ClassVar[str] = "The server"
    transport: Literal["stdio", "http"] = choice("stdio", "http", words="How clients reach the server.")
    log_level: Level = log_level("info")
    log_format: Format = log_format()


def known_methods() -> frozenset[str]:
    """Return the methods of all protocols; other ones have no name in metrics and traces."""
    from mcp_skills_server.dialects import skills_protocol
    from mcp_skills_server.server.eras import LEGACY, MODERN

    return frozenset((*LEGACY.shapes, *MODERN.shapes, *skills_protocol.METHODS, "GET", "HEAD"))


@dataclass(frozen=True, slots=True)
class Service:
    """The parts of a server that every transport has.

    Attributes:
        opened: the roots.
        runtime: the tools.
        settings: of MCP.
        watcher: of the folders; None without `--watch`.
        views: the skills of each principal.
        quotas: of each principal.
        counting: of uses, if they are counted.
        audit: the audit log, if there is one.
    """

    opened: OpenedRoots
    runtime: Runtime
    settings: Settings
    watcher: Watcher | None
    views: Views
    quotas: QuotaSettings
    counting: Counting | None
    audit: AuditLog | None


# Every option has an environment variable by the prefix: MCP_SKILLS_PAGE_SIZE for --page-size.
@click.command(cls=Grouped)
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
    log_to_stderr(options.log_level, options.log_format, queued=True)
    _check(options)
    service = _open(roots, options)
    end_traces = start_tracing(options, service.runtime.events)
    if options.transport == "stdio":
        _serve_stdio(service, options, roots)
    else:
        from mcp_skills_server.commands.serve_http import serve_over_http

        serve_over_http(service, options)
    service.opened.stop()
    if service.counting is not None:
        service.counting.stop()
    if end_traces is not None:
        end_traces()
    leave()


def _check(options: ServeOptions) -> None:
    """Refuse options that contradict each other, before anything is opened.

    Raises:
        UsageError: two options exclude each other.
    """
    if options.proposals is not None and not options.tools:
        raise UsageError("--proposals offers tools, and --no-tools none; leave one of them out")
    if options.publish_only and not options.publish:
        raise UsageError("--publish-only and --no-publish leave nothing to serve; give one of them")
    if options.publish_only and options.transport != "http":
        raise UsageError("--publish-only publishes over HTTP; give --transport http")


def _open(roots: tuple[str, ...], options: ServeOptions) -> Service:
    """Make the parts of the server. The roots are not followed yet.

    Raises:
        UsageError: the roots cannot be served as the options ask.
    """
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
    settings = Settings(
        dialect=options.dialect,
        page_size=options.page_size,
        prompt_page_size=options.prompt_page_size,
        tools=options.tools,
        prompts=options.prompts,
        prompt_choice=options.prompt_choice,
        streams=quotas.streams,
        proposals=proposals_at(options.proposals, [each.path for each in registry.roots]),
    )
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
    runtime.embeddings = make_embeddings(registry, options, options.cache_dir)
    watcher = make_watcher(registry, options)
    views = make_views(registry, configuration, local=not over_http)
    counting = start_usage(options, registry, runtime.events, by_default=over_http)
    if counting is not None and not over_http:  # what other people load is no client's business
        runtime.briefing.prefer(counting.store.lately())
    audit = start_audit(options, runtime.events, stdout_is_free=over_http)
    return Service(opened, runtime, settings, watcher, views, quotas, counting, audit)


def _serve_stdio(service: Service, options: ServeOptions, roots: tuple[str, ...]) -> None:
    context = click.get_current_context()
    _warn_of_unused(context)
    reloader = Reloader(context, service.views, service.opened, events=service.runtime.events)
    reloader.start()
    on_hangup(reloader.ask, service.audit and service.audit.reopen)
    given = shlex.join(roots or ["--lock", str(options.lock)])
    say_that_it_waits(
        "an MCP host",
        f"mcp-skills-server install HOST {given} (has claude-code, cursor, vscode ... start it)",
        f"mcp-skills-server list {given} (what it serves)",
        f"npx @modelcontextprotocol/inspector mcp-skills-server serve {given} (a host in your browser)",
    )
    service.opened.fetch(options.first_load)
    import asyncio

    from mcp_skills_server.server.stdio import serve_stdio

    collect_from_now_on()
    asyncio.run(serve_stdio(service.runtime, service.settings, service.watcher, service.views))


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
