"""YAML to JSON values by the core schema of YAML 1.2."""

from __future__ import annotations

from itertools import pairwise

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from mcp_skills_server.format.frontmatter import parse
from mcp_skills_server.format.yaml_reader import MAX_DEPTH, MAX_NODES, MAX_PROBLEMS, MAX_YAML
from mcp_skills_server.model import Json
from tables import each_row

from .skill_md import codes, document, each_parser, fatal, typed


def value(text: str) -> Json:
    """What a plain value means, where nothing is wrong with it beyond a warning."""
    found = document(f"value: {text}").frontmatter
    assert found is not None
    return found["value"]


# Values: the core schema of YAML 1.2


@pytest.mark.requirement("S40-13")
@each_parser
@each_row(("text", "expected"), [
    ("text", "text"), ("'quoted'", "quoted"), ('"a\\tb\\u00e9"', "a\tbé"), ("", None), ("~", None), ("null", None),
    ("NULL", None), ("''", ""), ("'null'", "null"), ("true", True), ("False", False), ("'true'", "true"),
    ("tRUE", "tRUE"), ("0", 0), ("-12", -12), ("+12", 12), ("'12'", "12"), ("0x1F", 31), ("1.5", 1.5),
    ("-.5e-3", -0.0005), ("1.", 1.0), ("1e-3", 0.001), ("1.2.3", "1.2.3"), ("v1", "v1"), ("--", "--"),
    ("3 apples", "3 apples"), ("y", "y"), ("N", "N"), ("[1, a, null, true]", [1, "a", None, True]),
    ("{a: 1, 'b': [x]}", {"a": 1, "b": ["x"]}), ("\n  - 1\n  - b: c", [1, {"b": "c"}]), ("a:b", "a:b"),
    ("a #b", "a"), ("a#b", "a#b"), ("http://example.org/#part", "http://example.org/#part"),
    ("日本語 — ok 🦀", "日本語 — ok 🦀"), ("'\\ud800'", "\\ud800"), ('"\\\\ud800"', "\\ud800"),
])  # fmt: skip
def test_plain_values_follow_the_core_schema(text: str, expected: Json):
    assert typed(value(text)) == typed(expected)


@pytest.mark.requirement("S40-13")
@each_parser
@each_row(("text", "expected"), [
    ("yes", "yes"), ("No", "No"), ("ON", "ON"), ("off", "off"), ("0755", 755), ("0o755", 0o755),
    ("0b101", "0b101"), ("12:30", "12:30"), ("12:30:45", "12:30:45"), ("1:30.5", "1:30.5"),
    ("2024-05-01", "2024-05-01"), ("2024-05-01T10:00:00Z", "2024-05-01T10:00:00Z"),
    ("2024-5-1 10:00:00", "2024-5-1 10:00:00"), ("1e3", 1000.0), (".5e3", 500.0), ("1e+3", 1000.0), ("-.5", -0.5),
    ("1_000", "1_000"), ("1_0.5", "1_0.5"), ("0x1_F", "0x1_F"), ("+0x1F", "+0x1F"), ("08", 8), ("0_7", "0_7"),
    ("9007199254740993", 9007199254740993), ("-9007199254740993", -9007199254740993),
    ("0x20000000000001", 0x20000000000001), ("<<", "<<"), ("=", "="),
])  # fmt: skip
def test_values_that_yaml_1_1_reads_otherwise_follow_the_core_schema_and_are_warned_of(text: str, expected: Json):
    found = document(f"name: a\nvalue: {text}")
    assert found.frontmatter is not None
    assert typed(found.frontmatter["value"]) == typed(expected)
    assert [(each.code, each.line) for each in found.problems] == [("yaml-ambiguous", 3)]


@pytest.mark.requirement("S40-13")
@each_row("text", ["yes", "0755", "12:30", "2024-05-01", "1e3", "1_000", "08", ".nan", ".inf", "<<"])
def test_quotes_settle_every_such_value(text: str):
    found = document(f"single: '{text}'\ndouble: \"{text}\"\nblock: |-\n  {text}\n'{text}': key")
    assert (found.frontmatter, codes(found)) == ({"single": text, "double": text, "block": text, text: "key"}, [])


