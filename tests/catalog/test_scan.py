"""Scan of a directory tree: its skills, their paths, and their problems."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final
from unittest.mock import Mock

import pytest

from catalog.forest import (
    Patch,
    assert_served,
    hook_reads,
    load_registry,
    problem_codes,
    skill_md,
    skills,
    unprivileged_user,
    valid_paths,
    write_files,
)
from mcp_skills_server.catalog import disk, scan, tree
from mcp_skills_server.catalog.roots import Limits
from mcp_skills_server.errors import StaleFileError
from mcp_skills_server.model import Reading, Standing
from tables import each_row


@pytest.mark.requirement("AS-1", "ASG-4")
def test_skill_is_a_directory_with_a_file_named_exactly_skill_md(tmp_path: Path) -> None:
    others = ("loose.md", "docs/README.md", "docs/SKILL.markdown", "docs/MYSKILL.md", "SKILL.md.txt")
    registry = load_registry(
        write_files(tmp_path, skills("one", "deep/down/two") | dict.fromkeys(others, skill_md("docs")))
    )
    assert_served(registry, ["deep/down/two", "one"], problems=[])


@pytest.mark.requirement("AS-21")
@each_row("name", ["skill.md", "Skill.md", "SKILL.MD"])
def test_other_case_of_skill_md_is_a_problem_outside_of_skills_only(tmp_path: Path, name: str) -> None:
    registry = load_registry(write_files(tmp_path, {f"one/{name}": "x", f"two/sub/{name}": "x"} | skills("two")))
    assert_served(registry, ["two"], problems=["skill-md-case"])
    assert registry.snapshot.skills["one"].standing is Standing.UNUSABLE
    assert list(registry.snapshot.skills["two"].files) == ["SKILL.md", f"sub/{name}"]


@pytest.mark.requirement("S40-16")
def test_nested_skill_is_listed_and_its_files_belong_to_both(tmp_path: Path) -> None:
    write_files(tmp_path, skills("a", "a/x/b", "a/x/b/c") | {"a/x/b/ref.md": "x", "a/z.md": "x"})
    registry = load_registry(tmp_path)
    assert valid_paths(registry) == ["a", "a/x/b", "a/x/b/c"]
    found = registry.snapshot.skills
    inner = ["SKILL.md", "c/SKILL.md", "ref.md"]
    assert list(found["a/x/b"].files) == inner
    assert list(found["a"].files) == ["SKILL.md", *(f"x/b/{path}" for path in inner), "z.md"]
    assert found["a"].files["x/b/ref.md"] is found["a/x/b"].files["ref.md"]


@pytest.mark.requirement("ASG-6")
def test_skill_below_the_depth_limit_is_reported_and_not_served(tmp_path: Path) -> None:
    write_files(tmp_path, skills("1/2/3/4/5/six", "1/2/3/4/5/6/seven", "1/2/3/4/5/6/7/8/9/10/11/12/13/14/15/sixteen"))
    registry = load_registry(tmp_path, limits=Limits(depth=6))
    assert_served(registry, ["1/2/3/4/5/six"], problems=["too-deep", "too-deep"])
    assert len(valid_paths(load_registry(tmp_path))) == 3


def test_hostile_depth_is_cut_and_reported_without_recursion(tmp_path: Path) -> None:
    write_files(tmp_path, skills("one", "1/two"))
    parent = os.open(tmp_path / "1", os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("1", dir_fd=parent)
        inner = os.open("1", os.O_RDONLY, dir_fd=parent)
        os.close(parent)
        parent = inner
    os.close(parent)
    try:
        registry = load_registry(tmp_path, limits=Limits(depth=10_000))
    finally:
        subprocess.run(["rm", "-rf", tmp_path / "1/1"], check=True)  # too deep for pytest's clean-up
    assert valid_paths(registry) == ["1/two", "one"]
    (found,) = registry.snapshot.problems
    assert found.code == "too-deep"
    assert "more than 64 levels" in found.message
    assert found.path == str(tmp_path / "/".join(["1"] * tree.MAX_LEVELS))


def test_refresh_of_a_path_below_the_deepest_level_finds_nothing(tmp_path: Path) -> None:
    deep = "/".join(str(number) for number in range(tree.MAX_LEVELS)) + "/deepest"
    registry = load_registry(write_files(tmp_path, skills("one")))
    write_files(tmp_path, skills(deep))
    assert not registry.refresh([str(tmp_path / deep / "SKILL.md")])
    assert not registry.refresh()
    assert list(registry.snapshot.skills) == ["one"]
    assert problem_codes(registry) == ["too-deep"]


def test_root_skill_is_served_by_its_name_with_nested_skills_below(tmp_path: Path) -> None:
    top = write_files(tmp_path / "checkout", {"SKILL.md": skill_md("kit"), "ref.md": "x"} | skills("extra/sub"))
    registry = load_registry(top)
    assert list(registry.snapshot.paths(Standing.LENIENT)) == ["kit", "kit/extra/sub"]
    assert list(registry.snapshot.skills["kit"].files) == ["SKILL.md", "extra/sub/SKILL.md", "ref.md"]
    assert problem_codes(registry) == ["name-mismatch"]


# A root folder with this text as its SKILL.md is served at `path`.
@each_row(("folder", "text", "path"), [
    *((b"kit", text, "kit") for text in ("no frontmatter", skill_md("'../x'"), skill_md("''"))),
    (b"k\xff", "no frontmatter", "k\\xff"),
])  # fmt: skip
def test_root_skill_without_a_usable_name_has_that_of_its_directory(
    tmp_path: Path, folder: bytes, text: str, path: str
) -> None:
    registry = load_registry(write_files(tmp_path / os.fsdecode(folder), {"SKILL.md": text}))
    assert list(registry.snapshot.skills) == [path]
    problems = registry.checks.survey(registry.snapshot).problems
    assert all(str(problem).encode() for problem in problems)  # a lone surrogate would be an error


IGNORED: Final = (
    ".git", ".x.md", "node_modules", "__pycache__", "a.swp", ".a.swo", "a.swx", "a.md~", "~$a.doc", "#a#", "4913",
)  # fmt: skip
SERVED: Final = ("a.git", "node_modules2", "swp", "notes..md", "a b", "ä", "git")


@pytest.mark.requirement("ASG-5")
def test_names_of_tools_and_editors_are_ignored(tmp_path: Path) -> None:
    nested = {f"{where}/{name}/five/SKILL.md": skill_md("five") for where in ("one", "docs") for name in IGNORED}
    write_files(tmp_path, skills("one") | nested | {f"one/s/{name}": "x" for name in (*IGNORED, *SERVED)})
    registry = load_registry(tmp_path)
    assert valid_paths(registry) == ["one"]
    assert list(registry.snapshot.skills["one"].files) == ["SKILL.md", *sorted(f"s/{name}" for name in SERVED)]
    assert problem_codes(registry) == []


def test_python_virtual_environment_is_ignored(tmp_path: Path) -> None:
    write_files(
        tmp_path, {**skills("one", "venv/lib/two", "tool/env/three"), "one/env/x": "x", "one/env/pyvenv.cfg": ""}
    )
    write_files(tmp_path, {"venv/pyvenv.cfg": "", "tool/env/pyvenv.cfg": ""})
    registry = load_registry(tmp_path)
    assert_served(registry, ["one"], problems=[])
    skill = registry.snapshot.skills["one"]
    assert [*skill.files] == ["SKILL.md"]
    assert not skill.empty
    registry.refresh([str(tmp_path / path) for path in ("venv/lib/two", "venv/lib", "venv")])
    assert valid_paths(registry) == ["one"]
    (tmp_path / "venv/pyvenv.cfg").unlink()
    registry.refresh([str(tmp_path / "venv/pyvenv.cfg")])
    assert valid_paths(registry) == ["one", "venv/lib/two"]
    write_files(tmp_path, {"venv/pyvenv.cfg": ""})
    registry.refresh([str(tmp_path / "venv/pyvenv.cfg")])
    assert valid_paths(registry) == ["one"]


def test_only_a_regular_file_marks_a_virtual_environment_in_every_scan(tmp_path: Path) -> None:
    write_files(tmp_path, skills("dir/one", "link/two", "venv/three") | {"dir/pyvenv.cfg/x": ""})
    (tmp_path / "link/pyvenv.cfg").symlink_to("nowhere")
    write_files(tmp_path, dict.fromkeys([*(f"venv/{number}" for number in range(600)), "venv/pyvenv.cfg"], ""))
    (tmp_path / "venv-too").symlink_to("venv")
    registry = load_registry(tmp_path)
    assert_served(registry, ["dir/one", "link/two"], problems=["link-outside"])
    for path in ("dir/one", "link/two", "venv/three", "venv-too"):
        registry.refresh([str(tmp_path / path)])
        assert_served(registry, ["dir/one", "link/two"], problems=["link-outside"])


@pytest.mark.requirement("X-2", "S40-5")
@each_row(("text", "code", "standing"), [
    (b"no frontmatter", "frontmatter-missing", Standing.UNUSABLE),
    (b"---\nname: [\n---\n", "yaml-syntax", Standing.UNUSABLE),
    (b"---\nname: bad\ndescription: \xff\n---\n", "not-utf8", Standing.UNUSABLE),
    (skill_md("other").encode(), "name-mismatch", Standing.LENIENT),
    (b"---\nname: bad\n---\nDo it.\n", "description-missing", Standing.LENIENT),
])  # fmt: skip
def test_broken_skill_does_not_affect_other_skills(tmp_path: Path, text: bytes, code: str, standing: Standing) -> None:
    write_files(tmp_path, skills("good", "bad/nested") | {"bad/SKILL.md": text})
    registry = load_registry(tmp_path)
    assert valid_paths(registry) == ["bad/nested", "good"]
    assert registry.snapshot.skills["bad"].standing is standing
    seen = [problem for problem in registry.checks.survey(registry.snapshot).problems if problem.code == code]
    assert [(problem.path, problem.skill) for problem in seen] == [(str(tmp_path / "bad/SKILL.md"), "bad")]


@each_row("target", ["../two/SKILL.md", "nowhere", "SKILL.md", "sub", "/etc/passwd", ".hidden.md"])
def test_skill_md_that_links_out_of_its_skill_is_unusable(tmp_path: Path, target: str) -> None:
    write_files(tmp_path, skills("two") | {"one/sub/x": "x", "one/.hidden.md": skill_md("one")})
    (tmp_path / "one/SKILL.md").symlink_to(target)
    registry = load_registry(tmp_path)
    assert_served(registry, ["two"], problems=["skill-md-irregular"])
    assert "SKILL.md" not in registry.snapshot.skills["one"].files


def test_skill_md_that_is_a_fifo_or_directory_is_unusable(tmp_path: Path) -> None:
    registry = load_registry(
        write_files(tmp_path, skills("good") | {"one/x": "x", "two/SKILL.md/x": "x", "three/x": "x"})
    )
    os.mkfifo(tmp_path / "one/SKILL.md")
    (tmp_path / "three/SKILL.md").mkdir()
    assert registry.refresh([str(tmp_path / name / "SKILL.md") for name in ("one", "three")])
    for each in (registry, load_registry(tmp_path)):
        assert_served(each, ["good"], problems=["skill-md-irregular"] * 3)


def test_directory_links_and_non_utf8_names_outside_of_skills_are_reported(tmp_path: Path) -> None:
    root = write_files(tmp_path / "root", skills("one") | {"docs/x.md": "x"})
    write_files(tmp_path, {"elsewhere/two/x": "x"})
    (root / "two").symlink_to(tmp_path / "elsewhere/two")
    (root / "file.md").symlink_to("docs/x.md")
    (root / "dangling").symlink_to("nowhere")
    write_files(Path(os.fsdecode(os.fsencode(root) + b"/k\xff")), {"SKILL.md": skill_md("k")})
    registry = load_registry(root)
    assert valid_paths(registry) == ["one"]
    seen = sorted((problem.code, problem.path) for problem in registry.snapshot.problems)
    assert seen == [("file-name", str(root / "k\\xff")), ("link-outside", str(root / "two"))]


@each_row(("call", "number", "found"), [
    ("open", errno.EACCES, ["unreadable", "unreadable"]),
    ("scandir", errno.EIO, ["unreadable", "unreadable"]),
    ("open", errno.ENOENT, []),  # deleted during the walk
])  # fmt: skip
def test_unreadable_directory_makes_only_its_skill_unusable_until_readable(
    tmp_path: Path, monkeypatch: Patch, call: str, number: int, found: list[str]
) -> None:
    registry = load_registry(
        write_files(tmp_path, skills("one", "two", "locked", "shelf/three") | {"two/locked/x": "x"})
    )
    paths = [str(tmp_path / path) for path in ("locked", "two/locked")]
    real_call, locked = getattr(os, call), [os.stat(path).st_ino for path in paths]
    left = ["one", "shelf/three"]
    if number == errno.ENOENT:
        left.append("two")

    def refuse(path: Any, *arguments: Any, **options: Any) -> Any:
        if path == "locked" or (call == "scandir" and os.stat(path).st_ino in locked):
            raise OSError(number, os.strerror(number), path)
        return real_call(path, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, call, refuse)
        patch.setattr(os, "supports_fd", {*os.supports_fd, refuse})
        registry.refresh(paths if call == "open" else None)
        for each in (registry, load_registry(tmp_path)):
            assert_served(each, left, problems=found)
    assert registry.refresh(paths)
    assert_served(registry, ["locked", "one", "shelf/three", "two"], problems=[])


def test_unreadable_skill_md_is_read_again_by_the_next_refresh(tmp_path: Path, monkeypatch: Patch) -> None:
    write_files(tmp_path, skills("one"))
    with monkeypatch.context() as patch:
        patch.setattr(disk, "ingest", Mock(side_effect=OSError(errno.EIO, "Input/output error")))
        registry = load_registry(tmp_path)
        assert problem_codes(registry) == ["unreadable"]
        assert not registry.refresh()
    assert registry.refresh()
    assert valid_paths(registry) == ["one"]


@pytest.mark.requirement("X-5")
def test_directory_swapped_during_the_scan_exposes_no_foreign_bytes(tmp_path: Path, monkeypatch: Patch) -> None:
    root = write_files(tmp_path / "root", skills("one", "two"))
    write_files(tmp_path / "outside", {"SKILL.md": skill_md("one", "secret: key")})

    def swap(location: str) -> None:
        if location == "one/SKILL.md" and not (root / "one").is_symlink():
            shutil.rmtree(root / "one")
            (root / "one").symlink_to(tmp_path / "outside")

    hook_reads(monkeypatch, swap)
    registry = load_registry(root)
    assert valid_paths(registry) == ["two"]
    assert "secret" not in registry.snapshot.skills["one"].frontmatter
    with pytest.raises(StaleFileError):
        registry.read(registry.snapshot.skills["one"].files["SKILL.md"])


def test_file_changed_during_the_scan_is_served_as_changed(tmp_path: Path, monkeypatch: Patch) -> None:
    write_files(tmp_path, skills("one") | {"two/README.md": skill_md("two"), "one/ref.md": "x"})
    (tmp_path / "two/SKILL.md").symlink_to("README.md")

    def edit(location: str) -> None:
        with (tmp_path / location).open("a") as file:
            file.write("More.\n")

    hook_reads(monkeypatch, edit)
    registry = load_registry(tmp_path)
    assert valid_paths(registry) == ["one", "two"]
    for skill in registry.snapshot.skills.values():
        for each in skill.files.values():
            assert registry.read(each).endswith(b"More.\n")


@pytest.mark.skipif(not hasattr(os, "seteuid"), reason="no seteuid")
def test_unreadable_file_has_no_digest_until_it_is_readable(open_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_files(open_path, skills("a") | {"a/ref.md": "x"})
    (open_path / "a/ref.md").chmod(0)
    with unprivileged_user(open_path):
        registry = load_registry(open_path)
        assert not registry.refresh()
        skill = registry.snapshot.skills["a"]
        assert [*skill.digests] == ["SKILL.md"]
        assert valid_paths(registry) == ["a"]
        with pytest.raises(StaleFileError, match="Permission denied"):
            registry.read(skill.files["ref.md"])
        assert [each.code for each in registry.problems()] == ["unreadable"]
    assert caplog.messages == [f"a file of a skill is not served: Permission denied: {open_path}/a/ref.md"]
    (open_path / "a/ref.md").chmod(0o644)
    assert registry.refresh().files == {("a", "ref.md")}
    assert [*registry.snapshot.skills["a"].digests] == ["SKILL.md", "ref.md"]


def test_problem_path_begins_with_the_root_as_given(tmp_path: Path, monkeypatch: Patch) -> None:
    write_files(tmp_path / "skills", {"one/SKILL.md": "no frontmatter"})
    monkeypatch.chdir(tmp_path)
    registry = load_registry(Path("skills"))
    assert [problem.path for problem in registry.checks.survey(registry.snapshot).problems] == ["skills/one/SKILL.md"]


@pytest.mark.skipif(not hasattr(os, "seteuid"), reason="no seteuid")
def test_folder_without_search_permission_is_reported(open_path: Path) -> None:
    write_files(open_path, skills("a", "whole", "group/b") | {"whole/sub/x.md": "x", "loose/notes.md": "x"})
    with unprivileged_user(open_path):
        for path in ("a", "whole/sub", "group", "loose"):
            (open_path / path).chmod(0o444)
        registry = load_registry(open_path)
    found = {path: problem_codes(skill) for path, skill in registry.snapshot.skills.items()}
    assert found == {"a": ["unreadable"], "whole": ["unreadable"]}
    cannot = "cannot be inspected: the folder may be read but not entered"
    hint = "give the user that runs the server permission to enter the folder"
    assert {each.path: each.text for each in registry.checks.survey(registry.snapshot).problems} == {
        f"{open_path}/a/SKILL.md": f"SKILL.md {cannot}; {hint}",
        f"{open_path}/whole/sub/x.md": f"sub/x.md {cannot}; {hint}",
        f"{open_path}/group/b": f"the directory cannot be opened; {hint} above it, {open_path}/group",
        f"{open_path}/loose": f"1 of its names {cannot}; {hint}",
    }


def test_bug_in_reading_one_skill_hides_no_other_and_is_a_problem_of_that_skill(
    tmp_path: Path, monkeypatch: Patch, caplog: pytest.LogCaptureFixture
) -> None:
    real_read = scan.read_skill_md

    def read(raw: bytes, directory: str) -> Reading:
        if directory == "two":
            raise IndexError(directory)
        return real_read(raw, directory)

    monkeypatch.setattr(scan, "read_skill_md", read)
    registry = load_registry(write_files(tmp_path, skills("one", "two", "three")))
    assert_served(registry, ["one", "three"], problems=["unreadable"])
    (problem,) = registry.snapshot.skills["two"].problems
    assert problem.path == str(tmp_path / "two/SKILL.md") and "IndexError" in problem.message
    assert [record.exc_info is not None for record in caplog.records if "could not be read" in record.message] == [True]
    monkeypatch.undo()
    registry.refresh()
    assert_served(registry, ["one", "three", "two"], problems=[])
