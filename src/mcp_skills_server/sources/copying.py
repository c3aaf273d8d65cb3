"""Copy what a source has into a folder of fetched skills, as `fetch` does of a site: each skill whole or not at all.

For every kind whose revisions are trees. A skill becomes a folder under its own name, whatever lies above it there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import Final

from anyio import to_thread

from mcp_skills_server.format.archive import ArchiveRefusedError, check_paths
from mcp_skills_server.format.ignored import is_ignored
from mcp_skills_server.model import SKILL_MD
from mcp_skills_server.sources.faults import UnacceptableError
from mcp_skills_server.sources.files import read_tree
from mcp_skills_server.sources.folder import FetchedFolder, SkillState, Staged
from mcp_skills_server.sources.records import IndexRecord, SkillRecord, epoch_s, wanted_since
from mcp_skills_server.sources.report import REFUSED, FetchReport, SkillRefusal
from mcp_skills_server.sources.settings import FetchSettings
from mcp_skills_server.sources.source import Source, SourceTree
from mcp_skills_server.sources.stage import ConflictError
from mcp_skills_server.sources.store import Store

_TREE: Final = "tree"
"""What the report says in the place of the version of an index."""


async def copy(source: Source, directory: str | PathLike[str], settings: FetchSettings) -> FetchReport:
    """Bring the folder up to what the source has now.

    Raises:
        SourceError: it cannot be had; the folder stays as it is.
        UsageError: the folder cannot be used.
    """
    store = Store()
    try:
        revision = await source.resolve(anew=True)
        tree = await source.materialise(revision, store)
        return await to_thread.run_sync(_copy, source.origin, tree, directory, settings)
    finally:
        store.close()


def skills_of(tree: Path) -> Iterator[tuple[str, Path]]:
    """Yield name and folder of each outermost skill of a tree, in path order."""
    todo = [tree]
    while todo:
        here = todo.pop()
        with os.scandir(here) as entries:
            names = {each.name: each.is_dir(follow_symlinks=False) for each in entries}
        if SKILL_MD in names:
            yield here.name, here
            continue
        below = sorted((name for name, is_folder in names.items() if is_folder), reverse=True)
        todo += [here / name for name in below]


def _copy(
    origin: str,
    found: SourceTree,
    directory: str | PathLike[str],
    settings: FetchSettings,
) -> FetchReport:
    coming: list[tuple[Staged, str]] = []
    became: dict[str, list[str]] = {"added": [], "updated": [], "unchanged": [], "edited": []}  # as the report has them
    tree = found.path
    withheld = {each.skill: each for each in found.problems if each.code == REFUSED}
    if settings.wanted is not None:
        withheld = {place: each for place, each in withheld.items() if _last(place) in settings.wanted}
    refused = [SkillRefusal(place, each.message, "publisher") for place, each in withheld.items()]
    warnings = [*found.warnings, *(str(each) for each in found.problems if each.code != REFUSED)]
    offered: set[str] = set()
    with FetchedFolder.opened(directory) as folder:
        for name, place in skills_of(tree):
            if settings.wanted is not None and name not in settings.wanted:
                offered.add(name)
                continue
            try:
                if name in offered:
                    raise ConflictError(f"{place.relative_to(tree)} has the same name as another skill of it")
                offered.add(name)
                kind, staged = _stage(folder, origin, name, place, settings)
                if staged is None:
                    became[kind].append(name)
                else:
                    coming.append((staged, kind))
            except UnacceptableError as error:
                refused.append(SkillRefusal(name, str(error), "publisher"))
            except (ConflictError, ArchiveRefusedError) as error:
                refused.append(SkillRefusal(name, str(error), "here"))
            except OSError as error:
                refused.append(SkillRefusal(name, f"it cannot be kept: {error.strerror or error}", "here"))
        failed = folder.commit([staged for staged, _ in coming])
        for staged, kind in coming:
            if staged.name not in failed:
                became[kind].append(staged.name)
        refused += [SkillRefusal(name, str(error), "here") for name, error in failed.items()]
        offered.update(map(_last, withheld))  # what was there of them before stays
        missing = sorted((settings.wanted or frozenset()) - offered)
        refused += [SkillRefusal(name, "it has no skill of this name", "publisher") for name in missing]
        gone, pruned = _gone(folder, origin, offered, settings, refused)
        names = wanted_since(folder.index(origin), settings.wanted)
        folder.put_index(IndexRecord(origin, origin, origin, origin, "", wanted=names))
    return FetchReport(
        origin,
        origin,
        _TREE,
        *(tuple(became[kind]) for kind in became),
        gone=tuple(gone),
        pruned=tuple(pruned),
        refused=tuple(refused),
        warnings=tuple(warnings),
    )


def _last(place: str) -> str:
    return place.rpartition("/")[2]


def _stage(
    folder: FetchedFolder, origin: str, name: str, place: Path, settings: FetchSettings
) -> tuple[str, Staged | None]:
    """What becomes of a skill, and what is to be put into its place, if anything is."""
    check_paths([name])
    if is_ignored(name):
        raise ConflictError("nothing of this name is ever served")
    files = read_tree(place)
    state, known = folder.look(name)
    if state is SkillState.EDITED and known is not None and known.source == origin and not settings.force:
        return "edited", None
    if settings.prove is not None:
        settings.prove({path: raw for path, (raw, _) in files.items()})
    record = SkillRecord(name, origin, origin, "", epoch_s(), {})
    staged = folder.stage(record, files, force=settings.force)
    if staged is None:
        return "unchanged", None
    return "added" if state is SkillState.ABSENT else "updated", staged


def _gone(
    folder: FetchedFolder, origin: str, offered: set[str], settings: FetchSettings, refused: list[SkillRefusal]
) -> tuple[list[str], list[str]]:
    gone: list[str] = []
    pruned: list[str] = []
    for record in folder.records():
        if record.source != origin or record.name in offered:
            continue
        gone.append(record.name)
        if settings.prune:
            try:
                folder.remove(record.name, force=settings.force)
                pruned.append(record.name)
            except (ConflictError, OSError) as error:
                refused.append(SkillRefusal(record.name, f"the source has it no longer; {error}", "here"))
    return gone, pruned
