"""Bring a folder of fetched skills up to what a manifest of a registry names, artifact by artifact.

An artifact that the folder has whole is not asked for again, so that one changed skill of a collection costs that
skill. One that is refused costs itself; what was there of it stays.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from os import PathLike
from typing import Any, Final, TypeVar, cast
from unicodedata import normalize

import anyio
from anyio import to_thread

from mcp_skills_server import __version__
from mcp_skills_server.errors import UsageError
from mcp_skills_server.format.archive import Files
from mcp_skills_server.sources.budget import UnpackedBudget
from mcp_skills_server.sources.faults import SourceError, UnacceptableError, UnreachableError
from mcp_skills_server.sources.folder import FetchedFolder, SkillState, Staged
from mcp_skills_server.sources.oci.client import RegistryClient
from mcp_skills_server.sources.oci.layers import Contents
from mcp_skills_server.sources.oci.reader import ArtifactReader, ContentRefusedError, WantedArtifact
from mcp_skills_server.sources.oci.reference import OciReference
from mcp_skills_server.sources.records import IndexRecord, SkillRecord, epoch_s
from mcp_skills_server.sources.report import Fault, SkillRefusal
from mcp_skills_server.sources.settings import FetchSettings
from mcp_skills_server.sources.stage import ConflictError

_WRITERS: Final = 4
_BATCH: Final = 64
"""Skills that get their places together."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Pulled:
    """What became of each skill.

    Attributes:
        added: skills that were not there.
        updated: skills that have other files now.
        unchanged: skills that are current.
        pruned: skills of this source that the manifest no longer has, and that were removed.
        refused: skills, or whole artifacts, that did not arrive.
        warnings: what else the operator should hear, one line each.
        before: the revision that was whole before, "" where none was.
    """

    added: tuple[str, ...] = ()
    updated: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()
    pruned: tuple[str, ...] = ()
    refused: tuple[SkillRefusal, ...] = ()
    warnings: tuple[str, ...] = ()
    before: str = ""


class Holdings:
    """What a folder has of one source. Every method blocks.

    Args:
        opened: the folder.
        source: what the operator named.
        asked: what decides beside the revision what is taken of it, such as limits; what was brought for other ones is
            none of it.
    """

    def __init__(self, opened: FetchedFolder, source: str, asked: Sequence[object]) -> None:
        self._folder = opened
        self._source = source
        self._asked = repr(asked)
        known = opened.index(source)
        data = _decoded(known.body) if known else {}
        data = data if data.get("asked") == self._asked else {}
        self.revision = str(data.get("revision") or "")
        """The revision of which all is there that is taken, "" where that is not so."""
        self.artifacts = {digest: _names(names) for digest, names in _mapping(data.get("artifacts")).items()}
        """Names of skills by the digest of the artifact that brought them, of those that brought all of theirs."""
        self.partial = {digest: _names(names) for digest, names in _mapping(data.get("partial")).items()}
        """The same of those of which a skill was refused."""
        self.refused = [(name, str(reason)) for name, reason in _mapping(data.get("refused")).items()]
        """Names and reasons of what the revision has and is not taken."""

    def is_whole(self, revision: str) -> bool:
        """Whether all that is taken of this revision is there as it came. Every file is read and proved."""
        named = [*self.artifacts.items(), *self.partial.items()]
        return self.revision == revision and all(self._has(name, digest) for digest, names in named for name in names)

    def has(self, digest: str) -> bool:
        """Whether all skills of an artifact are there as they came. Every file of them is read and proved."""
        names = self.artifacts.get(digest, [])
        return bool(names) and all(self._has(name, digest) for name in names)

    def _has(self, name: str, digest: str) -> bool:
        state, record = self._folder.look(name)
        known = None if record is None else (record.source, record.digest)
        return state is SkillState.KEPT and known == (self._source, digest)

    def record(self, name: str, digest: str) -> SkillRecord:
        """Return the record of a skill that this artifact brings."""
        return SkillRecord(name, self._source, self._source, digest, epoch_s(), {})

    def remember(
        self,
        revision: str,
        artifacts: Mapping[str, Sequence[str]],
        partial: Mapping[str, Sequence[str]],
        refused: Mapping[str, str],
    ) -> None:
        """Remember what is there now, in the terms of the attributes.

        Raises:
            OSError: it cannot be written.
        """
        data = {"asked": self._asked, "revision": revision, "artifacts": artifacts, "partial": partial}
        body = json.dumps(data | {"refused": refused})
        self._folder.put_index(IndexRecord(self._source, self._source, self._source, self._source, body))


