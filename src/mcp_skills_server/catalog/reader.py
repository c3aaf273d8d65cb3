"""Reads files of skills, proves what it read, and keeps what is read often.

The descriptor that was checked is the one that is read, and bytes whose digest is known must still have it. Digests
are computed on demand and kept beside the file.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence, Sized
from contextlib import suppress
from typing import Final, Generic, NamedTuple, TypeVar

from mcp_skills_server.catalog import disk
from mcp_skills_server.catalog.disk import digest_of
from mcp_skills_server.catalog.roots import Root
from mcp_skills_server.catalog.threads import in_thread
from mcp_skills_server.errors import StaleFileError
from mcp_skills_server.model import SKILL_MD, Skill, SkillFile, Standing

_K = TypeVar("_K")
_V = TypeVar("_V")

_KEPT: Final = 256
_KEPT_SIZE: Final = 8 << 20


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


class Reader:
    """The files of skills below some roots. Any thread may use it.

    Args:
        roots: the directories; a file says by its index in which of them it lies.
    """

    def __init__(self, roots: Sequence[Root]) -> None:
        self.roots = tuple(roots)
        self._digest_lock = threading.Lock()
        self._bodies: BoundedCache[Skill, Body] = BoundedCache(_KEPT, _KEPT_SIZE, lambda body: body.text)

    def read(self, file: SkillFile) -> bytes:
        """Return the file's exact bytes: those that its digest stands for.

            skill = registry.snapshot.skills["refunds"]
            raw = registry.read(skill.files["references/policy.md"])

        Raises:
            StaleFileError: they are no longer the bytes that were scanned. `rescan` looks again.
        """
        raw = disk.read(self.roots[file.root].path, file)
        digest = digest_of(raw)
        if file.digest is None:
            with self._digest_lock:  # of two first readers one decides what the file's bytes are
                file.digest = file.digest or digest
        if file.digest != digest:
            file.signature = ""  # or a rewrite so quick that no time stamp tells would not be found
            raise StaleFileError(os.path.join(self.roots[file.root].path, file.location))
        return raw

    def digest(self, file: SkillFile) -> str:
        """Return the file's digest, `sha256:` and 64 hex digits, computed once.

        Raises:
            StaleFileError: as for `read`.
        """
        if file.digest is None:
            raw = self.read(file)  # which keeps the digest beside the file
            return file.digest or digest_of(raw)
        return file.digest

    def read_all(self, skill: Skill) -> dict[str, bytes]:
        """Return the exact bytes of every file of a skill, by path.

        Raises:
            StaleFileError: as for `read`.
        """
        return {path: self.read(file) for path, file in skill.files.items()}

    def digest_over(self, skill: Skill) -> str:
        """Return one digest over all files of a skill, their paths and bytes: approvals and lock files name a skill by
        it.

        Raises:
            StaleFileError: as for `read`.
        """
        whole = hashlib.sha256()
        for path, file in sorted(skill.files.items()):
            whole.update(path.encode() + b"\0" + self.digest(file).encode() + b"\n")
        return f"sha256:{whole.hexdigest()}"

    def body(self, skill: Skill) -> Body:
        """Return the skill's instructions and the files that they refer to.

        Raises:
            StaleFileError: as for `read`.
        """
        raw = self.read(skill.files[SKILL_MD])
        kept = self._bodies.get(skill)
        if kept is not None:
            return kept
        from mcp_skills_server.format import frontmatter
        from mcp_skills_server.format.links import linked_files, references

        document = frontmatter.parse(raw)
        linked = linked_files(references(document.body), skill.files, SKILL_MD)
        body = Body(document.body, linked, document.body_line)
        self._bodies.put(skill, body)
        return body

    async def aread(self, file: SkillFile) -> bytes:
        """`read` in a thread, for event loops."""
        return await in_thread(self.read, file)

    async def abody(self, skill: Skill) -> Body:
        """`body` in a thread, for event loops."""
        return await in_thread(self.body, skill)

    def has_body(self, skill: Skill) -> bool:
        """Tell whether `body` has the answer at hand."""
        return skill in self._bodies

    def hash_files(self, skill: Skill) -> None:
        """Compute the digests of a skill that are not known yet, so that a touch is not taken for an edit.

        Not of an unusable skill: it may be of any size. In one thread: 40,000 files of 2.5 kB took 0.45 s of processor
        time in one as in two, and two were done no sooner, for the calls of the system are what takes time.
        """
        for file in skill.files.values() if skill.standing > Standing.UNUSABLE else ():
            with suppress(StaleFileError):
                self.digest(file)

    def place(self, skill: Skill) -> str:
        """Return the absolute path of the skill's directory, for programs on the same disk."""
        return os.path.join(self.roots[skill.root].path, *skill.directory.split("/")).rstrip(os.sep)


class BoundedCache(Generic[_K, _V]):
    """Values up to a number and a size of them all; those that were put first go first. Safe between threads."""

    def __init__(self, most: int, size: int, measure: Callable[[_V], Sized]) -> None:
        self._most, self._size, self._measure = most, size, measure
        self._kept: OrderedDict[_K, _V] = OrderedDict()
        self._total = 0
        self._lock = threading.Lock()

    def __contains__(self, key: _K) -> bool:
        return key in self._kept

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: _K) -> _V | None:
        """Return the value of this key, if it is still there."""
        return self._kept.get(key)

    def drop(self, key: _K) -> None:
        """Keep the value of this key no longer, if it is still there."""
        with self._lock:
            if key in self._kept:
                self._total -= len(self._measure(self._kept.pop(key)))

    def clear(self) -> None:
        """Keep nothing."""
        with self._lock:
            self._kept.clear()
            self._total = 0

    def put(self, key: _K, value: _V) -> None:
        """Keep this value, and let the oldest go where there is too much."""
        with self._lock:
            if key not in self._kept:
                self._kept[key] = value
                self._total += len(self._measure(value))
            while len(self._kept) > self._most or self._total > self._size:
                self._total -= len(self._measure(self._kept.popitem(last=False)[1]))
