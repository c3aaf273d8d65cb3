"""Bring a folder of fetched skills up to what the index of a site offers.

One bad skill costs itself, never its neighbours, and what fails leaves the last good copy where it is. Nothing reaches
the folder that was not proved against the index, and nothing in it is ever executed here.
"""
# WK-48, WK-52, WK-60

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from os import PathLike
from typing import Final, TypeVar

import anyio
from anyio import to_thread

from mcp_skills_server.dialects.wellknown import Entry, ProofFailedError, SiteIndex
from mcp_skills_server.errors import UsageError
from mcp_skills_server.format import archive
from mcp_skills_server.format.archive import ArchiveRefusedError, UnpackLimits
from mcp_skills_server.format.ignored import some_of
from mcp_skills_server.model import SKILL_MD
from mcp_skills_server.sources import artifacts, folder, records
from mcp_skills_server.sources.artifacts import Proved
from mcp_skills_server.sources.budget import UnpackedBudget
from mcp_skills_server.sources.caching import UNSAID_S
from mcp_skills_server.sources.download import Downloader
from mcp_skills_server.sources.faults import UnacceptableError, UnreachableError
from mcp_skills_server.sources.folder import FetchedFolder, SkillState, Staged
from mcp_skills_server.sources.index import FoundIndex, downloader_for, find_index, index_urls
from mcp_skills_server.sources.records import SkillRecord, wanted_since
from mcp_skills_server.sources.report import Fault, FetchReport, SkillRefusal
from mcp_skills_server.sources.settings import FetchSettings
from mcp_skills_server.sources.stage import ConflictError

_BATCH: Final = 256
"""Skills that get their places together."""

_T = TypeVar("_T")


async def look(url: str, settings: FetchSettings | None = None) -> tuple[str, SiteIndex]:
    """Download the index of a site and return it with its URL. Nothing is written.

    Raises:
        UsageError: it is no URL.
        IndexRefusedError, UnacceptableError, UnreachableError: there is no index that can be used.
    """
    # WK-50
    places, settings = index_urls(url), settings or FetchSettings()
    async with downloader_for(places, settings) as downloader:
        found = await find_index(url, places, settings, downloader, None)
        return found.record.url, found.index


