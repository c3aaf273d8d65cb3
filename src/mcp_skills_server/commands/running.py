"""Start, signal handling and exit of long-running commands."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

from mcp_skills_server.commands.printing import remark

if TYPE_CHECKING:
    from mcp_skills_server.catalog.registry import Registry

_LAST_S = 1.0
"""Seconds that the exit waits until the last lines of the log are written."""


def settle_after_load(registry: Registry) -> None:
    """Enable garbage collection after the first scan, as it took 1/6 of a scan of 10,000 skills."""

    def settle(_: object) -> None:
        unsubscribe()
        collect_from_now_on()

    unsubscribe = registry.subscribe(settle)


def collect_from_now_on() -> None:
    """Exempt the present, long-lived objects from garbage collection, and enable it."""
    gc.freeze()
    gc.enable()


def print_waiting_hint(peer: str, *ways: str) -> None:
    """Tell a person at a terminal that the command waits for `peer`, and the ways to try it."""
    if not sys.stdin.isatty():
        return
    remark(
        f"waiting for the messages of {peer} on stdin, which starts this command by itself; "
        "Ctrl-C ends it"
    )
    for way in ways:
        remark(f"to try it: {way}")


def end_on_signals() -> None:
    """End the process on SIGTERM and SIGINT, which the first process of a container ignores.

    The event loop replaces these handlers.
    """

    def end(_signal: int, _frame: object) -> None:
        os._exit(0)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)


def on_hangup(*reloads: Callable[[], object] | None) -> None:
    """Call these functions on SIGHUP, the signal to reload files. They must be reentrant.

    An ignored SIGHUP stays ignored (nohup).
    """

    def hang_up(_signal: int, _frame: object) -> None:
        for reload in reloads:
            if reload is not None:
                reload()

    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        signal.signal(signal.SIGHUP, hang_up)


def exit_now(code: int = 0) -> NoReturn:
    """End the process at once: a thread may be blocked forever in a write that no peer reads."""
    last = threading.Thread(target=_write_the_last_lines, daemon=True)
    last.start()
    last.join(_LAST_S)
    os._exit(code)


def _write_the_last_lines() -> None:
    logging.shutdown()
    sys.stderr.flush()
