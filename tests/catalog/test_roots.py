"""Roots: valid paths, shadowing between roots, and roots that become unreadable."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, repeat
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from catalog.forest import (
    Log,
    Patch,
    assert_served,
    load_registry,
    problem_codes,
    skills,
    valid_paths,
    write_files,
)
from mcp_skills_server.catalog import disk
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.roots import OptionalRoot
from mcp_skills_server.catalog.switches import switch, switched_off
from mcp_skills_server.errors import RequestError, UsageError
from tables import each_row


def test_root_given_as_a_skill_md_is_its_directory(tmp_path: Path, monkeypatch: Patch) -> None:
    write_files(tmp_path, skills("one", "two"))
    assert valid_paths(load_registry(tmp_path / "one/SKILL.md")) == ["one"]
    monkeypatch.chdir(tmp_path / "two")
    registry = load_registry(Path("SKILL.md"))
    assert valid_paths(registry) == ["two"]
    assert registry.roots[0].shown == "."


def test_root_given_twice_is_opened_once(tmp_path: Path) -> None:
    write_files(tmp_path / "root", skills("one"))
    (tmp_path / "again").symlink_to("root")
    registry = load_registry(tmp_path / "root", tmp_path / "again", tmp_path / "root/../root")
    assert [root.shown for root in registry.roots] == [str(tmp_path / "root")]
    assert problem_codes(registry) == []


@each_row("replace", [Path.mkdir, lambda file: file.write_bytes(b"#" * ((1 << 20) + 1))])
def test_unreadable_switches_keep_the_skills_switched_off(
    tmp_path: Path, replace: Callable[[Path], object], caplog: Log
) -> None:
    registry = load_registry(write_files(tmp_path, {**skills("one", "two"), "skills-off.txt": "one\n"}))
    assert valid_paths(registry) == ["two"]
    (tmp_path / "skills-off.txt").unlink()
    replace(tmp_path / "skills-off.txt")
    registry.refresh()
    assert valid_paths(registry) == ["two"]
    assert "skills-off.txt: cannot be read" in caplog.text
    assert "(skills: 1)" in caplog.text


def test_concurrent_switches_are_kept_and_invalid_names_refused(tmp_path: Path) -> None:
    names = [f"s{number}" for number in range(20)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: switch(str(tmp_path), name, on=False), names))
    assert switched_off(str(tmp_path)) == {*names}
    write_files(tmp_path, {"skills-off.txt": "one\n#".ljust(1 << 20)})
    assert switched_off(str(tmp_path)) == {"one"}, "the largest file that is read"
    for name in ("", "#a", " a", "a ", "a\nb", "a\u2028b", "a\n", "a\udcff"):
        with pytest.raises(RequestError, match="rename"):
            switch(str(tmp_path), name, on=False)


@each_row(("given_path", "reason"), [
    ("nowhere", "nowhere: no such file or folder"),
    ("file", r"file: not a folder, nor an archive that is read \(\.zip, .*\.txz\)"),
    ("dangling", r"dangling: a link that leads to nothing \(away\)"), ("", "the path of a folder is empty"),
])  # fmt: skip
def test_root_that_is_no_directory_is_refused(tmp_path: Path, given_path: str, reason: str, monkeypatch: Patch) -> None:
    write_files(tmp_path, {"file": "x"})
    (tmp_path / "dangling").symlink_to("away")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=f"^{reason}; give the path of a folder that holds skills$"):
        Registry([given_path])


def test_unreadable_root_is_refused(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(os, "scandir", mock.Mock(side_effect=PermissionError(errno.EACCES, "Permission denied")))
    with pytest.raises(UsageError, match=r"Permission denied.*check its permissions"):
        Registry([tmp_path])


def test_skill_folder_in_two_roots_is_not_reported_as_shadowed(tmp_path: Path) -> None:
    registry = load_registry(write_files(tmp_path, skills("a", "a/b")), tmp_path / "a")
    assert_served(registry, ["a", "a/b"], problems=[])


@pytest.mark.requirement("ASG-7", "ASG-8", "ASG-9")
def test_skill_of_the_earlier_root_shadows_that_of_a_later_one(tmp_path: Path) -> None:
    one = write_files(tmp_path / "one", skills("same", "acme/inner", "outer"))
    two = write_files(tmp_path / "two", skills("same", "acme", "acme/free", "outer/inner", "own"))
    registry = load_registry(one, two)
    assert valid_paths(registry) == ["acme/free", "acme/inner", "outer", "own", "same"]
    assert [registry.snapshot.skills[path].root for path in valid_paths(registry)] == [1, 0, 0, 1, 0]
    shadowed = {problem.skill: problem for problem in registry.problems() if problem.code == "shadowed"}
    assert sorted(shadowed) == ["acme", "outer/inner", "same"]
    assert shadowed["same"].path == f"{two}/same"
    assert f"{one}/same" in shadowed["same"].message
    assert f"{one}/acme/inner" in shadowed["acme"].message
    reversed_roots = load_registry(two, one)
    assert {reversed_roots.snapshot.skills[path].root for path in valid_paths(reversed_roots)} == {0}


def test_missing_root_is_reported_and_its_skills_are_kept(tmp_path: Path) -> None:
    write_files(tmp_path, skills("one/a", "one/b", "two/c"))
    registry = load_registry(tmp_path / "one", tmp_path / "two")
    kept = dict(registry.snapshot.skills)
    (tmp_path / "one").rename(tmp_path / "away")
    write_files(tmp_path, {"one": "a file"})
    places = ("one", "one/a", "one/a/SKILL.md")
    for paths in (None, *([str(tmp_path / place)] for place in places)):
        assert not registry.refresh(paths)
        assert problem_codes(registry) == ["root-missing"]
        (tmp_path / "one").unlink(missing_ok=True)
    assert dict(registry.snapshot.skills) == kept
    write_files(tmp_path, skills("two/d"))
    assert registry.refresh([str(tmp_path / "two/d")])
    assert valid_paths(registry) == ["a", "b", "c", "d"]
    shutil.rmtree(tmp_path / "away/b")
    (tmp_path / "away").rename(tmp_path / "one")
    registry.refresh([str(tmp_path / "one/a")])
    assert_served(registry, ["a", "c", "d"], problems=[])


def test_optional_root_may_be_absent_and_is_served_once_it_is_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_files(tmp_path, skills("one/a"))
    registry = Registry([OptionalRoot(str(tmp_path / "late")), tmp_path / "one"])
    registry.load()
    (found,) = registry.snapshot.problems
    assert (found.code, found.severity, found.path) == ("root-missing", "warning", str(tmp_path / "late"))
    assert caplog.messages == [
        f"{tmp_path}/late: the optional root is absent (No such file or directory); it is served once it is there"
    ]
    write_files(tmp_path, skills("late/b"))
    registry.refresh()
    assert_served(registry, ["a", "b"], problems=[])
    shutil.rmtree(tmp_path / "late")
    registry.refresh()
    assert_served(registry, ["a", "b"], problems=["root-missing"])  # what was read before
    assert "serving what was read before" in caplog.messages[-1]
    write_files(tmp_path, {"late": "a file"})
    with pytest.raises(UsageError, match="late: not a folder"):
        Registry([OptionalRoot(str(tmp_path / "late"))])


@each_row("names", [("a", "c"), ("SKILL.md",), ("notes.md",)])  # directories or a file
def test_exhausted_descriptors_remove_no_skill(tmp_path: Path, monkeypatch: Patch, names: tuple[str, ...]) -> None:
    registry = load_registry(write_files(tmp_path, skills("a", "b/c") | {"a/notes.md": "x"}))
    real_open, exhausted = os.open, OSError(errno.EMFILE, "Too many open files")

    def refuse(path: Any, *arguments: Any, **options: Any) -> int:
        if os.path.basename(path) in names:
            raise exhausted
        return real_open(path, *arguments, **options)

    def assert_kept(paths: list[str] | None) -> None:
        assert not registry.refresh(paths)
        assert_served(registry, ["a", "b/c"], problems=["root-missing"])

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        assert_kept([str(tmp_path / "a/SKILL.md")])
        assert_kept(None)
        patch.undo()
        once = chain([exhausted], repeat(mock.DEFAULT))
        patch.setattr(disk, "ingest", mock.Mock(wraps=disk.ingest, side_effect=once))
        assert_kept(None)
    assert not registry.refresh([str(tmp_path / "a/SKILL.md")])
    assert problem_codes(registry) == []
