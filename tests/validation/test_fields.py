"""The rules of the fields that the specification names."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_skills_server.codes import standing
from mcp_skills_server.model import Standing
from mcp_skills_server.validation.rules import check_deeply
from tables import each_row

from .build import SOUND, codes, document, problems


def named(name: Any, directory: str | None = None) -> list[str]:
    """What is wrong with this name, in a directory of the same name."""
    return codes(SOUND | {"name": name}, str(name) if directory is None else directory)


@each_row(
    ("fields", "said"),
    [
        ({}, "there is no description"),
        ({"description": None}, "the description is empty"),
        ({"description": ""}, "the description is empty"),
        ({"description": " "}, "the description is empty"),
        ({"description": 5}, "the description is not text"),
        ({"description": []}, "the description is not text"),
    ],
)
def test_what_is_wrong_with_a_description_is_said(fields: dict[str, Any], said: str):
    (found,) = problems({"name": SOUND["name"], **fields})
    assert (found.code, found.text.partition(";")[0]) == ("description-missing", said)


@pytest.mark.requirement("AS-3", "AS-8", "AS-10", "AS-11", "AS-12", "AS-14")
def test_all_six_fields_may_be_there_and_only_two_must():
    everything = SOUND | {
        "license": "Apache-2.0",
        "compatibility": "Needs git.",
        "metadata": {"version": "1.0", "author": "somebody"},
        "allowed-tools": "Read Bash(git:*)",
    }
    assert problems(everything) == ()


@pytest.mark.requirement("AS-3", "AS-4", "AS-5", "AS-6", "AS-7")
@each_row("name", ["a", "7", "a-b", "a1-b2-c3", "2-fast", "a" * 64, "-".join("a" * 32)])
def test_a_good_name_is_let_through(name: str):
    assert named(name) == []


@pytest.mark.requirement("AS-3")
@each_row("name", ["", None, 7, True, 1.5, ["a"], {"a": "b"}])
def test_a_name_that_is_empty_or_not_text_is_missing(name: Any):
    assert named(name) == ["name-missing"]


@pytest.mark.requirement("AS-3")
def test_a_name_that_is_not_there_is_told_at_the_opening_fence():
    found = problems({"description": SOUND["description"]})
    assert [(each.code, each.line) for each in found] == [("name-missing", 1)]


@pytest.mark.requirement("AS-3")
@each_row(("length", "expected"), [(63, []), (64, []), (65, ["name-length"]), (500, ["name-length"])])
def test_a_name_has_at_most_64_characters(length: int, expected: list[str]):
    assert named("a" * length) == expected


@pytest.mark.requirement("AS-4")
@each_row(
    "name",
    ["A", "pdf_tools", "pdf tools", "pdf.tools", "pdf/tools", "über", "café", "ﬁ", "日本", "a\n", " a", "²", "a\0b"],
)
def test_a_name_uses_only_ascii_lower_case_digits_and_hyphens(name: str):
    assert [code for code in named(name) if code != "hidden-characters"] == ["name-characters"]


@pytest.mark.requirement("AS-4")
def test_a_bad_character_is_named():
    assert "'_'" in problems(SOUND | {"name": "pdf_tools"}, "pdf_tools")[0].message


@pytest.mark.requirement("AS-5")
@each_row("name", ["-a", "a-", "-a-", "-"])
def test_a_name_has_no_hyphen_at_an_end(name: str):
    assert named(name) == ["name-hyphens"]


@pytest.mark.requirement("AS-6")
@each_row("name", ["a--b", "a---b", "a--b--c", "--"])
def test_a_name_has_no_two_hyphens_in_a_row(name: str):
    assert named(name) == ["name-hyphens"]


@pytest.mark.requirement("AS-7")
@each_row("directory", ["", "Sound-Skill", "sound", "sound-skill-2", "skills"])
def test_a_name_is_that_of_the_directory(directory: str):
    found = problems(SOUND, directory)
    assert [(each.code, each.line) for each in found] == [("name-mismatch", 2)]
    assert "'sound-skill'" in found[0].message and repr(directory) in found[0].message


@pytest.mark.requirement("AS-3", "AS-4", "AS-5", "AS-7")
def test_all_that_is_wrong_with_a_name_is_told_at_once():
    assert named("-" + "X" * 70, "x") == ["name-length", "name-characters", "name-hyphens", "name-mismatch"]


@pytest.mark.requirement("AS-8")
@each_row("description", ["", " ", "\n\t ", None, 7, False, ["text"], {"a": "b"}])
def test_a_description_that_is_blank_or_not_text_is_missing(description: Any):
    found = problems(SOUND | {"description": description})
    assert [(each.code, each.line) for each in found] == [("description-missing", 3)]


@pytest.mark.requirement("AS-8")
def test_a_description_that_is_not_there_is_told_at_the_opening_fence():
    assert [(each.code, each.line) for each in problems({"name": "sound-skill"})] == [("description-missing", 1)]


@pytest.mark.requirement("AS-8")
@each_row(("text", "expected"), [
    ("x" * 1024, []), ("x" * 1025, ["description-length"]), ("ü" * 1024, []), ("ü" * 1025, ["description-length"]),
    ("🦀" * 512, []), ("🦀" * 513, ["description-utf16"]), ("🦀" * 1024, ["description-utf16"]),
    ("🦀" * 1025, ["description-length"]), ("x" * 1023 + "\n", []), ("x" * 1024 + "\n", ["description-length"]),
])  # fmt: skip
def test_a_description_has_at_most_1024_characters_and_better_no_more_utf16_units(text: str, expected: list[str]):
    assert codes(SOUND | {"description": text}) == expected


@pytest.mark.requirement("AS-9")
@each_row(("text", "expected"), [("x", True), ("x" * 19, True), ("x" * 20, False), (" x " * 9, False)])
def test_a_description_of_a_word_or_two_says_too_little(text: str, expected: bool):
    assert (codes(SOUND | {"description": text}) == ["description-vague"]) is expected


@pytest.mark.requirement("AS-10")
@each_row("value", ["MIT", "Complete terms in LICENSE.txt", ""])
def test_a_license_is_text(value: str):
    assert codes(SOUND | {"license": value}) == []


@pytest.mark.requirement("AS-10")
@each_row("value", [None, 2, ["MIT"], {"name": "MIT"}])
def test_a_license_that_is_not_text_is_warned_of(value: Any):
    assert codes(SOUND | {"license": value}) == ["license-type"]


@pytest.mark.requirement("AS-11")
@each_row(
    ("value", "good"),
    [("x", True), ("x" * 500, True), ("🦀" * 500, True), ("", False), ("x" * 501, False), (None, False), (3, False)],
)
def test_compatibility_has_1_to_500_characters(value: Any, good: bool):
    assert codes(SOUND | {"compatibility": value}) == ([] if good else ["compatibility-length"])


@pytest.mark.requirement("AS-14")
@each_row(("value", "good"), [
    ("Read", True), ("Read Write", True), ("Bash(git:*) Bash(jq:*) Read", True),
    ("Bash(git log, git show) Read", True), ("", True), ("Read, Write", False), ("Read,Write", False),
    ("Bash(git:*), Read", False), ("Bash(git:*", True), ("Bash(git, jq", False), (["Read"], False),
    ("(" * 100_000, True),
])  # fmt: skip
def test_allowed_tools_is_one_text_without_commas_outside_parentheses(value: Any, good: bool):
    assert codes(SOUND | {"allowed-tools": value}) == ([] if good else ["allowed-tools-form"])


@pytest.mark.requirement("AS-14", "S40-5")
@each_row("value", [None, {"Read": True}, 5, ["Read", 5]])
def test_allowed_tools_of_another_type_keeps_a_skill_off_the_listing(value: Any):
    """FastMCP's client refuses a whole list for such an entry."""
    assert codes(SOUND | {"allowed-tools": value}) == ["allowed-tools-type"]
    assert standing(problems(SOUND | {"allowed-tools": value})) is Standing.LENIENT


