"""The protocol of a source of skills, its settings and errors, and the report of a fetch.

A source tells its current revision (`resolve`, cheap) and brings it into its folder (`bring`). `mirrors` decides for
every kind when to look, what to do after a failure, and what is served meanwhile. A new kind is one module with a class
like `Source`, and one row in `kinds`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, Protocol, TypeAlias, runtime_checkable

from mcp_skills_server.codes import problem
from mcp_skills_server.dialects import wellknown
from mcp_skills_server.errors import SkillsServerError
from mcp_skills_server.format import media
from mcp_skills_server.model import Problem, printable
from mcp_skills_server.sources.addresses import relative_to_site
from mcp_skills_server.sources.caching import UNSAID_S

LAST_RETRY_S: Final = 300.0
"""The longest wait between two tries while a source fails, unless its polling interval is longer."""
_FIRST_RETRY_S: Final = 30.0
_NAMES_SHOWN: Final = 10
Fault: TypeAlias = Literal["publisher", "network", "here"]
"""Whose fault a refusal is. The publisher's lasts until the publisher or the settings change."""


# Errors. Messages are one line for people and never hold a token, a query or a password.


class SourceError(SkillsServerError):
    """A source cannot be fetched now."""


class UnacceptableError(SourceError, ValueError):
    """The publisher sends what is refused, or leads to where the settings do not allow to go."""

    code = "source-refused"
    """The code of the Problem that reports it."""


class ContentRefusedError(UnacceptableError):
    """Content that is named by its digest is refused for good: it never changes, so it is not asked for again."""


class UnsignedCommitError(UnacceptableError):
    """A commit has no signature by a required signer."""

    code = "commit-unsigned"


class RewrittenError(UnacceptableError):
    """A branch was rewritten, or a tag moved. Judged anew at each look: another process may have accepted it."""


class AbsentError(UnacceptableError):
    """There is nothing at this address: 404, 410, or the web page that some sites answer for everything."""


class RollbackError(SourceError):
    """The publisher went back to a former state. Judged anew at each look: another process may have accepted it."""


class UnreachableError(SourceError, OSError):
    """No answer, half of one, or "not now"."""


# Settings: what the operator allows, and what it may cost.


