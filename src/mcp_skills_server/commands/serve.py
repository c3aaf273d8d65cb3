"""`serve`: serve skills over MCP, on stdin and stdout or over HTTP."""

from __future__ import annotations

import gc
import logging
import shlex
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from mcp_skills_server.commands.assembly import make_http_app, make_server
from mcp_skills_server.commands.features.feature import Feature, HttpServices, Server
from mcp_skills_server.commands.features.table import FEATURES, PrometheusMetrics, Publishing
from mcp_skills_server.commands.fields import Grouped, takes, traits_of, values_of
from mcp_skills_server.commands.logs import log_to_stderr
from mcp_skills_server.commands.options import optional_roots
from mcp_skills_server.commands.running import (
    collect_from_now_on,
    end_on_signals,
    exit_now,
    on_hangup,
    print_waiting_hint,
)
from mcp_skills_server.commands.serve_options import ServeOptions

if TYPE_CHECKING:
    from mcp_skills_server.commands.config_file import Configuration

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
        server.opened.stop()
        for feature in features:
            feature.stop()
    exit_now()


def _serve_stdio(context: click.Context, server: Server) -> None:
    _warn_of_unused(context, server.options.config)
    given = shlex.join(server.opened.given or ["--lock", str(server.options.lock)])
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
    """Serve over HTTP until a signal ends the process.

    Raises:
        UsageError: an option is invalid.
    """
    import anyio

    from mcp_skills_server.dialects import wellknown
    from mcp_skills_server.web.serving import serve_http
    from mcp_skills_server.web.settings import ListenSettings

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
