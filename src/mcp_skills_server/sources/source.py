"""Interface of a skill source, its settings and errors, and the report of a fetch.

A source gives its current revision (`resolve`, cheap), and the revision's skills with a way to
fetch them (`plan`). `reconcile` updates the folder of any source to a revision.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Generator, Mapping, Sequence, Set
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, Protocol, TypeAlias

from mcp_skills_server.codes import problem
from mcp_skills_server.dialects import wellknown
from mcp_skills_server.errors import SkillsServerError, listed
from mcp_skills_server.format import media
from mcp_skills_server.format.archive import Files, UnpackLimits, check_paths
from mcp_skills_server.format.ignored import ignored, summarize
from mcp_skills_server.model import Problem, printable
from mcp_skills_server.sources.addresses import relative_to_site
from mcp_skills_server.sources.cache import CacheFolder, PrivateFolder
from mcp_skills_server.sources.folder import FetchedFolder, folder_stamp
from mcp_skills_server.sources.records import IndexRecord

PINNED_S: Final = 86_400.0
"""Seconds between two polls of a revision that never changes: only the copy on disk can."""
Fault: TypeAlias = Literal["publisher", "network", "here"]
"""The party at fault for a refusal. Only the publisher's is no reason to try again."""


# Errors. Messages are one line for people and never hold a token, a query or a password.


class SourceError(SkillsServerError):
    """A source cannot be fetched now."""


class UnacceptableError(SourceError, ValueError):
    """The publisher sends unacceptable content, or leads to an address that the settings forbid.

    Reported as a Problem with this `code`.
    """

    code = "source-refused"


class ContentRefusedError(UnacceptableError):
    """Content named by a digest is refused for good; it never changes, so it is not retried."""


class UnsignedCommitError(UnacceptableError):
    """A commit has no signature by a required signer."""

    code = "commit-unsigned"


class UnidentifiedError(UnacceptableError):
    """No required signer vouches for a revision. Checked at each poll: it may be signed later."""

    def __init__(self, message: str, *, is_signed: bool) -> None:
        super().__init__(message)
        self.code = "signature-invalid" if is_signed else "signature-missing"


class RewrittenError(UnacceptableError):
    """A branch was rewritten or a tag moved. Checked at each poll: a process may accept it."""


class AbsentError(UnacceptableError):
    """Nothing is at this address: 404, 410, or a web page that a site returns for any path."""


class RollbackError(SourceError):
    """The publisher returned to an earlier state. Checked at each poll: it may be accepted."""


class UnreachableError(SourceError, OSError):
    """No response, an incomplete one, or a status that asks for a retry."""


# Settings: what the operator allows, and what it may cost.


@dataclass(frozen=True, slots=True)
class OriginPolicy:
    """Allowed origins besides that of the index, which alone gets `headers`.

    `origins` are spelled by `wellknown.origin`. `commands` are the roots that the operator wrote:
    only a command among them is started, never one from a lock file or a record.
    """

    origins: frozenset[str] = frozenset()
    private: bool = False
    http: bool = False
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    commands: frozenset[str] = field(default=frozenset(), repr=False)


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of downloads: of each read, each download with redirects, and one client in all."""

    read_s: float = 10.0
    download_s: float = 60.0
    redirects: int = 5
    total_bytes: int = 1 << 30


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """Limits of a source: skills, bytes of one skill, seconds in all, unpacked bytes in all."""

    skills: int = 20_000
    skill_bytes: int = 50 << 20
    total_s: float = 600.0
    unpacked_bytes: int = 2 << 30

    @property
    def skill(self) -> UnpackLimits:
        """The limits of one skill, unpacked."""
        return UnpackLimits(bytes=self.skill_bytes)


@dataclass(frozen=True, slots=True)
class FetchSettings:
    """Settings of a fetch.

    Attributes:
        revalidate: request the index even while its copy is fresh.
        allow_rollback: accept an index that the site had replaced before.
        prove: called with a skill's files before they are written; UnacceptableError refuses it.
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


class BundleVerifier(Protocol):
    """Verifier of sigstore bundles by a required signer."""

    key: str  # of its verdicts: what another key has admitted is verified again
    predicates: Sequence[str]  # the types of the statements that vouch for an artifact

    def fault(self, digest: str, bundle: bytes) -> str:
        """Return why a bundle does not vouch for the artifact with this digest, or ""."""
        ...


