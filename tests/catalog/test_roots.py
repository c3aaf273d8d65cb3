"""Roots: what may be one, and which of them a skill path belongs to."""

from __future__ import annotations

import errno
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from catalog.forest import codes, loaded, plant, served, skill_md, skills
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.switches import switch, switched_off
from mcp_skills_server.errors import RequestError, UsageError
from tables import each_row


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


@each_row("content", ["folder", "huge"])
def test_a_list_of_switched_off_skills_that_cannot_be_read_stays_in_force(
    tmp_path: Path, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    plant(tmp_path, {**skills("one", "two"), "skills-off.txt": "one\n"})
    registry = loaded(tmp_path)
    assert served(registry) == ["two"]
    (tmp_path / "skills-off.txt").unlink()
    if content == "folder":
        (tmp_path / "skills-off.txt").mkdir()
    else:
        (tmp_path / "skills-off.txt").write_bytes(b"#" * ((1 << 20) + 1))
    registry.refresh()
    assert served(registry) == ["two"]
    assert "skills-off.txt: cannot be read" in caplog.text and "(skills: 1)" in caplog.text


def test_folders_are_switched_at_the_same_time_and_none_without_a_line(tmp_path: Path) -> None:
    names = [f"s{number}" for number in range(20)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: switch(str(tmp_path), name, on=False), names))
    assert switched_off(str(tmp_path)) == {*names}
    for name in ("", "#a", " a", "a "):
        with pytest.raises(RequestError, match="rename"):
            switch(str(tmp_path), name, on=False)


@each_row("given_path", ["nowhere", "file", "dangling", ""])
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
    seen = {problem.skill: problem for problem in registry.problems() if problem.code == "shadowed"}
    assert sorted(seen) == ["acme", "outer/inner", "same"]
    assert seen["same"].path == str(tmp_path / "two/same") and str(tmp_path / "one/same") in seen["same"].message
    assert str(tmp_path / "one/acme/inner") in seen["acme"].message
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


def test_a_link_to_nothing_is_said_to_be_one(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("gone")
    with pytest.raises(UsageError, match=r"link: a link that leads to nothing \(gone\); give the path of a folder"):
        Registry([tmp_path / "link"])
