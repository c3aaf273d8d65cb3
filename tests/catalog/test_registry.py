"""The registry: roots, what is told of changes, what a read proves, and what a refresh ends with."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalog.forest import Told, as_nobody, codes, loaded, plant, skill_md, skills, together, view
from mcp_skills_server.catalog import registry as registry_module
from mcp_skills_server.catalog import tree
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.scan import Limits, digest_of
from mcp_skills_server.errors import StaleFileError, UsageError
from mcp_skills_server.model import Changes, Skill, SkillFile, Standing


def served(registry: Registry) -> list[str]:
    return registry.snapshot.paths(Standing.VALID)


# Roots


def test_a_registry_is_empty_until_it_is_loaded(tmp_path: Path) -> None:
    registry = Registry([plant(tmp_path, skills("one"))])
    assert not registry.loaded.is_set() and not registry.snapshot.skills
    registry.load()
    assert registry.loaded.is_set() and served(registry) == ["one"]


def test_a_path_to_a_skill_md_stands_for_its_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(tmp_path, skills("one", "two"))
    assert served(loaded(tmp_path / "one/SKILL.md")) == ["one"]
    monkeypatch.chdir(tmp_path / "two")
    registry = loaded(Path("SKILL.md"))
    assert served(registry) == ["two"] and registry.roots[0].shown == "."


def test_the_same_root_twice_counts_once(tmp_path: Path) -> None:
    plant(tmp_path / "root", skills("one"))
    (tmp_path / "again").symlink_to("root")
    registry = loaded(tmp_path / "root", tmp_path / "again", tmp_path / "root/../root")
    assert [root.shown for root in registry.roots] == [str(tmp_path / "root")]
    assert codes(registry) == []


@pytest.mark.parametrize("given_path", ["nowhere", "file", "dangling", ""])
def test_a_root_that_is_no_directory_is_refused_in_one_line(
    tmp_path: Path, given_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(tmp_path, {"file": "x"})
    (tmp_path / "dangling").symlink_to("away")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="give the path of a folder") as raised:
        Registry([given_path])
    assert given_path in str(raised.value) and "\n" not in str(raised.value)


def test_a_root_that_cannot_be_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Any) -> Any:
        raise PermissionError(errno.EACCES, "Permission denied", path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(UsageError, match=r"Permission denied.*check its permissions"):
        Registry([tmp_path])


@pytest.mark.requirement("ASG-7", "ASG-8", "ASG-9")
def test_the_earlier_root_wins_and_the_later_skill_is_told_as_shadowed(tmp_path: Path) -> None:
    plant(tmp_path / "one", skills("same", "acme/inner", "outer"))
    plant(tmp_path / "two", skills("same", "acme", "acme/free", "outer/inner", "own"))
    registry = loaded(tmp_path / "one", tmp_path / "two")
    assert served(registry) == ["acme/free", "acme/inner", "outer", "own", "same"]
    assert [registry.snapshot.skills[path].root for path in served(registry)] == [1, 0, 0, 1, 0]
    told = {problem.skill: problem for problem in registry.problems() if problem.code == "shadowed"}
    assert sorted(told) == ["acme", "outer/inner", "same"]
    assert told["same"].path == str(tmp_path / "two/same") and str(tmp_path / "one/same") in told["same"].message
    assert str(tmp_path / "one/acme/inner") in told["acme"].message
    turned = loaded(tmp_path / "two", tmp_path / "one")
    assert [turned.snapshot.skills[path].root for path in served(turned)] == [0, 0, 0, 0, 0]


def test_a_shadowed_skill_appears_when_what_hides_it_goes(tmp_path: Path) -> None:
    plant(tmp_path / "one", skills("a"))
    plant(tmp_path / "two", skills("a", "a/b"))
    registry = loaded(tmp_path / "one", tmp_path / "two")
    shutil.rmtree(tmp_path / "one/a")
    changes = registry.refresh([str(tmp_path / "one/a")])
    assert served(registry) == ["a", "a/b"] and codes(registry) == []
    assert (changes.before["a"].root, changes.after["a"].root) == (0, 1) and "a/b" not in changes.before
    plant(tmp_path / "one", skills("a"))
    registry.refresh([str(tmp_path / "one/a")])
    assert served(registry) == ["a"] and codes(registry) == ["shadowed", "shadowed"]


@pytest.mark.parametrize("whole", [True, False])
def test_an_edit_of_both_the_winner_and_the_shadowed_skill_shows(tmp_path: Path, whole: bool) -> None:
    """One refresh that touches the same skill path in two roots loses neither of them."""
    plant(tmp_path / "one", skills("a"))
    plant(tmp_path / "two", skills("a", "b"))
    registry = loaded(tmp_path / "one", tmp_path / "two")
    plant(tmp_path / "one", {"a/SKILL.md": skill_md("a", "version: won")})
    plant(tmp_path / "two", {"a/SKILL.md": skill_md("a", "version: lost")})
    changes = registry.refresh(None if whole else [str(tmp_path / each / "a/SKILL.md") for each in ("two", "one")])
    assert registry.snapshot.skills["a"].frontmatter["version"] == "won"
    assert changes.after["a"].root == changes.before["a"].root == 0
    assert codes(registry).count("shadowed") == 1


def test_an_edit_of_a_shadowed_skill_changes_nothing(tmp_path: Path) -> None:
    plant(tmp_path / "one", skills("a"))
    plant(tmp_path / "two", skills("a"))
    registry = loaded(tmp_path / "one", tmp_path / "two")
    plant(tmp_path / "two", {"a/SKILL.md": skill_md("a", "version: 2")})
    assert not registry.refresh([str(tmp_path / "two/a/SKILL.md")])
    assert registry.snapshot.skills["a"].root == 0


def test_a_root_inside_an_ignored_directory_of_another_is_followed(tmp_path: Path) -> None:
    plant(tmp_path, skills("one", ".agents/skills/two"))
    registry = loaded(tmp_path, tmp_path / ".agents/skills")
    plant(tmp_path, skills(".agents/skills/three"))
    registry.refresh([str(tmp_path / ".agents/skills/three/SKILL.md")])
    assert served(registry) == ["one", "three", "two"]


def test_an_event_in_an_ignored_place_brings_no_skill(tmp_path: Path) -> None:
    registry = loaded(plant(tmp_path, skills("one", "node_modules/two", ".git/three", "docs/.cache/four")))
    for path in ("node_modules/two/SKILL.md", ".git/three", "docs/.cache/four/SKILL.md"):
        assert not registry.refresh([str(tmp_path / path)])
    assert list(registry.snapshot.skills) == ["one"]


def test_a_path_outside_every_root_is_nobodys(tmp_path: Path) -> None:
    plant(tmp_path, skills("root/one", "root-evil/two"))
    registry = loaded(tmp_path / "root")
    assert not registry.refresh([str(tmp_path / "root-evil/two/SKILL.md"), str(tmp_path), "/"])
    assert served(registry) == ["one"]


# What is told of changes


def test_an_unchanged_tree_gives_no_changes_and_the_same_objects(tmp_path: Path) -> None:
    plant(tmp_path, skills("a", "a/b", "c") | {"a/ref.md": "x", "bad/SKILL.md": "x", "c/skill.md": "x"})
    registry = loaded(tmp_path)
    snapshot, told = registry.snapshot, Told(registry)
    for paths in (None, [], [str(tmp_path / "a/SKILL.md")], [str(tmp_path)], [str(tmp_path / "bad")]):
        assert not registry.refresh(paths)
    assert registry.snapshot is snapshot and told.all == []


def test_an_edit_replaces_the_skill_and_names_the_file(tmp_path: Path) -> None:
    registry = loaded(plant(tmp_path, skills("a", "b") | {"a/ref.md": "x"}))
    before = dict(registry.snapshot.skills)
    (tmp_path / "a/ref.md").write_text("longer")
    changes = registry.refresh([str(tmp_path / "a/ref.md")])
    assert dict(changes.before) == {"a": before["a"]} and list(changes.after) == ["a"]
    assert changes.files == {("a", "ref.md")}
    after = registry.snapshot.skills
    assert after["b"] is before["b"] and after["a"].files["SKILL.md"] is before["a"].files["SKILL.md"]
    assert after["a"].reading is before["a"].reading


def test_files_that_come_and_go_change_the_skill(tmp_path: Path) -> None:
    registry = loaded(plant(tmp_path, skills("a")))
    plant(tmp_path, {"a/sub/new.md": "x"})
    assert registry.refresh([str(tmp_path / "a/sub")]).files == {("a", "sub/new.md")}
    (tmp_path / "a/sub/new.md").rename(tmp_path / "a/sub/newer.md")
    told = [str(tmp_path / "a/sub/new.md"), str(tmp_path / "a/sub/newer.md")]
    assert registry.refresh(told).files == {("a", "sub/new.md"), ("a", "sub/newer.md")}
    (tmp_path / "a/sub").rename(tmp_path / "a/bus")
    assert registry.refresh([str(tmp_path / "a/sub"), str(tmp_path / "a/bus")])
    assert list(registry.snapshot.skills["a"].files) == ["SKILL.md", "bus/newer.md"]
    shutil.rmtree(tmp_path / "a/bus")
    assert registry.refresh([str(tmp_path / "a/bus")]).files == {("a", "bus/newer.md")}


def test_a_skill_that_is_renamed_goes_and_comes(tmp_path: Path) -> None:
    registry = loaded(plant(tmp_path, skills("a", "keep")))
    (tmp_path / "a").rename(tmp_path / "b")
    changes = registry.refresh([str(tmp_path / "a"), str(tmp_path / "b")])
    assert list(changes.before) == ["a"] and list(changes.after) == ["b"]
    assert codes(registry) == ["name-mismatch"]


def test_a_directory_of_skills_that_moves_takes_them_along(tmp_path: Path) -> None:
    registry = loaded(plant(tmp_path, skills("old/a", "old/b/c", "keep")))
    (tmp_path / "old").rename(tmp_path / "new")
    registry.refresh([str(tmp_path / "new")])
    registry.refresh([str(tmp_path / "old")])
    assert served(registry) == ["keep", "new/a", "new/b/c"]


@pytest.mark.requirement("S40-16")
def test_a_change_in_a_nested_skill_changes_the_enclosing_one(tmp_path: Path) -> None:
    registry = loaded(plant(tmp_path, skills("a", "a/b", "a/c") | {"a/b/ref.md": "x"}))
    (tmp_path / "a/b/ref.md").write_text("longer")
    changes = registry.refresh([str(tmp_path / "a/b/ref.md")])
    assert sorted(changes.after) == ["a", "a/b"]
    assert changes.files == {("a", "b/ref.md"), ("a/b", "ref.md")}


def test_a_skill_md_above_makes_the_skills_below_nested_and_its_end_frees_them(tmp_path: Path) -> None:
    registry = loaded(plant(tmp_path, skills("a/b", "a/c")))
    plant(tmp_path, skills("a"))
    assert list(registry.refresh([str(tmp_path / "a/SKILL.md")]).after) == ["a"]
    assert list(registry.snapshot.skills["a"].files) == ["SKILL.md", "b/SKILL.md", "c/SKILL.md"]
    (tmp_path / "a/SKILL.md").unlink()
    assert list(registry.refresh([str(tmp_path / "a/SKILL.md")]).before) == ["a"]
    assert served(registry) == ["a/b", "a/c"]


def test_events_in_a_new_skill_bring_no_skill_that_a_whole_scan_would_not(tmp_path: Path) -> None:
    registry = loaded(tmp_path)
    plant(tmp_path, skills("a", "a-b") | {"a/b/skill.md": "x"})
    registry.refresh([str(tmp_path / path) for path in ("a", "a-b", "a/b", "a/b/skill.md")])
    assert list(registry.snapshot.skills) == ["a", "a-b"] and codes(registry) == []


def test_a_root_that_stops_being_a_skill_leaves_the_paths_below_bare(tmp_path: Path) -> None:
    registry = loaded(plant(tmp_path, {"SKILL.md": skill_md("kit")} | skills("sub")))
    assert list(registry.snapshot.skills) == ["kit", "kit/sub"]
    (tmp_path / "SKILL.md").unlink()
    registry.refresh([str(tmp_path / "SKILL.md")])
    assert list(registry.snapshot.skills) == ["sub"]
    plant(tmp_path, {"SKILL.md": skill_md("tool")})
    registry.refresh([str(tmp_path / "SKILL.md")])
    assert list(registry.snapshot.skills) == ["tool", "tool/sub"]


def test_a_touch_is_silent_once_the_digest_is_known(tmp_path: Path) -> None:
    registry = loaded(plant(tmp_path, skills("a") | {"a/ref.md": "x"}))
    kept = registry.snapshot.skills["a"]
    registry.hash_files(kept)
    for path in ("a/ref.md", "a/SKILL.md"):
        os.utime(tmp_path / path, (1, 1))
        assert not registry.refresh([str(tmp_path / path)])
    (tmp_path / "a/new").write_text("x")
    (tmp_path / "a/new").rename(tmp_path / "a/ref.md")
    assert not registry.refresh()
    assert registry.snapshot.skills["a"] is kept
    assert registry.read(kept.files["ref.md"]) == b"x"


def test_a_rewrite_that_keeps_size_and_time_is_noticed(tmp_path: Path) -> None:
    registry = loaded(plant(tmp_path, skills("a") | {"a/ref.md": "hello"}))
    registry.hash_files(registry.snapshot.skills["a"])
    found = (tmp_path / "a/ref.md").stat()
    (tmp_path / "a/.tmp").write_text("other")
    os.utime(tmp_path / "a/.tmp", ns=(found.st_atime_ns, found.st_mtime_ns))
    (tmp_path / "a/.tmp").rename(tmp_path / "a/ref.md")
    assert registry.refresh([str(tmp_path / "a/ref.md")]).files == {("a", "ref.md")}


def same_signature_rewrite(place: Path, file: SkillFile, raw: bytes) -> None:
    """What two writes within one tick of the clock leave: other bytes under the signature of the scan."""
    place.write_bytes(raw)
    file.signature = tree.signature(os.lstat(place))


def test_a_rewrite_under_the_same_signature_is_caught_by_the_read_and_recovered_from(tmp_path: Path) -> None:
    registry = loaded(plant(tmp_path, skills("a") | {"a/ref.md": "hello"}))
    file = registry.snapshot.skills["a"].files["ref.md"]
    assert registry.digest(file) == digest_of(b"hello")
    same_signature_rewrite(tmp_path / "a/ref.md", file, b"other")
    with pytest.raises(StaleFileError) as raised:
        registry.read(file)
    assert registry.rescan(raised.value).files == {("a", "ref.md")}
    assert registry.read(registry.snapshot.skills["a"].files["ref.md"]) == b"other"


def test_a_rewrite_under_the_same_signature_of_a_young_file_is_caught_by_the_next_scan(tmp_path: Path) -> None:
    registry = loaded(plant(tmp_path, skills("a") | {"a/ref.md": "hello"}))
    file = registry.snapshot.skills["a"].files["ref.md"]
    registry.digest(file)
    same_signature_rewrite(tmp_path / "a/ref.md", file, b"other")
    assert not file.mtime_reliable
    assert registry.refresh().files == {("a", "ref.md")}


def test_listeners_hear_of_the_first_scan_and_then_of_what_changed_until_they_leave(tmp_path: Path) -> None:
    plant(tmp_path, skills("a"))
    registry, heard = Registry([tmp_path]), list[Changes]()
    leave = registry.subscribe(heard.append)
    registry.load()
    assert [list(changes.after) for changes in heard] == [["a"]]
    registry.refresh()
    plant(tmp_path, skills("b"))
    registry.refresh()
    assert [list(changes.after) for changes in heard] == [["a"], ["b"]]
    leave()
    leave()
    plant(tmp_path, skills("c"))
    registry.refresh()
    assert len(heard) == 2


def test_a_first_scan_that_finds_nothing_is_heard_of_too(tmp_path: Path) -> None:
    registry, heard = Registry([tmp_path]), list[Changes]()
    registry.subscribe(heard.append)
    registry.load()
    assert heard == [Changes({}, {})]


# A root that goes


def test_a_missing_root_is_told_and_its_skills_stay_until_it_is_back(tmp_path: Path) -> None:
    plant(tmp_path, skills("one/a", "one/b", "two/c"))
    registry = loaded(tmp_path / "one", tmp_path / "two")
    kept = dict(registry.snapshot.skills)
    (tmp_path / "one").rename(tmp_path / "away")
    for paths in (None, [str(tmp_path / "one")], [str(tmp_path / "one/a")], [str(tmp_path / "one/a/SKILL.md")]):
        assert not registry.refresh(paths)
        assert codes(registry) == ["root-missing"]
    assert dict(registry.snapshot.skills) == kept
    plant(tmp_path, skills("two/d"))
    assert registry.refresh([str(tmp_path / "two/d")])
    assert served(registry) == ["a", "b", "c", "d"]
    shutil.rmtree(tmp_path / "away/b")
    (tmp_path / "away").rename(tmp_path / "one")
    registry.refresh([str(tmp_path / "one/a")])
    assert served(registry) == ["a", "c", "d"] and codes(registry) == []


def test_a_root_that_becomes_a_file_is_missing(tmp_path: Path) -> None:
    registry = loaded(plant(tmp_path / "root", skills("a")))
    shutil.rmtree(tmp_path / "root")
    (tmp_path / "root").write_text("x")
    assert not registry.refresh()
    assert codes(registry) == ["root-missing"] and served(registry) == ["a"]


def test_a_want_of_descriptors_takes_no_skill_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = loaded(plant(tmp_path, skills("a", "b/c")))
    real = os.open

    def refuse(path: Any, *arguments: Any, **options: Any) -> int:
        if path in {"a", "c"}:
            raise OSError(errno.EMFILE, "Too many open files")
        return real(path, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        for paths in ([str(tmp_path / "a/SKILL.md")], None):
            assert not registry.refresh(paths)
            assert served(registry) == ["a", "b/c"] and codes(registry) == ["root-missing"]
    assert not registry.refresh([str(tmp_path / "a/SKILL.md")])
    assert codes(registry) == []


# Reading


@pytest.mark.requirement("S40-18", "X-1", "X-3")
@pytest.mark.parametrize("raw", [b"", b"a\r\nb\r\n", b"\xef\xbb\xbf# hi", bytes(range(256)), b"x" * 2_000_000], ids=len)
def test_read_gives_the_exact_bytes_and_the_digest_is_theirs(tmp_path: Path, raw: bytes) -> None:
    registry = loaded(plant(tmp_path, skills("a") | {"a/file": raw}))
    file = registry.snapshot.skills["a"].files["file"]
    assert registry.read(file) == raw
    assert file.digest == registry.digest(file) == digest_of(raw) and file.size == len(raw)


@pytest.mark.requirement("X-5")
def test_a_directory_swapped_for_a_link_is_stale_and_never_the_foreign_bytes(tmp_path: Path) -> None:
    registry = loaded(plant(tmp_path / "root", skills("a") | {"a/ref.md": "hello"}))
    plant(tmp_path / "outside", {"SKILL.md": skill_md("a"), "ref.md": "other"})
    shutil.rmtree(tmp_path / "root/a")
    (tmp_path / "root/a").symlink_to(tmp_path / "outside")
    with pytest.raises(StaleFileError) as raised:
        registry.read(registry.snapshot.skills["a"].files["ref.md"])
    registry.rescan(raised.value)
    assert served(registry) == [] and codes(registry) == ["link-outside"]


def test_of_two_first_readers_of_different_bytes_one_is_stale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both read before either has named the digest; only one of them can be right."""
    both = threading.Barrier(2)

    class Racing(SkillFile):
        @property  # type: ignore[override]
        def digest(self) -> str | None:
            known = self.__dict__.get("digest")
            if known is None and not getattr(here, "waited", False):
                here.waited = True
                both.wait(10)
            return known

        @digest.setter
        def digest(self, value: str | None) -> None:
            self.__dict__["digest"] = value

    here, bytes_of = threading.local(), iter((b"hello", b"other"))
    monkeypatch.setattr(tree, "read", lambda *_: next(bytes_of))
    registry = Registry([tmp_path])
    file, got = Racing(0, "file", 5, (), True), list[bytes | StaleFileError]()

    def read() -> None:
        try:
            got.append(registry.read(file))
        except StaleFileError as stale:
            got.append(stale)

    together(read, read)
    right = [raw for raw in got if isinstance(raw, bytes)]
    assert len(got) == 2 and [digest_of(raw) for raw in right] == [file.digest]


