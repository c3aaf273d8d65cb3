"""Protocol of a source of skills, for every kind, and the report of what one look at it brought.

A source says what is there now (`resolve`, cheap) and brings it into its folder (`bring`). When to look, what to do
where that fails, and what is served meanwhile is the same for all kinds: see `mirrors`. A new kind is one module with a
class like this, and one row in `kinds`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, Protocol, TypeAlias

from mcp_skills_server.codes import problem
from mcp_skills_server.dialects import wellknown
from mcp_skills_server.format import media
from mcp_skills_server.model import Problem, printable
from mcp_skills_server.sources.caching import UNSAID_S
from mcp_skills_server.sources.urls import relative_to_site

LAST_RETRY_S: Final = 300.0
"""The longest wait between two tries while a source cannot be had, unless it is looked at more seldom anyway."""
_FIRST_RETRY_S: Final = 30.0
_NAMES_SHOWN: Final = 10
_REFUSED: Final = "source-refused"
"""The code of a skill that a source does not take."""
Fault: TypeAlias = Literal["publisher", "network", "here"]


@dataclass(frozen=True, slots=True)
class Revision:
    """The state of a source at a moment.

    Attributes:
        digest: another one when anything is different.
        next_check_s: in how many seconds it makes sense to ask again.
        content: what the source itself wants to find in it when it is asked to bring it.
    """

    digest: str
    next_check_s: float
    content: Any = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class SkillRefusal:
    """A skill that did not arrive. What was there of it before is there still.

    Attributes:
        name: of the skill, or of its entry as far as it has one.
        reason: why, in one line.
        fault: whose: the publisher's, the network's, or that of the folder here.
    """

    name: str
    reason: str
    fault: Fault

    def __str__(self) -> str:
        """Return the refusal as one line."""
        return f"{self.name}: {self.reason}"


@dataclass(frozen=True, slots=True)
class FetchReport:
    """The result of a look at a source. Names are in the source's order.

    Attributes:
        source: the key of the source: of a site `wellknown.candidates(url)[0]`; records carry it.
        url: of the index that answered; of any other source its origin.
        version: of the index's format, None when it is not known and nothing was done; "tree" where there is no index.
        before: the revision that was served before, "" where it is not known.
        added: skills that were not there.
        updated: skills that have other files now.
        unchanged: skills that are current.
        edited: skills that are current at the source and were edited in the folder; they stay.
        gone: skills in the folder that the source no longer has.
        pruned: those of them that were removed.
        refused: skills that did not arrive.
        warnings: what else the user should hear, one line each.
        pointers: (skill, path in it) of files that are Git LFS pointers.
        is_complete: all that the publisher offers in order is there; otherwise the same revision is asked for again.
        next_check_s: in how many seconds it makes sense to ask again, by the index's cache headers.
        bytes: bytes of all bodies that were downloaded.
    """

    source: str
    url: str
    version: wellknown.Version | Literal["tree"] | None = "tree"
    before: str = ""
    added: tuple[str, ...] = ()
    updated: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()
    edited: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    pruned: tuple[str, ...] = ()
    refused: tuple[SkillRefusal, ...] = ()
    warnings: tuple[str, ...] = ()
    pointers: tuple[tuple[str, str], ...] = ()
    is_complete: bool = True
    next_check_s: float = UNSAID_S
    bytes: int = 0

    @property
    def ok(self) -> bool:
        """True if the index was understood and everything asked for is there."""
        return self.version is not None and not self.refused

    @property
    def changes(self) -> str:
        """The names of the skills that are another, in one line; "" where none is."""
        parts = ("added", self.added), ("changed", self.updated), ("removed", self.pruned)
        return "; ".join(f"{what} {_some(names)}" for what, names in parts if names)

    def lines(self, origin: str) -> tuple[str, ...]:
        """Return what the operator should hear, one line each: the warnings, and what is not the publisher's fault."""
        own = [each for each in self.refused if each.fault != "publisher"]
        refused = [f"{printable(each.name)}: {relative_to_site(origin, each.reason)}" for each in own]
        return (*map(printable, self.warnings), *refused)

    def problems(self, origin: str) -> tuple[Problem, ...]:
        """Return what the publisher must correct: the skills that are refused, and those that are not whole."""
        out: list[Problem] = []
        for each in self.refused:
            if each.fault == "publisher":
                name, reason = printable(each.name), printable(relative_to_site(origin, each.reason))
                out.append(problem(_REFUSED, reason).at(f"{origin}/{name}", name))
        return (*out, *self.pointer_problems(origin))

    def pointer_problems(self, origin: str) -> list[Problem]:
        """Return the Git LFS pointers as `validate` finds them, which reads every file."""
        return [
            problem("lfs-pointer", media.LFS_FAULT, 1).at(f"{origin}/{name}/{path}", name)
            for name, path in self.pointers
        ]


def _some(names: tuple[str, ...]) -> str:
    left = len(names) - _NAMES_SHOWN
    more = f" and {left} more" if left > 0 else ""
    return ", ".join(map(printable, names[:_NAMES_SHOWN])) + more


@dataclass(frozen=True, slots=True)
class Pace:
    """Polling intervals.

    Attributes:
        check_s: seconds to the next check after a revision that is not complete.
        first_retry_s: seconds to the next try after a failure; twice as many after each further one.
        last_retry_s: at most so many.
    """

    check_s: float
    first_retry_s: float
    last_retry_s: float

    @classmethod
    def every(cls, seconds: float) -> Pace:
        """Return the pace of a source that is looked at so often."""
        return cls(seconds, min(seconds, _FIRST_RETRY_S), max(seconds, LAST_RETRY_S))


class Polled:
    """A source that is looked at as often as the operator says; what is fetched by no cache headers.

    Args:
        seconds: between two looks, until the operator says another number.
    """

    remote: bool = True

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.refresh_s: float | None = seconds

    @property
    def pace(self) -> Pace:
        """The polling intervals."""
        return Pace.every(self.refresh_s or self._seconds)


class Source(Protocol):
    """One place that skills come from. Its methods are called one at a time.

    Attributes:
        origin: the address for people; clients and models read `identity.shown_origin` of it. It holds no secret.
        remote: it is fetched, and a server starts without it. What is not remote is there at the start or refused.
        place: the folder with its skills (`folder.FetchedFolder`).
        refresh_s: seconds between two looks where the operator says it, and may change it while it is followed; None
            where the source says it itself.
    """

    origin: str
    remote: bool
    place: Path
    refresh_s: float | None

    @property
    def pace(self) -> Pace:
        """The polling intervals."""
        ...

    async def resolve(self, *, anew: bool = False) -> Revision:
        """Return what is there now; with `anew` whatever was said before about how long that holds.

        Raises:
            SourceError: it cannot be had now.
            UsageError: something here is wrong, not there.
        """
        ...

    async def bring(self, revision: Revision) -> FetchReport:
        """Bring the folder up to a revision of this source. What fails leaves what was there before.

        Raises:
            UnacceptableError: this revision will never be taken.
            SourceError: it cannot be had now.
            UsageError: something here is wrong, not there.
        """
        ...
