"""Options as typed fields: what a type checker believes is what click hands over."""

from __future__ import annotations

import inspect
import sys
from types import ModuleType
from typing import Literal, get_type_hints

import click
import pytest
from click.testing import CliRunner

from mcp_skills_server.cli import COMMANDS, cli
from mcp_skills_server.commands.features.table import FEATURES
from mcp_skills_server.commands.fields import Grouped, Options, _Declared, flag, many, option, switch, takes, traits_of
from tables import each_row


class ColourOptions(Options, heading="Colours"):
    colours: tuple[str, ...] = many("A colour.", "--colour", metavar="NAME")
    bright: bool = switch(True, "Bright.")


class PaintOptions(ColourOptions):
    """A command's options."""

    coats: int = option(2, "How often.", type=click.IntRange(min=1))
    dry: bool = flag("Wait.")


@click.command(cls=Grouped)
@click.argument("wall")
@takes(PaintOptions)
def paint(options: PaintOptions, wall: str) -> None:
    """Paint a wall."""
    click.echo(f"{wall} {options.coats + 1} {options.colours} {options.bright} {options.dry}")


def commands() -> dict[str, click.Command]:
    with click.Context(cli) as context:
        found = {name: cli.get_command(context, name) for name in COMMANDS}
    return {name: each for name, each in found.items() if each is not None and not isinstance(each, click.Group)}


def type_of(parameter: click.Option) -> object:
    """The type of the values that click gives for an option."""
    if parameter.multiple:
        return tuple[str, ...]
    if isinstance(parameter.type, click.Choice):
        return Literal[tuple(parameter.type.choices)]
    kinds: dict[type, type] = {click.IntRange: int, click.FloatRange: float}
    kind = bool if parameter.is_flag else kinds.get(type(parameter.type), str)
    return kind if parameter.required or parameter.is_flag or parameter.default is not None else kind | None


def declared_types(kind: type[Options] | None) -> dict[str, object]:
    """The types of the options of a class, without what else a feature has."""
    return {
        name: eval(text, {**vars(sys.modules[base.__module__]), "Configuration": str})
        for base in (kind.__mro__ if kind is not None else ())
        for name, text in inspect.get_annotations(base).items()
        if isinstance(vars(base).get(name), _Declared)
    }


@each_row("name", commands())
def test_each_field_has_the_type_of_its_option(name: str) -> None:
    command = commands()[name]
    assert command.callback is not None
    kind = get_type_hints(inspect.unwrap(command.callback)).get("options")
    hints: dict[str, object] = {}
    for each in (kind, *(FEATURES if name == "serve" else ())):
        hints |= declared_types(each)
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.name is not None
            hint = hints.pop(parameter.name)
            from_a_table = hint is str and isinstance(parameter.type, click.Choice)
            assert from_a_table or hint == type_of(parameter), parameter.name
    assert not hints


def test_a_command_gets_one_object() -> None:
    done = CliRunner().invoke(paint, ["north", "--colour", "red", "--coats", "4", "--no-bright"])
    assert done.output == "north 5 ('red',) False False\n"
    assert "Invalid value for '--coats'" in CliRunner().invoke(paint, ["north", "--coats", "0"]).output


def test_the_help_has_the_headings_of_the_classes() -> None:
    text = CliRunner().invoke(paint, ["--help"]).output
    assert text.index("Colours:") < text.index("--colour NAME") < text.index("--bright / --no-bright")
    assert text.index("Other options:") < text.index("--coats") < text.index("--dry") < text.index("--help")


def test_options_have_defaults() -> None:
    options = PaintOptions(coats=3)
    assert (options.coats, options.colours, options.bright, options.dry) == (3, (), True, False)
    with pytest.raises(TypeError, match="no wall"):
        PaintOptions(wall="x")  # type: ignore[call-arg]


def test_a_new_command_is_its_file_and_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("mcp_skills_server.commands.paint")
    monkeypatch.setattr(module, "paint", paint, raising=False)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(COMMANDS, "paint", ("paint", "paint", "Serve"))
    assert "Paint a wall." in CliRunner().invoke(cli, ["--help"]).output
    assert CliRunner().invoke(cli, ["paint", "east"]).output.startswith("east 3")


def test_the_traits_of_the_options_of_serve() -> None:
    traits = {each.name: traits_of(each) for each in commands()["serve"].params}

    def those(trait: str, value: object = True) -> set[str | None]:
        return {name for name, each in traits.items() if getattr(each, trait) == value}

    assert those("is_live") == {"token_file", "tokens", "log_level", "refresh"}
    assert those("is_secret") == {"tokens", "refresh_secret", "redis_password"}
    assert those("in_file", value=False) == {"config", "oauth_issuer", "oauth_audience", "oauth_resource"}
    assert {*traits} - those("if_empty", value="") == {"token_file", "tokens", "oauth_issuer", "oauth_audience"}
    assert {"port", "drain", "redis", "ui"} < those("is_http_only") and "tools" not in those("is_http_only")
