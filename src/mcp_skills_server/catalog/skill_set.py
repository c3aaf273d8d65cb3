"""The set of skills behind a request, kept current: all of a registry, or what some grants leave; and its listeners."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from mcp_skills_server.access.grants import Permissions
from mcp_skills_server.catalog.index import Index
from mcp_skills_server.catalog.reader import Body
from mcp_skills_server.catalog.roots import Limits, Root
from mcp_skills_server.model import Changes, Skill, SkillFile, Snapshot

logger = logging.getLogger(__name__)


class SkillSet(Protocol):
    """The set of skills behind views, conversations and publications. Each method is as `Registry` says.

    Attributes:
        permissions: whose skills these are; None for a registry, of which nothing is withheld.

    `left_of` gives what of some changes is about these skills.
    """

    @property
    def permissions(self) -> Permissions | None: ...
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
    def remembered(self) -> Snapshot | None: ...
    def load(self) -> None: ...
    def subscribe(self, listener: Callable[[Changes], None], *, problems: bool = False) -> Callable[[], None]: ...
    def rescan(self, path: str) -> Changes: ...
    def left_of(self, changes: Changes) -> Changes: ...
    def read(self, file: SkillFile) -> bytes: ...
    def body(self, skill: Skill) -> Body: ...
    def place(self, skill: Skill) -> str: ...


class Listeners:
    """The subscribers of a registry. `notify` and `notify_deferred` are called under the registry's lock."""

    def __init__(self) -> None:
        self._listeners: dict[object, tuple[Callable[[Changes], None], bool]] = {}
        self._deferred = Changes({}, {})

    def __len__(self) -> int:
        return len(self._listeners)

    def subscribe(self, listener: Callable[[Changes], None], *, problems: bool) -> Callable[[], None]:
        """Call it with each difference; with `problems` also when only those differ. Returns what ends that."""
        token = object()
        self._listeners[token] = listener, problems
        return lambda: self._listeners.pop(token, None) and None

    def notify(self, changes: Changes, *, first: bool = False, defer: bool = False) -> None:
        """Call the listeners with this difference and with what was deferred, or defer it, too.

        Nothing is deferred where no skill differs. After the first scan all are called, whatever it found.
        """
        if self._deferred:
            changes, self._deferred = self._deferred.then(changes), Changes({}, {})
        if changes and defer:
            self._deferred = changes
            return
        for listener, problems in list(self._listeners.values()):
            if not (changes or first or problems):
                continue
            try:
                listener(changes)
            except Exception:  # one listener's bug must not cost the others their news
                logger.exception("a listener failed")

    def notify_deferred(self) -> None:
        """Call the listeners with what was deferred, if anything was."""
        if self._deferred:
            self.notify(Changes({}, {}))
