"""The rules of the names of a skill's files."""

from __future__ import annotations

from mcp_skills_server.validation.lint import NAMES as RULES
from mcp_skills_server.validation.lint import FileNames


def found(served: list[str], unserved: list[str]) -> list[tuple[str, str]]:
    """The codes that the rules find, each with the file's path."""
    return [(each.code, each.path) for each in RULES.check(FileNames(served, unserved), deep=True)]


def test_names_that_every_platform_holds_and_shows_have_no_problem() -> None:
    assert found(["SKILL.md", "references/a.md"], []) == []


def test_a_name_is_reported_with_its_path_by_the_code_of_its_fault() -> None:
    assert found(["a\u200b.md", "con.md", "B.md", "b.md"], []) == [
        ("hidden-characters", "a\u200b.md"),
        ("file-name-portable", "con.md"),
        ("file-name-portable", "b.md"),
    ]


def test_a_hidden_character_in_a_name_is_not_deleted_but_the_file_renamed() -> None:
    (problem,) = RULES.check(FileNames(["a\u200b.md"], []), deep=True)
    assert problem.hint == "rename the file without it"


def test_what_is_not_served_is_named_once_for_the_whole_skill() -> None:
    (problem,) = RULES.check(FileNames([], [f".{number}" for number in range(7)]), deep=True)
    assert (problem.code, problem.path) == ("ignored-file", "")
    assert problem.message.endswith("not served: .0, .1, .2, .3, .4 and 2 more")
