"""Git source: the skills of a folder at one commit; only those that differ are fetched and written."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeVar

import anyio
from anyio import to_thread
from filelock import FileLock, Timeout

from mcp_skills_server.codes import problem
from mcp_skills_server.durable import read_regular
from mcp_skills_server.errors import UsageError, quoted
from mcp_skills_server.format import frontmatter, lfs
from mcp_skills_server.format.archive import ArchiveRefusedError, Files, UnpackLimits, check_paths
from mcp_skills_server.format.ignored import is_ignored, some_of
from mcp_skills_server.model import SKILL_MD, printable
from mcp_skills_server.sources.cache import CacheFolder
from mcp_skills_server.sources.faults import RewrittenError, SourceError, UnacceptableError, UnreachableError
from mcp_skills_server.sources.git.address import is_commit, parse_address
from mcp_skills_server.sources.git.place import Kept, TreeRecord, WorkingTree
from mcp_skills_server.sources.git.repository import Repository, Tip
from mcp_skills_server.sources.git.selection import Selection, WantedSkill, read_files, select
from mcp_skills_server.sources.report import REFUSED
from mcp_skills_server.sources.settings import SourceSettings
from mcp_skills_server.sources.source import LAST_RETRY_S, NO_DIFFERENCE, Pace, Revision, SourceTree, TreeChanges
from mcp_skills_server.sources.store import Store

_T = TypeVar("_T")
_FIRST_RETRY_S: Final = 30.0
_MOST_SIGNERS: Final = 1 << 20
_PINNED_S: Final = 86_400.0
"""A commit never changes; what somebody did to the copy of it is still put right once a day."""


class GitFolder:
    """One folder of one repository.

    Args:
        given: its address.
        settings: where its copy is, how often it is looked at, whose commits are taken.

    Raises:
        UsageError: it is no address, or the cache cannot be written.
    """

    trusted: bool = False
    remote: bool = True

    def __init__(self, given: str, settings: SourceSettings) -> None:
        self._address = parse_address(given, http=settings.fetch.trust.http)
        self.origin = self._address.shown
        self._settings = settings
        if settings.pin is not None and not is_commit(settings.pin):
            raise UsageError(f"{self.origin}: {quoted(settings.pin)} is no commit; lock it again")
        signers = settings.signers
        # What was not asked about signatures, or asked of others, is another copy: nothing of it is served first.
        asked = "" if signers is None else hashlib.sha256(_read(signers)).hexdigest()
        self._kept = CacheFolder(settings.cache, "git", self.origin, str(settings.hidden), settings.pin or "", asked)
        self._directory = self._kept.path
        self._place = WorkingTree(self._directory)
        self.place: Path | None = self._place.path
        self.refresh_s: float | None = settings.refresh_s
        self._lock = FileLock(self._directory / "lock", timeout=0)
        self._repository = Repository(
            self._directory / "objects",
            self._address,
            resolve_s=settings.fetch.bounds.download_s,
            fetch_s=settings.fetch.limits.total_s,
        )
        self._proved: TreeRecord | None = None
        self._place.make()
        if self._place.is_unfinished:  # what is served until the source answers must be whole
            with suppress(UsageError), self._alone():
                self._place.recover(self._place.read())

    @property
    def pace(self) -> Pace:
        """How often to poll."""
        every = self.refresh_s or self._settings.refresh_s
        return Pace(every, min(every, _FIRST_RETRY_S), max(every, LAST_RETRY_S))

    async def resolve(self, *, anew: bool = False) -> Revision:  # noqa: ARG002, it is always looked at
        """Resolve the address to a commit.

        Raises:
            SourceError: that cannot be known now, or there is none.
        """
        pin = self._settings.pin
        tip = Tip(pin, "") if pin is not None else await self._in_thread(self._repository.resolve)
        return Revision(tip.commit, self.pace.check_s if tip.name else _PINNED_S, tip)

    async def materialise(self, revision: Revision, store: Store) -> SourceTree:  # noqa: ARG002, it has a folder of its own
        """Have its folder be what the commit has.

        Raises:
            UnacceptableError: the commit has no such folder, is not signed as it must be, or was put in the place of
                another one that it does not follow.
            SourceError: it cannot be had now.
            UsageError: another process fetches it.
        """
        return await self._in_thread(self._bring, revision.content)

    async def _in_thread(self, function: Callable[..., _T], *given: object) -> _T:
        try:
            return await to_thread.run_sync(function, *given, abandon_on_cancel=True)
        except anyio.get_cancelled_exc_class():
            self._repository.end()
            raise

    def _bring(self, tip: Tip) -> SourceTree:
        record = self._place.read()
        if record.commit == tip.commit and (record is self._proved or not self._place.changed(record)):
            self._proved = record
            return self._tree(record)
        try:
            with self._alone():
                return self._update(tip)
        except SourceError:
            raise
        except OSError as error:
            raise UnreachableError(f"cannot be written ({error.strerror or error})") from None

    @contextmanager
    def _alone(self) -> Generator[None]:
        try:
            with self._lock:
                yield
        except Timeout:
            raise UsageError(f"another process fetches {self.origin}; wait for it to end") from None

    def _update(self, tip: Tip) -> SourceTree:
        record = self._place.read()
        self._place.recover(record)
        self._repository.fetch(tip)
        if self._settings.signers is not None:
            self._repository.check_signature(tip.commit, self._settings.signers)
        rewritten = self._check_history(record, tip)
        found = select(self._repository.entries(tip.commit, self._address.folder), hidden=self._settings.hidden)
        limits = self._settings.fetch.limits
        if len(found.skills) > limits.skills:
            raise UnacceptableError(f"it has more than {limits.skills} skills; name a folder with #")
        damaged = self._place.changed(record)
        kept = {
            folder: known
            for folder, known in record.skills.items()
            if folder not in damaged and folder in found.skills and found.skills[folder].key == known.key
        }
        refused = {
            folder: (skill.key, skill.fault or record.refused[folder][1])
            for folder, skill in found.skills.items()
            if skill.fault or record.refused.get(folder, ("",))[0] == skill.key
        }
        wanted = [skill for folder, skill in found.skills.items() if folder not in kept and folder not in refused]
        fresh: dict[str, Kept] = {}
        for skill, files, notes, pointers in self._files(tip, wanted, used=_size(kept.values())):
            if isinstance(files, str):
                refused[skill.folder] = skill.key, files
                continue
            kept_now = self._place.stage(skill.folder or self._name(files), skill.key, files)
            fresh[skill.folder] = replace(kept_now, notes=tuple(notes), pointers=tuple(pointers))
        skills = kept | fresh
        staying = {each.place for each in skills.values()}
        gone = [known.place for known in record.skills.values() if known.place not in staying]
        self._place.swap(gone, [each.place for each in fresh.values()])
        warnings = (*_warnings(found), *rewritten)
        fresh_record = TreeRecord(tip.commit, tip.name, skills, refused, warnings)
        self._place.remove_others(fresh_record)
        self._place.write(fresh_record)
        self._proved = self._place.read()
        names = {
            what: tuple(printable(folder or self._address.name) for folder in sorted(folders))
            for what, folders in (
                ("added", fresh.keys() - record.skills.keys()),
                ("changed", fresh.keys() & record.skills.keys()),
                ("removed", record.skills.keys() - skills.keys()),
            )
        }
        return self._tree(self._proved, TreeChanges(record.commit, **names))

    def _check_history(self, record: TreeRecord, tip: Tip) -> Sequence[str]:
        """Refuse a commit that was put in the place of the one that is served; or say so, where that is accepted."""
        before = record.commit
        if before in {"", tip.commit} or not tip.name or not record.name:
            return ()
        if tip.name.startswith("refs/tags/"):
            words = f"the tag {tip.name.removeprefix('refs/tags/')!r} was moved from {before[:12]} to {tip.commit[:12]}"
        elif self._repository.follows(tip, before):
            return ()
        else:
            name = tip.name.removeprefix("refs/heads/")
            words = f"{name!r} was rewritten: {tip.commit[:12]} does not follow {before[:12]}"
        if self._settings.rewritten:
            return (words,)
        raise RewrittenError(f"{words}; 'list ROOT --accept-rewritten' or 'update --accept-rewritten' takes it")

    def _files(
        self, tip: Tip, wanted: Sequence[WantedSkill], *, used: int
    ) -> Generator[tuple[WantedSkill, Files | str, list[str], list[str]]]:
        """Yield each skill with its files or refusal, its notes, and its Git LFS pointers."""
        ids = [object_id for skill in wanted for _, object_id, _ in skill.files]
        if not ids:
            return
        self._repository.fetch_blobs(tip, ids)
        limits = self._settings.fetch.limits
        left = limits.unpacked_bytes - used
        with self._repository.blobs(ids) as out:
            for skill in wanted:
                notes = [f"left out what is never served: {some_of(sorted(skill.left_out))}"] if skill.left_out else []
                try:
                    files, pointers = read_files(skill, out, UnpackLimits(bytes=limits.skill_bytes))
                except ArchiveRefusedError as error:
                    yield skill, str(error), notes, []
                    continue
                except EOFError:
                    self._repository.clear()
                    raise UnreachableError("not all of its files came") from None
                left -= sum(len(raw) for raw, _ in files.values())
                if left < 0:
                    raise UnacceptableError(
                        f"its skills have more than {limits.unpacked_bytes:,} bytes; name a folder with #"
                    )
                yield skill, files, notes, pointers

    def _name(self, files: Files) -> str:
        """Return the folder name of a skill at the root of the repository, by its own name."""
        raw = next((raw for path, (raw, _) in files.items() if path == SKILL_MD), b"")
        document = frontmatter.parse(raw)
        for name in ((document.frontmatter or {}).get("name"), self._address.name):
            if isinstance(name, str) and name and "/" not in name and not is_ignored(name):
                try:
                    check_paths([name])
                except ArchiveRefusedError:
                    continue
                return name
        return "skill"

    def _tree(self, record: TreeRecord, difference: TreeChanges = NO_DIFFERENCE) -> SourceTree:
        warnings = [*record.warnings]
        warnings += [f"{each.place}: {note}" for each in record.skills.values() for note in each.notes]
        problems = [
            problem(REFUSED, printable(why)).at(
                f"{self.origin}/{printable(folder or self._address.name)}", printable(folder or self._address.name)
            )
            for folder, (_, why) in record.refused.items()
        ]
        problems += [  # as `validate` finds them, which reads every file
            problem("lfs-pointer", lfs.FAULT, 1).at(f"{self.origin}/{each.place}/{path}", each.place)
            for each in record.skills.values()
            for path in each.pointers
        ]
        return SourceTree(self._place.path, difference, tuple(map(printable, warnings)), problems=tuple(problems))


def _warnings(found: Selection) -> Sequence[str]:
    if found.passed:
        places = some_of(list(found.passed))
        return (f"skills lie in folders whose names begin with a dot ({places}); --hidden serves them",)
    return () if found.skills else ("it has no SKILL.md; name another folder with #, or another branch with @",)


def _size(kept: Iterable[Kept]) -> int:
    return sum(signature[0] for each in kept for signature in each.files.values())


def _read(path: Path) -> bytes:
    try:
        return read_regular(path, _MOST_SIGNERS)[0]
    except OSError as error:
        reason = error.strerror or error
        raise UsageError(
            f"--require-signed-commits {path} cannot be read ({reason}); name a file of allowed signers"
        ) from None