@pytest.mark.requirement("S40-13")
@each_parser
@each_row(
    "text",
    [".nan", ".NaN", ".inf", "-.inf", "+.INF", "1e400", "-1.5e999", "9" * 301, "0x" + "f" * 300, "1" * 400 + ".5"],
)
def test_values_that_json_cannot_hold_are_refused(text: str):
    found = document(f"name: a\nvalue: {text}")
    assert found.frontmatter is None
    assert "yaml-value" in fatal(found)
    assert {each.line for each in found.problems} == {3}


_PLAIN = st.text("0123456789+-.eE_:xobyYnNtTfF~ZaAiI<=", min_size=1, max_size=12)


@pytest.mark.requirement("S40-13")
@given(_PLAIN)
@example("<<")
@example("=")
@example("685.230_15e+03")
@example("2001-12-14t21:59:43.10-05:00")
def test_whatever_pyyaml_reads_otherwise_is_warned_of(text: str):
    """PyYAML speaks 1.1: a value that it understands differently must not pass in silence."""
    found = document(f"value: {text}")
    if found.problems or found.frontmatter is None:
        return
    try:
        theirs = yaml.safe_load(f"value: {text}")
    except (yaml.YAMLError, ValueError):
        pytest.fail(f"PyYAML refuses {text!r}, and nothing was said")
    assert typed(found.frontmatter) == typed(theirs)


@pytest.mark.requirement("S40-13")
@each_row(
    ("lines", "expected"),
    [
        ("v: |\n  one\n  two", "one\ntwo\n"),
        ("v: |\n  one\n\n\nw: x", "one\n"),
        ("v: |-\n  one", "one"),
        ("v: |+\n  one\n\nw: x", "one\n\n"),
        ("v: >\n  one\n  two\n\n  three", "one two\nthree\n"),
        ("v: >-\n  one\n  two", "one two"),
        ("v: >\n  one\n    code\n  two", "one\n  code\ntwo\n"),
        ("v: |2\n    two", "  two\n"),
        ("v: '  spaces  '", "  spaces  "),
        ("v: one\n  two\n\n  three", "one two\nthree"),
        ('v: "one\n  two\\\n  three"', "one twothree"),
        ("v: 'it''s'", "it's"),
    ],
)
def test_text_is_kept_verbatim_with_the_newlines_that_yaml_says(lines: str, expected: str):
    found = document(lines)
    assert found.frontmatter is not None
    assert (found.frontmatter["v"], codes(found)) == (expected, [])


@pytest.mark.requirement("S40-13")
def test_a_clipped_block_as_the_last_field_keeps_its_newline():
    """Forty of a thousand public skills end like this, and three of four hosts keep it."""
    assert document("name: a\ndescription: >\n  Does this\n  and that.").frontmatter == {
        "name": "a",
        "description": "Does this and that.\n",
    }


@pytest.mark.requirement("S40-13")
def test_fields_keep_their_order_and_none_is_dropped_or_added():
    found = document("zebra: 1\nname: a\nargument-hint: '[x]'\nempty:\ndescription: b")
    assert found.frontmatter is not None
    assert list(found.frontmatter.items()) == [
        ("zebra", 1),
        ("name", "a"),
        ("argument-hint", "[x]"),
        ("empty", None),
        ("description", "b"),
    ]


@pytest.mark.requirement("S40-13")
@each_row("mark", ["\x85", "\u2028", "\u2029"])
def test_a_character_that_only_yaml_1_1_takes_for_a_line_break_is_warned_of(mark: str):
    found = document(f"name: a\nvalue: 'one{mark} two'")
    assert [(each.code, each.line) for each in found.problems] == [("yaml-ambiguous", 3)]
    assert f"U+{ord(mark):04X}" in found.problems[0].message


# Keys


@pytest.mark.requirement("S40-13")
@each_row("key", ["on", "YES", "true", "null", "~", "1", "0x1F", "1.5", "-1e3", ".inf"])
def test_keys_are_text_as_written_and_warned_of_where_readers_disagree(key: str):
    found = document(f"name: a\n{key}: b")
    assert found.frontmatter == {"name": "a", key: "b"}
    assert [(each.code, each.line) for each in found.problems] == [("yaml-key", 3)]