@dataclass(frozen=True, slots=True)
class SourceSettings:
    """Settings of all sources among the roots.

    Attributes:
        refresh_s: the polling interval of sources without cache headers.
        signers: git's file of allowed signers, one of whom must have signed a commit, or None.
        bundles: verifies that a registry's artifact has a bundle by the required signer, or None.
        pin: the wanted revision, None for the newest, which a source without history fetches.
        token: a bearer token for an MCP server, "" for none.
        output: the operator's own folder for the skills; None for one in the cache.
    """

    cache: Path
    hidden: bool = False
    fetch: FetchSettings = field(default_factory=FetchSettings)
    refresh_s: float = 60.0
    signers: Path | None = None
    bundles: BundleVerifier | None = None
    rewritten: bool = False
    pin: str | None = None
    token: str = field(default="", repr=False)
    cache_bytes: int = 10 << 30
    output: Path | None = None


# Reports


@dataclass(frozen=True, slots=True)
class SkillRefusal:
    """A skill that was not accepted, with the reason in one line. Its previous copy stays."""

    name: str
    reason: str
    fault: Fault

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


@dataclass(frozen=True, slots=True)
class FetchReport:
    """The result of a fetch. Names are in the source's order.

    `version` is that of the index: None if nothing was fetched, "tree" without an index.
    """

    url: str  # of the index that answered; for any other source its origin
    version: wellknown.Version | Literal["tree"] | None = "tree"
    before: str = ""  # the revision that was served before, "" if unknown
    added: tuple[str, ...] = ()
    updated: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()
    edited: tuple[str, ...] = ()  # skills that were edited in the folder, and stay
    gone: tuple[str, ...] = ()  # skills that the source no longer has
    pruned: tuple[str, ...] = ()  # those of them that were removed
    refused: tuple[SkillRefusal, ...] = ()
    warnings: tuple[str, ...] = ()
    pointers: tuple[tuple[str, str], ...] = ()  # (skill, path in it) of Git LFS pointers
    is_complete: bool = True  # otherwise the same revision is fetched again
    bytes: int = 0

    @property
    def ok(self) -> bool:
        """True if the index was decoded and no requested skill was refused."""
        return self.version is not None and not self.refused

    @property
    def changes(self) -> str:
        """The names of the changed skills in one line, "" for none."""
        parts = ("added", self.added), ("changed", self.updated), ("removed", self.pruned)
        return "; ".join(
            f"{what} {listed([*map(printable, names)])}" for what, names in parts if names
        )

    def lines(self, origin: str) -> tuple[str, ...]:
        """Return lines for the operator: warnings, and refusals not by the publisher's fault."""
        own = [refusal for refusal in self.refused if refusal.fault != "publisher"]
        refused = [relative_to_site(origin, str(refusal)) for refusal in own]
        return tuple(map(printable, (*self.warnings, *refused)))

    def problems(self, origin: str) -> tuple[Problem, ...]:
        """Return the publisher's problems: refused skills, and Git LFS pointers."""
        out: list[Problem] = []
        for refusal in self.refused:
            if refusal.fault == "publisher":
                name = printable(refusal.name)
                reason = printable(relative_to_site(origin, refusal.reason))
                out.append(problem(UnacceptableError.code, reason).at(f"{origin}/{name}", name))
        return (*out, *self.pointer_problems(origin))

    def pointer_problems(self, origin: str) -> list[Problem]:
        """Return the Git LFS pointers as problems, like those of `validate`."""
        return [
            problem("lfs-pointer", media.LFS_FAULT, 1).at(f"{origin}/{name}/{path}", name)
            for name, path in self.pointers
        ]


# Sources


@dataclass(frozen=True, slots=True)
class Revision:
    """State of a source at one time. `digest` changes with it; `content` is data for `plan`."""

    digest: str
    next_check_s: float
    content: Any = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, eq=False, slots=True)
class Unit:
    """Unit of fetching: a skill, or an artifact with several."""

    fingerprint: str  # changes with the content; "" if only the files show a change
    label: str
    names: tuple[str, ...] = ()  # paths of its skills; empty if only its contents show them
    is_named: bool = True  # `label` is the name of its only skill
    url: str = ""
    item: Any = None


@dataclass(frozen=True, slots=True)
class UnitContents:
    """Verified contents of a unit. Its warnings are repeated at each run while the unit is held.

    `pointers` are Git LFS pointers, relative to the folder of all skills.
    """

    skills: Mapping[str, Files]
    refused: Mapping[str, str] = field(default_factory=dict[str, str])
    warnings: tuple[str, ...] = ()
    pointers: tuple[str, ...] = ()


class UnitIntake(Protocol):
    """Takes what a source fetches into the folder."""

    @property
    def settings(self) -> FetchSettings:
        """The limits of the fetch."""
        ...

    @property
    def is_full(self) -> bool:
        """True once the skills together exceed the limit of bytes."""
        ...

    def check_budget(self, unit: Unit) -> None:
        """Raise SourceError if all skills together exceed the limit of bytes."""
        ...

    def put(self, unit: Unit, contents: UnitContents) -> None:
        """Stage the skills of a unit; an error refuses one skill."""
        ...

    def refuse(self, unit: Unit, error: Exception) -> None:
        """Record why a unit cannot be fetched."""
        ...