@pytest.mark.requirement("AS-20")
@each_row("key", ["version", "title", "tags", "author", "argument-hint", "Name", "LICENSE", ""])
def test_a_field_that_the_specification_lacks_is_warned_of(key: str):
    found = problems(SOUND | {key: "x"})
    assert [(each.code, each.severity, each.line) for each in found] == [("field-unknown", "warning", 4)]


@each_row("value", ["x", {"start": "x"}, None])
def test_hooks_are_warned_of(value: Any):
    assert codes(SOUND | {"hooks": value}) == ["hooks"]


@each_row("key", ["disable-model-invocation", "user-invocable", "argument-hint"])
def test_a_field_that_hosts_read_at_the_top_is_not_sent_away(key: str) -> None:
    """Below `metadata:` it would be switched off, here and in the hosts."""
    (found,) = (each for each in problems(SOUND | {key: "x"}) if each.code == "field-unknown")
    assert found.hint.startswith("leave it there")


@pytest.mark.requirement("S40-51")
@each_row(("tools", "broad"), [
    ("Bash", True), ("Read Bash", True), ("Bash(*)", True), ("Bash(*:*)", True), ("Bash( * : * )", True),
    ("Bash()", True), ("Read, Bash, Write", True), ("Shell", True), ("Terminal Read", True),
    (["Read", "Bash(*)"], True), ("Bash(git:*)", False), ("Bash(git *)", False), ("BashOutput", False),
    ("MyBash", False), ("Read Write", False), (["Bash(git:*)", 7, None], False), ("", False), (None, False),
    ({"Bash": True}, False), ("Bash(" + " " * 100_000 + "x", False),
])  # fmt: skip
def test_tools_that_allow_every_command_are_found(tools: Any, broad: bool):
    found = check_deeply(document(SOUND | {"allowed-tools": tools}), ())
    assert [(each.code, each.line) for each in found] == ([("broad-permission", 4)] if broad else [])


def test_a_skill_without_tools_asks_for_nothing():
    assert check_deeply(document(SOUND), ()) == ()
