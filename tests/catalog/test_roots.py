"""Roots: what may be one, which of them a skill path belongs to, and what stands of one that cannot be read."""

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

from catalog.forest import Log, Patch, codes, loaded, plant, served, skill_md, skills
from mcp_skills_server.catalog import disk
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.switches import switch, switched_off
from mcp_skills_server.errors import RequestError, UsageError
from tables import each_row


def test_a_path_to_a_skill_md_stands_for_its_directory(tmp_path: Path, monkeypatch: Patch) -> None:
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


@each_row("spoil", [Path.mkdir, lambda file: file.write_bytes(b"#" * ((1 << 20) + 1))])
def test_a_list_of_switched_off_skills_that_cannot_be_read_stays_in_force(
    tmp_path: Path, spoil: Callable[[Path], object], caplog: Log
) -> None:
    registry = loaded(plant(tmp_path, {**skills("one", "two"), "skills-off.txt": "one\n"}))
    assert served(registry) == ["two"]
    (tmp_path / "skills-off.txt").unlink()
    spoil(tmp_path / "skills-off.txt")
    registry.refresh()
    assert served(registry) == ["two"]
    assert "skills-off.txt: cannot be read" in caplog.text and "(skills: 1)" in caplog.text


def test_folders_are_switched_at_the_same_time_and_none_without_a_line(tmp_path: Path) -> None:
    names = [f"s{number}" for number in range(20)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: switch(str(tmp_path), name, on=False), names))
    assert switched_off(str(tmp_path)) == {*names}
    plant(tmp_path, {"skills-off.txt": "one\n#".ljust(1 << 20)})
    assert switched_off(str(tmp_path)) == {"one"}, "a megabyte is read, and what is more is not, as above"
    for name in ("", "#a", " a", "a "):
        with pytest.raises(RequestError, match="rename"):
            switch(str(tmp_path), name, on=False)


@each_row(("given_path", "reason"), [
    ("nowhere", "nowhere: no such file or folder"), ("file", "file: not a folder"),
    ("dangling", r"dangling: a link that leads to nothing \(away\)"), ("", "the path of a folder is empty"),
])  # fmt: skip
def test_what_is_no_directory_is_no_root(tmp_path: Path, given_path: str, reason: str, monkeypatch: Patch) -> None:
    plant(tmp_path, {"file": "x"})
    (tmp_path / "dangling").symlink_to("away")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=f"^{reason}; give the path of a folder that holds skills$"):
        Registry([given_path])


