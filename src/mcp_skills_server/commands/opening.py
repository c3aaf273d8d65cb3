"""The roots of a server: opened, pinned and signed as the operator asks, and kept current."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from mcp_skills_server.access.grants import LOCAL, Grants
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.commands.options import FollowOptions, RootOptions, cache_folder, open_roots
from mcp_skills_server.commands.printing import and_more
from mcp_skills_server.commands.running import make_watcher, take_in
from mcp_skills_server.errors import UsageError

if TYPE_CHECKING:
    from mcp_skills_server.catalog.registry import Registry
    from mcp_skills_server.catalog.root_index import Gate
    from mcp_skills_server.catalog.views import Views
    from mcp_skills_server.commands.config_file import Configuration, SourceRules
    from mcp_skills_server.provenance.lock import LockedSource
    from mcp_skills_server.provenance.pins import Pins
    from mcp_skills_server.sources.mirrors import Mirrors

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class OpenedRoots:
    """The roots of a running server.

    Attributes:
        registry: the skills of the roots, or those that a lock file names.
        mirrors: keeps the remote roots current; None where all are folders.
        scripts: whether scripts of a root may run, by its absolute folder, where the configuration says so.
        lock: the lock file, if there is one.
        roots: the roots that were given beside it.
        entries: the entries of the lock file, by the absolute folder that the registry serves.
        pins: the gate of the lock file.
    """

    registry: Registry
    mirrors: Mirrors | None
    scripts: Mapping[str, bool] = field(default_factory=dict[str, bool])
    lock: str | None = None
    roots: Sequence[str] = ()
    entries: Mapping[str, LockedSource] = field(default_factory=dict[str, "LockedSource"])
    pins: Pins | None = None

    def fetch(self, first_load: float) -> None:
        """Poll the remote roots. A first list waits so many seconds for a root that was never fetched."""
        if self.mirrors is not None:
            self.mirrors.report_to(self.registry.note)
            self.mirrors.start(partial(take_in, self.registry))
            self.registry.await_sources = self.mirrors.first_read(first_load)

    def follow(self, options: FollowOptions) -> None:
        """Load the skills and keep them current."""
        self.fetch(options.first_load)
        watcher = make_watcher(self.registry, options)
        if watcher is None:
            self.registry.load()
        else:
            watcher.start()

    def stop(self) -> None:
        """Stop polling, and end the programs that were started for it."""
        if self.mirrors is not None:
            self.mirrors.stop()

    def look(self) -> None:
        """Poll every source now. Blocks for as long as a scan of the folders."""
        if self.mirrors is not None:
            self.mirrors.look()
        if self.registry.loaded.is_set():
            self.registry.refresh()
        logger.info("looking at every source now")

    def relock(self) -> str:
        """Serve the lock file as it is now, and return why it is refused, or "".

        A refused lock file leaves the former one in force.
        """
        if self.lock is None or self.pins is None:
            return ""
        from mcp_skills_server.commands.lock import locked_roots  # not for every start
        from mcp_skills_server.sources.faults import SourceError

        try:
            entries = _placed(self.entries, locked_roots(self.lock, self.roots), self.lock)
            if entries == self.entries:
                return ""
            moved = {
                folder: each.revision
                for folder, each in entries.items()
                if each.revision != self.entries[folder].revision
            }
            switch = self.mirrors and self.mirrors.repinned(moved)
        except (UsageError, SourceError) as error:
            return f"{error}; what was locked before stays in service"
        self.entries = entries
        self.pins.replace(*pinned(entries))
        if switch is not None:
            switch()
        self.registry.loaded.wait()
        self.registry.refresh()
        count = sum(len(each.skills) for each in entries.values())
        logger.info("%s was read again; it names %s skills", self.lock, f"{count:,}")
        for path in self.pins.unserved(self.registry, self.registry.snapshot.skills):
            logger.warning("%s: %s cannot be served", self.lock, path)
        return ""


def open_served(
    given: Sequence[str],
    options: FollowOptions,
    configuration: Configuration | None = None,
) -> OpenedRoots:
    """Open these roots, or those that a lock file names. Only `--frozen` loads them at once.

    Raises:
        UsageError: a root does not exist or cannot be read or fetched, or is not what is locked.
    """
    said: dict[str, SourceRules] = {}
    locked: Sequence[LockedSource] = ()
    pins: list[Pins] = []
    entries: dict[str, LockedSource] = {}
    roots = given
    if options.lock is None:
        if options.frozen:
            raise UsageError("--frozen says how a lock file is kept to; give --lock FILE too")
        if not given:
            if sys.stderr.isatty():
                from mcp_skills_server.commands.welcome import say_folders

                say_folders()
            raise UsageError("there is nothing to serve; give a ROOT, a folder that holds skills, or --lock FILE")
    else:
        from mcp_skills_server.commands.lock import locked_roots

        locked = locked_roots(options.lock, given)
        given = [each.given for each in locked]
    rules = [configuration and configuration.rules_of(each) for each in given]

    def gates(folders: Sequence[str]) -> Sequence[Gate]:
        if options.lock is not None:
            from mcp_skills_server.provenance.pins import Pins

            entries.update(zip(folders, locked, strict=True))
            pins.append(Pins(*pinned(entries)))
        said.update({folder: each for folder, each in zip(folders, rules, strict=True) if each is not None})
        return [*pins, *signature_gates(said, options.require_signature, options.cache_dir)]

    registry, mirrors = open_roots(
        given,
        options,
        indexed=True,
        pins=[each.revision or None for each in locked],
        gates=gates,
        refresh_s=[(each and each.refresh_s) or options.refresh for each in rules],
    )
    check_rules(said, registry)
    if options.lock is not None and options.frozen:
        if mirrors is not None:
            mirrors.fetch()
        registry.load()
        unserved = pins[0].unserved(registry, registry.snapshot.skills)
        if unserved:
            raise UsageError(_refusal(options.lock, unserved, registry))

    scripts = {root: each.scripts for root, each in said.items() if each.scripts is not None}
    return OpenedRoots(registry, mirrors, scripts, options.lock, roots, entries, pins[0] if pins else None)


def signature_gates(rules: Mapping[str, SourceRules], keys: Sequence[str], cache_dir: str | None) -> Sequence[Gate]:
    """Return the gates that refuse skills without the signature that the options or a `[[source]]` require.

    Args:
        rules: of single roots, by their absolute folders.
        keys: required of every root.
        cache_dir: as for `cache_folder`.

    Raises:
        UsageError: a key cannot be read.
    """
    signed = _signature_gate(keys, cache_dir)
    own = {
        folder: gate for folder, each in rules.items() for gate in _signature_gate(each.require_signature, cache_dir)
    }
    if not own:
        return signed
    from mcp_skills_server.catalog.root_index import by_root

    return [*signed, by_root(own)]


def check_rules(rules: Mapping[str, SourceRules], registry: Registry) -> None:
    """Refuse a `[[source]]` whose folder is no root of its own, so that its rules would hold of nothing.

    Raises:
        UsageError: there is one.
    """
    served = {root.given for root in registry.roots}
    if lost := [folder for folder in rules if folder not in served]:
        raise UsageError(
            f"{lost[0]}: a [[source]] says what holds of it, and it is the same folder as another root, or a file; "
            "name the folder itself, once"
        )


def _signature_gate(keys: Sequence[str], cache_dir: str | None) -> Sequence[Gate]:
    """Return the gate that admits skills signed by one of these keys; none where there are no keys."""
    if not keys:
        return ()
    from pathlib import Path

    from mcp_skills_server.provenance.signature_gate import Proofs, SignatureGate
    from mcp_skills_server.provenance.signatures import Verifier

    proofs = Proofs(cache_folder(cache_dir) / "signatures")
    return [SignatureGate(Verifier([*map(Path, keys)]), proofs)]


def _refusal(lock: str, unserved: Sequence[str], registry: Registry) -> str:
    """Return why `--frozen` refuses to start: the first skill with its reason, and the number of the others."""
    reasons = {each.skill: each.message for each in registry.snapshot.problems}
    first = f"{unserved[0]} cannot be served: {reasons.get(unserved[0], 'it is not there')}"
    return (
        f"{lock}: {first}{and_more(len(unserved) - 1)}; see 'outdated' and 'diff', then 'update', or leave out --frozen"
    )


def pinned(entries: Mapping[str, LockedSource]) -> tuple[dict[str, Mapping[str, str]], dict[str, frozenset[str]]]:
    """Return the locked skills of each folder, and those that another revision of its source has."""
    from mcp_skills_server.commands.lock import elsewhere

    locked = [*entries.values()]
    return (
        {folder: each.skills for folder, each in entries.items()},
        {folder: elsewhere(locked, each) for folder, each in entries.items()},
    )


def _placed(before: Mapping[str, LockedSource], locked: Sequence[LockedSource], lock: str) -> dict[str, LockedSource]:
    """Assign the new entries to the folders that are served. An entry that is gone leaves its folder without a skill.

    Raises:
        UsageError: a source or a revision has come to stand there that has no folder.
    """
    after = {folder: replace(each, skills={}) for folder, each in before.items()}
    free = dict(before)
    for each in sorted(locked, key=lambda each: each not in free.values()):
        same = [folder for folder, known in free.items() if known.given == each.given]
        if not same:
            raise UsageError(
                f"{lock}: {each.given} stands there with a revision more than at the start; restart the server for it"
            )
        folder = next((found for found in same if free[found].revision == each.revision), same[0])
        del free[folder]
        after[folder] = each
    return after


def make_views(registry: Registry, configuration: Configuration | None, *, local: bool) -> Views:
    """Return the views of principals on a registry; without a table `[[grant]]` everyone sees all of it.

    `local` is for a server over a pipe, whose one client is the user who started it.
    """
    from mcp_skills_server.catalog.views import Views

    if configuration is None or configuration.grants is None:
        return Views(registry)
    grants = Grants(configuration.grants, local=local)
    if local and not grants.permissions(None).grants:
        logger.warning(
            '%s grants nothing to who starts this server; write who = ["%s"] in a table [[grant]]',
            configuration.file,
            LOCAL,
        )
    return Views(registry, grants)


@contextmanager
def open_registry(
    *roots: str | os.PathLike[str], cache_dir: str | os.PathLike[str] | None = None, allow_private: bool = False
) -> Generator[Registry]:
    """Open a registry of any roots, and keep those current that are fetched while the context is open.

    Args:
        roots: folders, archives, `https://` sites, `git+https://` repositories, `oci://` artifacts, as `serve` takes
            them. The earlier one wins where two have a skill of one path.
        cache_dir: the directory for copies of what is fetched; the user's cache unless given.
        allow_private: also fetch from private addresses.

    Yields:
        The registry, not yet loaded.

    Raises:
        UsageError: a root does not exist, or cannot be read or fetched.
    """
    cache = None if cache_dir is None else os.fspath(cache_dir)
    options = RootOptions(cache_dir=cache, allow_private=allow_private)
    registry, mirrors = open_roots([os.fspath(each) for each in roots], options)
    if mirrors is not None:
        mirrors.report_to(registry.note)
        mirrors.start(partial(take_in, registry))
    try:
        yield registry
    finally:
        if mirrors is not None:
            mirrors.stop()
        registry.close()
