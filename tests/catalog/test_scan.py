"""What a scan makes of a tree: which skills there are, which files they have, and what is wrong with them."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from catalog.forest import as_nobody, codes, loaded, plant, served, skill_md, skills
from mcp_skills_server.catalog import disk, tree
from mcp_skills_server.catalog.roots import Limits, Root
from mcp_skills_server.errors import StaleFileError
from mcp_skills_server.model import SkillFile, Standing
from tables import each_row


@pytest.mark.requirement("AS-1", "ASG-4")
def test_a_skill_is_a_directory_with_a_file_named_exactly_skill_md(tmp_path: Path) -> None:
    plant(tmp_path, skills("one", "deep/down/two"))
    plant(tmp_path, {"loose.md": skill_md("loose"), "docs/README.md": skill_md("docs")})
    plant(tmp_path, {"docs/SKILL.markdown": skill_md("docs"), "docs/MYSKILL.md": skill_md("docs"), "SKILL.md.txt": "x"})
    registry = loaded(tmp_path)
    assert served(registry) == ["deep/down/two", "one"]
    assert codes(registry) == []


@pytest.mark.requirement("AS-21")
@each_row("name", ["skill.md", "Skill.md", "SKILL.MD"])
def test_another_spelling_of_skill_md_is_told_with_the_mend(tmp_path: Path, name: str) -> None:
    plant(tmp_path, {f"one/{name}": skill_md("one")} | skills("two"))
    registry = loaded(tmp_path)
    assert served(registry) == ["two"]
    assert codes(registry) == ["skill-md-case"]
    assert registry.snapshot.skills["one"].standing is Standing.UNUSABLE


def test_another_spelling_inside_a_skill_is_just_a_file(tmp_path: Path) -> None:
    plant(tmp_path, skills("one") | {"one/skill.md": "x", "one/sub/skill.md": "x"})
    registry = loaded(tmp_path)
    assert list(registry.snapshot.skills["one"].files) == ["SKILL.md", "skill.md", "sub/skill.md"]
    assert codes(registry) == []


@pytest.mark.requirement("S40-16")
def test_a_nested_skill_is_listed_flat_and_is_part_of_the_enclosing_one(tmp_path: Path) -> None:
    plant(tmp_path, skills("a", "a/x/b", "a/x/b/c") | {"a/x/b/ref.md": "x", "a/z.md": "x"})
    registry = loaded(tmp_path)
    assert served(registry) == ["a", "a/x/b", "a/x/b/c"]
    found = registry.snapshot.skills
    inner = ["SKILL.md", "c/SKILL.md", "ref.md"]
    assert list(found["a/x/b"].files) == inner
    assert list(found["a"].files) == ["SKILL.md", *(f"x/b/{path}" for path in inner), "z.md"]
    assert found["a"].files["x/b/ref.md"] is found["a/x/b"].files["ref.md"]


@pytest.mark.requirement("ASG-6")
def test_a_skill_below_the_depth_limit_is_told_and_not_served(tmp_path: Path) -> None:
    plant(tmp_path, skills("1/2/3/4/5/six", "1/2/3/4/5/6/seven", "1/2/3/4/5/6/7/8/9/10/11/12/13/14/15/sixteen"))
    registry = loaded(tmp_path, limits=Limits(depth=6))
    assert served(registry) == ["1/2/3/4/5/six"]
    assert codes(registry) == ["too-deep", "too-deep"]
    assert len(served(loaded(tmp_path))) == 3


def test_a_hostile_depth_is_cut_reported_and_costs_no_recursion(tmp_path: Path) -> None:
    """Made by descriptor, for no path of such a length can be opened."""
    plant(tmp_path, skills("one", "1/two"))
    here = os.open(tmp_path / "1", os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("1", dir_fd=here)
        inner = os.open("1", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)
    try:
        registry = loaded(tmp_path, limits=Limits(depth=10_000))
    finally:
        subprocess.run(["rm", "-rf", tmp_path / "1/1"], check=True)  # too deep for what removes this folder at the end
    assert served(registry) == ["1/two", "one"]
    (found,) = registry.snapshot.problems
    assert found.code == "too-deep" and f"more than {tree.MOST_LEVELS} levels" in found.message
    assert found.path == str(tmp_path / "/".join(["1"] * tree.MOST_LEVELS))


def test_deeper_than_is_looked_the_answer_is_the_same_from_wherever_the_scan_starts(tmp_path: Path) -> None:
    deep = "/".join(str(number) for number in range(tree.MOST_LEVELS)) + "/deepest"
    registry = loaded(plant(tmp_path, skills("one")))
    plant(tmp_path, skills(deep))
    assert not registry.refresh([str(tmp_path / deep / "SKILL.md")])
    assert not registry.refresh()
    assert list(registry.snapshot.skills) == ["one"]
    assert codes(registry) == ["too-deep"]


def test_a_root_that_is_a_skill_goes_by_its_name_and_what_is_nested_lies_below(tmp_path: Path) -> None:
    top = plant(tmp_path / "checkout", {"SKILL.md": skill_md("kit"), "ref.md": "x"} | skills("extra/sub"))
    registry = loaded(top)
    assert list(registry.snapshot.paths(Standing.LENIENT)) == ["kit", "kit/extra/sub"]
    assert list(registry.snapshot.skills["kit"].files) == ["SKILL.md", "extra/sub/SKILL.md", "ref.md"]
    assert codes(registry) == ["name-mismatch"]


@each_row("text", ["no frontmatter", skill_md("'../x'"), skill_md("''")])
def test_a_root_without_a_usable_name_goes_by_its_directory(tmp_path: Path, text: str) -> None:
    registry = loaded(plant(tmp_path / "kit", {"SKILL.md": text}))
    assert list(registry.snapshot.skills) == ["kit"]


def test_a_root_whose_directory_is_not_utf_8_still_has_a_path_that_can_be_written(tmp_path: Path) -> None:
    top = Path(os.fsdecode(os.fsencode(tmp_path) + b"/k\xff"))
    registry = loaded(plant(top, {"SKILL.md": "no frontmatter"}))
    assert list(registry.snapshot.skills) == ["k\\xff"]
    assert all(str(problem).encode() for problem in registry.checks.survey(registry.snapshot).problems)


@pytest.mark.requirement("ASG-5")
def test_ignored_names_are_never_looked_into(tmp_path: Path) -> None:
    files = dict.fromkeys(("one/.env", "one/node_modules/m/i.js", "one/a.swp", "one/a.md~", "one/s/.git/HEAD"), "x")
    plant(tmp_path, skills("one", ".hidden/two", "node_modules/three", "__pycache__/four", "one/.git/five") | files)
    registry = loaded(tmp_path)
    assert served(registry) == ["one"]
    assert list(registry.snapshot.skills["one"].files) == ["SKILL.md"]
    assert codes(registry) == []


def test_the_path_of_the_root_itself_may_hold_ignored_names(tmp_path: Path) -> None:
    top = plant(tmp_path / ".venv/node_modules/skills~", skills("one"))
    registry = loaded(top)
    assert served(registry) == ["one"]
    plant(top, skills("two"))
    assert registry.refresh([str(top / "two")])
    assert served(registry) == ["one", "two"]


@pytest.mark.requirement("X-2", "S40-5")
@each_row(
    ("text", "code", "standing"),
    [
        (b"no frontmatter", "frontmatter-missing", Standing.UNUSABLE),
        (b"---\nname: [\n---\n", "yaml-syntax", Standing.UNUSABLE),
        (b"---\nname: bad\ndescription: \xff\n---\n", "not-utf8", Standing.UNUSABLE),
        (skill_md("other").encode(), "name-mismatch", Standing.LENIENT),
        (b"---\nname: bad\n---\nDo it.\n", "description-missing", Standing.LENIENT),
    ],
)
def test_a_broken_skill_leaves_its_neighbours_served(
    tmp_path: Path, text: bytes, code: str, standing: Standing
) -> None:
    plant(tmp_path, skills("good", "bad/nested") | {"bad/SKILL.md": text})
    registry = loaded(tmp_path)
    assert served(registry) == ["bad/nested", "good"]
    assert registry.snapshot.skills["bad"].standing is standing
    seen = [problem for problem in registry.checks.survey(registry.snapshot).problems if problem.code == code]
    assert [(problem.path, problem.skill) for problem in seen] == [(str(tmp_path / "bad/SKILL.md"), "bad")]


@each_row("target", ["../two/SKILL.md", "nowhere", "SKILL.md", "sub", "/etc/passwd", ".hidden.md"])
def test_a_skill_md_that_is_a_link_out_of_the_skill_is_unusable(tmp_path: Path, target: str) -> None:
    plant(tmp_path, skills("two") | {"one/sub/x": "x", "one/.hidden.md": skill_md("one")})
    (tmp_path / "one/SKILL.md").symlink_to(target)
    registry = loaded(tmp_path)
    assert served(registry) == ["two"]
    assert codes(registry) == ["skill-md-irregular"]
    assert "SKILL.md" not in registry.snapshot.skills["one"].files


def test_a_skill_md_that_is_no_file_at_all_is_unusable(tmp_path: Path) -> None:
    plant(tmp_path, skills("good") | {"one/x": "x", "two/SKILL.md/x": "x"})
    os.mkfifo(tmp_path / "one/SKILL.md")
    registry = loaded(tmp_path)
    assert served(registry) == ["good"]
    assert codes(registry) == ["skill-md-irregular", "skill-md-irregular"]


def test_a_directory_named_skill_md_that_comes_later_is_told_just_the_same(tmp_path: Path) -> None:
    registry = loaded(plant(tmp_path, {"one/x": "x"}))
    (tmp_path / "one/SKILL.md").mkdir()
    assert registry.refresh([str(tmp_path / "one/SKILL.md")])
    assert codes(registry) == ["skill-md-irregular"]


def test_outside_every_skill_links_to_directories_and_unwritable_names_are_told(tmp_path: Path) -> None:
    root = plant(tmp_path / "root", skills("one") | {"docs/x.md": "x"})
    plant(tmp_path, {"elsewhere/two/x": "x"})
    (root / "two").symlink_to(tmp_path / "elsewhere/two")
    (root / "file.md").symlink_to("docs/x.md")
    (root / "dangling").symlink_to("nowhere")
    plant(Path(os.fsdecode(os.fsencode(root) + b"/k\xff")), {"SKILL.md": skill_md("k")})
    registry = loaded(root)
    assert served(registry) == ["one"]
    seen = sorted((problem.code, problem.path) for problem in registry.snapshot.problems)
    assert seen == [("file-name", str(root / "k\\xff")), ("link-outside", str(root / "two"))]


def test_a_directory_that_cannot_be_opened_makes_its_skill_unusable_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(tmp_path, skills("one", "two", "locked", "shelf/three") | {"two/locked/x": "x"})
    real = os.open

    def refuse(path: Any, *arguments: Any, **options: Any) -> int:
        if path == "locked":
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(path, *arguments, **options)

    monkeypatch.setattr(os, "open", refuse)
    registry = loaded(tmp_path)
    assert served(registry) == ["one", "shelf/three"]
    assert codes(registry) == ["unreadable", "unreadable"]


def test_a_skill_that_becomes_unreadable_is_told_by_an_incremental_scan_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = loaded(plant(tmp_path, skills("one", "locked")))
    real = os.open

    def refuse(path: Any, *arguments: Any, **options: Any) -> int:
        if path == "locked":
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(path, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        registry.refresh([str(tmp_path / "locked")])
        assert served(registry) == ["one"]
        assert codes(registry) == codes(loaded(tmp_path)) == ["unreadable"]
    registry.refresh([str(tmp_path / "locked")])
    assert served(registry) == ["locked", "one"]
    assert codes(registry) == []


def test_a_skill_md_that_could_not_be_read_once_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(tmp_path, skills("one"))
    with monkeypatch.context() as patch:

        def fail(_root: str, location: str, *_: object) -> bytes:
            raise OSError(errno.EIO, "Input/output error", location)

        patch.setattr(disk, "ingest", fail)
        registry = loaded(tmp_path)
        assert codes(registry) == ["unreadable"]
        assert not registry.refresh()
    assert registry.refresh()
    assert served(registry) == ["one"]


def before_it_is_read(monkeypatch: pytest.MonkeyPatch, change: Callable[[str], object]) -> None:
    """Have `change` called with the place of each file that a walk found, just before the scan reads it."""
    real = disk.ingest

    def ingest(root_path: str, location: str, file: SkillFile, most_bytes: int) -> bytes:
        change(file.location)
        return real(root_path, location, file, most_bytes)

    monkeypatch.setattr(disk, "ingest", ingest)


@pytest.mark.requirement("X-5")
def test_a_directory_swapped_for_a_link_during_the_scan_never_shows_foreign_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = plant(tmp_path / "root", skills("one", "two"))
    plant(tmp_path / "outside", {"SKILL.md": skill_md("one", "secret: key")})

    def swap(location: str) -> None:
        if location == "one/SKILL.md" and not (root / "one").is_symlink():
            shutil.rmtree(root / "one")
            (root / "one").symlink_to(tmp_path / "outside")

    before_it_is_read(monkeypatch, swap)
    registry = loaded(root)
    assert served(registry) == ["two"]
    assert "secret" not in registry.snapshot.skills["one"].frontmatter
    with pytest.raises(StaleFileError):
        registry.read(registry.snapshot.skills["one"].files["SKILL.md"])


def test_a_file_that_changes_during_the_scan_is_read_as_it_is_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(tmp_path, skills("one") | {"two/README.md": skill_md("two"), "one/ref.md": "x"})
    (tmp_path / "two/SKILL.md").symlink_to("README.md")

    def edit(location: str) -> None:
        with (tmp_path / location).open("a") as other:
            other.write("More.\n")

    before_it_is_read(monkeypatch, edit)
    registry = loaded(tmp_path)
    assert served(registry) == ["one", "two"]
    for skill in registry.snapshot.skills.values():
        for file in skill.files.values():
            assert registry.read(file).endswith(b"More.\n")


@pytest.mark.skipif(not hasattr(os, "seteuid"), reason="nobody else to be")
def test_a_file_that_cannot_be_read_is_left_out_of_the_digests_and_tried_when_that_changes(
    open_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plant(open_path, skills("a") | {"a/ref.md": "x"})
    (open_path / "a/ref.md").chmod(0)
    with as_nobody(open_path):
        registry = loaded(open_path)
        assert not registry.refresh()
        skill = registry.snapshot.skills["a"]
        assert [*skill.digests] == ["SKILL.md"] and served(registry) == ["a"]
        with pytest.raises(StaleFileError, match="Permission denied"):
            registry.read(skill.files["ref.md"])
        assert [each.code for each in registry.problems()] == ["unreadable"]
    assert caplog.messages == [f"a file of a skill is not served: Permission denied: {open_path}/a/ref.md"]
    (open_path / "a/ref.md").chmod(0o644)
    assert registry.refresh().files == {("a", "ref.md")}
    assert [*registry.snapshot.skills["a"].digests] == ["SKILL.md", "ref.md"]


def test_a_place_is_shown_as_the_operator_wrote_the_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(tmp_path / "skills", {"one/SKILL.md": "no frontmatter"})
    monkeypatch.chdir(tmp_path)
    registry = loaded(Path("skills"))
    assert [problem.path for problem in registry.checks.survey(registry.snapshot).problems] == ["skills/one/SKILL.md"]
    assert Root(0, "/x", "y", "/x").show("") == "y"


def test_the_headings_of_the_body_are_read(tmp_path: Path) -> None:
    body = "# One\n\n## Steps\n\nDo it."
    plant(tmp_path, {"one/SKILL.md": skill_md("one", body=body), "two/SKILL.md": skill_md("other", body=body)})
    registry = loaded(tmp_path)
    found = registry.snapshot.skills
    assert found["one"].reading.headings == ("One", "Steps")
    assert found["two"].problems and found["two"].reading.headings == ("One", "Steps")
    plant(tmp_path, {"one/SKILL.md": skill_md("one", body="# One\n\n## Other steps\n\nDo it.")})
    registry.refresh()
    assert registry.snapshot.skills["one"].reading.headings == ("One", "Other steps")


def test_what_has_no_frontmatter_has_no_headings(tmp_path: Path) -> None:
    plant(tmp_path, {"one/SKILL.md": "# One\n\n## Steps\n"})
    assert loaded(tmp_path).snapshot.skills["one"].reading.headings == ()


@pytest.mark.skipif(not hasattr(os, "seteuid"), reason="nobody else to be")
def test_a_folder_that_may_be_read_but_not_entered_is_reported_and_not_taken_for_empty(open_path: Path) -> None:
    plant(open_path, skills("a", "whole", "group/b") | {"whole/sub/x.md": "x", "loose/notes.md": "x"})
    with as_nobody(open_path):
        for path in ("a", "whole/sub", "group", "loose"):
            (open_path / path).chmod(0o444)
        registry = loaded(open_path)
    assert {path: codes(skill) for path, skill in registry.snapshot.skills.items()} == {
        "a": ["unreadable"],
        "whole": ["unreadable"],
    }
    said = {found.path: found.text for found in registry.checks.survey(registry.snapshot).problems}
    assert said == {
        f"{open_path}/a/SKILL.md": "SKILL.md cannot be inspected: the folder may be read but not entered; give the "
        "user that runs the server permission to enter the folder",
        f"{open_path}/whole/sub/x.md": "sub/x.md cannot be inspected: the folder may be read but not entered; give the "
        "user that runs the server permission to enter the folder",
        f"{open_path}/group/b": "the directory cannot be opened; give the user that runs the server permission to "
        f"enter the folder above it, {open_path}/group",
        f"{open_path}/loose": "1 of its names cannot be inspected: the folder may be read but not entered; give the "
        "user that runs the server permission to enter the folder",
    }