async def refresh(
    url: str,
    directory: str | PathLike[str],
    settings: FetchSettings | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> FetchReport:
    """Bring the folder up to what the index at `url` offers.

    `progress` hears how many skills of how many are done. Cancelling it leaves a folder that
    is whole, and so does every error.

    Raises:
        UsageError: it is no URL, or the folder cannot be used.
        IndexRefusedError, UnacceptableError, UnreachableError: there is no index that can be used.
        RollbackError: the index is one that was there before, and another one since.
    """
    places, settings = index_urls(url), settings or FetchSettings()
    with FetchedFolder.opened(directory) as opened:
        async with downloader_for(places, settings) as downloader:
            known = await _blocking(opened.index, places[0])
            deadline = anyio.current_time() + settings.limits.total_s
            found = await find_index(url, places, settings, downloader, known)
            return await _Refresh(opened, downloader, found, settings, progress).run(deadline)


async def bring(found: FoundIndex, directory: str | PathLike[str], settings: FetchSettings) -> FetchReport:
    """Bring the folder up to what this index offers.

    Raises:
        UsageError: the folder cannot be used.
        RollbackError: the index is one that was there before, and another one since; the folder stays as it is.
    """
    with FetchedFolder.opened(directory) as opened:
        async with downloader_for([found.record.source], settings) as downloader:
            deadline = anyio.current_time() + settings.limits.total_s
            return await _Refresh(opened, downloader, found, settings, None).run(deadline)


class _Refresh:
    """One refresh on its way: what is to be done, and what became of each skill."""

    def __init__(
        self,
        opened: FetchedFolder,
        downloader: Downloader,
        found: FoundIndex,
        settings: FetchSettings,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self._in_doubt = False
        self._folder = opened
        self._downloader = downloader
        self._found = found
        self._record = found.record
        self._index = found.index
        self._settings = settings
        self._progress = progress
        wanted = settings.wanted
        self._entries = [entry for entry in found.index.entries if wanted is None or entry.name in wanted]
        self._unpack = UnpackLimits(
            bytes=settings.limits.skill_bytes, file=min(UnpackLimits().file, settings.limits.skill_bytes)
        )
        self._budget = UnpackedBudget(settings.limits.unpacked_bytes)
        self._became: dict[str, str] = {}
        self._refused: dict[str, SkillRefusal] = {}
        self._warnings: list[str] = []
        # Threads that verify and write at once take the interpreter from each other at each system call.
        self._writer = anyio.CapacityLimiter(1)
        self._committing = anyio.Lock()
        self._staged: list[Staged] = []
        self._done = 0

    async def run(self, deadline: float) -> FetchReport:
        """Do it, until `deadline` on anyio's clock, and remember the index."""
        await self._bring_all(deadline)
        await _blocking(self._remember)
        return await _blocking(self._report)

    async def _bring_all(self, deadline: float) -> None:
        # All at once, because the way to a thread and back costs more than a look.
        await _blocking(self._judge_all)
        missing = [entry for entry in self._entries if self._became.get(entry.name) in {"added", "updated"}]
        coming = {entry.name: self._became.pop(entry.name) for entry in missing}
        self._tell(len(self._became) + len(self._refused))
        queue = iter(missing)
        count = min(self._settings.connections, len(missing))
        with anyio.CancelScope(deadline=deadline) as scope:
            async with anyio.create_task_group() as workers:
                for _ in range(count):
                    workers.start_soon(self._work, queue, coming)
        await self._commit_staged(coming)
        if scope.cancelled_caught:
            for entry in missing:
                if entry.name not in self._became and entry.name not in self._refused:
                    reason = f"not fetched within {self._settings.limits.total_s:g} s"
                    self._refused[entry.name] = SkillRefusal(entry.name, reason, "network")

    def _remember(self) -> None:
        # An index that promised what is not there may be older than its artifacts: ask anew next time.
        fresh_s = 0.0 if self._in_doubt else self._record.fresh_s
        body = self._record.body if self._record.validators or self._record.left_s(records.epoch_s()) else ""
        wanted = wanted_since(self._folder.index(self._record.source), self._settings.wanted)
        try:
            self._folder.put_index(replace(self._record, body=body, fresh_s=fresh_s, wanted=wanted))
        except OSError as error:
            self._warnings.append(
                f"the index cannot be remembered ({error.strerror or error}); the next run asks for it anew"
            )

    def _judge_all(self) -> None:
        if self._index.version is not None:
            allow_rollback = self._settings.allow_rollback
            self._warnings += self._folder.enter(self._record, allow_rollback=allow_rollback)
        known = {record.name: record for record in self._folder.records()}
        for record, removed in self._folder.remove_ignored(known.values()):
            known[record.name] = record
            if removed:
                reason = f"{some_of(removed)} removed: an earlier fetch wrote what no command shows"
                self._warnings.append(f"{record.name}: {reason}")
        for entry in self._entries:
            with self._refusing(entry.name):
                self._became[entry.name] = self._judge(entry, known)

    async def _work(self, queue: Iterator[Entry], coming: Mapping[str, str]) -> None:
        for entry in queue:
            staged = None
            with self._refusing(entry.name):
                staged = await self._bring(entry)
                if staged is None:
                    self._became[entry.name] = "unchanged"
            if staged is not None:
                self._staged.append(staged)
            if len(self._staged) >= _BATCH:
                await self._commit_staged(coming)
            self._tell(1)

    async def _commit_staged(self, coming: Mapping[str, str]) -> None:
        """Put what was staged into its place. Each commit waits for the disk, and so several skills share one."""
        batch, self._staged = self._staged, []
        failed: Mapping[str, ConflictError | OSError] = {}
        with anyio.CancelScope(shield=True):  # or the report would not know what is in its place
            async with self._committing:
                failed = await _blocking(self._commit, batch)
        for each in batch:
            with self._refusing(each.name):
                if each.name in failed:
                    raise failed[each.name]
                self._became[each.name] = coming[each.name]

    def _commit(self, batch: Sequence[Staged]) -> dict[str, ConflictError | OSError]:
        failed = self._folder.commit(batch)
        for name in failed:
            record = self._folder.look(name)[1]
            self._budget.hold(name, self._folder.size(record) if record else 0)
        return failed

    def _tell(self, more: int) -> None:
        self._done += more
        if self._progress is not None:
            self._progress(self._done, len(self._entries))

    @contextmanager
    def _refusing(self, name: str) -> Generator[None]:
        """Have what goes wrong with one skill cost that skill alone."""
        fault: Fault = "here"
        try:
            yield
            return
        except (UnacceptableError, ProofFailedError, ArchiveRefusedError) as error:
            fault, reason = "publisher", str(error)
            self._in_doubt = True
        except UnreachableError as error:
            fault, reason = "network", str(error)
        except (ConflictError, UsageError) as error:
            reason = str(error)
        except OSError as error:
            reason = f"it cannot be kept: {error.strerror or error}"
        self._refused[name] = SkillRefusal(name, reason, fault)

    def _judge(self, entry: Entry, known: Mapping[str, SkillRecord]) -> str:
        """What stands in the place of a skill: "unchanged", "edited", or "added" and "updated" for what is to come."""
        artifacts.check_names([f"{entry.name}/{SKILL_MD}"])
        archive.check_paths([f"{entry.name}/{SKILL_MD}"])  # its directory is a name that some platform cannot hold
        state, record = self._folder.look(entry.name, known)
        # Also what is to be replaced: it stays where the new one is refused.
        if state is not SkillState.ABSENT and record is not None and record.source == self._record.source:
            self._budget.hold(entry.name, self._folder.size(record))
        same = record is not None and record.source == self._record.source and record.digest == entry.digest != ""
        if same and state is SkillState.KEPT:
            return "unchanged"
        if same and state is SkillState.EDITED and not self._settings.force:
            return "edited"
        folder.check(state, record, self._record.source, force=self._settings.force)
        return "added" if state is SkillState.ABSENT else "updated"

    async def _bring(self, entry: Entry) -> Staged | None:
        """Download the skill of an entry and stage it, verified; return None if the very same is in its place."""
        self._budget.check(entry.name, 1)
        proved = await artifacts.download(entry, self._downloader, self._unpack)
        return await _blocking(self._stage, entry, proved, limiter=self._writer)

    def _stage(self, entry: Entry, proved: Callable[[], Proved]) -> Staged | None:
        found = proved()
        if self._settings.prove is not None:
            self._settings.prove({path: raw for path, (raw, _) in found.files.items()})
        if found.warning:
            self._warnings.append(f"{entry.name}: {found.warning}")
        url = entry.url or entry.files[SKILL_MD]
        record = SkillRecord(entry.name, self._record.source, url, entry.digest, records.epoch_s(), {})
        with self._budget.taken(entry.name, sum(len(raw) for raw, _ in found.files.values())):
            return self._folder.stage(record, found.files, force=self._settings.force)

    def _report(self) -> FetchReport:
        """Report what became of each skill, and prune those that are gone if that is asked for."""
        refused = list(self._refused.values())
        index, wanted = self._index, self._settings.wanted
        warnings = [*index.warnings, *sorted(self._warnings)]
        for unusable in index.unusable:
            if wanted is not None and unusable.name not in wanted:
                continue
            if unusable.broken:
                refused.append(
                    SkillRefusal(unusable.name or f"entry {unusable.position}", unusable.reason, "publisher")
                )
            else:
                warnings.append(f"{unusable}, and so it is passed over")
        listed = {entry.name for entry in index.entries} | {unusable.name for unusable in index.unusable}
        if index.version is not None:
            missing = sorted((wanted or frozenset()) - listed)
            refused += [SkillRefusal(name, "the index has no skill of this name", "publisher") for name in missing]
        gone, pruned = self._gone(listed, refused) if index.version is not None else ((), ())
        return FetchReport(
            self._record.source,
            self._record.url,
            index.version,
            *(
                tuple(name for entry in self._entries if self._became.get(name := entry.name) == each)
                for each in _LISTS
            ),
            gone=gone,
            pruned=pruned,
            refused=tuple(refused),
            warnings=tuple(warnings),
            next_check_s=UNSAID_S if self._refused else self._found.next_check_s,
            bytes=self._downloader.http.bytes,
        )

    def _gone(self, listed: set[str], refused: list[SkillRefusal]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        gone: list[str] = []
        pruned: list[str] = []
        for record in self._folder.records(but=listed):
            if record.source != self._record.source or record.name in listed:
                continue
            if self._folder.look(record.name)[0] is SkillState.ABSENT:
                self._folder.remove(record.name)
                continue
            gone.append(record.name)
            if self._settings.prune:
                try:
                    self._folder.remove(record.name, force=self._settings.force)
                    pruned.append(record.name)
                except (ConflictError, OSError) as error:
                    refused.append(SkillRefusal(record.name, f"it is gone from the index; {error}", "here"))
        return tuple(gone), tuple(pruned)


_LISTS: Final = ("added", "updated", "unchanged", "edited")


async def _blocking(call: Callable[..., _T], *arguments: object, limiter: anyio.CapacityLimiter | None = None) -> _T:
    return await to_thread.run_sync(partial(call, *arguments), limiter=limiter)
