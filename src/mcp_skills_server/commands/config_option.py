"""The option `--config`: a file gives what neither the command line nor the environment does.

click takes the values of the file as its map of defaults, which comes after options and variables. What can be changed
while a command runs is followed by `reloading`.
"""

from __future__ import annotations

import logging
import os
import time
from typing import TYPE_CHECKING, ClassVar, Final

import click

from mcp_skills_server.commands.fields import PREFIX, Options, option, variables_of
from mcp_skills_server.errors import UsageError

if TYPE_CHECKING:
    from mcp_skills_server.access.oauth import ResourceServer
    from mcp_skills_server.access.quotas import QuotaSettings, Rates
    from mcp_skills_server.access.settings import OAuthSettings
    from mcp_skills_server.access.tokens import Token, TokenLines, Tokens
    from mcp_skills_server.catalog.views import Views
    from mcp_skills_server.commands.config_file import Configuration
    from mcp_skills_server.commands.opening import OpenedRoots
    from mcp_skills_server.commands.reloading import Reloader
    from mcp_skills_server.telemetry.events import Events

logger = logging.getLogger(__name__)

_READ: Final = "mcp_skills_server.configuration"
_WITHOUT_OPTION: Final = ("MCP_SKILLS_EMBEDDINGS_KEY",)
"""Variables that are no option, so that no process list shows what they hold."""


def _take(context: click.Context, _parameter: click.Parameter, path: str | None) -> str | None:
    """Read the file, before any other option is looked at."""
    if path is not None and not context.resilient_parsing:
        from mcp_skills_server.commands.config_file import ConfigurationError, read

        try:
            configuration = read(path)
        except ConfigurationError as error:
            raise UsageError(str(error)) from None
        context.meta[_READ] = configuration
        context.default_map = {**configuration.values}
    return path


class ConfigOptions(Options):
    """Where options are read from that are given nowhere else."""

    heading: ClassVar[str] = "Configuration"
    config: str | None = option(
        None,
        "Take from this TOML file the options that neither the command line nor the environment gives: "
        "page-size = 20. 'config check' proves it, 'config show' says what is in force.",
        type=click.Path(),
        metavar="FILE",
        is_eager=True,
        callback=_take,
    )


def configuration_of(context: click.Context) -> Configuration | None:
    """Return what the file of this command says; None where none was given."""
    return context.meta.get(_READ)


def tokens_of(file: str | None, lines: str | None) -> list[Token]:
    """The tokens of a file or of a value; none where neither is given. A line in the log names those that expire soon.

    Raises:
        UsageError: both are given, they cannot be read, or a line is wrong.
    """
    from mcp_skills_server.access.tokens import warn_of_ends

    found = token_lines_of(file, lines).checked()
    warn_of_ends(found, time.time())
    return found


def token_lines_of(file: str | None, lines: str | None, *, again: bool = False) -> TokenLines:
    """Return the same with the lines that are wrong; `again` where a running server reads them once more.

    Raises:
        UsageError: both are given, or they cannot be read.
    """
    from mcp_skills_server.access.tokens import TokenLines, read_token_file, read_token_value

    if file is not None and lines is not None:
        raise UsageError("tokens come from --token-file or from MCP_SKILLS_TOKENS; give one of them")
    if lines is not None:
        return read_token_value(lines, "MCP_SKILLS_TOKENS")
    return TokenLines(()) if file is None else read_token_file(file, again=again)


def oauth_of(context: click.Context) -> OAuthSettings | None:
    """Whose access tokens are taken, as the options and the file of this command say; None for nobody's.

    Raises:
        UsageError: an option does not take its value, or one is missing.
    """
    configuration = configuration_of(context)
    settings = None if configuration is None else configuration.oauth
    given = {key: context.params.get(f"oauth_{key}") for key in ("issuer", "audience", "resource")}
    options = {key: value for key, value in given.items() if value is not None}
    if not options:
        return settings
    from mcp_skills_server.commands.config_keys import overridden

    return overridden(settings, options)


def issuer_of(context: click.Context) -> ResourceServer | None:
    """Return what takes the tokens of the issuer that this command names; None where it names none.

    Raises:
        UsageError: as for `oauth_of`.
    """
    settings = oauth_of(context)
    if settings is None:
        return None
    from mcp_skills_server.access.oauth import ResourceServer
    from mcp_skills_server.web.issuer_fetch import fetch

    return ResourceServer(settings, fetch)


def quotas_of(context: click.Context) -> QuotaSettings:
    """How much one may take, as the file of this command says or by default."""
    from mcp_skills_server.access.quotas import QuotaSettings

    configuration = configuration_of(context)
    return QuotaSettings() if configuration is None else configuration.quotas


def follow_configuration(
    context: click.Context,
    views: Views,
    sources: OpenedRoots,
    tokens: Tokens | None = None,
    *,
    rates: Rates | None = None,
    events: Events | None = None,
    request_level: int = logging.DEBUG,
) -> Reloader:
    """Name unknown variables, and reload the configuration, the tokens and the lock file whenever they change.

    Args:
        context: of the command.
        views: which skills each principal has.
        sources: what is served.
        tokens: those in force, where there may be some.
        rates: those in force, where there may be some.
        events: of the server whose requests are logged; None where there are none.
        request_level: at which level requests are logged.

    Returns:
        What reads all of them again and has every source looked at.
    """
    warn_of_unknown_variables(context)
    configuration = configuration_of(context)
    from mcp_skills_server.commands.reloading import Reloader

    reloader = Reloader(
        context,
        configuration,
        sources,
        tokens,
        views=views,
        rates=rates,
        events=events,
        request_level=request_level,
    )
    reloader.start()
    return reloader


def warn_of_unknown_variables(context: click.Context) -> None:
    """Name each variable that is spelled as one of ours and is none, with the nearest that is one."""
    own = {each for parameter in context.command.params for each in variables_of(parameter)}
    unknown = {each for each in os.environ if each.startswith(PREFIX)} - own - {*_WITHOUT_OPTION}
    if not unknown:
        return
    from difflib import get_close_matches

    known = own
    root = context.find_root()
    if isinstance(root.command, click.Group):
        commands = [root.command.get_command(root, each) for each in root.command.list_commands(root)]
        known = own | {name for each in commands if each for option in each.params for name in variables_of(option)}
    for name in sorted(unknown - known):
        near = next(iter(get_close_matches(name, sorted(known), 1)), "")
        logger.warning("%s: there is no such variable; %s", name, f"set {near}" if near else "unset it")
