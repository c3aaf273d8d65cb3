"""What a person sees who starts a command on a terminal: that it waits, for whom, and how far it has come."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

import pytest

import forkserver
from tables import each_row
from wire import COMMAND, DEADLINE, FIXTURES, ROOT, write_skill

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals")


class Terminal:
    """A process on a terminal of its own, and what a person would see there."""

    def __init__(self, *words: str | Path) -> None:
        self.ours, theirs = os.openpty()
        begin = (
            "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execvp(sys.argv[1], sys.argv[1:])"
        )
        command = [sys.executable, "-c", begin, *COMMAND, *map(str, words)]
        self.process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, cwd=ROOT, start_new_session=True
        )
        os.close(theirs)
        self.seen = ""

    def read(self, until: str | None = None) -> str:
        """Read until this is seen, or to the end."""
        deadline = monotonic() + 3 * DEADLINE
        while until is None or until not in self.seen:
            assert monotonic() < deadline, self.seen
            try:
                self.seen += os.read(self.ours, 65536).decode()
            except OSError:  # the other end is closed
                assert until is None, self.seen
                break
        return self.seen

    def type(self, text: str) -> None:
        os.write(self.ours, text.encode())


@contextmanager
def terminal(*words: str | Path) -> Iterator[Terminal]:
    opened = Terminal(*words)
    try:
        yield opened
    finally:
        opened.process.kill()
        opened.process.wait()
        os.close(opened.ours)


def test_serve_says_that_it_waits_and_how_to_try_it() -> None:
    with terminal("serve", FIXTURES) as person:
        person.read("inspector")
        for word in ("MCP host", "stdin", "Ctrl-C", f"install HOST {FIXTURES}", f"list {FIXTURES}", "inspector"):
            assert word in person.seen
        person.type("\x03")
        assert "Traceback" not in person.read() and person.process.wait(DEADLINE) == 0


def test_rpc_says_that_it_waits_and_what_can_be_typed() -> None:
    with terminal("rpc", FIXTURES) as person:
        person.read("what it serves")
        assert "Skills Protocol" in person.seen and "Ctrl-C" in person.seen
        line = next(line for line in person.seen.splitlines() if "type {" in line)
        person.type(line.partition("type ")[2] + "\n")
        person.read('"result"')
        person.type("\x03")
        assert "Traceback" not in person.read() and person.process.wait(DEADLINE) == 0


def test_acp_says_that_it_waits() -> None:
    with terminal("acp", "--", "cat") as person:
        assert "an editor" in person.read("Ctrl-C")


@each_row("words", [["serve"], ["rpc"], ["acp", "--", "cat"]])
def test_a_host_is_told_nothing_of_that(words: list[str]) -> None:
    given = [words[0], str(FIXTURES), *words[1:]]
    done = forkserver.run([*COMMAND, *given], input=b"", capture_output=True, check=True, timeout=DEADLINE, cwd=ROOT)
    assert b"waiting" not in done.stderr and b"to try it" not in done.stderr


def test_publish_shows_how_far_it_is_and_only_there(tmp_path: Path) -> None:
    for number in range(12):
        write_skill(tmp_path / "skills" / f"s{number}", a_md="a")
    words = ["publish", tmp_path / "skills", "--output", tmp_path / "public", "--cache-dir", tmp_path / "cache"]
    with terminal(*words) as person:
        person.read()
        assert person.process.wait(DEADLINE) == 0
    for word in ("reading the skills", "packing", "writing", "100%", "published 12 skills"):
        assert word in person.seen, person.seen
    (tmp_path / "skills" / "s1" / "a.md").write_bytes(b"other")
    done = forkserver.run([*COMMAND, *map(str, words)], capture_output=True, text=True, check=True, timeout=DEADLINE)
    assert done.stderr.count("\n") == 1 and "%" not in done.stderr