def test_of_a_skill_over_a_limit_no_more_is_read_than_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"a/model.bin": "x" * 1000} | {f"a/{number}": "y" * 100 for number in range(9)}
    registry = loaded(plant(tmp_path, skills("a") | files), limits=Limits(bytes=500))
    real, sizes = tree.read, list[int]()

    def read(root_path: str, file: SkillFile) -> bytes:
        sizes.append(file.size)
        return real(root_path, file)

    monkeypatch.setattr(tree, "read", read)
    registry.hash_files(registry.snapshot.skills["a"])
    assert 0 < sum(sizes) <= 500


def test_proving_passes_over_what_is_gone(tmp_path: Path) -> None:
    registry = loaded(plant(tmp_path, skills("a") | {"a/b": "x", "a/c": "x"}))
    skill = registry.snapshot.skills["a"]
    (tmp_path / "a/b").unlink()
    registry.hash_files(skill)
    assert skill.files["b"].digest is None and skill.files["c"].digest == digest_of(b"x")


@pytest.mark.requirement("S76-7")
def test_a_body_is_lf_text_with_the_files_that_it_links_to(tmp_path: Path) -> None:
    text = skill_md("a", body="See [the guide](ref.md), `run.sh` and [nothing](none.md).").replace("\n", "\r\n")
    registry = loaded(plant(tmp_path, {"a/SKILL.md": text, "a/ref.md": "x", "a/run.sh": "x"}))
    skill = registry.snapshot.skills["a"]
    assert not registry.has_body(skill)
    body = registry.body(skill)
    assert body.text == "See [the guide](ref.md), `run.sh` and [nothing](none.md)."
    assert dict(body.linked) == {"ref.md": "the guide", "run.sh": ""}
    assert registry.has_body(skill) and registry.body(skill) is body
    (tmp_path / "a/SKILL.md").write_text("other")
    with pytest.raises(StaleFileError):
        registry.body(skill)


