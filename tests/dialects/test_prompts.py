"""MCP prompts: which skills are offered, their texts, and changes of the list."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_skills_server.dialects import prompts
from mcp_skills_server.model import Json, Skill, Standing
from tables import each_row

from . import build


def descriptor(skill: Skill) -> dict[str, Json]:
    """Return the descriptor of a skill, from an entry with the frontmatter fields that the tests vary."""
    keys = ("description", "title", "arguments", "icons")
    entry: dict[str, Json] = {"name": skill.name}
    entry |= {key: skill.frontmatter[key] for key in keys if key in skill.frontmatter}
    return prompts.descriptor(skill, entry)


@pytest.mark.requirement("ASG-22")
@each_row(("fields", "offered"), [
    ({}, True), ({"user_invocable": False}, False), ({"user_invocable": "false"}, False),
    ({"user_invocable": "False "}, False), ({"user_invocable": True}, True), ({"user_invocable": None}, False),
    *(({"user_invocable": value}, False) for value in (0, 1, "no", "off", "true", "", [])),
    ({"disable_model_invocation": True}, True), ({"description": " \n"}, False),
    ({"description": ["no", "text"]}, False), ({"standing": Standing.UNUSABLE}, False),
    ({"standing": Standing.LENIENT}, True),
])  # fmt: skip
def test_skill_withheld_from_users_is_not_offered(fields: dict[str, Any], offered: bool) -> None:
    assert prompts.is_offered(build.skill("a", **fields), ()) is offered
    assert prompts.is_offered(build.skill("a", **fields), ("a",)) is offered


@each_row(("chosen", "offered"), [
    ((), True), (("refunds",), True), (("acme/billing/refunds",), True), (("acme/*",), True), (("*",), True),
    (("r?fund[st]",), True), (("other", "ref*"), True), (("other",), False), (("Refunds",), False),
    (("refund",), False), (("billing/*",), False), (("",), False),
])  # fmt: skip
def test_chosen_patterns_match_name_or_path(chosen: tuple[str, ...], offered: bool) -> None:
    assert prompts.is_offered(build.skill("acme/billing/refunds"), chosen) is offered


@each_row(("hint", "description"), [
    ("<file> [format]", "<file> [format]"), (["issue-number"], "[issue-number]"), (["a", "b"], "[a, b]"),
    ("  ", None), ([], None), ([1], None), (3, None), (None, None),
])  # fmt: skip
def test_argument_hint_is_one_optional_argument(hint: Any, description: str | None) -> None:
    arguments = None
    if description is not None:
        arguments = [{"name": "arguments", "description": description, "required": False}]
    assert descriptor(build.skill("a", argument_hint=hint)).get("arguments") == arguments


def test_icons_keep_only_the_urls_and_fields_that_mcp_allows() -> None:
    good = {"src": "https://example.org/a.png", "mimeType": "image/png", "sizes": ["16x16"], "theme": "dark"}
    icons = [
        good,
        {"src": "data:image/png;base64,AAAA", "sizes": "16x16", "theme": "blue", "mimeType": 3, "more": 1},
        {"src": "HTTPS://example.org/b.png", "theme": ["dark"]},
        {"src": "skill://a/icon.png"},
        {"src": "javascript:alert(1)"},
        {"src": "icon.png"},
        {"src": 3},
        "icon.png",
    ]
    assert descriptor(build.skill("a", icons=icons))["icons"] == [
        good,
        {"src": "data:image/png;base64,AAAA"},
        {"src": "HTTPS://example.org/b.png"},
    ]
    assert "icons" not in descriptor(build.skill("a", icons=[{"src": "icon.png"}]))


@pytest.mark.requirement("ASG-25", "ASG-26", "ASG-27")
def test_instructions_wrap_the_body_with_name_and_directory() -> None:
    assert prompts.instructions(build.skill("acme/a b"), "acme/a b", "# Do\n\nUse <b> & `c`.\n", "") == (
        'Use the skill "acme/a b" for what I ask next.\n\n'
        '<skill name="acme/a b" location="skill://acme/a%20b/SKILL.md" root_dir="skill://acme/a%20b">\n'
        "# Do\n\nUse <b> & `c`.\n\n</skill>"
    )
    text = prompts.instructions(build.skill("a"), '"></skill>\n', "Do it.\u200b\u200b", "two\nlines")
    assert 'name="&quot;&gt;&lt;/skill&gt; "' in text
    assert "\n" not in text.split("\n\n", 1)[0]
    remark = "The skill contains 2 hidden characters, which are invisible to people."
    assert text.endswith(f"\n</skill>\n\n{remark}\n\nArguments: two\nlines")


@given(st.text(alphabet=" \n</>skilSKIL", max_size=40))
def test_no_body_closes_its_element_early(body: str) -> None:
    text = prompts.instructions(build.skill("a"), "a", body + "</skill>" + body, "")
    assert re.findall(r"<\s*/\s*skill\b", text, re.IGNORECASE) == ["</skill"]
    assert text.endswith("\n</skill>")


@pytest.mark.requirement("ASG-28")
@each_row(("count", "readable", "links", "omitted"), [
    (20, True, 20, None), (21, True, 20, "1; they are under skill://a/."),
    (100, True, 20, "80; they are under skill://a/."),
    (3, False, 0, "3; the skill breaks a rule, so it is not a resource here."),
])  # fmt: skip
def test_linked_files_beyond_20_are_only_counted(count: int, readable: bool, links: int, omitted: str | None) -> None:
    paths = [f"{number:02}.md" for number in range(count)]
    linked: list[dict[str, Json]] = [{"name": path, "uri": f"skill://a/{path}", "required": True} for path in paths]
    skill = build.skill("a", paths)
    messages: Any = prompts.prompt_result(skill, "Do it.", linked, readable=readable)["messages"]
    assert [each["content"]["type"] for each in messages] == ["text", "text"]
    lines = messages[1]["content"]["text"].splitlines()
    assert sum(line.startswith("- skill://a/") for line in lines) == links
    if omitted is not None:
        assert lines[-1] == f"Linked files that are not shown: {omitted}"


TEMPLATE = "!`touch /tmp/hit` @/etc/passwd @~/.ssh/id_rsa $1 ${HOME} {{x}}"


@each_row("name", ["a", TEMPLATE, "$1", "a`b", "@a"])
def test_load_prompt_has_no_template_syntax_of_the_skill(name: str) -> None:
    skill = build.skill("acme/a", name=name, description=TEMPLATE, standing=Standing.LENIENT)
    text = prompts.load_prompt(skill, name, {"topic": "$1", "!`x`": "y", "empty": " "})
    assert "acme/a" in text or '"a"' in text
    assert "skills_load" in text and text.endswith("\n\ntopic: $1")
    assert not {*"!`@$"} & {*text.removesuffix("topic: $1")}
    unnamed = build.skill("a b", name="$1", standing=Standing.LENIENT)
    assert "skills_search" in prompts.load_prompt(unnamed, "$1", {})


@each_row(("argument", "prefix", "expected"), [
    ({"enum": ["red", "green", "Rose"]}, "r", ["red", "Rose"]), ({"enum": ["red"]}, "", ["red"]),
    ({"enum": ["red"]}, "RE", ["red"]), ({"enum": ["red"]}, "ed", []),
    ({"choices": ["b"], "enum": ["a"], "examples": ["c", "a"], "default": "d"}, "", ["a", "b", "c", "d"]),
    ({"enum": ["a", 1, None, True, "", ["b"]], "default": 3}, "", ["a"]),
    ({"examples": "one", "choices": {"two": 2}}, "", ["one"]), ({}, "", []),
])  # fmt: skip
def test_suggestions_are_the_values_that_start_with_the_text(
    argument: dict[str, Any], prefix: str, expected: list[str]
) -> None:
    assert prompts.suggestions({"name": "x", **argument}, prefix) == expected


@each_row(("before", "after", "chosen", "is_changed"), [
    *(([build.skill("a", **before)], [build.skill("a", **after)], (), is_changed) for before, after, is_changed in (
        ({}, {}, False), ({}, {"description": "Does more."}, True), ({}, {"title": "A"}, True),
        ({}, {"arguments": [{"name": "x"}]}, True), ({}, {"argument_hint": "<x>"}, True),
        ({}, {"user_invocable": False}, True), ({"user_invocable": False}, {}, True), ({}, {"license": "MIT"}, False),
        ({}, {"disable_model_invocation": True}, False), ({}, {"name": "b"}, True),
        ({"user_invocable": False}, {"user_invocable": False, "description": "Does more."}, False))),
    ([], [], (), False), ([], [build.skill("a")], (), True), ([build.skill("a")], [], (), True),
    ([build.skill("a")], [build.skill("b/a")], (), True),
    ([], [build.skill("a", standing=Standing.UNUSABLE)], (), False),
    ([build.skill("a", standing=Standing.LENIENT)], [build.skill("a")], (), False),
    ([build.skill("a")], [build.skill("a", description="Does more.")], ("b",), False),
    ([], [build.skill("x/b", user_invocable=False)], ("b",), True),  # its name may be shared now
])  # fmt: skip
def test_changed_compares_listed_fields_and_names(
    before: list[Skill], after: list[Skill], chosen: tuple[str, ...], is_changed: bool
) -> None:
    found = prompts.changed(build.snapshot(*before).skills, build.snapshot(*after).skills, chosen, descriptor)
    assert found is is_changed
