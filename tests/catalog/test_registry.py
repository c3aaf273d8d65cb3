"""The registry: what it says of changes, what is wrong, and what a refresh ends with."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from unittest import mock

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from catalog.forest import Patch, Told, as_nobody, codes, loaded, plant, served, skill_md, skills, together, view
from mcp_skills_server.catalog import disk, tree
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.roots import Limits
from mcp_skills_server.model import Changes, Standing
from tables import each_row
from wire import DEADLINE

# What changes


def test_an_unchanged_tree_gives_no_changes_and_the_same_objects(tmp_path: Path) -> None:
    plant(tmp_path, skills("a", "a/b", "c") | {"a/ref.md": "x", "bad/SKILL.md": "x", "c/skill.md": "x"})
    registry = loaded(tmp_path)
    snapshot, reported = registry.snapshot, Told(registry)
    for paths in (None, [], [str(tmp_path / "a/SKILL.md")], [str(tmp_path)], [str(tmp_path / "bad")]):
        assert not registry.refresh(paths)
    assert registry.snapshot is snapshot and reported.all == []


@pytest.mark.requirement("S40-16")
def test_an_edit_replaces_the_skills_that_have_the_file_and_names_it(tmp_path: Path) -> None:
    registry = loaded(plant(tmp_path, skills("a", "a/in", "b") | {"a/in/ref.md": "x"}))
    before = dict(registry.snapshot.skills)
    plant(tmp_path, {"a/in/ref.md": "longer"})
    changes = registry.refresh([str(tmp_path / "a/in/ref.md")])
    assert dict(changes.before) == {path: before[path] for path in ("a", "a/in")}
    assert list(changes.after) == ["a", "a/in"]
    assert changes.files == {("a", "in/ref.md"), ("a/in", "ref.md")}
    after = registry.snapshot.skills
    assert after["b"] is before["b"] and after["a"].files["SKILL.md"] is before["a"].files["SKILL.md"]
    assert after["a"].reading is before["a"].reading
    (tmp_path / "a/in/ref.md").rename(tmp_path / "a/new.md")
    changes = registry.refresh([str(tmp_path / path) for path in ("a/in/ref.md", "a/new.md")])
    assert changes.files == {("a", "in/ref.md"), ("a/in", "ref.md"), ("a", "new.md")}


@pytest.mark.requirement("X-7")
def test_nobody_ever_sees_a_half_filled_snapshot(tmp_path: Path) -> None:
    """Two generations of skills change places while readers look: each sees one or the other, whole."""
    allowed = [sorted(f"group/{letter}{number}" for number in range(20)) for letter in "ab"]
    top = plant(tmp_path / "top", skills(*allowed[0]))
    plant(tmp_path / "next", skills(*allowed[1]))
    registry = loaded(top)
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


def test_changes_that_wait_for_the_rest_of_their_burst_wait_on_when_only_problems_come(tmp_path: Path) -> None:
    registry = loaded(plant(tmp_path, skills("a") | {"b/x.md": ""}))
    registry.followed, seen = True, Told(registry)
    registry.rescan(str(plant(tmp_path, {"a/x.md": ""}) / "a"))
    (tmp_path / "link").symlink_to(tmp_path / "b")
    registry.rescan(str(tmp_path / "link"))
    assert codes(registry) == ["link-outside"] and seen.all == []
    registry.settle()
    assert [each.after.keys() for each in seen.all] == [{"a"}]


# Problems


def test_problems_come_by_place(tmp_path: Path) -> None:
    plant(tmp_path, {"b/SKILL.md": "x", "a/SKILL.md": skill_md("z"), "c/skill.md": "x"} | skills("ok"))
    reported = [(Path(problem.path).parent.name, problem.code) for problem in loaded(tmp_path).problems()]
    assert reported == [("a", "name-mismatch"), ("b", "frontmatter-missing"), ("c", "skill-md-case")]


@pytest.mark.requirement("S40-37")
def test_a_name_that_very_many_share_is_told_of_each_in_a_bounded_line(tmp_path: Path) -> None:
    """10: each line had all the others; 2,000 skills of one name made 90 MB of `validate`."""
    paths = [f"team-{number:03}/same" for number in range(300)]
    plant(tmp_path, skills(*paths, "z/other") | {"bad/SKILL.md": skill_md("same")})
    reported = [problem for problem in loaded(tmp_path).problems() if problem.code == "name-shared"]
    assert [(problem.skill, problem.path) for problem in reported] == [(path, str(tmp_path / path)) for path in paths]
    assert max(len(problem.message) for problem in reported) < 150
    for shown, others in ((reported[0], paths[1:6]), (reported[299], paths[:5])):
        assert shown.message.endswith(f"{', '.join(others)} and 294 more")


@pytest.mark.requirement("S76-9", "X-14")
def test_a_resource_dependency_that_no_served_skill_has_is_told(tmp_path: Path) -> None:
    wanted = ["skill://b/SKILL.md", "skill://b/none.md", "skill://bad/SKILL.md", "https://example.org/x"]
    resources = ", ".join(f"{{type: ref/resource, uri: '{uri}'}}" for uri in wanted)
    depends = f"dependencies: {{tools: [hammer], prompts: [ask], resources: [{resources}]}}"
    plant(tmp_path, skills("b") | {"a/SKILL.md": skill_md("a", depends), "bad/SKILL.md": skill_md("other", depends)})
    registry = loaded(tmp_path)
    reported = [problem for problem in registry.problems() if problem.code == "dependency-unresolved"]
    assert [next(uri for uri in wanted if uri in problem.message) for problem in reported] == wanted[1:3]
    place = (str(tmp_path / "a/SKILL.md"), "a", None)
    assert {(problem.path, problem.skill, problem.line) for problem in reported} == {place}
    plant(tmp_path, {"b/none.md": "x", "bad/SKILL.md": skill_md("bad")})
    registry.refresh()
    assert codes(registry).count("dependency-unresolved") == 0


def test_an_inspection_reads_every_text_file_of_the_skill_but_not_of_nested_ones(tmp_path: Path) -> None:
    hidden, manifest = "a\U000e0041b", skill_md("a", "allowed-tools: Bash", body="See [it](none.md).")
    plant(tmp_path, {"a/SKILL.md": manifest, "a/b/SKILL.md": skill_md("b", body=hidden), "a/ref/x.md": f"\n{hidden}"})
    registry = loaded(plant(tmp_path, {"a/data.bin": b"\0\xff", "a/gone.md": "x"}))
    (tmp_path / "a/gone.md").unlink()
    reported = registry.checks.of(registry.snapshot.skills["a"])
    assert sorted((problem.code, problem.path, problem.line) for problem in reported) == [
        ("broad-permission", f"{tmp_path}/a/SKILL.md", 4),
        ("hidden-characters", f"{tmp_path}/a/ref/x.md", 2),
        ("reference-missing", f"{tmp_path}/a/SKILL.md", 7),
        ("unreadable", f"{tmp_path}/a/gone.md", None),
    ]
    assert [problem.code for problem in registry.checks.of(registry.snapshot.skills["a/b"])] == ["hidden-characters"]


def test_an_inspection_of_a_skill_that_cannot_be_read_reads_what_it_can(tmp_path: Path) -> None:
    plant(tmp_path, {"SKILL.md": "no frontmatter", "x.md": "a\u200bb", "big": "x" * 2000})
    registry = loaded(tmp_path, limits=Limits(bytes=1000))
    (skill,) = registry.snapshot.skills.values()
    assert [problem.code for problem in registry.checks.of(skill)] == ["hidden-characters"]


@pytest.mark.skipif(not hasattr(os, "seteuid"), reason="nobody else to be")
def test_a_file_that_the_scan_could_not_read_is_reported_once(open_path: Path) -> None:
    plant(open_path, skills("a"))
    (open_path / "a/SKILL.md").chmod(0)
    with as_nobody(open_path):
        registry = loaded(open_path)
        skill = registry.snapshot.skills["a"]
        assert [problem.code for problem in [*skill.problems, *registry.checks.of(skill)]] == ["unreadable"]


# Whatever is done to the folders


LIMITS = Limits(skill_md=260, files=4, bytes=700, depth=2)
DIRECTORIES: Final = ("a", "a", "a", "b", "b", "s", "a-b", ".git", ".dot")
FILES: Final = ("SKILL.md", "SKILL.md", "SKILL.md", "skill.md", "x.md", "y.txt", "z.bin", "x.md~")
A, B, S = (skill_md(name) for name in ("a", "b", "s"))
CONTENTS: Final = (
    *(A, B, S, skill_md("one")),
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
    "x.md", "SKILL.md", "../x.md", ".", "nowhere", "../../outside.md", "../../../outside.md", "../../outside",
    "../../../outside",
)  # fmt: skip

ROOTS = st.sampled_from(("one", "two"))
DIRECTORY = st.lists(st.sampled_from(DIRECTORIES), max_size=3).map("/".join)
SOMEWHERE = st.tuples(ROOTS, DIRECTORY).map("/".join).map(os.path.normpath)
FILE = st.tuples(SOMEWHERE, st.sampled_from(FILES)).map("/".join).map(os.path.normpath)
LINK = st.tuples(SOMEWHERE, st.sampled_from(("l.md", "SKILL.md", "b"))).map("/".join).map(os.path.normpath)
OPERATION = st.one_of(
    *[st.tuples(st.just("write"), FILE, st.sampled_from(CONTENTS))] * 2,
    st.tuples(st.sampled_from(("same", "touch")), FILE, st.just("")),
    st.tuples(st.just("remove"), st.one_of(FILE, SOMEWHERE, LINK), st.just("")),
    st.tuples(st.just("move"), SOMEWHERE, SOMEWHERE),
    st.tuples(st.just("rename"), FILE, FILE),
    st.tuples(st.just("directory"), st.one_of(SOMEWHERE, SOMEWHERE.map("{}/SKILL.md".format)), st.just("")),
    st.tuples(st.just("link"), LINK, st.sampled_from(LINKS)),
)


def make_way(place: Path) -> list[str]:
    missing = [above for above in place.parents if not os.path.lexists(above)]
    place.parent.mkdir(parents=True, exist_ok=True)
    return [str(missing[-1])] if missing else []


def perform(top: Path, verb: str, one: str, other: str) -> list[str]:
    """Do it, and return the paths that a watch would name at the least. What cannot be done is left undone."""
    moves = verb in ("move", "rename")
    place, target, reported = top / one, top / other if moves else top / one, list[str]()
    if top in (place.parent, target.parent) or any(
        os.path.realpath(p.parent) != str(p.parent) for p in (place, target)
    ):
        return reported  # the roots stay, and nothing is done through a link
    if verb == "rename" and place.is_dir():
        return reported  # or a link that nobody touched would lead to a directory, of which no event tells
    if place.is_symlink() and verb not in ("remove", "move", "rename"):
        return reported
    with suppress(OSError):
        if verb in ("write", "directory", "link"):
            reported += make_way(place)
        elif moves:
            reported += make_way(target)
        reported += [] if reported else [str(target)]
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
        elif verb == "remove" and place.is_dir() and not place.is_symlink():
            shutil.rmtree(place)
        elif verb == "remove":
            place.unlink()
        else:
            place.rename(target)
            reported.append(str(place))
    return reported


@pytest.mark.parametrize("hidden", [False, True])
@given(steps=st.lists(st.lists(OPERATION, min_size=1, max_size=3), min_size=1, max_size=10))
@example([[("write", "one/a/SKILL.md", A)], [("move", "one/a", "one/b")]])
@example([[("write", "one/s/a/SKILL.md", A), ("write", "one/s/b/a/SKILL.md", A)], [("move", "one/s", "one/b")]])
@example([[("write", f"one/{each}/SKILL.md", B)] for each in ("a/b", "a")] + [[("remove", "one/a/SKILL.md", "")]])
@example([[("write", f"one/{each}", A) for each in ("a/SKILL.md", "a-b/SKILL.md", "a/b/skill.md")]])
@example([[("write", f"one/{each}SKILL.md", B)] for each in ("", "b/")] + [[("remove", "one/SKILL.md", "")]])
@example([[("write", f"one/{each}/SKILL.md", B)] for each in ("a", "a/b")] + [[("remove", "one/a/b/SKILL.md", "")]])
@example([[("write", "one/a/b/s/x.md", "")], [("link", "one/a/b/s/b", ".")]])
def test_an_incremental_refresh_ends_where_a_fresh_scan_does(
    steps: Sequence[Sequence[tuple[str, str, str]]], *, hidden: bool
) -> None:
    """And its changes are exactly one snapshot minus the other."""
    with tempfile.TemporaryDirectory() as made, mock.patch.object(tree, "MOST_LEVELS", 3):
        top = plant(Path(os.path.realpath(made)), {"outside/.keep": "", "outside.md": "secret"})
        roots = plant(top / "one", {}), plant(top / "two", {})
        registry = loaded(*roots, limits=LIMITS._replace(hidden=hidden))
        for step in steps:
            paths = [path for operation in step for path in perform(top, *operation)]
            before = dict(registry.snapshot.skills)
            for state in registry._states:
                state._nested.clear()  # a fresh scan does not know what was a nested skill before
            changes, after = registry.refresh(paths), dict(registry.snapshot.skills)
            assert dict(changes.before) == {path: old for path, old in before.items() if after.get(path) is not old}
            assert dict(changes.after) == {path: new for path, new in after.items() if before.get(path) is not new}
            fresh = view(loaded(*roots, limits=registry.limits))
            assert view(registry) == fresh
            assert not registry.refresh()
            assert all(registry.snapshot.skills[path] is skill for path, skill in after.items())
            assert view(registry) == fresh


@each_row(("location", "part"), [
    *((each, each) for each in ("", "d", "d/e", "new", "empty")),
    *((each, "a") for each in ("a", "a/x.md", "a/b", "a/b/SKILL.md", "a/gone/x.md")),
    *((f"new/{name}", "new") for name in ("SKILL.md", "skill.MD", "pyvenv.cfg")), ("SKILL.md", ""),
    ("d/e/f/x.md", "d/e/f"),
    *((each, None) for each in ("ab/x.md", "new.md", "gone", ".git", "node_modules/a/SKILL.md")),
])  # fmt: skip
def test_a_change_touches_the_outermost_skill_or_what_may_be_one(tmp_path: Path, location: str, part: str) -> None:
    plant(tmp_path, skills("a", "a/b", "d/e/f") | {"new/x.md": "", "empty/x.md": "", "ab/x.md": "", "new.md": ""})
    assert loaded(tmp_path)._states[0].touched(str(tmp_path / location)) == part
    plant(tmp_path, {"SKILL.md": skill_md(tmp_path.name)})
    assert loaded(tmp_path)._states[0].touched(str(tmp_path / "a/x.md")) == "", "the root is a skill"


# Life


def test_a_registry_is_empty_until_it_is_entered_and_can_be_read_afterwards(tmp_path: Path) -> None:
    registry = Registry([plant(tmp_path, skills("one"))])
    assert not registry.loaded.is_set() and not registry.snapshot.skills
    with registry:
        assert registry.loaded.is_set() and served(registry) == ["one"]
        before = registry.snapshot
    assert registry.read(before.skills["one"].files["SKILL.md"])
    with registry:
        assert registry.snapshot is before


def test_listeners_hear_of_the_first_scan_and_then_of_what_changed_until_they_leave(tmp_path: Path) -> None:
    registry, heard = Registry([tmp_path]), list[Changes]()
    leave = registry.subscribe(heard.append)
    registry.load()
    assert heard == [Changes({}, {})]  # of a first scan that finds nothing, too
    registry.refresh()
    plant(tmp_path, skills("b"))
    registry.refresh()
    assert [list(changes.after) for changes in heard] == [[], ["b"]]
    leave()
    leave()
    plant(tmp_path, skills("c"))
    registry.refresh()
    assert len(heard) == 2


@pytest.mark.anyio
async def test_an_event_loop_goes_on_while_a_registry_works(tmp_path: Path, monkeypatch: Patch) -> None:
    """Each call waits in its thread for something that only the event loop does."""
    subject, go_on = Registry([plant(tmp_path, skills("one"))]), threading.Event()

    def slow(real: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *given: go_on.wait(DEADLINE) and real(*given)

    async def beside(work: Awaitable[Any]) -> Any:
        go_on.clear()
        asyncio.get_running_loop().call_soon(go_on.set)
        return await work

    monkeypatch.setattr(disk, "open_directory", slow(disk.open_directory))
    monkeypatch.setattr(disk, "read", slow(disk.read))
    await beside(subject.__aenter__())
    plant(tmp_path, skills("two"))
    assert (await beside(subject.arefresh())).after.keys() == {"two"}
    await subject.__aexit__()