def test_the_bodies_that_are_kept_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_module, "_BODIES_KEPT", 3)
    registry = loaded(plant(tmp_path, skills(*(f"s{number}" for number in range(9)))))
    found = list(registry.snapshot.skills.values())
    for skill in found:
        registry.body(skill)
    assert [registry.has_body(skill) for skill in found] == [False] * 6 + [True] * 3
    monkeypatch.setattr(registry_module, "_BODIES_SIZE", 0)
    registry = loaded(tmp_path)
    found = list(registry.snapshot.skills.values())
    assert registry.body(found[0]).text == "Do it."
    assert not any(registry.has_body(skill) for skill in found)


@pytest.mark.requirement("X-7")
def test_nobody_ever_sees_a_half_filled_snapshot(tmp_path: Path) -> None:
    """Two generations of skills change places while readers look: each sees one or the other, whole."""
    first, second = [f"a{number}" for number in range(20)], [f"b{number}" for number in range(20)]
    top = plant(tmp_path / "top", skills(*(f"group/{name}" for name in first)))
    plant(tmp_path / "next", skills(*(f"group/{name}" for name in second)))
    registry = loaded(top)
    allowed = [sorted(f"group/{name}" for name in names) for names in (first, second)]
    done, seen = threading.Event(), set[str]()

    def look() -> None:
        while not done.wait(0.0002):  # or the readers keep the interpreter and the swaps take half a minute
            snapshot = registry.snapshot
            assert list(snapshot.paths(Standing.VALID)) in allowed
            assert sorted(snapshot.skills) in allowed
            seen.add(snapshot.paths(Standing.VALID)[0])

    def swap() -> None:
        try:
            for turn in range(4000):
                if turn >= 40 and len(seen) == 2:
                    break  # on a busy machine the readers may need longer to have looked at both
                (top / "group").rename(tmp_path / "aside")
                (tmp_path / "next/group").rename(top / "group")
                (tmp_path / "aside").rename(tmp_path / "next/group")
                registry.refresh([str(top / "group")])
        finally:
            done.set()

    together(swap, look, look)
    assert seen == {allowed[0][0], allowed[1][0]}


