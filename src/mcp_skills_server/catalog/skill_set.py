"""A set of skills that is kept current, and their files: all of a registry, or what some grants leave of it."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from mcp_skills_server.access.grants import Permissions
from mcp_skills_server.catalog.index import Index
from mcp_skills_server.catalog.reader import Body
from mcp_skills_server.catalog.roots import Limits, Root
from mcp_skills_server.errors import StaleFileError
from mcp_skills_server.model import Changes, Skill, SkillFile, Snapshot


class SkillSet(Protocol):
    """The set of skills behind views, conversations and publications. Each method is as `Registry` says.

    Attributes:
        permissions: whose skills these are; None for a registry, of which nothing is withheld.
        asked_at: the time of the last request, by the monotonic clock.

    `left_of` gives what of some changes is about these skills.
    """

    @property
    def permissions(self) -> Permissions | None: ...
    @property
    def asked_at(self) -> float: ...
    @property
    def snapshot(self) -> Snapshot: ...
    @property
    def roots(self) -> Sequence[Root]: ...
    @property
    def limits(self) -> Limits: ...
    @property
    def index(self) -> Index | None: ...
    @property
    def loaded(self) -> threading.Event: ...

    def unread_sources(self) -> Sequence[str]: ...
    def note_request(self) -> None: ...
    def load(self) -> None: ...
    def subscribe(self, listener: Callable[[Changes], None], *, problems: bool = False) -> Callable[[], None]: ...
    def rescan(self, stale: StaleFileError) -> Changes: ...
    def left_of(self, changes: Changes) -> Changes: ...
    def read(self, file: SkillFile) -> bytes: ...
    def digest(self, file: SkillFile) -> str: ...
    def body(self, skill: Skill) -> Body: ...
    def has_body(self, skill: Skill) -> bool: ...
    def hash_files(self, skill: Skill) -> None: ...
    def place(self, skill: Skill) -> str: ...


class Unrestricted:
    """The rest of `SkillSet` for a set from which nothing is withheld."""

    asked_at: float = -math.inf
    """When a request came last, by the monotonic clock: background work yields to requests."""

    @property
    def permissions(self) -> None:
        """None: of no principal in particular."""
        return

    def left_of(self, changes: Changes) -> Changes:
        """Return all of these changes."""
        return changes

    def note_request(self) -> None:
        """Note that a request came."""
        self.asked_at = time.monotonic()
