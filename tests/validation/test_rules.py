"""The rules of a SKILL.md: what a rule needs, and what each finds in fields, values and the body."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dialects.build import JSON
from format.broken import BROKEN
from mcp_skills_server.codes import CODES, Code, standing
from mcp_skills_server.format.frontmatter import Document, parse
from mcp_skills_server.model import Problem, Standing
from mcp_skills_server.validation import lint, rules, text
from mcp_skills_server.validation.explanations import markdown
from mcp_skills_server.validation.rule import Finding, Rules, SkillMd
from mcp_skills_server.validation.rules import EXTENSION_FIELDS, SPECIFIED_FIELDS, check, check_deeply
from mcp_skills_server.validation.template import DESCRIPTION
from tables import each_row

SOUND: dict[str, Any] = {
    "name": "sound-skill",
    "description": "Shows a skill that keeps every rule there is. Use it in tests.",
}


def document(fields: dict[str, Any], body: str = "Read on.\n") -> Document:
    """A SKILL.md with these fields, one to a line."""
    lines = "".join(f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}\n" for key, value in fields.items())
    return parse(f"---\n{lines}---\n{body}".encode())


def problems(fields: dict[str, Any], directory: str = "sound-skill", body: str = "Read on.\n") -> tuple[Problem, ...]:
    return check(document(fields, body), directory)


def test_what_could_not_be_read_is_not_judged_twice():
    broken = parse(b"---\nname: [\n---\n")
    assert check(broken, "a") == check_deeply(broken, ()) == ()


@pytest.mark.requirement("X-2", "S40-5", "ASG-14", "ASG-15")
@each_row(("fields", "directory", "expected"), [
    (SOUND, "sound-skill", Standing.VALID), (SOUND, "other", Standing.LENIENT),
    (SOUND | {"author": "x", "allowed-tools": ["Read"], "hooks": {}}, "sound-skill", Standing.VALID),
    *((SOUND | odd, "sound-skill", Standing.LENIENT) for odd in (
        {"metadata": {"a": 1}}, {"compatibility": ""}, {"license": 5}, {"description": ""},
        {"description": "x" * 1025}, {"allowed-tools": 5})),  # FastMCP's client refuses a whole list for the last
    (SOUND | {"name": "a" * 65}, "a" * 65, Standing.LENIENT), (SOUND | {"name": "Sound"}, "Sound", Standing.LENIENT),
    ({"license": "MIT"}, "sound-skill", Standing.LENIENT),
])  # fmt: skip
def test_only_what_keeps_the_specification_stands_as_valid(fields: dict[str, Any], directory: str, expected: Standing):
    assert standing(problems(fields, directory)) is expected


@pytest.mark.requirement("ASG-18")
def test_everything_wrong_in_one_file_is_told_at_once():
    fields = {
        "name": "Not_This", "description": "x" * 1025, "license": 1, "compatibility": "", "metadata": {"a": 1},
        "allowed-tools": "A, B", "author": "x", "arguments": "y",
    }  # fmt: skip
    assert [(each.code, each.line) for each in problems(fields, "this", "")] == [
        ("name-characters", 2), ("name-mismatch", 2), ("description-length", 3), ("license-type", 4),
        ("compatibility-length", 5), ("allowed-tools-form", 7), ("metadata-type", 6), ("field-unknown", 8),
        ("field-type", 9), ("body-empty", 11),
    ]  # fmt: skip


_KEYS = st.sampled_from([*sorted(SPECIFIED_FIELDS | EXTENSION_FIELDS), "title", "version", "tags", "hooks", "x"])
_PARTS = st.sampled_from(["name", "src", "path", "uri", "tools", "prompts", "resources", "a"])
_ANY = JSON | st.lists(st.dictionaries(_PARTS, JSON), max_size=3) | st.dictionaries(_PARTS, JSON)


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
    "file-unused", "description-overlap",
    # The parsers, which stay with what they parse.
    "not-utf8", "nul-byte", "frontmatter-missing", "frontmatter-unclosed", "frontmatter-not-mapping", "yaml-syntax",
    "yaml-colon", "yaml-duplicate-key", "yaml-tag", "yaml-alias", "yaml-depth", "yaml-size", "yaml-value",
    "yaml-ambiguous", "yaml-key", "manifest-syntax", "manifest-field", "manifest-form", "manifest-incomplete",
    "manifest-runtime", "manifest-disagrees",
    # The scan, which sees the disk.
    "skill-md-irregular", "skill-md-case", "skill-md-too-large", "unreadable", "root-missing", "shadowed", "too-deep",
    "too-many-files", "too-many-bytes", "link-outside", "file-name", "file-name-backslash", "file-irregular",
    "hard-link",
    # Sources and gates, which know what was fetched and what the operator asked for.
    "source-refused", "commit-unsigned", "switched-off", "plugin-elsewhere", "lock-missing", "lock-differs",
    "signature-missing", "signature-invalid", "signature-files", "signature-expired",
}  # fmt: skip
"""The codes without a rule: whoever reads the bytes finds them, and nobody could look for them afterwards."""


def test_every_code_has_a_row_and_a_function_and_a_bundle() -> None:
    ruled = {each.code for each in RULES}
    assert ruled | FOUND_ON_READING == set(CODES) == {path.name for path in BROKEN.iterdir()}
    assert not ruled & FOUND_ON_READING and len({each.check for each in RULES}) == len(RULES)


def test_a_code_is_explained_with_its_example_and_its_requirement() -> None:
    assert markdown("persistence") == (
        "## persistence\n\nA change of what starts automatically. It stays after the skill is removed.\n\n"
        "    echo ... >> ~/.bashrc\n\nFix: Do not let the skill change what starts automatically. "
        "Severity: warning. The skill is served all the same.\n"
    )
    assert "so the skill is not served.\n\nFix: Give" in markdown("unreadable")
    assert markdown("unreadable").endswith("The skill is not served. Rule AS-1 of docs/requirements.md.\n")


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


SOUND_FIELDS = {
    "license": "Apache-2.0", "compatibility": "Needs git.", "metadata": {"version": "1.0", "author": "somebody"},
    "allowed-tools": "Read Bash(git:*)",
    "arguments": [{"name": "topic", "title": "T", "description": "D", "required": True}, {"name": "b", "default": ""}],
    "dependencies": {
        "tools": ["search"], "prompts": ["summary", {"type": "ref/prompt", "name": "other"}],
        "resources": ["file:///a", {"type": "ref/resource", "uri": "skill://x/SKILL.md"}],
    },
    "icons": [{"src": "assets/icon.png", "mimeType": "image/png"}],
    "files": [{"path": "a.md", "title": "A", "description": "D", "required": False}],
}  # fmt: skip


@pytest.mark.requirement("AS-3", "AS-8", "AS-10", "AS-11", "AS-12", "AS-14", "S76-4", "S76-19")
def test_two_fields_must_be_there_and_others_may():
    for fields in (SOUND, SOUND | SOUND_FIELDS):
        assert problems(fields) == check_deeply(document(fields), ()) == ()
    found = [(each.code, each.line) for each in problems({"license": "MIT"})]
    assert found == [("name-missing", 1), ("description-missing", 1)]  # at the opening fence


@pytest.mark.requirement("AS-3", "AS-4", "AS-5", "AS-6", "AS-7")
@each_row(("name", "expected"), [
    *((name, []) for name in ("a", "7", "a-b", "a1-b2-c3", "2-fast", "a" * 63, "a" * 64, "-".join("a" * 32))),
    *((name, ["name-missing"]) for name in ("", None, 7, True, 1.5, ["a"], {"a": "b"})),
    ("a" * 65, ["name-length"]), ("a" * 500, ["name-length"]),
    *((name, ["name-characters"]) for name in (
        "A", "pdf_tools", "pdf tools", "pdf.tools", "pdf/tools", "über", "café", "ﬁ", "日本", "a\n", " a", "²")),
    *((name, ["name-hyphens"]) for name in ("-a", "a-", "-a-", "-", "a--b", "a---b", "a--b--c", "--")),
    ("-" + "X" * 70, ["name-length", "name-characters", "name-hyphens"]),
])  # fmt: skip
def test_a_name_has_64_small_letters_digits_and_single_hyphens_at_most(name: Any, expected: list[str]):
    found = problems(SOUND | {"name": name}, str(name))
    assert [(each.code, each.line) for each in found] == [(code, 2) for code in expected]


@pytest.mark.requirement("AS-7")
@each_row("directory", ["", "Sound-Skill", "sound", "sound-skill-2", "skills"])
def test_a_name_is_that_of_the_directory(directory: str):
    (found,) = problems(SOUND, directory)
    assert (found.code, found.line) == ("name-mismatch", 2)
    assert found.message == f"the name is 'sound-skill' but the directory is {directory!r}"


@pytest.mark.requirement("AS-8", "AS-9", "AS-10", "AS-11", "AS-12", "AS-13", "AS-14", "AS-20", "S76-4")
@each_row(("key", "values", "code"), [
    ("description", ["", " ", "\n\t ", None, 7, False, ["text"], {"a": "b"}], "description-missing"),
    ("description", ["x" * 1025, "ü" * 1025, "🦀" * 1025, "x" * 1024 + "\n"], "description-length"),
    ("description", ["🦀" * 513, "🦀" * 1024], "description-utf16"),
    ("description", ["x" * 1024, "ü" * 1024, "🦀" * 512, "x" * 1023 + "\n", "x" * 20,
        "TODO comments of a code base, counted and sorted.", "Finds every [TODO] in a code base."], None),
    ("description", ["[TODO: say what it does]", "TODO: say what it does and when", "TODO",
        DESCRIPTION.replace(" ", "\n", 3)], "placeholder"),
    ("description", ["x", "x" * 19, "🦀" * 19, f" {'x' * 19} "], "description-vague"),
    ("license", ["MIT", "Complete terms in LICENSE.txt", ""], None),
    ("license", [None, 2, ["MIT"], {"name": "MIT"}], "license-type"),
    ("compatibility", ["x", "x" * 500, "🦀" * 500], None),
    ("compatibility", ["", "x" * 501, None, 3], "compatibility-length"),
    ("allowed-tools", ["Read", "Read Write", "Bash(git:*) Bash(jq:*) Read", "Bash(git log, git show) Read", "",
        "Bash(git:*", "(" * 100_000], None),
    ("allowed-tools", ["Read, Write", "Read,Write", "Bash(git:*), Read", "Bash(git, jq", ["Read"]],
        "allowed-tools-form"),
    ("allowed-tools", [None, {"Read": True}, 5, ["Read", 5]], "allowed-tools-type"),
    *((key, ["x"], "field-unknown")
      for key in ("version", "title", "tags", "author", "argument-hint", "Name", "LICENSE", "")),
    ("hooks", ["x", {"start": "x"}, None], "hooks"),
    ("metadata", [{}, {"a": "b"}, {"a": "", "b c": "d"}], None),
    ("metadata", [None, "a", ["a"], 3, {"a": 1}, {"a": None}, {"a": True}, {"a": ["b"]}, {"a": {}}],
        "metadata-type"),
    ("metadata", [{"a": "x", "A": "x"}, {"straße": "x", "STRASSE": "x"}], "metadata-keys"),
    ("arguments", ["topic", {"topic": {}}, ["topic"], [{}], [{"name": ""}], [{"name": 7}],
        [{"name": "a"}, {"name": "a"}], [{"name": "a", "required": "yes"}], [{"name": "a", "default": 3}],
        [{"name": "a", "title": None}]], "field-type"),
    ("icons", ["icon.png", [{"mimeType": "image/png"}], [{"src": "a.png", "mimeType": 1}]], "field-type"),
    ("files", [[{"title": "no path"}], [{"path": "a", "required": 1}]], "field-type"),
    ("dependencies", [["search"], {"tools": "search"}, {"tools": [{"name": "search"}]}, {"prompts": [{"uri": "x"}]},
        {"resources": [{"name": "x"}]}, {"resources": [3]}], "field-type"),
    ("icons", [[{"src": "assets/icon.png"}]], None), ("icons", [[{"src": "javascript:alert(1)"}]], "icon-source"),
])  # fmt: skip
def test_a_value_of_a_field_has_one_code_and_the_line_of_the_field(key: str, values: list[Any], code: str | None):
    line = 3 if key == "description" else 4
    for value in values:
        found = problems(SOUND | {key: value})
        assert [(each.code, each.severity, each.line) for each in found] == (
            [(code, CODES[code].severity, line)] if code else []
        ), value


@each_row(("fields", "said"), [
    ({}, "there is no description"), ({"description": 5}, "the description is not text"),
    ({"description": None}, "the description is empty"), ({"description": " "}, "the description is empty"),
    ({"description": []}, "the description is not text"),
    ({"description": SOUND["description"], "icons": [{"src": "a"}, {"src": "x:y"}]}, "icon 2 comes from 'x:y'"),
    ({"description": SOUND["description"], "metadata": {"a": "", "A": ""}}, "metadata has both 'a' and 'A'"),
    ({"description": SOUND["description"], "dependencies": {"tools": ["a", 3]}},
        "entry 2 of dependencies.tools has no name"),
])  # fmt: skip
def test_what_is_wrong_is_said(fields: dict[str, Any], said: str):
    assert problems({"name": SOUND["name"], **fields})[0].message == said


@each_row("key", ["disable-model-invocation", "user-invocable", "argument-hint"])
def test_a_field_that_hosts_read_at_the_top_is_not_sent_away(key: str) -> None:
    """Below `metadata:` it would be switched off, here and in the hosts."""
    (found,) = problems(SOUND | {key: "x"})
    assert found.code == "field-unknown" and found.hint.startswith("leave it there")


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


@pytest.mark.requirement("AS-12", "ASG-18")
@each_row(("written", "said", "hint"), [
    ("version: 1.10", "a number", 'version: "1.10"'), ("version: 2", "a number", 'version: "2"'),
    ("internal: true", "true or false", 'internal: "true"'), ("tags: [a, b, 3]", "a list", 'tags: "a, b, 3"'),
    ("empty:", "no value", 'empty: ""'), ("empty: ~", "no value", 'empty: ""'),
    ("host: {emoji: x, bins: [y]}", "a mapping", """host: '{"emoji":"x","bins":["y"]}'"""),
    ('"on": 1', "a number", '"on": "1"'), ("quote: [it's, '\"']", "a list", 'quote: "it\'s, \\""'),
    ("long: [" + "a, " * 100 + "b]", "a list", "'long' as one text in quotes"),
    ('"a\\n\\e": 1', "a number", '"a\\n\\u001b": "1"'),
])  # fmt: skip
def test_a_value_of_metadata_that_is_no_text_is_told_with_the_line_to_write(written: str, said: str, hint: str):
    raw = f"---\nname: a\ndescription: {'d' * 30}\nmetadata:\n  good: x\n  {written}\n---\nText\n".encode()
    (found,) = (each for each in check(parse(raw), "a") if each.code != "hidden-characters")
    assert (found.code, found.line, found.hint) == ("metadata-type", 6, f"write {hint}")
    assert f"metadata has {said} where text belongs" in found.message
    if not hint.endswith("as one text in quotes"):
        fixed = raw.decode().replace(written, hint)
        assert [each for each in check(parse(fixed.encode()), "a") if each.code != "hidden-characters"] == []


@pytest.mark.requirement("AS-12")
def test_of_very_many_wrong_values_the_rest_is_counted():
    found = problems(SOUND | {"metadata": {f"k{number}": number for number in range(100)}})
    assert len(found) == 11 and "90 more values" in found[-1].message


@pytest.mark.requirement("S76-19")
@each_row(("written", "as_text"), [
    ("title: T", 'title: "T"'), ("title: 1", 'title: "1"'), ("version: 1.0", 'version: "1.0"'),
    ("version: 1.10", 'version: "1.10"'), ("version: '2'", 'version: "2"'), ("tags: [a, b]", 'tags: "a, b"'),
    ("author: {name: n}", """author: '{"name":"n"}'"""), ("internal: true", 'internal: "true"'),
])  # fmt: skip
def test_a_field_that_belongs_below_metadata_has_one_warning_that_says_what_to_write(written: str, as_text: str):
    head = f"---\nname: a\ndescription: Tells how this is done and when to use it.\n{written}\n---\nDo it.\n"
    (found,) = check(parse(head.encode()), "a")
    assert (found.code, found.line) == ("field-unknown", 4)
    assert found.hint == f"write {as_text} below 'metadata:', since strict validators refuse it here"


@each_row(("lines", "field", "code_points"), [
    ('license: "Does it. \\U000E0049\\U000E0067"', "license", "U+E0049 (2 in this field)"),
    ('metadata:\n  deep: [{note: "a\\u200Bb"}]', "metadata", "U+200B"),
    ('metadata:\n  "a\\u00ADb": text', "metadata", "U+00AD"), ('"no\\u3164te": text', "note", "U+3164"),
    ('license: "\\x1B[2J"', "license", "U+001B"),
])  # fmt: skip
def test_what_an_escape_hides_is_found_at_the_scan(lines: str, field: str, code_points: str):
    """The bytes of the file show nothing of it; the values that a model is shown do (11.19)."""
    found = check(parse(f"---\nname: a\ndescription: Counts things.\n{lines}\n---\nText\n".encode()), "a")
    (hidden,) = (each for each in found if each.code == "hidden-characters")
    assert (hidden.line, hidden.message) == (4, f"{field!r} holds the invisible character {code_points}")


@pytest.mark.requirement("AS-2", "AS-16")
@each_row(("body", "expected"), [
    ("", ["body-empty"]), ("\n\n", ["body-empty"]), ("  \n", ["body-empty"]), ("x\n" * 500, []),
    ("x\n" * 501, ["body-long"]), ("x" * 20_000, []), ("x" * 20_001, ["body-long"]), ("\n" * 600 + "x", []),
])  # fmt: skip
def test_a_body_has_instructions_of_500_lines_or_5000_tokens_at_most(body: str, expected: list[str]):
    assert [found.code for found in problems(SOUND, body=body)] == expected


@pytest.mark.requirement("AS-17")
@each_row(("body", "files", "expected"), [
    ("[a](a.md), ![b](assets/b.png), [c](./references/c.md#part), `scripts/d.py`, [dir](references/)\n",
     ["a.md", "assets/b.png", "references/c.md", "scripts/d.py"], []),
    ("# Title\n\nSee [this](references/gone.md).\n\nAgain [this](references/gone.md), and ![that](gone.png).\n", [],
     [("reference-missing", 7), ("reference-missing", 9)]),
    ("\n\nFirst.\n\n[gone](gone.md)\n", [], [("reference-missing", 9)]),  # counted from the top of the file
    ("`a/b/c.md` and [c](a/b/c.md)\n", ["a/b/c.md"], [("reference-deep", 5)]),
    ("# T\n\n## Steps\n\n3. Say what the result looks like.\n", [], [("placeholder", 9)]),
    *((body, [], []) for body in (
        "`npm run build`", "[web](https://example.org/a.md)", "[mail](mailto:a@b.c)", "[part](#part)")),
    *((f"One.\n\n[up]({target})", [], [("reference-outside", 7)])
      for target in ("../other/a.md", "%2e%2e/b/a.md", "references/../../a.md")),
])  # fmt: skip
def test_a_reference_leads_to_a_file_one_level_down(body: str, files: list[str], expected: list[tuple[str, int]]):
    found = check_deeply(document(SOUND, body), ("SKILL.md", *files))
    assert [(each.code, each.line) for each in found] == expected


def test_a_target_is_shown_on_one_line():
    (found,) = check_deeply(document(SOUND, "[x](a%0Ab%1B%5B31m)"), ())
    assert found.message == "the body refers to 'a\\nb\\x1b[31m', which is not in the skill"