@pytest.mark.requirement("S40-18", "X-1")
def test_what_read_returns_always_has_the_digest_of_its_entry(tmp_path: Path) -> None:
    """A writer rewrites the file in place, at the same size, as fast as it can."""
    place = plant(tmp_path, skills("a") | {"a/ref.md": "0" * 4096}) / "a/ref.md"
    registry = loaded(tmp_path)
    done, proved = threading.Event(), set[bytes]()

    def write() -> None:
        number = 0
        while not done.is_set():
            number += 1
            place.write_bytes(b"%d" % (number % 10) * 4096)

    def read() -> None:
        try:
            for _ in range(400):
                file = registry.snapshot.skills["a"].files["ref.md"]
                try:
                    raw = registry.read(file)
                except StaleFileError as stale:
                    registry.rescan(stale)
                else:
                    assert digest_of(raw) == file.digest and len(raw) == file.size
                    proved.add(raw)
        finally:
            done.set()

    together(write, read, read)
    registry.refresh()
    assert registry.read(registry.snapshot.skills["a"].files["ref.md"]) == place.read_bytes()


# Problems


def test_problems_come_by_place(tmp_path: Path) -> None:
    plant(tmp_path, {"b/SKILL.md": "x", "a/SKILL.md": skill_md("z"), "c/skill.md": "x"} | skills("ok"))
    registry = loaded(tmp_path)
    told = [(problem.path, problem.code) for problem in registry.problems()]
    assert told == sorted(told)
    assert codes(registry) == ["frontmatter-missing", "name-mismatch", "skill-md-case"]


