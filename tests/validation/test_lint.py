"""What `validate` finds in one skill, given its names and bytes."""

from __future__ import annotations

from dialects.build import skill
from mcp_skills_server.model import SKILL_MD, Standing
from mcp_skills_server.validation.lint import lint_file, lint_names
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