def test_the_merge_key_is_a_plain_key_and_warned_of():
    found = document("base: &base {a: b}\nderived:\n  <<: *base\n  c: d")
    assert found.frontmatter == {"base": {"a": "b"}, "derived": {"<<": {"a": "b"}, "c": "d"}}
    assert [(each.code, each.line) for each in found.problems] == [("yaml-ambiguous", 4)]


@pytest.mark.requirement("S40-13")
@each_row(("lines", "line"), [
    ("name: a\nname: b", 3), ("name: a\n'name': a", 3), ("metadata:\n  a: 1\n  b: 2\n  a: 3", 5),
    ("list:\n  - {x: 1, x: 2}", 3), ("1: a\n'1': b", 3),
])  # fmt: skip
def test_a_key_that_stands_twice_is_refused_with_the_line_of_the_second(lines: str, line: int):
    found = document(lines)
    assert found.frontmatter is None
    assert [each.line for each in found.problems if each.code == "yaml-duplicate-key"] == [line]


@each_row("key", ["[a]", "{a: b}", "? [a]\n"])
def test_a_key_that_is_no_text_is_refused(key: str):
    found = document(f"name: a\n{key}: b")
    assert found.frontmatter is None
    assert fatal(found) == ["yaml-value"]


@each_row("anchored", ["1", "[x]", "null"])
def test_an_alias_of_what_is_no_text_cannot_be_a_key(anchored: str):
    found = document(f"name: &a {anchored}\n*a : b")
    assert fatal(found) == ["yaml-value"]


def test_an_anchored_key_is_text_as_written():
    assert document("&a null: b\n&c 1: d").frontmatter == {"null": "b", "1": "d"}


def test_lines_are_those_of_the_top_level_fields():
    found = document("# note\nname: a\nmetadata:\n  name: b\n\nlicense: >\n  x\nlast: y")
    assert found.lines == {"name": 3, "metadata": 4, "license": 7, "last": 9}


# Tags, anchors, documents


@pytest.mark.requirement("S40-13")
@each_parser
@each_row(
    "text", ["!!str 1", "!!python/object/apply:os.system ['true']", "!local x", "! x", "!!binary aGk=", "!!set {a, b}"]
)
def test_a_tag_is_refused(text: str):
    found = document(f"name: a\nvalue: {text}")
    assert found.frontmatter is None
    assert [(each.code, each.line) for each in found.problems] == [("yaml-tag", 3)]


def test_a_tag_on_a_key_is_refused():
    assert fatal(document("!!str name: a")) == ["yaml-tag"]


@pytest.mark.requirement("S40-13")
def test_an_alias_stands_for_its_anchor():
    assert document("a: &x [1, {b: c}]\nd: *x\n&k key: &v text\ne: *v\nf: *k\n*v : 2").frontmatter == {
        "a": [1, {"b": "c"}],
        "d": [1, {"b": "c"}],
        "key": "text",
        "e": "text",
        "f": "key",
        "text": 2,
    }


@each_row(
    ("lines", "words"), [("a: *nowhere", "no anchor"), ("a: &a [*a]", "itself"), ("a: &a {b: {c: *a}}", "itself")]
)
def test_an_alias_without_an_end_is_refused(lines: str, words: str):
    found = document(lines)
    assert fatal(found) == ["yaml-alias"]
    assert words in found.problems[0].message


@pytest.mark.parametrize("lines", ["name: a\n...\nname: b", "name: a\n--- # two\nname: b"])
def test_a_second_document_is_refused(lines: str):
    assert fatal(document(lines)) == ["yaml-syntax"]


def test_the_end_of_the_document_may_be_marked():
    assert document("name: a\n...").frontmatter == {"name": "a"}


@pytest.mark.requirement("AS-2")
@each_row("lines", ["- a\n- b", "just text", "42", "'name: a'"])
def test_frontmatter_that_is_no_mapping_is_refused(lines: str):
    found = document(lines)
    assert (found.frontmatter, codes(found), found.problems[0].line) == (None, ["frontmatter-not-mapping"], 2)


# Syntax