@pytest.mark.requirement("S40-37")
def test_names_that_several_served_skills_share_are_told_of_each(tmp_path: Path) -> None:
    plant(tmp_path, skills("x/same", "y/same", "z/other") | {"bad/SKILL.md": skill_md("same")})
    told = [problem for problem in loaded(tmp_path).problems() if problem.code == "name-shared"]
    assert [(problem.skill, problem.path) for problem in told] == [
        ("x/same", str(tmp_path / "x/same")),
        ("y/same", str(tmp_path / "y/same")),
    ]
    assert "y/same" in told[0].message and "bad" not in told[0].message


def test_a_name_that_very_many_share_is_told_in_a_bounded_line(tmp_path: Path) -> None:
    """10: each line had all the others; 2,000 skills of one name made 90 MB of `validate`."""
    plant(tmp_path, skills(*(f"team-{number:03}/same" for number in range(300))))
    told = [problem.message for problem in loaded(tmp_path).problems() if problem.code == "name-shared"]
    assert len(told) == 300 and max(map(len, told)) < 150
    assert told[0].endswith("team-001/same, team-002/same, team-003/same, team-004/same, team-005/same and 294 more")
    assert told[299].endswith("team-000/same, team-001/same, team-002/same, team-003/same, team-004/same and 294 more")


