"""Fetch of a site into a folder: updates, pruning, limits, and refusal of single skills."""

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
from mcp_skills_server.sources.records import read_indexes, read_records
from mcp_skills_server.sources.site import fetch_index, refresh
from mcp_skills_server.sources.source import FetchLimits, UnreachableError
from sources.fetching import BUNDLE_FILES, LOCAL, fetch, fetch_to_folder, read_tree, skill_names
from sources.publishers import (
    INDEX,
    Publisher,
    Route,
    digest,
    entry,
    redirect,
    respond_and_close,
    respond_with,
    skill_md,
)


@pytest.mark.requirement("WK-25", "WK-41", "WK-47", "WK-49", "WK-51")
def test_files_are_fetched_unmodified_and_only_once(site: Publisher, output: Path) -> None:
    site.add("lone")
    raw = site.pack("packed", BUNDLE_FILES)
    assert raw[:2] == b"PK"
    report = fetch(site, output)
    assert report.ok
    assert report.added == ("lone", "packed")
    assert report.version == "0.2.0"
    assert (output / "lone" / "SKILL.md").read_bytes() == skill_md("lone")
    for path, (content, executable) in BUNDLE_FILES.items():
        assert (output / "packed" / path).read_bytes() == content
        assert bool((output / "packed" / path).stat().st_mode & 0o100) == executable
    assert len([path for path in (output / "packed").rglob("*") if path.is_file()]) == len(BUNDLE_FILES)
    records = {record.name: record for record in read_records(output)}
    assert records["packed"].digest == digest(raw)
    assert records["packed"].source == f"{site.url}{INDEX}"
    report = fetch(site, output)
    assert report.unchanged == ("lone", "packed")
    assert report.ok
    assert report.bytes == 0
    first, *artifacts, last = site.paths
    assert first == last == INDEX
    assert sorted(artifacts) == ["/a/lone", "/a/packed"]
    assert "if-none-match" in site.requests[-1].headers


@pytest.mark.requirement("WK-52", "WK-53", "WK-54")
def test_fetched_scripts_are_not_executed(site: Publisher, output: Path, tmp_path: Path) -> None:
    """Each script leaves a trace when it runs, which is verified at the end."""
    traces = {script: tmp_path / f"{script}-ran" for script in ("run.sh", "install", "run.py")}
    texts = {script: f"#!/bin/sh\n: > '{trace}'\n" for script, trace in traces.items()}
    texts["run.py"] = f"open({str(traces['run.py'])!r}, 'w')\n"
    scripts = {f"scripts/{script}": (text.encode(), True) for script, text in texts.items()}
    site.pack("packed", {"SKILL.md": (skill_md("packed"), True), **scripts})
    assert fetch(site, output).added == ("packed",)
    assert fetch(site, output, revalidate=True).ok
    assert not any(trace.exists() for trace in traces.values())
    for script, trace in traces.items():
        program = sys.executable if script.endswith(".py") else "/bin/sh"
        subprocess.run([program, output / "packed" / "scripts" / script], check=True)
        assert trace.exists()


@pytest.mark.requirement("WK-62", "S76-17")
def test_links_in_skill_are_not_fetched(site: Publisher, output: Path) -> None:
    site.routes["/more.md"] = respond_with(b"Elsewhere.")
    links = f"[More]({site.url}/more.md) ![]({site.url}/more.md) <{site.url}/more.md> [up](../more.md)"
    site.add("a", skill_md("a", links))
    assert fetch(site, output).added == ("a",)
    assert site.paths == [INDEX, "/a/a"]


@pytest.mark.requirement("WK-50")
def test_look_requests_only_the_index(site: Publisher) -> None:
    site.add("a")
    url, index = anyio.run(fetch_index, site.url, LOCAL)
    assert url == f"{site.url}{INDEX}"
    assert [each.name for each in index.entries] == ["a"]
    assert site.paths == [INDEX]


def test_only_wanted_skills_are_fetched(site: Publisher, output: Path) -> None:
    for name in ("a", "b", "c"):
        site.add(name)
    report = fetch(site, output, wanted=frozenset({"b", "nothing"}))
    assert report.added == ("b",)
    assert skill_names(output) == ["b"]
    assert [str(each) for each in report.refused] == ["nothing: there is no skill of this name"]
    fetch(site, output, wanted=frozenset({"c"}))
    assert read_indexes(output)[0].wanted == ("b", "c", "nothing")
    fetch(site, output)
    assert read_indexes(output)[0].wanted is None
    assert skill_names(output) == ["a", "b", "c"]


