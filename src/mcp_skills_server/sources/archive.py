"""Archive source: a local archive, unpacked as a tree and again when it changes."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path
from typing import Final

from anyio import to_thread

from mcp_skills_server.format import archive
from mcp_skills_server.format.archive import ArchiveRefusedError, Files, UnpackLimits
from mcp_skills_server.format.ignored import some_of, unserved
from mcp_skills_server.model import SKILL_MD, printable
from mcp_skills_server.sources.faults import UnacceptableError, UnreachableError
from mcp_skills_server.sources.files import BINARY
from mcp_skills_server.sources.settings import SourceSettings
from mcp_skills_server.sources.source import NO_DIFFERENCE, Pace, Revision, SourceTree, TreeChanges
from mcp_skills_server.sources.store import Store

LIMITS: Final = UnpackLimits(files=50_000, bytes=1 << 30, file=64 << 20)
"""Of an archive that holds many skills; the limits of a skill are the scan's matter."""
_CHECK_S: Final = 1.0
"""Between two looks, each of which costs one `stat`."""
_LAST_RETRY_S: Final = 60.0
_MOST_BYTES: Final = LIMITS.bytes + (64 << 20)


class Archive:
    """One archive.

    Args:
        given: its path.
        settings: whether skills in dot folders are served, too.
    """

    remote: bool = False
    place: Path | None = None
    pace: Pace | None = Pace(_CHECK_S, _CHECK_S, _LAST_RETRY_S)
    refresh_s: float | None = None

    def __init__(self, given: str, settings: SourceSettings) -> None:
        self.origin = given
        self._hidden = settings.hidden
        self._seen: tuple[int, ...] | None = None
        self._digest = ""
        self._skills: dict[str, str] = {}
        """The digest over the files of each skill of the tree that was unpacked last, by its folder."""

    async def resolve(self, *, anew: bool = False) -> Revision:  # noqa: ARG002, it is always looked at
        """Return the digest of the archive, which is read again if its stat result changed.

        Raises:
            UnreachableError: it cannot be read.
        """
        return await to_thread.run_sync(self._resolve)

    async def materialise(self, revision: Revision, store: Store) -> SourceTree:
        """Unpack it.

        Raises:
            UnacceptableError: it is refused, until it changes.
            UnreachableError: it cannot be unpacked here now.
        """
        return await to_thread.run_sync(self._unpack, revision, store)

    def _resolve(self) -> Revision:
        try:
            found = os.stat(self.origin)
        except OSError as error:
            raise UnreachableError(f"cannot be unpacked ({error.strerror or error})") from None
        seen = (found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino)
        raw = None
        if seen != self._seen:
            raw = self._read()
            self._seen, self._digest = seen, hashlib.sha256(raw).hexdigest()
        return Revision(self._digest, _CHECK_S, raw)

    def _read(self) -> bytes:
        try:
            # Whoever puts a FIFO in its place must not have us wait for a writer.
            with open(os.open(self.origin, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | BINARY), "rb") as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    raise UnreachableError("cannot be unpacked (it is no regular file)")
                raw = file.read(_MOST_BYTES + 1)
        except OSError as error:
            raise UnreachableError(f"cannot be unpacked ({error.strerror or error})") from None
        if len(raw) > _MOST_BYTES:
            raise UnacceptableError(f"cannot be unpacked (it has more than {_MOST_BYTES:,} bytes)")
        return raw

    def _unpack(self, revision: Revision, store: Store) -> SourceTree:
        raw = self._read() if revision.content is None else revision.content
        if hashlib.sha256(raw).hexdigest() != revision.digest:
            raise UnreachableError("cannot be unpacked (it changed meanwhile)")
        try:
            files = archive.unpack(raw, LIMITS)
            left_out = unserved(files, hidden=self._hidden)
            for path in left_out:
                del files[path]
            tree = store.put(revision.digest, files)
            difference = self._difference(files)
        except OSError as error:
            raise UnreachableError(f"cannot be unpacked ({error.strerror or error})") from None
        except ArchiveRefusedError as error:
            raise UnacceptableError(f"cannot be unpacked ({error})") from None
        # An archive of a repository has some, and nobody signed it as a whole.
        warnings = (f"left out what is never served: {some_of(left_out)}",) if left_out else ()
        return SourceTree(tree, difference, warnings)

    def _difference(self, files: Files) -> TreeChanges:
        """Return which skills are others than in the last tree; of the first tree none are."""
        before, now = self._skills, _digests(files)
        self._skills = now
        if not before:
            return NO_DIFFERENCE
        added, removed = sorted(now.keys() - before.keys()), sorted(before.keys() - now.keys())
        changed = sorted(each for each in now.keys() & before.keys() if now[each] != before[each])
        return TreeChanges(
            "", tuple(map(printable, added)), tuple(map(printable, changed)), tuple(map(printable, removed))
        )


def _digests(files: Files) -> dict[str, str]:
    """Return a digest over the files of each outermost skill folder, by that folder."""
    tops: list[str] = []
    for path in sorted(each.removesuffix(SKILL_MD) for each in files if f"/{each}".endswith(f"/{SKILL_MD}")):
        if not path.startswith(tuple(tops)):
            tops.append(path)
    found = {top: hashlib.sha256() for top in tops}
    for path, (raw, executable) in sorted(files.items()):
        top = next((each for each in tops if path.startswith(each)), None)
        if top is not None:
            found[top].update(f"{path}\0{executable}\0{len(raw)}\0".encode() + raw)
    return {top.rstrip("/") or "skill": digest.hexdigest() for top, digest in found.items()}


def is_archive_file(given: str) -> bool:
    """Tell whether this is a file that is called like an archive."""
    return archive.is_archive(given) and os.path.isfile(given)
