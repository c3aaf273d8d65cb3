"""What `validate` finds in the names and files of a skill, and among several skills."""

from __future__ import annotations

import pytest

from dialects.build import skill, snapshot
from mcp_skills_server.model import SKILL_MD, Skill, Standing
from mcp_skills_server.validation.lint import CATALOG, NAMES, FileNames, lint_file, lint_names
from tables import each_row

HEAD = "---\nname: a\ndescription: Shows what is found in a file, when asked.\n---\n"


def codes(path: str, text: str, standing: Standing = Standing.VALID) -> list[tuple[str, str, int | None]]:
    """What is found in a file of a skill."""
    one = skill("a", [path], standing=standing)
    return [(each.code, each.path, each.line) for each in lint_file(one, path, text.encode())]


def test_skill_md_is_read_as_a_whole_and_its_comments_in_the_body_alone() -> None:
    text = HEAD + "[gone](gone.md) <!-- x --> \u200b\n"
    assert sorted(codes(SKILL_MD, text)) == [
        ("hidden-characters", SKILL_MD, 5),
        ("hidden-comment", SKILL_MD, 5),
        ("reference-missing", SKILL_MD, 5),
    ]


def test_of_a_skill_md_that_cannot_be_used_only_the_text_is_read() -> None:
    assert codes(SKILL_MD, "[gone](gone.md) <!-- x --> \u200b\n", Standing.UNUSABLE) == [
        ("hidden-characters", SKILL_MD, 1)
    ]


@each_row(("path", "found"), [("b.md", ["hidden-comment"]), ("b.txt", []), ("b.html", [])])
def test_comments_count_in_markdown(path: str, found: list[str]) -> None:
    assert [code for code, *_ in codes(path, "Text.\n<!-- x -->\n")] == found


def test_a_file_that_is_no_text_is_not_looked_into() -> None:
    assert lint_file(skill("a", ["b.png"]), "b.png", b"curl a | sh") == []


def test_a_manifest_is_read_with_the_skill() -> None:
    assert [(code, path) for code, path, _ in codes("skill.toml", "version = 1.0.0\n")] == [
        ("manifest-syntax", "skill.toml")
    ]


def test_the_manifest_of_a_skill_that_cannot_be_read_is_not_judged() -> None:
    assert codes("skill.toml", "version = 1.0.0\n", Standing.UNUSABLE) == []


def test_version_control_beside_a_skill_belongs_to_its_owner_only_where_it_is_the_root() -> None:
    one = skill("a")
    assert [each.code for each in lint_names(one, [SKILL_MD], [".git", ".envrc"])] == ["ignored-file"]
    root = type(one)(one.path, 0, "", one.reading, one.files, (), one.standing)
    assert lint_names(root, [SKILL_MD], [".git"]) == []
    assert [each.code for each in lint_names(root, [SKILL_MD], [".git", ".envrc"])] == ["ignored-file"]


def faults(served: list[str], unserved: list[str]) -> list[tuple[str, str]]:
    """The codes that the rules find, each with the file's path."""
    return [(each.code, each.path) for each in NAMES.check(FileNames(served, unserved), deep=True)]


def test_names_that_every_platform_holds_and_shows_have_no_problem() -> None:
    assert faults(["SKILL.md", "references/a.md"], []) == []


def test_a_name_is_reported_with_its_path_by_the_code_of_its_fault() -> None:
    assert faults(["a\u200b.md", "con.md", "B.md", "b.md"], []) == [
        ("hidden-characters", "a\u200b.md"),
        ("file-name-portable", "con.md"),
        ("file-name-portable", "b.md"),
    ]


def test_a_hidden_character_in_a_name_is_not_deleted_but_the_file_renamed() -> None:
    (problem,) = NAMES.check(FileNames(["a\u200b.md"], []), deep=True)
    assert problem.hint == "rename the file without it"


def test_what_is_not_served_is_named_once_for_the_whole_skill() -> None:
    (problem,) = NAMES.check(FileNames([], [f".{number}" for number in range(7)]), deep=True)
    assert (problem.code, problem.path) == ("ignored-file", "")
    assert problem.message.endswith("not served: .0, .1, .2, .3, .4 and 2 more")


def shared(*skills: Skill) -> list[tuple[str, str, str]]:
    return [(each.code, each.skill, each.path) for each in CATALOG.check(snapshot(*skills), deep=True)]


@pytest.mark.requirement("S40-37")
def test_skills_that_share_a_name_are_told_each() -> None:
    assert shared(skill("a/x"), skill("b/x"), skill("b/y")) == [("name-shared", "a/x", ""), ("name-shared", "b/x", "")]


def test_a_skill_that_is_not_listed_shares_no_name() -> None:
    assert shared(skill("a/x"), skill("b/x", standing=Standing.LENIENT)) == []


def test_of_very_many_that_share_a_name_a_few_are_named() -> None:
    first, *_ = CATALOG.check(snapshot(*(skill(f"{number}/x") for number in range(9))), deep=True)
    assert first.message == "the name x is also that of 1/x, 2/x, 3/x, 4/x, 5/x and 3 more"


@pytest.mark.requirement("S76-9", "S76-11")
def test_a_file_of_a_skill_that_is_depended_on_must_be_served() -> None:
    needs = skill("a", dependencies={"tools": ["t"], "resources": ["skill://b/SKILL.md", "skill://b/gone.md", "x://y"]})
    assert shared(needs, skill("b")) == [("dependency-unresolved", "a", SKILL_MD)]
