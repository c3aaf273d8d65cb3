"""`serve`: over stdin and stdout, or over HTTP."""

from __future__ import annotations

import gc
import logging
import os
import shlex
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Literal

import click
from click.core import ParameterSource

from mcp_skills_server.commands.audit_options import AuditOptions, start_audit
from mcp_skills_server.commands.config_option import configuration_of, follow_configuration, issuer_of, tokens_of
from mcp_skills_server.commands.embedding_options import EmbeddingOptions, make_embeddings
from mcp_skills_server.commands.fields import Grouped, heading_of, option, takes
from mcp_skills_server.commands.granting import check_grants, make_views
from mcp_skills_server.commands.logs import Format, Level, log_format, log_level, log_to_stderr
from mcp_skills_server.commands.metrics_options import MetricsOptions, make_metrics
from mcp_skills_server.commands.opening import open_served
from mcp_skills_server.commands.options import roots_or_lock
from mcp_skills_server.commands.proxy_options import ProxyOptions
from mcp_skills_server.commands.redis_options import RedisOptions, make_shared
from mcp_skills_server.commands.running import (
    FollowOptions,
    end_on_signals,
    leave,
    make_watcher,
    on_hangup,
    say_that_it_waits,
    take_in,
)
from mcp_skills_server.commands.script_options import RuntimeOptions, execution_settings, make_runtime
from mcp_skills_server.commands.serve_options import HttpOptions, ShownOptions
from mcp_skills_server.commands.ui_options import PageOptions, make_ui
from mcp_skills_server.commands.usage_options import UsageOptions, start_usage
from mcp_skills_server.errors import UsageError

if TYPE_CHECKING:
    from mcp_skills_server.catalog.registry import Registry
    from mcp_skills_server.catalog.views import Views
    from mcp_skills_server.catalog.watch import Watcher
    from mcp_skills_server.runtime.runtime import Runtime
    from mcp_skills_server.server.requests import Settings
    from mcp_skills_server.sources.mirrors import Mirrors


logger = logging.getLogger(__name__)
_OVER_HTTP = "(--transport http)"
"""The end of the headings of options that do nothing over stdio."""


