"""A folder refreshed from honest publishers and from others: one bad skill costs itself alone."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from mcp_skills_server.dialects.wellknown import IndexRefusedError
from mcp_skills_server.format import archive
from mcp_skills_server.format.archive import Files
from mcp_skills_server.sources import folder
from mcp_skills_server.sources.records import read_indexes, read_records
from mcp_skills_server.sources.site import look, refresh
from mcp_skills_server.sources.source import (
    FetchLimits,
    UnreachableError,
)
from sources.fetching import FILES, LOCAL, fetch, fetch_to_folder, read_tree, skill_names
from sources.publishers import INDEX, Publisher, Route, answer, digest, entry, redirect, respond_and_close, skill_md


@pytest.mark.requirement("WK-25", "WK-41", "WK-47", "WK-49", "WK-51")
def test_what_was_packed_arrives_byte_for_byte_and_once(site: Publisher, place: Path) -> None:
    site.add("lone")
    raw = site.pack("packed", FILES)
    assert raw[:2] == b"PK"
    report = fetch(site, place)
    assert report.ok and report.added == ("lone", "packed") and report.version == "0.2.0"
    assert (place / "lone" / "SKILL.md").read_bytes() == skill_md("lone")
    for path, (content, executable) in FILES.items():
        assert (place / "packed" / path).read_bytes() == content
        assert bool((place / "packed" / path).stat().st_mode & 0o100) == executable
    assert len([path for path in (place / "packed").rglob("*") if path.is_file()]) == len(FILES)
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
    traces = {script: tmp_path / f"{script}-ran" for script in ("run.sh", "install", "run.py")}
    texts = {script: f"#!/bin/sh\n: > '{trace}'\n" for script, trace in traces.items()}
    texts["run.py"] = f"open({str(traces['run.py'])!r}, 'w')\n"
    scripts = {f"scripts/{script}": (text.encode(), True) for script, text in texts.items()}
    site.pack("packed", {"SKILL.md": (skill_md("packed"), True), **scripts})
    assert fetch(site, place).added == ("packed",)
    assert fetch(site, place, revalidate=True).ok
    assert not any(trace.exists() for trace in traces.values())
    for script, trace in traces.items():
        program = sys.executable if script.endswith(".py") else "/bin/sh"
        subprocess.run([program, place / "packed" / "scripts" / script], check=True)
        assert trace.exists()


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
    assert report.added == ("b",) and skill_names(place) == ["b"]
    assert [str(each) for each in report.refused] == ["nothing: there is no skill of this name"]
    fetch(site, place, wanted=frozenset({"c"}))
    assert read_indexes(place)[0].wanted == ("b", "c", "nothing")
    fetch(site, place)
    assert read_indexes(place)[0].wanted is None and skill_names(place) == ["a", "b", "c"]


def test_a_changed_skill_is_updated_and_a_vanished_one_told(site: Publisher, place: Path) -> None:
    for name in ("a", "b", "c"):
        site.add(name)
    fetch(site, place)
    site.add("b", skill_md("b", "Read more."))
    site.entries = [each for each in site.entries if each["name"] != "c"]
    report = fetch(site, place)
    assert (report.updated, report.unchanged, report.gone, report.pruned) == (("b",), ("a",), ("c",), ())
    assert b"Read more." in (place / "b" / "SKILL.md").read_bytes()
    assert skill_names(place) == ["a", "b", "c"] and report.ok
    report = fetch(site, place, prune=True)
    assert report.pruned == ("c",) and skill_names(place) == ["a", "b"]
    assert [record.name for record in read_records(place)] == ["a", "b"]


def test_what_was_edited_or_not_fetched_is_never_pruned(site: Publisher, place: Path) -> None:
    for name in ("a", "b"):
        site.add(name)
    fetch(site, place)
    mine = place / "a" / "SKILL.md"
    mine.write_bytes(b"mine")
    (place / "mine").mkdir()
    site.add("b", digest="none")
    report = fetch(site, place, prune=True)
    assert (report.gone, report.edited) == ((), ("a",)) and report.refused[0].name == "b", "a bad entry is not gone"
    site.entries = []
    report = fetch(site, place, prune=True)
    assert report.gone == ("a", "b") and report.pruned == ("b",) and not report.ok
    assert skill_names(place) == ["a", "mine"] and mine.read_bytes() == b"mine"


def test_two_sources_share_a_folder_and_a_name_that_is_taken_is_refused(site: Publisher, place: Path) -> None:
    (place / "a").mkdir(parents=True)
    (place / "a" / "mine").write_bytes(b"mine")
    site.add("a")
    site.add("b")
    report = fetch(site, place, force=True)
    assert report.added == ("b",) and report.refused[0].fault == "here"
    assert read_tree(place / "a") == {"mine": b"mine"}
    with Publisher() as other:
        other.add("b")
        other.add("c")
        report = fetch(other, place, force=True, prune=True)
        assert f"the one there was fetched from {site.url}" in report.refused[0].reason and "/a/b" not in other.paths
    assert skill_names(place) == ["a", "b", "c"] and len(read_indexes(place)) == 2


def test_an_index_of_more_skills_than_are_allowed_is_refused(site: Publisher, place: Path) -> None:
    site.entries = [{}, {}]
    with pytest.raises(IndexRefusedError, match="has 2 entries, at most 1"):
        fetch(site, place, limits=FetchLimits(skills=1))


def test_a_secret_in_the_address_is_in_no_message_and_for_the_owner_alone(site: Publisher, place: Path) -> None:
    site.add("a")
    assert fetch(f"{site.url}{INDEX}?key=very-secret", place).added == ("a",)
    assert site.asked[0].path == f"{INDEX}?key=very-secret"
    files = [path for path in place.rglob("*") if path.is_file() and b"very-secret" in path.read_bytes()]
    private = [*files, place / ".mcp-skills" / "skills"]
    assert files and (os.name == "nt" or all(path.stat().st_mode & 0o077 == 0 for path in private))
    with Publisher() as other:
        other.add("a")
        (refused,) = fetch(other, place).refused
    assert f"fetched from {site.url}" in refused.reason and "very-secret" not in refused.reason


@pytest.mark.parametrize("connections", [3, 8])
def test_all_of_it_has_an_end_and_a_few_are_asked_for_at_a_time(site: Publisher, place: Path, connections: int) -> None:
    site.add("a")
    for number in range(20):
        site.add(f"stalls-{number}", route=site.stall())
    report = fetch(site, place, limits=FetchLimits(total_s=1), connections=connections)
    assert report.added == ("a",) and len(report.refused) == 20
    assert {each.reason for each in report.refused} == {"not fetched within 1 s"}
    assert len([path for path in site.paths if "stalls" in path]) == connections
    site.routes[INDEX] = site.stall()
    with pytest.raises(UnreachableError, match="took longer than 1 s"):
        fetch(site, place, limits=FetchLimits(total_s=1))


def test_progress_is_told(site: Publisher, place: Path) -> None:
    heard: list[tuple[int, int]] = []
    for name in ("a", "b"):
        site.add(name)
        anyio.run(refresh, site.url, place, LOCAL, lambda done, total: heard.append((done, total)))
    assert heard == [(0, 1), (1, 1), (1, 2), (2, 2)]


def test_cancelling_leaves_a_whole_folder(site: Publisher, place: Path) -> None:
    site.add("a")
    site.add("b", route=site.stall())

    async def run() -> None:
        with anyio.move_on_after(0.5):
            await refresh(site.url, place, LOCAL)

    anyio.run(run)
    assert set(skill_names(place)) <= {"a"}
    site.add("b")
    assert "b" in fetch(site, place).added


# The bytes that all skills together may have


def big(site: Publisher, name: str, size: int = 100_000) -> None:
    site.pack(name, {"SKILL.md": (skill_md(name), False), "big.bin": (bytes(size), False)})


def test_all_skills_together_have_a_limit_and_what_does_not_fit_is_named(site: Publisher, place: Path) -> None:
    limits = FetchLimits(unpacked_bytes=350_000)
    for number in range(9):
        big(site, f"big-{number}")
    site.add("small")
    report = fetch(site, place, limits=limits)
    assert "small" in report.added and len(report.added) == 4 and len(report.refused) == 6
    assert not {each.name for each in report.refused} & {*report.added}
    said = "all skills of the source together have more than 350000 bytes, unpacked"
    assert all(each.reason.startswith(said) and each.fault == "publisher" for each in report.refused)
    # Again and again it would grow, if what is there did not count.
    for _ in range(2):
        assert fetch(site, place, limits=limits).added == () and len(skill_names(place)) == 4
    assert len(fetch(site, place).added) == 6


def test_a_skill_that_grows_has_the_room_of_what_it_replaces(site: Publisher, place: Path) -> None:
    limits = FetchLimits(unpacked_bytes=350_000)
    for name in "abc":
        big(site, name)
    whole = 3 * (100_000 + len(skill_md("a")))
    for most, names in ((whole - 1, 2), (whole, 1)):
        assert len(fetch(site, place, limits=FetchLimits(unpacked_bytes=most)).added) == names
    big(site, "a", 140_000)
    assert fetch(site, place, limits=limits).updated == ("a",)
    big(site, "b", 120_000)
    report = fetch(site, place, limits=limits)
    assert [each.name for each in report.refused] == ["b"] and (place / "b" / "big.bin").stat().st_size == 100_000
    big(site, "a", 10_000)
    assert "a" in fetch(site, place, limits=limits).updated
    assert fetch(site, place, limits=limits).ok and (place / "b" / "big.bin").stat().st_size == 120_000


@pytest.mark.requirement("WK-30")
def test_all_files_of_a_skill_of_an_old_site_have_its_limit_together(site: Publisher, place: Path) -> None:
    site.list_files({"a": {"SKILL.md": skill_md("a"), **{f"{number}.bin": bytes(30_000) for number in range(4)}}})
    report = fetch(site, place, limits=FetchLimits(skill_bytes=100_000))
    assert len(report.refused) == 1 and not report.added and not skill_names(place)
    assert fetch(site, place, limits=FetchLimits(skill_bytes=130_000)).added == ("a",)


def test_what_cannot_be_kept_takes_no_room(site: Publisher, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "ab":
        big(site, name)
    write, faults = folder.write_tree, iter([OSError(28, "No space left on device")])

    def fail_once(top: str, files: Files) -> dict[str, os.stat_result]:
        for fault in faults:
            raise fault
        return write(top, files)

    monkeypatch.setattr(folder, "write_tree", fail_once)
    report = fetch(site, place, limits=FetchLimits(unpacked_bytes=150_000), connections=1)
    assert report.added == ("b",) and "No space left" in report.refused[0].reason


# Another kind of source, whose skills may lie deep


def packed(path: Path, **found: str) -> None:
    """Publish skills by path, `__` for a slash, with what their SKILL.md says."""
    files = {f"{name.replace('__', '/')}/SKILL.md": (skill_md(name, said), False) for name, said in found.items()}
    path.write_bytes(archive.pack(files | {"deep/alpha/scripts/run.sh": (b"#!/bin/sh", True)})[1])


def test_skills_of_an_archive_are_folders_under_their_names(tmp_path: Path, place: Path) -> None:
    path = tmp_path / "x.tar.gz"
    packed(path, deep__alpha="one", beta="one")
    assert set(fetch_to_folder(str(path), place).added) == {"alpha", "beta"} == set(skill_names(place))
    assert (place / "alpha" / "scripts" / "run.sh").stat().st_mode & 0o100
    assert {record.source for record in read_records(place)} == {str(path)}
    packed(path, deep__alpha="one", deeper__alpha="two", beta="two")
    assert [str(each) for each in fetch_to_folder(str(path), place).refused] == [
        "alpha: another skill of this name comes before it"
    ]


# Bad artifacts and entries


@pytest.mark.requirement("WK-26")
def test_the_bytes_tell_the_format(site: Publisher, place: Path) -> None:
    suffix, raw = archive.pack({"SKILL.md": (skill_md("a"), False), "b.txt": (b"b", False)})
    assert suffix == ".tar.gz"
    for seen in ("application/gzip", "application/zip", "application/octet-stream", "text/plain"):
        site.add("a", raw, route=answer(raw, content_type=seen))
        assert fetch(site, place / seen).added == ("a",)


@pytest.mark.requirement("WK-14", "WK-15", "WK-48", "WK-60", "X-23")
def test_a_bad_artifact_costs_its_skill_alone(site: Publisher, place: Path) -> None:
    raw = skill_md("bad")
    bad: list[tuple[Route, str, str]] = [
        (answer(skill_md("bad", "Tampered.")), "its digest is sha256:", "publisher"),
        (answer(b""), "its digest is sha256:", "publisher"),
        (answer(raw + b"!", length=len(raw) - 1), "its digest is", "publisher"),
        (answer(gzip.compress(raw), content_encoding="gzip"), "came with Content-Encoding gzip", "publisher"),
        (answer(gzip.compress(bytes(9 << 20)), content_encoding="gzip"), "Content-Encoding gzip", "publisher"),
        (answer(b"<!doctype html>Sign in", content_type="text/html"), "is a web page (HTML)", "publisher"),
        (answer(b"", 404), "is not there", "publisher"),
        (answer(b"", 503), "does not answer now", "network"),
        (redirect("http://192.168.1.1/"), "another origin", "publisher"),
        (redirect("https://cdn.example/"), "--fetch-origin https://cdn.example allows it", "publisher"),
        (respond_and_close(answer(raw, length=500)), "broke off", "network"),
    ]
    site.add("a")
    for number, (route, _, _) in enumerate(bad):
        site.add(f"bad-{number:02}", raw, route)
    site.add("z")
    report = fetch(site, place)
    assert report.added == ("a", "z") and skill_names(place) == ["a", "z"] and not report.ok
    for refusal, (_, said, fault) in zip(report.refused, bad, strict=True):
        assert said in refusal.reason and refusal.fault == fault
    assert not os.listdir(place / ".mcp-skills" / "stage")
    assert [record.name for record in read_records(place)] == ["a", "z"]


def test_a_bad_entry_costs_itself_alone(site: Publisher, place: Path) -> None:
    bad = [
        ({"digest": "sha256:" + "A" * 64}, "its digest is not"),
        ({"type": "archive"}, "neither a .tar.gz nor a .zip"),
        ({"name": "other"}, "has the name 'bad"),
        ({"name": "../evil"}, "the name holds"),
        ({"name": "con"}, "Windows cannot hold the name"),
        ({"url": "http://169.254.169.254/latest/meta-data/"}, "another origin"),
        ({"name": "a"}, "an entry before it has the same name"),
    ]
    site.add("a")
    for number, (changed, _) in enumerate(bad):
        raw = site.add(f"bad-{number}")
        site.entries[-1] = entry(f"bad-{number}", raw, f"/a/bad-{number}") | changed
    site.add("z")
    report = fetch(site, place)
    assert report.added == ("a", "z") and skill_names(place) == ["a", "z"] and len(report.refused) == len(bad)
    for _, said in bad:
        assert any(said in each.reason and str(each).isprintable() for each in report.refused)


def test_a_list_of_files_of_0_1_0_brings_none_of_them_either(site: Publisher, place: Path) -> None:
    site.list_files({"a": {"SKILL.md": skill_md("a"), ".git/config": b"[core]"}})
    report = fetch(site, place)
    assert [refusal.name for refusal in report.refused] == ["a"] and ".git/config" in str(report.refused[0])
    assert skill_names(place) == []


@pytest.mark.parametrize(("raw", "most"), [(b"PK", (4 << 20) + 1000), (None, 1 << 20)])
def test_an_artifact_may_be_so_large_and_no_larger(site: Publisher, place: Path, raw: bytes | None, most: int) -> None:
    """An archive as large as its skill may be and what an archive adds to it, a SKILL.md as large as any may be."""
    for size, said in ((most, "its digest is"), (most + 1, f"has {most + 1} bytes, at most {most} are taken")):
        site.add("a", raw, answer(bytes(size)))
        (refusal,) = fetch(site, place, limits=FetchLimits(skill_bytes=1000)).refused
        assert said in refusal.reason
