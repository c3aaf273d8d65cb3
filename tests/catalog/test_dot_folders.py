"""Dot folders: scanned with `Limits.hidden`, otherwise counted."""

from __future__ import annotations

import os
from pathlib import Path
from unittest.mock import Mock

from catalog.forest import Patch, load_registry, problem_codes, skills, valid_paths, write_files
from mcp_skills_server.catalog import dot_folders
from mcp_skills_server.catalog.dot_folders import PassedOver, passed_over
from mcp_skills_server.catalog.roots import Limits


def test_hidden_scans_dot_folders_except_those_of_tools_and_skills(tmp_path: Path) -> None:
    own = (".curated/a", "b/.claude/c", ".curated/.agents/g")
    of_tools = (".git/d", ".venv/e", "node_modules/f", ".mcp-skills/x/h", ".mcp-skills-server.staging/i")
    in_skills = (f".curated/a/{path}.no/x" for path in ("", "ref/", "ref/deep/", "ref/deep/er/"))
    write_files(tmp_path, skills(*own, *of_tools, *in_skills) | {".curated/a/.env": "x"})
    registry = load_registry(tmp_path, limits=Limits(hidden=True))
    assert valid_paths(registry) == [".curated/.agents/g", ".curated/a", "b/.claude/c"]
    assert list(registry.snapshot.skills[".curated/a"].files) == ["SKILL.md"]
    assert passed_over(registry) == []
    plain = load_registry(tmp_path)
    assert valid_paths(plain) == []
    assert passed_over(plain) == [PassedOver(str(tmp_path), 3, (".curated", "b/.claude"), True)]


def test_link_in_a_dot_folder_to_a_hidden_file_is_not_served(tmp_path: Path) -> None:
    write_files(
        tmp_path, skills(".curated/a") | {".curated/a/guide.md": "x", ".curated/a/.env": "x", ".curated/.key": "x"}
    )
    for name, target in (("one.md", "guide.md"), ("two.md", ".env"), ("three.md", "../.key")):
        (tmp_path / ".curated/a" / name).symlink_to(target)
    skill = load_registry(tmp_path, limits=Limits(hidden=True)).snapshot.skills[".curated/a"]
    assert list(skill.files) == ["SKILL.md", "guide.md", "one.md"]
    assert problem_codes(skill) == ["link-outside", "link-outside"]


def test_count_of_skills_in_dot_folders_searches_a_bounded_number(tmp_path: Path, monkeypatch: Patch) -> None:
    registry = load_registry(write_files(tmp_path, skills(*(f".many/s{number}" for number in range(300)))))
    monkeypatch.setattr(dot_folders, "_MAX_FOLDERS", 101)
    scandir = Mock(wraps=os.scandir)
    monkeypatch.setattr(os, "scandir", scandir)
    (found,) = passed_over(registry)
    assert str(found).startswith(f"{tmp_path}: at least 100 skills in folders whose names begin")
    assert found.skills == 100
    assert scandir.call_count == 101


def test_at_most_five_dot_folders_are_named() -> None:
    many = PassedOver("r", 9, tuple(f".{letter}" for letter in "abcdefg"), complete=True)
    assert ": .a, .b, .c, .d, .e and 2 more; name one as root" in str(many)
    all_five = str(PassedOver("r", 1, many.folders[:5], complete=True))
    assert all_five.startswith("r: 1 skill in folders whose names begin") and ": .a, .b, .c, .d, .e; name" in all_five