def test_edited_or_foreign_skill_is_never_pruned(site: Publisher, output: Path) -> None:
    for name in ("a", "b"):
        site.add(name)
    fetch(site, output)
    edited = output / "a" / "SKILL.md"
    edited.write_bytes(b"mine")
    (output / "mine").mkdir()
    site.add("b", digest="none")
    report = fetch(site, output, prune=True)
    assert (report.gone, report.edited) == ((), ("a",))
    assert report.refused[0].name == "b"
    site.entries = []
    report = fetch(site, output, prune=True)
    assert (report.gone, report.pruned) == (("a", "b"), ("b",))
    assert not report.ok
    assert skill_names(output) == ["a", "mine"]
    assert edited.read_bytes() == b"mine"


def test_skill_of_other_source_in_same_folder_is_not_replaced(site: Publisher, output: Path) -> None:
    (output / "a").mkdir(parents=True)
    (output / "a" / "mine").write_bytes(b"mine")
    site.add("a")
    site.add("b")
    report = fetch(f"{site.url}{INDEX}?key=very-secret", output, force=True)
    assert report.added == ("b",)
    assert report.refused[0].fault == "here"
    assert read_tree(output / "a") == {"mine": b"mine"}
    with_secret = [path for path in output.rglob("*.json") if b"very-secret" in path.read_bytes()]
    assert with_secret
    assert all(path.stat().st_mode & 0o077 == 0 for path in with_secret)
    with Publisher() as other:
        other.add("b")
        other.add("c")
        reason = fetch(other, output, force=True, prune=True).refused[0].reason
        assert f"the one there was fetched from {site.url}" in reason
        assert "very-secret" not in reason
        assert "/a/b" not in other.paths
    assert skill_names(output) == ["a", "b", "c"]
    assert len(read_indexes(output)) == 2


def test_index_over_skill_limit_is_refused(site: Publisher, output: Path) -> None:
    site.entries = [{}, {}]
    with pytest.raises(IndexRefusedError, match="has 2 entries, at most 1"):
        fetch(site, output, limits=FetchLimits(skills=1))


@pytest.mark.parametrize("connections", [3, 8])
def test_fetch_has_time_and_connection_limits(site: Publisher, output: Path, connections: int) -> None:
    site.add("a")
    for number in range(20):
        site.add(f"stalls-{number}", route=site.stall())
    report = fetch(site, output, limits=FetchLimits(total_s=1), connections=connections)
    assert report.added == ("a",)
    assert len(report.refused) == 20
    assert {each.reason for each in report.refused} == {"not fetched within 1 s"}
    assert len([path for path in site.paths if "stalls" in path]) == connections
    site.routes[INDEX] = site.stall()
    with pytest.raises(UnreachableError, match="took longer than 1 s"):
        fetch(site, output, limits=FetchLimits(total_s=1))


def test_cancelled_fetch_leaves_consistent_folder(site: Publisher, output: Path) -> None:
    site.add("a")
    site.add("b", route=site.stall())

    async def run() -> None:
        with anyio.move_on_after(0.5):
            await refresh(site.url, output, LOCAL)

    anyio.run(run)
    assert set(skill_names(output)) <= {"a"}
    site.add("b")
    assert "b" in fetch(site, output).added


def publish_large(site: Publisher, name: str, size: int = 100_000) -> None:
    site.pack(name, {"SKILL.md": (skill_md(name), False), "big.bin": (bytes(size), False)})


def test_skills_over_unpacked_limit_are_refused_by_name(site: Publisher, output: Path) -> None:
    limits = FetchLimits(unpacked_bytes=350_000)
    for number in range(9):
        publish_large(site, f"big-{number}")
    site.add("small")
    report = fetch(site, output, limits=limits)
    assert "small" in report.added
    assert len(report.added) == 4
    assert len(report.refused) == 6
    assert not {each.name for each in report.refused} & {*report.added}
    reason = "all skills of the source together have more than 350000 bytes, unpacked"
    for each in report.refused:
        assert each.reason.startswith(reason)
        assert each.fault == "publisher"
    for _ in range(2):  # skills that are already stored count too
        assert fetch(site, output, limits=limits).added == ()
        assert len(skill_names(output)) == 4
    assert len(fetch(site, output).added) == 6


def test_replaced_skill_frees_its_bytes_under_unpacked_limit(site: Publisher, output: Path) -> None:
    limits = FetchLimits(unpacked_bytes=350_000)
    for name in "abc":
        publish_large(site, name)
    whole = 3 * (100_000 + len(skill_md("a")))
    for most, names in ((whole - 1, 2), (whole, 1)):
        assert len(fetch(site, output, limits=FetchLimits(unpacked_bytes=most)).added) == names
    publish_large(site, "a", 140_000)
    assert fetch(site, output, limits=limits).updated == ("a",)
    publish_large(site, "b", 120_000)
    report = fetch(site, output, limits=limits)
    assert [each.name for each in report.refused] == ["b"]
    assert (output / "b" / "big.bin").stat().st_size == 100_000
    publish_large(site, "a", 10_000)
    assert "a" in fetch(site, output, limits=limits).updated
    assert fetch(site, output, limits=limits).ok
    assert (output / "b" / "big.bin").stat().st_size == 120_000