async def bring(
    client: RegistryClient,
    reference: OciReference,
    digest: str,
    directory: str | PathLike[str],
    settings: FetchSettings,
    *,
    hidden: bool = False,
    refusals: MutableMapping[str, ContentRefusedError] | None = None,
) -> Pulled:
    """Bring the folder up to the manifest of this digest.

    Args:
        client: for the repository of `reference`.
        reference: what the operator named; records carry it.
        digest: of the manifest or index.
        directory: the folder, which is ours: what was changed in it is put right, what is gone is removed.
        settings: what it may cost.
        hidden: skills in dot folders of an image count, too.
        refusals: artifacts that were refused before, by digest; they are never asked for again. It is added to.

    Raises:
        ContentRefusedError: nothing of it is taken.
        UnreachableError: nothing of it can be had now.
        UsageError: the folder cannot be used.
    """
    with FetchedFolder.opened(directory) as opened:
        asked = (__version__, settings.limits.skill_bytes, hidden)
        holdings = await _blocking(Holdings, opened, str(reference), asked)
        if await _blocking(holdings.is_whole, digest):
            names = {*chain(*holdings.artifacts.values(), *holdings.partial.values())}
            refused = tuple(SkillRefusal(*each, "publisher") for each in holdings.refused)
            return Pulled(unchanged=tuple(sorted(names)), refused=refused)
        remembered: MutableMapping[str, ContentRefusedError] = {} if refusals is None else refusals
        reader = ArtifactReader(client, reference, settings, hidden=hidden)
        before = holdings.revision
        pull = _Pull(reader, reference, opened, holdings, settings, remembered)
        try:
            with anyio.fail_after(settings.limits.total_s):
                return replace(await pull.run(digest), before=before)
        except ContentRefusedError:
            raise
        except UnacceptableError as error:  # a permission may be given, an address allowed: the digest stays the same
            raise UnreachableError(str(error)) from None
        except TimeoutError:
            raise UnreachableError(f"it took longer than {settings.limits.total_s:g} s") from None


