"""Copy the skills of any source but a site into a folder of fetched skills, each under its own name."""

from __future__ import annotations

from functools import partial
from os import PathLike

from anyio import to_thread

from mcp_skills_server.model import SKILL_MD
from mcp_skills_server.sources.folder import FetchedFolder, clear, read_tree
from mcp_skills_server.sources.reconcile import Bundle, Reconciler, Unit, check_names
from mcp_skills_server.sources.records import IndexRecord, read_records
from mcp_skills_server.sources.source import FetchReport, FetchSettings, Source


async def copy(source: Source, directory: str | PathLike[str], settings: FetchSettings) -> FetchReport:
    """Bring the folder up to what the source has now.

    Raises:
        SourceError: it cannot be had; the folder stays as it is.
        UsageError: the folder cannot be used.
    """
    try:
        brought = await source.bring(await source.resolve(anew=True))
        return await to_thread.run_sync(_copy, source, brought, directory, settings)
    finally:
        if not source.remote:
            clear(source.place)


def _copy(source: Source, brought: FetchReport, directory: str | PathLike[str], settings: FetchSettings) -> FetchReport:
    refused = [each for each in brought.refused if settings.wanted is None or _name(each.name) in settings.wanted]
    places = [each.name for each in read_records(source.place)]
    origin = source.origin
    units = [
        Unit("", _name(place), (_name(place),), url=origin, item=source.place / place)
        for place in sorted(places, key=lambda place: place.split("/"))
        if settings.wanted is None or _name(place) in settings.wanted
    ]
    offered = {*map(_name, places), *(_name(each.name) for each in brought.refused)}
    with FetchedFolder.opened(directory) as folder:
        reconciler = Reconciler(folder, origin, settings)
        for unit in reconciler.plan(units):
            reconciler.put(unit, partial(_read, unit))
        warnings = (*brought.warnings, *map(str, brought.pointer_problems(origin)))
        return reconciler.finish(IndexRecord(origin, origin, warnings=warnings), offered, refused)


def _read(unit: Unit) -> Bundle:
    check_names([f"{unit.label}/{SKILL_MD}"])
    return Bundle({unit.label: read_tree(unit.item)})


def _name(place: str) -> str:
    return place.rpartition("/")[2]