@pytest.mark.requirement("S76-9", "X-14")
def test_a_resource_dependency_that_no_served_skill_has_is_told(tmp_path: Path) -> None:
    wanted = ["skill://b/SKILL.md", "skill://b/none.md", "skill://bad/SKILL.md", "https://example.org/x"]
    depends = "dependencies: {tools: [hammer], prompts: [ask], resources: [" + ", ".join(
        f"{{type: ref/resource, uri: '{uri}'}}" for uri in wanted
    )
    plant(
        tmp_path,
        skills("b") | {"a/SKILL.md": skill_md("a", depends + "]}"), "bad/SKILL.md": skill_md("other", depends + "]}")},
    )
    registry = loaded(tmp_path)
    told = [problem for problem in registry.problems() if problem.code == "dependency-unresolved"]
    assert [next(uri for uri in wanted if uri in problem.message) for problem in told] == wanted[1:3]
    assert {(problem.path, problem.skill, problem.line) for problem in told} == {
        (str(tmp_path / "a/SKILL.md"), "a", None)
    }
    assert not any("hammer" in problem.message or "ask" in problem.message for problem in told)
    plant(tmp_path, {"b/none.md": "x", "bad/SKILL.md": skill_md("bad")})
    registry.refresh()
    assert codes(registry).count("dependency-unresolved") == 0