@pytest.mark.requirement("WK-30")
def test_files_of_skill_of_0_1_0_share_skill_limit(site: Publisher, output: Path) -> None:
    files = {f"{number}.bin": bytes(30_000) for number in range(4)}
    site.list_files({"a": {"SKILL.md": skill_md("a"), **files}})
    report = fetch(site, output, limits=FetchLimits(skill_bytes=100_000))
    assert len(report.refused) == 1
    assert not report.added
    assert not skill_names(output)
    assert fetch(site, output, limits=FetchLimits(skill_bytes=130_000)).added == ("a",)


def write_archive(path: Path, **bodies: str) -> None:
    """Write an archive of skills, given as the body by path, with `__` for a slash."""
    files = {f"{name.replace('__', '/')}/SKILL.md": (skill_md(name, body), False) for name, body in bodies.items()}
    path.write_bytes(archive.pack(files | {"deep/alpha/scripts/run.sh": (b"#!/bin/sh", True)})[1])


def test_nested_skills_of_archive_are_stored_by_name(tmp_path: Path, output: Path) -> None:
    path = tmp_path / "x.tar.gz"
    write_archive(path, deep__alpha="one", beta="one")
    assert set(fetch_to_folder(str(path), output).added) == {"alpha", "beta"}
    assert skill_names(output) == ["alpha", "beta"]
    assert (output / "alpha" / "scripts" / "run.sh").stat().st_mode & 0o100
    assert {record.source for record in read_records(output)} == {str(path)}
    write_archive(path, deep__alpha="one", deeper__alpha="two", beta="two")
    assert [str(each) for each in fetch_to_folder(str(path), output).refused] == [
        "alpha: another skill of this name comes before it"
    ]


@pytest.mark.requirement("WK-14", "WK-15", "WK-48", "WK-60", "X-23")
def test_bad_artifact_refuses_only_its_skill(site: Publisher, output: Path) -> None:
    raw = skill_md("bad")
    # response, reason, and party at fault
    bad: list[tuple[Route, str, str]] = [
        (respond_with(skill_md("bad", "Tampered.")), "its digest is sha256:", "publisher"),
        (respond_with(b""), "its digest is sha256:", "publisher"),
        (respond_with(raw + b"!", length=len(raw) - 1), "its digest is", "publisher"),
        (respond_with(gzip.compress(raw), content_encoding="gzip"), "came with Content-Encoding gzip", "publisher"),
        (respond_with(b"<!doctype html>Sign in", content_type="text/html"), "is a web page (HTML)", "publisher"),
        (respond_with(b"", 404), "is not there", "publisher"),
        (respond_with(b"", 503), "does not answer now", "network"),
        (redirect("http://192.168.1.1/"), "another origin", "publisher"),
        (redirect("https://cdn.example/"), "--fetch-origin https://cdn.example allows it", "publisher"),
        (respond_and_close(respond_with(raw, length=500)), "broke off", "network"),
    ]
    site.add("a")
    for number, (route, _, _) in enumerate(bad):
        site.add(f"bad-{number:02}", raw, route)
    site.add("z")
    report = fetch(site, output)
    assert report.added == ("a", "z")
    assert skill_names(output) == ["a", "z"]
    assert not report.ok
    for refusal, (_, reason, fault) in zip(report.refused, bad, strict=True):
        assert reason in refusal.reason
        assert refusal.fault == fault
    assert not os.listdir(output / ".mcp-skills" / "stage")
    assert [record.name for record in read_records(output)] == ["a", "z"]


def test_bad_entry_refuses_only_itself(site: Publisher, output: Path) -> None:
    # changed fields, and reason
    bad = [
        ({"digest": "sha256:" + "A" * 64}, "its digest is not"),
        ({"type": "archive"}, "its content is none of .zip"),
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
    report = fetch(site, output)
    assert report.added == ("a", "z")
    assert skill_names(output) == ["a", "z"]
    assert len(report.refused) == len(bad)
    assert all(str(each).isprintable() for each in report.refused)
    for _, reason in bad:
        assert any(reason in each.reason for each in report.refused)


@pytest.mark.parametrize(("raw", "most"), [(b"PK", (4 << 20) + 1000), (None, 1 << 20)])
def test_artifact_over_size_limit_is_refused(site: Publisher, output: Path, raw: bytes | None, most: int) -> None:
    """The limits are the skill limit with the archive overhead, and that of a SKILL.md."""
    too_large = f"has {most + 1} bytes, at most {most} are taken"
    for size, reason in ((most, "its digest is"), (most + 1, too_large)):
        site.add("a", raw, respond_with(bytes(size)))
        (refusal,) = fetch(site, output, limits=FetchLimits(skill_bytes=1000)).refused
        assert reason in refusal.reason
