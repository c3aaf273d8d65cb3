"""Copy what a source has into a folder of fetched skills, as `fetch` does of a site: each skill whole or not at all.

For every kind whose revisions are trees. A skill becomes a folder under its own name, whatever lies above it there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from os import PathLike
from pathlib import Path

from anyio import to_thread

from mcp_skills_server.format.ignored import OURS
from mcp_skills_server.model import SKILL_MD
from mcp_skills_server.sources.files import read_tree
from mcp_skills_server.sources.folder import FetchedFolder
from mcp_skills_server.sources.reconcile import Bundle, Reconciler, Unit, check_names
from mcp_skills_server.sources.records import IndexRecord
from mcp_skills_server.sources.report import REFUSED, FetchReport, SkillRefusal
from mcp_skills_server.sources.settings import FetchSettings
from mcp_skills_server.sources.source import Source, SourceTree
from mcp_skills_server.sources.store import Store


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
        below = sorted((name for name, is_folder in names.items() if is_folder and name != OURS), reverse=True)
        todo += [here / name for name in below]


def _read(unit: Unit) -> Bundle:
    check_names([f"{unit.label}/{SKILL_MD}"])
    return Bundle({unit.label: read_tree(unit.item)})


def _copy(origin: str, found: SourceTree, directory: str | PathLike[str], settings: FetchSettings) -> FetchReport:
    refused: list[SkillRefusal] = []
    warnings = [*found.warnings]
    for each in found.problems:
        name = each.skill.rpartition("/")[2]
        if each.code != REFUSED:
            warnings.append(str(each))
        elif settings.wanted is None or name in settings.wanted:
            refused.append(SkillRefusal(each.skill, each.message, "publisher"))
    places = list(skills_of(found.path))
    offered = {name for name, _ in places} | {each.name.rpartition("/")[2] for each in refused}
    units = [
        Unit("", name, (name,), url=origin, item=place)
        for name, place in places
        if settings.wanted is None or name in settings.wanted
    ]
    with FetchedFolder.opened(directory) as folder:
        reconciler = Reconciler(folder, origin, settings)
        for unit in reconciler.plan(units):
            reconciler.put(unit, partial(_read, unit))
        index = IndexRecord(origin, origin, origin, origin, "", warnings=tuple(warnings))
        return reconciler.finish(index, offered, refused)
