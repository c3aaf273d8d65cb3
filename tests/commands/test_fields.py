"""Options as typed fields: types, help, defaults, traits and environment variables."""

from __future__ import annotations

import inspect
import re
import shlex
import sys
from pathlib import Path
from typing import Literal, get_type_hints

import click
import pytest
from click.core import ParameterSource

from commands.calls import run
from mcp_skills_server.cli import COMMANDS, cli
from mcp_skills_server.commands.features.table import FEATURES
from mcp_skills_server.commands.fields import Options, _Declared, traits_of, variable_of
from mcp_skills_server.commands.options import WatchOptions
from tables import each_row
from wire import ROOT, write_skill

GOLDEN_OPTIONS = ROOT / "tests" / "golden" / "options.txt"


def commands() -> dict[str, click.Command]:
    """Return all commands by name; subcommands by both names, as in `config show`."""
    found: dict[str, click.Command] = {}
    with click.Context(cli) as context:
        for name in COMMANDS:
            command = cli.get_command(context, name)
            below = command.commands if isinstance(command, click.Group) else {"": command}
            found |= {f"{name} {each}".strip(): known for each, known in below.items() if known is not None}
    return found


def type_of(parameter: click.Option) -> object:
    """Return the type of the values that click parses for an option."""
    if parameter.multiple:
        return tuple[str, ...]
    if isinstance(parameter.type, click.Choice):
        return Literal[tuple(parameter.type.choices)]
    kinds: dict[type, type] = {click.IntRange: int, click.FloatRange: float}
    if parameter.is_flag:
        return bool
    kind = kinds.get(type(parameter.type), str)
    if parameter.required or parameter.default is not None:
        return kind
    return kind | None


def declared_types(kind: type[Options] | None) -> dict[str, object]:
    """Return the annotated types of the options of a class, without its other fields."""
    return {
        name: eval(text, {**vars(sys.modules[base.__module__]), "Configuration": str})
        for base in (kind.__mro__ if kind is not None else ())
        for name, text in inspect.get_annotations(base).items()
        if isinstance(vars(base).get(name), _Declared)
    }


@each_row("name", commands())
def test_field_has_the_type_of_its_option(name: str) -> None:
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
            # A choice whose values are computed is annotated as text.
            is_computed_choice = hint is str and isinstance(parameter.type, click.Choice)
            assert is_computed_choice or hint == type_of(parameter), parameter.name
    assert not hints


@each_row("name", ["serve", "rpc", "acp"])
def test_help_has_a_valid_example_per_heading_and_every_option_and_variable(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "server.toml").touch()
    command = commands()[name]
    options = {word: each for each in command.params for word in (*each.opts, *each.secondary_opts)}
    shown = run(name, "--help-all").stdout
    usage, *groups, rest = re.split(r"^(?=\S.*:$)", shown, flags=re.MULTILINE)
    assert usage.startswith("Usage: ") and "Example" in usage
    for heading, example, *_ in map(str.splitlines, groups):
        assert example.startswith("  Example: --"), heading
        words = shlex.split(example.removeprefix("  Example: "))
        assert heading[:-1] in {traits_of(options[word]).heading for word in words if word in options}
        command.make_context(name, [*words, "skills"])
    assert rest.startswith("Other options:\n") and "--help " in rest  # -h after an earlier call
    for word, each in options.items():
        if word == each.opts[0] and word[0] == "-":
            assert len(re.findall(rf"^  {word}(?![\w-])", shown, re.MULTILINE)) == 1, word
            assert variable_of(each) in shown


def test_options_have_defaults() -> None:
    options = WatchOptions(poll=True)
    assert (options.poll, options.watch, options.reconcile) == (True, True, 300)
    with pytest.raises(TypeError, match="no wall"):
        WatchOptions(wall="x")  # type: ignore[call-arg]


def description_of(option: click.Option) -> str:
    """Return the names, bounds, flags and default of an option in one line."""
    kind, words = option.type, [*option.opts, *option.secondary_opts]
    if isinstance(kind, click.IntRange | click.FloatRange):
        words.append(repr(kind))
    elif isinstance(kind, click.Path):
        words.append("/".join(name for name in ("file", "dir") if getattr(kind, f"{name}_okay")))
    words += [name for name in ("required", "is_eager", "multiple") if getattr(option, name)]
    is_plain = option.required or option.default in (None, False, ())
    return " ".join(words if is_plain else [*words, f"= {option.default}"])


def bounds_and_defaults() -> str:
    every = (each for command in commands().values() for each in command.params)
    found = {description_of(each) for each in every if isinstance(each, click.Option)}
    return "".join(f"{line}\n" for line in sorted(found) if " " in line)


def test_bounds_and_defaults_of_options_match_the_golden_file() -> None:
    """A difference is a change for users: run `make golden`, and add a line to CHANGELOG.md."""
    assert GOLDEN_OPTIONS.read_text(encoding="utf-8") == bounds_and_defaults()


SCRIPTS_PAGE = (ROOT / "docs" / "scripts.md").read_text(encoding="utf-8")
UNITS = {"": 1, "s": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def default(command: str, option: str) -> object:
    (found,) = [each for each in commands()[command].params if option in each.opts]
    return found.default


@each_row("command", ["serve", "rpc"])
@each_row("option", ["--script-timeout", "--script-output", "--script-memory", "--script-concurrency"])
def test_script_limits_match_their_documentation(command: str, option: str) -> None:
    row = next(line for line in SCRIPTS_PAGE.splitlines() if line.startswith("|") and line.endswith(f"| `{option}` |"))
    found = re.match(r"(\d+)(?: ([KMG]iB|s))?\b", row.split("|")[2].strip())
    assert found is not None
    assert default(command, option) == int(found[1]) * UNITS[found[2] or ""]


OWN_VARIABLES = {
    ("update", "check"), ("freshness", "online"), ("freshness", "update"),
    ("context", "host"), ("validate", "watch"), ("package", "server"), ("evaluate", "prompt"), ("install", "config"),
}  # fmt: skip
"""Options that share only their name with one of `serve` or `acp`: the command is a part of their variable."""


def test_every_option_is_read_from_the_variable_of_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/container.md promises the variable MCP_SKILLS_ and the option's name."""
    not_read = []
    for name, command in commands().items():
        for each in command.params:
            if not isinstance(each, click.Option) or each.name == "help":
                continue
            long = next(word for word in each.opts if word.startswith("--"))[2:]
            words = f"{name} {long}" if (name, long) in OWN_VARIABLES else long
            with monkeypatch.context() as environment:
                environment.setenv(f"MCP_SKILLS_{re.sub('[ -]', '_', words).upper()}", "some value")
                value, source = each.consume_value(click.Context(command), {})
            if source is not ParameterSource.ENVIRONMENT or "some" not in str(value):
                not_read.append((name, long, value))
    assert not not_read


def test_settings_of_a_server_do_not_set_options_with_another_meaning(tmp_path: Path) -> None:
    write_skill(tmp_path / "skills/a")
    (file := tmp_path / "server.toml").write_text('roots = ["skills"]\nhost = "0.0.0.0"\nwatch = true\nserver = true\n')
    output = tmp_path / "plugin"
    for command in (["context"], ["validate"], ["package", "--output", output, "--name", "a"]):
        assert run(*command, "--config", file).returncode == 0
    assert not (output / "mcp.json").exists()
    shown = run("install", "codex", tmp_path / "skills", "--dry-run", MCP_SKILLS_CONFIG=str(file))
    assert shown.returncode == 0 and "server.toml" not in shown.stdout
