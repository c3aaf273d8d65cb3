"""Files of one scan: each keeps its object from the last scan while its bytes are the same."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Set

from mcp_skills_server.catalog import disk
from mcp_skills_server.catalog.path_map import above, join, within
from mcp_skills_server.catalog.roots import Root
from mcp_skills_server.model import SKILL_MD, Skill, SkillFile

logger = logging.getLogger(__name__)


class ScannedFiles:
    """The files that one scan of a root meets.

    Args:
        known: the skills of the last scan, or of the index.
        most_bytes: a larger file is not read.
        nested: the directories of nested skills, to which the scan adds.
    """

    def __init__(
        self, root: Root, known: Iterable[Skill], most_bytes: int, nested: Set[str]
    ) -> None:
        self.reads = 0
        """Number of files that were read."""
        self._root = root
        self._most_bytes = most_bytes
        self._nested = nested
        self._known = {file.location: file for skill in known for file in skill.files.values()}
        self._taken: dict[str, SkillFile] = {}
        self._linked: dict[str, SkillFile | None] = {}

    def unchanged(self, found: SkillFile) -> SkillFile | None:
        """Return the known file at this location if its signature is the same, or None.

        An index may be wrong about a file: `Reader.read` hashes all it reads, so no bytes are
        served under another digest.
        """
        old = self._taken.get(found.location) or self._known.get(found.location)
        if old is None or not old.digest or old.signature != found.signature:
            return None
        if not (old.mtime_reliable and found.mtime_reliable):  # young, or the clock was set back
            return None
        old.executable = found.executable
        self._taken[found.location] = old
        return old

    def take(self, found: SkillFile) -> SkillFile:
        """Return the object of a file: the known one if the bytes are the same.

        A file that cannot be read has no digest.

        Raises:
            OSError: the process ran out of descriptors or memory.
        """
        taken = self._taken.get(found.location) or self.unchanged(found)
        if taken is not None:
            return taken
        old = self._known.get(found.location)
        if not found.digest:
            try:
                self.read(found)
            except OSError as error:
                if error.errno in disk.TRANSIENT_ERRORS:
                    raise
                is_news = old is None or old.digest
                # an unreadable SKILL.md has a problem of its own
                if is_news and not found.location.endswith(SKILL_MD):
                    text = "a file of a skill is not served: %s: %s"
                    logger.warning(text, error.strerror, error.filename)
        if old is not None and (old.digest, old.size) == (found.digest, found.size):
            old.signature, old.mtime_reliable = found.signature, found.mtime_reliable
            old.executable = found.executable
            found = old
        self._taken[found.location] = found
        return found

    def read(self, found: SkillFile) -> bytes:
        """Read a file and record its digest; raise OSError if it is unreadable."""
        self.reads += 1
        located = self._root.locate(found.location)
        return disk.ingest(located.base, located.rest, found, self._most_bytes)

    def linked(self, directory: str, name: str) -> SkillFile | None:
        """Return the file in its root that a link leads to, or None.

        A link into a nested skill from outside yields None: it would bypass the grants.
        """
        location = join(directory, name)
        if location not in self._linked:
            located = self._root.locate(directory)
            target = disk.resolve_link(located.base, self._root.index, located.rest, name)
            if target is not None and located.link:
                target.location = join(located.link, target.location)
            if target is not None and any(
                up in self._nested and not within(location, up) for up in above(target.location)
            ):
                target = None
            self._linked[location] = target
        return self._linked[location]
