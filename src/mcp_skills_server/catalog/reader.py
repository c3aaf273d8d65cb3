"""Read the files of scanned skills, verified against the digests that the scan recorded."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from mcp_skills_server.catalog import disk
from mcp_skills_server.catalog.roots import Limits, Root
from mcp_skills_server.errors import StaleFileError
from mcp_skills_server.model import SKILL_MD, Skill, SkillFile
from mcp_skills_server.model.digests import digest_of
from mcp_skills_server.model.skill import combined_digest

_CHANGED_ERRORS: Final = disk.MISSING_ERRORS | {errno.EFBIG}
"""Errors of a file that was deleted, replaced or has grown since the scan."""


class Body(NamedTuple):
    """Parsed body of a SKILL.md: the skill's instructions.

    Attributes:
        text: UTF-8 text with LF line ends, without frontmatter.
        linked: link text (or "") by bundled file that the text refers to, in order.
        line: 1-based line of SKILL.md on which the text begins.
    """

    text: str
    linked: Mapping[str, str]
    line: int = 1


@lru_cache(64)  # each has at most `Limits.skill_md` bytes
def _body(skill: Skill, raw: bytes) -> Body:
    from mcp_skills_server.format import frontmatter
    from mcp_skills_server.format.links import linked_files, references

    document = frontmatter.parse(raw)
    linked = linked_files(references(document.body), skill.files, SKILL_MD)
    return Body(document.body, linked, document.body_line)


class SkillReader:
    """Reader of the files of the skills of some roots. Thread-safe.

    Attributes:
        roots: the directories, in their order; `SkillFile.root` is an index into them.
    """

    def __init__(self, roots: Sequence[Root], limits: Limits) -> None:
        self.roots = roots
        self.limits = limits

    def read(self, file: SkillFile) -> bytes:
        """Return the bytes of a file, verified against its digest.

            skill = registry.snapshot.skills["refunds"]
            raw = registry.read(skill.files["references/policy.md"])

        Raises:
            StaleFileError: the bytes differ from those that were scanned; `rescan` scans the file
                again.
        """
        path = os.path.join(self.roots[file.root].path, file.location)
        try:
            raw, _ = disk.read(path, file.size)
        except OSError as error:
            reason = None if error.errno in _CHANGED_ERRORS else error.strerror
            raise StaleFileError(path, reason) from None
        if file.digest != digest_of(raw):
            raise StaleFileError(path)
        return raw

    def read_all(self, skill: Skill) -> dict[str, bytes]:
        """Return the bytes of every file of a skill, by path.

        Raises:
            StaleFileError: as for `read`.
        """
        return {path: self.read(file) for path, file in skill.files.items()}

    def digest_over(self, skill: Skill) -> str:
        """Return one digest of all paths and files of a skill, as approvals and lock files use it.

        Raises:
            StaleFileError: a file could not be read.
        """
        files = skill.files.items()
        return combined_digest(
            {path: file.digest or digest_of(self.read(file)) for path, file in files}
        )

    def body(self, skill: Skill) -> Body:
        """Return the skill's instructions and the files that they refer to.

        Raises:
            StaleFileError: as for `read`.
        """
        return _body(skill, self.read(skill.files[SKILL_MD]))

    def place(self, skill: Skill) -> str:
        """Return the absolute path of the skill's directory, for programs on the same disk."""
        return os.path.join(self.roots[skill.root].path, *skill.directory.split("/")).rstrip(os.sep)