class RecordOptions(AuditOptions, UsageOptions, MetricsOptions, PageOptions):
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

    transport: Literal["stdio", "http"] = option(
        "stdio", "How clients reach the server.", type=click.Choice(["stdio", "http"])
    )
    front: Literal["lean", "sdk"] = option(
        "lean",
        "What speaks MCP: our own front, or the SDK's, which is slower. Over HTTP ours speaks the modern era alone.",
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
    registry, mirrors, scripts = open_served(roots, options, configuration_of(context))
    from mcp_skills_server.catalog.report import report_to_log
    from mcp_skills_server.server.requests import Settings
    from mcp_skills_server.telemetry.log import log_requests

    report_to_log(registry)
    log_requests(_request_level(options))
    _settle_after_load(registry)
    settings = Settings(
        dialect=options.dialect,
        page_size=options.page_size,
        prompt_page_size=options.prompt_page_size,
        tools=options.tools,
        prompts=options.prompts,
        prompt_choice=options.prompt_choice,
    )
    if options.publish_only and not options.publish:
        raise UsageError("--publish-only and --no-publish leave nothing to serve; give one of them")
    runtime = make_runtime(
        registry, options, max_loaded=options.max_loaded, catalog_chars=options.catalog_chars, roots=scripts
    )
    runtime.embeddings = make_embeddings(registry, options, options.cache_dir)
    watcher = make_watcher(registry, options)
    views = make_views(registry, configuration_of(context), local=options.transport == "stdio")
    end_usage = start_usage(options, registry, by_default=options.transport == "http")
    reopen = start_audit(options, stdout_is_free=options.transport == "http")
    if mirrors is not None:
        mirrors.report_to(registry.note)
        mirrors.start(partial(take_in, registry))
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
        _over_http(
            runtime, settings, watcher, mirrors, options, views=views, reopen=reopen, counts=end_usage is not None
        )
    if mirrors is not None:
        mirrors.stop()
    if end_usage is not None:
        end_usage()
    leave()


def _request_level(options: ServeOptions) -> int:
    """At which level requests are logged: over a pipe they are one person's own."""
    return logging.INFO if options.transport == "http" else logging.DEBUG


def _warn_of_unused(context: click.Context) -> None:
    """Name the options that were given and do nothing over stdio; tokens are among them, and keep nobody out there."""
    unused = [
        parameter.opts[0]
        for parameter in context.command.params
        if heading_of(parameter).endswith(_OVER_HTTP)
        and context.get_parameter_source(parameter.name or "") not in (None, ParameterSource.DEFAULT)
    ]
    if issuer_of(context) is not None:
        unused.append("[oauth]")
    if unused:
        logger.warning("unused without --transport http: %s", ", ".join(unused))


def _settle_after_load(registry: Registry) -> None:
    """Take what the first scan made out of the garbage collector's sight: it stays, and looking at it takes 0.1 s."""

    def settle(_: object) -> None:
        unsubscribe()
        gc.freeze()

    unsubscribe = registry.subscribe(settle)


async def _collecting(serve: Callable[..., Awaitable[None]], *arguments: object) -> None:
    """Serve, and look for garbage from here on: what a start makes stays, and looking at it takes a twentieth of it."""
    gc.freeze()
    gc.enable()
    await serve(*arguments)


def _over_stdio(runtime: Runtime, settings: Settings, watcher: Watcher | None, views: Views, front: str) -> None:
    import anyio

    if front == "sdk" or sys.platform == "win32":  # whose pipes no event loop can wait for
        from mcp_skills_server.server.app import serve_stdio
    else:
        from mcp_skills_server.server.front.stdio import serve_stdio
    anyio.run(_collecting, serve_stdio, runtime, settings, watcher, views)


def _over_http(
    runtime: Runtime,
    settings: Settings,
    watcher: Watcher | None,
    mirrors: Mirrors | None,
    options: ServeOptions,
    *,
    views: Views,
    reopen: Callable[[], object] | None,
    counts: bool,
) -> None:
    import anyio

    from mcp_skills_server.access.tokens import Tokens
    from mcp_skills_server.web.app import HttpSettings, serve_http
    from mcp_skills_server.web.discovery import PREFIXES
    from mcp_skills_server.web.forwarded import Proxies, checked_prefix
    from mcp_skills_server.web.guards import make_policy
    from mcp_skills_server.web.refresh import PATH, checked_secret

    # An empty value is a mistake in a deployment, and must not open the server.
    for variable in ("MCP_SKILLS_TOKEN_FILE", "MCP_SKILLS_TOKENS"):
        if os.environ.get(variable) == "":
            raise UsageError(f"{variable} is set but empty; give tokens, or unset it for a server without")
    tokens = Tokens(tokens_of(options.token_file, options.tokens))
    context = click.get_current_context()
    issuer = issuer_of(context)
    check_grants(configuration_of(context), [*tokens, *([] if issuer is None else [issuer])])
    on_hangup(follow_configuration(context, views, mirrors, tokens, request_level=_request_level(options)), reopen)
    policy = make_policy(options.host, options.allowed_host, options.allowed_origin, tokens, issuer)
    shared = make_shared(options, runtime.registry, mirrors, follows=options.watch)
    refresh = None
    if options.refresh_secret is not None:
        if mirrors is None:
            raise UsageError(
                "--refresh-secret is for sources that are fetched, and every ROOT is a folder; leave it out"
            )
        refresh = checked_secret(options.refresh_secret), mirrors.look if shared is None else shared.look
        policy = replace(policy, open_below=(PATH,))  # it has a proof of its own
    sites = mirrors.states if mirrors is not None else list
    shown = make_metrics(options, runtime.registry, sites)
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
        ui=make_ui(options, counts=counts) if options.ui else None,
        root_path=checked_prefix(options.root_path),
        proxies=Proxies(options.trusted_proxy),
        keep_alive=options.keep_alive,
        drain=options.drain,
    )
    if shared is not None:
        http = replace(http, sessions=shared.sessions, shared=lambda: [shared.link.state])
        shared.start()
    anyio.run(_collecting, serve_http, runtime, settings, http, watcher, views)
    if shared is not None:
        shared.stop()
