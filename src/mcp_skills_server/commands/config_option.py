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
    from mcp_skills_server.access.settings import OAuthSettings
    from mcp_skills_server.access.tokens import Token, TokenLines
    from mcp_skills_server.commands.config_file import Configuration

logger = logging.getLogger(__name__)

_READ: Final = "mcp_skills_server.configuration"
_WITHOUT_OPTION: Final = frozenset(("MCP_SKILLS_EMBEDDINGS_KEY",))
"""Variables of secrets that have no option, so that no process list shows them."""


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
    """The file of options."""

    heading: ClassVar[str] = "Configuration"
    config: str | None = option(
        None,
        "Take from this TOML file the options that neither the command line nor the environment gives: "
        "page-size = 20. 'config check' proves it, 'config show' says what is in force.",
        type=click.Path(),
        metavar="FILE",
        in_file=False,
        is_eager=True,
        callback=_take,
    )


def configuration_of(context: click.Context) -> Configuration | None:
    """Return the configuration of this command; None without `--config`."""
    return context.meta.get(_READ)


def tokens_of(file: str | None, lines: str | None) -> list[Token]:
    """Return the tokens of a file or of a value; none where neither is given. Warn of those that expire soon.

    Raises:
        UsageError: both are given, they cannot be read, or a line is wrong.
    """
    from mcp_skills_server.access.tokens import warn_of_ends

    found = token_lines_of(file, lines).checked()
    warn_of_ends(found, time.time())
    return found


def token_lines_of(file: str | None, lines: str | None, *, again: bool = False) -> TokenLines:
    """Return the tokens and the lines that are wrong; `again` for the reload of a running server.

    Raises:
        UsageError: both are given, or they cannot be read.
    """
    from mcp_skills_server.access.tokens import TokenLines, read_token_file, read_token_value

    if file is not None and lines is not None:
        raise UsageError("tokens come from --token-file or from MCP_SKILLS_TOKENS; give one of them")
    if lines is not None:
        return read_token_value(lines, "MCP_SKILLS_TOKENS")
    if file is None:
        return TokenLines(())
    return read_token_file(file, again=again)


def oauth_of(context: click.Context) -> OAuthSettings | None:
    """Return the issuer whose access tokens are accepted, by the options and the file of this command; or None.

    Raises:
        UsageError: an option does not take its value, or one is missing.
    """
    configuration = configuration_of(context)
    table = configuration and configuration.oauth
    given = {key: context.params.get(f"oauth_{key}") for key in ("issuer", "audience", "resource")}
    options = {key: value for key, value in given.items() if value is not None}
    if table is None and not options:
        return None
    from mcp_skills_server.commands.config_file import oauth_settings

    return oauth_settings(table or {}, options)


def warn_of_unknown_variables(context: click.Context) -> None:
    """Warn of each variable MCP_SKILLS_* that no command reads, with the nearest that one does."""
    own = _variables(context.command)
    unknown = {each for each in os.environ if each.startswith(PREFIX)} - own - _WITHOUT_OPTION
    if not unknown:
        return
    from mcp_skills_server.format.nearest import nearest

    root = context.find_root()
    if isinstance(root.command, click.Group):
        for name in root.command.list_commands(root):
            own |= _variables(root.command.get_command(root, name))
    for name in sorted(unknown - own):
        near = nearest(name, sorted(own), 1)
        logger.warning("%s: there is no such variable; %s", name, f"set {near[0]}" if near else "unset it")


def _variables(command: click.Command | None) -> set[str]:
    if command is None:
        return set()
    return {variable for parameter in command.params for variable in variables_of(parameter)}
