"""What a scan makes of a tree: which skills there are, which files they have, and what is wrong with them."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

from catalog.forest import age, as_nobody, codes, loaded, plant, skill_md, skills
from mcp_skills_server.catalog import passed, scan, tree
from mcp_skills_server.catalog.passed import PassedOver, passed_over
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.scan import Limits, Root
from mcp_skills_server.errors import StaleFileError
from mcp_skills_server.model import SkillFile, Standing


def served(registry: Registry) -> list[str]:
    return registry.snapshot.paths(Standing.VALID)


@pytest.mark.requirement("AS-1", "ASG-4")
def test_a_skill_is_a_directory_with_a_file_named_exactly_skill_md(tmp_path: Path) -> None:
    plant(tmp_path, skills("one", "deep/down/two"))
    plant(tmp_path, {"loose.md": skill_md("loose"), "docs/README.md": skill_md("docs")})
    plant(tmp_path, {"docs/SKILL.markdown": skill_md("docs"), "docs/MYSKILL.md": skill_md("docs"), "SKILL.md.txt": "x"})
    registry = loaded(tmp_path)
    assert served(registry) == ["deep/down/two", "one"]
    assert codes(registry) == []


@pytest.mark.requirement("AS-21")
@pytest.mark.parametrize("name", ["skill.md", "Skill.md", "SKILL.MD"])
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


def test_files_come_in_path_order(tmp_path: Path) -> None:
    plant(tmp_path, skills("a") | dict.fromkeys(("a/b/c", "a/b.md", "a/B", "a/ä", "a/b-c"), "x"))
    files = list(loaded(tmp_path).snapshot.skills["a"].files)
    assert files == sorted(files)


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


def test_files_deeper_than_the_scan_goes_make_a_skill_unusable(tmp_path: Path) -> None:
    deep = "/".join(str(number) for number in range(tree.MOST_LEVELS + 2))
    registry = loaded(plant(tmp_path, skills("one", "two") | {f"one/{deep}/file.md": "x"}))
    assert served(registry) == ["two"]
    assert codes(registry) == ["too-deep"]


def test_a_root_that_is_a_skill_goes_by_its_name_and_what_is_nested_lies_below(tmp_path: Path) -> None:
    top = plant(tmp_path / "checkout", {"SKILL.md": skill_md("kit"), "ref.md": "x"} | skills("extra/sub"))
    registry = loaded(top)
    assert list(registry.snapshot.paths(Standing.LENIENT)) == ["kit", "kit/extra/sub"]
    assert list(registry.snapshot.skills["kit"].files) == ["SKILL.md", "extra/sub/SKILL.md", "ref.md"]
    assert codes(registry) == ["name-mismatch"]


@pytest.mark.parametrize("text", ["no frontmatter", skill_md("'../x'"), skill_md("''")])
def test_a_root_without_a_usable_name_goes_by_its_directory(tmp_path: Path, text: str) -> None:
    registry = loaded(plant(tmp_path / "kit", {"SKILL.md": text}))
    assert list(registry.snapshot.skills) == ["kit"]


def test_a_root_whose_directory_is_not_utf_8_still_has_a_path_that_can_be_written(tmp_path: Path) -> None:
    top = Path(os.fsdecode(os.fsencode(tmp_path) + b"/k\xff"))
    registry = loaded(plant(top, {"SKILL.md": "no frontmatter"}))
    assert list(registry.snapshot.skills) == ["k\\xff"]
    assert all(str(problem).encode() for problem in registry.problems())


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
@pytest.mark.parametrize(
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
    told = [problem for problem in registry.problems() if problem.code == code]
    assert [(problem.path, problem.skill) for problem in told] == [(str(tmp_path / "bad/SKILL.md"), "bad")]


@pytest.mark.requirement("S40-19", "RTI-5")
@pytest.mark.parametrize(
    ("files", "code"),
    [
        ({f"bad/sub{number}/f": "x" for number in range(4)}, "too-many-files"),
        ({f"bad/f{number}": "x" for number in range(40)}, "too-many-files"),
        ({"bad/nested/SKILL.md": skill_md("nested"), "bad/1": "", "bad/2": "", "bad/3": ""}, "too-many-files"),
        ({"bad/big": "x" * 1000}, "too-many-bytes"),
        ({"bad/SKILL.md": skill_md("bad", body="x" * 600)}, "skill-md-too-large"),
    ],
)
def test_over_a_limit_a_skill_is_told_and_not_served(tmp_path: Path, files: dict[str, str], code: str) -> None:
    plant(tmp_path, skills("bad", "good") | files)
    registry = loaded(tmp_path, limits=Limits(skill_md=500, files=4, bytes=1000))
    assert "good" in served(registry)
    bad = registry.snapshot.skills["bad"]
    assert bad.standing is (Standing.UNUSABLE if code == "skill-md-too-large" else Standing.LENIENT)
    assert code in codes(bad)


@pytest.mark.requirement("S40-19")
def test_of_a_skill_over_a_limit_the_part_within_it_is_kept_for_those_who_read_single_files(tmp_path: Path) -> None:
    more = {"a/b/deep.md": "x", "a/near.md": "x", "z.md": "x", "huge.bin": "x" * 990, "nested/SKILL.md": skill_md("n")}
    plant(tmp_path, skills("one") | {f"one/{path}": content for path, content in more.items()})
    few = loaded(tmp_path, limits=Limits(files=4)).snapshot.skills["one"]
    assert list(few.files) == ["SKILL.md", "a/near.md", "huge.bin", "z.md"]
    assert few.standing is Standing.LENIENT and "the skill has 6 files, 4 are allowed" in few.problems[0].message
    small = loaded(tmp_path, limits=Limits(bytes=500)).snapshot.skills["one"]
    assert list(small.files) == ["SKILL.md", "a/b/deep.md", "a/near.md", "nested/SKILL.md", "z.md"]
    assert small.standing is Standing.LENIENT and small.size <= 500
    none = loaded(tmp_path, limits=Limits(bytes=1)).snapshot.skills["one"]
    assert list(none.files) == ["SKILL.md"]


def test_at_a_limit_a_skill_is_served(tmp_path: Path) -> None:
    text = skill_md("good")
    plant(tmp_path, {"good/SKILL.md": text, "good/a": "x" * (1000 - len(text)), "good/b": "", "good/c": ""})
    assert served(loaded(tmp_path, limits=Limits(skill_md=len(text), files=4, bytes=1000))) == ["good"]


@pytest.mark.requirement("X-5", "S40-17")
@pytest.mark.parametrize(
    ("target", "location"),
    [
        ("ref.md", "one/ref.md"),
        ("sub/deep.md", "one/sub/deep.md"),
        ("../one/ref.md", "one/ref.md"),
        ("../two/SKILL.md", None),
        ("../../secret.md", None),
        ("nowhere", None),
        ("link.md", None),
        ("sub", None),
        (".env", None),
        ("..", None),
    ],
)
def test_a_link_is_served_as_the_file_it_leads_to_if_that_lies_in_the_skill(
    tmp_path: Path, target: str, location: str | None
) -> None:
    root = plant(tmp_path / "root", skills("one", "two") | {"one/ref.md": "r", "one/sub/deep.md": "d", "one/.env": "k"})
    plant(tmp_path, {"secret.md": "key"})
    (root / "one/link.md").symlink_to(target)
    registry = loaded(root)
    file = registry.snapshot.skills["one"].files.get("link.md")
    assert (file and file.location) == location
    assert codes(registry) == ([] if location else ["link-outside"])
    assert served(registry) == ["one", "two"]
    if file is not None:
        assert registry.read(file) == (root / "one" / target).read_bytes()


@pytest.mark.requirement("X-5")
def test_a_link_may_lead_out_of_a_nested_skill_but_not_out_of_the_enclosing_one(tmp_path: Path) -> None:
    plant(tmp_path, skills("a", "a/b") | {"a/shared.md": "x"})
    (tmp_path / "a/b/shared.md").symlink_to("../shared.md")
    found = loaded(tmp_path).snapshot.skills
    assert "b/shared.md" in found["a"].files and codes(found["a"]) == []
    assert "shared.md" not in found["a/b"].files and codes(found["a/b"]) == ["link-outside"]


def test_a_file_and_the_links_to_it_are_one_and_stay_so(tmp_path: Path) -> None:
    plant(tmp_path, {"one/README.md": skill_md("one"), "one/z/ref.md": "x"})
    (tmp_path / "one/SKILL.md").symlink_to("README.md")
    (tmp_path / "one/a.md").symlink_to("z/ref.md")
    registry = loaded(tmp_path)
    one = registry.snapshot.skills["one"]
    assert one.standing is Standing.VALID
    assert one.files["SKILL.md"] is one.files["README.md"] and one.files["a.md"] is one.files["z/ref.md"]
    assert not registry.refresh()
    (tmp_path / "one/z/ref.md").write_text("other")
    changes = registry.refresh([str(tmp_path / "one/z/ref.md")])
    assert changes.files == {("one", "a.md"), ("one", "z/ref.md")}
    assert not registry.refresh()


@pytest.mark.parametrize("target", ["../two/SKILL.md", "nowhere", "SKILL.md", "sub", "/etc/passwd", ".hidden.md"])
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


@pytest.mark.requirement("X-5")
def test_what_is_no_regular_file_is_told_and_left_out(tmp_path: Path) -> None:
    plant(tmp_path, skills("one") | {"one/good.md": "x"})
    os.mkfifo(tmp_path / "one/fifo")
    os.mknod(tmp_path / "one/socket", stat.S_IFSOCK | 0o600)
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/one/\xff.md")).write_text("x")
    registry = loaded(tmp_path)
    assert list(registry.snapshot.skills["one"].files) == ["SKILL.md", "good.md"]
    assert served(registry) == ["one"]
    assert codes(registry) == ["file-irregular", "file-irregular", "file-name"]


def test_outside_every_skill_links_to_directories_and_unwritable_names_are_told(tmp_path: Path) -> None:
    root = plant(tmp_path / "root", skills("one") | {"docs/x.md": "x"})
    plant(tmp_path, skills("elsewhere/two"))
    (root / "two").symlink_to(tmp_path / "elsewhere/two")
    (root / "file.md").symlink_to("docs/x.md")
    (root / "dangling").symlink_to("nowhere")
    plant(Path(os.fsdecode(os.fsencode(root) + b"/k\xff")), {"SKILL.md": skill_md("k")})
    registry = loaded(root)
    assert served(registry) == ["one"]
    told = sorted((problem.code, problem.path) for problem in registry.snapshot.problems)
    assert told == [("file-name", str(root / "k\\xff")), ("link-outside", str(root / "two"))]


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

        def fail(root: str, file: SkillFile) -> bytes:
            raise StaleFileError(file.location, "Too many open files")

        patch.setattr(tree, "read", fail)
        registry = loaded(tmp_path)
        assert codes(registry) == ["unreadable"]
        assert not registry.refresh()
    assert registry.refresh()
    assert served(registry) == ["one"]


@pytest.mark.requirement("X-5")
def test_a_directory_swapped_for_a_link_during_the_scan_never_shows_foreign_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = plant(tmp_path / "root", skills("one", "two"))
    plant(tmp_path / "outside", {"SKILL.md": skill_md("one", "secret: key")})
    real = tree.read

    def swap(root_path: str, file: SkillFile) -> bytes:
        if file.location == "one/SKILL.md" and not (root / "one").is_symlink():
            shutil.rmtree(root / "one")
            (root / "one").symlink_to(tmp_path / "outside")
        return real(root_path, file)

    monkeypatch.setattr(tree, "read", swap)
    registry = loaded(root)
    assert served(registry) == ["two"]
    assert "secret" not in registry.snapshot.skills["one"].frontmatter
    with pytest.raises(StaleFileError):
        registry.read(registry.snapshot.skills["one"].files["SKILL.md"])


def test_a_skill_md_that_changes_during_the_scan_is_read_as_it_is_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(tmp_path, skills("one") | {"two/README.md": skill_md("two")})
    (tmp_path / "two/SKILL.md").symlink_to("README.md")
    real, edited = tree.read, set[str]()

    def edit(root_path: str, file: SkillFile) -> bytes:
        if file.location not in edited:
            edited.add(file.location)
            with (tmp_path / file.location).open("a") as other:
                other.write("More.\n")
        return real(root_path, file)

    monkeypatch.setattr(tree, "read", edit)
    registry = loaded(tmp_path)
    assert served(registry) == ["one", "two"]
    for skill in registry.snapshot.skills.values():
        assert registry.read(skill.files["SKILL.md"]).endswith(b"More.\n")


def test_a_skill_md_that_never_holds_still_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(tmp_path, skills("one", "two"))
    real = tree.read

    def edit(root_path: str, file: SkillFile) -> bytes:
        if file.location == "one/SKILL.md":
            with (tmp_path / file.location).open("a") as other:
                other.write("More.\n")
        return real(root_path, file)

    monkeypatch.setattr(tree, "read", edit)
    registry = loaded(tmp_path)
    assert served(registry) == ["two"] and codes(registry) == ["unreadable"]


def test_a_settled_tree_is_scanned_again_without_opening_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(tmp_path, skills("one", "one/two") | {"one/ref.md": "x"})
    monkeypatch.setattr(tree, "_SETTLED_NS", -1_000_000_000_000)
    age(tmp_path)
    registry = loaded(tmp_path)
    for skill in registry.snapshot.skills.values():
        registry.hash_files(skill)

    def never(*_: object) -> bytes:
        raise AssertionError("a file was read")

    monkeypatch.setattr(tree, "read", never)
    assert not registry.refresh()


def test_a_place_is_shown_as_the_operator_wrote_the_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(tmp_path / "skills", {"one/SKILL.md": "no frontmatter"})
    monkeypatch.chdir(tmp_path)
    registry = loaded(Path("skills"))
    assert [problem.path for problem in registry.problems()] == ["skills/one/SKILL.md"]
    assert Root(0, "/x", "y", "/x").show("") == "y"


def test_the_digest_is_that_of_the_raw_bytes() -> None:
    assert scan.digest_of(b"") == "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


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


# What a user may not enter, and folders whose names begin with a dot


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
    said = {found.path: found.text for found in registry.problems()}
    assert said == {
        f"{open_path}/a/SKILL.md": "SKILL.md cannot be looked at: the folder may be read but not entered; give the "
        "user that runs the server permission to enter the folder",
        f"{open_path}/whole/sub/x.md": "sub/x.md cannot be looked at: the folder may be read but not entered; give the "
        "user that runs the server permission to enter the folder",
        f"{open_path}/group/b": "the directory cannot be opened; give the user that runs the server permission to "
        f"enter the folder above it, {open_path}/group",
        f"{open_path}/loose": "1 of its names cannot be looked at: the folder may be read but not entered; give the "
        "user that runs the server permission to enter the folder",
    }


def test_hidden_admits_dot_folders_of_people_outside_of_skills_alone(tmp_path: Path) -> None:
    plant(
        tmp_path,
        skills(
            ".curated/a",
            ".curated/a/.no/x",
            "b/.claude/c",
            ".git/d",
            ".venv/e",
            "node_modules/f",
            ".mcp-skills/x/h",
            ".mcp-skills-server.staging/i",
        ),
    )
    plant(tmp_path, {".curated/a/.env": "x", ".curated/.agents/g/SKILL.md": skill_md("g")})
    registry = loaded(tmp_path, limits=Limits(hidden=True))
    assert served(registry) == [".curated/.agents/g", ".curated/a", "b/.claude/c"]
    assert list(registry.snapshot.skills[".curated/a"].files) == ["SKILL.md"]
    assert passed_over(registry) == []
    plain = loaded(tmp_path)
    assert served(plain) == []
    assert passed_over(plain) == [PassedOver(str(tmp_path), 3, (".curated", "b/.claude"), True)]


def test_no_dot_folder_of_a_skill_is_entered_however_deep_it_lies(tmp_path: Path) -> None:
    plant(tmp_path, skills("a", "a/ref/.no", "a/ref/deep/.no", "a/ref/deep/er/.no"))
    registry = loaded(tmp_path, limits=Limits(hidden=True))
    assert served(registry) == ["a"] and list(registry.snapshot.skills["a"].files) == ["SKILL.md"]


def test_an_edit_in_a_dot_folder_is_followed_where_it_is_entered(tmp_path: Path) -> None:
    registry = loaded(plant(tmp_path, skills(".curated/a")), limits=Limits(hidden=True))
    plant(tmp_path, skills(".curated/b") | {".curated/a/.no/SKILL.md": skill_md("no"), ".curated/a/ref.md": "x"})
    registry.refresh([str(tmp_path / ".curated/b"), str(tmp_path / ".curated/a/.no/SKILL.md")])
    assert served(registry) == [".curated/a", ".curated/b"]
    assert "ref.md" not in registry.snapshot.skills[".curated/a"].files  # nobody said that it came
    registry.refresh([str(tmp_path / ".curated/a/ref.md")])
    assert "ref.md" in registry.snapshot.skills[".curated/a"].files


def test_a_link_in_a_dot_folder_is_served_as_the_file_beside_it_and_nothing_hidden_is(tmp_path: Path) -> None:
    plant(tmp_path, skills(".curated/a") | {".curated/a/guide.md": "x", ".curated/a/.env": "x", ".curated/.key": "x"})
    for name, target in (("one.md", "guide.md"), ("two.md", ".env"), ("three.md", "../.key")):
        (tmp_path / ".curated/a" / name).symlink_to(target)
    skill = loaded(tmp_path, limits=Limits(hidden=True)).snapshot.skills[".curated/a"]
    assert list(skill.files) == ["SKILL.md", "guide.md", "one.md"]
    assert codes(skill) == ["link-outside", "link-outside"]


def test_the_count_of_what_was_passed_over_looks_at_a_bounded_number_of_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = loaded(plant(tmp_path, skills(*(f".many/s{number}" for number in range(300)))))
    monkeypatch.setattr(passed, "_MOST_NAMES", 100)
    real, opened = tree.open_directory, list[str]()

    def open_directory(root_path: str, path: str) -> Any:
        opened.append(path)
        return real(root_path, path)

    monkeypatch.setattr(tree, "open_directory", open_directory)
    assert passed_over(registry) == [] and len(opened) == 1
    monkeypatch.setattr(passed, "_MOST_NAMES", 400)
    (found,) = passed_over(registry)
    assert str(found).startswith(f"{tmp_path}: at least {found.skills} skills lie in folders whose names begin")
    assert 90 <= found.skills < 300 and len(opened) < 110


def test_many_dot_folders_are_named_in_part() -> None:
    many = PassedOver("r", 9, tuple(f".{letter}" for letter in "abcdefg"), whole=True)
    assert ": .a, .b, .c, .d, .e and 2 more; name one as root" in str(many)
    assert str(PassedOver("r", 1, (".a",), whole=True)).startswith("r: 1 skill lies in a folder whose name begins")
