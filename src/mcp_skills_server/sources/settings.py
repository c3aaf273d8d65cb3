"""Settings of sources: what the operator allows, and what it may cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class OriginPolicy:
    """The origins and addresses that a download may reach.

    Attributes:
        origins: other origins than that of the index, as `wellknown.origin` spells them.
        private: addresses that are not of the public internet, too.
        http: plain http, too. On this machine it needs no more than `private`.
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
        read_s: seconds for a connection and for each read.
        download_s: seconds for one download, its redirects included; a server that drips gets no more.
        redirects: hops of one download.
        total_bytes: bytes of all downloads of one Downloader.
    """

    read_s: float = 10.0
    download_s: float = 60.0
    redirects: int = 5
    total_bytes: int = 1 << 30


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """Limits of what a publisher offers, beyond those of each download.

    Attributes:
        skills: entries of the index.
        skill_bytes: bytes of one skill, unpacked.
        total_s: seconds for all of it. What is not there then is not fetched.
        unpacked_bytes: bytes of all skills that the folder has of the index, unpacked. What is there already counts.
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
        revalidate: ask for the index even while the copy of it is fresh.
        force: replace skills that were edited.
        prune: remove skills that the index no longer has.
        allow_rollback: take an index that the site had before, and another one since.
        trust: where to go.
        bounds: what downloads may cost.
        limits: what the publisher may cost.
        connections: downloads at once.
        prove: called with the files of each skill that is to be written, bytes by path; raises UnacceptableError where
            they may not be. None where all may.
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
        hidden: skills in dot folders of archives and repositories are served, too.
        fetch: how sites are fetched, and what the others may cost.
        refresh_s: seconds between two looks at what has no cache headers.
        signers: git's file of allowed signers, of whom one must have signed a commit; None for no requirement.
        rewritten: take what a branch was rewritten to, or a tag moved to.
        pin: the revision that is wanted, None for the newest. A source that can still bring an old one brings it, and
            sends no request while it has it; one that cannot brings what it has now, and what differs is refused later.
        token: what an MCP server at an address is sent as a bearer token; "" for none.
        cache_bytes: what all copies in the cache may take; the longest unused go first.
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