class _Pull:
    """One pull on its way."""

    def __init__(  # noqa: PLR0917, called once
        self,
        reader: ArtifactReader,
        reference: OciReference,
        opened: FetchedFolder,
        holdings: Holdings,
        settings: FetchSettings,
        refusals: MutableMapping[str, ContentRefusedError],
    ) -> None:
        self._reader = reader
        self._source = str(reference)
        self._folder = opened
        self._holdings = holdings
        self._settings = settings
        self._refusals = refusals
        self._budget = UnpackedBudget(settings.limits.unpacked_bytes)
        self._writers = anyio.CapacityLimiter(_WRITERS)
        self._committing = anyio.Lock()
        self._staged: list[tuple[WantedArtifact, Staged]] = []
        self._owners: dict[str, WantedArtifact] = {}
        """By the key of a name the artifact that brings it; of two the one that stands first in the index."""
        self._became: dict[str, str] = {}
        self._brought: dict[str, list[str]] = {}
        self._partial: dict[str, list[str]] = {}
        self._refused: list[tuple[int, SkillRefusal]] = []
        self._warnings: list[str] = []
        self._first_failure: SourceError | None = None
        self._names_unknown = False
        """An artifact failed of which the index does not say what skill it is."""

    async def run(self, digest: str) -> Pulled:
        """Do it.

        Raises:
            SourceError: nothing of it can be had.
        """
        wanted = await self._reader.wanted(digest)
        missing = await _blocking(self._missing, wanted)
        turns = [anyio.Event() for _ in range(len(missing) + 1)]
        turns[0].set()
        queue = iter(enumerate(missing))

        async def work() -> None:
            for number, each in queue:
                await self._bring(each, turns[number], turns[number + 1])

        async with anyio.create_task_group() as group:
            for _ in range(min(self._settings.connections, len(missing))):
                group.start_soon(work)
        await self._commit()
        if self._first_failure is not None and not self._became:
            raise self._first_failure
        return await _blocking(self._finish, digest)

    def _missing(self, wanted: list[WantedArtifact]) -> list[WantedArtifact]:
        """Return the artifacts to download, and count the skills of those that are here."""
        for record in self._folder.records():
            if record.source == self._source:
                self._budget.hold(record.name, self._folder.size(record))
        kept = [each for each in wanted if self._holdings.has(each.digest)]
        for each in kept:
            names = self._brought[each.digest] = self._holdings.artifacts[each.digest]
            self._owners |= dict.fromkeys(map(_key, names), each)
            self._became |= dict.fromkeys(names, "unchanged")
        return [each for each in wanted if each.digest not in self._brought]

    async def _bring(self, wanted: WantedArtifact, turn: anyio.Event, following: anyio.Event) -> None:
        """Have the skills of an artifact in the folder. Names are given away in the order of the index."""
        try:
            if wanted.digest in self._refusals:
                raise self._refusals[wanted.digest]
            found = await self._reader.contents(wanted)
        except (SourceError, UsageError) as error:
            if isinstance(error, ContentRefusedError):
                self._refusals[wanted.digest] = error
            self._names_unknown = self._names_unknown or not wanted.name
            self._refuse(wanted, wanted.label, str(error), error)
            await turn.wait()
            following.set()
            return
        await turn.wait()
        taken = self._claim(wanted, found)
        following.set()
        whole = not found.refused and len(taken) == len(found.skills)
        (self._brought if whole else self._partial)[wanted.digest] = [*taken]
        for name, files in taken.items():
            await self._put(wanted, name, files)

    def _claim(self, wanted: WantedArtifact, found: Contents) -> dict[str, Files]:
        """Return the skills of an artifact that no artifact before it brings."""
        self._warnings += [f"{wanted.label}: {line}" for line in found.warnings]
        for name, reason in found.refused.items():
            self._refuse(wanted, name, reason, ContentRefusedError(reason))
        taken: dict[str, Files] = {}
        for name, files in found.skills.items():
            other = self._owners.get(_key(name))
            loser = wanted if other is not None and other.place < wanted.place else other
            if loser is not None:
                reason = "an artifact before it in the index has a skill of this name"
                self._refuse(loser, name, reason, ContentRefusedError(reason))
                self._lose(loser.digest, name)
            if loser is not wanted:
                self._owners[_key(name)] = wanted
                taken[name] = files
        return taken

    async def _put(self, wanted: WantedArtifact, name: str, files: Files) -> None:
        """Have a skill ready for its place, or there already."""
        try:
            staged = await _blocking(self._stage, wanted, name, files, limiter=self._writers)
        except (UnacceptableError, ConflictError, OSError) as error:
            self._refuse_here(wanted, name, error)
            return
        if staged is None:
            self._became[name] = "unchanged"
        else:
            self._staged.append((wanted, staged))
        if len(self._staged) >= _BATCH:
            await self._commit()

    def _stage(self, wanted: WantedArtifact, name: str, files: Files) -> Staged | None:
        record = self._holdings.record(name, wanted.digest)
        with self._budget.taken(name, sum(len(raw) for raw, _ in files.values())):
            return self._folder.stage(record, files, force=True)

    async def _commit(self) -> None:
        """Give what is ready its place; several at once are synchronized together."""
        batch, self._staged = self._staged, []
        async with self._committing:
            failed = await _blocking(self._folder.commit, [staged for _, staged in batch])
        for wanted, staged in batch:
            error = failed.get(staged.name)
            if error is None:
                self._became[staged.name] = "added" if staged.state is SkillState.ABSENT else "updated"
            else:
                self._refuse_here(wanted, staged.name, error)

    def _lose(self, digest: str, name: str) -> None:
        """Note that an artifact does not bring this skill after all."""
        names = self._brought.pop(digest, None)
        if names is not None:
            self._partial[digest] = [each for each in names if each != name]

    def _refuse_here(self, wanted: WantedArtifact, name: str, error: Exception) -> None:
        reason = f"it cannot be kept: {error.strerror or error}" if isinstance(error, OSError) else str(error)
        self._refuse(wanted, name, reason, UsageError(reason))
        self._lose(wanted.digest, name)

    def _refuse(self, wanted: WantedArtifact, name: str, reason: str, error: SourceError | UsageError) -> None:
        fault: Fault = "publisher" if isinstance(error, ContentRefusedError) else "network"
        if isinstance(error, UsageError):
            fault = "here"
        self._refused.append((wanted.place, SkillRefusal(name, reason, fault)))
        failure = error if isinstance(error, SourceError) else UnreachableError(reason)
        self._first_failure = self._first_failure or failure

    def _finish(self, digest: str) -> Pulled:
        """Remember what is there, and take away what the manifest no longer has."""
        refused = [refusal for _, refusal in sorted(self._refused, key=lambda each: each[0])]
        pruned = self._prune({each.name for each in refused})
        revision = digest if all(each.fault == "publisher" for each in refused) else ""
        try:
            self._holdings.remember(
                revision, self._brought, self._partial, {each.name: each.reason for each in refused}
            )
        except OSError as error:
            reason = error.strerror or error
            self._warnings.append(f"what came cannot be remembered ({reason}); the next start asks for it anew")
        return Pulled(
            added=self._names("added"),
            updated=self._names("updated"),
            unchanged=self._names("unchanged"),
            pruned=pruned,
            refused=tuple(refused),
            warnings=tuple(self._warnings),
        )

    def _names(self, became: str) -> tuple[str, ...]:
        return tuple(sorted(name for name, state in self._became.items() if state == became))

    def _prune(self, refused: set[str]) -> tuple[str, ...]:
        """Remove the skills that the manifest no longer has, as far as it is known what it has."""
        if self._names_unknown:
            return ()
        kept, known = self._became.keys() | refused, self._folder.records()
        gone = [each.name for each in known if each.source == self._source and each.name not in kept]
        pruned: list[str] = []
        for name in gone:
            try:
                self._folder.remove(name, force=True)
                pruned.append(name)
            except (ConflictError, OSError) as error:
                self._warnings.append(f"{name}: it is gone from the registry, and stays: {error}")
        return tuple(pruned)


def _key(name: str) -> str:
    """Return a key that is equal for names that some platform cannot tell apart."""
    return normalize("NFC", name).casefold()


async def _blocking(call: Callable[..., _T], *arguments: object, limiter: anyio.CapacityLimiter | None = None) -> _T:
    return await to_thread.run_sync(partial(call, *arguments), limiter=limiter)


def _decoded(body: str) -> dict[str, Any]:
    try:
        return _mapping(json.loads(body))
    except (ValueError, RecursionError):
        return {}


def _mapping(found: object) -> dict[str, Any]:
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _names(found: object) -> list[str]:
    return [each for each in cast("list[object]", found) if isinstance(each, str)] if isinstance(found, list) else []
