"""What a publisher offers as a skill: one bad one costs itself alone, and nothing unproved reaches the folder."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest

from format.archives import HOSTILE
from mcp_skills_server.dialects.wellknown import DIRECTORY_0_1
from mcp_skills_server.format import archive
from mcp_skills_server.format.archive import Files
from mcp_skills_server.sources.records import read_records
from mcp_skills_server.sources.source import FetchLimits
from sources.fetching import FILES, fetch, listing, skills
from sources.publishers import (
    INDEX,
    Publisher,
    Route,
    answer,
    entry,
    redirect,
    skill_md,
    then_close,
)


@pytest.mark.requirement("WK-26")
@pytest.mark.parametrize("seen", ["application/gzip", "application/zip", "application/octet-stream", "text/plain"])
def test_the_bytes_tell_the_format(site: Publisher, place: Path, seen: str) -> None:
    files: Files = {"SKILL.md": (skill_md("a"), False), "b.txt": (b"b", False)}
    suffix, raw = archive.pack(files)
    assert suffix == ".tar.gz"
    site.add("a", raw, route=answer(raw, content_type=seen))
    assert fetch(site, place).added == ("a",)


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
@pytest.mark.parametrize(
    ("route", "said", "fault"),
    [
        (answer(skill_md("bad", "Tampered.")), "its digest is sha256:", "publisher"),
        (answer(b""), "its digest is sha256:", "publisher"),
        (answer(skill_md("bad") + b"!", length=len(skill_md("bad")) - 1), "its digest is", "publisher"),
        (
            answer(gzip.compress(skill_md("bad")), content_encoding="gzip"),
            "came with Content-Encoding gzip",
            "publisher",
        ),
        (answer(gzip.compress(bytes(9 << 20)), content_encoding="gzip"), "Content-Encoding gzip", "publisher"),
        (answer(b"<!doctype html>Sign in", content_type="text/html"), "is a web page (HTML)", "publisher"),
        (answer(bytes((1 << 20) + 1)), "at most 1048576 are taken", "publisher"),
        (answer(b"", 404), "is not there", "publisher"),
        (answer(b"", 503), "does not answer now", "network"),
        (redirect("http://192.168.1.1/"), "another origin", "publisher"),
        (redirect("https://cdn.example/"), "--fetch-origin https://cdn.example allows it", "publisher"),
        (then_close(answer(skill_md("bad"), length=500)), "broke off", "network"),
    ],
)
def test_a_bad_artifact_costs_its_skill_alone(
    site: Publisher, place: Path, route: Route, said: str, fault: str
) -> None:
    site.add("a")
    site.add("bad", route=route)
    site.add("z")
    report = fetch(site, place)
    assert report.added == ("a", "z") and skills(place) == ["a", "z"]
    (refusal,) = report.refused
    assert refusal.name == "bad" and said in refusal.reason and refusal.fault == fault
    assert not os.listdir(place / ".mcp-skills" / "stage") and not report.ok
    assert [record.name for record in read_records(place)] == ["a", "z"]


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ({"name": "../evil"}, "the name holds"),
        ({"name": "con"}, "Windows cannot hold the name"),
        ({"digest": "sha256:" + "A" * 64}, "its digest is not"),
        ({"url": "file:///etc/passwd"}, "not an http or https URL"),
        ({"url": "https://cdn.example/a"}, "another origin"),
        ({"url": "http://169.254.169.254/latest/meta-data/"}, "another origin"),
        ({"name": "a"}, "an entry before it has the same name"),
        ({"type": "archive"}, "neither a .tar.gz nor a .zip"),
        ({"name": "other"}, "has the name 'bad'"),
    ],
)
def test_a_bad_entry_costs_itself_alone(site: Publisher, place: Path, bad: dict[str, str], said: str) -> None:
    site.add("a")
    raw = site.add("bad")
    site.entries[-1] = entry("bad", raw, "/a/bad") | bad
    site.add("z")
    report = fetch(site, place)
    assert report.added == ("a", "z") and skills(place) == ["a", "z"]
    assert said in report.refused[0].reason and str(report.refused[0]).isprintable()


UNSERVED = (".git/config", ".envrc", ".vscode/tasks.json", "scripts/__pycache__/run.pyc", "node_modules/a/index.js")


@pytest.mark.parametrize("bad", UNSERVED)
def test_a_skill_that_brings_what_is_never_served_is_refused_whole(site: Publisher, place: Path, bad: str) -> None:
    site.add("sound")
    site.pack("packed", {**FILES, bad: (b"[core]\nfsmonitor = ./run.sh\n", True)})
    report = fetch(site, place)
    assert report.added == ("sound",) and skills(place) == ["sound"]
    (refusal,) = report.refused
    assert refusal.fault == "publisher" and bad in refusal.reason and "\n" not in refusal.reason
    assert not [path for path in listing(place.parent) if bad in path]


def test_a_list_of_files_of_0_1_0_brings_none_of_them_either(site: Publisher, place: Path) -> None:
    files = ["SKILL.md", ".git/config"]
    site.routes[f"{DIRECTORY_0_1}index.json"] = answer(
        json.dumps({"skills": [{"name": "a", "description": "Does a.", "files": files}]}).encode()
    )
    site.routes[INDEX] = answer(b"", 404)
    for file in files:
        site.routes[f"{DIRECTORY_0_1}a/{file}"] = answer(skill_md("a"))
    report = fetch(site, place)
    assert [refusal.name for refusal in report.refused] == ["a"] and ".git/config" in str(report.refused[0])
    assert skills(place) == []


@pytest.mark.parametrize(("name", "most"), [("archive", (4 << 20) + 1000), ("lone", 1 << 20)])
def test_an_artifact_may_be_so_large_and_no_larger(site: Publisher, place: Path, name: str, most: int) -> None:
    """An archive as large as its skill may be and what an archive adds to it, a SKILL.md as large as any may be."""
    site.add("archive", b"PK", answer(bytes(most if name == "archive" else 0)))
    site.add("lone", None, answer(bytes(most if name == "lone" else 0)))
    refused = {each.name: each.reason for each in fetch(site, place, limits=FetchLimits(skill_bytes=1000)).refused}
    assert "its digest is" in refused[name]
    site.routes[f"/a/{name}"] = answer(b"", length=most + 1)
    refused = {each.name: each.reason for each in fetch(site, place, limits=FetchLimits(skill_bytes=1000)).refused}
    assert f"has {most + 1} bytes, at most {most} are taken" in refused[name]
