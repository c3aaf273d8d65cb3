"""What a source has, copied into a folder of fetched skills: what is somebody's own stays, as with a site."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from mcp_skills_server.format import archive
from mcp_skills_server.sources.archive import Archive
from mcp_skills_server.sources.reconcile import reconcile
from mcp_skills_server.sources.records import read_indexes, read_record
from mcp_skills_server.sources.source import FetchReport, FetchSettings, SourceSettings
from sources.fetching import listing, skills
from sources.publishers import skill_md


@pytest.fixture
def source(tmp_path: Path) -> Archive:
    return Archive(str(tmp_path / "x.tar.gz"), SourceSettings(tmp_path / "cache"))


def publish(source: Archive, **found: str) -> None:
    """Skills by path, `__` for a slash, with what their SKILL.md says."""
    files = {f"{path.replace('__', '/')}/SKILL.md": (skill_md(path, said), False) for path, said in found.items()}
    files["deep/alpha/scripts/run.sh"] = b"#!/bin/sh", True
    Path(source.origin).write_bytes(archive.pack(files)[1])


def bring(source: Archive, place: Path, **changed: object) -> FetchReport:
    fetch = replace(FetchSettings(), **changed)  # pyright: ignore[reportArgumentType]
    into = Archive(source.origin, SourceSettings(place, fetch=fetch, output=place))

    async def run() -> FetchReport:
        return await reconcile(into, await into.resolve())

    return anyio.run(run)


def test_each_skill_is_a_folder_under_its_name(source: Archive, place: Path) -> None:
    publish(source, deep__alpha="one", beta="one")
    report = bring(source, place)
    assert report.ok and set(report.added) == {"alpha", "beta"} and skills(place) == ["alpha", "beta"]
    assert (place / "alpha" / "scripts" / "run.sh").stat().st_mode & 0o100
    record = read_record(place, "alpha")
    assert record is not None and record.source == source.origin
    assert [each.given for each in read_indexes(place)] == [source.origin]
    assert set(bring(source, place).unchanged) == {"alpha", "beta"}


def test_what_changed_is_updated_and_what_was_edited_stays(source: Archive, place: Path) -> None:
    publish(source, deep__alpha="one", beta="one")
    bring(source, place)
    (place / "beta" / "SKILL.md").write_bytes(b"mine")
    publish(source, deep__alpha="two", beta="two", gamma="new")
    report = bring(source, place)
    assert (report.updated, report.edited, report.added) == (("alpha",), ("beta",), ("gamma",))
    assert (place / "beta" / "SKILL.md").read_bytes() == b"mine"
    assert bring(source, place, force=True).updated == ("beta",)


def test_what_is_gone_stays_until_it_is_pruned(source: Archive, place: Path) -> None:
    publish(source, deep__alpha="one", beta="one")
    bring(source, place)
    publish(source, deep__alpha="one")
    assert bring(source, place).gone == ("beta",) and skills(place) == ["alpha", "beta"]
    assert bring(source, place, prune=True).pruned == ("beta",) and skills(place) == ["alpha"]


def test_only_what_is_wanted_comes(source: Archive, place: Path) -> None:
    publish(source, deep__alpha="one", beta="one")
    report = bring(source, place, wanted=frozenset(("beta", "nobody")))
    assert report.added == ("beta",) and [each.name for each in report.refused] == ["nobody"] and not report.ok
    assert read_indexes(place)[0].wanted == ("beta", "nobody")


def test_what_somebody_else_has_there_and_a_second_one_of_a_name_are_refused(source: Archive, place: Path) -> None:
    (place / "beta").mkdir(parents=True)
    (place / "beta" / "mine").write_bytes(b"")
    publish(source, deep__alpha="one", deeper__alpha="two", beta="one")
    before = listing(place / "beta")
    report = bring(source, place)
    assert report.added == ("alpha",) and sorted(each.name for each in report.refused) == ["alpha", "beta"]
    assert listing(place / "beta") == before
