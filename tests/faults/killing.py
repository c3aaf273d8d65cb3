"""Fault injection: SIGKILL of the program at random file operations.

An audit hook counts the file changes below a folder (open for writing, rename, removal and so on)
and the subprocesses of a run. The first run is not killed, only counted. Each later run is killed right before a
random change, right after it (a new file is empty then), or from outside a moment later. Half of
the kills are at renames: they are few, and atomicity depends on them.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

from commands import calls
from forkserver import Popen, run
from wire import DEADLINE

_HOOK = """
import os, signal, sys
top, kind, at, when = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
del sys.argv[1:5]
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.chmod", "os.utime"}
changes = renames = 0
ending = False

def is_counted(path):
    # rmtree uses names relative to an open folder. A descriptor belongs to a counted file.
    if not isinstance(path, str | bytes | os.PathLike):
        return False
    path = os.fsdecode(path)
    return path.startswith(top) or not path.startswith("/")

def hook(event, arguments):
    global changes, renames, ending
    if ending:
        return
    if event == "open":
        counts = (arguments[2] or 0) & WRITING and is_counted(arguments[0])
    elif event in CHANGES:
        counts = is_counted(arguments[0])
    else:
        counts = event == "subprocess.Popen"
    if not counts:
        return
    changes += 1
    renames += event == "os.rename"
    if kind == "rename" and event != "os.rename":
        return
    if (renames if kind == "rename" else changes) != at:
        return
    if when == "outside":
        os.write(3, b"!")
        return
    ending = True
    if when == "after" and event == "open":
        os.close(os.open(arguments[0], arguments[2], 0o600))
    elif when == "after" and event == "os.rename":
        os.rename(arguments[0], arguments[1])
    os.kill(os.getpid(), signal.SIGKILL)

os.dup2(2, 3)
sys.addaudithook(hook)
from mcp_skills_server.cli import main
try:
    main()
finally:
    if at == 0:
        os.write(3, f"\\n{changes} {renames}".encode())
"""


Size = dict[str, int]
"""The number of file changes of a run, and the number of its renames."""


class Killer:
    """Kills runs at random changes below the folder `top`."""

    def __init__(self, top: Path, seed: int) -> None:
        self._random = random.Random(seed)
        self._top = os.fspath(top)
        self._points: set[tuple[str, int, str]] = set()
        self._killed = 0

    def measure(self, *words: str) -> Size:
        """Run a command to its end, which must succeed, and count its changes."""
        command = self._command(words, "change", 0, "")
        done = run(command, capture_output=True, text=True, timeout=DEADLINE)
        assert done.returncode == 0, done.stderr
        changes, renames = done.stderr.rsplit("\n", 1)[1].split()
        return {"change": int(changes), "rename": int(renames)}

    def kill(self, size: Size, *words: str) -> None:
        """Kill a run of about this size. The run may end before its kill."""
        kind = self._random.choice([kind for kind, count in size.items() if count])
        at = self._random.randint(1, size[kind])
        when = self._random.choice(("before", "after", "after", "outside"))
        command = self._command(words, kind, at, when)
        null = subprocess.DEVNULL
        process = Popen(command, stdin=null, stdout=null, stderr=subprocess.PIPE)
        try:
            assert process.stderr is not None
            output = b""
            # The hook writes "!" at the change.
            while not output.endswith(b"!") and (piece := process.stderr.read(1)):
                output += piece
            for _ in range(self._random.randrange(500)):  # up to a millisecond
                os.path.exists(self._top)
        finally:
            process.kill()
            process.communicate()
        self._points.add((kind, at, when))
        self._killed += process.returncode == -signal.SIGKILL

    def assert_spread(self) -> None:
        """Assert that enough runs were killed, at different points."""
        assert self._killed > 4 and len(self._points) > 4

    def _command(self, words: tuple[str, ...], kind: str, at: int, when: str) -> list[str]:
        return [sys.executable, "-c", _HOOK, self._top, kind, str(at), when, *words]


def succeed(*words: str) -> str:
    """Run a command, which must succeed, and return its stdout."""
    done = calls.run(*words)
    assert done.returncode == 0, done.stderr
    return done.stdout
