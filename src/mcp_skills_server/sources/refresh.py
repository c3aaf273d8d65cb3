"""From an address to a folder of skills: find the index, download what is not current, prove it, then keep it.

One bad skill costs itself, never its neighbours, and what fails leaves the last good copy where it is. Nothing reaches
the folder that was not proved against the index, and nothing in it is ever executed here (WK-48, WK-52, WK-60).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from os import PathLike
from threading import Lock
from typing import Final, Literal, TypeAlias, TypeVar

import anyio
import anyio.to_thread

from mcp_skills_server.dialects import wellknown
from mcp_skills_server.dialects.wellknown import Entry, Index, IndexLimits, IndexRefusedError, ProofFailedError
from mcp_skills_server.errors import UsageError
from mcp_skills_server.format import archive
from mcp_skills_server.format.archive import ArchiveRefusedError, Files, UnpackLimits
from mcp_skills_server.format.ignored import ignored, some_of
from mcp_skills_server.model import SKILL_MD
from mcp_skills_server.sources import caching, keep
from mcp_skills_server.sources.download import Answer, Bounds, Downloader, OriginPolicy
from mcp_skills_server.sources.faults import AbsentError, UnacceptableError, UnreachableError
from mcp_skills_server.sources.keep import ConflictError, Record, Source, State, Store
from mcp_skills_server.sources.urls import check, shown

Fault: TypeAlias = Literal["publisher", "network", "here"]

_ARCHIVE_OVERHEAD: Final = 4 << 20
"""What an archive may have beyond its files: heads and padding of as many members as `unpack` takes."""
_SKILL_MD_BYTES: Final = 1 << 20
_SOONEST_S: Final = 60.0
_UNSAID_S: Final = 300.0
"""No sooner than the first, and after the second where nothing is said or something failed."""
_KEEPERS: Final = 4
"""Threads that unpack and write: they wait for the disk, and more of them would keep the network waiting."""
_LIKE_HTML: Final = (".html", ".htm", ".xhtml")

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Limits:
    """What a publisher may cost, beyond the bounds of each download.

    Attributes:
        skills: entries of the index.
        skill_bytes: bytes of one skill, unpacked.
        total_s: seconds for all of it. What is not there then is not fetched.
        unpacked_bytes: bytes of all skills that the folder has of the index, unpacked. What is there already counts.
    """

    skills: int = 20_000
    skill_bytes: int = 50 << 20
    total_s: float = 600.0
    unpacked_bytes: int = 2 << 30


@dataclass(frozen=True, slots=True)
class Settings:
    """How to refresh.

    Attributes:
        wanted: names of skills, None for all.
        revalidate: ask for the index even while the copy of it is fresh.
        force: replace skills that were edited.
        prune: remove skills that the index no longer has.
        trust: where to go.
        bounds: what downloads may cost.
        limits: what the publisher may cost.
        connections: downloads at once.
    """

    wanted: frozenset[str] | None = None
    revalidate: bool = False
    force: bool = False
    prune: bool = False
    trust: OriginPolicy = field(default_factory=OriginPolicy)
    bounds: Bounds = field(default_factory=Bounds)
    limits: Limits = field(default_factory=Limits)
    connections: int = 6


@dataclass(frozen=True, slots=True)
class Refusal:
    """A skill that did not arrive. What was there of it before is there still.

    Attributes:
        name: of the skill, or of its entry as far as it has one.
        reason: why, in one line.
        fault: whose: the publisher's, the network's, or that of the folder here.
    """

    name: str
    reason: str
    fault: Fault

    def __str__(self) -> str:
        """All of it as one line."""
        return f"{self.name}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Report:
    """What a refresh did. Names are in the index's order.

    Attributes:
        source: the key of the index, `wellknown.candidates(url)[0]`; records carry it.
        url: of the index that answered.
        version: of its format, None when it is not known and nothing was done.
        added: skills that were not there.
        updated: skills that have other files now.
        unchanged: skills that are current.
        edited: skills that are current in the index and were edited in the folder; they stay.
        gone: skills in the folder that the index no longer has.
        pruned: those of them that were removed.
        refused: skills that did not arrive.
        warnings: what else the user should hear, one line each.
        next_check_s: in how many seconds it makes sense to ask again, by the index's cache headers (WK-40).
        bytes: bytes of all bodies that were downloaded.
    """

    source: str
    url: str
    version: wellknown.Version | None
    added: tuple[str, ...] = ()
    updated: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()
    edited: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    pruned: tuple[str, ...] = ()
    refused: tuple[Refusal, ...] = ()
    warnings: tuple[str, ...] = ()
    next_check_s: float = _UNSAID_S
    bytes: int = 0

    @property
    def ok(self) -> bool:
        """Whether the index was understood and everything asked for is there."""
        return self.version is not None and not self.refused


async def look(url: str, settings: Settings | None = None) -> tuple[str, Index]:
    """The address and the index of a site. Nothing else is asked for, nothing is written (WK-50).

    Raises:
        UsageError: it is no URL.
        IndexRefusedError, UnacceptableError, UnreachableError: there is no index that can be used.
    """
    check(url)
    settings = settings or Settings()
    async with _downloader(url, settings) as downloader:
        found = await _find(url, settings, downloader, None)
        return found.source.url, found.index


async def refresh(
    url: str,
    directory: str | PathLike[str],
    settings: Settings | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Bring the folder up to what the index at `url` offers.

    `progress` hears how many skills of how many are done. Cancelling it leaves a folder that is whole.

    Raises:
        UsageError: it is no URL, or the folder cannot be used.
        IndexRefusedError, UnacceptableError, UnreachableError: there is no index that can be used; the folder stays as
            it is.
    """
    check(url)
    settings = settings or Settings()
    source = wellknown.candidates(url)[0]
    with keep.opened(directory) as store:
        async with _downloader(url, settings) as downloader:
            known = await _blocking(store.source, source)
            deadline = anyio.current_time() + settings.limits.total_s
            try:
                with anyio.fail_after(settings.limits.total_s):
                    found = await _find(url, settings, downloader, known)
            except TimeoutError:
                raise UnreachableError(f"{shown(url)} took longer than {settings.limits.total_s:g} s") from None
            work = _Refresh(store, downloader, found, settings, progress)
            await work.run(deadline)
            # An index that promised what is not there may be older than its artifacts: ask anew next time.
            fresh_s = 0.0 if work.in_doubt else found.source.fresh_s
            body = found.source.body if found.source.validators or found.source.left_s(keep.now()) else ""
            wanted = _joined(known, settings.wanted)
            try:
                await _blocking(store.put_source, replace(found.source, body=body, fresh_s=fresh_s, wanted=wanted))
            except OSError as error:
                work.warn(f"the index cannot be remembered ({error.strerror or error}); the next run asks for it anew")
            return await _blocking(work.report, downloader.bytes)


