"""What a publisher offers as a skill: one bad one costs itself alone, and nothing unproved reaches the folder."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from format.archives import HOSTILE
from mcp_skills_server.format import archive
from mcp_skills_server.sources.records import read_records
from mcp_skills_server.sources.source import FetchLimits
from sources.fetching import fetch, listing, skills
from sources.publishers import Publisher, Route, answer, entry, redirect, skill_md, then_close


@pytest.mark.requirement("WK-26")
def test_the_bytes_tell_the_format(site: Publisher, place: Path) -> None:
    suffix, raw = archive.pack({"SKILL.md": (skill_md("a"), False), "b.txt": (b"b", False)})
    assert suffix == ".tar.gz"
    for seen in ("application/gzip", "application/zip", "application/octet-stream", "text/plain"):
        site.add("a", raw, route=answer(raw, content_type=seen))
        assert fetch(site, place / seen).added == ("a",)


# The zoo


@pytest.mark.requirement("WK-23", "WK-27", "WK-28", "WK-29", "WK-30", "WK-61")
def test_every_hostile_archive_is_refused_and_its_neighbours_arrive(site: Publisher, place: Path) -> None:
    site.add("aaa-first")
    for name, (raw, _) in HOSTILE.items():
        site.add(name, raw, type="archive")
    site.add("zzz-last")
    place.mkdir(parents=True)
    (place.parent / "canary").write_bytes(b"here before")
    before = listing(place.parent.parent)
    report = fetch(site, place)
    assert report.added == ("aaa-first", "zzz-last")
    refused = {each.name: each for each in report.refused}
    assert refused.keys() == HOSTILE.keys()
    for name, (_, said) in HOSTILE.items():
        assert said in refused[name].reason and refused[name].fault == "publisher"
        assert len(str(refused[name]).splitlines()) == 1 and str(refused[name]).isprintable()
    after = listing(place.parent.parent)
    new = {path for path in after if path not in before}
    assert new == {f"outside/skills/{name}{rest}" for name in report.added for rest in ("", "/SKILL.md")}
    assert {path: after[path] for path in before} == before
    assert not os.listdir(place / ".mcp-skills" / "stage")


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
        (then_close(answer(raw, length=500)), "broke off", "network"),
    ]
    site.add("a")
    for number, (route, _, _) in enumerate(bad):
        site.add(f"bad-{number:02}", raw, route)
    site.add("z")
    report = fetch(site, place)
    assert report.added == ("a", "z") and skills(place) == ["a", "z"] and not report.ok
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
        ({"url": "file:///etc/passwd"}, "not an http or https URL"),
        ({"url": "https://cdn.example/a"}, "another origin"),
        ({"url": "http://169.254.169.254/latest/meta-data/"}, "another origin"),
        ({"name": "a"}, "an entry before it has the same name"),
    ]
    site.add("a")
    for number, (changed, _) in enumerate(bad):
        raw = site.add(f"bad-{number}")
        site.entries[-1] = entry(f"bad-{number}", raw, f"/a/bad-{number}") | changed
    site.add("z")
    report = fetch(site, place)
    assert report.added == ("a", "z") and skills(place) == ["a", "z"] and len(report.refused) == len(bad)
    for _, said in bad:
        assert any(said in each.reason and str(each).isprintable() for each in report.refused)


def test_a_list_of_files_of_0_1_0_brings_none_of_them_either(site: Publisher, place: Path) -> None:
    site.list_files({"a": {"SKILL.md": skill_md("a"), ".git/config": b"[core]"}})
    report = fetch(site, place)
    assert [refusal.name for refusal in report.refused] == ["a"] and ".git/config" in str(report.refused[0])
    assert skills(place) == []


@pytest.mark.parametrize(("raw", "most"), [(b"PK", (4 << 20) + 1000), (None, 1 << 20)])
def test_an_artifact_may_be_so_large_and_no_larger(site: Publisher, place: Path, raw: bytes | None, most: int) -> None:
    """An archive as large as its skill may be and what an archive adds to it, a SKILL.md as large as any may be."""
    for size, said in ((most, "its digest is"), (most + 1, f"has {most + 1} bytes, at most {most} are taken")):
        site.add("a", raw, answer(bytes(size)))
        (refusal,) = fetch(site, place, limits=FetchLimits(skill_bytes=1000)).refused
        assert said in refusal.reason
