"""What `lock`, `outdated`, `update` and `diff` share: lock files as commands find them, and sources as they are now."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from mcp_skills_server.commands.fields import Options, option
from mcp_skills_server.commands.options import RootOptions, open_roots, reading
from mcp_skills_server.errors import UsageError
from mcp_skills_server.model import Skill, Standing
from mcp_skills_server.provenance import lock
from mcp_skills_server.provenance.lock import LockedSource
from mcp_skills_server.sources.kinds import kind_of

if TYPE_CHECKING:
    from collections.abc import Generator

    from mcp_skills_server.catalog.registry import Registry

DEFAULT: Final = "skills.lock"


class LockFileOptions(Options):
    """Which lock file."""

    lock: str = option(DEFAULT, "The lock file.", show_default=True, metavar="FILE")


class Offer(NamedTuple):
    """A source at one moment.

    Attributes:
        given: the root.
        revision: "" for a folder.
        skills: by path, those that are served of it beside the other roots.
        registry: reads their files.
    """

    given: str
    revision: str
    skills: dict[str, Skill]
    registry: Registry

    def digests(self) -> dict[str, str]:
        """The digest over all files of each skill.

        Raises:
            UsageError: a file changes all the time or cannot be read.
        """
        with reading():
            return {path: self.registry.digest_over(skill) for path, skill in self.skills.items()}


@contextmanager
def offered(
    given: Sequence[str], options: RootOptions, pin: str | None = None
) -> Generator[tuple[Registry, list[Offer]]]:
    """Open these roots together, as `serve` does: of two skills with one path the earlier root offers it.

    Args:
        given: the roots.
        options: how they are read.
        pin: the revision that is wanted of each, None for the newest.

    Raises:
        UsageError: a root cannot be had, or is the same folder as another one.
    """
    registry, mirrors = open_roots(given, options, pins=[pin] * len(given))
    try:
        if mirrors is not None:
            mirrors.fetch(proved=True)
        with registry:
            if len(registry.roots) < len(given):
                raise UsageError(f"{', '.join(given)}: two of these are the same folder; name it once")
            snapshot = registry.snapshot
            revisions = mirrors.revisions() if mirrors is not None else {}
            offers = [
                Offer(root, revisions.get(found.given, ""), {}, registry)
                for root, found in zip(given, registry.roots, strict=True)
            ]
            for path in snapshot.paths(Standing.LENIENT):
                skill = snapshot.skills[path]
                offers[skill.root].skills[path] = skill
            yield registry, offers
    finally:
        if mirrors is not None:
            mirrors.stop()


def read_lock(path: str) -> tuple[LockedSource, ...]:
    """The sources of a lock file, with paths as they are from the current folder.

    Raises:
        UsageError: there is none, or it is none.
    """
    folder = os.path.dirname(path)
    return tuple(
        replace(each, given=os.path.normpath(os.path.join(folder, each.given))) if kind_of(each.given).is_path else each
        for each in lock.read(Path(path))
    )


def locked_roots(path: str, roots: Sequence[str]) -> list[LockedSource]:
    """The entries of the lock file for these roots, for all that it names where none is given.

    Raises:
        UsageError: the lock file cannot be read, or does not name a root.
    """
    locked = read_lock(path)
    names = {_place(each.given) for each in locked}
    for root in roots:
        if _place(root) not in names:
            raise UsageError(f"{root}: {path} does not name this root; lock it, or leave it out")
    wanted = {_place(root) for root in roots} or names
    return [each for each in locked if _place(each.given) in wanted]


def elsewhere(locked: Sequence[LockedSource], source: LockedSource) -> frozenset[str]:
    """The skills that other entries of the same source have, which come from other revisions of it."""
    others = (each for each in locked if each.given == source.given and each is not source)
    return frozenset(path for each in others for path in each.skills)


def _place(given: str) -> str:
    return os.path.abspath(given) if kind_of(given).is_path else given


def write_lock(path: str, sources: Sequence[LockedSource]) -> None:
    """Replace a lock file; relative paths are written as they are from its folder.

    Raises:
        UsageError: it cannot be written.
    """
    folder = os.path.dirname(path) or "."
    lock.write(
        Path(path),
        [
            replace(each, given=Path(os.path.relpath(each.given, folder)).as_posix())
            if kind_of(each.given).is_path and not os.path.isabs(each.given)
            else each
            for each in sources
        ],
    )
