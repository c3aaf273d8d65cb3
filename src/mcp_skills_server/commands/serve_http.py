"""`serve --transport http`: the settings of HTTP, and the parts that the features add."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import anyio
import click

from mcp_skills_server.access.grants import EVERYBODY, LOCAL
from mcp_skills_server.access.quotas import Rates
from mcp_skills_server.access.tokens import Tokens
from mcp_skills_server.commands.features.endpoints import OAuth
from mcp_skills_server.commands.fields import traits_of, values_for, variables_of
from mcp_skills_server.commands.options import configuration_of, tokens_of
from mcp_skills_server.commands.reloading import Reloader
from mcp_skills_server.commands.running import collect_from_now_on, on_hangup
from mcp_skills_server.errors import UsageError
from mcp_skills_server.runtime.sessions import Sessions
from mcp_skills_server.web.forwarded import checked_prefix, trusted_networks
from mcp_skills_server.web.guards import make_policy
from mcp_skills_server.web.serving import serve_http
from mcp_skills_server.web.settings import HttpSettings

if TYPE_CHECKING:
    from mcp_skills_server.commands.config_file import Configuration
    from mcp_skills_server.commands.features.feature import Server


def serve_over_http(server: Server) -> None:
    """Serve until a signal ends the process.

    Raises:
        UsageError: the options cannot be served.
    """
    http, reloader = _http_settings(server)
    parts = [part for each in server.features if (part := each.part(server)) is not None]
    server.opened.fetch(server.options.first_load)
    on_hangup(reloader.ask, *(each.reopen for each in server.features))
    collect_from_now_on()
    serve = partial(serve_http, parts=parts)
    anyio.run(serve, server.runtime, server.settings, http, server.watcher, server.views)


def _http_settings(server: Server) -> tuple[HttpSettings, Reloader]:
    """Return the settings of HTTP, and what reloads the files."""
    context, options, sources = click.get_current_context(), server.options, server.opened.mirrors
    for parameter in context.command.params:
        variable, wanted = variables_of(parameter)[0], traits_of(parameter).if_empty
        if wanted and os.environ.get(variable) == "":
            raise UsageError(f"{variable} is set but empty; give {wanted}, or unset it for a server without")
    tokens = server.tokens = Tokens(tokens_of(options.token_file, options.tokens))
    issuer = server.feature(OAuth).resource_server
    if not tokens and issuer is None:
        _refuse_principals(configuration_of(context))
    rates = Rates(server.quotas)
    reloader = server.reloader = Reloader(context, server.views, server.opened, tokens, rates)
    reloader.start()

    def states() -> list[str]:
        return [state for each in (reloader, *server.features) if (state := each.state())]

    values = values_for(
        HttpSettings,
        options,
        policy=make_policy(options.host, options.allowed_host, options.allowed_origin, tokens, issuer),
        root_path=checked_prefix(options.root_path),
        proxies=trusted_networks(options.trusted_proxy),
        quotas=server.quotas,
        rates=rates,
        sessions=partial(Sessions, share=server.quotas.runtime_sessions),
        states=states,
    )
    http = HttpSettings(**values)
    if sources is not None:
        http = replace(http, sites=sources.states, look=sources.look)
    return http, reloader


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
