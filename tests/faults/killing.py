"""Runs of the program that are killed with SIGKILL at a moment that dice chose, spread over all that a run writes.

What a run does to files is counted by an audit hook: each opening to write, rename, removal and so on below a folder,
and each program that is started. A first run that nobody kills says how many there are. Each further one is killed
right before one of them; or from outside, some moment after it, so that a file may be there with half of its bytes.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

from forkserver import Popen, run
from wire import DEADLINE

_HOOK = """
import os, signal, sys
top, at, outside = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "outside"
del sys.argv[1:4]
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.chmod", "os.utime"}
count = 0

def is_counted(path):
    # A tree is removed by names that are relative to an open folder; a descriptor is of a file that was counted.
    if not isinstance(path, str | bytes | os.PathLike):
        return False
    path = os.fsdecode(path)
    return path.startswith(top) or not path.startswith("/")

def hook(event, arguments):
    global count
    if event == "open":
        path, _, flags = arguments
        counts = flags & WRITING and is_counted(path)
    elif event in CHANGES:
        counts = is_counted(arguments[0])
    else:
        counts = event == "subprocess.Popen"
    if counts:
        count += 1
        if count == at:
            if outside:
                os.write(3, b"!")
            else:
                os.kill(os.getpid(), signal.SIGKILL)

os.dup2(2, 3)
sys.addaudithook(hook)
from mcp_skills_server.cli import main
try:
    main()
finally:
    if at == 0:
        os.write(3, f"\\n{count} changes".encode())
"""


class Killer:
    """Kills runs that change something below a folder.

    Args:
        top: the folder.
        seed: of the dice.
    """

    def __init__(self, top: Path, seed: int) -> None:
        self.dice = random.Random(seed)
        self._points: set[int] = set()
        self._killed = 0
        self._top = os.fspath(top)

    def changes(self, *words: str) -> int:
        """Let a run end by itself; how many changes it made.

        It must succeed.
        """
        done = run(self._command(words, 0, outside=False), capture_output=True, text=True, timeout=DEADLINE)
        assert done.returncode == 0, done.stderr
        return int(done.stderr.rsplit("\n", 1)[1].split()[0])

    def kill(self, changes: int, *words: str) -> None:
        """Kill a run at one of so many changes, or a moment later. It may have come to its end before."""
        at, outside = self.dice.randrange(1, changes + 1), self.dice.random() < 0.4
        command = self._command(words, at, outside=outside)
        process = Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        try:
            assert process.stderr is not None
            said = b""
            while not said.endswith(b"!") and (more := process.stderr.read(1)):  # until it says so, or has ended
                said += more
            for _ in range(self.dice.randrange(500)):  # from nothing to a millisecond
                os.path.exists(self._top)
        finally:
            process.kill()
            process.communicate()
        self._points.add(at)
        self._killed += process.returncode == -signal.SIGKILL

    def assert_spread(self) -> None:
        """The runs were killed, and not all at the same point."""
        assert self._killed > 4 and len(self._points) > 2

    def _command(self, words: tuple[str, ...], at: int, *, outside: bool) -> list[str]:
        return [sys.executable, "-c", _HOOK, self._top, str(at), "outside" if outside else "here", *words]
