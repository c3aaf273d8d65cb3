"""`config`: check a configuration file, and show the values in force and their origin."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, cast

import click
from click.core import ParameterSource

from mcp_skills_server.access.grants import LOCAL, MAY
from mcp_skills_server.commands.fields import (
    Grouped,
    key_of,
    many,
    option,
    output_format,
    takes,
    traits_of,
    variable_of,
)
from mcp_skills_server.commands.logs import log_to_stderr
from mcp_skills_server.commands.options import FollowOptions, tokens_of
from mcp_skills_server.commands.printing import say, say_json, say_table
from mcp_skills_server.errors import UsageError, listed, quoted

if TYPE_CHECKING:
    from mcp_skills_server.access.grants import Grant
    from mcp_skills_server.access.principal import Principal
    from mcp_skills_server.access.tokens import Token
    from mcp_skills_server.commands.config_file import Configuration

_MASK: Final = "********"


@click.group()
def config() -> None:
    """Check a configuration file, and show the values in force.

    \b
    Examples:
      mcp-skills-server config check config.toml
      mcp-skills-server config show serve --config config.toml --port 9000
      mcp-skills-server config grants token:laptop --config config.toml
    """


@config.command()
@click.argument("file", type=click.Path())
def check(file: str) -> int:
    """Print each fault of FILE in a line: file, line, key, what to do. Exit code 1 if any."""
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
    """Print each option of a command, its value and its origin: option, environment, file, default.

    Give the words of the command itself, including --config FILE. Possible secrets are masked.
    """
    from mcp_skills_server.commands.config_file import READERS, command_named

    name, given = (words[0], words[1:]) if words and words[0] in READERS else (READERS[0], words)
    command = command_named(name)
    with command.make_context(name, [*given]) as made:
        rows = [
            _Row(key_of(param), _origin(param, made), _shown(param, made.params[param.name]))
            for param in command.params
            if param.name in made.params
        ]
        rows += _rules(made.params["config"]) + _oauth(made, command)
    say_table(("KEY", "FROM", "VALUE"), rows)


class GrantsOptions(FollowOptions):
    group: tuple[str, ...] = many("A group of the user, as the issuer's token names it.", "NAME")
    skill: str | None = option(None, "Print who may do what with this skill.", metavar="PATH")
    form: Literal["table", "json"] = output_format("table", "json")


@config.command(cls=Grouped)
@click.argument("who", required=False)
@takes(GrantsOptions)
def grants(options: GrantsOptions, who: str | None) -> None:
    """Print what WHO may do with which skill, or who may see one skill, and by which grants.

    WHO is "token:NAME", "user:SUBJECT", "group:NAME", "local" or "*", as in a table [[grant]].

    The groups of a token are those of the file of tokens; those of a user are given by --group.

    \b
    Examples:
      mcp-skills-server config grants token:laptop --config config.toml
      mcp-skills-server config grants user:5e2c --group finance --config config.toml
      mcp-skills-server config grants --skill acme/billing --config config.toml
    """
    from mcp_skills_server.access.grants import is_who, names_of
    from mcp_skills_server.commands.opening import open_served
    from mcp_skills_server.model import Standing

    log_to_stderr("warning")
    configuration = options.config
    if configuration is None or configuration.grants is None:
        reason = "there are no grants, so every client reads every skill"
        raise UsageError(f"{reason}; give --config FILE with grants")
    if options.skill is not None and who is None:
        _say_rights(options, options.skill, configuration)
        return
    if who is None or options.skill is not None:
        raise UsageError("give WHO, or --skill PATH, and not both")
    if not is_who(who):
        forms = '"token:NAME", "user:SUBJECT", "group:NAME", "local" or "*"'
        raise UsageError(f"{quoted(who)} is not a principal; write {forms}")
    principal = _principal(who, options.group, configuration)
    names = names_of(principal, local=who == LOCAL)
    given = [
        (grant, configuration.place("grant", number))
        for number, grant in enumerate(configuration.grants)
        if not names.isdisjoint(grant.who)
    ]
    served = open_served(configuration.values.get("roots", ()), options)
    registry = served.registry
    if served.mirrors is not None:
        served.mirrors.fetch()
    registry.load()
    paths = registry.snapshot.paths(Standing.LENIENT)
    decided = [row for path in paths if (row := _decision(path, given, names))]
    groups = sorted(principal.groups) if principal is not None else []
    if options.form == "json":
        withheld = len(paths) - len(decided)
        say_json({"who": who, "groups": groups, "skills": decided, "withheld": withheld})
        return
    if decided:
        _say_decisions(decided)
    of = ""
    if groups and not who.startswith("group:"):
        of = f" of {', '.join(groups)}"
    say(f"{who}{of} reads {len(decided):,} of {len(paths):,} skills", err=True)


def _say_rights(options: GrantsOptions, skill: str, configuration: Configuration) -> None:
    """Print who may do what with the skill of this path, whether it is there or not."""
    from mcp_skills_server.access.grants import rights_on

    given = configuration.grants or ()
    principals = [token.admission.principal for token in _tokens(configuration)]
    rows: list[dict[str, Any]] = []
    for row in rights_on(skill, given, principals):
        by = [
            _reason(grant, skill, row.names, configuration.place("grant", number))
            for number, grant in enumerate(given)
            if grant in row.grants
        ]
        rows.append({"who": row.who, "may": row.may, "grants": by})
    if options.form == "json":
        say_json({"skill": skill, "readers": rows})
    elif rows:
        _say_decisions(rows, "who")
    else:
        say(f"nobody may read {quoted(skill)}", err=True)


def _tokens(configuration: Configuration) -> Sequence[Token]:
    from mcp_skills_server.commands.config_file import command_named

    with command_named("serve").make_context("serve", ["--config", configuration.file]) as made:
        return tokens_of(made.params["token_file"], made.params["tokens"])


def _principal(who: str, groups: Sequence[str], configuration: Configuration) -> Principal | None:
    """Return the principal that WHO names; None for an unauthenticated one."""
    from mcp_skills_server.access.principal import Principal

    kind, _, name = who.partition(":")
    if kind == "group":
        return Principal("user", "", groups=frozenset((name, *groups)))
    if kind == "user":
        return Principal("user", name, groups=frozenset(groups))
    if groups:
        raise UsageError(f"--group is for users of an issuer; leave it out for {who}")
    if kind != "token":
        return None
    known = {token.name: token for token in _tokens(configuration)}
    if name not in known:
        names = listed(sorted(known)) or "none"
        raise UsageError(f"there is no token {quoted(name)}; there are: {names}")
    return known[name].admission.principal


def _say_decisions(decided: Sequence[Mapping[str, Any]], key: str = "skill") -> None:
    rows: list[tuple[str, ...]] = []
    for row in decided:
        name, may = str(row[key]), ",".join(row["may"])
        for reason in row["grants"]:
            whom, patterns = (",".join(reason[key]) for key in ("who", "patterns"))
            rows.append((name, may, f"{os.path.basename(reason['place'])} {whom} {patterns}"))
            name = may = ""
    say_table((key.upper(), "MAY", "WHY"), rows)


def _decision(
    path: str, given: Sequence[tuple[Grant, str]], names: Collection[str]
) -> dict[str, Any] | None:
    """Return what these grants, each with its place, permit on a skill; None for nothing."""
    why = [(grant, where) for grant, where in given if grant.covers(path)]
    if not why:
        return None
    granted = {"read"}.union(*(grant.may for grant, _ in why))
    may = [right for right in MAY if right in granted]
    by = [_reason(grant, path, names, where) for grant, where in why]
    return {"skill": path, "may": may, "grants": by}


def _reason(grant: Grant, path: str, names: Collection[str], where: str) -> dict[str, Any]:
    return {
        "place": where,
        "who": [name for name in grant.who if name in names],
        "patterns": [skill.text for skill in grant.skills if skill.matches(path)],
    }


class _Row(NamedTuple):
    """A setting, where its value is from (an option, a variable, a file's line), and the value."""

    key: str
    origin: str
    value: str


def _rules(configuration: Configuration | None) -> list[_Row]:
    """Return the rows of the tables [[source]], [[grant]] and [[quota]]."""
    if configuration is None:
        return []
    rows: list[_Row] = []
    for number, rules in enumerate(configuration.sources.values()):
        fields = asdict(rules)
        words = [_without_secrets(fields.pop("root"))]
        for field, value in fields.items():
            if value not in (None, (), ""):
                words.append(f"{_key(field)}={_text(value, ',')}")
        text = " ".join(words)
        rows.append(_Row("source", configuration.place("source", number), text))
    for number, grant in enumerate(configuration.grants or ()):
        may = ["read", *sorted(grant.may - {"read"})]
        skills = ",".join(pattern.text for pattern in grant.skills)
        text = f"who={','.join(grant.who)} skills={skills} may={','.join(may)}"
        rows.append(_Row("grant", configuration.place("grant", number), text))
    for number, table in enumerate(configuration.quotas):
        # tables [[quota]] have numbers, a single [quota] has none
        at = ("quota", number) if ("quota", number) in configuration.lines else ("quota",)
        who = f" who={','.join(table.who)}" if table.who else ""
        for key, value in table.limits.items():
            rows.append(_Row(f"quota.{key}", configuration.place(*at, key), f"{value}{who}"))
    return rows


def _oauth(context: click.Context, command: click.Command) -> list[_Row]:
    """Return the rows of the OAuth issuer. None of its values is a secret."""
    from mcp_skills_server.commands.features.table import oauth_settings

    configuration: Configuration | None = context.params["config"]
    oauth = None
    if "oauth_issuer" in context.params:
        table = configuration and configuration.oauth
        oauth = oauth_settings(table, context.params)
    if oauth is None:
        return []
    origin = "default"
    if configuration is not None and configuration.oauth is not None:
        origin = configuration.place("oauth")
    given = {
        param.name: _origin(param, context)
        for param in command.params
        if context.params[param.name or ""]
    }
    return [
        _Row(f"oauth.{_key(name)}", given.get(f"oauth_{name}", origin), _text(value))
        for name, value in {**asdict(oauth), "request_scopes": oauth.requested_scopes}.items()
    ]


def _key(field: str) -> str:
    """Return the key of a field, without the unit at its end."""
    return field.removesuffix("_s").replace("_", "-")


def _shown(parameter: click.Parameter, value: Any) -> str:
    if value not in (None, ()) and traits_of(parameter).is_secret:
        return _MASK
    return _text(value)


def _text(value: Any, between: str = " ") -> str:
    """Return a value as the text of a table cell, without secrets in URLs."""
    if value is None or value == ():
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, tuple):
        return between.join(
            _without_secrets(str(item)) for item in cast("tuple[object, ...]", value)
        )
    return _without_secrets(str(value))


def _without_secrets(text: str) -> str:
    """Return a URL without user name, password and query; other text is unchanged."""
    if "://" not in text:
        return text
    from mcp_skills_server.format.uris import bare

    return bare(text)


def _origin(parameter: click.Parameter, context: click.Context) -> str:
    source = context.get_parameter_source(parameter.name or "")
    configuration = context.params["config"]
    if source is ParameterSource.COMMANDLINE:
        return "option"
    if source is ParameterSource.ENVIRONMENT:
        return f"environment {variable_of(parameter)}"
    if source is ParameterSource.DEFAULT_MAP and configuration is not None:
        return configuration.place(key_of(parameter))
    return "default"
