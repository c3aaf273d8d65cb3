"""Forks of this process, where they are safe, for work that another processor can do meanwhile."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager


def processors() -> int:
    """How many processors this process may use."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def may_fork() -> bool:
    """Whether a fork of this process can do what it likes: no other thread may hold a lock in it for ever."""
    return sys.platform == "linux" and threading.active_count() == 1


@contextmanager
def interrupts_held() -> Generator[None]:
    """Ctrl-C goes to every process on the terminal: those that are started here leave it to this one from the start."""
    if sys.platform == "win32":
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
