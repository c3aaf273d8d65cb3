"""Common behaviour of every kind of source: updates, outages, repair, pins and edited skills."""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from queue import SimpleQueue

import anyio
import pytest
from examples import database_source

from mcp_skills_server.commands.opening import open_roots
from mcp_skills_server.commands.options import FollowOptions
from mcp_skills_server.errors import UsageError
from mcp_skills_server.sources.cache import trim
from sources.fetching import QUICK, fetch_to_folder, open_follower, served_files, warnings_of_refresh
from sources.hostile import KINDS, Member, PublishedSource, every_kind
from sources.publishers import skill_md
from wire import DEADLINE

EDITED = "it was edited there, and stays; --force replaces it"
LOG_LINE = re.compile(r".*: fetched ([0-9a-f]{12})(?: \(was ([0-9a-f]{12})\))?: (.*)")


@pytest.fixture
def place(name: str, tmp_path: Path) -> Iterator[PublishedSource]:
    with KINDS[name].open(tmp_path) as opened:
        yield opened


@every_kind
def test_update_logs_revisions_and_rewrites_only_changed_skills(
    name: str, place: PublishedSource, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="mcp_skills_server.sources")
    previous, inode = None, 0
    # body of `good`, members of `bad`, and the logged changes
    for text, bad, changes in (
        ("first", (), "added good"),
        ("second", [Member("more.md")], "added bad; changed good"),
        ("second", [Member("more.md", b"more")], "changed bad"),
        ("third", (), "changed good; removed bad"),
    ):
        place.publish(text, bad)
        if KINDS[name].keeps_copy or previous is None:
            follower = open_follower(place.given, tmp_path / "cache", QUICK)
        caplog.clear()
        anyio.run(partial(follower.refresh, anew=True))
        (line,) = caplog.messages
        found = LOG_LINE.fullmatch(line)
        assert found is not None
        assert follower.state.revision.removeprefix("sha256:").startswith(found[1])
        assert (found[2], found[3]) == (previous, changes)
        previous = found[1]
        old_inode, inode = inode, (follower.path / "good" / "SKILL.md").stat().st_ino
        assert (old_inode == inode) is ("good" not in changes)
    caplog.clear()
    anyio.run(partial(follower.refresh, anew=True))
    assert caplog.messages == []


@every_kind
def test_registry_is_told_of_each_revision_without_a_watch(name: str, place: PublishedSource, tmp_path: Path) -> None:
    place.publish("first", [Member("more.md")])
    options = FollowOptions(cache_dir=str(tmp_path / "cache"), allow_private=True, allow_http=True)
    opened = open_roots([place.given], options, kinds=(database_source.KIND,), commands=[place.given])
    registry, seen = opened.registry, SimpleQueue[tuple[str, dict[str, str]]]()

    def read(_: object) -> None:
        found = registry.snapshot.skills
        bodies = {path: registry.body(skill).text.strip() for path, skill in found.items()}
        seen.put((registry.roots[0].revision, bodies))

    assert opened.mirrors is not None
    opened.start(DEADLINE)
    try:
        registry.load()
        registry.subscribe(read)
        revisions = [registry.roots[0].revision]
        for text in ("second", "third"):
            place.publish(text, ())
            opened.mirrors.poll_now()
            revision, bodies = seen.get(timeout=DEADLINE)
            assert bodies == {"good": text}
            revisions.append(revision)
        assert len({*revisions} - {""}) == 3
        assert seen.empty()
        while opened.mirrors.states()[0].revision != revisions[-1]:
            pass  # set at once after the registry has it
    finally:
        opened.stop()


