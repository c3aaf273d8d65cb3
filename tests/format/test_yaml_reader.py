"""Reading YAML as JSON values by the core schema of YAML 1.2, within limits."""

from __future__ import annotations

from itertools import pairwise

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from mcp_skills_server.format.frontmatter import parse
from mcp_skills_server.model import Json
from tables import each_row

from .skill_md import codes, document, each_parser, fatal, typed

MAX_DEPTH, MAX_EXPANSION, MAX_NODES, MAX_YAML = 24, 1 << 20, 10_000, 1 << 17


@pytest.mark.requirement("S40-13")
@each_parser
@each_row(("text", "expected"), [
    ("text", "text"), ("'quoted'", "quoted"), ('"a\\tb\\u00e9"', "a\tbé"), ("", None), ("~", None), ("null", None),
    ("NULL", None), ("''", ""), ("'null'", "null"), ("true", True), ("False", False), ("'true'", "true"),
    ("tRUE", "tRUE"), ("0", 0), ("-12", -12), ("+12", 12), ("'12'", "12"), ("0x1F", 31), ("1.5", 1.5),
    ("1.", 1.0), ("1.2.3", "1.2.3"), ("9007199254740992", 2**53), ("v1", "v1"), ("--", "--"),
    ("3 apples", "3 apples"), ("y", "y"), ("N", "N"), ("[1, a, null, true]", [1, "a", None, True]),
    ("{a: 1, 'b': [x]}", {"a": 1, "b": ["x"]}), ("\n  - 1\n  - b: c", [1, {"b": "c"}]), ("a:b", "a:b"),
    ("a # b", "a"), ("a#b", "a#b"), ("http://example.org/#part", "http://example.org/#part"),
    ("日本語 — ok 🦀", "日本語 — ok 🦀"), ("'\\ud800'", "\\ud800"), ('"\\\\ud800"', "\\ud800"),
])  # fmt: skip
def test_plain_scalars_follow_the_core_schema(text: str, expected: Json):
    found = document(f"value: {text}")
    assert typed(found.frontmatter) == typed({"value": expected})
    assert codes(found) == []


@pytest.mark.requirement("S40-13")
@each_parser
@each_row(("text", "expected"), [
    ("yes", "yes"), ("No", "No"), ("ON", "ON"), ("off", "off"), ("0755", 755), ("0o755", 0o755),
    ("0b101", "0b101"), ("12:30", "12:30"), ("12:30:45", "12:30:45"), ("1:30.5", "1:30.5"),
    ("2024-05-01", "2024-05-01"), ("2024-05-01T10:00:00Z", "2024-05-01T10:00:00Z"),
    ("2024-5-1 10:00:00", "2024-5-1 10:00:00"), ("1e3", 1000.0), (".5e3", 500.0), ("1e+3", 1000.0), ("-.5", -0.5),
    ("-.5e-3", -0.0005), ("1e-3", 0.001),
    ("1_000", "1_000"), ("1_0.5", "1_0.5"), ("0x1_F", "0x1_F"), ("+0x1F", "+0x1F"), ("08", 8), ("0_7", "0_7"),
    ("9007199254740993", 9007199254740993), ("-9007199254740993", -9007199254740993),
    ("0x20000000000001", 0x20000000000001), ("<<", "<<"), ("=", "="), ("9" * 300, int("9" * 300)),
])  # fmt: skip
def test_scalars_that_yaml_1_1_reads_differently_have_a_warning(text: str, expected: Json):
    found = document(f"name: a\nvalue: {text}")
    assert found.frontmatter is not None
    assert typed(found.frontmatter["value"]) == typed(expected)
    assert [(each.code, each.line) for each in found.problems] == [("yaml-ambiguous", 3)]


@pytest.mark.requirement("S40-13")
@each_row("text", ["yes", "0755", "12:30", "2024-05-01", "1e3", "1_000", "08", ".nan", ".inf", "<<"])
def test_quoted_scalars_are_text_without_a_warning(text: str):
    found = document(f"single: '{text}'\ndouble: \"{text}\"\nblock: |-\n  {text}\n'{text}': key")
    assert (found.frontmatter, codes(found)) == ({"single": text, "double": text, "block": text, text: "key"}, [])


_PLAIN = st.text("0123456789+-.eE_:xobyYnNtTfF~ZaAiI<=", min_size=1, max_size=12)


