"""Reconcile a folder of fetched skills with a source: plan, diff, fetch, swap in, record.

A source lists its content as units, each with a fingerprint. A unit that the folder holds
unmodified is not fetched again. A bad skill does not affect the others, and a failure leaves the
last good copy in place. Only verified content reaches the folder. A folder in the cache belongs to
the server alone: edits are overwritten, and other content is removed.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Awaitable, Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Final

import anyio
from anyio import to_thread

from mcp_skills_server.dialects.wellknown import DigestMismatchError
from mcp_skills_server.errors import UsageError, quoted
from mcp_skills_server.format.archive import ArchiveRefusedError, Files, check_paths
from mcp_skills_server.format.file_names import folded
from mcp_skills_server.model import SKILL_MD
from mcp_skills_server.sources.folder import ConflictError, FetchedFolder, SkillState, Staged, check
from mcp_skills_server.sources.records import (
    Extent,
    IndexRecord,
    SkillRecord,
    UnitRecord,
    read_index,
    read_records,
)
from mcp_skills_server.sources.source import (
    ContentRefusedError,
    Fault,
    FetchReport,
    Plan,
    Revision,
    SkillRefusal,
    Source,
    SourceError,
    UnacceptableError,
    Unit,
    UnitContents,
    UnitIntake,
    UnreachableError,
)

_BATCH: Final = 256
"""Skills that one commit puts in place together."""
_LISTS: Final = ("added", "updated", "unchanged", "edited")
_CURRENT: Final = frozenset(("unchanged", "edited"))
"""Verdicts of `_judge` on skills that are not fetched."""
_DISK_ERRORS: Final = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EIO))
"""Errors of the disk, which are no fault of one skill."""


async def reconcile(
    source: Source, revision: Revision, progress: Callable[[int, int], None] | None = None
) -> FetchReport:
    """Update the folder of a source to one of its revisions; a failure keeps the previous copies.

    `progress` is called with the numbers of processed and of all units.

    Raises:
        UnacceptableError: this revision will never be accepted.
        SourceError: the revision cannot be fetched now.
        UsageError: a local setting or folder is wrong, not the source.
    """
    is_cache = source.settings.output is None
    if is_cache:
        report = await to_thread.run_sync(_held, source, revision)
        if report is not None:
            return report
    try:
        with FetchedFolder.opened(source.place, source.changed) as folder, source.changing():
            known = read_index(source.place, source.key)
            # no skill was ever wanted from here; None would mean that all were
            known = known or IndexRecord(source.key, source.key, wanted=())
            async with source.plan(revision, known) as plan:
                run = await to_thread.run_sync(Reconciler, folder, source, plan, known, progress)
                await plan.fetch(run, await to_thread.run_sync(run.missing))
            await to_thread.run_sync(run.commit)
            if run.disk_error is not None:
                raise run.disk_error
            failure = run.failure
            if plan.is_one and failure is not None and (is_cache or failure.fault != "here"):
                kind = ContentRefusedError if failure.fault == "publisher" else UnreachableError
                raise kind(failure.reason)
            report = await to_thread.run_sync(run.finish)
            source.held = run.revision
            return report
    except SourceError:
        raise
    except OSError as error:
        raise UnreachableError(f"its copy cannot be written ({error.strerror or error})") from None


def fetching(
    fetch: Callable[[Unit], Awaitable[UnitContents]],
) -> Callable[[UnitIntake, Sequence[Unit]], Awaitable[None]]:
    """Return a `Plan.fetch` that fetches a few units at a time within `total_s`.

    `fetch` downloads a unit, verifies it and returns its contents.
    """

    async def fetch_all(run: UnitIntake, missing: Sequence[Unit]) -> None:
        queue, left = iter(missing), dict.fromkeys(missing)

        async def work() -> None:
            for unit in queue:
                try:
                    run.check_budget(unit)
                    contents = await fetch(unit)
                except (SourceError, UsageError, DigestMismatchError, ArchiveRefusedError) as error:
                    run.refuse(unit, error)
                else:
                    await to_thread.run_sync(run.put, unit, contents)
                del left[unit]

        seconds = run.settings.limits.total_s
        with anyio.move_on_after(seconds) as scope:
            async with anyio.create_task_group() as workers:
                for _ in range(min(run.settings.connections, len(missing))):
                    workers.start_soon(work)
        if scope.cancelled_caught:
            for unit in left:
                run.refuse(unit, UnreachableError(f"not fetched within {seconds:g} s"))

    return fetch_all


def _held(source: Source, revision: Revision) -> FetchReport | None:
    """Report that the folder has exactly a complete revision, or return None. Needs no lock.

    Sets `source.held` once a process, and after a change by another one: then each file is looked
    at, and only those of a copied cache are read.
    """
    index = read_index(source.place, source.key)
    if index is None or not index.revision:
        return None
    is_same = index.revision == revision.digest
    if source.held != index.revision:
        with suppress(OSError):
            is_held = index.extent.covers(FetchedFolder(source.place).measure())
            if is_held or (is_same and _is_as_recorded(source, index)):
                source.held = index.revision
    if not is_same or source.held != index.revision:
        return None
    return _report_of(index, _refusals_of(index))


def _is_as_recorded(source: Source, index: IndexRecord) -> bool:
    """Tell whether the folder has the files that the records of all skills name, and no others."""
    folder = FetchedFolder(source.place)
    records = {
        record.name: record for record in read_records(source.place) if record.source == source.key
    }
    if len(records) != index.skills or any(folder.others(records)):
        return False
    return all(folder.state_of(name, records)[0] is SkillState.KEPT for name in records)


def _refusals_of(index: IndexRecord, without: Collection[str] = ()) -> list[SkillRefusal]:
    refused = index.refused.items()
    return [SkillRefusal(name, why, "publisher") for name, why in refused if name not in without]


class Reconciler:
    """One run of a plan. Its methods block, and are thread-safe."""

    def __init__(
        self,
        folder: FetchedFolder,
        source: Source,
        plan: Plan,
        known: IndexRecord,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self.settings = source.settings.fetch
        self._is_cache = source.settings.output is None
        if self._is_cache:
            self.settings = replace(self.settings, force=True, prune=True, wanted=None)
        self._folder = folder
        self._source = source.key
        self._plan = plan
        self._known = known
        self._ever_wanted: tuple[str, ...] | None = None
        if self.settings.wanted is not None and known.wanted is not None:
            self._ever_wanted = tuple(sorted(self.settings.wanted.union(known.wanted)))
        self._progress = progress
        self._lock = threading.RLock()
        touched = plan.touched
        records = read_records(folder.directory, touched)
        self._records = {record.name: record for record in records}
        self._units = [self._placed(unit) for unit in plan.units]
        self._positions = {unit: position for position, unit in enumerate(self._units)}
        self._owners: dict[str, tuple[Unit, str]] = {}
        """The unit of each skill, and its name, by `folded`; the first unit wins."""
        self._memory: dict[str, UnitRecord] = {}
        """By fingerprint, what the next run must know of a unit without fetching it."""
        self._became: dict[str, str] = {}
        """By name of an accepted skill, the list of the report that has it: one of `_LISTS`."""
        self._offered = {*map(self._place, plan.offered or ())}
        """Skill names that the source has."""
        self._refused: dict[tuple[int, str], SkillRefusal] = {}
        """Refusals by (position of the unit, skill name)."""
        self._staged: list[Staged] = []
        self._sizes: dict[str, int] = {}
        """Unpacked bytes of each skill of this source in the folder."""
        self._untouched, self._untouched_skills = Extent(), 0
        if touched is not None:
            self._untouched = _plus(known.extent, folder.measure(touched), -1)
            self._untouched_skills = known.skills - len(self._own_records())
            for fingerprint, record in known.units.items():
                if touched.isdisjoint((*record.names, *record.refused)):
                    self._memory[fingerprint] = record
        self._bytes_held = self._untouched.bytes
        self._done = 0
        self.is_full = False
        """True once a skill is refused because all skills together exceed `unpacked_bytes`."""
        self._names_unknown = False
        """True once a unit failed whose skill names only its contents show."""
        self.disk_error: OSError | None = None
        """Why nothing can be written; the run has to end."""
        self.revision = ""
        """The revision that the folder holds, once it is complete and recorded."""
        if self._is_cache and touched is None:
            folder.remove_others(self._records)

    @property
    def failure(self) -> SkillRefusal | None:
        """The first refusal, if no skill at all is accepted."""
        if self._became:
            return None
        return next(iter(self._refusals()), None)

    def missing(self) -> list[Unit]:
        """Return the units that must be fetched."""
        index, known = self._plan.index, self._known
        # Clear the revision and keep the history: a kill leaves neither revision complete.
        begun = replace(
            known, given=index.given, revision="", wanted=self._ever_wanted, history=index.history
        )
        if begun != known:
            try:
                self._folder.put_index(begun)
            except OSError:
                # Without a complete revision on disk nothing must be cleared. In an operator's
                # folder the fetch goes on, and `finish` reports a full disk.
                if known.revision or self._is_cache:
                    raise
        if self.settings.prune:
            self._clear_way({name for unit in self._units for name in unit.names})
        missing: list[Unit] = []
        for unit in self._units:
            memory = known.units.get(unit.fingerprint)
            if unit.names and not self._wanted(unit.names):
                continue
            names = self._wanted(unit.names if memory is None else memory.names)
            verdicts: dict[str, str] = {}
            for name in names:
                with self._refusing(unit, name):
                    verdicts[name] = self._judge(unit, name, self._records)
            if (memory or names) and all(verdict in _CURRENT for verdict in verdicts.values()):
                self._became |= verdicts
                self._owners |= {folded(name): (unit, name) for name in names}
                if memory:
                    self._remember(unit, memory)
            else:
                missing.append(unit)
        self._report_progress(len(self._units) - len(missing))
        return missing

    def check_budget(self, unit: Unit) -> None:
        """Raise SourceError if all skills together exceed `unpacked_bytes`, or the disk failed."""
        if self.disk_error is not None:
            raise UnreachableError("the disk failed")
        for name in unit.names:
            self._check_size(name, 1)

    def put(self, unit: Unit, contents: UnitContents) -> None:
        """Stage the skills of a unit; an error refuses one skill."""
        with self._lock:
            with self._refusing(unit):
                skills = {self._place(name): files for name, files in contents.skills.items()}
                names = self._claim(unit, skills)
                refused, warnings = dict(contents.refused), contents.warnings
                record = UnitRecord(tuple(names), refused, warnings, contents.pointers)
                self._remember(unit, record, is_lasting=len(names) == len(skills))
                for name in self._wanted(names):
                    with self._refusing(unit, name):
                        self._stage(unit, name, skills[name])
            if len(self._staged) >= _BATCH and not self._plan.is_atomic:
                self.commit()
            self._report_progress(1)

    def refuse(self, unit: Unit, error: Exception) -> None:
        """Record why a unit cannot be fetched."""
        with self._lock:
            with self._refusing(unit):
                raise error
            self._report_progress(1)

    def commit(self) -> None:
        """Put the staged skills in place together, because each commit syncs the disk."""
        with self._lock:
            batch, self._staged = self._staged, []
            if self.disk_error is not None:
                return
            try:
                failed = self._folder.commit(batch)
            except OSError as error:
                self.disk_error = error
                return
            for staged in batch:
                name = staged.name
                with self._refusing(self._owners[folded(name)][0], name):
                    if name in failed:
                        record = self._records.get(name)
                        self._count_bytes(name, self._folder.size(record) if record else 0)
                        raise failed[name]
                    is_new = staged.state is SkillState.ABSENT
                    self._became[name] = "added" if is_new else "updated"

    def finish(self) -> FetchReport:
        """Remove the skills that the source no longer has, and record the new state."""
        plan, index, settings = self._plan, self._plan.index, self.settings
        refusals = self._refusals()
        if any(refusal.fault == "publisher" for refusal in refusals):
            # the index may be older than its skills: request it anew next time
            index = replace(index, fresh_s=0.0)
        refusals += [
            refusal for refusal in plan.refused if self._wanted([self._place(refusal.name)])
        ]
        if plan.touched is not None:
            refusals += _refusals_of(self._known, plan.touched)
        refused_stay = plan.refused_stay or not self._is_cache
        gone: list[str] = []
        pruned: list[str] = []
        if plan.offered is not None and not (self._names_unknown and refused_stay):
            refused = {self._place(refusal.name) for refusal in refusals}
            at_source = {*self._offered, *self._became, *refused}
            for name in sorted((settings.wanted or frozenset()) - at_source):
                refusals.append(SkillRefusal(name, "there is no skill of this name", "publisher"))
            kept = at_source if refused_stay else {*self._became}
            gone, pruned = self._prune(kept, refusals)
        is_complete = all(
            refusal.fault == "publisher" and not plan.may_heal for refusal in refusals
        )
        if not is_complete or self.is_full:
            index = replace(index, revision="")
        extent = self._known.extent
        if self._is_cache and all(refusal.fault == "publisher" for refusal in refusals):
            extent = _plus(self._untouched, self._folder.measure(plan.touched))
        index = replace(
            index,
            wanted=self._ever_wanted,
            skills=self._untouched_skills + len({*self._own_records(), *self._became}),
            extent=extent,
            refused={
                refusal.name: refusal.reason for refusal in refusals if refusal.fault == "publisher"
            },
            units=self._memory,
        )
        try:
            self._folder.put_index(index)
            self.revision = index.revision
        except OSError as error:
            if self._is_cache:
                raise
            reason = error.strerror or error
            plan.warnings.append(f"what came is not remembered ({reason}); the next run asks anew")
        order = sorted(
            self._became, key=lambda name: (self._positions[self._owners[folded(name)][0]], name)
        )
        became = {key: tuple(name for name in order if self._became[name] == key) for key in _LISTS}
        report = _report_of(index, refusals)
        return replace(
            report,
            **became,
            version=plan.version,
            before=plan.before or self._known.revision,
            gone=tuple(gone),
            pruned=tuple(pruned),
            warnings=(*report.warnings, *sorted(plan.warnings)),
            is_complete=is_complete,
            bytes=plan.bytes,
        )

    def _refusals(self) -> list[SkillRefusal]:
        """Return the refusals so far, in the order of the units."""
        return [self._refused[key] for key in sorted(self._refused)]

    def _own_records(self) -> list[str]:
        return sorted(name for name, it in self._records.items() if it.source == self._source)

    def _placed(self, unit: Unit) -> Unit:
        names = tuple(map(self._place, unit.names))
        if names == unit.names:
            return unit
        return replace(unit, names=names, label=self._place(unit.label))

    def _place(self, name: str) -> str:
        """Return the path of a skill; in an operator's folder the last segment of its name."""
        if self._is_cache:
            return name
        return name.rpartition("/")[2]

    def _wanted(self, names: Collection[str]) -> Collection[str]:
        """Return the wanted ones of these names; if that is a selection, record all as offered."""
        if self.settings.wanted is None:
            return names
        wanted = [name for name in names if name in self.settings.wanted]
        self._offered.update(names)
        return wanted

    def _clear_way(self, names: Collection[str]) -> None:
        """Remove obsolete skills whose paths contain, or lie in, those of current ones."""
        above = {str(parent) for name in names for parent in PurePosixPath(name).parents}
        for name in self._own_records():
            is_below = any(str(parent) in names for parent in PurePosixPath(name).parents)
            if name not in names and (name in above or is_below):
                with suppress(ConflictError, OSError):
                    self._folder.remove(name, force=self.settings.force)
                    del self._records[name]

    def _judge(self, unit: Unit, name: str, records: Mapping[str, SkillRecord] | None) -> str:
        """Return "unchanged" or "edited" for a skill to keep, "" for one to fetch."""
        # raises for a name that some platform cannot hold
        check_paths([f"{name}/{SKILL_MD}"])
        state, record = self._folder.state_of(name, records)
        if record is not None and record.source == self._source and state is not SkillState.ABSENT:
            # count a skill to replace, too: it stays if the new one is refused
            self._count_bytes(name, self._folder.size(record))
            is_same = record.digest == unit.fingerprint != ""
            if is_same and state is SkillState.KEPT:
                return "unchanged"
            # An index offers a new version of just this skill: a conflict. A tree changes as a
            # whole, so a local edit in it is no failure.
            stays = is_same or self._plan.version == "tree"
            if state is SkillState.EDITED and not self.settings.force and stays:
                return "edited"
        check(state, record, self._source, force=self.settings.force)
        return ""

    def _claim(self, unit: Unit, skills: Collection[str]) -> list[str]:
        """Return the skill names of a unit that no earlier unit has."""
        claimed: list[str] = []
        for name in skills:
            other, holder = self._owners.setdefault(folded(name), (unit, name))
            if other is unit:
                claimed.append(name)
                continue
            loser, lost, kept = unit, name, holder
            if self._positions[other] > self._positions[unit]:
                loser, lost, kept = other, holder, name
            reason = "another skill of this name comes before it"
            if lost != kept:
                first = f"from that of {quoted(kept)}, which comes before it"
                reason = f"its name differs {first}, only in case or Unicode form"
            self._refuse(loser, lost, reason, "publisher")
            # the next revision may have no such conflict
            self._memory.pop(loser.fingerprint, None)
            if loser is other:  # the loser's skill is staged or already in place
                self._staged = [staged for staged in self._staged if staged.name != lost]
                self._became.pop(lost, None)
                self._owners[folded(name)] = unit, name
                claimed.append(name)
        return claimed

    def _stage(self, unit: Unit, name: str, files: Files) -> None:
        # A unit may have named its skills only now, and the record is read anew: another unit of
        # this run may have put a skill of the same name in place.
        if verdict := self._judge(unit, name, None):
            self._became[name] = verdict
            return
        if self.settings.prove is not None:
            self.settings.prove({path: raw for path, (raw, _) in files.items()})
        size = sum(len(raw) for raw, _ in files.values())
        self._check_size(name, size)
        url = unit.url or self._source
        record = SkillRecord(name, self._source, url, unit.fingerprint, {})
        staged = self._folder.stage(record, files, force=self.settings.force)
        self._count_bytes(name, size)
        if staged is None:
            self._became[name] = "unchanged"
        else:
            self._staged.append(staged)

    def _prune(self, kept: set[str], refused: list[SkillRefusal]) -> tuple[list[str], list[str]]:
        """Return the skills that are not `kept`, and those of them that were removed."""
        gone: list[str] = []
        pruned: list[str] = []
        for name in self._own_records():
            if name in kept:
                continue
            try:
                if self._folder.state_of(name)[0] is SkillState.ABSENT:
                    self._folder.remove(name)
                    del self._records[name]
                    continue
                gone.append(name)
                if self.settings.prune:
                    self._folder.remove(name, force=self.settings.force)
                    del self._records[name]
                    pruned.append(name)
            except (ConflictError, OSError) as error:
                refused.append(SkillRefusal(name, f"the source has it no longer; {error}", "here"))
        return gone, pruned

    def _remember(self, unit: Unit, record: UnitRecord, *, is_lasting: bool = True) -> None:
        if is_lasting and (record.refused or record.warnings or record.pointers or not unit.names):
            self._memory[unit.fingerprint] = record
        for name, reason in record.refused.items():
            self._refuse(unit, name, reason, "publisher")
        if not record.names and not unit.is_named:
            self._names_unknown = True

    @contextmanager
    def _refusing(self, unit: Unit, name: str = "") -> Generator[None]:
        """Convert an error with a unit, or with one skill of it, to a refusal of that alone."""
        fault: Fault = "here"
        try:
            yield
            return
        except (UnacceptableError, DigestMismatchError, ArchiveRefusedError) as error:
            fault, reason = "publisher", str(error)
            if isinstance(error, ContentRefusedError):
                self._remember(unit, UnitRecord(refused={name or unit.label: reason}))
        except SourceError as error:
            fault, reason = "network", str(error)
        except (ConflictError, UsageError) as error:
            reason = str(error)
        except OSError as error:
            if self._is_cache and error.errno in _DISK_ERRORS:
                self.disk_error = error
            reason = f"it cannot be kept: {error.strerror or error}"
        self._names_unknown = self._names_unknown or not (name or unit.is_named)
        self._refuse(unit, name or unit.label, reason, fault)

    def _refuse(self, unit: Unit, name: str, reason: str, fault: Fault) -> None:
        self._refused[self._positions[unit], name] = SkillRefusal(name, reason, fault)

    def _check_size(self, name: str, size: int) -> None:
        most = self.settings.limits.unpacked_bytes
        if self._bytes_held - self._sizes.get(name, 0) + size > most:
            reason = f"all skills of the source together have more than {most} bytes, unpacked"
            self.is_full = True
            raise UnacceptableError(f"{reason}; 'fetch --max-unpacked-bytes' allows more")

    def _count_bytes(self, name: str, size: int) -> None:
        """Count a skill of this source that lies in the folder, instead of its previous size."""
        self._bytes_held += size - self._sizes.get(name, 0)
        self._sizes[name] = size

    def _report_progress(self, more: int) -> None:
        self._done += more
        if self._progress is not None:
            self._progress(self._done, len(self._units))


def _plus(one: Extent, other: Extent | None, sign: int = 1) -> Extent:
    """Add or subtract an extent; unknown content makes the sum unknown."""
    if other is None:
        return Extent()
    changed = max(one.changed_ns, other.changed_ns)
    return Extent(one.files + sign * other.files, one.bytes + sign * other.bytes, changed)


def _report_of(index: IndexRecord, refused: Sequence[SkillRefusal]) -> FetchReport:
    """Return the report that a source's record implies for its folder."""
    units = index.units.values()
    return FetchReport(
        index.url or index.source,
        refused=tuple(refused),
        warnings=(*index.warnings, *(line for unit in units for line in unit.warnings)),
        pointers=tuple((unit.names[0], path) for unit in units for path in unit.pointers),
    )
