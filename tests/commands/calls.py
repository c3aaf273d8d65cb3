"""Commands as a person or a script calls them: in a process of their own, or in that of the test, which is quicker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any

from click.testing import CliRunner, Result

import forkserver
from mcp_skills_server.cli import cli
from mcp_skills_server.errors import RequestError, UsageError
from wire import COMMAND, DEADLINE, ROOT


def run(*words: object, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a process, which has no terminal and whose stdin is empty."""
    done = forkserver.run(
        [*COMMAND, *map(str, words)], capture_output=True, text=True, encoding="utf-8", timeout=DEADLINE,
        cwd=cwd, stdin=subprocess.DEVNULL, env={**os.environ, **environment},
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    return done


def invoke(*words: object, **environment: str) -> Result:
    """Call a command in this process."""
    return CliRunner(env=environment).invoke(cli, [*map(str, words)], standalone_mode=False)


def code(done: Result) -> int:
    """Return the exit code that the program makes of what a command returns."""
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code or done.return_value or 0


def seen(*words: object, **environment: str) -> Any:
    """Return what a command prints as JSON."""
    return json.loads(invoke(*words, "--format", "json", **environment).stdout)


def refusal(*words: object) -> str:
    """Return the one line that is printed before a command exits with 2."""
    done = invoke(*words)
    assert isinstance(done.exception, UsageError | RequestError) and done.stdout == "", done
    assert "\n" not in str(done.exception)
    return str(done.exception)


class Terminal:
    """A process on a terminal of 90 columns, and what a person sees there; a stream may be kept off it."""

    def __init__(self, *words: object, cwd: Path, environment: dict[str, str], **streams: int) -> None:
        self.ours, theirs = os.openpty()
        termios.tcsetwinsize(theirs, (24, 90))
        begin = (
            "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execvp(sys.argv[1], sys.argv[1:])"
        )
        plain = {key: value for key, value in os.environ.items() if key != "COLUMNS"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", begin, *COMMAND, *map(str, words)], cwd=cwd, start_new_session=True,
            env={**plain, **environment}, **{"stdin": theirs, "stdout": theirs, "stderr": theirs, **streams},
        )  # fmt: skip
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

    def end(self) -> int:
        """Read to the end, and return the exit code."""
        assert "Traceback" not in self.read()
        return self.process.wait(DEADLINE)


@contextmanager
def terminal(
    *words: object, cwd: Path = ROOT, environment: dict[str, str] | None = None, **streams: int
) -> Iterator[Terminal]:
    """Run a command on a terminal."""
    opened = Terminal(*words, cwd=cwd, environment=environment or {}, **streams)
    try:
        yield opened
    finally:
        opened.process.kill()
        opened.process.wait()
        os.close(opened.ours)
