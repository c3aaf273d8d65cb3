"""What commands share that go on until their client leaves: what they follow, and how they end."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar, NamedTuple, NoReturn

import click

from mcp_skills_server.commands.fields import Options, flag, many, option, switch
from mcp_skills_server.commands.options import RootOptions, open_roots
from mcp_skills_server.commands.printing import remark
from mcp_skills_server.errors import UsageError

if TYPE_CHECKING:
    from mcp_skills_server.catalog.gates import Gate
    from mcp_skills_server.catalog.registry import Registry
    from mcp_skills_server.catalog.watch import Watcher
    from mcp_skills_server.provenance.pins import Pins
    from mcp_skills_server.sources.mirrors import Mirrors

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


class PinOptions(Options):
    """Whether exactly what a lock file names is served, and only what is signed."""

    heading: ClassVar[str] = "What is pinned and signed"
    lock: str | None = option(
        None,
        "Serve exactly the skills that this lock file names, of the ROOTs that it names.",
        type=click.Path(dir_okay=False),
        metavar="FILE",
    )
    frozen: bool = flag("With --lock: refuse to start where a skill that it names cannot be served.")
    require_signature: tuple[str, ...] = many(
        "Serve only skills that this key signed, a public key or the certificate of an authority in PEM. May be "
        "repeated; one of them must have signed.",
        metavar="KEY",
    )


class FollowOptions(RootOptions, WatchOptions, RefreshOptions, PinOptions):
    """How the roots of a command are read and kept current."""


def make_watcher(registry: Registry, options: WatchOptions) -> Watcher | None:
    """What follows changes; None where none are to be followed, and then digests are computed and an index kept."""
    if not options.watch:
        from mcp_skills_server.catalog.prover import Prover

        Prover(registry).start()
        return None
    from mcp_skills_server.catalog.watch import Watcher

    return Watcher(registry, poll=options.poll, reconcile=options.reconcile)


def open_served(given: Sequence[str], options: FollowOptions) -> tuple[Registry, Mirrors | None]:
    """A registry of these roots, or of what a lock file names, and what keeps those current that are no folders.

    It is loaded only where it must be proved at the start that all of a lock file is there.

    Raises:
        UsageError: a root does not exist or cannot be read or fetched, or is not what is locked.
    """
    signed = _signature_gates(options)
    if options.lock is None:
        if options.frozen:
            raise UsageError("--frozen says how a lock file is kept to; give --lock FILE too")
        if not given:
            raise UsageError("there is nothing to serve; give a ROOT, a folder that holds skills, or --lock FILE")
        return open_roots(given, options, indexed=True, gates=lambda _: signed, refresh_s=options.refresh)
    from mcp_skills_server.commands.pinning import locked_roots, pins_of

    locked = locked_roots(options.lock, given)
    pins: list[Pins] = []

    def gates(folders: Sequence[str]) -> Sequence[Gate]:
        pins.append(pins_of(locked, folders))
        return [*pins, *signed]

    revisions = [each.revision or None for each in locked]
    wanted = [each.given for each in locked]
    registry, mirrors = open_roots(
        wanted, options, indexed=True, pins=revisions, gates=gates, refresh_s=options.refresh
    )
    if options.frozen:
        if mirrors is not None:
            mirrors.fetch()
        registry.load()
        unserved = pins[0].unserved(registry, registry.snapshot.skills)
        if unserved:
            raise UsageError(_refusal(options.lock, unserved, registry))
    return registry, mirrors


def _signature_gates(options: FollowOptions) -> Sequence[Gate]:
    if not options.require_signature:
        return ()
    from pathlib import Path

    from mcp_skills_server.commands.caches import cache_folder
    from mcp_skills_server.provenance.proofs import Proofs
    from mcp_skills_server.provenance.signature_gate import SignatureGate
    from mcp_skills_server.provenance.signatures import Verifier

    proofs = Proofs(cache_folder(options.cache_dir) / "signatures")
    return [SignatureGate(Verifier([*map(Path, options.require_signature)]), proofs)]


def _refusal(lock: str, unserved: Sequence[str], registry: Registry) -> str:
    """Why a server does not start that must serve all of a lock file: the first skill with its reason, and how many."""
    reasons = {each.skill: each.message for each in registry.snapshot.problems}
    first = f"{unserved[0]} cannot be served: {reasons.get(unserved[0], 'it is not there')}"
    more = f" (and {len(unserved) - 1:,} more)" if len(unserved) > 1 else ""
    return f"{lock}: {first}{more}; see 'outdated' and 'diff', then 'update', or leave out --frozen"


class Followed(NamedTuple):
    """A registry that is kept current.

    Attributes:
        registry: not yet loaded.
        start: loads it and keeps it current.
        stop: ends what fetches, and the programs that it has started.
    """

    registry: Registry
    start: Callable[[], None]
    stop: Callable[[], None]


def open_followed(given: Sequence[str], options: FollowOptions) -> Followed:
    """A registry of these roots, and what keeps it current.

    Raises:
        UsageError: a root does not exist or cannot be read or fetched.
    """
    registry, mirrors = open_served(given, options)

    def start() -> None:
        if mirrors is not None:
            mirrors.start()
        watcher = make_watcher(registry, options)
        if watcher is None:
            registry.load()
        else:
            watcher.start()

    return Followed(registry, start, lambda: None if mirrors is None else mirrors.stop())


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