@pytest.mark.requirement("S40-13")
@given(_PLAIN)
@example("<<")
@example("=")
@example("685.230_15e+03")
@example("2001-12-14t21:59:43.10-05:00")
def test_any_scalar_that_pyyaml_reads_differently_has_a_warning(text: str):
    """PyYAML implements YAML 1.1."""
    found = document(f"value: {text}")
    if found.problems or found.frontmatter is None:
        return
    try:
        by_pyyaml = yaml.safe_load(f"value: {text}")
    except (yaml.YAMLError, ValueError):
        pytest.fail(f"PyYAML refuses {text!r}, and there is no warning")
    assert typed(found.frontmatter) == typed(by_pyyaml)


@pytest.mark.requirement("S40-13")
@each_row(("lines", "expected"), [
    ("v: |\n  one\n  two", "one\ntwo\n"), ("v: |\n  one\n\n\nw: x", "one\n"), ("v: |-\n  one", "one"),
    ("v: |+\n  one\n\nw: x", "one\n\n"), ("v: >\n  one\n  two\n\n  three", "one two\nthree\n"),
    ("v: >-\n  one\n  two", "one two"), ("v: >\n  one\n    code\n  two", "one\n  code\ntwo\n"),
    ("v: |2\n    two", "  two\n"), ("v: '  spaces  '", "  spaces  "),
    ("v: one\n  two\n\n  three", "one two\nthree"), ('v: "one\n  two\\\n  three"', "one twothree"),
    ("v: 'it''s'", "it's"),
    ("name: a\nv: >\n  Does this\n  and that.", "Does this and that.\n"),  # the form of 40 in 1,000 public skills
])  # fmt: skip
def test_block_and_multi_line_scalars_have_the_line_breaks_of_yaml(lines: str, expected: str):
    found = document(lines)
    assert found.frontmatter is not None
    assert (found.frontmatter["v"], codes(found)) == (expected, [])


@pytest.mark.requirement("S40-13")
def test_fields_are_complete_and_in_order():
    found = document("zebra: 1\nname: a\nargument-hint: '[x]'\nempty:\n&a null: b\n&c 2: d").frontmatter
    expected = {"zebra": 1, "name": "a", "argument-hint": "[x]", "empty": None, "null": "b", "2": "d"}
    assert found == expected and list(found) == list(expected)


@pytest.mark.requirement("S40-13")
@each_row(("lines", "code", "line", "frontmatter"), [
    *((f"a: b\n{key}: c", "yaml-key", 3, {"a": "b", key: "c"})
      for key in ("on", "YES", "true", "null", "~", "1", "0x1F", "1.5", "-1e3", ".inf")),
    *((f"a: 'b{mark} c'", "yaml-ambiguous", 2, None) for mark in "\x85\u2028\u2029"),
    ("base: &base {a: b}\nderived:\n  <<: *base\n  c: d", "yaml-ambiguous", 4,
     {"base": {"a": "b"}, "derived": {"<<": {"a": "b"}, "c": "d"}}),
])  # fmt: skip
def test_ambiguous_yaml_is_kept_with_a_warning(lines: str, code: str, line: int, frontmatter: Json):
    found = document(lines)
    assert found.frontmatter is not None
    assert frontmatter in (None, found.frontmatter)
    assert [(each.code, each.line) for each in found.problems] == [(code, line)]


@pytest.mark.requirement("S40-13")
def test_alias_has_the_value_of_its_anchor():
    found = document("a: &x [1, {b: c}]\nd: *x\n&k key: &v text\ne: *v\nf: *k\n*v : 2").frontmatter
    anchored = [1, {"b": "c"}]
    assert found == {"a": anchored, "d": anchored, "key": "text", "e": "text", "f": "key", "text": 2}