@pytest.mark.requirement("ASG-17")
@each_parser
@each_row(
    ("lines", "line", "hint"),
    [
        ("name: a\nmetadata:\n  use: Use when: always", 4, "quotes"),
        ("name: a\ndescription: @here", 3, "quote"),
        ("name: a\n\tdescription: b", 3, "tabs"),
        ("name: a\ndescription: 'open", 3, None),
        ("name: a\nlist: [a, b", 3, None),
        ("name: a\n b: c", 3, None),
        ("name: a\ndescription: a \x07 bell", 3, "escape"),
        ('name: a\ndescription: "\\q"', 3, None),
    ],
)
def test_yaml_that_cannot_be_read_names_a_line_and_a_hint(lines: str, line: int, hint: str | None):
    found = document(lines)
    assert found.frontmatter is None
    assert fatal(found) == ["yaml-syntax"]
    # Where something never ends, the end is a place as good as the beginning.
    assert found.problems[0].line in (line, line + 1)
    assert hint is None or hint in found.problems[0].hint


@each_parser
@each_row("escape", ["\\ud800", "\\uDFFF", "\\U00110000", "\\UFFFFFFFF"])
def test_an_escape_that_stands_for_no_character_is_refused(escape: str):
    found = document(f'name: a\nvalue: "{escape}"')
    assert found.frontmatter is None
    assert fatal(found) == ["yaml-syntax"]


@pytest.mark.requirement("ASG-18")
def test_everything_wrong_is_told_at_once():
    found = document(
        "name: a\nname: b\nwhen: 12:30\non: push\nratio: .nan\ntagged: !x y\nloop: *nowhere\nmetadata: {k: 1, k: 2}"
    )
    assert found.frontmatter is None
    assert [(each.code, each.line) for each in found.problems] == [
        ("yaml-duplicate-key", 3),
        ("yaml-ambiguous", 4),
        ("yaml-key", 5),
        ("yaml-value", 6),
        ("yaml-tag", 7),
        ("yaml-alias", 8),
        ("yaml-duplicate-key", 9),
    ]


def test_what_was_found_before_the_syntax_broke_is_told_too():
    assert codes(document("name: a\nname: b\nbad: [")) == ["yaml-duplicate-key", "yaml-syntax"]


# Bounds


@pytest.mark.requirement("S40-5")
def test_more_warnings_than_are_told_do_not_lose_the_frontmatter():
    """A skill whose frontmatter is None must never stand as valid, so warnings alone cannot end the reading."""
    found = document("name: a\ndates: [" + ", ".join(["2024-05-01"] * 150) + "]")
    assert found.frontmatter == {"name": "a", "dates": ["2024-05-01"] * 150}
    assert codes(found) == ["yaml-ambiguous"] * MAX_PROBLEMS


def test_an_error_after_too_many_warnings_is_told_still():
    found = document("dates: [" + ", ".join(["2024-05-01"] * 150) + "]\nratio: .nan")
    assert found.frontmatter is None
    assert fatal(found) == ["yaml-value"]


def test_errors_end_the_reading_when_there_are_too_many():
    found = document("list: [" + ", ".join([".nan"] * 5000) + "]")
    assert found.frontmatter is None
    assert MAX_PROBLEMS <= len(found.problems) <= MAX_PROBLEMS + 1


@pytest.mark.parametrize("depth", [MAX_DEPTH - 1, MAX_DEPTH])
def test_values_may_be_nested_up_to_the_bound(depth: int):
    found = document("v: " + "[" * depth + "]" * depth)
    assert codes(found) == ([] if depth < MAX_DEPTH else ["yaml-depth"])


@each_parser
@each_row("opening", ["[" * 100_000, "{a: " * 30_000, "{" * 100_000, "- " * 50_000, "? " * 50_000])
def test_boxes_in_boxes_are_refused(opening: str):
    found = document(f"v:\n  {opening}")
    assert found.frontmatter is None
    assert fatal(found)


def test_aliases_cannot_nest_deeper_than_text_can():
    """What was read is written by encoders that recurse, so its depth counts however it came about."""
    chain = ["a0: &a0 [x]"]
    chain += [f"a{step}: &a{step} [[[[[[*a{step - 1}]]]]]]" for step in range(1, 40)]
    found = document("\n".join(chain))
    assert found.frontmatter is None
    assert fatal(found) == ["yaml-depth"]
    assert found.problems[0].line == 6


