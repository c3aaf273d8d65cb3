"""Registry: changes, problems, incremental refreshes and listeners."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple
from unittest import mock

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from catalog.forest import (
    ChangeListener,
    Patch,
    load_registry,
    problem_codes,
    run_concurrently,
    skill_md,
    skills,
    unprivileged_user,
    valid_paths,
    visible_state,
    write_files,
)
from mcp_skills_server.catalog import disk, tree
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.roots import Limits, OptionalRoot
from mcp_skills_server.catalog.scan import Scan
from mcp_skills_server.model import Changes, Standing
from tables import each_row
from wire import DEADLINE


@pytest.mark.requirement("S40-16")
def test_edit_replaces_each_skill_that_has_the_file_and_reports_it(tmp_path: Path) -> None:
    registry = load_registry(write_files(tmp_path, skills("a", "a/in", "b") | {"a/in/ref.md": "x"}))
    before = dict(registry.snapshot.skills)
    write_files(tmp_path, {"a/in/ref.md": "longer"})
    changes = registry.refresh([str(tmp_path / "a/in/ref.md")])
    assert dict(changes.before) == {path: before[path] for path in ("a", "a/in")}
    assert list(changes.after) == ["a", "a/in"]
    assert changes.files == {("a", "in/ref.md"), ("a/in", "ref.md")}
    after = registry.snapshot.skills
    assert after["b"] is before["b"]
    assert after["a"].files["SKILL.md"] is before["a"].files["SKILL.md"]
    assert after["a"].reading is before["a"].reading
    (tmp_path / "a/in/ref.md").rename(tmp_path / "a/new.md")
    changes = registry.refresh([str(tmp_path / path) for path in ("a/in/ref.md", "a/new.md")])
    assert changes.files == {("a", "in/ref.md"), ("a/in", "ref.md"), ("a", "new.md")}


@pytest.mark.requirement("S40-13")
@each_row(("before", "after"), [("true", "1"), ("0", "false"), ("1", "1.0"), ("{a: 1, b: 2}", "{b: 2, a: 1}")])
def test_value_that_only_python_takes_for_the_old_one_is_read_again(before: str, after: str, tmp_path: Path) -> None:
    def write(value: str) -> str:
        return str(write_files(tmp_path, {"a/SKILL.md": skill_md("a", f"user-invocable: {value}")}) / "a")

    write(before)
    registry = load_registry(tmp_path)
    registry.refresh([write(after)])
    assert visible_state(registry) == visible_state(load_registry(tmp_path))


@pytest.mark.requirement("X-7")
def test_readers_never_see_a_partial_snapshot(tmp_path: Path) -> None:
    """Two generations of skills are swapped while two threads read snapshots."""
    allowed = [sorted(f"group/{letter}{number}" for number in range(20)) for letter in "ab"]
    top = write_files(tmp_path / "top", skills(*allowed[0]))
    write_files(tmp_path / "next", skills(*allowed[1]))
    registry = load_registry(top)
    done, seen = threading.Event(), set[str]()

    def read() -> None:
        # without a pause the readers keep the interpreter, and the swaps take half a minute
        while not done.wait(0.0002):
            snapshot = registry.snapshot
            assert list(snapshot.paths(Standing.VALID)) in allowed
            assert sorted(snapshot.skills) in allowed
            seen.add(snapshot.paths(Standing.VALID)[0])

    def swap() -> None:
        try:
            for turn in range(4000):
                if turn >= 40 and len(seen) == 2:
                    break  # on a busy machine the readers may need more swaps to see both
                (top / "group").rename(tmp_path / "aside")
                (tmp_path / "next/group").rename(top / "group")
                (tmp_path / "aside").rename(tmp_path / "next/group")
                registry.refresh([str(top / "group")])
        finally:
            done.set()

    run_concurrently(swap, read, read)
    assert seen == {allowed[0][0], allowed[1][0]}


def test_changes_of_a_root_are_served_if_the_scan_of_a_later_one_fails(tmp_path: Path, monkeypatch: Patch) -> None:
    first, second = write_files(tmp_path / "first", skills("a")), write_files(tmp_path / "second", skills("b"))
    registry = load_registry(first, second)
    write_files(tmp_path, skills("first/new", "second/new"))
    run = Scan.run

    def fail_in_second(scan: Scan, subtree: str) -> None:
        if scan.root.path == str(second):
            raise ValueError("a bug")
        run(scan, subtree)

    monkeypatch.setattr(Scan, "run", fail_in_second)
    with pytest.raises(ValueError, match="a bug"):
        registry.refresh()
    assert valid_paths(registry) == ["a", "b", "new"]


def test_deferred_changes_stay_deferred_when_only_problems_change(tmp_path: Path) -> None:
    registry = load_registry(write_files(tmp_path, skills("a") | {"b/x.md": ""}))
    registry.follow()
    listener = ChangeListener(registry)
    registry.rescan(str(write_files(tmp_path, {"a/x.md": ""}) / "a"))
    (tmp_path / "link").symlink_to(tmp_path / "b")
    registry.rescan(str(tmp_path / "link"))
    assert problem_codes(registry) == ["link-outside"]
    assert listener.all == []
    registry.settle()
    assert [each.after.keys() for each in listener.all] == [{"a"}]


@pytest.mark.requirement("S40-37")
def test_shared_name_is_reported_for_each_skill_in_a_bounded_line(tmp_path: Path) -> None:
    """With all others in each line, 2,000 skills of one name made `validate` print 90 MB."""
    paths = [f"team-{number:03}/same" for number in range(300)]
    write_files(tmp_path, skills(*paths, "z/other") | {"bad/SKILL.md": skill_md("same")})
    reported = [problem for problem in load_registry(tmp_path).problems() if problem.code == "name-shared"]
    assert [(problem.skill, problem.path) for problem in reported] == [(path, str(tmp_path / path)) for path in paths]
    assert max(len(problem.message) for problem in reported) < 150
    for shown, others in ((reported[0], paths[1:6]), (reported[299], paths[:5])):
        assert shown.message.endswith(f"{', '.join(others)} and 294 more")


@pytest.mark.requirement("S76-9", "S76-11", "X-14")
def test_resource_dependency_without_a_served_file_is_reported(tmp_path: Path) -> None:
    wanted = ["skill://b/SKILL.md", "skill://b/none.md", "skill://bad/SKILL.md", "https://example.org/x"]
    resources = ", ".join(f"{{type: ref/resource, uri: '{uri}'}}" for uri in wanted)
    depends = f"dependencies: {{tools: [hammer], prompts: [ask], resources: [{resources}]}}"
    write_files(
        tmp_path, skills("b") | {"a/SKILL.md": skill_md("a", depends), "bad/SKILL.md": skill_md("other", depends)}
    )
    registry = load_registry(tmp_path)
    reported = [problem for problem in registry.problems() if problem.code == "dependency-unresolved"]
    assert [next(uri for uri in wanted if uri in problem.message) for problem in reported] == wanted[1:3]
    place = (str(tmp_path / "a/SKILL.md"), "a", None)
    assert {(problem.path, problem.skill, problem.line) for problem in reported} == {place}
    write_files(tmp_path, {"b/none.md": "x", "bad/SKILL.md": skill_md("bad")})
    registry.refresh()
    assert problem_codes(registry).count("dependency-unresolved") == 0


def test_deep_checks_read_each_text_file_except_those_of_nested_skills(tmp_path: Path) -> None:
    hidden, manifest = "a\U000e0041b", skill_md("a", "allowed-tools: Bash", body="See [it](none.md).")
    write_files(
        tmp_path, {"a/SKILL.md": manifest, "a/b/SKILL.md": skill_md("b", body=hidden), "a/ref/x.md": f"\n{hidden}"}
    )
    registry = load_registry(write_files(tmp_path, {"a/data.bin": b"\0\xff", "a/gone.md": "x"}))
    (tmp_path / "a/gone.md").unlink()
    reported = registry.checks.problems_of(registry.snapshot.skills["a"])
    assert sorted((problem.code, problem.path, problem.line) for problem in reported) == [
        ("broad-permission", f"{tmp_path}/a/SKILL.md", 4),
        ("field-host", f"{tmp_path}/a/SKILL.md", 4),
        ("hidden-characters", f"{tmp_path}/a/ref/x.md", 2),
        ("reference-missing", f"{tmp_path}/a/SKILL.md", 7),
        ("unreadable", f"{tmp_path}/a/gone.md", None),
    ]
    problems = registry.checks.problems_of(registry.snapshot.skills["a/b"])
    assert [problem.code for problem in problems] == ["hidden-characters"]


def test_deep_checks_of_an_unusable_skill_read_files_within_the_limit(tmp_path: Path) -> None:
    write_files(tmp_path, {"SKILL.md": "no frontmatter", "x.md": "a\u200bb", "big": "x" * 2000})
    registry = load_registry(tmp_path, limits=Limits(bytes=1000))
    (skill,) = registry.snapshot.skills.values()
    assert [problem.code for problem in registry.checks.problems_of(skill)] == ["hidden-characters"]


@pytest.mark.skipif(not hasattr(os, "seteuid"), reason="no seteuid")
def test_unreadable_file_is_reported_once_by_scan_and_checks(open_path: Path) -> None:
    write_files(open_path, skills("a"))
    (open_path / "a/SKILL.md").chmod(0)
    with unprivileged_user(open_path):
        registry = load_registry(open_path)
        skill = registry.snapshot.skills["a"]
        assert [problem.code for problem in [*skill.problems, *registry.checks.problems_of(skill)]] == ["unreadable"]


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


class Operation(NamedTuple):
    """Change of a file or directory; `argument` is a text, the target of a link or a new path."""

    verb: str
    path: str
    argument: str = ""


def write(path: str, text: str) -> Operation:
    return Operation("write", path, text)


def remove(path: str) -> Operation:
    return Operation("remove", path)


ROOTS = st.sampled_from(("one", "two"))
DIRECTORY_NAMES = st.lists(st.sampled_from(DIRECTORIES), max_size=3).map("/".join)
DIRECTORY = st.tuples(ROOTS, DIRECTORY_NAMES).map("/".join).map(os.path.normpath)
FILE = st.tuples(DIRECTORY, st.sampled_from(FILES)).map("/".join).map(os.path.normpath)
LINK = st.tuples(DIRECTORY, st.sampled_from(("l.md", "SKILL.md", "b"))).map("/".join).map(os.path.normpath)
OPERATION = st.one_of(
    *[st.builds(write, FILE, st.sampled_from(CONTENTS))] * 2,
    st.builds(Operation, st.sampled_from(("reverse", "touch")), FILE),
    st.builds(remove, FILE | DIRECTORY | LINK),
    st.builds(Operation, st.just("move"), DIRECTORY, DIRECTORY),
    st.builds(Operation, st.just("rename"), FILE, FILE),
    st.builds(Operation, st.just("mkdir"), DIRECTORY | DIRECTORY.map("{}/SKILL.md".format)),
    st.builds(Operation, st.just("link"), LINK, st.sampled_from(LINKS)),
)


def make_parents(path: Path) -> list[str]:
    """Make the parents of a path, and return the outermost one that is new."""
    missing = [parent for parent in path.parents if not os.path.lexists(parent)]
    path.parent.mkdir(parents=True, exist_ok=True)
    return [str(parent) for parent in missing[-1:]]


def perform(top: Path, operation: Operation) -> list[str]:
    """Perform an operation if that is possible; return the paths that a watcher reports at least."""
    verb, path, argument = operation
    place = target = top / path
    if verb in ("move", "rename"):
        target = top / argument
    for each in (place, target):
        # the roots stay, and nothing is done through a link
        if each.parent == top or os.path.realpath(each.parent) != str(each.parent):
            return []
    if verb == "rename" and place.is_dir():
        return []  # an untouched link could then lead to a directory: no event reports that
    if verb not in ("remove", "move", "rename") and place.is_symlink():
        return []
    reported: list[str] = []
    with suppress(OSError):
        if verb not in ("reverse", "touch", "remove"):
            reported += make_parents(target)
        if not reported:
            reported.append(str(target))
        if verb == "write":
            place.write_text(argument)
        elif verb == "reverse":
            found = place.stat()
            place.write_bytes(place.read_bytes()[::-1])
            os.utime(place, ns=(found.st_atime_ns, found.st_mtime_ns))
        elif verb == "touch":
            os.utime(place)
        elif verb == "mkdir":
            place.mkdir()
        elif verb == "link":
            place.symlink_to(argument)
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
@example([[write("one/a/SKILL.md", A)], [Operation("move", "one/a", "one/b")]])
@example([[write(f"one/s/{each}/SKILL.md", A) for each in ("a", "b/a")], [Operation("move", "one/s", "one/b")]])
@example([[write(f"one/{each}/SKILL.md", B) for each in ("a/b", "a")], [remove("one/a/SKILL.md")]])
@example([[write(f"one/{each}", A) for each in ("a/SKILL.md", "a-b/SKILL.md", "a/b/skill.md")]])
@example([[write(f"one/{each}SKILL.md", B) for each in ("", "b/")], [remove("one/SKILL.md")]])
@example([[write(f"one/{each}/SKILL.md", B) for each in ("a", "a/b")], [remove("one/a/b/SKILL.md")]])
@example([[write("one/a/b/s/x.md", "")], [Operation("link", "one/a/b/s/b", ".")]])
@example([[write(f"one/{each}/SKILL.md", A) for each in ("a", "a0")], [remove("one/a/SKILL.md")]])
def test_incremental_refresh_equals_a_fresh_scan(steps: list[list[Operation]], *, hidden: bool) -> None:
    """Its changes are exactly the differences of the two snapshots."""
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(tree, "MAX_LEVELS", 3):
        top = write_files(Path(os.path.realpath(folder)), {"outside/.keep": "", "outside.md": "secret"})
        roots = write_files(top / "one", {}), write_files(top / "two", {})
        registry = load_registry(*roots, limits=LIMITS._replace(hidden=hidden))
        for step in steps:
            paths = [path for operation in step for path in perform(top, operation)]
            before = dict(registry.snapshot.skills)
            for state in registry._states:
                state._nested.clear()  # a fresh scan does not know former nested skills
            changes, after = registry.refresh(paths), dict(registry.snapshot.skills)
            assert dict(changes.before) == {path: old for path, old in before.items() if after.get(path) is not old}
            assert dict(changes.after) == {path: new for path, new in after.items() if before.get(path) is not new}
            fresh = visible_state(load_registry(*roots, limits=registry.limits))
            assert visible_state(registry) == fresh
            assert not registry.refresh()
            assert all(registry.snapshot.skills[path] is skill for path, skill in after.items())
            assert visible_state(registry) == fresh


def test_registry_is_loaded_when_entered_and_readable_after_exit(tmp_path: Path) -> None:
    registry = Registry([write_files(tmp_path, skills("one"))])
    assert not registry.loaded.is_set()
    assert not registry.snapshot.skills
    with registry:
        assert registry.loaded.is_set()
        assert valid_paths(registry) == ["one"]
        before = registry.snapshot
    assert registry.read(before.skills["one"].files["SKILL.md"])
    with registry:
        assert registry.snapshot is before


def test_listeners_are_called_after_first_scan_and_changes_until_unsubscribed(tmp_path: Path) -> None:
    registry, notified = Registry([tmp_path]), list[Changes]()
    unsubscribe = registry.subscribe(notified.append)
    registry.load()
    assert notified == [Changes({}, {})]  # even if the first scan finds nothing
    registry.refresh()
    write_files(tmp_path, skills("b"))
    registry.refresh()
    assert [list(changes.after) for changes in notified] == [[], ["b"]]
    unsubscribe()
    unsubscribe()
    write_files(tmp_path, skills("c"))
    registry.refresh()
    assert len(notified) == 2


def test_first_scan_that_finds_only_problems_calls_each_listener_once(tmp_path: Path) -> None:
    registry, calls = Registry([OptionalRoot(str(tmp_path / "absent"))]), list[bool]()
    for problems in (False, True):
        registry.subscribe(lambda _, problems=problems: calls.append(problems), problems=problems)
    registry.load()
    assert calls == [False, True]


@pytest.mark.anyio
async def test_async_load_and_refresh_do_not_block_the_event_loop(tmp_path: Path, monkeypatch: Patch) -> None:
    """Each call blocks in its thread until the event loop sets an event."""
    registry, go_on = Registry([write_files(tmp_path, skills("one"))]), threading.Event()

    def blocking(real: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *arguments: go_on.wait(DEADLINE) and real(*arguments)

    async def unblock_and_await(work: Awaitable[Any]) -> Any:
        go_on.clear()
        asyncio.get_running_loop().call_soon(go_on.set)
        return await work

    monkeypatch.setattr(disk, "open_directory", blocking(disk.open_directory))
    monkeypatch.setattr(disk, "read", blocking(disk.read))
    await unblock_and_await(registry.__aenter__())
    write_files(tmp_path, skills("two"))
    assert (await unblock_and_await(registry.arefresh())).after.keys() == {"two"}
    await registry.__aexit__()
