"""What every kind of source does alike: updates, outages, and a copy on the disk that is always whole."""

from __future__ import annotations

import logging
import re
import shutil
from functools import partial
from pathlib import Path

import anyio
import pytest

from mcp_skills_server.errors import UsageError
from mcp_skills_server.sources.cache import trim
from sources.fetching import QUICK, fetch_to_folder, open_follower, served_files, warnings_of_refresh
from sources.hostile import KINDS, Member, every_kind
from sources.publishers import skill_md

EDITED = "it was edited there, and stays; --force replaces it"
NAMED = re.compile(r".*: fetched ([0-9a-f]{12})(?: \(was ([0-9a-f]{12})\))?: (.*)")


@every_kind
def test_an_update_names_its_revisions_and_brings_what_changed_alone(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="mcp_skills_server.sources")
    with KINDS[name].open(tmp_path) as place:
        before, good = None, 0
        for text, bad, changes in (
            ("first", (), "added good"),
            ("second", [Member("more.md")], "added bad; changed good"),
            ("second", [Member("more.md", b"more")], "changed bad"),
            ("third", (), "changed good; removed bad"),
        ):
            place.publish(text, bad)
            if KINDS[name].keeps_copy or before is None:
                follower = open_follower(place.given, tmp_path / "cache", QUICK)
            caplog.clear()
            anyio.run(partial(follower.refresh, anew=True))
            (line,) = caplog.messages
            found = NAMED.fullmatch(line)
            assert found is not None and follower.state.revision.removeprefix("sha256:").startswith(found[1])
            assert (found[2], found[3]) == (before, changes)
            was, good = good, (follower.path / "good" / "SKILL.md").stat().st_ino
            assert (was == good) is ("good" not in changes)
            before = found[1]
        caplog.clear()
        anyio.run(partial(follower.refresh, anew=True))
        assert caplog.messages == []


@every_kind
def test_an_outage_leaves_what_was_current_and_the_next_start_serves_it(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with KINDS[name].open(tmp_path) as place:
        place.publish("first", ())
        follower = open_follower(place.given, tmp_path / "cache", QUICK)
        assert not follower.state.ready and warnings_of_refresh(follower, caplog) == [] and follower.state.ready
        before = served_files(follower)
        trim(tmp_path / "cache", 0)  # removes nothing that is in use
        place.take_away()
        followers = [follower]
        if KINDS[name].keeps_copy:
            followers.append(open_follower(place.given, tmp_path / "cache", QUICK))
        for again in followers:
            (line,) = warnings_of_refresh(again, caplog)
            assert line.endswith("; serving the last copy") and line.isprintable()
            assert again.state.ready and again.state.trouble and served_files(again) == before
        anew = open_follower(place.given, tmp_path / "empty", QUICK)
        (line,) = warnings_of_refresh(anew, caplog)
        assert line.endswith("; there is no copy of it yet") and not anew.state.ready


def damage_records(folder: Path) -> None:
    for record in (folder / ".mcp-skills").rglob("*.json"):
        record.write_bytes(b"{}")
    (folder / "bad" / "mine.md").write_bytes(b"mine")


@every_kind
def test_damage_of_the_copy_is_put_right(name: str, tmp_path: Path) -> None:
    with KINDS[name].open(tmp_path) as place:
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
            damage_records,
        ):
            if KINDS[name].keeps_copy:  # a process looks at its files when it starts
                damage(follower.path)
                anyio.run(open_follower(place.given, tmp_path / "cache", QUICK).refresh)
                assert served_files(follower) == before
        for gone in (follower.path / "bad", follower.path):
            shutil.rmtree(gone)
            anyio.run(follower.refresh)
            assert served_files(follower) == before


@pytest.mark.parametrize("name", ["site", "oci", pytest.param("git", marks=pytest.mark.needs_program("git"))])
def test_what_is_pinned_is_fetched_once_and_needs_its_source_no_more(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with KINDS[name].open(tmp_path) as place:
        place.publish("first", ())
        newest = open_follower(place.given, tmp_path / "cache", QUICK)
        anyio.run(newest.refresh)
        pin = newest.state.revision
        place.publish("second", ())
        for is_away in (False, True):
            if is_away:
                place.take_away()
            follower = open_follower(place.given, tmp_path / "cache", QUICK, pin=pin)
            assert warnings_of_refresh(follower, caplog) == [] and follower.source.origin == newest.source.origin
            assert anyio.run(follower.refresh) > 3600  # what cannot change is hardly ever asked for
            if name == "site":  # has only its newest, which then stays
                assert served_files(follower)["good/SKILL.md"] == skill_md("good", "second")
            else:
                assert served_files(follower) == served_files(newest) and follower.state.revision == pin
                with pytest.raises(UsageError, match="lock it again"):
                    open_follower(place.given, tmp_path / "cache", QUICK, pin="--upload-pack=x")


@every_kind
def test_in_a_folder_of_ones_own_what_was_edited_stays(name: str, tmp_path: Path) -> None:
    with KINDS[name].open(tmp_path) as place:
        place.publish("first", ())
        assert fetch_to_folder(place.given, tmp_path / "own").added == ("good",)
        mine = tmp_path / "own" / "good" / "SKILL.md"
        mine.write_bytes(b"mine")
        place.publish("second", [Member("more.md")])
        report = fetch_to_folder(place.given, tmp_path / "own")
        if name == "site":  # its index says what there should be
            assert [str(each) for each in report.refused] == [f"good: {EDITED}"]
        else:
            assert report.edited == ("good",)
        assert report.added == ("bad",) and mine.read_bytes() == b"mine"
        report = fetch_to_folder(place.given, tmp_path / "own", force=True)
        assert (report.updated, report.unchanged) == (("good",), ("bad",))
        assert mine.read_bytes() == skill_md("good", "second")
        assert (tmp_path / "cache").exists() is (name == "git")  # which keeps its objects there
