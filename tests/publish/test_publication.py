"""Editions of a publication, the retention of their artifacts and the spool, without HTTP."""

from __future__ import annotations

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import sleep
from typing import Any
from unittest.mock import Mock

import pytest

from mcp_skills_server.catalog.recalls import Advisory
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.dialects import wellknown
from mcp_skills_server.model.digests import digest_of
from mcp_skills_server.publish.artifacts import RetentionPolicy, Spool
from publish.editions import SITE, Clock, fetch, parse_index, publication_of, verify_edition
from tables import each_row
from wire import write_skill


@pytest.mark.requirement("X-4", "X-19", "WK1-9")
def test_non_ascii_file_name_needs_a_zip_and_keeps_its_skill_from_the_old_index(tmp_path: Path) -> None:
    write_skill(tmp_path / "plain")
    (write_skill(tmp_path / "foreign") / "Grüße und mehr.md").write_bytes(b"hello")
    (write_skill(tmp_path / "spaced") / "two words.md").write_bytes(b"words")
    publication = publication_of(tmp_path)
    edition = publication.edition()
    entries = parse_index(edition.index)
    assert entries["foreign"].url.endswith("/foreign.zip")
    assert fetch(publication, entries["foreign"])["Grüße und mehr.md"] == (b"hello", False)
    old = parse_index(edition.index_0_1, wellknown.DIRECTORY_0_1)
    assert old.keys() == {"plain", "spaced"}
    assert old["spaced"].files["two words.md"] == f"{SITE}/.well-known/skills/spaced/two%20words.md"
    assert [path for path, _ in edition.left_out_0_1] == ["foreign"]


@pytest.mark.requirement("X-2", "WK-4", "WK-18", "WK1-3")
def test_invalid_skills_are_left_out_of_both_indexes_with_a_reason(tmp_path: Path) -> None:
    for name in ("good", "-ahead", "behind-", "two--hyphens", "Upper"):
        write_skill(tmp_path / name)
    write_skill(tmp_path / "directory", name="another")
    (write_skill(tmp_path / "clash") / "a.md").write_bytes(b"1")
    (tmp_path / "clash" / "A.md").write_bytes(b"2")
    write_skill(tmp_path / "x" / "twin")
    write_skill(tmp_path / "y" / "twin", body="# Another\n")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "SKILL.md").write_bytes(b"no frontmatter")
    edition = publication_of(tmp_path).edition()
    assert list(edition.skills) == [*parse_index(edition.index_0_1, wellknown.DIRECTORY_0_1)] == ["good"]
    reasons = dict(edition.left_out)
    assert sorted(path for path, _ in edition.left_out) == [
        "-ahead", "Upper", "behind-", "broken", "clash", "directory", "two--hyphens", "x/twin", "y/twin"
    ]  # fmt: skip
    assert "twin" in reasons["x/twin"]
    assert "a.md" in reasons["clash"].lower()
    assert "hyphen" in reasons["two--hyphens"]


def test_published_files_are_served_after_changes_on_disk(tmp_path: Path) -> None:
    write_skill(tmp_path / "a", notes_md="zero")
    publication = publication_of(tmp_path)
    (tmp_path / "a" / "notes.md").write_bytes(b"one, before the first edition")
    edition = publication.edition()
    items = {item.path: item for item in publication.tree(edition)}
    (tmp_path / "a" / "notes.md").write_bytes(b"two")
    found = publication.file(edition, "a", "notes.md")
    assert found is not None
    for raw in (publication.read(found, "notes.md"), items["/.well-known/skills/a/notes.md"].read()):
        assert raw == b"one, before the first edition"