def test_an_inspection_reads_every_text_file_of_the_skill_but_not_of_nested_ones(tmp_path: Path) -> None:
    hidden = "a\U000e0041b"
    plant(
        tmp_path,
        {
            "a/SKILL.md": skill_md("a", "allowed-tools: Bash", body="See [it](none.md)."),
            "a/ref/x.md": f"fine\n{hidden}",
            "a/b/SKILL.md": skill_md("b", body=hidden),
            "a/data.bin": b"\0\xff",
            "a/gone.md": "x",
        },
    )
    registry = loaded(tmp_path)
    (tmp_path / "a/gone.md").unlink()
    told = sorted(
        (problem.code, problem.path, problem.line) for problem in registry.lint(registry.snapshot.skills["a"])
    )
    place = str(tmp_path / "a")
    assert told[1:] == [
        ("hidden-characters", f"{place}/ref/x.md", 2),
        ("reference-missing", f"{place}/SKILL.md", 7),
        ("unreadable", f"{place}/gone.md", None),
    ]
    assert told[0][:2] == ("broad-permission", f"{place}/SKILL.md")
    assert [problem.code for problem in registry.lint(registry.snapshot.skills["a/b"])] == ["hidden-characters"]


def test_an_inspection_tells_of_comments_in_markdown_and_of_none_elsewhere(tmp_path: Path) -> None:
    hidden = "Fine.\n<!-- hidden -->\n"
    plant(tmp_path, {"a/SKILL.md": skill_md("a", body=hidden), "a/ref/x.md": hidden, "a/page.txt": hidden})
    registry = loaded(tmp_path)
    told = [(problem.code, problem.path, problem.line) for problem in registry.lint(registry.snapshot.skills["a"])]
    assert sorted(told) == [
        ("hidden-comment", str(tmp_path / "a/SKILL.md"), 7),
        ("hidden-comment", str(tmp_path / "a/ref/x.md"), 2),
    ]


def test_an_inspection_of_a_skill_that_cannot_be_read_reads_what_it_can(tmp_path: Path) -> None:
    plant(tmp_path, {"SKILL.md": "no frontmatter", "x.md": "a\u200bb", "big": "x" * 2000})
    registry = loaded(tmp_path, limits=Limits(bytes=1000))
    (skill,) = registry.snapshot.skills.values()
    assert [problem.code for problem in registry.lint(skill)] == ["hidden-characters"]


@pytest.mark.skipif(not hasattr(os, "seteuid"), reason="nobody else to be")
def test_a_file_that_the_scan_could_not_read_is_reported_once(open_path: Path) -> None:
    plant(open_path, skills("a"))
    (open_path / "a/SKILL.md").chmod(0)
    with as_nobody(open_path):
        registry = loaded(open_path)
        skill = registry.snapshot.skills["a"]
        assert [problem.code for problem in [*skill.problems, *registry.lint(skill)]] == ["unreadable"]


# Whatever is done to the folders


LIMITS = Limits(skill_md=260, files=4, bytes=700, depth=2)
DIRECTORIES: Final = ("a", "a", "a", "b", "b", "s", "a-b", ".git", ".dot")
FILES: Final = ("SKILL.md", "SKILL.md", "SKILL.md", "skill.md", "x.md", "y.txt", "z.bin", "x.md~")
CONTENTS: Final = (
    *(skill_md(name) for name in ("a", "b", "s", "one")),
    skill_md("a", body="Something else."),
    skill_md("b", "dependencies: {resources: [{uri: 'skill://a/SKILL.md'}]}"),
    skill_md("s", "version: 1"),
    "---\nname: a\n---\n",
    "---\nname: [\n---\n",
    "no frontmatter",
    "x" * 300,
    "",
)
LINKS: Final = (
    "x.md",
    "SKILL.md",
    "../x.md",
    ".",
    "nowhere",
    "../../outside.md",
    "../../../outside.md",
    "../../outside",
    "../../../outside",
)

