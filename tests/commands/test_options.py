"""What the options are when nobody gives them: as the pages say."""

from __future__ import annotations

import re
from typing import Any

import click
import pytest
from click.core import ParameterSource

from mcp_skills_server.cli import COMMANDS, cli
from mcp_skills_server.commands.fields import variables_of
from tables import each_row
from wire import ROOT

SCRIPTS = (ROOT / "docs" / "scripts.md").read_text(encoding="utf-8")
UNITS = {"": 1, "s": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def default(command: str, option: str) -> object:
    parameters = cli.get_command(None, command).params  # type: ignore[union-attr, arg-type]
    (found,) = [each for each in parameters if option in each.opts]
    return found.default


@each_row("command", ["serve", "rpc"])
@each_row("option", ["--script-timeout", "--script-output", "--script-memory", "--script-concurrency"])
def test_the_limits_of_scripts_are_those_of_the_page(command: str, option: str) -> None:
    row = next(line for line in SCRIPTS.splitlines() if line.startswith("|") and line.endswith(f"| `{option}` |"))
    said = re.match(r"(\d+)(?: ([KMG]iB|s))?\b", row.split("|")[2].strip())
    assert said is not None
    assert default(command, option) == int(said[1]) * UNITS[said[2] or ""]


def test_what_lets_strangers_do_more_is_off() -> None:
    for command, options in {
        "serve": ["--allow-scripts", "--allow-code", "--script-network"],
        "rpc": ["--allow-scripts", "--allow-code", "--script-network"],
    }.items():
        assert [default(command, each) for each in options] == [False] * len(options)
        assert default(command, "--sandbox") == "required"


def test_every_option_of_every_command_is_read_from_the_variable_of_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """As docs/container.md has it: MCP_SKILLS_ and the option's name."""
    passed_over = []
    for command in COMMANDS:
        found: Any = cli.get_command(None, command)  # type: ignore[arg-type]
        commands = found.commands.values() if isinstance(found, click.Group) else [found]
        for each, option in ((found, option) for found in commands for option in found.params):
            if not isinstance(option, click.Option) or option.name == "help":
                continue
            long = next(name for name in option.opts if name.startswith("--"))
            with monkeypatch.context() as environment:
                environment.setenv(f"MCP_SKILLS_{long[2:].replace('-', '_').upper()}", "some value")
                value, source = option.consume_value(click.Context(each), {})
            if source is not ParameterSource.ENVIRONMENT or "some" not in str(value):
                passed_over.append((command, long, value))
    assert not passed_over


@each_row(
    "command",
    ["lock", "outdated", "update", "diff", "list", "show", "validate", "publish", "push", "approve", "verify"],
)
def test_every_command_that_reads_roots_takes_a_configuration(command: str) -> None:
    assert "config" in {each.name for each in cli.get_command(None, command).params}  # type: ignore[union-attr, arg-type]


def test_approve_reads_the_same_variable_for_the_file_as_serve() -> None:
    (found,) = [each for each in cli.get_command(None, "approve").params if each.name == "approvals"]  # type: ignore[union-attr, arg-type]
    assert variables_of(found) == ["MCP_SKILLS_APPROVALS"]
