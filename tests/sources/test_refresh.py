"""A folder refreshed from honest publishers and from a zoo of others: one bad skill costs itself alone."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from mcp_skills_server.dialects.wellknown import IndexRefusedError
from mcp_skills_server.errors import UsageError
from mcp_skills_server.format import archive
from mcp_skills_server.format.archive import Files
from mcp_skills_server.sources import folder
from mcp_skills_server.sources.folder import ConflictError, FetchedFolder
from mcp_skills_server.sources.records import read_indexes, read_records
from mcp_skills_server.sources.site import look, refresh
from mcp_skills_server.sources.source import Bounds, FetchLimits, UnreachableError
from sources.fetching import FILES, LOCAL, fetch, listing, skills
from sources.publishers import (
    INDEX,
    Asked,
    Publisher,
    answer,
    digest,
    skill_md,
)


@pytest.mark.requirement("WK-25", "WK-41", "WK-47", "WK-49", "WK-51")
def test_what_was_packed_arrives_byte_for_byte_and_once(site: Publisher, place: Path) -> None:
    site.add("lone")
    raw = site.pack("packed", FILES)
    assert raw[:2] == b"PK"
    report = fetch(site, place)
    assert report.ok and report.added == ("lone", "packed") and report.version == "0.2.0"
    assert (place / "lone" / "SKILL.md").read_bytes() == skill_md("lone")
    for path, (content, _) in FILES.items():
        assert (place / "packed" / path).read_bytes() == content
    assert archive.pack(_read(place / "packed"))[1] == raw
    seen = {record.name: record for record in read_records(place)}
    assert seen["packed"].digest == digest(raw) and seen["packed"].source == f"{site.url}{INDEX}"
    again = fetch(site, place)
    assert again.unchanged == ("lone", "packed") and again.ok and again.bytes == 0
    first, *artifacts, last = site.paths
    assert first == last == INDEX and sorted(artifacts) == ["/a/lone", "/a/packed"]
    assert "if-none-match" in site.asked[-1].headers


@pytest.mark.requirement("WK-52", "WK-53", "WK-54")
def test_nothing_that_arrives_is_executed(site: Publisher, place: Path, tmp_path: Path) -> None:
    """Every way to be started is offered, each leaves a trace, and the traces are proved to come when it is."""
    traces = {name: tmp_path / f"{name}-ran" for name in ("shell", "python", "hook")}
    files: Files = {
        "SKILL.md": (skill_md("packed"), True),
        "scripts/run.sh": (f"#!/bin/sh\n: > '{traces['shell']}'\n".encode(), True),
        "scripts/run.py": (f"open({str(traces['python'])!r}, 'w')\n".encode(), True),
        "scripts/install": (f"#!/bin/sh\n: > '{traces['hook']}'\n".encode(), True),
    }
    site.pack("packed", files)
    assert fetch(site, place).added == ("packed",)
    assert fetch(site, place, revalidate=True).ok
    assert [name for name, trace in traces.items() if trace.exists()] == []
    for script in ("run.sh", "run.py", "install"):
        program = [sys.executable] if script.endswith(".py") else ["/bin/sh"]
        subprocess.run([*program, place / "packed" / "scripts" / script], check=True)
    assert all(trace.exists() for trace in traces.values())


@pytest.mark.requirement("WK-62", "S76-17")
def test_what_a_skill_points_to_elsewhere_is_not_fetched_with_it(site: Publisher, place: Path) -> None:
    site.routes["/more.md"] = answer(b"Elsewhere.")
    links = f"[More]({site.url}/more.md) ![]({site.url}/more.md) <{site.url}/more.md> [up](../more.md)"
    site.add("a", skill_md("a", links))
    assert fetch(site, place).added == ("a",)
    assert site.paths == [INDEX, "/a/a"]


@pytest.mark.requirement("WK-50")
def test_looking_asks_for_the_index_alone(site: Publisher) -> None:
    site.add("a")
    url, index = anyio.run(look, site.url, LOCAL)
    assert url == f"{site.url}{INDEX}" and [each.name for each in index.entries] == ["a"]
    assert site.paths == [INDEX]


def test_only_what_is_wanted_is_fetched(site: Publisher, place: Path) -> None:
    for name in ("a", "b", "c"):
        site.add(name)
    report = fetch(site, place, wanted=frozenset({"b", "nothing"}))
    assert report.added == ("b",) and skills(place) == ["b"]
    assert [str(each) for each in report.refused] == ["nothing: there is no skill of this name"]
    fetch(site, place, wanted=frozenset({"c"}))
    assert read_indexes(place)[0].wanted == ("b", "c", "nothing")
    fetch(site, place)
    assert read_indexes(place)[0].wanted is None and skills(place) == ["a", "b", "c"]


def test_a_changed_skill_is_updated_and_a_vanished_one_told(site: Publisher, place: Path) -> None:
    for name in ("a", "b", "c"):
        site.add(name)
    fetch(site, place)
    site.add("b", skill_md("b", "Read more."))
    site.entries = [each for each in site.entries if each["name"] != "c"]
    report = fetch(site, place)
    assert (report.updated, report.unchanged, report.gone, report.pruned) == (("b",), ("a",), ("c",), ())
    assert b"Read more." in (place / "b" / "SKILL.md").read_bytes()
    assert skills(place) == ["a", "b", "c"] and report.ok
    report = fetch(site, place, prune=True)
    assert report.pruned == ("c",) and skills(place) == ["a", "b"]
    assert [record.name for record in read_records(place)] == ["a", "b"]


def test_what_was_edited_or_not_fetched_is_never_pruned(site: Publisher, place: Path) -> None:
    for name in ("a", "b"):
        site.add(name)
    fetch(site, place)
    (place / "a" / "SKILL.md").write_bytes(b"mine")
    (place / "mine").mkdir()
    site.entries = []
    report = fetch(site, place, prune=True)
    assert report.gone == ("a", "b") and report.pruned == ("b",) and not report.ok
    assert skills(place) == ["a", "mine"] and (place / "a" / "SKILL.md").read_bytes() == b"mine"


def test_a_bad_entry_is_not_gone(site: Publisher, place: Path) -> None:
    site.add("a")
    fetch(site, place)
    site.add("a", digest="none")
    report = fetch(site, place, prune=True)
    assert report.gone == () and report.refused[0].name == "a" and skills(place) == ["a"]


def test_an_edited_skill_is_kept_and_told(site: Publisher, place: Path) -> None:
    site.add("a")
    fetch(site, place)
    mine = place / "a" / "SKILL.md"
    mine.write_bytes(b"mine")
    report = fetch(site, place)
    assert report.edited == ("a",) and report.ok
    site.add("a", skill_md("a", "Read more."))
    report = fetch(site, place)
    assert "it was edited there" in report.refused[0].reason and mine.read_bytes() == b"mine"
    assert fetch(site, place, force=True).updated == ("a",)
    assert b"Read more." in mine.read_bytes()


def test_a_name_that_is_taken_is_refused(site: Publisher, place: Path) -> None:
    (place / "a").mkdir(parents=True)
    (place / "a" / "mine").write_bytes(b"mine")
    site.add("a")
    site.add("b")
    before = listing(place / "a")
    report = fetch(site, place, force=True)
    assert report.added == ("b",) and report.refused[0].fault == "here" and listing(place / "a") == before
    with Publisher() as other:
        other.add("b")
        report = fetch(other, place, force=True)
        assert f"it was fetched from {site.url}" in report.refused[0].reason.replace("the one there was", "it was")
        assert "/a/b" not in other.paths


def test_two_sources_share_a_folder(site: Publisher, place: Path) -> None:
    site.add("a")
    with Publisher() as other:
        other.add("b")
        fetch(site, place)
        fetch(other, place, prune=True)
        assert skills(place) == ["a", "b"] and len(read_indexes(place)) == 2


def test_a_skill_over_its_limit_is_refused(site: Publisher, place: Path) -> None:
    site.pack("big", {"SKILL.md": (skill_md("big"), False), "big.bin": (bytes(20_000), False)})
    site.add("small")
    report = fetch(site, place, limits=FetchLimits(skill_bytes=10_000))
    assert report.added == ("small",) and "more than 10000 bytes" in report.refused[0].reason
    with pytest.raises(IndexRefusedError, match="has 2 entries, at most 1"):
        fetch(site, place, limits=FetchLimits(skills=1), revalidate=True)


SECRET = "?key=very-secret"


def test_a_secret_in_the_address_is_in_no_message_and_for_the_owner_alone(site: Publisher, place: Path) -> None:
    site.add("a")
    url = f"{site.url}{INDEX}{SECRET}"
    assert fetch(url, place).added == ("a",)
    assert site.asked[0].path == f"{INDEX}{SECRET}"
    files = [path for path in place.rglob("*") if path.is_file() and b"very-secret" in path.read_bytes()]
    assert files and (os.name == "nt" or all(path.stat().st_mode & 0o077 == 0 for path in files))
    with FetchedFolder.opened(place) as store:
        state, record = store.look("a")
    with pytest.raises(ConflictError) as withheld:
        folder.check(state, record, "another", force=False)
    with pytest.raises(UsageError, match="a user name or a password") as wrong:
        fetch("https://user:very-secret@example.com/", place)
    for caught in (withheld, wrong):
        assert "very-secret" not in str(caught.value)


@pytest.mark.skipif(os.name == "nt", reason="needs modes as POSIX has them")
def test_records_of_before_are_closed_to_others(site: Publisher, place: Path) -> None:
    site.add("a")
    fetch(site, place)
    kept = place / ".mcp-skills" / "skills"
    kept.chmod(0o755)
    (kept / "a.json").chmod(0o644)
    assert fetch(site, place).unchanged == ("a",)
    assert kept.stat().st_mode & 0o077 == 0


def test_all_of_it_has_an_end(site: Publisher, place: Path) -> None:
    site.add("a")
    for number in range(20):
        site.add(f"stalls-{number}", route=site.stall())
    report = fetch(site, place, limits=FetchLimits(total_s=1))
    assert report.added == ("a",) and len(report.refused) == 20
    assert {each.reason for each in report.refused} == {"not fetched within 1 s"}
    site.routes[INDEX] = site.stall()
    with pytest.raises(UnreachableError, match="took longer than 1 s"):
        fetch(site, place, limits=FetchLimits(total_s=1))


def test_a_full_disk_costs_the_skill(site: Publisher, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site.add("a")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(folder, "write_tree", full)
    report = fetch(site, place)
    assert str(report.refused[0]) == "a: it cannot be kept: No space left on device" and not skills(place)


@pytest.mark.parametrize(("changed", "connections"), [({"connections": 3}, 3), ({}, 6)])
def test_downloads_run_a_few_at_a_time(site: Publisher, place: Path, changed: dict[str, int], connections: int) -> None:
    together = threading.Barrier(connections, timeout=20)
    most = 0
    lock = threading.Lock()
    now: list[int] = []

    def route(asked: Asked) -> Iterator[bytes]:
        nonlocal most
        with lock:
            now.append(1)
            most = max(most, len(now))
        together.wait()
        with lock:
            now.pop()
        yield answer(skill_md(asked.path.rpartition("/")[2]))

    for number in range(2 * connections):
        site.add(f"s-{number}", route=route)
    patient = replace(LOCAL, bounds=Bounds(read_s=20, download_s=20))
    assert len(fetch(site, place, patient, **changed).added) == 2 * connections
    assert most == connections


def test_progress_is_told(site: Publisher, place: Path) -> None:
    heard: list[tuple[int, int]] = []
    for name in ("a", "b"):
        site.add(name)
    anyio.run(refresh, site.url, place, LOCAL, lambda done, total: heard.append((done, total)))
    assert heard == [(0, 2), (1, 2), (2, 2)]


def test_cancelling_leaves_a_whole_folder(site: Publisher, place: Path) -> None:
    site.add("a")
    site.add("b", route=site.stall())

    async def run() -> None:
        with anyio.move_on_after(0.5):
            await refresh(site.url, place, LOCAL)

    anyio.run(run)
    assert set(skills(place)) <= {"a"}
    site.add("b")
    assert "b" in fetch(site, place).added


def test_no_url_is_wrong_usage(place: Path) -> None:
    with pytest.raises(UsageError, match="not an http or https URL"):
        fetch("example.com", place)
    assert not place.exists()


def _read(top: Path) -> Files:
    return {
        path.relative_to(top).as_posix(): (path.read_bytes(), bool(path.stat().st_mode & 0o100))
        for path in top.rglob("*")
        if path.is_file()
    }
