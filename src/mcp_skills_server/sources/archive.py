"""Archive source: a local archive, unpacked into a folder of this process and again when it changes."""

from __future__ import annotations

import hashlib
import os
from functools import partial
from pathlib import Path
from typing import Final

from anyio import to_thread

from mcp_skills_server.catalog.disk import signature
from mcp_skills_server.durable import read_regular
from mcp_skills_server.errors import UsageError
from mcp_skills_server.format import archive
from mcp_skills_server.format.archive import ArchiveRefusedError, UnpackLimits
from mcp_skills_server.format.ignored import some_of, unserved
from mcp_skills_server.sources.cache import make_own, private_folder
from mcp_skills_server.sources.folder import FetchedFolder
from mcp_skills_server.sources.grouping import group_by_skill, root_name
from mcp_skills_server.sources.reconcile import Bundle, Reconciler, Unit
from mcp_skills_server.sources.records import IndexRecord
from mcp_skills_server.sources.source import (
    FetchReport,
    Pace,
    Revision,
    SourceError,
    SourceSettings,
    UnacceptableError,
    UnreachableError,
)

LIMITS: Final = UnpackLimits(files=50_000, bytes=1 << 30, file=64 << 20)
"""Of an archive that holds many skills; the limits of a skill are the scan's matter."""
_CHECK_S: Final = 1.0
"""Between two looks, each of which costs one `stat`."""
_LAST_RETRY_S: Final = 60.0
_MOST_BYTES: Final = LIMITS.bytes + (64 << 20)


class Archive:
    """One archive."""

    remote: bool = False
    pace: Pace = Pace(_CHECK_S, _CHECK_S, _LAST_RETRY_S)
    refresh_s: float | None = None

    def __init__(self, given: str, settings: SourceSettings) -> None:
        self.origin = given
        self.place: Path = private_folder()
        self._settings = settings.fetch
        self._hidden = settings.hidden
        self._seen = ""
        self._digest = ""

    async def resolve(self, *, anew: bool = False) -> Revision:  # noqa: ARG002, it is always looked at
        """Return the digest of the archive, which is read again if its stat signature changed."""
        return await to_thread.run_sync(self._resolve)

    async def bring(self, revision: Revision) -> FetchReport:
        """Unpack it."""
        try:
            return await to_thread.run_sync(self._unpack, revision)
        except SourceError:
            raise
        except ArchiveRefusedError as error:
            raise UnacceptableError(f"cannot be unpacked ({error})") from None
        except (OSError, UsageError) as error:
            reason = getattr(error, "strerror", None) or error
            raise UnreachableError(f"cannot be unpacked ({reason})") from None

    def _resolve(self) -> Revision:
        try:
            found = os.stat(self.origin)
        except OSError as error:
            raise UnreachableError(f"cannot be unpacked ({error.strerror or error})") from None
        raw = None
        if signature(found) != self._seen:
            raw = self._read()
            self._seen, self._digest = signature(found), hashlib.sha256(raw).hexdigest()
        return Revision(self._digest, _CHECK_S, raw)

    def _read(self) -> bytes:
        try:
            raw, _ = read_regular(self.origin, _MOST_BYTES)  # of a FIFO in its place it waits for no writer
        except OSError as error:
            raise UnreachableError(f"cannot be unpacked ({error.strerror or error})") from None
        if len(raw) > _MOST_BYTES:
            raise UnacceptableError(f"cannot be unpacked (it has more than {_MOST_BYTES:,} bytes)")
        return raw

    def _unpack(self, revision: Revision) -> FetchReport:
        raw = revision.content
        if raw is None:
            raw = self._read()
        if hashlib.sha256(raw).hexdigest() != revision.digest:
            raise UnreachableError("cannot be unpacked (it changed meanwhile)")
        files = archive.unpack(raw, LIMITS)
        left_out = unserved(files, hidden=self._hidden)
        skills, _ = group_by_skill({path: files[path] for path in files.keys() - {*left_out}}, hidden=self._hidden)
        # An archive of a repository has some, and no publisher vouches for it as a whole.
        warnings = (f"left out what is never served: {some_of(left_out)}",) if left_out else ()
        make_own(self.place)  # what clears old temporary files may have removed it
        with FetchedFolder.opened(self.place) as folder:
            reconciler = Reconciler(folder, self.origin, self._settings, is_cache=True, is_atomic=True)
            bundles: dict[Unit, Bundle] = {}
            for place, found in skills.items():
                name = place or root_name(found, [Path(self.origin).name.partition(".")[0]]) or "skill"
                bundles[Unit("", name, (name,))] = Bundle({name: found})
            for unit in reconciler.plan([*bundles]):
                reconciler.put(unit, partial(bundles.__getitem__, unit))
            index = IndexRecord(self.origin, self.origin, revision=revision.digest, warnings=warnings)
            report = reconciler.finish(index)
        if reconciler.failure is not None:
            refusal = UnacceptableError if reconciler.failure.fault == "publisher" else UnreachableError
            raise refusal(f"cannot be unpacked ({reconciler.failure.reason})")
        return report


def is_archive_file(given: str) -> bool:
    """Tell whether this is a file with the suffix of an archive."""
    return archive.is_archive(given) and os.path.isfile(given)
