"""What commands share that go on until their client leaves: what they follow, and how they end."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, NoReturn

from mcp_skills_server.commands.options import WatchOptions
from mcp_skills_server.commands.printing import remark

if TYPE_CHECKING:
    from mcp_skills_server.catalog.registry import Registry
    from mcp_skills_server.catalog.watch import Watcher

_LAST_S = 1.0
"""For so long the end waits for somebody to read the last lines of the log."""


def make_watcher(registry: Registry, options: WatchOptions) -> Watcher | None:
    """What follows changes; None where none are to be followed, and then digests are computed and an index kept."""
    if not options.watch:
        from mcp_skills_server.catalog.watch.watcher import Prover

        Prover(registry).start()
        return None
    from mcp_skills_server.catalog.watch import Watcher

    return Watcher(registry, poll=options.poll, reconcile=options.reconcile)


def take_in(registry: Registry, folder: str) -> None:
    """Serve what was fetched, once the first scan is done."""
    registry.loaded.wait()
    registry.refresh([os.path.realpath(folder)])


def settle_after_load(registry: Registry) -> None:
    """Take what the first scan made out of the garbage collector's sight: it stays, and looking at it takes 0.1 s."""

    def settle(_: object) -> None:
        unsubscribe()
        gc.freeze()

    unsubscribe = registry.subscribe(settle)


async def collecting(serve: Callable[..., Awaitable[None]], *arguments: object) -> None:
    """Serve, and look for garbage from here on: what a start makes stays, and looking at it takes a twentieth of it."""
    gc.freeze()
    gc.enable()
    await serve(*arguments)


def say_that_it_waits(peer: str, *ways: str) -> None:
    """Where a person started it on a terminal: say on stderr that it waits for `peer`, and the ways to try it."""
    if not sys.stdin.isatty():
        return
    lines = [f"waiting for the messages of {peer} on stdin, which starts this command by itself; Ctrl-C ends it"]
    for line in (*lines, *(f"to try it: {way}" for way in ways)):
        remark(line)


def end_on_signals() -> None:
    """Until a loop takes the signals over: the first process of a container has no default action for them."""

    def end(_signal: int, _frame: object) -> None:
        os._exit(0)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)


def on_hangup(*asked: Callable[[], object] | None) -> None:
    """On SIGHUP, by which daemons are asked to read and open their files again, call these.

    One that is ignored already stays so (nohup). What is called may be called in the midst of any other line.
    """

    def hang_up(_signal: int, _frame: object) -> None:
        for each in asked:
            if each is not None:
                each()

    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        signal.signal(signal.SIGHUP, hang_up)


def leave(code: int = 0) -> NoReturn:
    """End at once: a peer that has stopped reading may hold a thread in a write for ever, and with it the process."""
    last = threading.Thread(target=_write_the_last_lines, daemon=True)
    last.start()
    last.join(_LAST_S)
    os._exit(code)


def _write_the_last_lines() -> None:
    logging.shutdown()
    sys.stderr.flush()