@dataclass(frozen=True, slots=True)
class _Found:
    source: Source
    index: Index


def _downloader(url: str, settings: Settings) -> Downloader:
    home = wellknown.candidates(url)[0]
    return Downloader(home, settings.trust, settings.bounds, connections=settings.connections)


async def _find(url: str, settings: Settings, downloader: Downloader, known: Source | None) -> _Found:
    """The index: the copy of it while that is fresh, or the first of the places where there is one (WK-40, WK-41)."""
    places = wellknown.candidates(url)
    limits = IndexLimits(skills=settings.limits.skills)
    if known is not None and known.body and not settings.revalidate and known.left_s(keep.now()):
        return _Found(known, await _decoded(known, limits))
    missing: list[AbsentError] = []
    for place in places:
        held = known if known is not None and known.asked == place and known.body else None
        validators = held.validators if held else None
        try:
            answer = await downloader.get(place, limits.bytes, accept="application/json", validators=validators)
            if answer.modified and answer.is_html:
                raise AbsentError(f"{shown(place)} is a web page (HTML) and no index")
        except AbsentError as error:
            missing.append(error)
            continue
        source = _source(places[0], url, place, answer, held)
        return _Found(source, await _decoded(source, limits))
    if len(missing) == 1:
        raise missing[0]
    raise AbsentError(f"no index of skills: {'; '.join(map(str, missing))}")


async def _decoded(source: Source, limits: IndexLimits) -> Index:
    # "surrogateescape" gives the decoder the very bytes that came.
    return await _blocking(wellknown.decode, source.body.encode("utf-8", "surrogateescape"), source.url, limits)


