"""Roots with copies of skills: what their sources hand over, and the revision that is shown with it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from catalog.forest import DEADLINE, ChangeListener, problem_codes, skill_md, skills, valid_paths, write_files
from catalog.watched import has_version, write_version
from mcp_skills_server.catalog.gates import GateRefusal
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.roots import MirroredRoot
from mcp_skills_server.catalog.watch import Watcher
from mcp_skills_server.codes import problem
from mcp_skills_server.errors import StaleFileError
from mcp_skills_server.model import Changes, Skill


class Copy:
    """A root with a copy of skills `a` and `b` of revision "one"."""

    def __init__(self, place: Path) -> None:
        self.place = write_files(place / "copy", skills("a", "b"))
        self.refused: set[str] = set()
        self.registry = Registry([MirroredRoot(str(self.place), "https://skills.example")], gate=self.gate)
        self.hand_over("one")
        self.registry.load()

    def gate(self, _: Registry, skill: Skill) -> GateRefusal | None:
        return GateRefusal(problem("unreadable", "")) if skill.path in self.refused else None

    def hand_over(self, revision: str, *changed: str) -> None:
        self.registry.note(str(self.place), revision, (), changed)

    @property
    def revision(self) -> str:
        return self.registry.roots[0].revision


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    return Copy(tmp_path)


def test_listeners_see_new_skills_with_their_revision(copy: Copy) -> None:
    seen: list[tuple[str, list[str]]] = []

    def listen(changes: Changes) -> None:
        assert changes.after.keys() <= copy.registry.snapshot.skills.keys()
        seen.append((copy.revision, valid_paths(copy.registry)))

    copy.registry.subscribe(listen)
    write_files(copy.place, skills("c", "d/e"))
    shutil.rmtree(copy.place / "a")
    copy.hand_over("two", "a", "c", "d/e")
    copy.hand_over("three")  # of other files than skills
    copy.hand_over("three", "a", "")
    assert seen == [("two", ["b", "c", "d/e"])]
    assert copy.revision == "three"


def test_handed_over_change_has_no_grace_period(copy: Copy) -> None:
    copy.registry.follow()
    shutil.rmtree(copy.place / "a")
    write_files(copy.place, {"b/SKILL.md": "---\nname: [\n---\n"})
    copy.hand_over("two", "a", "b")
    assert valid_paths(copy.registry) == []


@pytest.mark.parametrize("how", ["rescan", "refresh"])
def test_content_that_no_source_handed_over_has_no_revision(copy: Copy, how: str) -> None:
    skill = copy.registry.snapshot.skills["a"]
    write_files(copy.place, {"a/SKILL.md": skill_md("a", body="Do it otherwise.")})
    with pytest.raises(StaleFileError) as stale:
        copy.registry.read(skill.files["SKILL.md"])
    if how == "rescan":
        copy.registry.rescan(stale.value.path)
    else:
        copy.registry.refresh()
    assert b"otherwise" in copy.registry.read(copy.registry.snapshot.skills["a"].files["SKILL.md"])
    assert copy.revision == ""
    copy.hand_over("two", "a")
    assert copy.revision == "two"


def test_gate_that_refuses_other_skills_than_before_leaves_the_revision(copy: Copy) -> None:
    for refused in ({"a"}, {"b"}, set()):
        copy.refused = refused
        copy.registry.refresh()
        assert valid_paths(copy.registry) == sorted({"a", "b"} - refused)
        assert copy.revision == "one"


def test_handed_over_skill_passes_the_gate(copy: Copy) -> None:
    copy.refused = {"c"}
    write_files(copy.place, skills("c", "d"))
    copy.hand_over("two", "c", "d")
    assert valid_paths(copy.registry) == ["a", "b", "d"]
    assert problem_codes(copy.registry) == ["unreadable"]


def test_root_that_disappeared_is_read_whole_once_it_is_back(copy: Copy) -> None:
    away = copy.place.with_name("away")
    copy.place.rename(away)
    copy.hand_over("two", "a")
    assert (copy.revision, valid_paths(copy.registry)) == ("one", ["a", "b"])  # the last copy
    assert problem_codes(copy.registry) == ["root-missing"]
    away.rename(copy.place)
    write_files(copy.place, skills("c"))
    copy.hand_over("two")
    assert (copy.revision, valid_paths(copy.registry)) == ("two", ["a", "b", "c"])
    assert problem_codes(copy.registry) == []


@pytest.mark.parametrize("poll", [False, True])
def test_copy_is_not_watched_but_local_root_is(tmp_path: Path, poll: bool) -> None:
    copy = write_files(tmp_path / "copy", skills("a"))
    local = write_files(tmp_path / "local", skills("b"))
    registry = Registry([MirroredRoot(str(copy), "https://skills.example"), str(local)])
    listener = ChangeListener(registry)
    with Watcher(registry, poll=poll) as watcher:
        listener.next()
        assert watcher.armed.wait(DEADLINE)
        for number in range(3):  # more polls than one
            write_version(copy, "a", number)
            write_version(local, "b", number)
            listener.until(has_version("b", number))
            assert "version" not in registry.snapshot.skills["a"].frontmatter
        registry.note(str(copy), "two", (), ["a"])
        listener.until(has_version("a", 2))


@pytest.mark.parametrize("poll", [False, True])
def test_reconcile_includes_copies(tmp_path: Path, poll: bool) -> None:
    """For gates: a certificate may have expired."""
    copy = write_files(tmp_path / "copy", skills("a"))
    registry = Registry([MirroredRoot(str(copy), "https://skills.example")])
    listener = ChangeListener(registry)
    with Watcher(registry, poll=poll, reconcile=0.2):
        listener.next()
        write_version(copy, "a", 1)
        listener.until(has_version("a", 1))
