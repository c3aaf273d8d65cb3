"""What a command serves: the roots that were given, pinned and signed as the operator asks, and kept current."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from mcp_skills_server.commands.options import open_roots
from mcp_skills_server.commands.running import FollowOptions, make_watcher
from mcp_skills_server.errors import UsageError

if TYPE_CHECKING:
    from mcp_skills_server.catalog.gates import Gate
    from mcp_skills_server.catalog.registry import Registry
    from mcp_skills_server.commands.config_file import Configuration, SourceRules
    from mcp_skills_server.commands.relocking import FollowedSources
    from mcp_skills_server.provenance.lock import LockedSource
    from mcp_skills_server.provenance.pins import Pins
    from mcp_skills_server.sources.mirrors import Mirrors


class Served(NamedTuple):
    """What a command serves.

    Attributes:
        registry: of the roots, or of what a lock file names.
        mirrors: keeps those current that are no folders; None where all are.
        scripts: what the configuration says of scripts of single roots, by their folders, absolute.
        sources: has them looked at, and the lock file read again.
    """

    registry: Registry
    mirrors: Mirrors | None
    scripts: Mapping[str, bool]
    sources: FollowedSources


def open_served(
    given: Sequence[str],
    options: FollowOptions,
    configuration: Configuration | None = None,
) -> Served:
    """What is served of these roots, or of what a lock file names.

    It is loaded only where it must be proved at the start that all of a lock file is there.

    Raises:
        UsageError: a root does not exist or cannot be read or fetched, or is not what is locked.
    """
    signed = _signature_gate(options.require_signature, options.cache_dir)
    said: dict[str, SourceRules] = {}
    locked: Sequence[LockedSource] = ()
    pins: list[Pins] = []
    entries: dict[str, LockedSource] = {}
    roots = given
    if options.lock is None:
        if options.frozen:
            raise UsageError("--frozen says how a lock file is kept to; give --lock FILE too")
        if not given:
            raise UsageError("there is nothing to serve; give a ROOT, a folder that holds skills, or --lock FILE")
    else:
        from mcp_skills_server.commands.pinning import locked_roots

        locked = locked_roots(options.lock, given)
        given = [each.given for each in locked]
    rules = [configuration.rules_of(each) if configuration is not None else None for each in given]

    def gates(folders: Sequence[str]) -> Sequence[Gate]:
        if options.lock is not None:
            from mcp_skills_server.commands.relocking import pinned
            from mcp_skills_server.provenance.pins import Pins

            entries.update(zip(folders, locked, strict=True))
            pins.append(Pins(*pinned(entries)))
        said.update({folder: each for folder, each in zip(folders, rules, strict=True) if each is not None})
        keys = {folder: each.require_signature for folder, each in said.items()}
        own = {folder: gate for folder, each in keys.items() for gate in _signature_gate(each, options.cache_dir)}
        if not own:
            return [*pins, *signed]
        from mcp_skills_server.catalog.gates import by_root

        return [*pins, *signed, by_root(own)]

    registry, mirrors = open_roots(
        given,
        options,
        indexed=True,
        pins=[each.revision or None for each in locked],
        gates=gates,
        refresh_s=[(each.refresh_s if each is not None else None) or options.refresh for each in rules],
    )
    served = {root.given for root in registry.roots}
    if lost := [folder for folder in said if folder not in served]:
        raise UsageError(
            f"{lost[0]}: a [[source]] says what holds of it, and it is the same folder as another root, or a file; "
            "name the folder itself, once"
        )
    if options.lock is not None and options.frozen:
        if mirrors is not None:
            mirrors.fetch()
        registry.load()
        unserved = pins[0].unserved(registry, registry.snapshot.skills)
        if unserved:
            raise UsageError(_refusal(options.lock, unserved, registry))
    from mcp_skills_server.commands.relocking import FollowedSources

    sources = FollowedSources(registry, mirrors, options.lock, roots, entries, pins[0] if pins else None)
    scripts = {root: each.scripts for root, each in said.items() if each.scripts is not None}
    return Served(registry, mirrors, scripts, sources)


def _signature_gate(keys: Sequence[str], cache_dir: str | None) -> Sequence[Gate]:
    """The gate that lets pass what one of these keys has signed; none where there are no keys."""
    if not keys:
        return ()
    from pathlib import Path

    from mcp_skills_server.commands.caches import cache_folder
    from mcp_skills_server.provenance.signature_gate import Proofs, SignatureGate
    from mcp_skills_server.provenance.signatures import Verifier

    proofs = Proofs(cache_folder(cache_dir) / "signatures")
    return [SignatureGate(Verifier([*map(Path, keys)]), proofs)]


def _refusal(lock: str, unserved: Sequence[str], registry: Registry) -> str:
    """Why a server does not start that must serve all of a lock file: the first skill with its reason, and how many."""
    reasons = {each.skill: each.message for each in registry.snapshot.problems}
    first = f"{unserved[0]} cannot be served: {reasons.get(unserved[0], 'it is not there')}"
    more = f" (and {len(unserved) - 1:,} more)" if len(unserved) > 1 else ""
    return f"{lock}: {first}{more}; see 'outdated' and 'diff', then 'update', or leave out --frozen"


class Followed(NamedTuple):
    """What is served and kept current.

    Attributes:
        served: not yet loaded.
        start: loads it and keeps it current.
        stop: ends what fetches, and the programs that it has started.
    """

    served: Served
    start: Callable[[], None]
    stop: Callable[[], None]


def open_followed(given: Sequence[str], options: FollowOptions, configuration: Configuration | None = None) -> Followed:
    """What is served of these roots, and what keeps it current.

    Raises:
        UsageError: a root does not exist or cannot be read or fetched.
    """
    served = open_served(given, options, configuration)
    registry, mirrors = served.registry, served.mirrors

    def start() -> None:
        if mirrors is not None:
            mirrors.start()
            registry.await_sources = mirrors.first_read(options.first_load)
        watcher = make_watcher(registry, options)
        if watcher is None:
            registry.load()
        else:
            watcher.start()

    return Followed(served, start, lambda: None if mirrors is None else mirrors.stop())
