"""The bytes that all skills of a site may have together."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mcp_skills_server.dialects.wellknown import DIRECTORY_0_1
from mcp_skills_server.format.archive import Files
from mcp_skills_server.sources import folder
from mcp_skills_server.sources.source import FetchLimits
from sources.fetching import fetch, skills
from sources.publishers import (
    INDEX,
    Publisher,
    answer,
    skill_md,
)


def big(site: Publisher, name: str, size: int = 100_000) -> None:
    site.pack(name, {"SKILL.md": (skill_md(name), False), "big.bin": (bytes(size), False)})


def on_disk(place: Path) -> int:
    return sum(path.stat().st_size for name in skills(place) for path in (place / name).rglob("*") if path.is_file())


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
        assert fetch(site, place, limits=limits).added == ()
        assert len(skills(place)) == 4 and on_disk(place) <= 350_000
    assert len(fetch(site, place).added) == 6


def test_a_skill_that_grows_has_the_room_of_what_it_replaces(site: Publisher, place: Path) -> None:
    limits = FetchLimits(unpacked_bytes=350_000)
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
    report = fetch(site, place, limits=FetchLimits(unpacked_bytes=110_000))
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
    report = fetch(site, place, limits=FetchLimits(skill_bytes=100_000))
    assert len(report.refused) == 1 and not report.added and not skills(place)
    assert fetch(site, place, limits=FetchLimits(skill_bytes=130_000)).added == ("a",)


def test_what_cannot_be_kept_takes_no_room(site: Publisher, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "ab":
        big(site, name)
    write, failed = folder.write_tree, list[Path]()

    def once(staged: Path, files: Files, **options: bool) -> tuple[str, ...]:
        if not failed:
            failed.append(staged)
            raise OSError(28, "No space left on device")
        return write(staged, files, **options)

    monkeypatch.setattr(folder, "write_tree", once)
    report = fetch(site, place, limits=FetchLimits(unpacked_bytes=150_000), connections=1)
    assert report.added == ("b",) and "No space left" in report.refused[0].reason
