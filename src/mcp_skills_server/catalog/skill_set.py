"""The skills that a request, a conversation or a page is answered from: all, or those of grants."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Protocol

from mcp_skills_server.catalog.reader import Body
from mcp_skills_server.catalog.recalls import Advisory
from mcp_skills_server.catalog.roots import Root
from mcp_skills_server.model import Changes, Skill, SkillFile, Snapshot


class SkillSet(Protocol):
    """A set of skills that changes with the files: a `Registry`, or the part of a principal.

    No other skill can be reached through it, so its users check no access again.
    """

    @property
    def snapshot(self) -> Snapshot:
        """The skills as they are now; the same object until one of them changes."""
        ...

    @property
    def roots(self) -> Sequence[Root]:
        """The directories of the skills; `Skill.root` is an index into them."""
        ...

    @property
    def loaded(self) -> threading.Event:
        """Set when the first scan is done."""
        ...

    def read(self, file: SkillFile, /) -> bytes:
        """Return the bytes of a file of the set, as `SkillReader.read`."""
        ...

    def body(self, skill: Skill, /) -> Body:
        """Return the instructions of a skill, as `SkillReader.body`."""
        ...

    def place(self, skill: Skill, /) -> str:
        """Return the absolute path of a skill's directory."""
        ...

    def rescan(self, path: str, /) -> Changes:
        """Scan again the skill of a file whose bytes differ from the scanned ones."""
        ...

    def advisory_on(self, skill: Skill | str, digest: str = "", /) -> Advisory | None:
        """Return the advisory on a skill of any snapshot, or on a digest or refusal at a path."""
        ...

    def unread_sources(self) -> Sequence[str]:
        """Return the names of the sources that were not read yet, as far as they may be known."""
        ...

    def remembered(self) -> Snapshot | None:
        """Return the skills of the last process, for lists before the first scan, or None."""
        ...