def _source(key: str, given: str, place: str, answer: Answer, held: Source | None) -> Source:
    headers, now = answer.headers, keep.now()
    fresh = caching.fresh_s(headers, now) or 0.0
    if not answer.modified and held is not None:
        renewed = _validators(answer) or held.validators
        return replace(held, given=given, validators=renewed, asked_at=now, fresh_s=fresh)
    if answer.encoding:
        raise IndexRefusedError(f"the index came compressed ({answer.encoding}), which was not asked for")
    body = answer.raw.decode("utf-8", "surrogateescape")
    return Source(key, given, place, answer.url, body, _validators(answer), now, fresh)


def _validators(answer: Answer) -> dict[str, str]:
    if not caching.may_store(answer.headers):
        return {}
    told = {
        "If-None-Match": answer.headers.get("etag", ""),
        "If-Modified-Since": answer.headers.get("last-modified", ""),
    }
    return {name: value for name, value in told.items() if value and value.isascii() and value.isprintable()}


def _joined(known: Source | None, wanted: frozenset[str] | None) -> tuple[str, ...] | None:
    """What an update is to bring: all that was ever asked for."""
    if wanted is None or (known is not None and known.wanted is None):
        return None
    return tuple(sorted(wanted.union(known.wanted or () if known else ())))


