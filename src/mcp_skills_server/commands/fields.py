"""Options of a command as typed fields of a class: one field declares one option.

    class WatchOptions(Options, heading="Following changes"):
        poll: bool = switch(False, "Look at time stamps instead of waiting for events.")

`takes(WatchOptions)` gives a click command these options and calls it with one such object. The
command line, the environment, the configuration file, `config show` and the reloading of the file
are all derived from the field. In the help of a `Grouped` command the options stand below the
heading of the class that declares them.

To a type checker these classes are dataclasses. Real dataclasses compile methods for each class,
which took 8 ms of every start.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import wraps
from itertools import chain
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Final,
    NamedTuple,
    TypeVar,
    cast,
    dataclass_transform,
)

import click

if TYPE_CHECKING:
    from click.types import OptionHelpExtra

_T = TypeVar("_T")
VARIABLE_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
"""The name of an environment variable that the operator chooses."""
PREFIX: Final = "MCP_SKILLS_"
"""Prefix of the variables of all options: MCP_SKILLS_PAGE_SIZE for --page-size."""
_WORDS: Final = "mcp_skills_server.words"
_ALL: Final = "mcp_skills_server.all"


class RootType(click.Path):
    """A folder, an archive, or the address of a site, a repository or a registry."""

    def split_envvar_value(self, rv: str) -> list[str]:
        """Split a variable as PATH is split, but not in `https://host:8443` or an oci:// tag."""
        from mcp_skills_server.sources.kinds import split

        return split(rv)


@dataclass(frozen=True, slots=True)
class Traits:
    """Properties of an option beyond those of click."""

    heading: str = "Other options"
    """The heading of the option in the help."""
    example: str = ""
    """An example of the options below the heading, in words of the command line."""
    is_secret: bool = False
    """True if its value is never shown."""
    is_live: bool = False
    """True if a running server applies a new value from the configuration file."""
    in_file: bool = True
    """True if a configuration file may set it."""
    if_empty: str = ""
    """The value to set if its variable is empty, which is refused: it would open the server."""
    path: str = ""
    """A regular expression for a value with a path, which is its first group."""

    @property
    def is_http_only(self) -> bool:
        """Return True if the option has no effect over stdio."""
        return self.heading.endswith("(--transport http)")


_OTHERS: Final = Traits()


class _Declared(NamedTuple):
    default: Any
    names: tuple[str, ...]
    settings: Mapping[str, Any]


@dataclass_transform(kw_only_default=True)
class Options:
    """The values of options: those that are given, and the defaults of the others.

    Raises:
        TypeError: a given option does not exist.
    """

    heading: ClassVar[str]
    example: ClassVar[str]

    def __init_subclass__(cls, heading: str = _OTHERS.heading, example: str = "") -> None:
        cls.heading = heading
        cls.example = example

    def __init__(self, **given: Any) -> None:
        values = {name: declared.default for name, declared in _declared(type(self))}
        if unknown := given.keys() - values:
            raise TypeError(f"{type(self).__name__} has no {', '.join(sorted(unknown))}")
        vars(self).update(values | given)


def option(default: _T, words: str, *names: str, **more: Any) -> _T:
    """Return a field for an option with a value.

    Args:
        names: its names on the command line; by default the field's name with hyphens. A field
            `context_host` of `--host` keeps its variable and key apart from a server's `--host`.
        more: arguments of `click.Option`; attributes of `Traits` except heading and example.
    """
    settings = {"help": words, "show_default": True, **more}
    if not more.get("required"):
        settings["default"] = default
    return cast("_T", _Declared(default, names or ("--{}",), settings))


def text(words: str, metavar: str, *names: str, **more: Any) -> str | None:
    """Return a field for an option with a text, without a default value."""
    return option(None, words, *names, metavar=metavar, **more)


def count(default: int, words: str, **more: Any) -> int:
    """Return a field for a whole number from 1."""
    return option(default, words, type=click.IntRange(min=1), **more)


def seconds(
    default: float, words: str, *, least: float = 0, above: bool = False, **more: Any
) -> float:
    """Return a field for a number of seconds from `least`, exclusive with `above`."""
    kind = click.FloatRange(min=least, min_open=above)
    return option(default, words, type=kind, metavar="SECONDS", callback=_finite, **more)


def _finite(_: click.Context, __: click.Parameter, value: float) -> float:
    if not math.isfinite(value):
        raise click.BadParameter(f"{value} is not a number of seconds.")
    return value


def file(words: str, *names: str, **more: Any) -> str | None:
    """Return a field for an option with the path of a file."""
    return option(None, words, *names, type=click.Path(dir_okay=False), metavar="FILE", **more)


def many(words: str, metavar: str, *names: str, **more: Any) -> tuple[str, ...]:
    """Return a field for an option that may be repeated."""
    words = f"{words} May be repeated."
    return option((), words, *names, metavar=metavar, multiple=True, **more)


def flag(words: str, *names: str) -> bool:
    """Return a field that is True if the option is given."""
    return option(False, words, *names, is_flag=True)


def switch(default: bool, words: str, **more: Any) -> bool:
    """Return a field for an option with an opposite, such as --watch and --no-watch."""
    return option(default, words, "--{0}/--no-{0}", **more)


def choice(*values: Any, words: str, **more: Any) -> Any:
    """Return a field for an option with one of these values, the first by default."""
    return option(values[0], words, type=click.Choice(values), **more)


def output_format(*values: Any, words: str = "The output format.") -> Any:
    """Return a field for the option `--format`."""
    return option(values[0], words, "--format", type=click.Choice(values))