def test_only_changed_skills_are_packed_again(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        write_skill(tmp_path / name, notes_md=name)
    publication = publication_of(tmp_path)
    first = publication.edition()
    assert publication.edition() is first and publication.current is first
    (tmp_path / "b" / "notes.md").write_bytes(b"other")
    publication.registry.refresh()
    assert publication.current is None
    assert [name for name, each in publication.edition().skills.items() if each is not first.skills[name]] == ["b"]


def test_changed_file_mode_is_published(tmp_path: Path) -> None:
    write_skill(tmp_path / "a", scripts__run_sh="exit 0\n", evals__evals_json="{}")
    publication = publication_of(tmp_path)
    first = publication.edition()
    (tmp_path / "a" / "scripts" / "run.sh").chmod(0o755)
    publication.registry.refresh()
    second = publication.edition()
    assert second.index != first.index
    assert fetch(publication, parse_index(second.index)["a"])["scripts/run.sh"] == (b"exit 0\n", True)
    assert publication.edition() is second is publication.current


def test_skill_is_published_again_after_its_namesake_is_gone(tmp_path: Path) -> None:
    write_skill(tmp_path / "one" / "tea", notes_md="x")
    clock = Clock()
    publication = publication_of(tmp_path, clock=clock, keeping=RetentionPolicy(seconds=100))
    registry = publication.registry
    assert "tea" in parse_index(publication.edition().index)
    write_skill(tmp_path / "another" / "tea", notes_md="y")
    for seconds in (60, 300):  # at 300 the first artifact has been deleted
        clock.now = seconds
        (tmp_path / "another" / "tea" / "notes.md").write_text(f"{seconds}", encoding="utf-8")
        registry.refresh()
        publication.edition()
    shutil.rmtree(tmp_path / "another")
    registry.refresh()
    entry = parse_index(publication.edition().index)["tea"]
    assert fetch(publication, entry)["notes.md"] == (b"x", False)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_unreadable_skill_is_left_out_until_it_is_readable(tmp_path: Path) -> None:
    write_skill(tmp_path / "a", notes_md="one")
    write_skill(tmp_path / "b")
    (tmp_path / "a" / "notes.md").chmod(0)
    clock = Clock()
    publication = publication_of(tmp_path, clock=clock)
    edition = publication.edition()
    assert list(edition.skills) == ["b"] and edition.left_out[0][0] == "a"
    (tmp_path / "a" / "notes.md").chmod(0o644)
    clock.now = 60
    assert list(publication.edition().skills) == ["a", "b"]


def test_skill_that_keeps_changing_stays_as_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_skill(tmp_path / "a", notes_md="one")
    write_skill(tmp_path / "b")
    clock = Clock()
    publication = publication_of(tmp_path, clock=clock)
    first = publication.edition()
    registry = publication.registry
    read = registry.read

    def change_then_read(file: Any) -> bytes:
        if file.location == "a/notes.md":
            (tmp_path / "a" / "notes.md").write_bytes(os.urandom(8))
        return read(file)

    (tmp_path / "a" / "notes.md").write_bytes(b"x")
    write_skill(tmp_path / "b", body="# New\n")
    registry.refresh()
    monkeypatch.setattr(registry, "read", change_then_read)
    edition = publication.edition()
    assert edition.skills["a"].artifact == first.skills["a"].artifact
    verify_edition(publication, edition)
    assert edition.skills["b"].artifact != first.skills["b"].artifact
    monkeypatch.undo()
    clock.now = 1
    assert publication.edition().skills["a"].artifact != first.skills["a"].artifact


def test_full_spool_is_an_error_and_keeps_the_last_edition(tmp_path: Path) -> None:
    write_skill(tmp_path / "a")
    publication = publication_of(tmp_path)
    first = publication.edition()
    write_skill(tmp_path / "a", body="# New\n" * 9_999)
    publication.registry.refresh()
    database = publication._artifacts._spool._database
    database.execute("PRAGMA max_page_count = 1")  # makes the database full
    with pytest.raises(OSError, match="No space"):
        publication.edition()
    assert publication.latest is first
    verify_edition(publication, first)
    database.execute("PRAGMA max_page_count = 100")
    verify_edition(publication, publication.edition())


@pytest.mark.requirement("X-7")
def test_concurrent_requests_get_one_edition(tmp_path: Path) -> None:
    write_skill(tmp_path / "a")
    publication = publication_of(tmp_path)
    read = publication.registry.read
    publication.registry.read = Mock(side_effect=lambda file: sleep(0.05) or read(file))
    with ThreadPoolExecutor() as threads:
        futures = [threads.submit(publication.edition) for _ in range(4)]
    editions = [each.result() for each in futures]
    assert len({id(each) for each in editions}) == 1
    verify_edition(publication, editions[0])


def test_publication_without_skills_has_two_empty_indexes(tmp_path: Path) -> None:
    edition = publication_of(tmp_path).edition()
    assert parse_index(edition.index) == parse_index(edition.index_0_1, wellknown.DIRECTORY_0_1) == {}


@each_row(("signed", "evals", "published"), [(False, False, False), (False, True, True), (True, False, True)])
def test_evals_are_published_only_on_request_or_if_signed(
    tmp_path: Path, signed: bool, evals: bool, published: bool
) -> None:
    folder = write_skill(tmp_path / "a", references__guide_md="x", evals__evals_json="{}")
    if signed:  # a signature covers all files
        (folder / "skill.oms.sig").write_text("x")
    options = {"evals": True} if evals else {}
    publication = publication_of(tmp_path, **options)
    edition = publication.edition()
    assert "evals/evals.json" in publication.registry.snapshot.skills["a"].files
    assert ("evals/evals.json" in publication.unpacked(edition.skills["a"])) is published
    paths = {each.path for each in publication.tree(edition)}
    assert any(each.endswith("/a/evals/evals.json") for each in paths) is published
    assert (b"evals" in edition.index_0_1) is published
    assert publication.edition() is edition


@pytest.mark.requirement("X-7")
def test_old_edition_stays_available_for_the_retention_time(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        write_skill(tmp_path / name, notes_md=f"{name} one")
    clock = Clock()
    publication = publication_of(tmp_path, keeping=RetentionPolicy(seconds=100), clock=clock)
    old = publication.edition()
    before = {name: fetch(publication, entry) for name, entry in parse_index(old.index).items()}
    (tmp_path / "a" / "notes.md").write_bytes(b"a two")
    for path in (tmp_path / "b").iterdir():
        path.unlink()
    publication.registry.refresh()
    clock.now = 50
    new = publication.edition()
    assert new is not old and list(new.skills) == ["a", "c"]
    assert {name: fetch(publication, entry) for name, entry in parse_index(old.index).items()} == before
    verify_edition(publication, new)
    clock.now = 149
    verify_edition(publication, old)
    clock.now = 150
    assert not any(publication.artifact(old.skills[name].artifact.path) for name in "ab")
    verify_edition(publication, new)


def test_recalled_artifact_is_not_available_though_the_retention_time_goes_on(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_skill(tmp_path / name, notes_md=f"{name} one", evals__a_md="Evals.\n")
    publication = publication_of(tmp_path, keeping=RetentionPolicy(seconds=100), clock=Clock())
    old, registry = publication.edition(), publication.registry
    assert isinstance(registry, Registry)
    whole = registry.digest_over(registry.snapshot.skills["a"])
    (tmp_path / "a" / "notes.md").write_bytes(b"a two")
    registry.refresh()
    assert publication.edition() is not old
    paths = [old.skills[name].artifact.path for name in "ab"]
    assert all(map(publication.artifact, paths))
    edition = publication.edition()
    newest = edition.skills["a"]
    registry.recall([Advisory(whole, "it is bad", "low")])
    assert [publication.artifact(path) is not None for path in paths] == [False, True]
    assert publication.artifact(newest.artifact.path)
    assert publication.file(edition, "a", "notes.md") is newest
    registry.recall([Advisory(digest_of(b"a two"), "it is bad", "low")])
    assert publication.file(edition, "a", "notes.md") is None
    assert publication.artifact(newest.artifact.path) is None  # though no newer edition was asked for


@pytest.mark.requirement("WK1-10")
def test_file_of_the_old_index_stays_for_the_retention_time(tmp_path: Path) -> None:
    write_skill(tmp_path / "a", notes_md="one", more_md="more")
    write_skill(tmp_path / "b")
    clock = Clock()
    publication = publication_of(tmp_path, keeping=RetentionPolicy(seconds=100), clock=clock)
    publication.edition()
    (tmp_path / "a" / "notes.md").unlink()
    (tmp_path / "b" / "SKILL.md").unlink()
    publication.registry.refresh()
    edition = publication.edition()
    for name, path, expected in (("a", "notes.md", b"one"), ("a", "more.md", b"more")):
        found = publication.file(edition, name, path)
        assert found is not None and publication.read(found, path) == expected
    write_skill(tmp_path / "c")  # makes another edition with the same skill a
    publication.registry.refresh()
    edition = publication.edition()
    assert None not in (publication.file(edition, "b", "SKILL.md"), publication.file(edition, "a", "notes.md"))
    assert publication.file(edition, "a", "nothing.md") is publication.file(edition, "no", "SKILL.md") is None
    clock.now = 101
    assert publication.file(edition, "a", "notes.md") is publication.file(edition, "b", "SKILL.md") is None
    assert publication.file(edition, "a", "more.md") is not None


def test_default_retention_is_documented() -> None:
    """docs/discovery.md: 3600 s, 20,000 artifacts and 512 MiB."""
    assert RetentionPolicy() == RetentionPolicy(seconds=3600, number=20_000, bytes=512 << 20)


@pytest.mark.parametrize("keeping", [RetentionPolicy(number=2), RetentionPolicy(bytes=6000)])
def test_retention_is_bounded_and_evicts_the_oldest(tmp_path: Path, keeping: RetentionPolicy) -> None:
    publication = publication_of(tmp_path, keeping=keeping, clock=Clock())
    paths: list[str] = []
    for number in range(6):
        write_skill(tmp_path / "a", body=f"{number}" * 2936)  # 3,000 bytes
        publication.registry.refresh()
        paths.append(publication.edition().skills["a"].artifact.path)
    assert [publication.artifact(path) is not None for path in paths] == [False, False, False, True, True, True]


def test_reverted_change_makes_the_old_artifact_current_again(tmp_path: Path) -> None:
    clock = Clock()
    publication = publication_of(write_skill(tmp_path / "a").parent, keeping=RetentionPolicy(seconds=100), clock=clock)
    first = publication.edition()
    for body in ("# Other\n", "# Thing\n"):
        write_skill(tmp_path / "a", body=body)
        publication.registry.refresh()
        last = publication.edition()
    assert last.index == first.index
    clock.now = 1000
    verify_edition(publication, last)


def test_spool_reads_whole_blobs_and_ranges() -> None:
    spool = Spool()
    slots = [spool.write(raw) for raw in (b"first", b"", b"second")]
    assert [slot.read() for slot in slots] == [b"first", b"", b"second"]
    assert (slots[2].read(2), slots[2].read(2, 3), slots[2].read(4, 100)) == (b"cond", b"con", b"nd")


def test_spool_is_in_memory_without_a_temporary_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    nowhere = Mock(side_effect=FileNotFoundError(2, "No usable temporary directory found"))
    monkeypatch.setattr("mcp_skills_server.publish.artifacts.tempfile.gettempdir", nowhere)
    assert Spool().write(b"kept" * 1_000_000).read(0, 4) == b"kept"
    nowhere.assert_called_once()
