"""What commands share that go on until their client leaves: what they follow, and how they end."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar, NoReturn

import click

from mcp_skills_server.commands.fields import Options, option, switch
from mcp_skills_server.commands.options import RootOptions, open_roots
from mcp_skills_server.commands.printing import remark

if TYPE_CHECKING:
    from mcp_skills_server.catalog.registry import Registry
    from mcp_skills_server.catalog.watch import Watcher

logger = logging.getLogger(__name__)


class WatchOptions(Options):
    """How changes of the folders are followed."""

    heading: ClassVar[str] = "Following changes"
    watch: bool = switch(True, "Follow changes of the folders.")
    poll: bool = switch(False, "Look at time stamps instead of waiting for events, for network file systems.")
    reconcile: float = option(
        300,
        "Look at everything again after so long, in case an event was lost.",
        type=click.FloatRange(min=1),
        metavar="SECONDS",
    )


class RefreshOptions(Options):
    """How often what is fetched is looked at."""

    heading: ClassVar[str] = "Following changes"
    refresh: float = option(
        60,
        "How often to look whether a root in git has changed. A site says so itself.",
        type=click.FloatRange(min=1),
        metavar="SECONDS",
        show_default=True,
    )


class FollowOptions(RootOptions, WatchOptions, RefreshOptions):
    """How the roots of a command are read and kept current."""


def make_watcher(registry: Registry, options: WatchOptions) -> Watcher | None:
    """What follows changes; None where none are to be followed."""
    if not options.watch:
        return None
    from mcp_skills_server.catalog.watch import Watcher

    return Watcher(registry, poll=options.poll, reconcile=options.reconcile)


def open_followed(given: Sequence[str], options: FollowOptions) -> tuple[Registry, Callable[[], None]]:
    """A registry of these roots, not yet loaded, and what loads it and keeps it current.

    Raises:
        UsageError: a root does not exist or cannot be read or fetched.
    """
    registry, mirrors = open_roots(given, options, indexed=True, refresh_s=options.refresh)

    def start() -> None:
        if mirrors is not None:
            mirrors.start()
        watcher = make_watcher(registry, options)
        if watcher is None:
            registry.load()
        else:
            watcher.start()

    return registry, start


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


def ignore_hangup() -> None:
    """Go on after SIGHUP, by which daemons are asked to read their configuration again: say that there is none.

    One that is ignored already stays so (nohup).
    """

    def say_so(_signal: int, _frame: object) -> None:
        logger.warning(
            "SIGHUP is ignored: there is nothing to read again; restart the server for other options or tokens"
        )

    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        signal.signal(signal.SIGHUP, say_so)


def leave(code: int = 0) -> NoReturn:
    """End at once: a peer that has stopped reading may hold a thread in a write for ever, and with it the process."""
    sys.stderr.flush()
    os._exit(code)
