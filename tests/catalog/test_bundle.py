"""Bundles: the files of a skill, its limits, links and irregular files."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from catalog.forest import assert_served, load_registry, problem_codes, skill_md, skills, valid_paths, write_files
from mcp_skills_server.catalog import tree
from mcp_skills_server.catalog.roots import Limits
from mcp_skills_server.model import Standing
from tables import each_row


def test_skill_with_files_below_the_deepest_scan_level_is_unusable(tmp_path: Path) -> None:
    deep = "/".join(str(number) for number in range(tree.MAX_LEVELS + 2))
    registry = load_registry(write_files(tmp_path, skills("one", "two") | {f"one/{deep}/file.md": "x"}))
    assert_served(registry, ["two"], problems=["too-deep"])


@pytest.mark.requirement("S40-19", "RTI-5")
@each_row(("files", "code"), [
    ({f"bad/sub{number}/f": "x" for number in range(4)}, "too-many-files"),
    ({f"bad/f{number}": "x" for number in range(200)}, "too-many-files"),
    ({"bad/nested/SKILL.md": skill_md("nested"), "bad/1": "", "bad/2": "", "bad/3": ""}, "too-many-files"),
    ({"bad/big": "x" * 1000}, "too-many-bytes"),
    ({"bad/SKILL.md": skill_md("bad", body="x" * 600)}, "skill-md-too-large"),
])  # fmt: skip
def test_skill_over_a_limit_is_reported_and_not_listed(tmp_path: Path, files: dict[str, str], code: str) -> None:
    write_files(tmp_path, skills("bad", "good") | files)
    registry = load_registry(tmp_path, limits=Limits(skill_md=500, files=4, bytes=1000))
    assert "good" in valid_paths(registry)
    bad = registry.snapshot.skills["bad"]
    standing = Standing.LENIENT
    if code == "skill-md-too-large":
        standing = Standing.UNUSABLE
    assert bad.standing is standing
    assert code in problem_codes(bad)
    if code == "too-many-files":
        assert f"the skill has {len(files) + 1} files" in str(bad.problems)


@pytest.mark.requirement("S40-19")
def test_skill_over_a_limit_keeps_skill_md_and_files_within_it(tmp_path: Path) -> None:
    more = {"a/b/deep.md": "x", "a/near.md": "x", "z.md": "x", "huge.bin": "x" * 990, "nested/SKILL.md": skill_md("n")}
    write_files(tmp_path, skills("one") | {f"one/{path}": content for path, content in more.items()})
    found = [
        load_registry(tmp_path, limits=limits).snapshot.skills["one"]
        for limits in (Limits(files=4), Limits(bytes=500), Limits(bytes=1))
    ]
    few, small, none = (list(skill.files) for skill in found)
    assert few == ["SKILL.md", "a/near.md", "huge.bin", "z.md"]
    assert "the skill has 6 files, 4 are allowed" in found[0].problems[0].message
    assert small == ["SKILL.md", "a/b/deep.md", "a/near.md", "nested/SKILL.md", "z.md"]
    assert found[1].size <= 500
    assert none == ["SKILL.md"]
    assert [skill.standing for skill in found] == [Standing.LENIENT, Standing.LENIENT, Standing.UNUSABLE]
    assert (Limits().files, Limits().bytes) == (512, 16 << 20)


def test_skill_at_the_limits_is_served(tmp_path: Path) -> None:
    text = skill_md("good")
    write_files(tmp_path, {"good/SKILL.md": text, "good/a": "x" * (1000 - len(text)), "good/b": "", "good/c": ""})
    assert valid_paths(load_registry(tmp_path, limits=Limits(skill_md=len(text), files=4, bytes=1000))) == ["good"]


@pytest.mark.requirement("X-5", "S40-17")
# A link to `target` is served as the file at `location`, or not at all.
@each_row(("target", "location"), [
    ("ref.md", "one/ref.md"), ("sub/deep.md", "one/sub/deep.md"), ("../one/ref.md", "one/ref.md"),
    *((each, None) for each in ("../two/SKILL.md", "../../secret.md", "nowhere", "link.md", "sub", ".env", "..")),
])  # fmt: skip
def test_link_is_served_only_if_its_target_is_in_the_skill(tmp_path: Path, target: str, location: str | None) -> None:
    root = write_files(
        tmp_path / "root", skills("one", "two") | {"one/ref.md": "r", "one/sub/deep.md": "d", "one/.env": "k"}
    )
    write_files(tmp_path, {"secret.md": "key"})
    (root / "one/link.md").symlink_to(target)
    registry = load_registry(root)
    files = registry.snapshot.skills["one"].files
    assert valid_paths(registry) == ["one", "two"]
    if location is None:
        assert "link.md" not in files
        assert problem_codes(registry) == ["link-outside"]
    else:
        assert files["link.md"].location == location
        assert registry.read(files["link.md"]) == (root / location).read_bytes()
        assert problem_codes(registry) == []


@pytest.mark.requirement("X-5")
def test_link_out_of_a_nested_skill_is_served_in_the_outer_one(tmp_path: Path) -> None:
    write_files(tmp_path, skills("a", "a/b") | {"a/shared.md": "x"})
    (tmp_path / "a/b/shared.md").symlink_to("../shared.md")
    found = load_registry(tmp_path).snapshot.skills
    assert "b/shared.md" in found["a"].files
    assert problem_codes(found["a"]) == []
    assert "shared.md" not in found["a/b"].files
    assert problem_codes(found["a/b"]) == ["link-outside"]


@pytest.mark.requirement("X-5")
def test_irregular_files_and_non_utf8_names_are_reported_and_not_served(tmp_path: Path) -> None:
    write_files(tmp_path, skills("one") | {"one/good.md": "x"})
    os.mkfifo(tmp_path / "one/fifo")
    os.mknod(tmp_path / "one/socket", stat.S_IFSOCK | 0o600)
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/one/\xff.md")).write_text("x")
    registry = load_registry(tmp_path)
    assert list(registry.snapshot.skills["one"].files) == ["SKILL.md", "good.md"]
    assert_served(registry, ["one"], problems=["file-irregular", "file-irregular", "file-name"])


@each_row("place", ["a<b>/same", "a\tb/same", "team/<same>", "x/a\nb/same", "a\u2028b/same"])
def test_skill_with_markup_in_its_path_is_unusable(tmp_path: Path, place: str) -> None:
    """A path stands for a name that two skills share."""
    registry = load_registry(write_files(tmp_path, {f"{place}/SKILL.md": skill_md("same")} | skills("other/same")))
    assert registry.snapshot.skills[place].standing is Standing.UNUSABLE
    assert "name-markup" in problem_codes(registry)
    assert valid_paths(registry) == ["other/same"]
