"""Commands as a person or a script calls them: in a process of their own, or in that of the test, which is quicker."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
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


def invoke(*words: object) -> Result:
    """Call a command in this process."""
    return CliRunner().invoke(cli, [*map(str, words)], standalone_mode=False)


def code(done: Result) -> int:
    """Return the exit code that the program makes of what a command returns."""
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code or done.return_value or 0


def seen(*words: object) -> Any:
    """Return what a command prints as JSON."""
    return json.loads(invoke(*words, "--format", "json").stdout)


def refusal(*words: object) -> str:
    """Return the one line that is printed before a command exits with 2."""
    done = invoke(*words)
    assert isinstance(done.exception, UsageError | RequestError) and done.stdout == "", done
    assert "\n" not in str(done.exception)
    return str(done.exception)