class _Refresh:
    """One refresh on its way: what is to be done, and what became of each skill."""

    def __init__(
        self,
        store: Store,
        downloader: Downloader,
        found: _Found,
        settings: Settings,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self.in_doubt = False
        self._store = store
        self._downloader = downloader
        self._source = found.source
        self._index = found.index
        self._settings = settings
        self._progress = progress
        wanted = settings.wanted
        self._entries = [entry for entry in found.index.entries if wanted is None or entry.name in wanted]
        self._unpack = UnpackLimits(
            bytes=settings.limits.skill_bytes, file=min(UnpackLimits().file, settings.limits.skill_bytes)
        )
        self._space = _Space(settings.limits.unpacked_bytes)
        self._became: dict[str, str] = {}
        self._refused: dict[str, Refusal] = {}
        self._warnings: list[str] = []
        self._room = anyio.CapacityLimiter(_KEEPERS)

    async def run(self, deadline: float) -> None:
        """Do it, until `deadline` on anyio's clock."""
        # All at once, because the way to a thread and back costs more than a look.
        await _blocking(self._judge_all)
        missing = [entry for entry in self._entries if self._became.get(entry.name) in {"added", "updated"}]
        coming = {entry.name: self._became.pop(entry.name) for entry in missing}
        self._tell()
        queue = iter(missing)
        with anyio.CancelScope(deadline=deadline) as scope:
            async with anyio.create_task_group() as group:
                for _ in range(min(self._settings.connections, len(missing))):
                    group.start_soon(self._work, queue, coming)
        if scope.cancelled_caught:
            for entry in missing:
                if entry.name not in self._became and entry.name not in self._refused:
                    said = f"not fetched within {self._settings.limits.total_s:g} s"
                    self._refused[entry.name] = Refusal(entry.name, said, "network")

    def _judge_all(self) -> None:
        for name, removed in self._store.remove_ignored():
            said = f"{some_of(removed)} removed: an earlier fetch wrote what no command shows"
            self._warnings.append(f"{name}: {said}")
        for entry in self._entries:
            with self._refusing(entry):
                self._became[entry.name] = self._judge(entry)

    async def _work(self, queue: Iterator[Entry], coming: Mapping[str, str]) -> None:
        for entry in queue:
            with self._refusing(entry):
                changed = await self._bring(entry)
                self._became[entry.name] = coming[entry.name] if changed else "unchanged"
            self._tell()

    def warn(self, said: str) -> None:
        """Have the report say this, too."""
        self._warnings.append(said)

    def _tell(self) -> None:
        if self._progress is not None:
            self._progress(len(self._became) + len(self._refused), len(self._entries))

    @contextmanager
    def _refusing(self, entry: Entry) -> Generator[None]:
        """Have what goes wrong with one skill cost that skill alone."""
        fault: Fault = "here"
        try:
            yield
            return
        except (UnacceptableError, ProofFailedError, ArchiveRefusedError) as error:
            fault, said = "publisher", str(error)
            self.in_doubt = True
        except UnreachableError as error:
            fault, said = "network", str(error)
        except (ConflictError, UsageError) as error:
            said = str(error)
        except OSError as error:
            said = f"it cannot be kept: {error.strerror or error}"
        self._refused[entry.name] = Refusal(entry.name, said, fault)

    def _judge(self, entry: Entry) -> str:
        """What stands in the place of a skill: "unchanged", "edited", or "added" and "updated" for what is to come."""
        _check_names([f"{entry.name}/{SKILL_MD}"])
        archive.check_paths([f"{entry.name}/{SKILL_MD}"])  # its directory is a name that some platform cannot hold
        state, record = self._store.look(entry.name)
        # Also what is to be replaced: it stays where the new one is refused.
        if state is not State.ABSENT and record is not None and record.source == self._source.source:
            self._space.hold(entry.name, self._store.size(record))
        same = record is not None and record.source == self._source.source and record.digest == entry.digest != ""
        if same and state is State.KEPT:
            return "unchanged"
        if same and state is State.EDITED and not self._settings.force:
            return "edited"
        keep.check(state, record, self._source.source, force=self._settings.force)
        return "added" if state is State.ABSENT else "updated"

    async def _bring(self, entry: Entry) -> bool:
        """Have the skill of an entry in the folder, proved (WK-27, WK-48); False when the very same was there."""
        self._space.check(entry.name, 1)
        if entry.kind is None:
            files = await self._files(entry)
            return await _blocking(self._keep, entry, files, limiter=self._room)
        most = _SKILL_MD_BYTES if entry.kind == "skill-md" else self._unpack.bytes + _ARCHIVE_OVERHEAD
        answer = await self._downloader.get(entry.url, most)
        return await _blocking(self._prove_and_keep, entry, answer, limiter=self._room)

    def _prove_and_keep(self, entry: Entry, answer: Answer) -> bool:
        try:
            wellknown.prove(answer.raw, entry.digest)
        except ProofFailedError as error:
            if answer.is_html:
                raise UnacceptableError(f"{shown(answer.url)} is a web page (HTML) and not the skill") from None
            if answer.encoding:
                raise ProofFailedError(f"{error}; it came with Content-Encoding {answer.encoding}") from None
            raise
        whole = entry.kind == "archive"
        return self._keep(entry, archive.unpack(answer.raw, self._unpack) if whole else {SKILL_MD: (answer.raw, False)})

    async def _files(self, entry: Entry) -> Files:
        """The files of a skill of discovery 0.1.0, one by one; nothing proves them but their names (WK1-14)."""
        _check_names(entry.files)
        files: dict[str, tuple[bytes, bool]] = {}
        left = self._unpack.bytes
        for path, url in entry.files.items():
            answer = await self._downloader.get(
                url, _SKILL_MD_BYTES if path == SKILL_MD else min(left, self._unpack.file)
            )
            if answer.is_html and not path.lower().endswith(_LIKE_HTML):
                raise UnacceptableError(f"{shown(answer.url)} is a web page (HTML) and not the file")
            if answer.encoding:
                raise UnacceptableError(
                    f"{shown(answer.url)} came compressed ({answer.encoding}), which was not asked for"
                )
            left -= len(answer.raw)
            if left < 0:
                raise UnacceptableError(f"it has more than {self._unpack.bytes} bytes")
            files[path] = (answer.raw, False)
        return files

    def _keep(self, entry: Entry, files: Files) -> bool:
        reason = wellknown.check_unpacked(entry, files)
        if reason:
            raise ProofFailedError(reason)
        _check_names(files)
        said = wellknown.differs(entry, files)
        if said:
            self._warnings.append(f"{entry.name}: {said}")
        url = entry.url or entry.files[SKILL_MD]
        record = Record(entry.name, self._source.source, url, entry.digest, keep.now(), {})
        with self._space.taken(entry.name, sum(len(raw) for raw, _ in files.values())):
            return self._store.put(record, files, force=self._settings.force)

    def report(self, downloaded: int) -> Report:
        """All of it told, and skills that are gone removed where that is asked for."""
        refused = list(self._refused.values())
        index, wanted = self._index, self._settings.wanted
        warnings = [*index.warnings, *sorted(self._warnings)]
        for unusable in index.unusable:
            if wanted is not None and unusable.name not in wanted:
                continue
            if unusable.broken:
                refused.append(Refusal(unusable.name or f"entry {unusable.position}", unusable.reason, "publisher"))
            else:
                warnings.append(f"{unusable}, and so it is passed over")
        listed = {entry.name for entry in index.entries} | {unusable.name for unusable in index.unusable}
        if index.version is not None:
            missing = sorted((wanted or frozenset()) - listed)
            refused += [Refusal(name, "the index has no skill of this name", "publisher") for name in missing]
        gone, pruned = self._gone(listed, refused) if index.version is not None else ((), ())
        return Report(
            self._source.source,
            self._source.url,
            index.version,
            *(
                tuple(name for entry in self._entries if self._became.get(name := entry.name) == each)
                for each in _LISTS
            ),
            gone=gone,
            pruned=pruned,
            refused=tuple(refused),
            warnings=tuple(warnings),
            next_check_s=self._next_check_s(),
            bytes=downloaded,
        )

    def _gone(self, listed: set[str], refused: list[Refusal]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        gone: list[str] = []
        pruned: list[str] = []
        for record in self._store.records():
            if record.source != self._source.source or record.name in listed:
                continue
            if self._store.look(record.name)[0] is State.ABSENT:
                self._store.remove(record.name)
                continue
            gone.append(record.name)
            if self._settings.prune:
                try:
                    self._store.remove(record.name, force=self._settings.force)
                    pruned.append(record.name)
                except (ConflictError, OSError) as error:
                    refused.append(Refusal(record.name, f"it is gone from the index; {error}", "here"))
        return tuple(gone), tuple(pruned)

    def _next_check_s(self) -> float:
        left = self._source.left_s(keep.now())
        if self._refused or left <= 0:
            return _UNSAID_S
        return max(left, _SOONEST_S)


class _Space:
    """How many bytes the skills of an index have in the folder, so that all of them together stay below a limit.

    An archive is two hundred times as large as what was downloaded, and limits for each still add up.

    Args:
        most: bytes.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._sizes: dict[str, int] = {}
        self._bytes = 0
        self._lock = Lock()

    def hold(self, name: str, size: int) -> None:
        """A skill has so many bytes."""
        with self._lock:
            self._hold(name, size)

    def check(self, name: str, size: int) -> None:
        """Prove that a skill may have so many bytes in the place of those that it has.

        Raises:
            UnacceptableError: together with the others they are too many.
        """
        if self._bytes - self._sizes.get(name, 0) + size > self._most:
            said = f"all skills of the site together have more than {self._most} bytes, unpacked"
            raise UnacceptableError(f"{said}; 'fetch --max-unpacked-bytes' allows more")

    @contextmanager
    def taken(self, name: str, size: int) -> Generator[None]:
        """The same, and then it has them; what it had before if the `with` fails.

        Raises:
            UnacceptableError: as for `check`.
        """
        with self._lock:
            before = self._sizes.get(name, 0)
            self.check(name, size)
            self._hold(name, size)
        try:
            yield
        except BaseException:
            self.hold(name, before)
            raise

    def _hold(self, name: str, size: int) -> None:
        self._bytes += size - self._sizes.get(name, 0)
        self._sizes[name] = size


def _check_names(paths: Iterable[str]) -> None:
    """Refuse a skill that brings what would never be served, whole: its digest is the publisher's word for all of it.

    Raises:
        UnacceptableError: it does. The message names the files.
    """
    found = ignored(paths)
    if found:
        raise UnacceptableError(
            f"it brings files that are never served, and so nothing of it is written: {some_of(found)}; its publisher "
            "must leave them out"
        )


_LISTS: Final = ("added", "updated", "unchanged", "edited")


async def _blocking(call: Callable[..., _T], *arguments: object, limiter: anyio.CapacityLimiter | None = None) -> _T:
    return await anyio.to_thread.run_sync(partial(call, *arguments), limiter=limiter)