@dataclass(slots=True)
class Plan:
    """The skills of one revision, and a way to fetch them.

    `fetch` passes the contents of units, or refusals, to the intake, or raises SourceError.
    """

    units: Sequence[Unit]  # in the source's order; the first of two skills with one name wins
    fetch: Callable[[UnitIntake, Sequence[Unit]], Awaitable[object]]
    index: IndexRecord  # the source's record after a complete fetch
    touched: Set[str] | None = None  # skills that may differ from the record; None for all
    offered: Collection[str] | None = ()  # further names that the source has; None if unknown
    refused: Sequence[SkillRefusal] = ()
    version: wellknown.Version | Literal["tree"] | None = "tree"
    before: str = ""  # the revision that was served before; "" for that of the record
    refused_stay: bool = True  # keep the previous copy of a refused skill
    is_atomic: bool = False  # put no skill in place before all are fetched
    is_one: bool = False  # refuse the revision if none of its skills is accepted
    may_heal: bool = False  # retry: a refused skill of this revision may be acceptable later
    warnings: list[str] = field(default_factory=list[str])  # of this run; `fetch` adds to them
    bytes: int = 0  # downloaded bytes, counted once all is fetched


class Source:
    """A place that skills are fetched from. Call its methods one at a time.

    Args:
        origin: the address for display, without secrets.
        place: the folder for its skills (`folder.FetchedFolder`), or the cache folder or private
            folder that has it, which is then leased while this object lives.

    Attributes:
        remote: fetched in the background; any other source must be readable at the start.
        own_check_s: the polling interval where the operator sets none.
        last_retry_s: the maximum backoff after failures, unless the polling interval is longer.
        check_s: the polling interval, which the operator may change at run time.
        changed: paths in `place` that changed since they were handed to the registry; "" for an
            unknown part of it.
        stamp: stamp of `place` when `changed` was last complete.
        held: the revision that `place` is known to hold unmodified, or "".
    """

    remote: bool = True
    own_check_s: float | None = None
    last_retry_s: float = 300.0

    def __init__(
        self, origin: str, folder: Path | CacheFolder | PrivateFolder, settings: SourceSettings
    ) -> None:
        self.origin = origin
        self.key = origin
        self._lease = folder  # kept, since a cache folder is leased while its object lives
        self.place = folder if isinstance(folder, Path) else folder.skills
        self.settings: Final = settings
        self.check_s = self.own_check_s or settings.refresh_s
        if settings.output is None:
            # the copy that is served until the source answers must be complete
            FetchedFolder.recover(self.place)
        self.changed = set[str]()
        self.stamp: Sequence[str] = folder_stamp(self.place)
        self.held = ""

    def detect_changes(self) -> None:
        """Add the whole folder to `changed` if another process changed it."""
        stamp = folder_stamp(self.place)
        if stamp != self.stamp:
            self.stamp, self.held = stamp, ""
            self.changed.add("")

    @contextmanager
    def changing(self) -> Generator[None]:
        """Keep `changed` and `stamp` complete while this process changes the locked folder."""
        self.detect_changes()
        try:
            yield
        finally:
            self.stamp = folder_stamp(self.place)

    async def resolve(self, *, anew: bool = False) -> Revision:
        """Return the current revision; with `anew` ask even while the last answer is fresh.

        Raises:
            SourceError: the revision cannot be determined now.
            UsageError: a local setting or folder is wrong, not the source.
        """
        raise NotImplementedError

    async def listen(self, changed: Callable[[], object]) -> None:
        """Call `changed` for each announcement of the publisher, concurrently with other methods.

        Returns at once if there are none.
        """

    def plan(self, revision: Revision, known: IndexRecord) -> AbstractAsyncContextManager[Plan]:
        """Plan a revision of this source, to be fetched within the context.

        `known` is the previous record. Raises the errors of `reconcile`.
        """
        raise NotImplementedError


def check_skill(name: str, files: Files, limits: UnpackLimits) -> None:
    """Refuse a skill over a limit, with unportable paths or with never-served files."""
    paths = [f"{name}/{path}" for path in files]
    check_paths(paths)
    if banned := ignored(paths):
        raise UnacceptableError(
            f"it brings files that are never served: {summarize(banned)}; its author must omit them"
        )
    if len(files) > limits.files:
        raise UnacceptableError(f"it has {len(files)} files, at most {limits.files} are taken")
    sizes = [len(raw) for raw, _ in files.values()]
    if sum(sizes) > limits.bytes or max(sizes, default=0) > limits.file:
        reason = f"it has {sum(sizes)} bytes, and {max(sizes)} in one file"
        raise UnacceptableError(f"{reason}; at most {limits.bytes} and {limits.file} are taken")