@every_kind
def test_last_copy_is_served_during_outage_and_after_restart(
    name: str, place: PublishedSource, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place.publish("first", ())
    follower = open_follower(place.given, tmp_path / "cache", QUICK)
    assert not follower.state.ready
    assert warnings_of_refresh(follower, caplog) == []
    assert follower.state.ready
    before = served_files(follower)
    trim(tmp_path / "cache", 0)  # evicts no leased folder
    place.make_unreachable()
    followers = [follower]
    if KINDS[name].keeps_copy:
        followers.append(open_follower(place.given, tmp_path / "cache", QUICK))
    for each in followers:
        (line,) = warnings_of_refresh(each, caplog)
        assert line.endswith("; serving the last copy")
        assert line.isprintable()
        assert each.state.ready
        assert each.state.trouble
        assert each.state.revision == follower.state.revision != ""
        assert served_files(each) == before
    without_copy = open_follower(place.given, tmp_path / "empty", QUICK)
    (line,) = warnings_of_refresh(without_copy, caplog)
    assert line.endswith("; there is no copy of it yet")
    assert not without_copy.state.ready


def damage_records(folder: Path) -> None:
    for record in (folder / ".mcp-skills").rglob("*.json"):
        record.write_bytes(b"{}")
    (folder / "bad" / "mine.md").write_bytes(b"mine")


def lose_skill(folder: Path) -> None:
    """Delete a skill with its record, as a cleaner of old files does."""
    shutil.rmtree(folder / "bad")
    (folder / ".mcp-skills" / "skills" / "bad.json").unlink()


def edit_skill_without_record(folder: Path) -> None:
    (folder / ".mcp-skills" / "skills" / "bad.json").unlink()
    (folder / "bad" / "SKILL.md").write_bytes(b"mine")


@every_kind
def test_damaged_copy_is_repaired(name: str, place: PublishedSource, tmp_path: Path) -> None:
    place.publish("first", [Member("scripts/more.md")])
    follower = open_follower(place.given, tmp_path / "cache", QUICK)
    anyio.run(follower.refresh)
    before = served_files(follower)
    assert {"bad/scripts/more.md", "good/SKILL.md"} <= before.keys()
    for damage in (
        lambda folder: (folder / "good" / "SKILL.md").write_bytes(b"mine"),
        lambda folder: shutil.rmtree(folder / "bad" / "scripts"),
        lambda folder: (folder / "bad" / "mine.md").write_bytes(b"mine"),
        lambda folder: (folder / "mine").mkdir() or (folder / "good" / "SKILL.md").unlink(),
        lambda folder: (folder / "mine").mkdir(),
        damage_records,
        lose_skill,
        edit_skill_without_record,
    ):
        if KINDS[name].keeps_copy:  # a process checks its files when it starts
            damage(follower.path)
            anyio.run(open_follower(place.given, tmp_path / "cache", QUICK).refresh)
            assert served_files(follower) == before
    for gone in (follower.path / "bad", follower.path):
        shutil.rmtree(gone)
        anyio.run(follower.refresh)
        assert served_files(follower) == before


@pytest.mark.parametrize("name", ["site", "oci", pytest.param("git", marks=pytest.mark.needs_program("git"))])
def test_pinned_source_is_fetched_once_and_survives_outage(
    name: str, place: PublishedSource, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place.publish("first", ())
    newest = open_follower(place.given, tmp_path / "cache", QUICK)
    anyio.run(newest.refresh)
    pin = newest.state.revision
    if name == "site":  # it publishes its newest revision only
        anyio.run(open_follower(place.given, tmp_path / "cache", QUICK, pin=pin).refresh)
    place.publish("second", ())
    for is_unreachable in (False, True):
        if is_unreachable:
            place.make_unreachable()
        follower = open_follower(place.given, tmp_path / "cache", QUICK, pin=pin)
        assert warnings_of_refresh(follower, caplog) == []
        assert follower.source.origin == newest.source.origin
        assert anyio.run(follower.refresh) > 3600  # a pinned revision never changes
        assert served_files(follower) == served_files(newest)
        assert follower.state.revision == pin
        if name != "site":
            with pytest.raises(UsageError, match="lock it again"):
                open_follower(place.given, tmp_path / "cache", QUICK, pin="--upload-pack=x")


@every_kind
def test_edited_skill_in_output_folder_is_kept(name: str, place: PublishedSource, tmp_path: Path) -> None:
    place.publish("first", ())
    assert fetch_to_folder(place.given, tmp_path / "own").added == ("good",)
    edited = tmp_path / "own" / "good" / "SKILL.md"
    edited.write_bytes(b"mine")
    place.publish("second", [Member("more.md")])
    report = fetch_to_folder(place.given, tmp_path / "own")
    if name == "site":  # its index states the digest
        assert [str(each) for each in report.refused] == [f"good: {EDITED}"]
    else:
        assert report.edited == ("good",)
    assert report.added == ("bad",)
    assert edited.read_bytes() == b"mine"
    report = fetch_to_folder(place.given, tmp_path / "own", force=True)
    assert (report.updated, report.unchanged) == (("good",), ("bad",))
    assert edited.read_bytes() == skill_md("good", "second")
    # git alone keeps its objects in the cache
    assert (tmp_path / "cache").exists() is (name == "git")
