"""Read files of skills: a file is served if and only if its bytes have the listed digest."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from mcp_skills_server.catalog import disk
from mcp_skills_server.catalog.disk import digest_of
from mcp_skills_server.catalog.roots import Root
from mcp_skills_server.catalog.threads import in_thread
from mcp_skills_server.errors import StaleFileError
from mcp_skills_server.model import SKILL_MD, Skill, SkillFile

_CHANGED: Final = disk.GONE | {errno.EFBIG}
_KEPT: Final = 64
"""Bodies that are kept ready, of at most `Limits.skill_md` bytes each."""


class Body(NamedTuple):
    """A skill's instructions, made ready.

    Attributes:
        text: UTF-8 text with LF line ends, without frontmatter.
        linked: the bundled files that it refers to, in order, each with its link text or "".
        line: the line of SKILL.md that it begins on, counted from 1.
    """

    text: str
    linked: Mapping[str, str]
    line: int = 1


@lru_cache(_KEPT)
def _body(skill: Skill, raw: bytes) -> Body:
    from mcp_skills_server.format import frontmatter
    from mcp_skills_server.format.links import linked_files, references

    document = frontmatter.parse(raw)
    linked = linked_files(references(document.body), skill.files, SKILL_MD)
    return Body(document.body, linked, document.body_line)


class Reader:
    """The files of skills below some roots. Any thread may use it.

    Args:
        roots: the directories; a file says by its index in which of them it lies.
    """

    def __init__(self, roots: Sequence[Root]) -> None:
        self.roots = tuple(roots)

    def read(self, file: SkillFile) -> bytes:
        """Return the file's exact bytes: those that its digest stands for.

            skill = registry.snapshot.skills["refunds"]
            raw = registry.read(skill.files["references/policy.md"])

        Raises:
            StaleFileError: they are no longer the bytes that were scanned. `rescan` looks again.
        """
        path = os.path.join(self.roots[file.root].path, file.location)
        try:
            raw, _ = disk.read(path, file.size)
        except OSError as error:
            reason = error.strerror
            if error.errno in _CHANGED:
                reason = None
            raise StaleFileError(path, reason) from None
        if file.digest != digest_of(raw):
            file.signature = ""  # or a rewrite so quick that no time stamp tells would not be found
            raise StaleFileError(path)
        return raw

    def read_all(self, skill: Skill) -> dict[str, bytes]:
        """Return the exact bytes of every file of a skill, by path.

        Raises:
            StaleFileError: as for `read`.
        """
        return {path: self.read(file) for path, file in skill.files.items()}

    def digest_over(self, skill: Skill) -> str:
        """Return one digest over all files of a skill, their paths and bytes: approvals and lock
        files name a skill by it.

        Raises:
            StaleFileError: one of them could not be read.
        """
        whole = hashlib.sha256()
        for path, file in sorted(skill.files.items()):
            digest = file.digest or digest_of(self.read(file))
            whole.update(path.encode() + b"\0" + digest.encode() + b"\n")
        return f"sha256:{whole.hexdigest()}"

    def body(self, skill: Skill) -> Body:
        """Return the skill's instructions and the files that they refer to.

        Raises:
            StaleFileError: as for `read`.
        """
        return _body(skill, self.read(skill.files[SKILL_MD]))

    async def aread(self, file: SkillFile) -> bytes:
        """`read` in a thread, for event loops."""
        return await in_thread(self.read, file)

    async def abody(self, skill: Skill) -> Body:
        """`body` in a thread, for event loops."""
        return await in_thread(self.body, skill)

    def place(self, skill: Skill) -> str:
        """Return the absolute path of the skill's directory, for programs on the same disk."""
        return os.path.join(self.roots[skill.root].path, *skill.directory.split("/")).rstrip(os.sep)