@pytest.mark.requirement("S40-13", "AS-2")
@each_parser
@each_row(("lines", "code", "line"), [
    *((f"name: a\nvalue: {text}", "yaml-value", 3) for text in (
        ".nan", ".NaN", ".inf", "-.inf", "+.INF", "1e400", "-1.5e999", "0x" + "f" * 300, "1" * 400 + ".5", "9" * 301,
        "9" * 100_000)),
    *((f"name: a\nvalue: {text}", "yaml-tag", 3) for text in (
        "!!str 1", "!!python/object/apply:os.system ['true']", "!local x", "! x", "!!binary aGk=", "!!set {a, b}")),
    ("!!str name: a", "yaml-tag", 2),
    ("name: a\nname: b", "yaml-duplicate-key", 3), ("name: a\n'name': a", "yaml-duplicate-key", 3),
    ("metadata:\n  a: 1\n  b: 2\n  a: 3", "yaml-duplicate-key", 5),
    ("list:\n  - {x: 1, x: 2}", "yaml-duplicate-key", 3), ("1: a\n'1': b", "yaml-duplicate-key", 3),
    *((f"name: a\n{key}: b", "yaml-value", 3) for key in ("[a]", "{a: b}", "? [a]\n")),
    *((f"name: &a {anchored}\n*a : b", "yaml-value", 3) for anchored in ("1", "[x]", "null")),
    ("a: *nowhere", "yaml-alias", 2), ("a: &a [*a]", "yaml-alias", 2), ("a: &a {b: {c: *a}}", "yaml-alias", 2),
    ("name: a\n...\nname: b", "yaml-syntax", 4), ("name: a\n--- # two\nname: b", "yaml-syntax", 3),
    ("v: " + "x" * MAX_YAML, "yaml-size", 2),
    *((lines, "frontmatter-not-mapping", 2) for lines in ("- a\n- b", "just text", "42", "'name: a'")),
    *((f'description: "{escape}"', "yaml-syntax", None)
      for escape in ("\\ud800", "\\uDFFF", "\\U0000D800", "\\U00110000", "\\UFFFFFFFF")),
])  # fmt: skip
def test_ambiguous_or_unsafe_yaml_is_refused_with_its_line(lines: str, code: str, line: int | None):
    found = document(lines)
    assert (found.frontmatter, fatal(found)) == (None, [code])
    assert line in (None, *(each.line for each in found.problems if each.code == code))


@pytest.mark.requirement("ASG-17")
@each_parser
@each_row(("lines", "line", "hint"), [
    ("name: a\ndescription:\n  use: Use when: always", 4, "quotes"),
    ("name: a\ndescription: @here", 3, "write description"),
    ("name: a\n\tdescription: b", 3, "tabs"), ("name: a\ndescription: 'open", 3, "write description"),
    ("name: a\ndescription: [a, b", 3, "write description"), ("name: a\n b: c", 3, "put the value in quotes"),
    ("name: ä\ndescription: a \x07 bell\nb: c", 3, "escape it"),
    ('name: a\ndescription: "\\q"', 3, "write description"),
])  # fmt: skip
def test_invalid_yaml_has_a_line_and_a_hint(lines: str, line: int, hint: str):
    found = document(lines)
    assert (found.frontmatter, fatal(found)) == (None, ["yaml-syntax"])
    # The parsers locate an unclosed collection at its beginning or at the end.
    assert found.problems[0].line in (line, line + 1)
    assert hint in found.problems[0].hint


@pytest.mark.requirement("ASG-18")
def test_all_problems_are_reported_at_once():
    found = document(
        "name: a\nname: b\nwhen: 12:30\non: push\nratio: .nan\ntagged: !x y\nloop: *nowhere\nmetadata: {k: 1, k: 2}"
    )
    assert found.frontmatter is None
    assert [(each.code, each.line) for each in found.problems] == [
        ("yaml-duplicate-key", 3), ("yaml-ambiguous", 4), ("yaml-key", 5), ("yaml-value", 6), ("yaml-tag", 7),
        ("yaml-alias", 8), ("yaml-duplicate-key", 9),
    ]  # fmt: skip
    assert codes(document("name: a\nname: b\nbad: [")) == ["yaml-duplicate-key", "yaml-syntax"]


@each_row(("lines", "message"), [
    ("a: 1e999", "'1e999' is too large for JSON"),
    ("a: [b", "not valid YAML: while parsing a flow sequence did not find expected ',' or ']'"),
    ("a: *nowhere", "the alias *nowhere has no anchor"), ("a: &a [*a]", "the alias *a refers to itself"),
    ("- a", "the frontmatter is a list, not a mapping"), ("text", "the frontmatter is text, not a mapping"),
    ("42", "the frontmatter is a single value, not a mapping"),
    ("a: \x07", "YAML does not allow the character U+0007"),
    (f"a: 1{'0' * 400}.5", f"'1{'0' * 36}...' is too large for JSON"),
    ("a: 'b\x85 c'", "U+0085 is a line break in YAML 1.1 but not in 1.2"),
])  # fmt: skip
def test_message_names_the_fault(lines: str, message: str) -> None:
    assert document(lines).problems[-1].message == message


