"""The rules of a SKILL.md: what a rule needs, and what each finds in fields, values and the body."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from format.broken import BROKEN
from mcp_skills_server.codes import CODES, Code, standing
from mcp_skills_server.format.frontmatter import Document, parse
from mcp_skills_server.model import Standing
from mcp_skills_server.validation import lint, rules, text
from mcp_skills_server.validation.rule import Finding, Rules, SkillMd
from mcp_skills_server.validation.rules import EXTENSION_FIELDS, SPECIFIED_FIELDS, check, check_deeply
from tables import each_row

from .build import SOUND, codes, deep, document, problems


def test_a_sound_skill_has_no_problem():
    assert problems(SOUND) == ()
    assert check_deeply(document(SOUND), ()) == ()


def test_what_could_not_be_read_is_not_judged_twice():
    broken = parse(b"---\nname: [\n---\n")
    assert check(broken, "a") == ()
    assert check_deeply(broken, ()) == ()


@pytest.mark.requirement("X-2", "S40-5", "ASG-14", "ASG-15")
@each_row(
    ("fields", "directory", "expected"),
    [
        (SOUND, "sound-skill", Standing.VALID),
        (SOUND | {"author": "x", "allowed-tools": ["Read"], "hooks": {}}, "sound-skill", Standing.VALID),
        (SOUND | {"metadata": {"a": 1}}, "sound-skill", Standing.LENIENT),
        (SOUND | {"compatibility": ""}, "sound-skill", Standing.LENIENT),
        (SOUND | {"license": 5}, "sound-skill", Standing.LENIENT),
        (SOUND, "other", Standing.LENIENT),
        (SOUND | {"name": "a" * 65}, "a" * 65, Standing.LENIENT),
        (SOUND | {"name": "Sound"}, "Sound", Standing.LENIENT),
        (SOUND | {"description": ""}, "sound-skill", Standing.LENIENT),
        (SOUND | {"description": "x" * 1025}, "sound-skill", Standing.LENIENT),
        ({"license": "MIT"}, "sound-skill", Standing.LENIENT),
    ],
)
def test_only_what_keeps_the_specification_stands_as_valid(fields: dict[str, Any], directory: str, expected: Standing):
    assert standing(problems(fields, directory)) is expected


@pytest.mark.requirement("ASG-18")
def test_everything_wrong_in_one_file_is_told_at_once():
    fields = {
        "name": "Not_This",
        "description": "x" * 1025,
        "license": 1,
        "compatibility": "",
        "metadata": {"a": 1},
        "allowed-tools": "A, B",
        "author": "x",
        "arguments": "y",
    }
    assert [(each.code, each.line) for each in problems(fields, "this", "")] == [
        ("name-characters", 2),
        ("name-mismatch", 2),
        ("description-length", 3),
        ("license-type", 4),
        ("compatibility-length", 5),
        ("allowed-tools-form", 7),
        ("metadata-type", 6),
        ("field-unknown", 8),
        ("field-type", 9),
        ("body-empty", 11),
    ]


_KEYS = st.sampled_from([*sorted(SPECIFIED_FIELDS | EXTENSION_FIELDS), "title", "version", "tags", "hooks", "x"])
_ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["name", "src", "path", "uri", "tools", "prompts", "resources", "a"]), inner)
    ),
    max_leaves=8,
)


@given(st.dictionaries(_KEYS, _ANY), st.text(max_size=20), st.text(max_size=40))
def test_no_frontmatter_is_too_odd_to_be_judged(fields: dict[str, Any], directory: str, body: str):
    found = Document(fields, {}, body, 2, ())
    for each in (*check(found, directory), *check_deeply(found, [])):
        assert CODES[each.code].severity == each.severity
        assert each.line is not None
        assert "\n" not in each.message


RULES = [row for table in (rules.RULES, text.RULES, lint.NAMES, lint.CATALOG) for row in table.rules]
FOUND_ON_READING = {
    # Notes that take all files of a skill, or all skills.
    *("file-unused", "description-overlap"),
    # The parsers, which stay with what they parse.
    *("not-utf8", "nul-byte", "frontmatter-missing", "frontmatter-unclosed", "frontmatter-not-mapping", "yaml-syntax"),
    *("yaml-colon", "yaml-duplicate-key", "yaml-tag", "yaml-alias", "yaml-depth", "yaml-size", "yaml-value"),
    *("yaml-ambiguous", "yaml-key"),
    *("manifest-syntax", "manifest-field", "manifest-form", "manifest-incomplete", "manifest-runtime"),
    "manifest-disagrees",
    # The scan, which sees the disk.
    *(
        "skill-md-irregular",
        "skill-md-case",
        "skill-md-too-large",
        "unreadable",
        "root-missing",
        "shadowed",
        "too-deep",
    ),
    *("too-many-files", "too-many-bytes", "link-outside", "file-name", "file-name-backslash", "file-irregular"),
    *("hard-link", "too-deep"),
    # Sources and gates, which know what was fetched and what the operator asked for.
    *("source-refused", "commit-unsigned", "switched-off", "plugin-elsewhere"),
    *("lock-missing", "lock-differs", "signature-missing", "signature-invalid", "signature-files", "signature-expired"),
}
"""The codes without a rule: whoever reads the bytes finds them, and nobody could look for them afterwards."""


def test_every_code_has_a_row_and_a_function_and_a_bundle() -> None:
    ruled = {each.code for each in RULES}
    assert ruled | FOUND_ON_READING == set(CODES) == {path.name for path in BROKEN.iterdir()}
    assert not ruled & FOUND_ON_READING


def test_no_function_stands_in_the_table_twice() -> None:
    assert len({each.check for each in RULES}) == len(RULES)


def test_a_rule_is_its_row_and_its_function_and_what_shows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = Rules[SkillMd]()
    tiny.rules = [*rules.RULES.rules]
    with pytest.raises(KeyError, match="'shouting' has no row"):
        tiny.rule("shouting")
    monkeypatch.setitem(CODES, "shouting", Code("warning", Standing.VALID, "", "write it in small letters"))

    @tiny.rule("shouting")
    def _shouting(skill: SkillMd) -> Iterator[Finding]:  # pyright: ignore[reportUnusedFunction]
        if skill.document.body.isupper():
            yield Finding("the body is all capitals", skill.document.body_line)

    monkeypatch.setattr(rules, "RULES", tiny)
    (found,) = problems(SOUND, body="READ ON.\n")
    assert str(found.at("a/SKILL.md", "a")) == (
        "a/SKILL.md:5: warning: the body is all capitals; write it in small letters [shouting]"
    )
    assert problems(SOUND) == ()
    assert check_deeply(document(SOUND, "READ ON.\n"), ()) == ()


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


@pytest.mark.requirement("AS-12")
@each_row("value", [{}, {"a": "b"}, {"a": "", "b c": "d"}])
def test_metadata_maps_text_to_text(value: Any):
    assert codes(SOUND | {"metadata": value}) == []


@pytest.mark.requirement("AS-12")
@each_row("value", [None, "a", ["a"], 3, {"a": 1}, {"a": None}, {"a": True}, {"a": ["b"]}, {"a": {}}])
def test_metadata_of_another_shape_is_an_error(value: Any):
    found = problems(SOUND | {"metadata": value})
    assert [(each.code, each.severity, each.line) for each in found] == [("metadata-type", "error", 4)]


@pytest.mark.requirement("AS-12", "ASG-18")
@each_row(
    ("written", "said", "hint"),
    [
        ("version: 1.10", "a number", 'write version: "1.10"'),
        ("version: 2", "a number", 'write version: "2"'),
        ("internal: true", "true or false", 'write internal: "true"'),
        ("tags: [a, b, 3]", "a list", 'write tags: "a, b, 3"'),
        ("empty:", "no value", 'write empty: ""'),
        ("empty: ~", "no value", 'write empty: ""'),
        ("host: {emoji: x, bins: [y]}", "a mapping", """write host: '{"emoji":"x","bins":["y"]}'"""),
        ('"on": 1', "a number", 'write "on": "1"'),
        ("quote: [it's, '\"']", "a list", 'write quote: "it\'s, \\""'),
        ("long: [" + "a, " * 100 + "b]", "a list", "write 'long' as one text in quotes"),
        ('"a\\n\\e": 1', "a number", 'write "a\\n\\u001b": "1"'),
    ],
)
def test_a_value_of_metadata_that_is_no_text_is_told_with_its_line_and_the_line_to_write(
    written: str, said: str, hint: str
):
    raw = f"---\nname: a\ndescription: {'d' * 30}\nmetadata:\n  good: x\n  {written}\n---\nText\n".encode()
    (found,) = (each for each in check(parse(raw), "a") if each.code != "hidden-characters")
    assert (found.code, found.line, found.hint) == ("metadata-type", 6, hint)
    assert f"metadata has {said} where text belongs" in found.message
    if not hint.endswith("as one text in quotes"):
        fixed = raw.decode().replace(written, hint.removeprefix("write "))
        assert [each for each in check(parse(fixed.encode()), "a") if each.code != "hidden-characters"] == []


@pytest.mark.requirement("AS-12")
def test_of_very_many_wrong_values_the_rest_is_counted():
    found = problems(SOUND | {"metadata": {f"k{number}": number for number in range(100)}})
    assert len(found) == 11 and "90 more values" in found[-1].message


@pytest.mark.requirement("AS-13")
@each_row(
    ("keys", "expected"), [(["a", "b"], 0), (["a", "A"], 1), (["a", "A", "b", "B"], 2), (["straße", "STRASSE"], 1)]
)
def test_metadata_keys_that_differ_by_case_alone_are_warned_of(keys: list[str], expected: int):
    assert codes(SOUND | {"metadata": dict.fromkeys(keys, "x")}) == ["metadata-keys"] * expected


@pytest.mark.requirement("S76-4", "S76-19")
def test_well_formed_fields_of_sep_2076_pass():
    fields = SOUND | {
        "arguments": [
            {"name": "topic", "title": "T", "description": "D", "required": True},
            {"name": "b", "default": ""},
        ],
        "dependencies": {
            "tools": ["search"],
            "prompts": ["summary", {"type": "ref/prompt", "name": "other"}],
            "resources": ["file:///a", {"type": "ref/resource", "uri": "skill://x/SKILL.md"}],
        },
        "icons": [{"src": "assets/icon.png", "mimeType": "image/png"}],
        "files": [{"path": "a.md", "title": "A", "description": "D", "required": False}],
    }
    assert problems(fields) == ()


@pytest.mark.requirement("S76-4")
@each_row(
    ("key", "value"),
    [
        ("arguments", "topic"),
        ("arguments", {"topic": {}}),
        ("arguments", ["topic"]),
        ("arguments", [{}]),
        ("arguments", [{"name": ""}]),
        ("arguments", [{"name": 7}]),
        ("arguments", [{"name": "a"}, {"name": "a"}]),
        ("arguments", [{"name": "a", "required": "yes"}]),
        ("arguments", [{"name": "a", "default": 3}]),
        ("arguments", [{"name": "a", "title": None}]),
        ("icons", "icon.png"),
        ("icons", [{"mimeType": "image/png"}]),
        ("icons", [{"src": "a.png", "mimeType": 1}]),
        ("files", [{"title": "no path"}]),
        ("files", [{"path": "a", "required": 1}]),
        ("dependencies", ["search"]),
        ("dependencies", {"tools": "search"}),
        ("dependencies", {"tools": [{"name": "search"}]}),
        ("dependencies", {"prompts": [{"uri": "x"}]}),
        ("dependencies", {"resources": [{"name": "x"}]}),
        ("dependencies", {"resources": [3]}),
    ],
)
def test_fields_of_sep_2076_of_another_shape_are_warned_of(key: str, value: Any):
    found = problems(SOUND | {key: value})
    assert [(each.code, each.line) for each in found] == [("field-type", 4)]


@pytest.mark.requirement("S76-19")
@each_row(
    ("written", "as_text"),
    [
        ("title: T", 'title: "T"'),
        ("title: 1", 'title: "1"'),
        ("version: 1.0", 'version: "1.0"'),
        ("version: 1.10", 'version: "1.10"'),
        ("version: '2'", 'version: "2"'),
        ("tags: [a, b]", 'tags: "a, b"'),
        ("author: {name: n}", """author: '{"name":"n"}'"""),
        ("internal: true", 'internal: "true"'),
    ],
)
def test_a_field_that_belongs_below_metadata_has_one_warning_that_says_what_to_write(written: str, as_text: str):
    head = f"---\nname: a\ndescription: Tells how this is done and when to use it.\n{written}\n---\nDo it.\n"
    (found,) = check(parse(head.encode()), "a")
    assert (found.code, found.line) == ("field-unknown", 4)
    assert found.hint == f"write {as_text} below 'metadata:', since strict validators refuse it here"


@each_row(
    ("lines", "field"),
    [
        ('description: "Does it. \\U000E0049\\U000E0067"', "description"),
        ('metadata:\n  deep: [{note: "a\\u200Bb"}]', "metadata"),
        ('metadata:\n  "a\\u00ADb": text', "metadata"),
        ('"no\\u3164te": text', "'note'"),
        ('license: "\\x1B[2J"', "license"),
    ],
)
def test_what_an_escape_hides_is_found_at_the_scan(lines: str, field: str):
    """The bytes of the file show nothing of it; the values that a model is shown do (11.19)."""
    described = "" if "description" in lines else "description: Does something with tables.\n"
    found = check(parse(f"---\nname: a\n{described}{lines}\n---\nText\n".encode()), "a")
    (hidden,) = (each for each in found if each.code == "hidden-characters")
    assert hidden.line == (3 if not described else 4)
    assert field in hidden.message and "U+" in hidden.message and hidden.message.isprintable()
    assert ("(2 in this field)" in hidden.message) is (lines.count("\\U") == 2)
    assert hidden.message.endswith("(2 in this field)") or "in this field" not in hidden.message


@pytest.mark.requirement("S76-4")
@pytest.mark.parametrize(("source", "fine"), [("assets/icon.png", True), ("javascript:alert(1)", False)])
def test_an_icon_from_where_no_page_may_take_it_is_reported_with_its_line(source: str, fine: bool):
    found = problems(SOUND | {"icons": [{"src": "a.png"}, {"src": source}]})
    expected = [] if fine else [("icon-source", 4, f"icon 2 comes from {source!r}")]
    assert [(each.code, each.line, each.message) for each in found] == expected


@pytest.mark.requirement("AS-2")
@each_row("body", ["", "\n\n", "  \n"])
def test_a_skill_without_instructions_is_warned_of(body: str):
    assert codes(SOUND, body=body) == ["body-empty"]


@pytest.mark.requirement("AS-16")
@each_row(("body", "long"), [
    ("x\n" * 500, False), ("x\n" * 501, True), ("x" * 20_000, False), ("x" * 20_001, True),
    ("\n" * 600 + "x", False),
])  # fmt: skip
def test_a_body_of_more_than_500_lines_or_5000_tokens_is_long(body: str, long: bool):
    assert codes(SOUND, body=body) == (["body-long"] if long else [])


@pytest.mark.requirement("AS-17")
def test_references_one_level_deep_are_fine():
    body = "[a](a.md), ![b](assets/b.png), [c](./references/c.md#part), `scripts/d.py`, [dir](references/)\n"
    assert deep(body, "a.md", "assets/b.png", "references/c.md", "scripts/d.py") == []


@pytest.mark.requirement("AS-17")
def test_a_reference_to_what_is_not_there_is_told_once_with_its_line():
    body = "# Title\n\nSee [this](references/gone.md).\n\nAgain [this](references/gone.md), and ![that](gone.png).\n"
    assert deep(body) == [("reference-missing", 7), ("reference-missing", 9)]


@pytest.mark.requirement("AS-17")
def test_the_line_of_a_reference_counts_from_the_top_of_the_file():
    raw = b"---\nname: a\ndescription: b, when asked\n\n---\n\n\nFirst.\n\n[gone](gone.md)\n"
    (found,) = check_deeply(parse(raw), ())
    assert found.line is not None
    assert raw.split(b"\n")[found.line - 1] == b"[gone](gone.md)"


@pytest.mark.requirement("AS-17")
def test_a_reference_two_levels_deep_is_advised_against():
    assert deep("`a/b/c.md` and [c](a/b/c.md)\n", "a/b/c.md") == [("reference-deep", 5)]


@pytest.mark.requirement("AS-17")
@each_row("body", [
    "`npm run build`", "[web](https://example.org/a.md)", "[mail](mailto:a@b.c)", "[part](#part)",
])  # fmt: skip
def test_what_does_not_point_into_the_skill_is_no_missing_reference(body: str):
    assert deep(body) == []


@each_row("target", ["../other/a.md", "%2e%2e/b/a.md", "references/../../a.md"])
def test_a_reference_that_leaves_the_skill_is_said(target: str):
    assert deep(f"[up]({target})") == [("reference-outside", 5)]


def test_a_target_is_shown_on_one_line():
    (found,) = check_deeply(document(SOUND, "[x](a%0Ab%1B%5B31m)"), ())
    assert found.message == "the body refers to 'a\\nb\\x1b[31m', which is not in the skill"
