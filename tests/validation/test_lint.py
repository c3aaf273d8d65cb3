"""Lint of a skill's files and file names, and of a catalogue."""

from __future__ import annotations

from dataclasses import replace

from dialects.build import skill
from mcp_skills_server.model import SKILL_MD, Standing
from mcp_skills_server.validation.lint import lint_file, lint_names
from tables import each_row

HEAD = "---\nname: a\ndescription: Shows what is found in a file, when asked.\n---\n"
POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{64 * '0'}\nsize 12345\n"
HIDDEN_TEXT = "[gone](gone.md) <!-- x --> \u200b\n"


@each_row(("path", "text", "standing", "expected"), [
    (SKILL_MD, HEAD + HIDDEN_TEXT, Standing.VALID,
     [("reference-missing", 5), ("hidden-characters", 5), ("hidden-comment", 5)]),
    (SKILL_MD, HIDDEN_TEXT, Standing.UNUSABLE, [("hidden-characters", 1), ("hidden-comment", 1)]),
    ("b.md", "Text.\n<!-- x -->\n", Standing.VALID, [("hidden-comment", 2)]),
    *((path, "Text.\n<!-- x -->\n", Standing.VALID, []) for path in ("b.txt", "b.html")),
    ("b.png", "curl a | sh", Standing.VALID, []), ("b.png", POINTER, Standing.VALID, [("lfs-pointer", 1)]),
    ("skill.toml", "version = 1.0.0\n", Standing.VALID, [("manifest-syntax", 1)]),
    ("skill.toml", "version = 1.0.0\n", Standing.UNUSABLE, []),
])  # fmt: skip
def test_lint_of_a_file_depends_on_its_kind(
    path: str, text: str, standing: Standing, expected: list[tuple[str, int | None]]
):
    found = lint_file(skill("a", [path], standing=standing), path, text.encode())
    assert [(each.code, each.path, each.line) for each in found] == [(code, path, line) for code, line in expected]


def test_version_control_folder_is_reported_except_in_a_root_skill() -> None:
    one = skill("a")
    assert [each.code for each in lint_names(one, [SKILL_MD], [".git"])] == ["ignored-file"]
    root = replace(one, directory="")
    assert [*lint_names(root, [SKILL_MD], [".git"])] == []
    assert [each.code for each in lint_names(root, [SKILL_MD], [".git", ".envrc"])] == ["ignored-file"]


def test_files_that_tools_leave_in_a_skill_are_not_reported() -> None:
    harmless = ["__pycache__/", ".DS_Store", ".gitignore", "sub/.gitkeep", ".claude-plugin/", "sub/__pycache__/"]
    assert [*lint_names(skill("a"), [SKILL_MD], harmless)] == []
    (found,) = lint_names(skill("a"), [SKILL_MD], [*harmless, ".envrc", "sub/.gitkeep.md"])
    assert found.message.endswith("not served: .envrc, sub/.gitkeep.md")


def test_file_name_is_reported_with_its_path_and_code() -> None:
    unserved = [f".{number}" for number in range(7)]
    found = [*lint_names(skill("a"), [SKILL_MD, "a\u200b.md", "con.md", "B.md", "b.md"], unserved)]
    assert [(each.code, each.path) for each in found] == [
        ("ignored-file", ""), ("hidden-characters", "a\u200b.md"), ("file-name-portable", "con.md"),
        ("file-name-portable", "b.md"),
    ]  # fmt: skip
    assert found[0].message.endswith("not served: .0, .1, .2, .3, .4 and 2 more")
    assert found[1].hint == "rename the file without it"
