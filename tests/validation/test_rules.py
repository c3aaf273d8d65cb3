"""Rules of a SKILL.md: fields, values and the body."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dialects.build import JSON
from format.broken import BROKEN
from mcp_skills_server.codes import CODES, standing
from mcp_skills_server.format.frontmatter import Document, parse
from mcp_skills_server.model import Problem, Standing
from mcp_skills_server.validation import rules, text
from mcp_skills_server.validation.explanations import markdown
from mcp_skills_server.validation.rules import EXTENSION_FIELDS, SPECIFIED_FIELDS, check, check_deeply
from mcp_skills_server.validation.template import DESCRIPTION
from tables import each_row

VALID: dict[str, Any] = {
    "name": "sound-skill",
    "description": "Shows a skill that keeps every rule there is. Use it in tests.",
}


def document(fields: dict[str, Any], body: str = "Read on.\n") -> Document:
    """Return a parsed SKILL.md with these fields, one per line."""
    lines = "".join(f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}\n" for key, value in fields.items())
    return parse(f"---\n{lines}---\n{body}".encode())


def problems(fields: dict[str, Any], directory: str = "sound-skill", body: str = "Read on.\n") -> list[Problem]:
    return check(document(fields, body), directory)


def test_unparsable_skill_md_has_no_further_problems():
    broken = parse(b"---\nname: [\n---\n")
    assert check(broken, "a") == check_deeply(broken, ()) == []


@pytest.mark.requirement("X-2", "S40-5", "ASG-14", "ASG-15")
@each_row(("fields", "directory", "expected"), [
    (VALID, "sound-skill", Standing.VALID), (VALID, "other", Standing.LENIENT),
    (VALID | {"author": "x", "allowed-tools": ["Read"], "hooks": {}}, "sound-skill", Standing.VALID),
    *((VALID | odd, "sound-skill", Standing.LENIENT) for odd in (
        {"metadata": {"a": 1}}, {"compatibility": ""}, {"license": 5}, {"description": ""},
        {"description": "x" * 1025}, {"allowed-tools": 5})),  # FastMCP's client refuses a list with the last one
    (VALID | {"name": "a" * 65}, "a" * 65, Standing.LENIENT), (VALID | {"name": "Sound"}, "Sound", Standing.LENIENT),
    ({"license": "MIT"}, "sound-skill", Standing.LENIENT),
])  # fmt: skip
def test_standing_is_valid_only_within_the_specification(fields: dict[str, Any], directory: str, expected: Standing):
    assert standing(problems(fields, directory)) is expected


@pytest.mark.requirement("ASG-18")
def test_all_problems_of_a_file_are_reported_at_once():
    fields = {
        "name": "Not_This", "description": "x" * 1025, "license": 1, "compatibility": "", "metadata": {"a": 1},
        "allowed-tools": "A, B", "author": "x", "arguments": 5,
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
def test_any_frontmatter_is_checked_without_an_exception(fields: dict[str, Any], directory: str, body: str):
    found = Document(fields, {}, body, 2, ())
    for each in (*check(found, directory), *check_deeply(found, [])):
        assert CODES[each.code].severity == each.severity
        assert each.line is not None
        assert "\n" not in each.message


CODES_WITH_RULE = {code for table in (rules.RULES, rules.DEEP_RULES, text.RULES) for code, _ in table.checks}
CODES_WITHOUT_RULE = {
    # File names, and all skills together (validation/lint.py).
    "ignored-file", "file-name-portable", "name-shared", "dependency-unresolved",
    # Notes that need all files of a skill, or all skills.
    "file-unused", "description-overlap",
    # Parsers.
    "not-utf8", "nul-byte", "frontmatter-missing", "frontmatter-unclosed", "frontmatter-not-mapping", "yaml-syntax",
    "yaml-colon", "yaml-field", "yaml-duplicate-key", "yaml-tag", "yaml-alias", "yaml-depth", "yaml-size", "yaml-value",
    "yaml-ambiguous", "yaml-comment", "yaml-key", "manifest-syntax", "manifest-field", "manifest-form",
    "manifest-incomplete",
    "manifest-runtime", "manifest-disagrees",
    # The scan of the disk.
    "skill-md-irregular", "skill-md-case", "skill-md-too-large", "unreadable", "root-missing", "shadowed", "too-deep",
    "too-many-files", "too-many-bytes", "link-outside", "file-name", "file-name-backslash", "file-irregular",
    "hard-link", "near-miss", "plugin-elsewhere", "plugin-manifest", "plugin-name", "plugin-path", "plugin-unlisted",
    # Sources and gates.
    "source-refused", "commit-unsigned", "switched-off", "lock-missing", "lock-differs", "signature-missing",
    "signature-invalid", "signature-files", "signature-expired", "recalled", "lock-recalled",
}  # fmt: skip
"""Codes that are reported while the bytes are read, because no later check could find them."""


def test_every_code_has_a_rule_or_none_and_a_bundle() -> None:
    assert set(CODES) == CODES_WITH_RULE | CODES_WITHOUT_RULE
    assert {path.name for path in BROKEN.iterdir()} == set(CODES)
    assert not CODES_WITH_RULE & CODES_WITHOUT_RULE


def test_explanation_of_a_code_has_example_and_requirement() -> None:
    assert markdown("persistence") == (
        "## persistence\n\nA change of what starts automatically. It stays after the skill is removed.\n\n"
        "    echo ... >> ~/.bashrc\n\nFix: Do not let the skill change what starts automatically. "
        "Severity: warning. The skill is served all the same.\n"
    )
    assert "so the skill is not served.\n\nFix: Give" in markdown("unreadable")
    assert markdown("unreadable").endswith("The skill is not served. Rule AS-1 of docs/requirements.md.\n")


OPTIONAL_FIELDS = {
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


@pytest.mark.requirement("AS-3", "AS-8", "AS-10", "AS-11", "AS-12", "AS-14", "ASG-16", "S76-4", "S76-19")
def test_name_and_description_are_required_and_other_fields_optional():
    for fields in (VALID, VALID | OPTIONAL_FIELDS):
        assert problems(fields) == []
        assert {each.code for each in check_deeply(document(fields), ())} <= {"field-host"}
    found = [(each.code, each.line) for each in problems({"license": "MIT"})]
    assert found == [("name-missing", 1), ("description-missing", 1)]  # at the opening fence


@pytest.mark.requirement("AS-3", "AS-4", "AS-5", "AS-6", "AS-7")
@each_row(("name", "expected"), [
    *((name, []) for name in ("a", "7", "a-b", "a1-b2-c3", "2-fast", "a" * 63, "a" * 64, "-".join("a" * 32))),
    *((name, ["name-missing"]) for name in ("", None, 7, True, 1.5, ["a"], {"a": "b"})),
    ("a" * 65, ["name-length"]), ("a" * 500, ["name-length"]),
    *((name, ["name-characters"]) for name in (
        "A", "pdf_tools", "pdf tools", "pdf.tools", "pdf/tools", "über", "café", "ﬁ", "日本", " a", "²")),
    *((name, ["name-hyphens"]) for name in ("-a", "a-", "-a-", "-", "a--b", "a---b", "a--b--c", "--")),
    ("-" + "X" * 70, ["name-length", "name-characters", "name-hyphens"]),
])  # fmt: skip
def test_name_has_64_lower_case_letters_digits_and_single_hyphens(name: Any, expected: list[str]):
    found = problems(VALID | {"name": name}, str(name))
    assert [(each.code, each.line) for each in found] == [(code, 2) for code in expected]


@pytest.mark.requirement("AS-7")
@each_row("directory", ["", "Sound-Skill", "sound", "sound-skill-2", "skills"])
def test_name_must_match_the_directory(directory: str):
    (found,) = problems(VALID, directory)
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
      for key in ("version", "title", "tags", "author", "Name", "LICENSE", "")),
    ("hooks", ["x", {"start": "x"}, None], "hooks"),
    ("metadata", [{}, {"a": "b"}, {"a": "", "b c": "d"}], None),
    ("metadata", [None, "a", ["a"], 3, {"a": 1}, {"a": None}, {"a": True}, {"a": ["b"]}, {"a": {}}],
        "metadata-type"),
    ("metadata", [{"a": "x", "A": "x"}, {"straße": "x", "STRASSE": "x"}], "metadata-keys"),
    ("arguments", ["", "topic tone", ["topic", "tone"], ["topic", {"name": "tone"}]], None),
    ("arguments", ["topic topic", {"topic": {}}, ["topic", "topic"], [""], [{}], [{"name": ""}], [{"name": 7}],
        [{"name": "a"}, {"name": "a"}], [{"name": "a", "required": "yes"}], [{"name": "a", "default": 3}],
        [{"name": "a", "title": None}]], "field-type"),
    ("icons", ["icon.png", [{"mimeType": "image/png"}], [{"src": "a.png", "mimeType": 1}]], "field-type"),
    ("files", [[{"title": "no path"}], [{"path": "a", "required": 1}]], "field-type"),
    ("dependencies", [["torch>=2"], "torch", None, 5, {"python": "3.11"}], None),
    ("dependencies", [{"tools": "search"}, {"tools": [{"name": "search"}]}, {"prompts": [{"uri": "x"}]},
        {"resources": [{"name": "x"}]}, {"resources": [3]}], "field-type"),
    ("icons", [[{"src": "assets/icon.png"}]], None), ("icons", [[{"src": "javascript:alert(1)"}]], "icon-source"),
])  # fmt: skip
def test_invalid_field_value_has_one_code_and_line(key: str, values: list[Any], code: str | None):
    expected: list[tuple[str, str, int]] = []
    if code:
        line = 3 if key == "description" else 4
        expected.append((code, CODES[code].severity, line))
    for value in values:
        found = problems(VALID | {key: value})
        assert [(each.code, each.severity, each.line) for each in found] == expected, value


@each_row(("fields", "message"), [
    ({}, "there is no description"), ({"description": 5}, "the description is not text"),
    ({"description": None}, "the description is empty"), ({"description": " "}, "the description is empty"),
    ({"description": []}, "the description is not text"),
    ({"description": VALID["description"], "icons": [{"src": "a"}, {"src": "x:y"}]}, "icon 2 comes from 'x:y'"),
    ({"description": VALID["description"], "metadata": {"a": "", "A": ""}}, "metadata has both 'a' and 'A'"),
    ({"description": VALID["description"], "dependencies": {"tools": ["a", 3]}},
        "entry 2 of dependencies.tools has no name"),
])  # fmt: skip
def test_message_names_the_invalid_value(fields: dict[str, Any], message: str):
    assert problems({"name": VALID["name"], **fields})[0].message == message


@each_row(("flag", "value"), [
    (flag, value) for flag in ("disable-model-invocation", "user-invocable")
    for value in ("yes", "on", "true", "false", "", 1, 0, None, [], {"a": "b"})
])  # fmt: skip
def test_flag_that_is_no_boolean_hides_the_skill_and_is_reported(flag: str, value: Any) -> None:
    (found,) = problems(VALID | {flag: value})
    assert (found.code, found.hint) == ("field-type", "write true or false, without quotes")
    assert found.message == f"{flag} is neither true nor false, and hides the skill"


@each_row("name", ["<system>", "a\tb", "a\x00b", "a>b", "a\nb", "a\u2028b", "a\u2029b"])
def test_name_that_could_end_our_own_text_is_unusable(name: str) -> None:
    found = problems(VALID | {"name": name}, name)
    assert standing(found) is Standing.UNUSABLE
    assert [each.code for each in found if each.code.startswith("name-")] == ["name-markup"]


@each_row(("key", "value", "is_noted"), [
    ("disable-model-invocation", True, False), ("user-invocable", False, False), ("argument-hint", "[file]", False),
    ("context", "fork", True), ("agent", "Explore", True), ("model", "opus", True), ("effort", "high", True),
    ("paths", "src/**", True), ("paths", ["src/**"], True), ("when_to_use", "When it rains.", True),
    ("shell", "bash", True), ("disallowed-tools", "Bash", True), ("allowed-tools", "Read", True),
])  # fmt: skip
def test_field_that_hosts_honour_is_at_most_a_note(key: str, value: Any, is_noted: bool) -> None:
    """Below `metadata:` it would have no effect, here and in the hosts."""
    assert problems(VALID | {key: value}) == []
    found = check_deeply(document(VALID | {key: value}), ())
    assert [(each.code, each.severity, each.line) for each in found] == [("field-host", "note", 4)] * is_noted


@each_row(("key", "value", "hint"), [
    ("argument-hint", ["--verbose"], 'write argument-hint: "[--verbose]"'),
    ("argument-hint", 3, "write argument-hint as text in quotes"), ("model", None, "write model as text in quotes"),
    ("paths", {"a": "b"}, "write paths as text in quotes"), ("context", True, "write context as text in quotes"),
])  # fmt: skip
def test_host_field_of_a_wrong_type_has_the_line_to_write(key: str, value: Any, hint: str) -> None:
    (found,) = problems(VALID | {key: value})
    assert (found.code, found.hint) == ("field-type", hint)


@each_row(("key", "field"), [
    ("License", "license"), ("allowed_tools", "allowed-tools"), ("METADATA", "metadata"), ("descripton", "description"),
    ("when-to-use", "when_to_use"), ("allowed-tool", "allowed-tools"), ("user_invocable", "user-invocable"),
])  # fmt: skip
def test_misspelt_field_has_a_hint_with_the_known_one(key: str, field: str) -> None:
    (found,) = problems(VALID | {key: "x"})
    assert (found.code, found.hint) == ("field-unknown", f"did you mean {field}?")


@each_row(("name", "hint"), [
    (123, 'write name: "123"'), ("My Skill", "write name: my-skill, and give its folder the same name"),
    ("Pdf_Tools", "write name: pdf-tools, and give its folder the same name"), ("日本", "use only a-z, 0-9 and '-'"),
])  # fmt: skip
def test_wrong_name_has_the_line_to_write(name: Any, hint: str) -> None:
    found = problems(VALID | {"name": name}, str(name))
    assert [each.hint for each in found] == [hint]


@pytest.mark.requirement("S40-51")
@each_row(("tools", "is_broad"), [
    ("Bash", True), ("Read Bash", True), ("Bash(*)", True), ("Bash(*:*)", True), ("Bash( * : * )", True),
    ("Bash()", True), ("Read, Bash, Write", True), ("Shell", True), ("Terminal Read", True),
    (["Read", "Bash(*)"], True), ("Bash(git:*)", False), ("Bash(git *)", False), ("BashOutput", False),
    ("MyBash", False), ("Read Write", False), (["Bash(git:*)", 7, None], False), ("", False), (None, False),
    ({"Bash": True}, False), ("Bash(" + " " * 100_000 + "x", False),
])  # fmt: skip
def test_allowed_tools_for_every_command_are_reported(tools: Any, is_broad: bool):
    found = [each for each in check_deeply(document(VALID | {"allowed-tools": tools}), ()) if each.code != "field-host"]
    expected = [("broad-permission", 4)] if is_broad else []
    assert [(each.code, each.line) for each in found] == expected


@pytest.mark.requirement("AS-12", "ASG-18")
@each_row(("line", "kind", "fix"), [
    ("version: 1.10", "a number", 'version: "1.10"'), ("version: 2", "a number", 'version: "2"'),
    ("internal: true", "true or false", 'internal: "true"'), ("tags: [a, b, 3]", "a list", 'tags: "a, b, 3"'),
    ("empty:", "no value", 'empty: ""'), ("empty: ~", "no value", 'empty: ""'),
    ("host: {emoji: x, bins: [y]}", "a mapping", """host: '{"emoji":"x","bins":["y"]}'"""),
    ('"on": 1', "a number", '"on": "1"'), ("quote: [it's, '\"']", "a list", 'quote: "it\'s, \\""'),
    ("long: [" + "a, " * 100 + "b]", "a list", "'long' as one text in quotes"),
    ('"a\\n\\e": 1', "a number", '"a\\n\\u001b": "1"'),
])  # fmt: skip
def test_metadata_value_that_is_no_text_has_a_hint_that_fixes_it(line: str, kind: str, fix: str):
    raw = f"---\nname: a\ndescription: {'d' * 30}\nmetadata:\n  good: x\n  {line}\n---\nText\n".encode()
    (found,) = (each for each in check(parse(raw), "a") if each.code != "hidden-characters")
    assert (found.code, found.line, found.hint) == ("metadata-type", 6, f"write {fix}")
    assert f"metadata has {kind} where text belongs" in found.message
    if not fix.endswith("as one text in quotes"):
        fixed = raw.decode().replace(line, fix)
        assert [each for each in check(parse(fixed.encode()), "a") if each.code != "hidden-characters"] == []


@pytest.mark.requirement("AS-12")
def test_metadata_problems_beyond_ten_are_counted():
    found = problems(VALID | {"metadata": {f"k{number}": number for number in range(100)}})
    assert len(found) == 11 and "90 more values" in found[-1].message


@pytest.mark.requirement("S76-19")
@each_row(("field", "fix"), [
    ("title: T", 'title: "T"'), ("title: 1", 'title: "1"'), ("version: 1.0", 'version: "1.0"'),
    ("version: 1.10", 'version: "1.10"'), ("version: '2'", 'version: "2"'), ("tags: [a, b]", 'tags: "a, b"'),
    ("author: {name: n}", """author: '{"name":"n"}'"""), ("internal: true", 'internal: "true"'),
])  # fmt: skip
def test_field_that_belongs_in_metadata_has_a_hint_that_fixes_it(field: str, fix: str):
    head = f"---\nname: a\ndescription: Tells how this is done and when to use it.\n{field}\n---\nDo it.\n"
    (found,) = check(parse(head.encode()), "a")
    assert (found.code, found.line) == ("field-unknown", 4)
    assert found.hint == f"write {fix} below 'metadata:', since strict validators refuse it here"


@each_row(("lines", "field", "code_points"), [
    ('license: "Does it. \\U000E0049\\U000E0067"', "license", "U+E0049 (2 in this field)"),
    ('metadata:\n  deep: [{note: "a\\u200Bb"}]', "metadata", "U+200B"),
    ('metadata:\n  "a\\u00ADb": text', "metadata", "U+00AD"), ('"no\\u3164te": text', "note", "U+3164"),
    ('license: "\\x1B[2J"', "license", "U+001B"),
])  # fmt: skip
def test_escaped_hidden_character_is_reported(lines: str, field: str, code_points: str):
    """The bytes of the file do not show it; the values in a model's context do (11.19)."""
    found = check(parse(f"---\nname: a\ndescription: Counts things.\n{lines}\n---\nText\n".encode()), "a")
    (hidden,) = (each for each in found if each.code == "hidden-characters")
    assert (hidden.line, hidden.message) == (4, f"{field!r} holds the invisible character {code_points}")


