"""Reference pages that `make golden` writes: options of all commands, problem codes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeAlias

import click

import mcp_skills_server
from mcp_skills_server.cli import COMMANDS, cli
from mcp_skills_server.codes import CODES
from mcp_skills_server.commands.fields import Traits, traits_of, variable_of
from mcp_skills_server.model import Standing
from mcp_skills_server.validation.explanations import EXPLANATIONS

Row: TypeAlias = tuple[str, str, str, str]
_HEADINGS: Final = ("option", "variable", "default", "what")
_EFFECTS: Final = {
    Standing.UNUSABLE: "not served",
    Standing.LENIENT: "not listed; tools, prompts and the Skills Protocol have it",
    Standing.VALID: "served",
}


def pages() -> dict[str, str]:
    """Return the pages by their names."""
    generated = {"options.md": _options(), "codes.md": _codes()}
    return {name: "\n\n".join(parts) + "\n" for name, parts in generated.items()}


def man() -> str:
    """Return the manual page mcp-skills-server(1), in the macros of man(7)."""
    lines = [
        f'.TH MCP-SKILLS-SERVER 1 "" "mcp-skills-server {mcp_skills_server.__version__}"',
        ".SH NAME",
        "mcp-skills-server \\- serve folders of Agent Skills to MCP hosts",
        ".SH SYNOPSIS",
        ".B mcp-skills-server",
        "COMMAND [OPTIONS] [ROOT...]",
        ".SH COMMANDS",
    ]
    for name, (command, context) in _commands(cli, click.Context(cli, info_name="mcp-skills-server")):
        lines += [".TP", f".B {_roff(' '.join([name, *command.collect_usage_pieces(context)]))}"]
        lines.append(_roff((command.help or "").partition("\n\n")[0]))
    lines += [".SH OPTIONS", "mcp\\-skills\\-server COMMAND \\-\\-help lists those of a command, and has examples."]
    return "\n".join(lines) + "\n"


def _roff(text: str) -> str:
    """Escape text as a line of roff that is not parsed as a request."""
    line = " ".join(text.replace("`", "").replace("\\", "\\e").replace("-", "\\-").split())
    return f"\\&{line}" if line.startswith((".", "'")) else line


def _options() -> Iterator[str]:
    yield "# Options"
    yield (
        "An option of the command line comes before its variable, the variable before the "
        "[configuration file](configuration.md), the file before the default. `--help` of a command has "
        "examples; that of `serve` shows the options that most people use, and `--help-all` all."
    )
    commands = dict(_commands(cli, click.Context(cli, info_name="mcp-skills-server")))
    usages = [
        (f"`{' '.join([name, *command.collect_usage_pieces(context)])}`", (command.help or "").partition("\n\n")[0])
        for name, (command, context) in commands.items()
    ]
    yield _table([("command", "what it does"), *usages])
    shared: dict[str, dict[Row, list[str]]] = {}
    own: dict[str, list[Row]] = {}
    for name, (command, context) in commands.items():
        for option in command.params:
            if isinstance(option, click.Option) and not option.hidden:
                heading, row = traits_of(option).heading, _row(option, context)
                if heading == Traits().heading:
                    own.setdefault(name, []).append(row)
                else:
                    shared.setdefault(heading, {}).setdefault(row, []).append(name)
    for heading, rows in shared.items():
        yield f"## {heading}"
        yield _table([(*_HEADINGS, "commands"), *((*row, ", ".join(names)) for row, names in rows.items())])
    yield "## Options of one command"
    for name, found in own.items():
        yield f"### {name}"
        yield _table([_HEADINGS, *found])


def _commands(group: click.Group, context: click.Context) -> Iterator[tuple[str, tuple[click.Command, click.Context]]]:
    """Yield the commands of a group and of the groups in it, by name."""
    for name in COMMANDS if group is cli else group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        below = click.Context(command, parent=context, info_name=name)
        if isinstance(command, click.Group):
            yield from _commands(command, below)
        else:
            yield below.command_path.partition(" ")[2], (command, below)


def _row(option: click.Option, context: click.Context) -> Row:
    names = ", ".join(f"`{each}`" for each in (*option.opts, *option.secondary_opts))
    metavar = "" if option.is_flag else f" `{option.make_metavar(context)}`"
    variable = f"`{variable_of(option)}`"
    return names + metavar, variable, _default(option.default), option.help or ""


def _default(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, str | int | float) and value != "":
        return f"`{value}`"
    return ""


def _codes() -> Iterator[str]:
    yield "# Codes of problems"
    yield "`mcp-skills-server validate` prints the code in brackets. A rule is one of [Requirements](requirements.md)."
    rows = [
        (f"`{name}`", code.severity, EXPLANATIONS[name].what, _EFFECTS[code.allows], code.cites, code.hint)
        for name, code in CODES.items()
    ]
    yield _table([("code", "", "what", "the skill is", "rule", "what to do"), *rows])


def _table(rows: Sequence[Sequence[str]]) -> str:
    lines = [
        " | ".join(cell.replace("|", "\\|").replace("<", "\\<").replace("\n", " ") for cell in row) for row in rows
    ]
    return "\n".join(f"| {line} |" for line in (lines[0], " | ".join(["---"] * len(rows[0])), *lines[1:]))
