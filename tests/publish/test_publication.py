"""Editions of a catalogue and the artifacts that they name, without HTTP."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading
from pathlib import Path
from random import Random
from typing import Any

import pytest

from mcp_skills_server.dialects import wellknown
from mcp_skills_server.format import archive
from mcp_skills_server.publish.artifacts import RetentionPolicy
from mcp_skills_server.publish.publication import Publication
from publish.editions import SITE, Clock, complete, fetched, offered, published
from tables import each_row
from wire import FIXTURES, write_skill


def test_every_fixture_comes_out_as_it_went_in() -> None:
    publication = published(FIXTURES)
    edition = publication.edition()
    entries = offered(edition.index)
    directories = {path.parent.name: path.parent for path in FIXTURES.rglob("SKILL.md")}
    assert entries.keys() == directories.keys()
    for name, entry in entries.items():
        files = fetched(publication, entry)
        there = {
            path.relative_to(directories[name]).as_posix(): (path.read_bytes(), os.access(path, os.X_OK))
            for path in directories[name].rglob("*")
            if path.is_file()
        }
        assert {path: raw for path, (raw, _) in files.items()} == {path: raw for path, (raw, _) in there.items()}
        if entry.kind == "archive":
            assert files == there


@pytest.mark.requirement("WK-14", "WK-15", "WK-19", "WK-20", "WK-21", "WK-23", "WK-24")
def test_a_lone_skill_is_published_as_it_is_and_others_as_archives(tmp_path: Path) -> None:
    write_skill(tmp_path / "lone")
    write_skill(tmp_path / "more", scripts__run_sh="exit 0\n")
    (tmp_path / "more" / "scripts" / "run.sh").chmod(0o755)
    publication = published(tmp_path)
    entries = offered(publication.edition().index)
    assert {name: entry.kind for name, entry in entries.items()} == {"lone": "skill-md", "more": "archive"}
    assert fetched(publication, entries["more"]) == {
        "SKILL.md": ((tmp_path / "more" / "SKILL.md").read_bytes(), False),
        "scripts/run.sh": (b"exit 0\n", True),
    }


def tree_of(publication: Publication) -> dict[str, bytes]:
    """The files of the tree by their paths, each proved."""
    items = list(publication.tree(publication.edition()))
    found = {item.path: item.read() for item in items}
    assert {item.path: item.digest for item in items} == {
        path: "sha256:" + hashlib.sha256(raw).hexdigest() for path, raw in found.items()
    }
    return found


def test_the_same_skills_give_the_same_bytes_wherever_they_lie(tmp_path: Path) -> None:
    for place in ("here", "over/there"):
        for name in ("b", "a") if place == "here" else ("a", "b"):
            write_skill(tmp_path / place / name, references__x_md=name)
    os.utime(tmp_path / "here" / "a" / "SKILL.md", (1, 1))
    first, second = (published(tmp_path / place) for place in ("here", "over/there"))
    assert list(tree_of(first).items()) == list(tree_of(second).items())


@pytest.mark.requirement("WK-1", "WK1-1", "WK1-10", "X-18")
def test_a_tree_has_both_indexes_and_all_that_they_name(tmp_path: Path) -> None:
    write_skill(tmp_path / "lone")
    write_skill(tmp_path / "more", references__a_md="a", references__b_md="b")
    publication = published(tmp_path)
    tree = tree_of(publication)
    assert list(tree)[-1] == "/.well-known/agent-skills/index.json"
    new, old = json.loads(tree.pop(list(tree)[-1])), json.loads(tree.pop("/.well-known/skills/index.json"))
    named = {entry["url"]: entry["digest"] for entry in new["skills"]}
    for url, digest in named.items():
        assert "sha256:" + hashlib.sha256(tree.pop(url)).hexdigest() == digest
    listed = {f"/.well-known/skills/{each['name']}/{path}" for each in old["skills"] for path in each["files"]}
    assert listed == tree.keys()
    assert tree["/.well-known/skills/more/references/b.md"] == b"b"


@pytest.mark.requirement("X-4", "X-19", "WK1-9")
def test_names_that_ustar_or_the_old_index_cannot_hold(tmp_path: Path) -> None:
    write_skill(tmp_path / "plain")
    directory = write_skill(tmp_path / "foreign")
    (directory / "Grüße und mehr.md").write_bytes(b"hello")
    spaced = write_skill(tmp_path / "spaced")
    (spaced / "two words.md").write_bytes(b"words")
    publication = published(tmp_path)
    edition = publication.edition()
    entries = offered(edition.index)
    assert entries["foreign"].url.endswith("/foreign.zip")
    assert fetched(publication, entries["foreign"])["Grüße und mehr.md"] == (b"hello", False)
    old = offered(edition.index_0_1, wellknown.DIRECTORY_0_1)
    assert old.keys() == {"plain", "spaced"}
    assert old["spaced"].files["two words.md"] == f"{SITE}/.well-known/skills/spaced/two%20words.md"
    assert [path for path, _ in edition.left_out_0_1] == ["foreign"]


@pytest.mark.requirement("X-2", "WK-18")
def test_what_cannot_be_published_is_left_out_with_its_reason(tmp_path: Path) -> None:
    write_skill(tmp_path / "good")
    write_skill(tmp_path / "Bad-Name")
    (write_skill(tmp_path / "clash") / "a.md").write_bytes(b"1")
    (tmp_path / "clash" / "A.md").write_bytes(b"2")
    write_skill(tmp_path / "x" / "twin")
    write_skill(tmp_path / "y" / "twin", body="# Another\n")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "SKILL.md").write_bytes(b"no frontmatter")
    edition = published(tmp_path).edition()
    assert list(edition.skills) == ["good"]
    reasons = dict(edition.left_out)
    assert reasons.keys() == {"Bad-Name", "broken", "clash", "x/twin", "y/twin"}
    assert "twin" in reasons["x/twin"] and "a.md" in reasons["clash"].lower()


def test_an_empty_catalogue_has_an_index(tmp_path: Path) -> None:
    edition = published(tmp_path).edition()
    assert offered(edition.index) == {} and offered(edition.index_0_1, wellknown.DIRECTORY_0_1) == {}


def test_a_tree_is_what_was_set_aside_whatever_happens_on_the_disk(tmp_path: Path) -> None:
    write_skill(tmp_path / "a", notes_md="one")
    publication = published(tmp_path)
    items = {item.path: item for item in publication.tree(publication.edition())}
    (tmp_path / "a" / "notes.md").write_bytes(b"two")
    assert items["/.well-known/skills/a/notes.md"].read() == b"one"


def test_only_what_changed_is_packed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b", "c"):
        write_skill(tmp_path / name, notes_md=name)
    packed: list[int] = []
    real = archive.pack

    def pack(files: archive.Files) -> tuple[str, bytes]:
        packed.append(len(files))
        return real(files)

    monkeypatch.setattr(archive, "pack", pack)
    publication = published(tmp_path)
    edition = publication.edition()
    assert len(packed) == 3
    assert publication.edition() is edition and publication.current is edition
    (tmp_path / "b" / "notes.md").write_bytes(b"other")
    publication.registry.refresh()
    assert publication.current is None
    assert publication.edition() is not edition and len(packed) == 4


def test_a_mode_that_changes_is_published_before_long(tmp_path: Path) -> None:
    write_skill(tmp_path / "a", scripts__run_sh="exit 0\n")
    clock = Clock()
    publication = published(tmp_path, clock=clock)
    first = publication.edition()
    (tmp_path / "a" / "scripts" / "run.sh").chmod(0o755)
    publication.registry.refresh()
    clock.now = 60
    second = publication.edition()
    assert second.index != first.index
    assert fetched(publication, offered(second.index)["a"])["scripts/run.sh"] == (b"exit 0\n", True)
    clock.now = 120
    assert publication.current is None and publication.edition() is second


def test_an_edition_without_evals_is_checked_again_after_a_while(tmp_path: Path) -> None:
    write_skill(tmp_path / "a", evals__evals_json="{}", notes_md="x")
    clock = Clock()
    publication = published(tmp_path, clock=clock)
    first = publication.edition()
    assert "evals/evals.json" not in fetched(publication, offered(first.index)["a"])
    clock.now = 60
    assert publication.edition() is first


def test_a_skill_that_was_hidden_by_its_namesake_is_published_again(tmp_path: Path) -> None:
    write_skill(tmp_path / "one" / "tea", notes_md="x")
    clock = Clock()
    publication = published(tmp_path, clock=clock, keeping=RetentionPolicy(seconds=100))
    registry = publication.registry
    assert "tea" in offered(publication.edition().index)
    write_skill(tmp_path / "another" / "tea", notes_md="y")
    for clock.now in (60, 300):  # the second time the first artifact is deleted
        (tmp_path / "another" / "tea" / "notes.md").write_text(f"{clock.now}", encoding="utf-8")
        registry.refresh()
        publication.edition()
    shutil.rmtree(tmp_path / "another")
    registry.refresh()
    entry = offered(publication.edition().index)["tea"]
    assert fetched(publication, entry)["notes.md"] == (b"x", False)


def test_an_edit_that_nobody_has_seen_yet_is_published(tmp_path: Path) -> None:
    write_skill(tmp_path / "a", notes_md="one")
    publication = published(tmp_path)
    (tmp_path / "a" / "notes.md").write_bytes(b"two, before the first edition")
    entry = offered(publication.edition().index)["a"]
    assert fetched(publication, entry)["notes.md"][0] == b"two, before the first edition"


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_skill_that_cannot_be_read_is_left_out_until_it_can(tmp_path: Path) -> None:
    write_skill(tmp_path / "a", notes_md="one")
    write_skill(tmp_path / "b")
    (tmp_path / "a" / "notes.md").chmod(0)
    clock = Clock()
    publication = published(tmp_path, clock=clock)
    edition = publication.edition()
    assert list(edition.skills) == ["b"] and edition.left_out[0][0] == "a"
    (tmp_path / "a" / "notes.md").chmod(0o644)
    clock.now = 60
    assert list(publication.edition().skills) == ["a", "b"]


def test_a_skill_that_does_not_hold_still_stays_as_it_was_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_skill(tmp_path / "a", notes_md="one")
    write_skill(tmp_path / "b")
    clock = Clock()
    publication = published(tmp_path, clock=clock)
    first = publication.edition()
    registry, real = publication.registry, publication.registry.read

    def read(file: Any) -> bytes:
        if file.location == "a/notes.md":
            (tmp_path / "a" / "notes.md").write_bytes(os.urandom(8))
        return real(file)

    (tmp_path / "a" / "notes.md").write_bytes(b"x")
    write_skill(tmp_path / "b", body="# New\n")
    registry.refresh()
    monkeypatch.setattr(registry, "read", read)
    edition = publication.edition()
    assert edition.skills["a"].artifact == first.skills["a"].artifact and complete(publication, edition)
    assert edition.skills["b"].artifact != first.skills["b"].artifact
    monkeypatch.undo()
    clock.now = 1
    assert publication.edition().skills["a"].artifact != first.skills["a"].artifact


def test_no_place_for_artifacts_is_told_and_costs_no_edition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_skill(tmp_path / "a")
    publication = published(tmp_path)
    first = publication.edition()
    write_skill(tmp_path / "a", body="# New\n")
    publication.registry.refresh()

    def full(_spool: object, _raw: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("mcp_skills_server.publish.artifacts.Spool.write", full)
    with pytest.raises(OSError, match="No space"):
        publication.edition()
    assert publication.latest is first and complete(publication, first)
    monkeypatch.undo()
    assert complete(publication, publication.edition())


@pytest.mark.requirement("X-7")
def test_editions_stay_whole_while_a_writer_and_many_readers_are_at_work(tmp_path: Path) -> None:
    for name in ("one", "two", "three"):
        write_skill(tmp_path / name, notes_md="a")
    publication = published(tmp_path)
    done = threading.Event()
    failed: list[BaseException] = []
    dice = Random(5)

    def rewrite() -> None:
        while not done.wait(0.001):
            directory = tmp_path / dice.choice(["one", "two", "three"])
            (directory / "notes.md").write_bytes(dice.randbytes(dice.choice([1, 1, 3000])))
            publication.registry.refresh([str(directory)])

    def read() -> None:
        try:
            for _ in range(60):
                edition = publication.edition()
                assert list(edition.skills) == ["one", "three", "two"]
                assert complete(publication, edition)
        except BaseException as error:
            failed.append(error)

    writer = threading.Thread(target=rewrite)
    readers = [threading.Thread(target=read) for _ in range(3)]
    for thread in (writer, *readers):
        thread.start()
    for thread in readers:
        thread.join()
    done.set()
    writer.join()
    assert not failed, failed


@pytest.mark.requirement("WK-4", "WK1-3")
@each_row("name", ["-ahead", "behind-", "two--hyphens", "Upper", "other-than-its-directory"])
def test_only_sound_names_are_published(tmp_path: Path, name: str) -> None:
    """A name that the format refuses, or that is not its directory's, is in neither index."""
    write_skill(tmp_path / "good")
    directory = "directory" if name == "other-than-its-directory" else name
    write_skill(tmp_path / directory, name=name)
    edition = published(tmp_path).edition()
    assert [each["name"] for each in json.loads(edition.index)["skills"]] == ["good"]
    assert [each["name"] for each in json.loads(edition.index_0_1)["skills"]] == ["good"]