@pytest.mark.requirement("AS-2", "AS-16")
@each_row(("body", "expected"), [
    ("", ["body-empty"]), ("\n\n", ["body-empty"]), ("  \n", ["body-empty"]), ("x\n" * 500, []),
    ("x\n" * 501, ["body-long"]), ("x" * 20_000, []), ("x" * 20_001, ["body-long"]), ("\n" * 600 + "x", []),
])  # fmt: skip
def test_body_is_limited_to_500_lines_and_5000_tokens(body: str, expected: list[str]):
    assert [found.code for found in problems(VALID, body=body)] == expected


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
def test_reference_must_lead_to_a_file_one_level_down(body: str, files: list[str], expected: list[tuple[str, int]]):
    found = check_deeply(document(VALID, body), ("SKILL.md", *files))
    assert [(each.code, each.line) for each in found] == expected


@each_row(("body", "lines"), [
    ("```sh\nls\npython scripts/gone.py --in a\n```\n", [7]),
    ("Then run `scripts/gone.py` once.\n\nAgain `scripts/gone.sh a`.\n", [5, 7]),
    *((body, []) for body in (
        "```sh\npython scripts/there.py\n```\n", "Run `{baseDir}/scripts/gone.py`.\n",
        "Scripts such as `scripts/gone.py`.\n",
        "Write your query to `scripts/gone.py` first.\n", "```text\nscripts/gone.py:4: warning\n```\n",
        "See scripts/gone.py.\n",
        "`src/gone.py`, `scripts/<name>.py` and `scripts/*.py`\n", "`tests/scripts/gone.py`\n")),
])  # fmt: skip
def test_script_that_code_names_must_be_in_the_skill(body: str, lines: list[int]):
    found = check_deeply(document(VALID, body), ("SKILL.md", "scripts/there.py"))
    assert [(each.code, each.line) for each in found] == [("reference-missing", line) for line in lines]


