"""Protocol of a source of skills, for every kind.

A source says what is there now (`resolve`, cheap) and brings it as a folder (`materialise`). When to ask, what to do
where it fails, and what is served meanwhile is the same for all kinds: see `follower`. A new kind is one module with a
class like this, and one row in `kinds`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from mcp_skills_server.model import Problem
from mcp_skills_server.sources.store import Store

_NAMES_SHOWN: Final = 10


@dataclass(frozen=True, slots=True)
class Revision:
    """What a source has at a moment.

    Attributes:
        digest: another one when anything is different.
        next_check_s: in how many seconds it makes sense to ask again.
        content: what the source itself wants to find in it when it is asked to materialise it.
    """

    digest: str
    next_check_s: float
    content: Any = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class TreeChanges:
    """The difference between a tree and the one that was served before.

    Attributes:
        before: the revision that was served before, "" where the source does not know it.
        added: names of skills that were not there.
        changed: names of skills that have other files.
        removed: names of skills that are gone.
    """

    before: str = ""
    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()

    def __str__(self) -> str:
        parts = ("added", self.added), ("changed", self.changed), ("removed", self.removed)
        return "; ".join(f"{what} {_some(names)}" for what, names in parts if names)


NO_DIFFERENCE: Final = TreeChanges()


def _some(names: tuple[str, ...]) -> str:
    left = len(names) - _NAMES_SHOWN
    return ", ".join(names[:_NAMES_SHOWN]) + (f" and {left} more" if left > 0 else "")


@dataclass(frozen=True, slots=True)
class SourceTree:
    """A revision as a folder, proved.

    Attributes:
        path: the folder. It never changes, unless it is the source's own `place`.
        difference: the skills that are another, where the source knows.
        warnings: what the operator should hear, one line each.
        complete: all of the revision is there; otherwise the same revision is asked for again.
        problems: what is wrong with skills of it: those that are refused, and those that came and are not whole.
    """

    path: Path
    difference: TreeChanges = NO_DIFFERENCE
    warnings: tuple[str, ...] = ()
    complete: bool = True
    problems: tuple[Problem, ...] = ()


LAST_RETRY_S: Final = 300.0
"""The longest wait between two tries while a source cannot be had, unless it is looked at more seldom anyway."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How often to poll.

    Attributes:
        check_s: seconds to the next check after a revision that is not complete.
        first_retry_s: seconds to the next try after a failure; twice as many after each further one.
        last_retry_s: at most so many.
    """

    check_s: float
    first_retry_s: float
    last_retry_s: float


class Source(Protocol):
    """One place that skills come from. Its methods are called one at a time.

    Attributes:
        origin: what people read about where it is, and clients and models by `identity.shown_origin`. It holds no
            secret.
        remote: it is fetched, and a server starts without it. What is not remote is there at the start or refused.
        place: the folder that is served, where the source itself keeps one current; None where its trees go to a store.
        refresh_s: seconds between two looks where the operator says it, and may change it while it is followed; None
            where the source says it itself.
    """

    origin: str
    remote: bool
    place: Path | None
    refresh_s: float | None

    @property
    def pace(self) -> Pace | None:
        """How often to ask; None where nobody needs to, since the folder itself is watched."""
        ...

    async def resolve(self, *, anew: bool = False) -> Revision:
        """Return what is there now; with `anew` whatever was said before about how long that holds.

        Raises:
            SourceError: it cannot be had now.
            UsageError: something here is wrong, not there.
        """
        ...

    async def materialise(self, revision: Revision, store: Store) -> SourceTree:
        """Bring a revision of this source as a folder. What fails leaves what was there before.

        Raises:
            UnacceptableError: this revision will never be taken.
            SourceError: it cannot be had now.
            UsageError: something here is wrong, not there.
        """
        ...