@pytest.mark.requirement("S40-5")
def test_warnings_are_limited_to_100_and_an_error_is_still_reported():
    """Without the error, a skill whose frontmatter is None could be valid."""
    dates = "dates: [" + ", ".join(["2024-05-01"] * 150) + "]"
    found = document(dates)
    assert found.frontmatter == {"dates": ["2024-05-01"] * 150}
    assert codes(found) == ["yaml-ambiguous"] * 100
    assert fatal(document(f"{dates}\nratio: .nan")) == ["yaml-value"]
    assert len(document("list: [" + ", ".join([".nan"] * 5000) + "]").problems) == 101


@each_parser
@each_row("opening", ["[" * 100_000, "{a: " * 30_000, "{" * 100_000, "- " * 50_000, "? " * 50_000])
def test_endless_nesting_is_refused(opening: str):
    found = document(f"v:\n  {opening}")
    assert found.frontmatter is None and fatal(found)


_HALF = MAX_DEPTH // 2
_SIZE = MAX_EXPANSION // 64
_LONG = f"c: {{}}\na: &a {'x' * _SIZE}\nb: [{'*a,' * 62}]"
_ALIASED = f"a: &a {'[' * _HALF}x{']' * _HALF}\nb: {'[' * (_HALF - 1)}*a{']' * (_HALF - 1)}"


@each_row(("fits", "exceeds", "code"), [
    ("v: " + "[" * (MAX_DEPTH - 1) + "]" * (MAX_DEPTH - 1), "v: " + "[" * MAX_DEPTH + "]" * MAX_DEPTH, "yaml-depth"),
    *((each, each.replace("b: ", "b: [") + "]", "yaml-depth") for each in (_ALIASED, _ALIASED.replace("x", ""))),
    ("v: [" + ",".join("0" * (MAX_NODES - 3)) + "]", "v: [" + ",".join("0" * (MAX_NODES - 2)) + "]", "yaml-size"),
    ("c: 0\na: &a [0,0,0]\nb: [" + "*a," * 1998 + "]", "c: 0\na: &a [0,0,0]\nb: [" + "*a," * 1998 + "0]", "yaml-size"),
    (_LONG.format("y" * (_SIZE - 3)), _LONG.format("y" * (_SIZE - 2)), "yaml-alias"),
    ("v: " + "x" * (MAX_YAML - 4), "v: " + "x" * (MAX_YAML - 3), "yaml-size"),  # and its line break
])  # fmt: skip
def test_yaml_limit_is_exact(fits: str, exceeds: str, code: str):
    assert codes(document(fits)) == []
    found = document(exceeds)
    assert (found.frontmatter, codes(found), found.body) == (None, [code], "Read on.")


@each_parser
def test_alias_bomb_is_refused():
    lines = ["a: &a [" + ", ".join("x" * 9) + "]"]
    lines += [f"{name}: &{name} [" + ", ".join([f"*{last}"] * 9) + "]" for last, name in pairwise("abcdefghi")]
    found = document("\n".join(lines))
    assert (found.frontmatter, fatal(found)) == (None, ["yaml-alias"])


@each_row(("junk", "code"), [
    (b"x" * 5_000_000, "frontmatter-missing"), (b"---\n" * 1_250_000, "frontmatter-not-mapping"),
    (b"---\n" + b"a: b\n" * 1_000_000, "frontmatter-unclosed"),
    (b"---\n" + b"a: b\n" * 1_000_000 + b"---\n", "yaml-size"),
    (b"---\n" + b" ---\n" * 1_000_000, "frontmatter-unclosed"), (b"\n" * 5_000_000, "frontmatter-missing"),
    (b"\r" * 5_000_000, "frontmatter-missing"), (b"\xff" * 5_000_000, "not-utf8"), (b"\0" * 5_000_000, "nul-byte"),
    (b'---\nv: "' + b"\\" * 100_000 + b"\n---\n", "yaml-syntax"),
])  # fmt: skip
def test_five_megabytes_of_junk_have_one_problem(junk: bytes, code: str):
    found = parse(junk)
    assert (found.frontmatter, codes(found)) == (None, [code])