def test_script_in_a_folder_that_the_skill_does_not_have_belongs_to_the_project():
    assert check_deeply(document(VALID, "Run `python scripts/gone.py`.\n"), ("SKILL.md", "references/a.md")) == []


@each_row(("text", "lines"), [
    ("# A\n\nSee [b](b.md).\n\n| a |\n|---|\n| [gone](gone.md) |\n", [7]), ("[up](../gone.md)", [1]),
    *((text, []) for text in (
        "[b](b.md), [b](references/b.md), [up](../SKILL.md), [up](../scripts/c.py), [web](https://example.org/a.md)",
        "[text](link)", "```md\n[gone](gone.md)\n```\n", "[out](../../other/SKILL.md)")),
])  # fmt: skip
def test_link_of_a_reference_leads_to_a_file(text: str, lines: list[int]):
    files = ("SKILL.md", "references/a.md", "references/b.md", "scripts/c.py")
    found = list(rules.check_links(text, "references/a.md", files))
    assert [(each.code, each.line) for each in found] == [("reference-missing", line) for line in lines]


@each_row(("fields", "shown"), [
    ({"name": "claude-notes"}, "'claude' in the name"), ({"name": "my-anthropic"}, "'anthropic' in the name"),
    ({"description": "Fill in <name>. Use when it is empty."}, "'<name>' in the description"),
    ({"description": "Write </b>. Use when needed."}, "'</b>' in the description"),
    ({"description": "Compare a < b and c > d, or 1<2>3. Use it in tests."}, None), ({"name": "clau-de"}, None),
])  # fmt: skip
def test_note_says_what_an_upload_to_claude_ai_refuses(fields: dict[str, str], shown: str | None):
    found = [each for each in check_deeply(document(VALID | fields), ()) if each.code == "upload-refused"]
    assert [each.message for each in found] == ([f"claude.ai refuses {shown} of a skill"] if shown else [])


