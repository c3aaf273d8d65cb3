"""Registry of the skills of several roots, kept current as one immutable Snapshot.

Readers take `snapshot` and keep it; a refresh builds the next one and swaps it in atomically. A
refresh scans only the skills that a change touches. A file is served only if its bytes match the
digest that the snapshot lists.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain
from typing import Final, Protocol, Self

from mcp_skills_server.catalog.checks import Checks
from mcp_skills_server.catalog.freshness import Freshness
from mcp_skills_server.catalog.gates import Gate
from mcp_skills_server.catalog.index import Index, IndexedSkills
from mcp_skills_server.catalog.path_map import above, outermost
from mcp_skills_server.catalog.reader import SkillReader
from mcp_skills_server.catalog.recalls import Advisory, Recalls
from mcp_skills_server.catalog.root_state import RootState
from mcp_skills_server.catalog.roots import Limits, MirroredRoot, Root, merge, open_roots
from mcp_skills_server.catalog.scan import Arm
from mcp_skills_server.catalog.threads import in_thread
from mcp_skills_server.codes import problem
from mcp_skills_server.model import Changes, Problem, Skill, Snapshot

logger = logging.getLogger(__name__)

_SAVE_AGAIN_S: Final = 60.0
"""Backoff in seconds after the index could not be saved: it is locked, or the disk is full."""


class RemoteSources(Protocol):
    """The sources of fetched roots, as far as the first scan depends on them."""

    @property
    def are_awaited(self) -> bool:
        """True if a source had never been read at the start."""
        ...

    def await_first_read(self) -> None:
        """Block until each of those sources was read once, or the wait times out."""
        ...

    def unread(self) -> Sequence[str]:
        """Return the names of the sources that were never read. Thread-safe."""
        ...


class Registry(SkillReader):
    """The skills of some directories, empty until loaded. Thread-safe.

    `with Registry(["skills"]) as registry:` loads it; `async with` does so without blocking the
    event loop. A `Watcher` keeps it current from then on, or `refresh` scans again.

        with Registry(["skills"]) as registry:
            for path, skill in registry.snapshot.skills.items():
                print(path, skill.description)

    Args:
        roots: directories that hold skills or are one; of two skills with one path the earlier
            root's is served. A path to a SKILL.md stands for its directory.
        limits: size limits of a skill; by default `Limits()`.
        index: keeps the skills of the roots for the next process; None for no index.
        gate: refuses skills that must not be served, such as those that a lock file does not name.
        sources: the sources of fetched roots; None if all roots are folders.
        recalls: the advisories, whose skills are refused.

    Attributes:
        snapshot: all skills as of the last scan; immutable, and replaced by the next scan.
        loaded: set when the first scan is done.
        index: as given; None with a gate, which must check every skill anew.
        checks: the problems that only reading every file shows, cached until a skill changes.
        freshness: what skills rely on, compared with what was confirmed.

    Raises:
        TypeError: `roots` is one path and no list.
        UsageError: a root is missing, is not a directory, or cannot be read.
    """

    def __init__(
        self,
        roots: Sequence[str | os.PathLike[str] | MirroredRoot],
        limits: Limits | None = None,
        *,
        index: Index | None = None,
        gate: Gate | None = None,
        sources: RemoteSources | None = None,
        recalls: Recalls | None = None,
    ) -> None:
        limits = limits or Limits()
        super().__init__(open_roots(roots), limits)
        self.snapshot = Snapshot({})
        self.loaded = threading.Event()
        self._lock = threading.RLock()
        root_gate = None
        if gate is not None:
            root_gate = partial(gate, self)
            index = None  # its skills are shown before a gate can verify their files
        self.index = index
        self.recalls = recalls or Recalls()
        self.advisory_on = self.recalls.advisory_on
        self._states = [
            RootState(root, limits, root_gate, self.roots, self.recalls) for root in self.roots
        ]
        self.checks = Checks(self)
        self.freshness = Freshness(self)
        self._listeners: dict[object, tuple[Callable[[Changes], None], bool]] = {}
        self._deferred = Changes({}, {})
        """Changes of which the listeners do not know yet."""
        self._shadowed: list[Problem] = []
        self._saving = threading.Lock()
        self._next_save = 0.0
        self._sources = sources
        self._is_followed = False

    # Life

    def load(self, arm: Arm | None = None) -> None:
        """Run the first scan; blocks on unread sources, then some tenths of a ms for each skill.

        `loaded` is set then, even after an error. `problems` returns what is wrong with skills and
        roots. `arm` is called with a root's path and a directory's root-relative path before each
        directory is read.
        """
        if self._sources is not None:
            self._sources.await_first_read()  # else the scan would find, and log, no skill
        with self._lock:
            try:
                before = self.snapshot
                self.refresh(arm=arm)
                if self.snapshot is before:
                    self._notify(Changes({}, {}))  # there is nothing, not even a problem
            finally:
                self.loaded.set()  # under the lock: problems that `note` adds later are notified
        self.save_index()  # now: a host may end its server within a second

    @property
    def awaits_sources(self) -> bool:
        """True if the first scan waits for sources that were never read."""
        return self._sources is not None and self._sources.are_awaited

    def unread_sources(self) -> Sequence[str]:
        """Return the names of the sources that were not read yet. Thread-safe."""
        return () if self._sources is None else self._sources.unread()

    async def aload(self) -> None:
        """Run `load` in a thread, for event loops."""
        await in_thread(self.load)

    def __enter__(self) -> Self:
        if not self.loaded.is_set():
            self.load()
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing: loaded skills can still be read."""

    async def __aenter__(self) -> Self:
        if not self.loaded.is_set():
            await self.aload()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Do nothing, as `__exit__`."""

    # Keeping current

    def subscribe(
        self, listener: Callable[[Changes], None], *, problems: bool = False
    ) -> Callable[[], None]:
        """Call `listener` after the first scan and after each later scan that changed something.

        The scanning thread calls it, in the order of the scans; it must return at once. Its
        exceptions are logged.

        Args:
            listener: takes the skills that went and came, by skill path.
            problems: also call it, with empty changes, when only problems have changed.

        Returns:
            The unsubscribe function.
        """
        token = object()
        self._listeners[token] = listener, problems
        return lambda: self._listeners.pop(token, None) and None

    def follow(self) -> Callable[[], None]:
        """Expect calls of `settle` at intervals, and return the function that ends this.

        Until then changes can be deferred, and skills are kept for a grace period.
        """
        self._is_followed = True

        def end() -> None:
            self._is_followed = False

        return end

    def refresh(
        self,
        paths: Iterable[str] | None = None,
        *,
        arm: Arm | None = None,
        defer: bool = False,
        grace: bool = True,
    ) -> Changes:
        """Scan again what some changes touch, or everything; blocks until done.

        While a watcher runs, and in `rescan`, a skill stays as it was until its SKILL.md has been
        gone or worse for a second, because editors write a file in several steps.

        Args:
            paths: absolute paths of files and directories that changed; None for all roots.
            arm: as for `load`.
            defer: leave the listeners to `settle`, if a watcher calls that at intervals.
            grace: False for files that are complete: a worse SKILL.md counts at once.

        Returns:
            The skills that went and came since the scan before; empty for no change.
        """
        with self._lock:
            subtrees = [(state, "") for state in self._states]
            if paths is not None:
                subtrees = self._touched(paths)
            for state, subtree in subtrees:
                if not subtree:
                    state.resolve()  # only a whole scan may switch to another folder
            is_changed, changes = False, Changes({}, {})
            try:
                for state, subtree in subtrees:
                    indexed = None
                    if not subtree and not self.loaded.is_set():
                        indexed = self._indexed(state)
                    # Without a watcher, too, a rescan keeps the skill: nothing would bring it back
                    # if an editor had not finished. The next rescan ends the grace period.
                    keeps = grace and (self._is_followed or defer)
                    is_changed |= state.scan(subtree, indexed, arm=arm, grace=keeps)
            finally:  # also if a later root cannot be scanned
                if is_changed:
                    changes = self._replace_snapshot()
                    self._notify(changes, defer=defer and self._is_followed)
            return changes

    def _indexed(self, state: RootState) -> IndexedSkills | None:
        """Return a root's skills from the index, or None."""
        if self.index is None:
            return None
        return self.index.skills(state.root, state.limits)

    async def arefresh(self, paths: Iterable[str] | None = None) -> Changes:
        """Run `refresh` in a thread, for event loops."""
        return await in_thread(self.refresh, paths)

    def recall(self, advisories: Iterable[Advisory]) -> bool:
        """Replace the advisories, and scan all roots again if they differ; tell whether they do."""
        with self._lock:
            differ = self.recalls.replace(advisories)
            if differ and self.loaded.is_set():
                self.refresh()
                self._replace_snapshot()  # also if it is equal: filtered views are judged again
            return differ

    def rescan(self, path: str) -> Changes:
        """Scan again the skill of a file whose bytes differ from the scanned ones.

        While a watcher runs, notifications are deferred and coalesced: a client that reads during a
        burst would otherwise be notified of each skill by itself.
        """
        with self._lock:
            for state in self._states:
                state.distrust(path)  # a quick rewrite may leave the same time stamp
            return self.refresh([path], defer=True)

    def note(
        self, folder: str, revision: str, problems: Sequence[Problem], changed: Iterable[str] = ()
    ) -> None:
        """Scan what a root's source has changed, and record what no scan finds.

        `folder` is the root's absolute path as given. `revision` is that of the root with the
        changes, "" if unknown. `problems`, with their paths, replace those of the call before.
        `changed` are paths in the root, "" for all of it; before the first scan none is read.
        """
        with self._lock:
            state = next((state for state in self._states if state.root.given == folder), None)
            if state is None:
                return
            is_news = state.source_problems != tuple(problems)
            state.source_problems = tuple(problems)
            if not self.loaded.is_set():
                state.root.revision = revision
                self.snapshot = Snapshot({}, self._unattached_problems())
                return
            state.resolve()
            paths = changed if state.missing is None else [""]
            absolute = [os.path.join(state.root.path, path) for path in paths]
            for touched, subtree in self._touched(absolute):
                is_news |= touched.scan(subtree)
            changes = self._replace_snapshot() if is_news else None
            if state.missing is None:
                state.root.revision = revision  # after the skills: no old ones are shown with it
            if changes is not None:
                self._notify(changes)

    def settle(self) -> None:
        """Scan the skills whose grace period is over; call the listeners with deferred changes."""
        with self._lock:
            over = [
                os.path.join(state.root.path, directory)
                for state in self._states
                for directory in state.past_grace()
            ]
            if over:
                self.refresh(over)
            if self._deferred:
                self._notify(Changes({}, {}))

    def save_index(self) -> None:
        """Save the skills that changed since the last save; cheap if none did."""
        with self._saving:  # waits for the save of another thread
            if time.monotonic() < self._next_save:
                return
            for state in self._states:
                self._save(state)

    def _save(self, state: RootState) -> None:
        with self._lock:
            if self.index is not None and len(state.skills) >= self.index.least:
                state.is_indexed = True
            if self.index is None or not state.is_indexed:
                state.unsaved &= state.skills.keys()  # it must not grow with every name
                return
            unsaved, state.unsaved = state.unsaved, set()
            changed = [state.skills[location] for location in unsaved if location in state.skills]
            signatures = dict(state.signatures) if changed else {}
        gone = unsaved - {skill.directory for skill in changed}
        if unsaved and not self.index.save(state.root, state.limits, changed, gone, signatures):
            self._next_save = time.monotonic() + _SAVE_AGAIN_S
            with self._lock:
                state.unsaved |= unsaved

    def remembered(self) -> Snapshot | None:
        """Return the indexed skills of the last process, or None unless all roots are indexed.

        For a host that lists skills before the first scan: nothing is read from the roots, and
        nothing is served from this.
        """
        known = [self._indexed(state) for state in self._states]
        skills = [indexed.skills.values() for indexed in known if indexed is not None]
        if len(skills) < len(known):
            return None
        left = merge(skills)[0]
        for path, skill in list(left.items()):
            is_off = not self.roots[skill.root].off.isdisjoint(above(skill.directory))
            if is_off or self.advisory_on(skill):  # since then
                del left[path]
        return Snapshot(left)

    def enters(self, path: str) -> bool:
        """Tell whether a scan of a root enters this absolute path; none enters ignored names."""
        with self._lock:  # a scan of another thread forgets links while it looks at them
            return any(state.enters(path) for state in self._states)

    def _touched(self, paths: Iterable[str]) -> list[tuple[RootState, str]]:
        """Return the directories to scan again after changes of these absolute paths."""
        paths, out = list(paths), list[tuple[RootState, str]]()
        for state in self._states:
            touched = {location for location in map(state.touched, paths) if location is not None}
            out += [(state, location) for location in outermost(touched)]
        return out

    def _replace_snapshot(self) -> Changes:
        """Replace the snapshot by one of the roots as they are now, and return the difference."""
        old, (skills, self._shadowed) = self.snapshot.skills, self._merge()
        changes = Changes(
            {path: skill for path, skill in old.items() if skills.get(path) is not skill},
            {path: skill for path, skill in skills.items() if old.get(path) is not skill},
        )
        for path in changes.before.keys() & changes.after:
            root = changes.before[path].root
            if changes.after[path].root == root:
                self.roots[root].revision = ""  # it was edited, so this describes it no more
        self.snapshot = Snapshot(skills, self._unattached_problems())
        return changes

    def _notify(self, changes: Changes, *, defer: bool = False) -> None:
        """Call the listeners with all deferred changes and these, or defer these, too.

        An empty change, of problems alone, defers nothing by itself. After the first scan it is for
        all listeners.
        """
        all_changes = self._deferred.then(changes)
        if all_changes and defer:
            self._deferred = all_changes
            return
        self._deferred = Changes({}, {})
        for listener, problems in [*self._listeners.values()]:
            if not (all_changes or problems or not self.loaded.is_set()):
                continue
            try:
                listener(all_changes)
            except Exception:  # one listener's bug must not stop the others
                logger.exception("a listener failed")

    def _unattached_problems(self) -> tuple[Problem, ...]:
        """Return all problems of no served skill."""
        problems = chain.from_iterable(state.problems for state in self._states)
        return (*problems, *self._shadowed)

    def _merge(self) -> tuple[dict[str, Skill], list[Problem]]:
        """Merge all roots into one namespace, with a Problem for each hidden skill."""
        merged, hidden = merge(
            [state.skills[location] for location in state.skills.below("")]
            for state in self._states
        )
        shadowed: list[Problem] = []
        for skill, winner in hidden:
            if self.place(winner) == self.place(skill):
                continue  # both roots have the same folder: nothing is hidden
            shown = self.roots[winner.root].show(winner.directory)
            text = f"the skill {skill.path} is hidden by {shown}, which comes first"
            hidden_at = self.roots[skill.root].show(skill.directory)
            shadowed.append(problem("shadowed", text).at(hidden_at, skill.path))
        return merged, shadowed

    # Problems

    def of_root(self, root: Root) -> Snapshot:
        """Return the skills of one root as if it were alone, with those that another hides."""
        with self._lock:
            return self._states[root.index].snapshot()

    def dot_folders(self, root: Root) -> list[str]:
        """Return root-relative dot folders that no scan entered: changes there are not watched."""
        return self._states[root.index].dot_folders

    def problems(self, snapshot: Snapshot | None = None) -> list[Problem]:
        """Return all problems of skills, their files, roots and combinations of skills, by place.

        Reads every file of a skill that is not checked yet; `checks.survey` returns what is known
        without that. `snapshot` is by default the current one.
        """
        snapshot = snapshot or self.snapshot
        for skill in snapshot.skills.values():
            self.checks.problems_of(skill)
        return [*self.checks.survey(snapshot).problems]
