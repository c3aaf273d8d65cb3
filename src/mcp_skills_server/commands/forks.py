"""Forks of this process, where they are safe, for work that another processor can do meanwhile."""

from __future__ import annotations

import marshal
import os
import signal
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any, TypeVar, cast

_T = TypeVar("_T")


def processors() -> int:
    """How many processors this process may use."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def may_fork() -> bool:
    """Tell whether a fork of this process can do what it likes: no other thread may hold a lock in it for ever."""
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


@contextmanager
def beside(call: Callable[[], _T]) -> Generator[Callable[[], _T]]:
    """Have a call made in a fork, once. What this yields waits for the result, and gives it as often as it is called.

    Where there is no fork, or it fails, the call is made here, when its result is asked for. The fork ends with the
    `with`, if not before.

    Args:
        call: changes nothing, and gives what `marshal` can write.
    """
    if sys.platform == "win32" or processors() < 2 or not may_fork():
        yield cache(call)
        return
    reading, writing = os.pipe()
    with interrupts_held():
        child = os.fork()
        if not child:  # the signal stays blocked here
            _answer(writing, call)
    os.close(writing)
    answer = os.fdopen(reading, "rb")

    def result() -> _T:
        raw = answer.read()
        try:
            return marshal.loads(raw)  # noqa: S302, of our own fork
        except (EOFError, ValueError, TypeError):  # it has failed, or was killed
            return call()

    try:
        yield cache(result)
    finally:
        answer.close()
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _answer(writing: int, call: Callable[[], object]) -> None:
    """In the fork: write what the call gives, and end without anything that belongs to the other process."""
    try:
        raw = marshal.dumps(cast("Any", call()))
        with os.fdopen(writing, "wb") as out:
            out.write(raw)
    finally:
        os._exit(0)