@each_row(("without", "whenever"), [
    ("Eine Sammlung von SQL-Abfragen und der Tabellen dazu.", "Nutze sie, wenn der Nutzer Daten sucht."),
    ("Une collection de requêtes SQL et des tables.", "À utiliser quand une table est longue."),
    ("Una colección de consultas SQL y los datos.", "Úsala cuando el usuario busca datos."),
    ("Una raccolta di query SQL e dei dati.", "Da usare quando si cercano dati."),
    ("Uma coleção de consultas SQL e os dados.", "Use quando o usuário procura dados."),
    ("Сборник запросов SQL и таблиц к ним.", "Используйте, когда нужны данные."),
    ("一组 SQL 查询和表格。", "当用户查找数据时使用。"),
    ("SQL クエリと表のまとめです。", "ユーザーがデータを探すときに使います。"),
    ("SQL 쿼리와 표의 모음입니다.", "사용자가 데이터를 찾을 때 사용합니다."),
    ("A collection of SQL queries and of tables.", "Use when a user looks up data."),
    ("Kokoelma kyselyitä ja taulukoita tietokannalle.", None),  # Finnish: whose "when" is not known
])  # fmt: skip
def test_note_on_a_description_without_occasion_knows_ten_languages(without: str, whenever: str | None):
    def is_noted(description: str) -> bool:
        found = check_deeply(document(VALID | {"description": description}), ())
        return "description-when" in [each.code for each in found]

    assert is_noted(without) == (whenever is not None)
    assert whenever is None or not is_noted(f"{without} {whenever}")


@each_row(("written", "hint"), [
    ("References/More.md", "write references/more.md"), ("references%5Cmore.md", "write references/more.md"),
    ("references/less.md", "add the file or correct the link"),
])  # fmt: skip
def test_missing_reference_has_the_spelling_of_the_file_that_it_means(written: str, hint: str):
    (found,) = check_deeply(document(VALID, f"[x]({written})"), ("SKILL.md", "references/more.md"))
    assert (found.code, found.hint) == ("reference-missing", hint)


def test_reference_target_is_shown_on_one_line():
    (found,) = check_deeply(document(VALID, "[x](a%0Ab%1B%5B31m)"), ())
    assert found.message == "the body refers to 'a\\nb\\x1b[31m', which is not in the skill"
