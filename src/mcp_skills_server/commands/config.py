"""`config`: prove a configuration file, and show what is in force and where it is from."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final, cast

import click
from click.core import ParameterSource

from mcp_skills_server.commands.config_option import configuration_of, oauth_of
from mcp_skills_server.commands.fields import is_secret, key_of, variables_of
from mcp_skills_server.commands.printing import say, say_table

if TYPE_CHECKING:
    from mcp_skills_server.commands.config_file import Configuration

_MASK: Final = "********"


@click.group()
def config() -> None:
    """Prove a configuration file, and show what is in force.

    \b
    Examples:
      mcp-skills-server config check config.toml
      mcp-skills-server config show serve --config config.toml --port 9000
    """


@config.command()
@click.argument("file", type=click.Path())
def check(file: str) -> int:
    """Print a line for each thing that is wrong with FILE: file, line, key, what to do. Exit code 1 if anything is."""
    from mcp_skills_server.commands.config_file import ConfigurationError, read

    try:
        read(file)
    except ConfigurationError as error:
        for fault in error.faults:
            say(fault.show(file))
        return 1
    say(f"{file}: nothing is wrong")
    return 0


@config.command(context_settings={"ignore_unknown_options": True, "help_option_names": ["--help"]})
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[serve|rpc|acp] [OPTION]...")
def show(words: tuple[str, ...]) -> None:
    """Print the value of every option of a command, and where it is from: option, environment, file or default.

    The words are those that the command gets, --config FILE among them. What may be a secret is masked.
    """
    from mcp_skills_server.commands.config_schema import READERS, reader

    name, given = (words[0], words[1:]) if words and words[0] in READERS else (READERS[0], words)
    command = reader(name)
    with command.make_context(name, [*given]) as made:
        rows = [
            (key_of(each), _shown(each, made.params[each.name]), _origin(each, made))
            for each in command.params
            if each.name in made.params
        ]
        found = configuration_of(made)
        rows += _rules(found) + _oauth(made, command) + _quotas(found)
    say_table([("KEY", "FROM", "VALUE"), *((key, origin, value) for key, value, origin in rows)])


def _rules(configuration: Configuration | None) -> list[tuple[str, str, str]]:
    """What the file says of single roots, and of who may what."""
    if configuration is None:
        return []
    granted = zip(configuration.grants or (), configuration.grant_lines, strict=True)
    return [
        (
            "source",
            " ".join(
                [
                    _without_secrets(root),
                    *([f"scripts={str(each.scripts).lower()}"] if each.scripts is not None else []),
                    *([f"require-signature={','.join(each.require_signature)}"] if each.require_signature else []),
                    *([f"refresh={each.refresh_s:g}"] if each.refresh_s is not None else []),
                ]
            ),
            f"{configuration.file}:{each.line}",
        )
        for root, each in configuration.sources.items()
    ] + [
        (
            "grant",
            " ".join(
                [
                    f"who={','.join(each.who)}",
                    f"skills={','.join(pattern.text for pattern in each.skills)}",
                    f"may={','.join(['read', *sorted(each.may - {'read'})])}",
                ]
            ),
            f"{configuration.file}:{line}",
        )
        for each, line in granted
    ]


def _oauth(context: click.Context, command: click.Command) -> list[tuple[str, str, str]]:
    """Of which issuer tokens are taken. None of it is a secret."""
    found, configuration = oauth_of(context), configuration_of(context)
    if found is None:
        return []
    place = "default"
    if configuration is not None and configuration.oauth is not None:
        place = f"{configuration.file}:{configuration.lines.get('oauth', 0)}"
    given = {each.name: _origin(each, context) for each in command.params if context.params.get(each.name or "")}
    shown = {
        "issuer": found.issuer,
        "audience": found.audience,
        "resource": found.resource,
        "groups-claim": found.groups_claim,
        "scopes": " ".join(found.scopes) or "-",
        "algorithms": " ".join(found.algorithms),
        "skew": f"{found.skew_s:g}",
    }
    return [(f"oauth.{key}", value, given.get(f"oauth_{key}", place)) for key, value in shown.items()]


def _quotas(configuration: Configuration | None) -> list[tuple[str, str, str]]:
    """What the file says of quotas."""
    if configuration is None:
        return []
    return [
        (
            key,
            str(getattr(configuration.quotas, key.removeprefix("quota.").replace("-", "_"))),
            f"{configuration.file}:{line}",
        )
        for key, line in configuration.lines.items()
        if key.startswith("quota.")
    ]


def _shown(parameter: click.Parameter, value: Any) -> str:
    if value is None or value == ():
        return "-"
    if is_secret(parameter):
        return _MASK
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return " ".join(_without_secrets(str(each)) for each in cast("tuple[object, ...]", value))
    return _without_secrets(str(value))


def _without_secrets(text: str) -> str:
    """An address without user name, password and query; anything else as it is."""
    if "://" not in text:
        return text
    from mcp_skills_server.format.uris import bare

    return bare(text)


def _origin(parameter: click.Parameter, context: click.Context) -> str:
    source, configuration = context.get_parameter_source(parameter.name or ""), configuration_of(context)
    if source is ParameterSource.COMMANDLINE:
        return "option"
    if source is ParameterSource.ENVIRONMENT:
        names = variables_of(parameter)
        return next((f"environment {each}" for each in names if os.environ.get(each)), "environment")
    if source is ParameterSource.DEFAULT_MAP and configuration is not None:
        return f"{configuration.file}:{configuration.lines.get(parameter.name or '', 0)}"
    return "default"
