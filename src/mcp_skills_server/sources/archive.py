"""Archive source: unpacks a local archive into a folder, and again when it changes."""

from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final

from anyio import to_thread

from mcp_skills_server.catalog.disk import signature
from mcp_skills_server.durable import read_regular
from mcp_skills_server.format import archive
from mcp_skills_server.format.archive import ArchiveRefusedError, UnpackLimits
from mcp_skills_server.format.ignored import summarize, unserved
from mcp_skills_server.sources.cache import PrivateFolder, make_own
from mcp_skills_server.sources.grouping import group_by_skill, root_name
from mcp_skills_server.sources.reconcile import fetching
from mcp_skills_server.sources.records import IndexRecord
from mcp_skills_server.sources.source import (
    Plan,
    Revision,
    Source,
    SourceSettings,
    UnacceptableError,
    Unit,
    UnitContents,
    UnreachableError,
)

LIMITS: Final = UnpackLimits(files=50_000, bytes=1 << 30, file=64 << 20)
"""Limits of an archive that holds many skills; the scan enforces the limits of each skill."""
_CHECK_S: Final = 1.0
"""Seconds between two polls, each of which costs one `stat`."""
_MAX_BYTES: Final = LIMITS.bytes + (64 << 20)


class Archive(Source):
    """A local archive."""

    remote = False
    own_check_s = _CHECK_S
    last_retry_s = 60.0

    def __init__(self, given: str, settings: SourceSettings) -> None:
        super().__init__(given, settings.output or PrivateFolder(), settings)
        self._seen = ""
        self._digest = ""

    async def resolve(self, *, anew: bool = False) -> Revision:  # noqa: ARG002, it is always looked at
        """Return the digest of the archive, reading it again only if its stat signature changed."""
        with _refusing():
            return await to_thread.run_sync(self._resolve)

    @asynccontextmanager
    async def plan(self, revision: Revision, known: IndexRecord) -> AsyncGenerator[Plan]:  # noqa: ARG002
        """Unpack the archive into a plan."""
        with _refusing():
            plan = await to_thread.run_sync(self._plan, revision)
        yield plan

    def _resolve(self) -> Revision:
        status = os.stat(self.origin)
        if self.settings.output is None:
            make_own(self.place)  # a cleaner of old temporary files may have removed it
        raw = None
        if signature(status) != self._seen:
            raw, _ = read_regular(self.origin, _MAX_BYTES)  # never blocks, even on a FIFO
            self._seen, self._digest = signature(status), hashlib.sha256(raw).hexdigest()
        return Revision(self._digest, _CHECK_S, raw)

    def _plan(self, revision: Revision) -> Plan:
        raw = revision.content
        if raw is None:
            raw, _ = read_regular(self.origin, _MAX_BYTES)
        if hashlib.sha256(raw).hexdigest() != revision.digest:
            raise OSError("it changed meanwhile")
        files, hidden = archive.unpack(raw, LIMITS), self.settings.hidden
        left_out = unserved(files, hidden=hidden)
        served = {path: files[path] for path in files.keys() - {*left_out}}
        skills, _ = group_by_skill(served, hidden=hidden)
        # Only warn: an archive of a repository has such files, and is not signed as a whole.
        warnings = (
            (f"not served, because of their names: {summarize(left_out)}",) if left_out else ()
        )
        units: list[Unit] = []
        for folder, skill in skills.items():
            name = folder or root_name(skill, [Path(self.origin).name.partition(".")[0]]) or "skill"
            # no fingerprint: the digest of the whole archive is the revision
            units.append(Unit(fingerprint="", label=name, names=(name,), item=skill))
        index = IndexRecord(self.key, self.origin, revision=revision.digest, warnings=warnings)
        return Plan(units, fetching(self._fetch), index, is_atomic=True, is_one=True)

    async def _fetch(self, unit: Unit) -> UnitContents:
        return UnitContents({unit.label: unit.item})


@contextmanager
def _refusing() -> Generator[None]:
    try:
        yield
    except ArchiveRefusedError as error:
        raise UnacceptableError(f"cannot be unpacked ({error})") from None
    except OSError as error:
        raise UnreachableError(f"cannot be unpacked ({error.strerror or error})") from None


def is_archive_file(given: str) -> bool:
    """Tell whether this is a file with the suffix of an archive."""
    return archive.is_archive(given) and os.path.isfile(given)
