"""What the options are when nobody gives them: as the pages say."""

from __future__ import annotations

import re

import pytest

from mcp_skills_server.cli import cli
from wire import ROOT

SCRIPTS = (ROOT / "docs" / "scripts.md").read_text(encoding="utf-8")
UNITS = {"": 1, "s": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def default(command: str, option: str) -> object:
    parameters = cli.get_command(None, command).params  # type: ignore[union-attr, arg-type]
    (found,) = [each for each in parameters if option in each.opts]
    return found.default


@pytest.mark.parametrize("command", ["serve", "rpc"])
@pytest.mark.parametrize("option", ["--script-timeout", "--script-output", "--script-memory", "--script-concurrency"])
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
