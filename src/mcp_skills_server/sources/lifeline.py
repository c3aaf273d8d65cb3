"""Pipe that ends the process group of a started program when this process ends, however it ends."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Final

if sys.platform != "win32":
    import fcntl

WATCH: Final = """
(trap '' HUP INT TERM; read -r _; kill -9 0) <"/dev/fd/$1" >/dev/null 2>&1 &
"""
"""Beginning of a shell script, whose first argument is the number of the pipe's read end.

The group is killed even if the program has ended: a process that it left may go on.
"""
_ABOVE_THOSE_OF_SHELLS: Final = 10


@contextmanager
def lifeline() -> Generator[Sequence[int]]:
    """Yield the read end of a pipe, which gets end-of-file when this process ends or leaves."""
    if sys.platform == "win32":
        yield ()
        return
    reading, writing = os.pipe()
    # The lowest that is free may be a standard one, or one that the shell needs for itself.
    above = fcntl.fcntl(reading, fcntl.F_DUPFD_CLOEXEC, _ABOVE_THOSE_OF_SHELLS)
    os.close(reading)
    try:
        yield (above,)
    finally:
        os.close(writing)
        os.close(above)
