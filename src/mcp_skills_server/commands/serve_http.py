"""`serve --transport http`: what the operator chose for HTTP."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

import anyio
import click

from mcp_skills_server.access.quotas import Rates
from mcp_skills_server.access.tokens import Tokens
from mcp_skills_server.commands.config_option import configuration_of, follow_configuration, issuer_of, tokens_of
from mcp_skills_server.commands.granting import check_grants
from mcp_skills_server.commands.logs import request_level
from mcp_skills_server.commands.metrics_options import make_metrics
from mcp_skills_server.commands.running import collecting, on_hangup
from mcp_skills_server.commands.script_options import execution_settings
from mcp_skills_server.commands.ui_options import make_ui
from mcp_skills_server.errors import UsageError
from mcp_skills_server.runtime.sessions import Sessions
from mcp_skills_server.web.discovery import PREFIXES
from mcp_skills_server.web.forwarded import checked_prefix, trusted_networks
from mcp_skills_server.web.guards import make_policy
from mcp_skills_server.web.refresh import PATH, checked_secret
from mcp_skills_server.web.settings import HttpSettings

if TYPE_CHECKING:
    from mcp_skills_server.commands.serve import ServeOptions, Service

logger = logging.getLogger(__name__)
_NEVER_EMPTY: Final = {
    "MCP_SKILLS_TOKEN_FILE": "tokens",
    "MCP_SKILLS_TOKENS": "tokens",
    "MCP_SKILLS_OAUTH_ISSUER": "an issuer",
    "MCP_SKILLS_OAUTH_AUDIENCE": "an audience",
}
"""What is set where a server is not for everybody, and what it is to have."""


def serve_over_http(service: Service, options: ServeOptions) -> int:
    """Serve until the end; return the exit code.

    Raises:
        UsageError: it cannot be served so.
    """
    http, read_again = _http_settings(service, options)
    if service.shared is not None:
        service.shared.start()
    from mcp_skills_server.web.serving import serve_http

    on_hangup(read_again, service.audit and service.audit.reopen)
    anyio.run(collecting, serve_http, service.runtime, service.settings, http, service.watcher, service.views)
    return 0


def _http_settings(service: Service, options: ServeOptions) -> tuple[HttpSettings, Callable[[], object]]:
    """Return the settings of HTTP, and the function that has tokens, configuration and lock file read again.

    Raises:
        UsageError: it cannot be served so.
    """
    views, shared, counting = service.views, service.shared, service.counting
    # An empty value is a mistake in a deployment, and must not open the server.
    for variable, what in _NEVER_EMPTY.items():
        if os.environ.get(variable) == "":
            raise UsageError(f"{variable} is set but empty; give {what}, or unset it for a server without")
    tokens = Tokens(tokens_of(options.token_file, options.tokens))
    context = click.get_current_context()
    issuer = issuer_of(context)
    check_grants(configuration_of(context), [*tokens, *([] if issuer is None else [issuer])])
    rates = Rates(service.quotas)
    reloader = follow_configuration(
        context, views, service.sources, tokens, rates=rates, request_level=request_level(options.transport)
    )
    policy = make_policy(options.host, options.allowed_host, options.allowed_origin, tokens, issuer)
    sources = service.mirrors
    refresh = _refresh(service, options)
    if refresh is not None:
        policy = replace(policy, open_below=(PATH,))  # it has a proof of its own
    if options.publish_open:
        policy = replace(policy, open_below=(*policy.open_below, *PREFIXES))
    sites = sources.states if sources is not None else list
    shown = make_metrics(
        options,
        views.registry,
        sites,
        usage=counting and counting.usage,
        reloader=reloader if reloader.has_files else None,
        allowed_hosts=options.allowed_host,
        tokens=tokens,
        audit=service.audit,
        link=shared and shared.link,
    )

    def states() -> list[str]:
        beside = [each.state for each in (shared and shared.link, service.audit) if each is not None]
        return [reloader.last.line, *beside] if reloader.has_files else beside

    http = HttpSettings(
        host=options.host,
        port=options.port,
        policy=policy,
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
        metrics=shown if options.metrics else None,
        refresh=refresh,
        root_path=checked_prefix(options.root_path),
        proxies=trusted_networks(options.trusted_proxy),
        keep_alive=options.keep_alive,
        drain=options.drain,
        quotas=service.quotas,
        rates=rates,
        sessions=partial(Sessions, share=service.quotas.runtime_sessions),
        allow_empty=options.allow_empty,
        ui=make_ui(counting and counting.store) if options.ui else None,
        states=states,
    )
    if shared is not None:
        http = replace(
            http,
            sessions=shared.sessions,
            page_sessions=shared.page_sessions,
            recent=shared.recent,
            take_shared=shared.take,
        )
    return http, reloader.ask


def _refresh(service: Service, options: ServeOptions) -> tuple[bytes, Callable[[], int]] | None:
    """The secret of webhooks, and what they have looked at; None where there are none.

    Raises:
        UsageError: the secret is none.
    """
    if options.refresh_secret is None:
        return None
    secret = checked_secret(options.refresh_secret)
    if service.mirrors is None:
        logger.warning("--refresh-secret: every ROOT is a folder, which is watched; %s has nothing to fetch", PATH)
        return secret, int
    shared = service.shared
    return secret, shared.look if shared is not None else service.mirrors.look