def test_a_root_that_cannot_be_read_is_refused(tmp_path: Path, monkeypatch: Patch) -> None:
    def refuse(path: Any) -> Any:
        raise PermissionError(errno.EACCES, "Permission denied", path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(UsageError, match=r"Permission denied.*check its permissions"):
        Registry([tmp_path])


def test_a_skill_that_two_roots_hold_is_hidden_by_nothing_nor_are_those_nested_in_it(tmp_path: Path) -> None:
    registry = loaded(plant(tmp_path, skills("a", "a/b")), tmp_path / "a")
    assert served(registry) == ["a", "a/b"] and codes(registry) == []


@pytest.mark.requirement("ASG-7", "ASG-8", "ASG-9")
def test_the_earlier_root_wins_and_the_later_skill_is_told_as_shadowed(tmp_path: Path) -> None:
    one = plant(tmp_path / "one", skills("same", "acme/inner", "outer"))
    two = plant(tmp_path / "two", skills("same", "acme", "acme/free", "outer/inner", "own"))
    registry = loaded(one, two)
    assert served(registry) == ["acme/free", "acme/inner", "outer", "own", "same"]
    assert [registry.snapshot.skills[path].root for path in served(registry)] == [1, 0, 0, 1, 0]
    seen = {problem.skill: problem for problem in registry.problems() if problem.code == "shadowed"}
    assert sorted(seen) == ["acme", "outer/inner", "same"]
    assert seen["same"].path == f"{two}/same" and f"{one}/same" in seen["same"].message
    assert f"{one}/acme/inner" in seen["acme"].message
    turned = loaded(two, one)
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


def test_an_edit_of_a_shadowed_skill_changes_nothing_and_hides_none_of_the_winner(tmp_path: Path) -> None:
    registry = loaded(plant(tmp_path / "one", skills("a")), plant(tmp_path / "two", skills("a", "a/in", "b")))
    for number, paths in enumerate((None, ["two", "one"])):
        plant(tmp_path / "one", {"a/SKILL.md": skill_md("a", f"version: won {number}")})
        for path in ("a", "a/in"):  # of which no served skill has the second one's path
            plant(tmp_path / "two" / path, {"SKILL.md": skill_md(path[2:] or "a", f"version: lost {number}")})
        changes = registry.refresh(paths and [str(tmp_path / each / "a/SKILL.md") for each in paths])
        assert registry.snapshot.skills["a"].frontmatter["version"] == f"won {number}"
        assert changes.after["a"].root == changes.before["a"].root == 0
        assert codes(registry).count("shadowed") == 2
    plant(tmp_path / "two", skills("a"))
    assert not registry.refresh([str(tmp_path / "two/a/SKILL.md")])


# What a change touches


def test_a_path_outside_every_root_is_nobodys(tmp_path: Path) -> None:
    plant(tmp_path, skills("root/one", "root-evil/two"))
    registry = loaded(tmp_path / "root")
    assert not registry.refresh([str(tmp_path / "root-evil/two/SKILL.md"), str(tmp_path), "/"])
    assert served(registry) == ["one"]


def test_a_missing_root_is_told_and_its_skills_stay_until_it_is_back(tmp_path: Path) -> None:
    plant(tmp_path, skills("one/a", "one/b", "two/c"))
    registry = loaded(tmp_path / "one", tmp_path / "two")
    kept = dict(registry.snapshot.skills)
    (tmp_path / "one").rename(tmp_path / "away")
    plant(tmp_path, {"one": "a file"})
    for paths in (None, *([str(tmp_path / path)] for path in ("one", "one/a", "one/a/SKILL.md"))):
        assert not registry.refresh(paths)
        assert codes(registry) == ["root-missing"]
        (tmp_path / "one").unlink(missing_ok=True)
    assert dict(registry.snapshot.skills) == kept
    plant(tmp_path, skills("two/d"))
    assert registry.refresh([str(tmp_path / "two/d")])
    assert served(registry) == ["a", "b", "c", "d"]
    shutil.rmtree(tmp_path / "away/b")
    (tmp_path / "away").rename(tmp_path / "one")
    registry.refresh([str(tmp_path / "one/a")])
    assert served(registry) == ["a", "c", "d"] and codes(registry) == []


@each_row("names", [("a", "c"), ("SKILL.md",), ("notes.md",)])
def test_a_want_of_descriptors_takes_no_skill_away(tmp_path: Path, monkeypatch: Patch, names: tuple[str, ...]) -> None:
    registry = loaded(plant(tmp_path, skills("a", "b/c") | {"a/notes.md": "x"}))
    real = os.open

    def refuse(path: Any, *arguments: Any, **options: Any) -> int:
        if os.path.basename(path) in names:
            raise OSError(errno.EMFILE, "Too many open files")
        return real(path, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        for paths in ([str(tmp_path / "a/SKILL.md")], None):
            assert not registry.refresh(paths)
            assert served(registry) == ["a", "b/c"] and codes(registry) == ["root-missing"]
        patch.undo()
        once = chain([OSError(errno.EMFILE, "Too many open files")], repeat(mock.DEFAULT))
        patch.setattr(disk, "ingest", mock.Mock(wraps=disk.ingest, side_effect=once))
        assert not registry.refresh()
        assert served(registry) == ["a", "b/c"] and codes(registry) == ["root-missing"]
    assert not registry.refresh([str(tmp_path / "a/SKILL.md")])
    assert codes(registry) == []