def takes(*kinds: type[Options]) -> Callable[[Callable[..., _T]], Callable[..., _T]]:
    """Give a click command the options of these classes, as one leading argument for each class."""
    declared = [dict(_declared(kind)) for kind in kinds]

    def decorate(command: Callable[..., _T]) -> Callable[..., _T]:
        @wraps(command)
        def run(*arguments: Any, **given: Any) -> _T:
            pairs = zip(kinds, declared, strict=True)
            options = [kind(**{name: given.pop(name) for name in own}) for kind, own in pairs]
            return command(*options, *arguments, **given)

        made: Callable[..., _T] = run
        # click puts the option that is applied last first
        for name, field in reversed([*chain(*(own.items() for own in declared))]):
            names = [spelling.format(name.replace("_", "-")) for spelling in field.names]
            made = click.option(name, *names, cls=_Option, **field.settings)(made)
        return made

    return decorate


def _declared(kind: type[Options]) -> Iterator[tuple[str, _Declared]]:
    """Yield name and declaration of each option of a class, its own before its bases'."""
    for base in kind.__mro__:
        for name, value in vars(base).items():
            if isinstance(value, _Declared):
                traits = {trait: vars(base)[trait] for trait in ("heading", "example")}
                yield name, value._replace(settings={**value.settings, **traits})


class _Option(click.Option):
    """A click option with traits."""

    def __init__(self, *names: Any, **more: Any) -> None:
        self.traits = Traits(
            **{field.name: more.pop(field.name) for field in fields(Traits) if field.name in more}
        )
        super().__init__(*names, **more)
        long, name = key_of(self), self.name or ""
        key = name if name.endswith(f"_{long}") else long
        self.envvar = f"{PREFIX}{key.replace('-', '_').upper()}"

    def make_metavar(self, ctx: click.Context) -> str:
        """Return click's word for the value; N for a number with limits, which stand behind it."""
        return super().make_metavar(ctx).replace("INTEGER RANGE", "N")

    def get_help_extra(self, ctx: click.Context) -> OptionHelpExtra:
        """Return the facts behind the words of the option: its variable, besides those of click."""
        return {**super().get_help_extra(ctx), "envvars": (variable_of(self),)}


COMMON: Final = frozenset((
    "transport", "dialect", "log_level", "include", "exclude", "hidden", "cache_dir",
    "allow_private", "signers", "config", "watch", "poll", "refresh", "lock", "frozen",
    "require_signature", "proposals", "host", "port", "allowed_host", "allowed_origin",
    "token_file", "root_path", "trusted_proxy", "tools", "prompts", "allow_scripts",
    "script_origins", "sandbox", "oauth_issuer", "oauth_audience", "redis",
    "publish", "refresh_secret", "metrics", "ui", "embeddings", "audit_log", "usage", "traces",
))  # fmt: skip
"""The fields whose options `--help` of a `Grouped` command shows, beside its own below no heading.

`--help-all` shows the others, too, which few people need."""


def _show_all(context: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if value and not context.resilient_parsing:
        from mcp_skills_server.commands.printing import say_lines

        context.meta[_ALL] = True
        say_lines(context.get_help())
        context.exit()


class Grouped(click.Command):
    """A command whose help shows its options below headings, each with an example."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the parameters, with `--help-all` before `--help`."""
        *own, last = super().get_params(ctx)
        everything = click.Option(
            ["--help-all"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            help="Show all options, also those that few need, and exit.",
            callback=_show_all,
        )
        return [*own, everything, last]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words of the command line, and keep them for `parsed_again`."""
        ctx.meta[_WORDS] = (*args,)
        return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the headings in the order of the classes; options without one come last."""
        rows: dict[str, list[tuple[str, str]]] = {}
        examples: dict[str, str] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            traits = traits_of(parameter)
            is_shown = parameter.name in COMMON or traits.heading == _OTHERS.heading
            if record is not None and (is_shown or ctx.meta.get(_ALL)):
                rows.setdefault(traits.heading, []).append(record)
                examples[traits.heading] = examples.get(traits.heading) or traits.example
        rest = rows.pop(_OTHERS.heading, [])
        for heading, records in [*rows.items(), (_OTHERS.heading, rest)]:
            with formatter.section(heading):
                if example := examples.get(heading):
                    formatter.write_text(f"Example: {example}")
                formatter.write_dl(records)


def parsed_again(context: click.Context) -> click.Context:
    """Parse a `Grouped` command's words and environment again, with the current configuration file.

    `obj` of the new context is True, which the callback of --config reads as a running server.
    """
    return context.command.make_context(context.info_name, [*context.meta[_WORDS]], obj=True)


def values_of(options: Options, *names: str) -> dict[str, Any]:
    """Return the values of these options, for settings whose fields have the same names."""
    return {name: getattr(options, name) for name in names}


def traits_of(parameter: click.Parameter) -> Traits:
    """Return the traits of an option, or the default ones for an argument."""
    return parameter.traits if isinstance(parameter, _Option) else _OTHERS


def located(parameter: click.Parameter, value: str, folder: str) -> str:
    """Return an option's value with the path in it, if any, made absolute from `folder`."""
    pattern = traits_of(parameter).path
    if isinstance(parameter.type, click.Path):
        pattern = "(?!-$)(.+)"  # a hyphen stands for stdin or stdout
    match = re.fullmatch(pattern, value)
    if match is None or not pattern:
        return value
    return value[: match.start(1)] + os.path.normpath(os.path.join(folder, match[1]))


def key_of(parameter: click.Parameter) -> str:
    """Return the key in a configuration file: an option's long name, or an argument's name."""
    long = next((opt for opt in parameter.opts if opt.startswith("--")), parameter.name or "")
    return long.removeprefix("--")


def variable_of(parameter: click.Parameter) -> str:
    """Return the environment variable of an option or an argument, or "" if it has none."""
    return str(parameter.envvar or "")
