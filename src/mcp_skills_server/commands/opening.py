"""Open the roots of a command, pinned and signed as the options require, and keep them current."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mcp_skills_server.access.grants import LOCAL, Grants
from mcp_skills_server.catalog.recalls import Recalls, read_advisories
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.roots import OptionalRoot
from mcp_skills_server.commands.lock_files import assign_entries, locked_roots
from mcp_skills_server.commands.logs import log_to_stderr
from mcp_skills_server.commands.options import (
    FollowOptions,
    RefreshOptions,
    RootOptions,
    ScanOptions,
    SignatureOptions,
    WatchOptions,
    cache_folder,
    index_of,
    limits_of,
    path_or_none,
)
from mcp_skills_server.commands.printing import more_suffix
from mcp_skills_server.errors import UsageError

if TYPE_CHECKING:
    from mcp_skills_server.catalog.gates import Gate
    from mcp_skills_server.catalog.registry import MirroredRoot
    from mcp_skills_server.catalog.views import Views
    from mcp_skills_server.catalog.watch import Watcher
    from mcp_skills_server.commands.config_file import Configuration
    from mcp_skills_server.commands.source_rules import SourceRules
    from mcp_skills_server.proposals.store import ProposalStore
    from mcp_skills_server.provenance.keyless import Identity
    from mcp_skills_server.provenance.lock import LockedSource, Pins
    from mcp_skills_server.sources.kinds import Kind
    from mcp_skills_server.sources.mirrors import Mirrors, SourceState
    from mcp_skills_server.sources.source import BundleVerifier

logger = logging.getLogger(__name__)

UNFETCHED: Final = "not all of its skills can be fetched now"


def make_watcher(registry: Registry, options: WatchOptions) -> Watcher | None:
    """Return a watcher of the folders; None without `--watch`."""
    if not options.watch:
        return None
    from mcp_skills_server.catalog.watch import Watcher

    return Watcher(registry, poll=options.poll, reconcile=options.reconcile)


@dataclass(slots=True)
class OpenedRoots:
    """The roots of a command."""

    registry: Registry
    mirrors: Mirrors | None
    """Keeps the remote roots current; None if all are folders."""
    scripts: Mapping[str, bool] = field(default_factory=dict[str, bool])
    """Permission to run scripts, by the absolute folder of a root, as configured."""
    pins: Pins | None = None
    """The gate of the lock file."""
    lock: str | None = None
    given: Sequence[str] = ()

    def start(self, first_load: float) -> None:
        """Poll the remote roots; a first list waits `first_load` seconds for unfetched ones."""
        if self.mirrors is not None:
            self.mirrors.report_to(self.registry)
            self.mirrors.start(first_load)

    def load_and_follow(self, options: FollowOptions) -> None:
        """Load the skills and keep them current."""
        self.start(options.first_load)
        watcher = make_watcher(self.registry, options)
        if watcher is None:
            self.registry.load()
        else:
            watcher.start()

    def stop(self) -> None:
        """Stop polling, end the programs that were started for it, and save the index."""
        if self.mirrors is not None:
            self.mirrors.stop()
        if self.registry.loaded.is_set():
            self.registry.save_index()

    def source_states(self) -> Sequence[SourceState]:
        """Return the state of each remote root."""
        return () if self.mirrors is None else self.mirrors.states()

    def poll_sources(self) -> int:
        """Poll all remote roots now, and return their number. Thread-safe."""
        return 0 if self.mirrors is None else self.mirrors.poll_now()

    def poll_now(self) -> None:
        """Poll every source now. Blocks for as long as a scan of the folders."""
        self.poll_sources()
        if self.registry.loaded.is_set():
            self.registry.refresh()
        logger.info("polling every source now")

    def relock(self) -> str:
        """Serve the lock file as it is now. Return the reason of a refusal, or "" if there is none.

        A refused lock file leaves the former one in force.
        """
        if self.lock is None or self.pins is None:
            return ""
        from mcp_skills_server.sources.source import SourceError

        before = self.pins.entries
        try:
            entries = assign_entries(before, locked_roots(self.lock, self.given), self.lock)
            if entries == before:
                return ""
            moved = {
                folder: entry.revision
                for folder, entry in entries.items()
                if entry.revision != before[folder].revision
            }
            if self.mirrors is not None:
                self.mirrors.repin(moved)
        except (UsageError, SourceError, OSError) as error:
            return f"{error}; the former lock stays in force"
        self.pins.entries = entries
        self.registry.loaded.wait()
        self.registry.refresh()
        self.poll_sources()  # not before the scan: the former lock would judge the new skills
        count = sum(len(source.skills) for source in entries.values())
        logger.info("%s was reloaded; it names %s skills", self.lock, f"{count:,}")
        for path in self.pins.unserved(self.registry, self.registry.snapshot.skills):
            logger.warning("%s: %s cannot be served", self.lock, path)
        return ""

    def reread_advisories(self, path: str | None) -> str:
        """Apply the file of advisories as it is now. Return the reason of a refusal, or ""."""
        try:
            advisories = read_advisories(path)
        except UsageError as error:
            return f"{error}; the former advisories stay in force"
        if self.registry.recall(advisories):
            logger.info("%s was reloaded; its advisories: %d", path, len(advisories))
        return ""


def open_roots(
    given: Sequence[str],
    options: RootOptions,
    *,
    pin: str | None = None,
    locked: Sequence[LockedSource] | None = None,
    indexed: bool = False,
    kinds: Sequence[Kind] = (),
    commands: Iterable[str] = (),
) -> OpenedRoots:
    """Open these roots. Nothing is loaded or fetched yet.

    Args:
        options: how to read, verify and poll the roots, and the rules of single ones.
        pin: the revision of every root, None for the newest.
        locked: the lock file entry of each root, whose skills alone are served; None for no lock.
        indexed: start from the index of an earlier process, and keep one.
        commands: the roots that the operator wrote; no other text is started as a command.

    Raises:
        UsageError: a root or a key cannot be read, or a `[[source]]` is not a separate root.
    """
    from mcp_skills_server.catalog.gates import all_of

    rules = [options.config and options.config.rules_of(root) for root in given]
    mirrors: Mirrors | None = None
    roots: list[str | MirroredRoot] = [*given]
    if not all(map(os.path.isdir, given)):
        mirrors = _mirrors(options, kinds, commands)
        refresh_s = options.refresh if isinstance(options, RefreshOptions) else None
        for number, (root, rule) in enumerate(zip(given, rules, strict=True)):
            revision = pin if locked is None else locked[number].revision or None
            interval = (rule and rule.refresh_s) or refresh_s
            bundles = _bundle_verifier(rule)
            roots[number] = mirrors.root(root, revision, interval, _token_of(rule), bundles)
    folders = [os.path.abspath(root if isinstance(root, str) else root.path) for root in roots]
    by_folder = {folder: rule for folder, rule in zip(folders, rules, strict=True) if rule}
    optional = _optional_folders(options, by_folder)
    for position, folder in enumerate(folders):
        if folder in optional:
            roots[position] = OptionalRoot(folder)
    gates, pins = _gates_of_roots(options, by_folder), None
    if locked is not None:
        from mcp_skills_server.provenance.lock import Pins

        pins = Pins(dict(zip(folders, locked, strict=True)))
        gates.insert(0, pins)
    limits, gate = limits_of(options), all_of(gates)
    index = index_of(options.cache_dir) if indexed else None
    recalls = Recalls(read_advisories(options.advisories), is_locked=locked is not None)
    registry = Registry(roots, limits, index=index, gate=gate, sources=mirrors, recalls=recalls)
    _check_separate(by_folder, registry)
    scripts = {
        folder: rule.scripts for folder, rule in by_folder.items() if rule.scripts is not None
    }
    return OpenedRoots(registry, mirrors, scripts, pins)


def _optional_folders(options: RootOptions, rules: Mapping[str, SourceRules]) -> set[str]:
    """Return the absolute folders that may be absent, by the options or by their rules."""
    optional = {folder for folder, rule in rules.items() if rule.optional}
    if isinstance(options, WatchOptions):
        optional |= {*map(os.path.abspath, options.optional_root)}
    return optional


def _check_separate(folders: Iterable[str], registry: Registry) -> None:
    """Refuse a folder with a `[[source]]` that is not a root of its own."""
    served = {root.given for root in registry.roots}
    for folder in folders:
        if folder not in served:
            raise UsageError(
                f"{folder}: it has a [[source]], but it is the same folder as another root, or a "
                "file; name the folder itself, once"
            )


def _mirrors(options: RootOptions, kinds: Sequence[Kind], commands: Iterable[str]) -> Mirrors:
    from mcp_skills_server.dialects import wellknown
    from mcp_skills_server.sources.kinds import KINDS
    from mcp_skills_server.sources.mirrors import Mirrors
    from mcp_skills_server.sources.source import FetchSettings, OriginPolicy, SourceSettings

    origins = frozenset(wellknown.origin(fetch_origin) for fetch_origin in options.fetch_origins)
    trust = OriginPolicy(
        origins, options.allow_private, options.allow_http, commands=frozenset(commands)
    )
    settings = SourceSettings(
        cache_folder(options.cache_dir),
        options.hidden,
        FetchSettings(trust=trust, allow_rollback=options.allow_rollback),
        cache_bytes=options.cache_size,
        signers=path_or_none(options.signers),
        rewritten=options.accept_rewritten,
    )
    return Mirrors(settings, (*kinds, *KINDS))


def _token_of(rule: SourceRules | None) -> str:
    """Return the bearer token that is sent to a root; "" for none."""
    if rule is None or not rule.token_env:
        return ""
    token = os.environ.get(rule.token_env, "").strip()
    if not token or not (token.isascii() and token.isprintable()):
        raise UsageError(f"[[source]] token-env: {rule.token_env} has no valid token; set it")
    return token


def _bundle_verifier(rule: SourceRules | None) -> BundleVerifier | None:
    """Return the verifier of the bundles that a registry must have for a root, or None."""
    if rule is None or rule.require_identity is None or not rule.is_registry:
        return None
    from mcp_skills_server.provenance.keyless import KeylessVerifier

    return KeylessVerifier(rule.require_identity)


def _gates_of_roots(options: RootOptions, rules: Mapping[str, SourceRules]) -> list[Gate]:
    """Return the gates of all roots, and those of single ones by the rules of their folders."""
    from mcp_skills_server.catalog.gates import all_of, by_root

    keys = options.require_signature if isinstance(options, SignatureOptions) else ()
    gates = _gates(options, keys, options.cache_dir)
    own: dict[str, Gate] = {}
    for folder, rule in rules.items():
        # a registry has the bundles beside the manifest: its source verifies them
        identity = None if rule.is_registry else rule.require_identity
        gate = all_of(_gates(rule, rule.require_signature, options.cache_dir, identity))
        if gate is not None:
            own[folder] = gate
    if own:
        gates.append(by_root(own))
    return gates


def _gates(
    chosen: ScanOptions | SourceRules,
    keys: Sequence[str],
    cache_dir: str | None,
    identity: Identity | None = None,
) -> list[Gate]:
    """Return the gates for patterns of skills, and for signatures by a key and by the identity."""
    gates: list[Gate] = []
    if chosen.include or chosen.exclude:
        from mcp_skills_server.catalog.gates import Selection

        gates.append(Selection(chosen.include, chosen.exclude))
    if keys or identity is not None:
        from mcp_skills_server.provenance.signatures import SignatureGate, Verifier

        verifiers = [Verifier([*map(Path, keys)])] if keys else []
        if identity is not None:
            verifiers.append(Verifier([], identity))
        gates += [SignatureGate(verifier, index_of(cache_dir)) for verifier in verifiers]
    return gates


def make_registry(
    given: Sequence[str], options: RootOptions, *, proved: bool = False, indexed: bool = False
) -> Registry:
    """Return a registry of these roots, not yet loaded; remote ones are fetched now.

    `proved` refuses a cached copy that cannot be revalidated. Raises UsageError for a root that
    cannot be read or fetched.
    """
    if not all(map(os.path.isdir, given)):
        log_to_stderr("warning")
    opened = open_roots(given, options, indexed=indexed, commands=given)
    if opened.mirrors is not None:
        opened.mirrors.report_to(opened.registry)
        opened.mirrors.fetch(proved=proved)
    return opened.registry


def load_registry(given: Sequence[str], options: RootOptions, *, proved: bool = False) -> Registry:
    """Return a registry as `make_registry` does, but loaded."""
    registry = make_registry(given, options, proved=proved)
    registry.load()
    return registry


def open_served(given: Sequence[str], options: FollowOptions) -> OpenedRoots:
    """Open these roots, or those that a lock file names. Only `--frozen` loads them at once.

    Raises:
        UsageError: a root cannot be read or fetched, or does not match the lock file.
    """
    locked: Sequence[LockedSource] | None = None
    roots = given = (*given, *options.optional_root)
    if options.lock is not None:
        locked = locked_roots(options.lock, given)
        roots = [source.given for source in locked]
    elif options.frozen:
        raise UsageError("--frozen is for a lock file; give --lock FILE too")
    elif not given:
        if sys.stderr.isatty():
            from mcp_skills_server.commands.welcome import say_folders

            say_folders()
        raise UsageError(
            "there is nothing to serve; give a ROOT, a folder of skills, or --lock FILE"
        )
    opened = open_roots(roots, options, locked=locked, indexed=True, commands=given)
    opened = replace(opened, lock=options.lock, given=given)
    if opened.pins is not None and options.frozen:
        if opened.mirrors is not None:
            opened.mirrors.fetch()
        registry = opened.registry
        registry.load()
        if unserved := opened.pins.unserved(registry, registry.snapshot.skills):
            problems = registry.snapshot.problems
            reasons = {problem.skill: f"{problem.message} [{problem.code}]" for problem in problems}
            reason = reasons.get(unserved[0], "it is not there")
            reason += more_suffix(len(unserved) - 1)
            hint = "see 'diff --lock', then 'update', or leave out --frozen"
            raise UsageError(f"{options.lock}: {unserved[0]} cannot be served: {reason}; {hint}")
    return opened


def proposals_at(folder: str | None, roots: Sequence[str]) -> ProposalStore | None:
    """Return the store of proposals in a folder, or in a root's working copy for "git"; or None.

    Raises:
        UsageError: the store cannot be used, or lies in or around one of these absolute roots.
    """
    if folder is None:
        return None
    from mcp_skills_server.proposals.branches import Branches
    from mcp_skills_server.proposals.store import ProposalStore

    if folder == "git":
        branches = Branches(roots or [os.getcwd()])
        return ProposalStore(branches.folder, branches.add)
    path = os.path.realpath(folder)
    for root in roots:
        if os.path.commonpath([path, root]) in {path, root}:
            raise UsageError(
                f"--proposals {folder}: lies in or around the root {root}; name a folder elsewhere"
            )
    return ProposalStore(Path(path))


def make_views(registry: Registry, configuration: Configuration | None, *, local: bool) -> Views:
    """Return the views of principals; without a table `[[grant]]` everyone sees all skills.

    `local` is for a server over a pipe, whose one client is the user who started it.
    """
    from mcp_skills_server.catalog.views import Views

    if configuration is None or configuration.grants is None:
        return Views(registry)
    grants = Grants(configuration.grants, local=local)
    if local and not grants.permissions(None).grants:
        logger.warning(
            '%s grants nothing to the user who starts the server; write a [[grant]] for "%s"',
            configuration.file,
            LOCAL,
        )
    return Views(registry, grants)


@contextmanager
def open_registry(
    *roots: str | os.PathLike[str],
    cache_dir: str | os.PathLike[str] | None = None,
    allow_private: bool = False,
    kinds: Sequence[Kind] = (),
) -> Generator[Registry]:
    """Open a registry of any roots, and keep those that are fetched current until the context ends.

    Args:
        roots: folders, archives, `https://` sites, `git+https://` repositories, `oci://` artifacts,
            as `serve` takes them. An earlier root hides the same path in a later one.
        cache_dir: the directory for copies of what is fetched; by default the user's cache.
        allow_private: also fetch from private addresses.
        kinds: further kinds of sources, tried first.

    Yields:
        The registry, not yet loaded: `load` waits at most 5 s for roots without a copy.

    Raises:
        UsageError: a root does not exist, or cannot be read or fetched.
    """
    cache = None if cache_dir is None else os.fspath(cache_dir)
    options = FollowOptions(cache_dir=cache, allow_private=allow_private)
    given = [os.fspath(root) for root in roots]
    opened = open_roots(given, options, kinds=kinds, commands=given)
    opened.start(options.first_load)
    try:
        yield opened.registry
    finally:
        opened.stop()