@dataclass(frozen=True, slots=True)
class OriginPolicy:
    """The origins and addresses that a download may reach.

    Attributes:
        origins: other origins than that of the index, as `wellknown.origin` spells them.
        private: also addresses that are not of the public internet.
        http: also plain http; for this machine `private` suffices.
        headers: sent to the origin of the index and to no other, such as a token.
    """

    origins: frozenset[str] = frozenset()
    private: bool = False
    http: bool = False
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of downloads.

    Attributes:
        read_s: of a connection and of each read.
        download_s: of one download with its redirects, however slowly a server drips.
        redirects: hops of one download.
        total_bytes: of all downloads of one client.
    """

    read_s: float = 10.0
    download_s: float = 60.0
    redirects: int = 5
    total_bytes: int = 1 << 30


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """Limits of what a publisher offers.

    Attributes:
        skills: entries of the index.
        skill_bytes: of one skill, unpacked.
        total_s: of all of it; what is missing then is not fetched.
        unpacked_bytes: of all skills of the source in the folder, unpacked, old ones included.
    """

    skills: int = 20_000
    skill_bytes: int = 50 << 20
    total_s: float = 600.0
    unpacked_bytes: int = 2 << 30


@dataclass(frozen=True, slots=True)
class FetchSettings:
    """Settings of a fetch.

    Attributes:
        wanted: names of skills, None for all.
        revalidate: ask for the index even while its copy is fresh.
        force: replace edited skills.
        prune: remove skills that the index no longer has.
        allow_rollback: accept an index that the site had before, and another one since.
        connections: concurrent downloads.
        prove: called with the files of each skill before it is written; raises UnacceptableError to refuse it.
    """

    wanted: frozenset[str] | None = None
    revalidate: bool = False
    force: bool = False
    prune: bool = False
    allow_rollback: bool = False
    trust: OriginPolicy = field(default_factory=OriginPolicy)
    bounds: Bounds = field(default_factory=Bounds)
    limits: FetchLimits = field(default_factory=FetchLimits)
    connections: int = 6
    prove: Callable[[Mapping[str, bytes]], object] | None = None


@dataclass(frozen=True, slots=True)
class SourceSettings:
    """Settings of all sources among the roots.

    Attributes:
        cache: the directory for copies of what is fetched.
        hidden: also serve skills in dot folders of archives and repositories.
        refresh_s: the polling interval of what has no cache headers.
        signers: git's file of allowed signers, of whom one must have signed a commit; None for no requirement.
        rewritten: accept a rewritten branch or a moved tag.
        pin: the wanted revision, None for the newest. A source that keeps no history brings what it has now, and what
            differs is refused later.
        token: a bearer token for an MCP server, "" for none.
        cache_bytes: the size of the cache, beyond which the least recently used copies are evicted.
    """

    cache: Path
    hidden: bool = False
    fetch: FetchSettings = field(default_factory=FetchSettings)
    refresh_s: float = 60.0
    signers: Path | None = None
    rewritten: bool = False
    pin: str | None = None
    token: str = field(default="", repr=False)
    cache_bytes: int = 10 << 30


# Sources


@dataclass(frozen=True, slots=True)
class Revision:
    """The state of a source at a moment.

    Attributes:
        digest: differs when anything differs.
        next_check_s: seconds until the next check makes sense.
        content: what `bring` of the same source needs.
    """

    digest: str
    next_check_s: float
    content: Any = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class SkillRefusal:
    """A skill that did not arrive, with the reason in one line. Its former copy stays."""

    name: str
    reason: str
    fault: Fault

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


@dataclass(frozen=True, slots=True)
class FetchReport:
    """The result of a fetch. Names are in the source's order.

    Attributes:
        source: the key of the source: of a site `wellknown.candidates(url)[0]`, of any other its origin.
        url: of the index that answered; of any other source its origin.
        version: of the index's format, None when nothing was fetched; "tree" where there is no index.
        before: the revision that was served before, "" where it is not known.
        edited: skills that are current at the source and were edited in the folder; they stay.
        gone: skills in the folder that the source no longer has.
        pruned: those of them that were removed.
        warnings: one line each.
        pointers: (skill, path in it) of files that are Git LFS pointers.
        is_complete: everything acceptable is there; otherwise the same revision is fetched again.
        next_check_s: seconds until the next check, by the index's cache headers.
        bytes: of all bodies that were downloaded.
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
        """The names of the changed skills in one line, "" where none changed."""
        parts = ("added", self.added), ("changed", self.updated), ("removed", self.pruned)
        return "; ".join(f"{what} {_some(names)}" for what, names in parts if names)

    def lines(self, origin: str) -> tuple[str, ...]:
        """Return what the operator should hear, one line each: the warnings, and what is not the publisher's fault."""
        own = [each for each in self.refused if each.fault != "publisher"]
        refused = [f"{printable(each.name)}: {relative_to_site(origin, each.reason)}" for each in own]
        return (*map(printable, self.warnings), *refused)

    def problems(self, origin: str) -> tuple[Problem, ...]:
        """Return what the publisher must correct: refused skills, and Git LFS pointers."""
        out: list[Problem] = []
        for each in self.refused:
            if each.fault == "publisher":
                name, reason = printable(each.name), printable(relative_to_site(origin, each.reason))
                out.append(problem(UnacceptableError.code, reason).at(f"{origin}/{name}", name))
        return (*out, *self.pointer_problems(origin))

    def pointer_problems(self, origin: str) -> list[Problem]:
        """Return the Git LFS pointers as `validate` finds them."""
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
    """Polling intervals in seconds.

    Attributes:
        check_s: after a revision that is not complete.
        first_retry_s: after a failure; it doubles with each further one.
        last_retry_s: the longest wait after a failure.
    """

    check_s: float
    first_retry_s: float
    last_retry_s: float


class Polled:
    """A source without cache headers, polled at the operator's interval."""

    remote: bool = True

    def __init__(self, seconds: float) -> None:
        self.refresh_s: float | None = seconds

    @property
    def pace(self) -> Pace:
        """The polling intervals."""
        seconds = self.refresh_s or 0.0
        return Pace(seconds, min(seconds, _FIRST_RETRY_S), max(seconds, LAST_RETRY_S))


@runtime_checkable
class Announcing(Protocol):
    """A source whose publisher announces changes."""

    async def listen(self, changed: Callable[[], object]) -> None:
        """Call `changed` for each announcement, until cancelled. It is called beside the other methods."""
        ...


class Source(Protocol):
    """One place that skills come from. Its methods are called one at a time.

    Attributes:
        origin: the address for people, without secrets.
        remote: it is fetched, and a server starts without it. What is not remote must be there at the start.
        place: the folder with its skills (`folder.FetchedFolder`).
        refresh_s: the operator's polling interval, which may change meanwhile; None where the source has its own.
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
        """Return the current revision; with `anew` ask even while the last answer is fresh.

        Raises:
            SourceError: it cannot be known now.
            UsageError: something here is wrong, not there.
        """
        ...

    async def bring(self, revision: Revision) -> FetchReport:
        """Bring the folder up to a revision of this source. A failure leaves what was there before.

        Raises:
            UnacceptableError: this revision will never be accepted.
            SourceError: it cannot be fetched now.
            UsageError: something here is wrong, not there.
        """
        ...
