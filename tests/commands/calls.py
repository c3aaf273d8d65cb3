"""Run commands of the program: in a process, in this process (faster), or on a terminal."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from pathlib import Path
from time import monotonic
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

import forkserver
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.cli import cli, main
from mcp_skills_server.commands.fields import takes
from mcp_skills_server.commands.opening import OpenedRoots, make_watcher, open_served
from mcp_skills_server.commands.options import optional_roots
from mcp_skills_server.commands.serve_options import ServeOptions
from mcp_skills_server.errors import RequestError, UsageError
from mcp_skills_server.model import Standing
from wire import COMMAND, DEADLINE, ROOT


@contextmanager
def restoring_logging() -> Iterator[None]:
    """Restore the logging that a command sets up in this process."""
    ours, root = logging.getLogger("mcp_skills_server"), logging.getLogger()
    levels, handlers = (ours.level, root.level), [*root.handlers]
    try:
        yield
    finally:
        ours.setLevel(levels[0])
        root.setLevel(levels[1])
        root.handlers[:] = handlers


_KEEP_A_PROCESS = {"acp", "rpc", "serve", "ui"}
"""Commands that take over the signals and the exit of their process."""


def run(*words: object, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the program without a terminal and with an empty stdin; in this process, if the command can share it."""
    arguments = [*map(str, words)]
    if _KEEP_A_PROCESS.isdisjoint(arguments[:1]):
        done = _run_here(arguments, cwd, environment)
    else:
        done = run_process(*words, cwd=cwd, **environment)
    assert "Traceback" not in done.stderr, done.stderr
    return done


def run_process(*words: object, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    """Do what `run` does, in a process of its own."""
    return forkserver.run(
        [*COMMAND, *map(str, words)], capture_output=True, text=True, encoding="utf-8", timeout=DEADLINE,
        cwd=cwd, stdin=subprocess.DEVNULL, env={**os.environ, **environment},
    )  # fmt: skip


def _run_here(arguments: list[str], cwd: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    with chdir(cwd), restoring_logging(), CliRunner().isolation(env=environment) as (out, err, _):
        logging.getLogger().handlers.clear()  # pytest's own, beside which the program adds none
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        sys.stdout.flush()
        sys.stderr.flush()
    return subprocess.CompletedProcess(arguments, ended.value.code, out.getvalue().decode(), err.getvalue().decode())


def invoke(*words: object, **environment: str) -> Result:
    """Call a command in this process."""
    return CliRunner(env=environment).invoke(cli, [*map(str, words)], standalone_mode=False)


def exit_code(done: Result) -> int:
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code or done.return_value or 0


def json_of(*words: object, **environment: str) -> Any:
    """Return the parsed output of a command with `--format json`."""
    return json.loads(invoke(*words, "--format", "json", **environment).stdout)


def refusal(*words: object) -> str:
    """Return the one-line message of a command that is refused."""
    done = invoke(*words)
    assert isinstance(done.exception, UsageError | RequestError), done
    assert done.stdout == ""
    assert "\n" not in str(done.exception)
    return str(done.exception)


@click.command()
@optional_roots
@takes(ServeOptions)
def _open(options: ServeOptions, roots: tuple[str, ...]) -> tuple[OpenedRoots, ServeOptions]:
    return open_served(roots, options), options


@contextmanager
def opened(*words: object) -> Iterator[Registry]:
    """Open, load and follow the roots of `serve` with these words, in this process and without a client."""
    roots, options = _open.main([*map(str, words)], standalone_mode=False)
    roots.start(options.first_load)
    try:
        with make_watcher(roots.registry, options) or roots.registry:
            yield roots.registry
    finally:
        roots.stop()


def names_served(*words: object) -> list[str]:
    """Return the sorted names of the skills that `serve` with these words lists."""
    with opened(*words) as registry:
        skills = registry.snapshot.skills
        return sorted(skills[path].name for path in registry.snapshot.paths(Standing.VALID))


class Terminal:
    """A process on a pseudoterminal of 90 columns, and its output. Ctrl-C ends it if the terminal `controls` it."""

    def __init__(self, *words: object, cwd: Path, environment: dict[str, str], controls: bool) -> None:
        self.controller, terminal = os.openpty()
        termios.tcsetwinsize(terminal, (24, 90))
        launch = (
            "import fcntl, os, sys, termios\n"
            "fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"
            "os.execvp(sys.argv[1], sys.argv[1:])\n"
        )
        inherited = {key: value for key, value in os.environ.items() if key != "COLUMNS"}
        self.process = forkserver.Popen(
            [*([sys.executable, "-c", launch] if controls else []), *COMMAND, *map(str, words)],
            cwd=cwd,
            start_new_session=controls,
            env={**inherited, **environment},
            **dict.fromkeys(("stdin", "stdout", "stderr"), terminal),
        )
        os.close(terminal)
        self.seen = ""

    def read(self, until: str | None = None) -> str:
        """Read the output until it contains `until`, or to its end."""
        deadline = monotonic() + 3 * DEADLINE
        while until is None or until not in self.seen:
            assert monotonic() < deadline, self.seen
            try:
                self.seen += os.read(self.controller, 65536).decode()
            except OSError:  # the other end is closed
                assert until is None, self.seen
                break
        return self.seen

    def type(self, text: str) -> None:
        os.write(self.controller, text.encode())

    def end(self) -> int:
        """Read to the end, and return the exit code."""
        assert "Traceback" not in self.read()
        return self.process.wait(DEADLINE)


@contextmanager
def terminal(
    *words: object, cwd: Path = ROOT, environment: dict[str, str] | None = None, controls: bool = False
) -> Iterator[Terminal]:
    """Run a command on a terminal."""
    opened = Terminal(*words, cwd=cwd, environment=environment or {}, controls=controls)
    try:
        yield opened
    finally:
        opened.process.kill()
        opened.process.wait()
        os.close(opened.controller)
