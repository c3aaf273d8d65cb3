"""The index: where it is looked for, how long it holds by its cache headers, and what is not taken for one."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_skills_server.dialects.wellknown import DIRECTORY_0_1, IndexRefusedError
from mcp_skills_server.sources.http import LONGEST_S, fresh_s
from mcp_skills_server.sources.records import read_indexes, read_records
from mcp_skills_server.sources.source import AbsentError, UnacceptableError, UnreachableError
from sources.fetching import fetch, read_tree, skill_names
from sources.publishers import (
    INDEX,
    INDEX_0_1,
    Publisher,
    Route,
    answer,
    entry,
    index_of,
    redirect,
    respond_and_close,
    skill_md,
)
from tables import each_row

# Cache headers


@pytest.mark.requirement("WK-40")
def test_a_fresh_index_is_not_asked_for_again(site: Publisher, place: Path) -> None:
    site.headers = {"cache-control": "max-age=3600"}
    site.add("a")
    fetch(site, place)
    assert fetch(site, place).unchanged == ("a",) and site.paths == [INDEX, "/a/a"]
    assert fetch(site, place, revalidate=True).unchanged == ("a",)
    assert site.paths == [INDEX, "/a/a", INDEX] and "if-none-match" in site.asked[-1].headers


@pytest.mark.parametrize("seen", [{"asked_at": 9e99}, {"fresh_s": float("nan")}, {"fresh_s": 9e99, "asked_at": 0}])
def test_a_record_that_promises_for_ever_is_not_believed(site: Publisher, place: Path, seen: dict[str, float]) -> None:
    site.headers = {"cache-control": "max-age=3600"}
    site.add("a")
    fetch(site, place)
    (path,) = (place / ".mcp-skills" / "sources").iterdir()
    path.write_text(json.dumps({**json.loads(path.read_bytes()), **seen}))
    for _ in range(2):  # and then one that is true
        fetch(site, place)
        assert site.paths == [INDEX, "/a/a", INDEX]


@pytest.mark.requirement("WK-40")
def test_an_index_that_may_not_be_stored_is_not(site: Publisher, place: Path) -> None:
    site.headers = {"cache-control": "private, NO-STORE"}
    site.add("a")
    fetch(site, place)
    (source,) = read_indexes(place)
    assert source.body == "" and not source.validators
    fetch(site, place)
    assert "if-none-match" not in site.asked[-1].headers


def test_an_index_that_promised_too_much_is_asked_for_again(site: Publisher, place: Path) -> None:
    site.headers = {"cache-control": "max-age=3600"}
    site.add("a", route=answer(skill_md("a", "Newer than the index.")))
    report = fetch(site, place)
    assert not report.ok and not skill_names(place)
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
    assert read_records(place)[0].url == f"{site.url}/v2/files/a.md"


# Discovery


@pytest.mark.requirement("WK-41", "WK-44", "WK1-12", "WK1-14")
def test_an_old_site_is_fetched_file_by_file(site: Publisher, place: Path) -> None:
    guide = f"{DIRECTORY_0_1}a/references/b%20c.md"
    site.list_files({"a": {"SKILL.md": skill_md("a"), "references/b c.md": b"b c"}})
    report = fetch(site, place)
    assert report.version == "0.1.0" and report.added == ("a",) and "no digests to verify files" in report.warnings[0]
    assert (place / "a" / "references" / "b c.md").read_bytes() == b"b c"
    assert fetch(site, place).unchanged == ("a",)
    site.routes[guide] = answer(b"more")
    assert fetch(site, place).updated == ("a",)
    for route, said in (
        (answer(b"<html>Sign in", content_type="text/html"), "a web page (HTML)"),
        (answer(b"nothing", 404), "is not there"),
        (answer(b"packed", content_encoding="gzip"), "came compressed (gzip)"),
    ):
        site.routes[guide] = route
        assert said in fetch(site, place).refused[0].reason
    assert (place / "a" / "references" / "b c.md").read_bytes() == b"more"


@pytest.mark.parametrize(
    "first", [answer(b"", 404), answer(b"", 410), answer(b"<!doctype html>", content_type="text/html")]
)
def test_the_next_place_is_asked_only_when_there_is_no_index(site: Publisher, place: Path, first: bytes) -> None:
    site.routes[INDEX] = first
    site.routes[INDEX_0_1] = answer(b'{"skills": []}')
    assert fetch(site, place).version == "0.1.0"


@pytest.mark.requirement("X-23")
@pytest.mark.parametrize(("route", "kind", "said"), [
    (answer(b"{"), IndexRefusedError, "is not JSON"),
    (answer(b'{"skills": [' + b"1," * 20_000 + b"1]}"), IndexRefusedError, "has 20001 entries, at most 20000"),
    (answer(b"", length=(16 << 20) + 1), UnacceptableError, "at most 16777216 are taken"),
    (answer(gzip.compress(index_of([])), content_encoding="gzip"), IndexRefusedError, "came compressed"),
    (answer(b"", 401), UnacceptableError, "--token-env"), (answer(b"", 503), UnreachableError, "does not answer now"),
    (redirect("http://10.0.0.1/"), UnacceptableError, "another origin"),
    (respond_and_close(answer(b"{", length=10)), UnreachableError, "broke off"),
])  # fmt: skip
def test_a_bad_index_ends_it_and_nothing_else_is_asked(
    site: Publisher, place: Path, route: Route, kind: type[Exception], said: str
) -> None:
    site.add("a")
    fetch(site, place)
    before = read_tree(place.parent.parent)
    site.routes[INDEX] = route
    site.routes[INDEX_0_1] = answer(b'{"skills": []}')
    with pytest.raises(kind, match=said) as caught:
        fetch(site, place, prune=True)
    assert len(str(caught.value).splitlines()) == 1 and str(caught.value).isprintable()
    assert INDEX_0_1 not in site.paths
    assert read_tree(place.parent.parent) == before  # the last good copy


def test_no_index_anywhere(site: Publisher, place: Path) -> None:
    site.routes[INDEX] = answer(b"", 404)
    with pytest.raises(AbsentError, match=r"no index of skills: .*/index\.json is not there \(status 404\)"):
        fetch(f"{site.url}/docs", place)
    assert len(site.paths) == 4
    with pytest.raises(AbsentError, match=rf"if this is a repository, write git\+{re.escape(site.url)}/acme/skills$"):
        fetch(f"{site.url}/acme/skills", place)


@pytest.mark.requirement("WK-42", "WK-43", "X-23")
def test_a_version_to_come_is_told_and_not_processed(site: Publisher, place: Path) -> None:
    site.add("a")
    fetch(site, place)
    later = {"$schema": "https://x/9", "skills": [site.entries[0] | {"name": "b"}]}
    site.routes[INDEX] = answer(json.dumps(later).encode())
    report = fetch(site, place, prune=True)
    assert report.version is None and not report.ok and "unknown version" in report.warnings[0]
    assert report.gone == () and skill_names(place) == ["a"] and site.paths[-1] == INDEX


@pytest.mark.requirement("WK-12", "WK-45", "WK-46", "X-23")
def test_what_is_not_known_and_another_description_are_no_faults(site: Publisher, place: Path) -> None:
    site.add("a", type="mcp-bundle")
    site.add("b", description="Does c.")
    site.add("c", version="7", files=["x"], later={"b": 1})
    report = fetch(site, place)
    assert report.ok and report.added == ("b", "c")
    of_a, of_b = report.warnings
    assert of_a == "a: its type 'mcp-bundle' is unknown, and so it is passed over"
    assert of_b.startswith("b: ") and "has another description" in of_b


NOW = 1_784_109_600.0
DATE = "Wed, 15 Jul 2026 10:00:00 GMT"
IN_AN_HOUR = "Wed, 15 Jul 2026 11:00:00 GMT"


@pytest.mark.requirement("WK-40")
@each_row(("expected", "control", "others"), [
    (None, "", {}), (None, "public", {}), (300, "Public, Max-Age=300, must-revalidate", {}),
    (300, 'max-age="300"', {}), (300, "max-age=300, max-age=900", {}), (200, "max-age=300", {"age": "100"}),
    (0, "max-age=300", {"age": "900"}), (300, "max-age=300", {"age": "old"}), (0, "max-age=300, no-cache", {}),
    (0, "no-store", {}), (0, "max-age=-5", {}), (None, "s-maxage=300", {}), (LONGEST_S, "max-age=" + "9" * 5000, {}),
    (3600, "", {"expires": IN_AN_HOUR, "date": DATE}), (0, "", {"expires": DATE, "date": IN_AN_HOUR}),
    (0, "", {"expires": "0"}), (3600, "", {"expires": IN_AN_HOUR}), (5, "max-age=5", {"expires": IN_AN_HOUR}),
])  # fmt: skip
def test_freshness(expected: float | None, control: str, others: dict[str, str]) -> None:
    assert fresh_s({"cache-control": control, **others}, NOW) == expected


@given(st.dictionaries(st.sampled_from(["cache-control", "expires", "date", "age"]), st.text()))
def test_wild_headers_raise_nothing(headers: dict[str, str]) -> None:
    life = fresh_s(headers, NOW)
    assert life is None or 0 <= life <= LONGEST_S
