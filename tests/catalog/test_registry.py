"""The registry: what it says of changes, what is wrong, and what a refresh ends with."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final
from unittest import mock

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalog.forest import DEADLINE, Told, as_nobody, codes, loaded, plant, served, skill_md, skills, together, view
from mcp_skills_server.catalog import disk, tree
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.roots import Limits
from mcp_skills_server.model import Changes, Skill, SkillFile, Standing

# Roots


def test_a_registry_is_empty_until_it_is_loaded(tmp_path: Path) -> None:
    registry = Registry([plant(tmp_path, skills("one"))])
    assert not registry.loaded.is_set() and not registry.snapshot.skills
    registry.load()
    assert registry.loaded.is_set() and served(registry) == ["one"]


# What changes


def test_an_unchanged_tree_gives_no_changes_and_the_same_objects(tmp_path: Path) -> None:
    plant(tmp_path, skills("a", "a/b", "c") | {"a/ref.md": "x", "bad/SKILL.md": "x", "c/skill.md": "x"})
    registry = loaded(tmp_path)
    snapshot, reported = registry.snapshot, Told(registry)
    for paths in (None, [], [str(tmp_path / "a/SKILL.md")], [str(tmp_path)], [str(tmp_path / "bad")]):
        assert not registry.refresh(paths)
    assert registry.snapshot is snapshot and reported.all == []


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
    reported = [str(tmp_path / "a/sub/new.md"), str(tmp_path / "a/sub/newer.md")]
    assert registry.refresh(reported).files == {("a", "sub/new.md"), ("a", "sub/newer.md")}
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


# Problems


def test_problems_come_by_place(tmp_path: Path) -> None:
    plant(tmp_path, {"b/SKILL.md": "x", "a/SKILL.md": skill_md("z"), "c/skill.md": "x"} | skills("ok"))
    registry = loaded(tmp_path)
    reported = [(problem.path, problem.code) for problem in registry.problems()]
    assert reported == sorted(reported)
    assert codes(registry) == ["frontmatter-missing", "name-mismatch", "skill-md-case"]


@pytest.mark.requirement("S40-37")
def test_names_that_several_served_skills_share_are_told_of_each(tmp_path: Path) -> None:
    plant(tmp_path, skills("x/same", "y/same", "z/other") | {"bad/SKILL.md": skill_md("same")})
    reported = [problem for problem in loaded(tmp_path).problems() if problem.code == "name-shared"]
    assert [(problem.skill, problem.path) for problem in reported] == [
        ("x/same", str(tmp_path / "x/same")),
        ("y/same", str(tmp_path / "y/same")),
    ]
    assert "y/same" in reported[0].message and "bad" not in reported[0].message


def test_a_name_that_very_many_share_is_told_in_a_bounded_line(tmp_path: Path) -> None:
    """10: each line had all the others; 2,000 skills of one name made 90 MB of `validate`."""
    plant(tmp_path, skills(*(f"team-{number:03}/same" for number in range(300))))
    reported = [problem.message for problem in loaded(tmp_path).problems() if problem.code == "name-shared"]
    assert len(reported) == 300 and max(map(len, reported)) < 150
    assert reported[0].endswith(
        "team-001/same, team-002/same, team-003/same, team-004/same, team-005/same and 294 more"
    )
    assert reported[299].endswith(
        "team-000/same, team-001/same, team-002/same, team-003/same, team-004/same and 294 more"
    )


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
    reported = [problem for problem in registry.problems() if problem.code == "dependency-unresolved"]
    assert [next(uri for uri in wanted if uri in problem.message) for problem in reported] == wanted[1:3]
    assert {(problem.path, problem.skill, problem.line) for problem in reported} == {
        (str(tmp_path / "a/SKILL.md"), "a", None)
    }
    assert not any("hammer" in problem.message or "ask" in problem.message for problem in reported)
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
    reported = sorted(
        (problem.code, problem.path, problem.line) for problem in registry.checks.of(registry.snapshot.skills["a"])
    )
    place = str(tmp_path / "a")
    assert reported[1:] == [
        ("hidden-characters", f"{place}/ref/x.md", 2),
        ("reference-missing", f"{place}/SKILL.md", 7),
        ("unreadable", f"{place}/gone.md", None),
    ]
    assert reported[0][:2] == ("broad-permission", f"{place}/SKILL.md")
    assert [problem.code for problem in registry.checks.of(registry.snapshot.skills["a/b"])] == ["hidden-characters"]


def test_an_inspection_tells_of_comments_in_markdown_and_of_none_elsewhere(tmp_path: Path) -> None:
    hidden = "Fine.\n<!-- hidden -->\n"
    plant(tmp_path, {"a/SKILL.md": skill_md("a", body=hidden), "a/ref/x.md": hidden, "a/page.txt": hidden})
    registry = loaded(tmp_path)
    reported = [
        (problem.code, problem.path, problem.line) for problem in registry.checks.of(registry.snapshot.skills["a"])
    ]
    assert sorted(reported) == [
        ("hidden-comment", str(tmp_path / "a/SKILL.md"), 7),
        ("hidden-comment", str(tmp_path / "a/ref/x.md"), 2),
    ]


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
        elif verb == "remove":
            remove(place)
        else:
            place.rename(target)
            reported.append(str(place))
    return reported


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
        registry = loaded(top / "one", top / "two", limits=LIMITS._replace(hidden=hidden))
        for step in steps:
            paths: list[str] = []
            for verb, one, other in step:
                paths += perform(top, verb, one, other)
            before = dict(registry.snapshot.skills)
            changes = registry.refresh(paths)
            check_changes(before, dict(registry.snapshot.skills), changes)
            check(registry, top)
            kept = dict(registry.snapshot.skills)
            assert not registry.refresh()
            assert all(registry.snapshot.skills[path] is skill for path, skill in kept.items())
            check(registry, top)


# Life


def test_a_registry_is_loaded_where_it_is_entered_and_can_be_read_afterwards(tmp_path: Path) -> None:
    with Registry([plant(tmp_path, skills("one"))]) as registry:
        assert registry.loaded.is_set() and served(registry) == ["one"]
        before = registry.snapshot
    assert registry.read(before.skills["one"].files["SKILL.md"])
    with registry:
        assert registry.snapshot is before


@pytest.mark.anyio
async def test_an_event_loop_goes_on_while_a_registry_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call waits in its thread for something that only the event loop does."""
    subject = Registry([plant(tmp_path, skills("one"))])
    waiting, go_on = threading.Event(), threading.Event()
    real = disk.open_directory, disk.read

    def wait() -> None:
        waiting.set()
        assert go_on.wait(DEADLINE)

    def open_directory(root: str, path: str) -> Any:
        wait()
        return real[0](root, path)

    def read(root: str, file: SkillFile) -> bytes:
        wait()
        return real[1](root, file)

    monkeypatch.setattr(disk, "open_directory", open_directory)
    monkeypatch.setattr(disk, "read", read)

    async def beside(work: Callable[[], Awaitable[Any]]) -> Any:
        waiting.clear()
        go_on.clear()
        found: list[Any] = []

        async def run() -> None:
            found.append(await work())

        with anyio.fail_after(DEADLINE):
            async with anyio.create_task_group() as group:
                group.start_soon(run)
                assert await anyio.to_thread.run_sync(waiting.wait, DEADLINE)
                go_on.set()
        return found[0]

    await beside(subject.__aenter__)
    skill = subject.snapshot.skills["one"]
    assert (await beside(partial(subject.abody, skill))).text == "Do it."
    assert await beside(partial(subject.aread, skill.files["SKILL.md"])) == (tmp_path / "one/SKILL.md").read_bytes()
    plant(tmp_path, skills("two"))
    assert (await beside(subject.arefresh)).after.keys() == {"two"}
    await subject.__aexit__()


def test_a_registry_that_is_closed_looks_at_nothing_of_its_own_accord(tmp_path: Path) -> None:
    plant(tmp_path, skills("a"))
    with Registry([tmp_path], quiet_s=DEADLINE) as registry:
        (tmp_path / "a/SKILL.md").unlink()
        registry.refresh()
        assert served(registry) == ["a"]
        timer = registry._grace._timer
        assert timer is not None and timer.is_alive()
    timer.join(DEADLINE / 2)
    assert not timer.is_alive()
