"""Git source: the skills of a folder at one commit; only changed skills are fetched."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence, Set
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Final, NamedTuple, TypeVar

import anyio
from anyio import to_thread
from filelock import FileLock, Timeout

from mcp_skills_server.catalog.path_map import above, join
from mcp_skills_server.durable import read_regular
from mcp_skills_server.errors import UsageError, quoted
from mcp_skills_server.format import excerpts, media
from mcp_skills_server.format.archive import ArchiveRefusedError, Files, UnpackLimits
from mcp_skills_server.format.archive.tree import Tree, check_name, decode_name
from mcp_skills_server.format.file_names import folded
from mcp_skills_server.format.ignored import is_entered, is_ignored, summarize
from mcp_skills_server.sources.cache import CacheFolder
from mcp_skills_server.sources.git.address import is_commit, parse_address
from mcp_skills_server.sources.git.repository import MAX_PATHS_BYTES, Repository, Tip, TreeEntry
from mcp_skills_server.sources.grouping import group_by_skill, is_skill_md, root_name
from mcp_skills_server.sources.records import IndexRecord
from mcp_skills_server.sources.source import (
    PINNED_S,
    ContentRefusedError,
    Plan,
    Revision,
    RewrittenError,
    SkillRefusal,
    Source,
    SourceSettings,
    UnacceptableError,
    Unit,
    UnitContents,
    UnitIntake,
    UnreachableError,
)

_T = TypeVar("_T")
_LINK: Final = b"120000"
_SUBMODULE: Final = b"160000"
_EXECUTABLE: Final = b"100755"
_PIECE: Final = 1 << 20
_MAX_SIGNERS: Final = 1 << 20
_END_S: Final = 5.0
"""Seconds to wait for the output of a killed git to be read."""
_LOCK_POLL_S: Final = 0.1


class GitFolder(Source):
    """A folder of a git repository."""

    def __init__(self, given: str, settings: SourceSettings) -> None:
        self._address = parse_address(given, http=settings.fetch.trust.http)
        origin = self._address.shown
        if settings.pin is not None and not is_commit(settings.pin):
            raise UsageError(f"{origin}: {quoted(settings.pin)} is no commit; lock it again")
        # A copy verified against other signers, or none, is never served.
        self._signers = _signers_digest(settings.signers)
        asked = str(settings.hidden), settings.pin or "", self._signers
        self._kept = CacheFolder(settings.cache, "git", origin, *asked)
        seconds = settings.fetch.bounds.download_s, settings.fetch.limits.total_s
        self._repository = Repository(self._kept.path / "objects", self._address, *seconds)
        super().__init__(origin, settings.output or self._kept, settings)

    async def resolve(self, *, anew: bool = False) -> Revision:  # noqa: ARG002, it is always looked at
        """Resolve the address to a commit."""
        pin = self.settings.pin
        if pin is not None:
            return Revision(pin, PINNED_S, Tip(pin, ""))
        tip = await self._in_thread(self._repository.resolve)
        if not tip.name:
            return Revision(tip.commit, PINNED_S, tip)
        return Revision(tip.commit, self.check_s, tip)

    @asynccontextmanager
    async def plan(self, revision: Revision, known: IndexRecord) -> AsyncGenerator[Plan]:
        """Fetch the trees of the commit, check signature and history, and plan the skills."""
        # Processes that fetch into different folders share the objects.
        lock = FileLock(self._kept.path / "objects.lock", timeout=0, thread_local=False)
        end = anyio.current_time() + self.settings.fetch.limits.total_s
        while not lock.is_locked:
            try:
                lock.acquire()
            except Timeout:
                if anyio.current_time() > end:
                    raise UnreachableError("another process fetches it; wait for it") from None
                await anyio.sleep(_LOCK_POLL_S)
        try:
            yield await self._in_thread(self._plan, revision.content, known)
        finally:
            lock.release()

    async def _in_thread(self, function: Callable[..., _T], *given: object) -> _T:
        ended = threading.Event()

        def run() -> _T:
            try:
                return function(*given)
            finally:
                ended.set()

        try:
            return await to_thread.run_sync(run, abandon_on_cancel=True)
        except anyio.get_cancelled_exc_class():
            self._repository.git.end()
            with anyio.CancelScope(shield=True):  # the folder is unlocked after this
                await to_thread.run_sync(ended.wait, _END_S)
            raise

    def _plan(self, tip: Tip, known: IndexRecord) -> Plan:
        before = known.body if tip.name else ""
        self._repository.fetch(tip, before)
        if (signers := self.settings.signers) is not None:
            if _signers_digest(signers) != self._signers:
                fault = f"{signers} has changed; restart the server to accept new commits"
                raise UsageError(f"--require-signed-commits {fault}")
            self._repository.check_signature(tip.commit, signers)
        accepted = [*self._check_history(before, tip)]
        skills, touched, warnings = self._touched(tip, known) or self._all(tip)
        units: list[Unit] = []
        refused: list[SkillRefusal] = []
        for folder, skill in skills.items():
            name = folder or self._address.name
            if skill.fault:
                refused.append(SkillRefusal(name, skill.fault, "publisher"))
            elif folder:
                units.append(Unit(skill.key, name, (folder,), url=folder, item=skill))
            else:  # the skill's own name becomes its folder
                units.append(Unit(skill.key, name, is_named=False, item=skill))
        index = IndexRecord(self.key, self.origin, tip.name, body=tip.commit, revision=tip.commit)
        index = replace(index, warnings=tuple(warnings))

        async def fetch(run: UnitIntake, missing: Sequence[Unit]) -> None:
            await self._in_thread(self._put, run, tip, missing)

        return Plan(
            units,
            fetch,
            index,
            touched,
            refused=refused,
            refused_stay=False,
            is_atomic=True,
            warnings=accepted,
        )

    def _all(self, tip: Tip) -> tuple[dict[str, WantedSkill], None, Sequence[str]]:
        """Return all skills of a commit by folder, None, and the lines for the operator."""
        entries = self._repository.entries(tip.commit, self._address.folder)
        selected = select(entries, hidden=self.settings.hidden)
        limits, warnings = self.settings.fetch.limits, list[str]()
        if len(selected.skills) > limits.skills:
            raise UnacceptableError(f"it has more than {limits.skills} skills; name a #folder")
        if selected.in_dot_folders:
            folders = summarize(selected.in_dot_folders)
            warnings.append(
                f"skills lie in folders that begin with a dot ({folders}); --hidden serves them"
            )
        elif not selected.skills:
            warnings.append("it has no SKILL.md; name another #folder or @branch")
        if selected.elsewhere:
            warnings.append(
                f"links and submodules are not fetched ({summarize(selected.elsewhere)}); give "
                "what they lead to as a ROOT"
            )
        return selected.skills, None, warnings

    def _touched(
        self, tip: Tip, known: IndexRecord
    ) -> tuple[dict[str, WantedSkill], Set[str], Sequence[str]] | None:
        """Return the skills that a change of the held commit touches, the names, and the lines.

        None if all skills must be seen. Git's ids prove that the others are as they were checked.
        """
        folder, list_entries = self._address.folder, self._repository.entries
        if self.settings.output is not None or not known.body or self.held != known.body:
            return None
        paths = self._repository.changed(known.body, tip.commit, folder)
        around = {f"{up}/" for path in paths or () for up in above(path.rpartition("/")[0]) if up}
        if not paths or sum(map(len, around)) > MAX_PATHS_BYTES:
            return None
        commits, skill_folders = (known.body, tip.commit), set[str]()
        for commit in commits:
            # only the folders on the way to a change, without the trees below them
            listed = list_entries(commit, folder, deep=False)
            if around:
                listed += list_entries(commit, folder, sorted(around), deep=False)
            names = {entry.path.decode("utf-8", "surrogateescape") for entry in listed}
            if len(set(map(folded, names))) < len(names):
                return None  # of two such skills the first is served
            skill_folders |= {name.rpartition("/")[0] for name in names if is_skill_md(name)}
        # The outermost skill around a path, before or now, holds all that depends on the path.
        parts = {next((up for up in above(path) if up in skill_folders), path) for path in paths}
        if "" in parts:
            return None
        old, new = (
            select(list_entries(commit, folder, sorted(parts)), hidden=self.settings.hidden)
            for commit in commits
        )
        if any((old.in_dot_folders, old.elsewhere, new.in_dot_folders, new.elsewhere)):
            return None  # the lines for the operator name all of them, so `_all` has to write them
        total = known.skills + len(known.refused) - len(old.skills) + len(new.skills)
        if not 0 < total <= self.settings.fetch.limits.skills:
            return None
        return new.skills, old.skills.keys() | new.skills.keys(), known.warnings

    def _put(self, intake: UnitIntake, tip: Tip, missing: Sequence[Unit]) -> None:
        """Pass the files of these skills to the intake, as one `git cat-file` streams them."""
        ids = [file.object_id for unit in missing for file in unit.item.files]
        if not ids:
            return
        folders = [join(self._address.folder, unit.item.folder) for unit in missing]
        if sum(map(len, folders)) > MAX_PATHS_BYTES:
            folders = [self._address.folder]
        self._repository.fetch_blobs(tip, ids, [f"{tip.commit}:{folder}" for folder in folders])
        limits = self.settings.fetch.limits.skill
        with self._repository.blobs(ids) as out:
            for unit in missing:
                skill: WantedSkill = unit.item
                try:
                    files, pointers = read_files(skill, out, limits)
                except ArchiveRefusedError as error:
                    intake.refuse(unit, ContentRefusedError(str(error)))
                    continue
                except EOFError:
                    self._repository.clear()
                    raise UnreachableError("not all of its files came") from None
                name = skill.folder or root_name(files, [self._address.name]) or "skill"
                notes: tuple[str, ...] = ()
                if left_out := sorted(skill.left_out):
                    notes = (f"{name}: not served, because of their names: {summarize(left_out)}",)
                intake.put(unit, UnitContents({name: files}, {}, notes, tuple(pointers)))
        if intake.is_full:
            most = self.settings.fetch.limits.unpacked_bytes
            raise UnacceptableError(f"its skills have more than {most:,} bytes; name a #folder")

    def _check_history(self, before: str, tip: Tip) -> Sequence[str]:
        """Reject a rewritten branch or a moved tag, or return a warning where that is accepted."""
        if before in {"", tip.commit} or not tip.name:
            return ()
        if tip.name.startswith("refs/tags/"):
            tag = tip.name.removeprefix("refs/tags/")
            words = f"the tag {tag!r} was moved from {before[:12]} to {tip.commit[:12]}"
        elif self._repository.follows(tip, before):
            return ()
        else:
            name = tip.name.removeprefix("refs/heads/")
            words = f"{name!r} was rewritten: {tip.commit[:12]} does not follow {before[:12]}"
        if self.settings.rewritten:
            return (words,)
        raise RewrittenError(f"{words}; 'list ROOT' or 'update' with --accept-rewritten takes it")


def _signers_digest(path: Path | None) -> str:
    """Return a digest of the file of signers, "" for no file."""
    if path is None:
        return ""
    try:
        return hashlib.sha256(read_regular(path, _MAX_SIGNERS)[0]).hexdigest()
    except OSError as error:
        reason = error.strerror or error
        raise UsageError(
            f"--require-signed-commits {path} cannot be read ({reason}); name a file of signers"
        ) from None


# Selecting the skills of a commit


class WantedFile(NamedTuple):
    """A file of a skill in a commit, by its path in the skill."""

    path: str
    object_id: str
    is_executable: bool


@dataclass(slots=True)
class WantedSkill:
    """A skill folder in a commit, nested skills included.

    `folder` is "" for the served folder itself; `left_out` has the files that are never served;
    `fault` is the reason to refuse the skill; `key` is the fingerprint of its files.
    """

    folder: str
    files: list[WantedFile] = field(default_factory=list[WantedFile])
    left_out: list[str] = field(default_factory=list[str])
    fault: str | None = None
    key: str = ""


class Selected(NamedTuple):
    """The skills among entries, by folder, and the paths of what may hold further ones."""

    skills: dict[str, WantedSkill]
    in_dot_folders: list[str]  # skill folders
    elsewhere: list[str]  # links and submodules beside skills


def select(entries: Iterable[TreeEntry], *, hidden: bool) -> Selected:
    """Select the skills of a commit.

    The commit alone decides, so every machine selects the same files. A skill with a file that no
    archive may hold is refused by itself.
    """
    files: dict[str, list[TreeEntry]] = {}  # a hostile tree may repeat a name
    for entry in entries:
        files.setdefault(entry.path.decode("utf-8", "surrogateescape"), []).append(entry)
    grouped, rest = group_by_skill(files, hidden=hidden)
    skills: dict[str, WantedSkill] = {}
    for folder, members in grouped.items():
        skill = skills[folder] = WantedSkill(folder)
        for same_path in members.values():
            for entry in same_path:
                _add(skill, entry)
    passed = sorted(path.rpartition("/")[0] for path in rest if is_skill_md(path))
    elsewhere = sorted(
        path
        for path in rest
        if files[path][0].mode in {_LINK, _SUBMODULE}
        and all(is_entered(part, hidden=hidden) for part in path.split("/") if part)
    )
    for skill in skills.values():
        wanted = sorted(skill.files)
        lines = [f"{file.is_executable:d} {file.object_id} {file.path}\0" for file in wanted]
        lines += [f"{path}\0" for path in sorted(skill.left_out)]
        listed = "".join((f"{skill.folder}\0{skill.fault}\0", *lines))
        skill.key = hashlib.sha256(listed.encode("utf-8", "surrogateescape")).hexdigest()
    return Selected(skills, passed, elsewhere)


def read_files(skill: WantedSkill, out: IO[bytes], limits: UnpackLimits) -> tuple[Files, list[str]]:
    """Read a skill's files and Git LFS pointer paths from `git cat-file --batch`.

    Consumes all output for the skill, even if the skill is refused.

    Raises:
        ArchiveRefusedError: the skill exceeds a limit, or some platform cannot hold its name.
        EOFError: the output is malformed or truncated.
    """
    tree, refused, pointers = Tree(limits), None, list[str]()
    for file in skill.files:
        size = _size(out.readline(), file.object_id)
        if refused is None:
            try:
                tree.reserve(file.path, size)
            except ArchiveRefusedError as error:
                refused = error
        if refused is not None:
            _skip(out, size + 1)
            continue
        raw = out.read(size + 1)
        if len(raw) != size + 1:
            raise EOFError
        raw = raw[:-1]
        if media.is_lfs_pointer(raw):
            pointers.append(file.path)
        tree.store(file.path, raw, file.is_executable)
    if refused is not None:
        raise refused
    return tree.finish(), pointers


def _add(skill: WantedSkill, entry: TreeEntry) -> None:
    try:
        path = decode_name(entry.path)
        path = path[len(skill.folder) + 1 :] if skill.folder else path
        # before ignored names are dropped: `../x` is an attack, no forgotten file
        check_name(path)
    except ArchiveRefusedError as error:
        skill.fault = skill.fault or str(error)
        return
    if any(is_ignored(part) for part in path.split("/") if part):
        skill.left_out.append(path)
    elif entry.mode == _LINK:
        skill.fault = skill.fault or f"{excerpts.quoted(path)} is a symbolic link"
    elif entry.mode == _SUBMODULE:
        skill.fault = skill.fault or f"{excerpts.quoted(path)} is a submodule, another repository"
    else:
        skill.files.append(WantedFile(path, entry.object_id, entry.mode == _EXECUTABLE))


def _size(head: bytes, object_id: str) -> int:
    """Parse the size in an object's header; raise EOFError for another object."""
    parts = head.split()
    if len(parts) != 3 or parts[:2] != [object_id.encode(), b"blob"]:
        raise EOFError
    return int(parts[2])


def _skip(out: IO[bytes], size: int) -> None:
    while size:
        piece = out.read(min(size, _PIECE))
        if not piece:
            raise EOFError
        size -= len(piece)
