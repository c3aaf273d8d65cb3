"""The fork server of the tests equals `subprocess`: streams, folder, environment, exit codes and signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import forkserver
from tables import each_row
from wire import COMMAND, DEADLINE, FIXTURES

PRINTS = """
import os, sys
print(sys.argv, os.getcwd(), os.environ.get("TONE"), sys.stdin.read(), sorted(map(int, os.listdir("/dev/fd")))[:4])
print("aside", file=sys.stderr)
sys.exit(3)
"""
WAITS = "import sys\nprint('here', flush=True)\nsys.stdin.read()"


def test_forked_process_equals_subprocess(tmp_path: Path) -> None:
    words = [sys.executable, "-c", PRINTS, "a b", ""]
    environment = {**os.environ, "TONE": "warm"}
    ours, theirs = (
        run(words, input="given", cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        for run in (forkserver.run, subprocess.run)
    )
    assert (ours.returncode, ours.stdout, ours.stderr) == (theirs.returncode, theirs.stdout, theirs.stderr)
    assert ours.returncode == 3 and ours.stderr == "aside\n"


@each_row("words", [["list", str(FIXTURES)], ["list", "/no/such"], ["--help"], ["serve", "--none"]])
def test_forked_program_equals_subprocess(words: list[str]) -> None:
    ours, theirs = (
        run([*COMMAND, *words], capture_output=True, stdin=subprocess.DEVNULL, timeout=DEADLINE, check=False)
        for run in (forkserver.run, subprocess.run)
    )
    assert (ours.returncode, ours.stdout, ours.stderr) == (theirs.returncode, theirs.stdout, theirs.stderr)


def test_signal_ends_process_and_is_its_exit_code() -> None:
    with forkserver.Popen([sys.executable, "-c", WAITS], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"here\n" and process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0)
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE) == process.poll() == -signal.SIGTERM


def test_interpreter_settings_start_a_new_interpreter() -> None:
    words = [sys.executable, "-c", "import sys\nprint(sys.flags.optimize, 'mcp' in sys.modules)"]
    assert forkserver.run(words, capture_output=True, check=True).stdout == b"0 True\n"
    other = {**os.environ, "PYTHONOPTIMIZE": "1"}
    assert forkserver.run(words, env=other, capture_output=True, check=True).stdout == b"1 False\n"
