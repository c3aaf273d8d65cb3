"""Options of a command as fields of a frozen dataclass: one field says type, default and help.

    @dataclass(frozen=True, kw_only=True)
    class WatchOptions:
        heading: ClassVar = "Following changes"
        poll: bool = switch(False, "Look at time stamps instead of waiting for events.")

`takes(WatchOptions)` gives a click command these options and calls it with one such object. In the help of a `Grouped`
command the options stand below the heading of the class that declares them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import field, fields
from functools import wraps
from typing import Any, Final, TypeVar

import click

_T = TypeVar("_T")
_DECLARED: Final = "option"
_SWITCH: Final = "--{0}/--no-{0}"
_REST: Final = "Other options"


def option(default: _T, words: str, *names: str, **more: Any) -> _T:
    """A field for an option with a value.

    Args:
        default: its value where none is given.
        words: its help.
        names: as on the command line; without any, the field's name with hyphens.
        more: what `click.Option` takes besides: `type`, `metavar`, `required` ...
    """
    known = {} if more.get("required") else {"default": default}
    return field(default=default, metadata={_DECLARED: (names, {"help": words, **known, **more})})


def many(words: str, *names: str, metavar: str, **more: Any) -> tuple[str, ...]:
    """A field for an option that may be repeated."""
    return option((), words, *names, metavar=metavar, multiple=True, **more)


def flag(words: str, *names: str) -> bool:
    """A field that is true where the option is given."""
    return option(False, words, *names, is_flag=True)


def switch(default: bool, words: str, **more: Any) -> bool:
    """A field for an option with an opposite, such as --watch and --no-watch."""
    return option(default, words, _SWITCH, **more)


class _Option(click.Option):
    """An option that knows the heading of its help."""

    def __init__(self, *names: Any, heading: str, **more: Any) -> None:
        super().__init__(*names, **more)
        self.heading = heading


class Grouped(click.Command):
    """A command whose help has its options below headings."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The headings in the order of the classes, and at the end what has none."""
        rows: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            if record is not None:
                rows.setdefault(heading_of(parameter), []).append(record)
        rest = rows.pop(_REST, [])
        for heading, records in [*rows.items(), (_REST, rest)]:
            with formatter.section(heading):
                formatter.write_dl(records)


def heading_of(parameter: click.Parameter) -> str:
    """The heading that an option's help stands below."""
    return parameter.heading if isinstance(parameter, _Option) else _REST


def takes(kind: type[Any]) -> Callable[[Callable[..., _T]], Callable[..., _T]]:
    """Give a click command the options of this dataclass; their values are its first argument."""
    own = {each.name for each in fields(kind)}

    def decorate(command: Callable[..., _T]) -> Callable[..., _T]:
        @wraps(command)
        def run(*arguments: Any, **given: Any) -> _T:
            options = kind(**{name: given.pop(name) for name in own})
            return command(options, *arguments, **given)

        made: Callable[..., _T] = run
        for names, settings in reversed([*_declared(kind)]):
            made = click.option(*names, cls=_Option, **settings)(made)
        return made

    return decorate


def _declared(kind: type[Any]) -> Iterator[tuple[list[str], dict[str, Any]]]:
    """The options of a dataclass: its own, then those of its bases."""
    declared = {each.name: each.metadata[_DECLARED] for each in fields(kind)}
    for each in kind.__mro__:
        for name in vars(each).get("__annotations__", {}):
            if name in declared:
                names, settings = declared.pop(name)
                spelling = name.replace("_", "-")
                words = [word.format(spelling) for word in names or ("--{}",)]
                yield [name, *words], {"heading": vars(each).get("heading", _REST), **settings}
