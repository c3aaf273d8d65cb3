"""What a person sees who starts a command on a terminal: that it waits, for whom, and how far it has come."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from commands.calls import run, terminal
from tables import each_row
from wire import FIXTURES, write_skill

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals")


def test_serve_says_that_it_waits_and_how_to_try_it() -> None:
    with terminal("serve", FIXTURES) as person:
        person.read("inspector")
        for word in ("MCP host", "stdin", "Ctrl-C", f"install HOST {FIXTURES}", f"list {FIXTURES}", "inspector"):
            assert word in person.seen
        person.type("\x03")
        assert person.end() == 0


def test_rpc_says_that_it_waits_and_what_can_be_typed() -> None:
    with terminal("rpc", FIXTURES) as person:
        person.read("what it serves")
        assert "Skills Protocol" in person.seen and "Ctrl-C" in person.seen
        line = next(line for line in person.seen.splitlines() if "type {" in line)
        person.type(line.partition("type ")[2] + "\n")
        person.read('"result"')
        person.type("\x03")
        assert person.end() == 0


def test_acp_says_that_it_waits() -> None:
    with terminal("acp", "--", "cat") as person:
        assert "an editor" in person.read("Ctrl-C")


@each_row("words", [["serve"], ["rpc"], ["acp", "--", "cat"]])
def test_a_host_is_told_nothing_of_that(words: list[str]) -> None:
    done = run(words[0], FIXTURES, *words[1:])
    assert done.returncode == 0 and "waiting" not in done.stderr and "to try it" not in done.stderr


def test_publish_shows_how_far_it_is_and_only_there(tmp_path: Path) -> None:
    for number in range(12):
        write_skill(tmp_path / "skills" / f"s{number}", a_md="a")
    words = ["publish", tmp_path / "skills", "--output", tmp_path / "public", "--cache-dir", tmp_path / "cache"]
    with terminal(*words) as person:
        assert person.end() == 0
    for word in ("reading the skills", "packing", "writing", "100%", "published 12 skills"):
        assert word in person.seen, person.seen
    (tmp_path / "skills" / "s1" / "a.md").write_bytes(b"other")
    done = run(*words)
    assert done.stderr.count("\n") == 1 and "%" not in done.stderr
