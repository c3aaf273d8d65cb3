"""A folder refreshed from honest publishers and from a zoo of others: one bad skill costs itself alone."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from format.archives import HOSTILE
from mcp_skills_server.dialects import wellknown
from mcp_skills_server.dialects.wellknown import DIRECTORY_0_1, IndexRefusedError
from mcp_skills_server.errors import UsageError
from mcp_skills_server.format import archive
from mcp_skills_server.format.archive import Files
from mcp_skills_server.sources import keep
from mcp_skills_server.sources.download import Bounds, OriginPolicy
from mcp_skills_server.sources.faults import AbsentError, UnacceptableError, UnreachableError
from mcp_skills_server.sources.keep import ConflictError
from mcp_skills_server.sources.refresh import Limits, Report, Settings, look, refresh
from sources.publishers import (
    INDEX,
    Asked,
    Publisher,
    Route,
    answer,
    digest,
    entry,
    index_of,
    redirect,
    skill_md,
    then_close,
)

LOCAL = Settings(trust=OriginPolicy(private=True), bounds=Bounds(read_s=5, download_s=10))
QUICK = replace(LOCAL, bounds=Bounds(read_s=0.5, download_s=3))
"""The first must end well before the second, on a busy machine too: tests tell them apart."""
FILES: Files = {
    "SKILL.md": (skill_md("packed"), False),
    "assets/logo.png": (bytes(range(256)), False),
    "scripts/run.sh": (b"#!/bin/sh\necho ran > ran\n", True),
    "references/données.md": ("é\r\n".encode(), False),
}


@pytest.fixture
def site() -> Iterator[Publisher]:
    with Publisher() as publisher:
        yield publisher


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "outside" / "skills"


def fetch(site: Publisher | str, place: Path, settings: Settings = LOCAL, **changed: Any) -> Report:
    url = site if isinstance(site, str) else site.url
    return anyio.run(refresh, url, place, replace(settings, **changed))


def listing(top: Path) -> dict[str, bytes | str]:
    """Everything below, but what is ours."""
    out: dict[str, bytes | str] = {}
    for path in sorted(top.rglob("*")):
        where = path.relative_to(top).as_posix()
        if ".mcp-skills" not in where.split("/"):
            out[where] = path.read_bytes() if path.is_file() and not path.is_symlink() else "directory"
    return out


def skills(place: Path) -> list[str]:
    return sorted(name for name in os.listdir(place) if name != ".mcp-skills")


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
    told = {record.name: record for record in keep.records(place)}
    assert told["packed"].digest == digest(raw) and told["packed"].source == f"{site.url}{INDEX}"
    again = fetch(site, place)
    assert again.unchanged == ("lone", "packed") and again.ok and again.bytes == 0
    assert sorted(site.paths[1:3]) == ["/a/lone", "/a/packed"]  # both at once: either may be first
    assert [site.paths[0], *site.paths[3:]] == [INDEX, INDEX]
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
    assert [str(each) for each in report.refused] == ["nothing: the index has no skill of this name"]
    fetch(site, place, wanted=frozenset({"c"}))
    assert keep.sources(place)[0].wanted == ("b", "c", "nothing")
    fetch(site, place)
    assert keep.sources(place)[0].wanted is None and skills(place) == ["a", "b", "c"]


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
    assert [record.name for record in keep.records(place)] == ["a", "b"]


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
        assert skills(place) == ["a", "b"] and len(keep.sources(place)) == 2


# Cache headers


@pytest.mark.requirement("WK-40")
def test_a_fresh_index_is_not_asked_for_again(site: Publisher, place: Path) -> None:
    site.headers = {"cache-control": "max-age=3600"}
    site.add("a")
    report = fetch(site, place)
    assert 3500 < report.next_check_s <= 3600
    assert fetch(site, place).unchanged == ("a",) and site.paths == [INDEX, "/a/a"]
    assert fetch(site, place, revalidate=True).unchanged == ("a",)
    assert site.paths == [INDEX, "/a/a", INDEX] and "if-none-match" in site.asked[-1].headers


@pytest.mark.requirement("WK-40")
@pytest.mark.parametrize("days", [400, -400, 1.5])
def test_a_clock_that_was_wrong_makes_no_index_fresh(
    site: Publisher, place: Path, monkeypatch: pytest.MonkeyPatch, days: float
) -> None:
    """10.0e: fetched by a clock that was 400 days ahead, an index was fresh for 400 days."""
    site.headers = {"cache-control": "max-age=999999999"}
    site.add("a")
    right = keep.now
    with monkeypatch.context() as wrong:
        wrong.setattr(keep, "now", lambda: right() + days * 86_400)
        fetch(site, place)
        assert fetch(site, place).unchanged == ("a",) and site.paths == [INDEX, "/a/a"]
    assert fetch(site, place).next_check_s <= 86_400
    assert site.paths == [INDEX, "/a/a", INDEX]
    assert fetch(site, place).unchanged == ("a",) and site.paths == [INDEX, "/a/a", INDEX]


@pytest.mark.parametrize(
    "told", [{"fresh_until": 9e99}, {"asked_at": 9e99}, {"fresh_s": float("nan")}, {"fresh_s": 9e99, "asked_at": 0}]
)
def test_a_record_that_promises_for_ever_is_not_believed(site: Publisher, place: Path, told: dict[str, float]) -> None:
    site.headers = {"cache-control": "max-age=3600"}
    site.add("a")
    fetch(site, place)
    (path,) = (place / ".mcp-skills" / "sources").iterdir()
    said = {**json.loads(path.read_bytes()), **told}
    if "fresh_until" in told:  # as the first version wrote it
        del said["asked_at"], said["fresh_s"]
    path.write_text(json.dumps(said))
    fetch(site, place)
    assert site.paths == [INDEX, "/a/a", INDEX]


@pytest.mark.requirement("WK-40")
def test_an_index_that_may_not_be_stored_is_not(site: Publisher, place: Path) -> None:
    site.headers = {"cache-control": "no-store"}
    site.add("a")
    fetch(site, place)
    (source,) = keep.sources(place)
    assert source.body == "" and not source.validators
    fetch(site, place)
    assert "if-none-match" not in site.asked[-1].headers


def test_an_index_that_promised_too_much_is_asked_for_again(site: Publisher, place: Path) -> None:
    site.headers = {"cache-control": "max-age=3600"}
    site.add("a", route=answer(skill_md("a", "Newer than the index.")))
    report = fetch(site, place)
    assert not report.ok and report.next_check_s == 300 and not skills(place)
    site.add("a", skill_md("a", "Newer than the index."))
    assert fetch(site, place).added == ("a",)


@pytest.mark.requirement("WK-39", "WK-16")
def test_urls_are_relative_to_the_address_that_answered(site: Publisher, place: Path) -> None:
    raw = skill_md("a")
    site.routes[INDEX] = redirect("/v2/index.json", 301)
    site.routes["/v2/index.json"] = answer(index_of([entry("a", raw, "files/a.md")]))
    site.routes["/v2/files/a.md"] = answer(raw)
    report = fetch(site, place)
    assert report.added == ("a",) and report.url == f"{site.url}/v2/index.json"
    assert keep.records(place)[0].url == f"{site.url}/v2/files/a.md"


@pytest.mark.requirement("WK-26")
@pytest.mark.parametrize("told", ["application/gzip", "application/zip", "application/octet-stream", "text/plain"])
def test_the_bytes_tell_the_format(site: Publisher, place: Path, told: str) -> None:
    files: Files = {"SKILL.md": (skill_md("a"), False), "b.txt": (b"b", False)}
    suffix, raw = archive.pack(files)
    assert suffix == ".tar.gz"
    site.add("a", raw, route=answer(raw, content_type=told))
    assert fetch(site, place).added == ("a",)


@pytest.mark.requirement("WK-45")
def test_fields_that_are_not_known_are_passed_over(site: Publisher, place: Path) -> None:
    site.add("a", version="7", files=["x"], later={"b": 1})
    assert fetch(site, place).added == ("a",)


# Discovery


@pytest.mark.requirement("WK-41", "WK-44", "WK1-12", "WK1-14")
def test_an_old_site_is_fetched_file_by_file(site: Publisher, place: Path) -> None:
    listed = [{"name": "a", "description": "Does a.", "files": ["SKILL.md", "references/b c.md"]}]
    site.routes[INDEX] = answer(b"", 404)
    site.routes[f"{DIRECTORY_0_1}index.json"] = answer(json.dumps({"skills": listed}).encode())
    site.routes[f"{DIRECTORY_0_1}a/SKILL.md"] = answer(skill_md("a"))
    site.routes[f"{DIRECTORY_0_1}a/references/b%20c.md"] = answer(b"b c")
    report = fetch(site, place)
    assert report.version == "0.1.0" and report.added == ("a",) and "nothing proves the files" in report.warnings[0]
    assert (place / "a" / "references" / "b c.md").read_bytes() == b"b c"
    assert fetch(site, place).unchanged == ("a",)
    site.routes[f"{DIRECTORY_0_1}a/references/b%20c.md"] = answer(b"more")
    assert fetch(site, place).updated == ("a",)
    site.routes[f"{DIRECTORY_0_1}a/references/b%20c.md"] = answer(b"<html>Sign in", content_type="text/html")
    assert "a web page (HTML)" in fetch(site, place).refused[0].reason
    site.routes[f"{DIRECTORY_0_1}a/references/b%20c.md"] = answer(b"nothing", 404)
    assert "is not there" in fetch(site, place).refused[0].reason
    assert (place / "a" / "references" / "b c.md").read_bytes() == b"more"


@pytest.mark.parametrize(
    "first", [answer(b"", 404), answer(b"", 410), answer(b"<!doctype html>", content_type="text/html")]
)
def test_the_next_place_is_asked_only_when_there_is_no_index(site: Publisher, place: Path, first: bytes) -> None:
    site.routes[INDEX] = first
    site.routes[f"{DIRECTORY_0_1}index.json"] = answer(b'{"skills": []}')
    assert fetch(site, place).version == "0.1.0"


@pytest.mark.requirement("X-23")
@pytest.mark.parametrize(
    ("route", "kind", "said"),
    [
        (answer(b"{"), IndexRefusedError, "is not JSON"),
        (answer(b"[]"), IndexRefusedError, "no object"),
        (answer(b'{"skills": 7}'), IndexRefusedError, "no list 'skills'"),
        (answer(b'{"skills": [' + b"1," * 99_999 + b"1]}"), IndexRefusedError, "has 100000 entries, at most 20000"),
        (answer(b"", length=(16 << 20) + 1), UnacceptableError, "at most 16777216 are taken"),
        (answer(gzip.compress(index_of([])), content_encoding="gzip"), IndexRefusedError, "came compressed"),
        (answer(b"", 401), UnacceptableError, "--token-env"),
        (answer(b"", 403), UnacceptableError, "asks for permission"),
        (answer(b"", 429), UnreachableError, "does not answer now"),
        (answer(b"", 500), UnreachableError, "does not answer now"),
        (answer(b"", 503), UnreachableError, "does not answer now"),
        (redirect(INDEX), UnacceptableError, "redirects"),
        (redirect("file:///etc/passwd"), UnacceptableError, "no http or https URL"),
        (redirect("http://10.0.0.1/"), UnacceptableError, "another origin"),
        (then_close(answer(b"{", length=10)), UnreachableError, "broke off"),
    ],
)
def test_a_bad_index_ends_it_and_nothing_else_is_asked(
    site: Publisher, place: Path, route: Route, kind: type[Exception], said: str
) -> None:
    site.add("a")
    fetch(site, place)
    before = listing(place.parent.parent)
    site.routes[INDEX] = route
    site.routes[f"{DIRECTORY_0_1}index.json"] = answer(b'{"skills": []}')
    with pytest.raises(kind, match=said) as caught:
        fetch(site, place, prune=True)
    assert len(str(caught.value).splitlines()) == 1 and str(caught.value).isprintable()
    assert f"{DIRECTORY_0_1}index.json" not in site.paths
    assert listing(place.parent.parent) == before  # the last good copy


def test_no_index_anywhere(site: Publisher, place: Path) -> None:
    site.routes[INDEX] = answer(b"", 404)
    with pytest.raises(
        AbsentError, match=r"no index of skills: .*agent-skills/index\.json is not there \(status 404\)"
    ):
        fetch(f"{site.url}/docs", place)
    assert len(site.paths) == 4


@pytest.mark.requirement("WK-42", "WK-43", "X-23")
def test_a_version_to_come_is_told_and_not_processed(site: Publisher, place: Path) -> None:
    site.add("a")
    fetch(site, place)
    site.routes[INDEX] = answer(
        json.dumps({"$schema": "https://x/9", "skills": [site.entries[0] | {"name": "b"}]}).encode()
    )
    report = fetch(site, place, prune=True)
    assert report.version is None and not report.ok and "not known" in report.warnings[0]
    assert report.gone == () and skills(place) == ["a"] and site.paths[-1] == INDEX


@pytest.mark.requirement("WK-46", "X-23")
def test_a_type_to_come_is_a_warning(site: Publisher, place: Path) -> None:
    site.add("a", type="mcp-bundle")
    site.add("b")
    report = fetch(site, place)
    assert report.ok and report.added == ("b",)
    assert report.warnings == ("a: its type 'mcp-bundle' is not known, and so it is passed over",)


@pytest.mark.requirement("WK-12", "X-23")
def test_another_description_is_a_warning(site: Publisher, place: Path) -> None:
    site.add("a", description="Does b.")
    report = fetch(site, place)
    assert report.ok and "describes it otherwise" in report.warnings[0]


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


@pytest.mark.parametrize(("name", "most"), [("archive", (4 << 20) + 1000), ("lone", 1 << 20)])
def test_an_artifact_may_be_so_large_and_no_larger(site: Publisher, place: Path, name: str, most: int) -> None:
    """An archive as large as its skill may be and what an archive adds to it, a SKILL.md as large as any may be."""
    site.add("archive", b"PK", answer(bytes(most if name == "archive" else 0)))
    site.add("lone", None, answer(bytes(most if name == "lone" else 0)))
    refused = {each.name: each.reason for each in fetch(site, place, limits=Limits(skill_bytes=1000)).refused}
    assert "its digest is" in refused[name]
    site.routes[f"/a/{name}"] = answer(b"", length=most + 1)
    refused = {each.name: each.reason for each in fetch(site, place, limits=Limits(skill_bytes=1000)).refused}
    assert f"has {most + 1} bytes, at most {most} are taken" in refused[name]


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
        (answer(b"", 401), "asks for permission", "publisher"),
        (answer(b"", 404), "is not there", "publisher"),
        (answer(b"", 410), "is not there", "publisher"),
        (answer(b"", 429), "does not answer now", "network"),
        (answer(b"", 500), "does not answer now", "network"),
        (answer(b"", 503), "does not answer now", "network"),
        (redirect("/a/bad"), "more than 5 redirects", "publisher"),
        (redirect("file:///etc/passwd"), "no http or https URL", "publisher"),
        (redirect("http://192.168.1.1/"), "another origin", "publisher"),
        (redirect("https://cdn.example/"), "--fetch-origin https://cdn.example allows it", "publisher"),
        (then_close(answer(skill_md("bad"), length=500)), "broke off", "network"),
        (then_close(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n"), "does not speak HTTP", "network"),
        (then_close(b""), "broke off", "network"),
        ("stall", "did not answer within", "network"),
        ("stall in the middle", "did not answer within", "network"),
        ("drip", "took longer than", "network"),
    ],
)
def test_a_bad_artifact_costs_its_skill_alone(
    site: Publisher, place: Path, route: Route | str, said: str, fault: str
) -> None:
    site.add("a")
    routes = {
        "stall": site.stall(),
        "stall in the middle": site.stall(answer(b"---", length=50)),
        "drip": site.drip(answer(skill_md("bad"))),
    }
    site.add("bad", route=routes[route] if isinstance(route, str) else route)
    site.add("z")
    report = fetch(site, place, QUICK)
    assert report.added == ("a", "z") and skills(place) == ["a", "z"]
    (refusal,) = report.refused
    assert refusal.name == "bad" and said in refusal.reason and refusal.fault == fault
    assert not os.listdir(place / ".mcp-skills" / "stage") and not report.ok
    assert [record.name for record in keep.records(place)] == ["a", "z"]


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ({"name": "../evil"}, "the name holds"),
        ({"name": "con"}, "Windows cannot hold the name"),
        ({"digest": "sha256:" + "A" * 64}, "its digest is not"),
        ({"url": "file:///etc/passwd"}, "no http or https URL"),
        ({"url": "https://cdn.example/a"}, "another origin"),
        ({"url": "http://169.254.169.254/latest/meta-data/"}, "another origin"),
        ({"name": "a"}, "an entry before it has the same name"),
        ({"type": "archive"}, "neither a .tar.gz nor a .zip"),
        ({"name": "other"}, "calls it 'bad'"),
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


def test_an_artifact_of_another_origin_needs_leave(site: Publisher, place: Path) -> None:
    with Publisher() as other:
        raw = skill_md("a")
        other.routes["/a.md"] = answer(raw)
        site.entries = [entry("a", raw, f"{other.url}/a.md")]
        assert "--fetch-origin" in fetch(site, place).refused[0].reason and not other.asked
        trust = OriginPolicy(frozenset({other.url}), private=True)
        assert fetch(site, place, trust=trust).added == ("a",)


def test_a_skill_over_its_limit_is_refused(site: Publisher, place: Path) -> None:
    site.pack("big", {"SKILL.md": (skill_md("big"), False), "big.bin": (bytes(20_000), False)})
    site.add("small")
    report = fetch(site, place, limits=Limits(skill_bytes=10_000))
    assert report.added == ("small",) and "at most 10000 are unpacked" in report.refused[0].reason
    with pytest.raises(IndexRefusedError, match="has 2 entries, at most 1"):
        fetch(site, place, limits=Limits(skills=1), revalidate=True)


def big(site: Publisher, name: str, size: int = 100_000) -> None:
    site.pack(name, {"SKILL.md": (skill_md(name), False), "big.bin": (bytes(size), False)})


def on_disk(place: Path) -> int:
    return sum(path.stat().st_size for name in skills(place) for path in (place / name).rglob("*") if path.is_file())


def test_all_skills_together_have_a_limit_and_what_does_not_fit_is_named(site: Publisher, place: Path) -> None:
    limits = Limits(unpacked_bytes=350_000)
    for number in range(9):
        big(site, f"big-{number}")
    site.add("small")
    report = fetch(site, place, limits=limits)
    assert "small" in report.added and len(report.added) == 4 and len(report.refused) == 6
    assert not {each.name for each in report.refused} & {*report.added}
    said = "all skills of the site together have more than 350000 bytes, unpacked"
    assert all(each.reason.startswith(said) and each.fault == "publisher" for each in report.refused)
    # Again and again it would grow, if what is there did not count.
    for _ in range(2):
        assert fetch(site, place, limits=limits).added == ()
        assert len(skills(place)) == 4 and on_disk(place) <= 350_000
    assert len(fetch(site, place).added) == 6


def test_a_skill_that_grows_has_the_room_of_what_it_replaces(site: Publisher, place: Path) -> None:
    limits = Limits(unpacked_bytes=350_000)
    for name in "abc":
        big(site, name)
    assert len(fetch(site, place, limits=limits).added) == 3
    big(site, "a", 140_000)
    assert fetch(site, place, limits=limits).updated == ("a",)
    big(site, "b", 120_000)
    report = fetch(site, place, limits=limits)
    assert [each.name for each in report.refused] == ["b"] and (place / "b" / "big.bin").stat().st_size == 100_000
    big(site, "a", 10_000)
    assert "a" in fetch(site, place, limits=limits).updated
    assert fetch(site, place, limits=limits).ok and (place / "b" / "big.bin").stat().st_size == 120_000


def test_an_old_site_has_that_limit_too(site: Publisher, place: Path) -> None:
    site.routes[INDEX] = answer(b"", 404)
    listed = [{"name": name, "description": f"Does {name}.", "files": ["SKILL.md", "a.bin"]} for name in "abc"]
    site.routes[f"{DIRECTORY_0_1}index.json"] = answer(json.dumps({"skills": listed}).encode())
    for name in "abc":
        site.routes[f"{DIRECTORY_0_1}{name}/SKILL.md"] = answer(skill_md(name))
        site.routes[f"{DIRECTORY_0_1}{name}/a.bin"] = answer(bytes(50_000))
    report = fetch(site, place, limits=Limits(unpacked_bytes=110_000))
    assert len(report.added) == 2 and len(report.refused) == 1 and on_disk(place) <= 110_000


@pytest.mark.requirement("WK-30")
def test_all_files_of_a_skill_of_an_old_site_have_its_limit_together(site: Publisher, place: Path) -> None:
    paths = ["SKILL.md", *(f"{number}.bin" for number in range(4))]
    site.routes[INDEX] = answer(b"", 404)
    listed = [{"name": "a", "description": "Does a.", "files": paths}]
    site.routes[f"{DIRECTORY_0_1}index.json"] = answer(json.dumps({"skills": listed}).encode())
    site.routes[f"{DIRECTORY_0_1}a/SKILL.md"] = answer(skill_md("a"))
    for path in paths[1:]:
        site.routes[f"{DIRECTORY_0_1}a/{path}"] = answer(bytes(30_000))
    report = fetch(site, place, limits=Limits(skill_bytes=100_000))
    assert len(report.refused) == 1 and not report.added and not skills(place)
    assert fetch(site, place, limits=Limits(skill_bytes=130_000)).added == ("a",)


def test_what_cannot_be_kept_takes_no_room(site: Publisher, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "ab":
        big(site, name)
    write, failed = keep._write_tree, list[Path]()

    def once(staged: Path, files: Files) -> None:
        if not failed:
            failed.append(staged)
            raise OSError(28, "No space left on device")
        write(staged, files)

    monkeypatch.setattr(keep, "_write_tree", once)
    report = fetch(site, place, limits=Limits(unpacked_bytes=150_000), connections=1)
    assert report.added == ("b",) and "No space left" in report.refused[0].reason


SECRET = "?key=very-secret"


def test_a_secret_in_the_address_is_in_no_message_and_for_the_owner_alone(site: Publisher, place: Path) -> None:
    site.add("a")
    url = f"{site.url}{INDEX}{SECRET}"
    assert fetch(url, place).added == ("a",)
    assert site.asked[0].path == f"{INDEX}{SECRET}"
    files = [path for path in place.rglob("*") if path.is_file() and b"very-secret" in path.read_bytes()]
    assert files and (os.name == "nt" or all(path.stat().st_mode & 0o077 == 0 for path in files))
    with keep.opened(place) as store:
        state, record = store.look("a")
    with pytest.raises(ConflictError) as withheld:
        keep.check(state, record, "another", force=False)
    with pytest.raises(UsageError, match="a user name or a password") as wrong:
        fetch("https://user:very-secret@example.com/", place)
    for caught in (withheld, wrong):
        assert "very-secret" not in str(caught.value)


@pytest.mark.skipif(os.name == "nt", reason="needs modes as POSIX has them")
def test_records_of_before_are_closed_to_others(site: Publisher, place: Path) -> None:
    site.add("a")
    fetch(site, place)
    folder = place / ".mcp-skills" / "skills"
    folder.chmod(0o755)
    (folder / "a.json").chmod(0o644)
    assert fetch(site, place).unchanged == ("a",)
    assert folder.stat().st_mode & 0o077 == 0


def test_all_of_it_has_an_end(site: Publisher, place: Path) -> None:
    site.add("a")
    for number in range(20):
        site.add(f"stalls-{number}", route=site.stall())
    report = fetch(site, place, limits=Limits(total_s=1))
    assert report.added == ("a",) and len(report.refused) == 20
    assert {each.reason for each in report.refused} == {"not fetched within 1 s"}
    site.routes[INDEX] = site.stall()
    with pytest.raises(UnreachableError, match="took longer than 1 s"):
        fetch(site, place, limits=Limits(total_s=1))


def test_a_full_disk_costs_the_skill(site: Publisher, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site.add("a")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(keep, "_write_tree", full)
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
    with pytest.raises(UsageError, match="no http or https URL"):
        fetch("example.com", place)
    assert not place.exists()


def _read(top: Path) -> Files:
    return {
        path.relative_to(top).as_posix(): (path.read_bytes(), bool(path.stat().st_mode & 0o100))
        for path in top.rglob("*")
        if path.is_file()
    }


def test_digests_of_the_record_are_those_of_the_files(site: Publisher, place: Path) -> None:
    site.pack("packed", FILES)
    fetch(site, place)
    (record,) = keep.records(place)
    assert record.files == {path: hashlib.sha256(raw).hexdigest() for path, (raw, _) in FILES.items()}
    assert wellknown.origin(record.url) == site.url


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
    assert skills(place) == [] and not [path for path in site.paths if "/a/" in path]


def test_what_an_earlier_version_wrote_is_removed_and_the_rest_stays(
    site: Publisher, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.pack("packed", {**FILES, ".git/config": (b"old", False), ".envrc": (b"old", False)})
    with monkeypatch.context() as before:
        before.setattr("mcp_skills_server.sources.refresh._check_names", lambda _: None)
        assert fetch(site, place).added == ("packed",)
    assert (place / "packed" / ".git" / "config").exists()
    (place / "packed" / ".envrc").write_bytes(b"the user's own")
    report = fetch(site, place, revalidate=True)
    (said,) = report.warnings
    assert said.startswith("packed: .git/config removed") and ".envrc" not in said
    assert not (place / "packed" / ".git").exists() and (place / "packed" / ".envrc").read_bytes() == b"the user's own"
    assert [refusal.name for refusal in report.refused] == ["packed"]
    assert (place / "packed" / "SKILL.md").read_bytes() == skill_md("packed")
    (place / "packed" / ".envrc").unlink()
    site.pack("packed", FILES)
    assert fetch(site, place, revalidate=True).ok and _read(place / "packed") == FILES
