"""Runs of the program that are killed with SIGKILL at a moment that dice chose, spread over all that a run writes.

What a run does to files is counted by an audit hook: each opening to write, rename, removal and so on below a folder,
and each program that is started. A first run that nobody kills says how many there are. Each further one is killed
right before one of them, right after it (a file is there then and has no byte), or from outside at some later moment.
Half of them are renames: there are few, and what counts lies around them.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

from forkserver import Popen, run
from wire import COMMAND, DEADLINE

_HOOK = """
import os, signal, sys
top, kind, at, when = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
del sys.argv[1:5]
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.chmod", "os.utime"}
changes = renames = 0
ending = False

def is_counted(path):
    # A tree is removed by names that are relative to an open folder; a descriptor is of a file that was counted.
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
    if (changes if kind == "change" else event == "os.rename" and renames) != at:
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
"""How many changes of files a run makes, and how many of them are renames."""


class Killer:
    """Kills runs that change something below the folder `top`. `seed` is that of the dice."""

    def __init__(self, top: Path, seed: int) -> None:
        self._dice = random.Random(seed)
        self._top = os.fspath(top)
        self._points: set[tuple[str, int, str]] = set()
        self._killed = 0

    def measure(self, *words: str) -> Size:
        """Let a run end by itself, which must succeed."""
        done = run(self._command(words, "change", 0, ""), capture_output=True, text=True, timeout=DEADLINE)
        assert done.returncode == 0, done.stderr
        return dict(zip(("change", "rename"), map(int, done.stderr.rsplit("\n", 1)[1].split()), strict=True))

    def kill(self, size: Size, *words: str) -> None:
        """Kill a run that is about as large as this one. It may have come to its end before."""
        kind = self._dice.choice([kind for kind, count in size.items() if count])
        at = self._dice.randint(1, size[kind])
        when = self._dice.choice(("before", "after", "after", "outside"))
        command = self._command(words, kind, at, when)
        process = Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        try:
            assert process.stderr is not None
            said = b""
            while not said.endswith(b"!") and (more := process.stderr.read(1)):  # until it says so, or has ended
                said += more
            for _ in range(self._dice.randrange(500)):  # from nothing to a millisecond
                os.path.exists(self._top)
        finally:
            process.kill()
            process.communicate()
        self._points.add((kind, at, when))
        self._killed += process.returncode == -signal.SIGKILL

    def assert_spread(self) -> None:
        """The runs were killed, and not all at the same point."""
        assert self._killed > 4 and len(self._points) > 4

    def _command(self, words: tuple[str, ...], kind: str, at: int, when: str) -> list[str]:
        return [sys.executable, "-c", _HOOK, self._top, kind, str(at), when, *words]


def succeed(*words: str) -> str:
    """Run a command that nobody kills."""
    done = run([*COMMAND, *words], capture_output=True, text=True, timeout=DEADLINE)
    assert done.returncode == 0, done.stderr
    return done.stdout
