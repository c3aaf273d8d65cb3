"""What `validate` finds in the names and files of a skill, and among several skills."""

from __future__ import annotations

import pytest

from dialects.build import skill, snapshot
from mcp_skills_server.model import SKILL_MD, Skill, Standing
from mcp_skills_server.validation.lint import CATALOG, NAMES, FileNames, lint_file, lint_names
from tables import each_row

HEAD = "---\nname: a\ndescription: Shows what is found in a file, when asked.\n---\n"


POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{64 * '0'}\nsize 12345\n"
HIDING = "[gone](gone.md) <!-- x --> \u200b\n"


@each_row(("path", "text", "standing", "expected"), [
    (SKILL_MD, HEAD + HIDING, Standing.VALID,
     [("reference-missing", 5), ("hidden-characters", 5), ("hidden-comment", 5)]),
    (SKILL_MD, HIDING, Standing.UNUSABLE, [("hidden-characters", 1)]),
    ("b.md", "Text.\n<!-- x -->\n", Standing.VALID, [("hidden-comment", 2)]),
    *((path, "Text.\n<!-- x -->\n", Standing.VALID, []) for path in ("b.txt", "b.html")),
    ("b.png", "curl a | sh", Standing.VALID, []), ("b.png", POINTER, Standing.VALID, [("lfs-pointer", 1)]),
    ("skill.toml", "version = 1.0.0\n", Standing.VALID, [("manifest-syntax", 1)]),
    ("skill.toml", "version = 1.0.0\n", Standing.UNUSABLE, []),
])  # fmt: skip
def test_a_file_is_read_by_its_kind(path: str, text: str, standing: Standing, expected: list[tuple[str, int | None]]):
    found = lint_file(skill("a", [path], standing=standing), path, text.encode())
    assert [(each.code, each.path, each.line) for each in found] == [(code, path, line) for code, line in expected]


def test_version_control_beside_a_skill_belongs_to_its_owner_only_where_it_is_the_root() -> None:
    one = skill("a")
    assert [each.code for each in lint_names(one, [SKILL_MD], [".git", ".envrc"])] == ["ignored-file"]
    root = type(one)(one.path, 0, "", one.reading, one.files, (), one.standing)
    assert lint_names(root, [SKILL_MD], [".git"]) == []
    assert [each.code for each in lint_names(root, [SKILL_MD], [".git", ".envrc"])] == ["ignored-file"]


def test_a_name_is_reported_with_its_path_by_the_code_of_its_fault() -> None:
    unserved = [f".{number}" for number in range(7)]
    found = NAMES.check(FileNames(["SKILL.md", "a\u200b.md", "con.md", "B.md", "b.md"], unserved), deep=True)
    assert [(each.code, each.path) for each in found] == [
        ("ignored-file", ""), ("hidden-characters", "a\u200b.md"), ("file-name-portable", "con.md"),
        ("file-name-portable", "b.md"),
    ]  # fmt: skip
    assert found[0].message.endswith("not served: .0, .1, .2, .3, .4 and 2 more")
    assert found[1].hint == "rename the file without it"


def shared(*skills: Skill) -> list[tuple[str, str, str]]:
    return [(each.code, each.skill, each.path) for each in CATALOG.check(snapshot(*skills), deep=True)]


@pytest.mark.requirement("S40-37")
def test_listed_skills_that_share_a_name_are_told_each_with_a_few_of_the_others() -> None:
    hidden = skill("c/y", standing=Standing.LENIENT)
    found = shared(skill("a/x"), skill("b/x"), skill("b/y"), hidden)
    assert found == [("name-shared", "a/x", ""), ("name-shared", "b/x", "")]
    first, *_ = CATALOG.check(snapshot(*(skill(f"{number}/x") for number in range(9))), deep=True)
    assert first.message == "the name x is also that of 1/x, 2/x, 3/x, 4/x, 5/x and 3 more"


@pytest.mark.requirement("S76-9", "S76-11")
def test_a_file_of_a_skill_that_is_depended_on_must_be_served() -> None:
    needs = skill("a", dependencies={"tools": ["t"], "resources": ["skill://b/SKILL.md", "skill://b/gone.md", "x://y"]})
    assert shared(needs, skill("b")) == [("dependency-unresolved", "a", SKILL_MD)]
