"""Retention of artifacts after their edition, and the spool that holds them."""

from __future__ import annotations

import os
from pathlib import Path
from unittest.mock import Mock

import pytest

from mcp_skills_server.publish.artifacts import RetentionPolicy, Spool
from publish.editions import Clock, fetch, parse_index, publication_of, verify_edition
from wire import write_skill


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


def test_spool_reuses_space_and_has_no_named_file() -> None:
    spool = Spool()
    pages: list[int] = []
    for _ in range(4):
        slots = [spool.write(os.urandom(1 << 20)) for _ in range(8)]
        pages += spool._database.execute("PRAGMA page_count").fetchone()
        for slot in slots:
            spool.delete(slot.row)
    assert max(pages) < 2 * pages[0]
    assert spool._database.execute("PRAGMA database_list").fetchall() == [(0, "main", "")]


def test_spool_is_in_memory_without_a_temporary_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    nowhere = Mock(side_effect=FileNotFoundError(2, "No usable temporary directory found"))
    monkeypatch.setattr("mcp_skills_server.publish.artifacts.tempfile.gettempdir", nowhere)
    assert Spool().write(b"kept" * 1_000_000).read(0, 4) == b"kept"
    nowhere.assert_called_once()