def test_aliases_may_nest_up_to_the_bound():
    half = MAX_DEPTH // 2
    lines = f"a: &a {'[' * half}x{']' * half}\nb: {'[' * (half - 1)}*a{']' * (half - 1)}"
    assert codes(document(lines)) == []
    assert codes(document(lines.replace("b: ", "b: [") + "]")) == ["yaml-depth"]


@each_parser
def test_an_alias_bomb_is_refused():
    lines = ["a: &a [" + ", ".join("x" * 9) + "]"]
    lines += [f"{name}: &{name} [" + ", ".join([f"*{last}"] * 9) + "]" for last, name in pairwise("abcdefghi")]
    found = document("\n".join(lines))
    assert (found.frontmatter, fatal(found)) == (None, ["yaml-alias"])


def test_an_alias_costs_what_its_anchor_holds_and_not_what_stood_before():
    before = f"before: [{', '.join(['1'] * 3000)}]"
    found = document(f"{before}\na: &a [x, y]\nb: [{', '.join(['*a'] * 300)}]")
    assert found.problems == () and found.frontmatter is not None
    assert found.frontmatter["b"] == [["x", "y"]] * 300


def test_a_bomb_of_long_text_is_refused():
    found = document(f"a: &a {'x' * 60_000}\nb: [" + ", ".join(["*a"] * 100) + "]")
    assert (found.frontmatter, fatal(found)) == (None, ["yaml-alias"])


def test_values_are_counted():
    assert codes(document("v: [" + ",".join("0" * (MAX_NODES - 3)) + "]")) == []
    assert codes(document("v: [" + ",".join("0" * MAX_NODES) + "]")) == ["yaml-size"]


def test_characters_of_the_frontmatter_are_counted():
    fits = "v: " + "x" * (MAX_YAML - 4)  # and its line break
    assert codes(document(fits)) == []
    found = document(fits + "x")
    assert (found.frontmatter, codes(found), found.body) == (None, ["yaml-size"], "Read on.")


@each_row(
    ("junk", "code"),
    [
        (b"x" * 5_000_000, "frontmatter-missing"),
        (b"---\n" * 1_250_000, "frontmatter-not-mapping"),
        (b"---\n" + b"a: b\n" * 1_000_000, "frontmatter-unclosed"),
        (b"---\n" + b"a: b\n" * 1_000_000 + b"---\n", "yaml-size"),
        (b"---\n" + b" ---\n" * 1_000_000, "frontmatter-unclosed"),
        (b"\n" * 5_000_000, "frontmatter-missing"),
        (b"\r" * 5_000_000, "frontmatter-missing"),
        (b"\xff" * 5_000_000, "not-utf8"),
        (b"\0" * 5_000_000, "nul-byte"),
        (b'---\nv: "' + b"\\" * 100_000 + b"\n---\n", "yaml-syntax"),
    ],
)
def test_five_megabytes_of_junk_are_one_problem(junk: bytes, code: str):
    found = parse(junk)
    assert (found.frontmatter, codes(found)) == (None, [code])


@each_row("text", [
    "1" + "_" * 130_000 + "x", "0x" + "1_" * 60_000 + "x", "1:" + "1:" * 60_000 + "x", "1" * 130_000 + "x",
    "." + "_" * 130_000, "-" * 130_000,
])  # fmt: skip
def test_what_is_nearly_a_number_is_read_in_one_pass(text: str):
    """Patterns that look at each digit again for every other take minutes here, and a scan waits for them."""
    assert value(text) == text


@each_parser
@each_row("digits", [300, 301, 100_000])
def test_huge_numbers_are_held_or_refused(digits: int):
    found = document("v: " + "9" * digits)
    assert codes(found) == (["yaml-ambiguous"] if digits == 300 else ["yaml-value"])


def test_a_message_names_what_is_wrong() -> None:
    texts = [each.message for raw in (b"---\na: 1e999\n---\n", b"---\na: [b\n---\n") for each in parse(raw).problems]
    assert texts[0].startswith("'1e999' means") and texts[1] == "'1e999' is too large for JSON"
    assert texts[2].startswith("not valid YAML: while parsing a flow sequence")