ROOTS = st.sampled_from(("one", "two"))
DIRECTORY = st.lists(st.sampled_from(DIRECTORIES), max_size=3).map("/".join)
SOMEWHERE = st.tuples(ROOTS, DIRECTORY).map("/".join).map(os.path.normpath)
FILE = st.tuples(SOMEWHERE, st.sampled_from(FILES)).map("/".join).map(os.path.normpath)
LINK = st.tuples(SOMEWHERE, st.sampled_from(("l.md", "SKILL.md", "b"))).map("/".join).map(os.path.normpath)
OPERATION = st.one_of(
    st.tuples(st.just("write"), FILE, st.sampled_from(CONTENTS)),
    st.tuples(st.just("write"), FILE, st.sampled_from(CONTENTS)),
    st.tuples(st.just("same"), FILE, st.just("")),
    st.tuples(st.just("touch"), FILE, st.just("")),
    st.tuples(st.just("remove"), st.one_of(FILE, SOMEWHERE, LINK), st.just("")),
    st.tuples(st.just("move"), SOMEWHERE, SOMEWHERE),
    st.tuples(st.just("rename"), FILE, FILE),
    st.tuples(st.just("directory"), st.one_of(SOMEWHERE, SOMEWHERE.map("{}/SKILL.md".format)), st.just("")),
    st.tuples(st.just("link"), LINK, st.sampled_from(LINKS)),
    st.tuples(st.just("prove"), st.just("one"), st.just("")),
)


def make_way(place: Path) -> list[str]:
    """Make the directories above; what a watch tells of is the outermost one that was missing."""
    missing = [above for above in place.parents if not os.path.lexists(above)]
    place.parent.mkdir(parents=True, exist_ok=True)
    return [str(missing[-1])] if missing else []


def remove(place: Path) -> None:
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    else:
        place.unlink()


def perform(top: Path, verb: str, one: str, other: str) -> list[str]:
    """Do it, and return the paths that a watch would name at the least. What cannot be done is left undone."""
    moves = verb in ("move", "rename")
    place, target, told = top / one, top / other if moves else top / one, list[str]()
    if top in (place.parent, target.parent) or any(
        os.path.realpath(p.parent) != str(p.parent) for p in (place, target)
    ):
        return told  # the roots stay, and nothing is done through a link
    if verb == "rename" and place.is_dir():
        return told  # or a link that nobody touched would lead to a directory, of which no event tells
    if place.is_symlink() and verb not in ("remove", "move", "rename"):
        return told
    with suppress(OSError):
        if verb in ("write", "directory", "link"):
            told += make_way(place)
        elif moves:
            told += make_way(target)
        told += [] if told else [str(target)]
        if verb == "write":
            place.write_text(other)
        elif verb == "same":
            found = place.stat()
            place.write_bytes(place.read_bytes()[::-1])
            os.utime(place, ns=(found.st_atime_ns, found.st_mtime_ns))
        elif verb == "touch":
            os.utime(place)
        elif verb == "directory":
            place.mkdir()
        elif verb == "link":
            place.symlink_to(other)
        elif verb == "remove":
            remove(place)
        else:
            place.rename(target)
            told.append(str(place))
    return told


def check(registry: Registry, top: Path) -> None:
    fresh = loaded(top / "one", top / "two", limits=registry.limits)
    assert view(registry) == view(fresh)


def check_changes(before: dict[str, Skill], after: dict[str, Skill], changes: Changes) -> None:
    """The changes are exactly one snapshot minus the other."""
    assert dict(changes.before) == {path: old for path, old in before.items() if after.get(path) is not old}
    assert dict(changes.after) == {path: new for path, new in after.items() if before.get(path) is not new}


@pytest.mark.parametrize("hidden", [False, True])
@given(steps=st.lists(st.lists(OPERATION, min_size=1, max_size=3), min_size=1, max_size=10))
def test_an_incremental_refresh_ends_where_a_fresh_scan_does(
    steps: Sequence[Sequence[tuple[str, str, str]]], *, hidden: bool
) -> None:
    with tempfile.TemporaryDirectory() as made, mock.patch.object(tree, "MOST_LEVELS", 3):
        top = Path(os.path.realpath(made))
        (top / "outside").mkdir()
        (top / "outside.md").write_text("secret")
        (top / "one").mkdir()
        (top / "two").mkdir()
        registry = loaded(top / "one", top / "two", limits=replace(LIMITS, hidden=hidden))
        for step in steps:
            paths: list[str] = []
            for verb, one, other in step:
                if verb == "prove":
                    for skill in registry.snapshot.skills.values():
                        registry.hash_files(skill)
                else:
                    paths += perform(top, verb, one, other)
            before = dict(registry.snapshot.skills)
            changes = registry.refresh(paths)
            check_changes(before, dict(registry.snapshot.skills), changes)
            check(registry, top)
            kept = dict(registry.snapshot.skills)
            assert not registry.refresh()
            assert all(registry.snapshot.skills[path] is skill for path, skill in kept.items())
            check(registry, top)
